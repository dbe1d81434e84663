//! What membound-report makes of whole documents.

mod dom;
mod exports;
mod fixture;
mod model;
mod numbers;
mod page;
mod text;
