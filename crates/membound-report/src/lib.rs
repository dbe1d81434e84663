//! Documents in, text or a page out.
//!
//! [`text`] is for a terminal, [`page`] is one self-contained HTML page, [`lat_mem_rd`],
//! [`csv`], [`export`] and [`gates`] are for other programs. Nothing here measures, reads the machine or writes
//! a file, and nothing is computed that changes a figure: what stands in a document is
//! shown, grouped and formatted ([`units`]), and what is missing is shown with its reason.

#![forbid(unsafe_code)]

mod by;
pub mod csv;
pub mod doctor;
pub mod export;
mod facts;
pub mod gates;
pub mod lat_mem_rd;
pub mod page;
pub mod text;
pub mod units;

pub use by::{By, Grouping, Sort};
