//! Profiles of runs: as text, as a page, and for other programs.

mod browser;
mod exports;
pub(crate) mod fixture;
mod page;
mod protobuf;
mod readers;
mod text;
