//! Arrow's file format (IPC) with one record batch; text columns are dictionaries.

use std::collections::HashMap;
use std::sync::Arc;

use arrow_array::types::Int32Type;
use arrow_array::{
    ArrayRef, DictionaryArray, Int32Array, Int64Array, LargeStringArray, RecordBatch, UInt32Array,
    UInt64Array,
};
use arrow_ipc::writer::FileWriter;
use arrow_schema::{ArrowError, Field, Schema};
use membound_types::{Detail, Profile};

use super::rows::{TableError, Values, about, columns};

/// Writes the samples of a run as an Arrow file, one per row.
///
/// # Errors
/// [`TableError::Arrow`] if Arrow's library rejects the table.
pub fn arrow(profile: &Profile, detail: &Detail) -> Result<Vec<u8>, TableError> {
    let mut fields = Vec::new();
    let mut arrays = Vec::new();
    for column in columns(profile, detail) {
        let array = array(column.values)?;
        fields.push(Field::new(
            column.name,
            array.data_type().clone(),
            column.optional,
        ));
        arrays.push(array);
    }
    let about: HashMap<String, String> = about(profile).into_iter().collect();
    let schema = Arc::new(Schema::new(fields).with_metadata(about));
    let batch = RecordBatch::try_new(Arc::clone(&schema), arrays)?;
    let mut writer = FileWriter::try_new(Vec::new(), &schema)?;
    writer.write(&batch)?;
    Ok(writer.into_inner()?)
}

fn array(values: Values) -> Result<ArrayRef, ArrowError> {
    Ok(match values {
        Values::Times(times) => Arc::new(Int64Array::from(times)),
        Values::Numbers(numbers) => Arc::new(UInt32Array::from(numbers)),
        Values::Addresses(addresses) => Arc::new(UInt64Array::from(addresses)),
        Values::Texts(texts) => {
            let values = Arc::new(LargeStringArray::from_iter_values(texts.values));
            let keys = Int32Array::from(texts.keys);
            Arc::new(DictionaryArray::<Int32Type>::try_new(keys, values)?)
        }
    })
}
