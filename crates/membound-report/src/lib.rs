//! Formats documents as text, as a web page, or for other programs.
//!
//! [`text`] is for a terminal, [`page`] is one self-contained HTML page, [`lat_mem_rd`], [`csv`],
//! [`export`] and [`gates`] are for other programs. Nothing here measures, reads the machine or writes a
//! file, and no figure is changed: the content of a document is shown, grouped and formatted ([`units`]),
//! and missing data is shown with its reason.

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
