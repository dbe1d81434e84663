//! Parquet with one row group, uncompressed: dictionaries already make most columns small.

use std::sync::Arc;

use membound_types::{Detail, Profile};
use parquet::basic::{Encoding, LogicalType, Repetition, Type as PhysicalType};
use parquet::data_type::{ByteArray, ByteArrayType, DataType, Int32Type, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedColumnWriter, SerializedFileWriter};
use parquet::schema::types::{ColumnPath, Type, TypePtr};

use super::rows::{Column, TableError, Values, about, columns};

/// Largest dictionary of a column, in bytes: enough for the call chains of large programs.
const DICTIONARY_LIMIT_BYTES: usize = 64 << 20;

/// Writes the samples of a run as a Parquet file, one per row.
///
/// # Errors
/// [`TableError::Parquet`] if Parquet's library rejects the table.
pub fn parquet(profile: &Profile, detail: &Detail) -> Result<Vec<u8>, TableError> {
    let columns = columns(profile, detail);
    let fields = columns.iter().map(field).collect::<Result<Vec<_>, _>>()?;
    let schema = Type::group_type_builder("samples")
        .with_fields(fields)
        .build()?;
    let mut writer =
        SerializedFileWriter::new(Vec::new(), Arc::new(schema), Arc::new(properties(profile)))?;
    let mut group = writer.next_row_group()?;
    for column in columns {
        if let Some(mut writer) = group.next_column()? {
            write(&mut writer, column)?;
            writer.close()?;
        }
    }
    group.close()?;
    Ok(writer.into_inner()?)
}

fn properties(profile: &Profile) -> WriterProperties {
    let about = about(profile)
        .into_iter()
        .map(|(name, value)| KeyValue::new(name, value));
    let time = ColumnPath::from("time_ns");
    WriterProperties::builder()
        .set_created_by(format!("membound {}", profile.run.membound_version))
        .set_key_value_metadata(Some(about.collect()))
        .set_dictionary_page_size_limit(DICTIONARY_LIMIT_BYTES)
        // Times grow by about the same amount from row to row, which suits delta encoding.
        .set_column_dictionary_enabled(time.clone(), false)
        .set_column_encoding(time, Encoding::DELTA_BINARY_PACKED)
        .build()
}

fn field(column: &Column) -> Result<TypePtr, ParquetError> {
    let unsigned = |bits| LogicalType::integer(bits, false);
    let (physical, logical) = match column.values {
        Values::Times(_) => (PhysicalType::INT64, None),
        Values::Numbers(_) => (PhysicalType::INT32, Some(unsigned(32))),
        Values::Addresses(_) => (PhysicalType::INT64, Some(unsigned(64))),
        Values::Texts(_) => (PhysicalType::BYTE_ARRAY, Some(LogicalType::String)),
    };
    let repetition = if column.optional {
        Repetition::OPTIONAL
    } else {
        Repetition::REQUIRED
    };
    let field = Type::primitive_type_builder(column.name, physical)
        .with_logical_type(logical)
        .with_repetition(repetition)
        .build()?;
    Ok(Arc::new(field))
}

fn write(writer: &mut SerializedColumnWriter<'_>, column: Column) -> Result<(), ParquetError> {
    let optional = column.optional;
    match column.values {
        Values::Times(times) => {
            writer
                .typed::<Int64Type>()
                .write_batch(&times, None, None)?;
        }
        Values::Numbers(numbers) => {
            // Same bits: the logical type marks them as unsigned.
            let numbers = numbers.into_iter().map(|it| it.map(u32::cast_signed));
            batch::<Int32Type>(writer, numbers.collect(), optional)?;
        }
        Values::Addresses(addresses) => {
            let addresses = addresses.into_iter().map(|it| it.map(u64::cast_signed));
            batch::<Int64Type>(writer, addresses.collect(), optional)?;
        }
        Values::Texts(texts) => {
            let values: Vec<ByteArray> = texts
                .values
                .iter()
                .map(|text| ByteArray::from(text.as_str()))
                .collect();
            let rows = texts.keys.into_iter();
            let rows = rows.map(|key| values.get(usize::try_from(key?).ok()?).cloned());
            batch::<ByteArrayType>(writer, rows.collect(), optional)?;
        }
    }
    Ok(())
}

/// Writes the values of a column; an optional column also stores which rows have one.
fn batch<T: DataType>(
    writer: &mut SerializedColumnWriter<'_>,
    rows: Vec<Option<T::T>>,
    optional: bool,
) -> Result<usize, ParquetError> {
    let levels: Option<Vec<i16>> =
        optional.then(|| rows.iter().map(|row| row.is_some().into()).collect());
    let values: Vec<T::T> = rows.into_iter().flatten().collect();
    writer
        .typed::<T>()
        .write_batch(&values, levels.as_deref(), None)
}
