//! Profiles of runs as text, page and exports.

mod browser;
mod exports;
pub(crate) mod fixture;
mod page;
mod protobuf;
mod readers;
mod text;
