//! Samples as a table, one per row, in columnar formats.

mod arrow;
mod parquet;
mod rows;

pub use self::arrow::arrow;
pub use self::parquet::parquet;
pub use self::rows::TableError;
