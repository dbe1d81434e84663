//! Reads protocol buffers, as far as pprof's schema needs it. Written from the description of the encoding,
//! independently of the writer that it checks.

/// A field's value.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    Number(u64),
    Bytes(Vec<u8>),
}

/// A message's fields in their order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Message {
    pub(crate) fields: Vec<(u64, Value)>,
}

impl Message {
    pub(crate) fn parse(bytes: &[u8]) -> Self {
        let mut rest = bytes;
        let mut fields = Vec::new();
        while !rest.is_empty() {
            let key = varint(&mut rest);
            let value = match key & 7 {
                0 => Value::Number(varint(&mut rest)),
                2 => {
                    let length = varint(&mut rest) as usize;
                    let (inside, after) = rest.split_at(length);
                    rest = after;
                    Value::Bytes(inside.to_vec())
                }
                other => panic!("wire type {other}"),
            };
            fields.push((key >> 3, value));
        }
        Self { fields }
    }

    pub(crate) fn bytes(&self, field: u64) -> impl Iterator<Item = &[u8]> {
        self.fields
            .iter()
            .filter_map(move |(number, value)| match value {
                Value::Bytes(bytes) if *number == field => Some(bytes.as_slice()),
                _ => None,
            })
    }

    pub(crate) fn messages(&self, field: u64) -> impl Iterator<Item = Self> {
        self.bytes(field).map(Self::parse)
    }

    /// Number in a field; 0 if the field is missing.
    pub(crate) fn number(&self, field: u64) -> u64 {
        self.fields
            .iter()
            .rev()
            .find_map(|(number, value)| match value {
                Value::Number(value) if *number == field => Some(*value),
                _ => None,
            })
            .unwrap_or(0)
    }

    /// Numbers of one packed field.
    pub(crate) fn packed(&self, field: u64) -> Vec<u64> {
        let mut out = Vec::new();
        for bytes in self.bytes(field) {
            let mut rest = bytes;
            while !rest.is_empty() {
                out.push(varint(&mut rest));
            }
        }
        out
    }
}

fn varint(rest: &mut &[u8]) -> u64 {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (first, after) = rest.split_first().expect("a number ends");
        *rest = after;
        value |= u64::from(first & 0x7f) << shift;
        if first & 0x80 == 0 {
            return value;
        }
    }
    panic!("a number of more than ten bytes")
}
