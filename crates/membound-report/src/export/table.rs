//! Samples as a table, a row each, in the formats for columns.

mod arrow;
mod parquet;
mod rows;

pub use self::arrow::arrow;
pub use self::parquet::parquet;
pub use self::rows::TableError;
