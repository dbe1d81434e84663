//! Formats whole documents as text, pages and exports.

mod compare;
mod dom;
mod exports;
mod fixture;
mod harvest;
mod harvest_explore;
mod model;
mod numbers;
mod page;
mod rewrite;
mod run;
mod terminal;
mod text;
