//! Encodes protocol buffers, with the wire types that the schemas of pprof, Perfetto and OTLP need.

/// A message under construction.
#[derive(Clone, Debug, Default)]
pub(super) struct Message {
    bytes: Vec<u8>,
}

impl Message {
    pub(super) fn new() -> Self {
        Self::default()
    }

    pub(super) fn finish(self) -> Vec<u8> {
        self.bytes
    }

    /// Writes a varint field. Zero is the default value of a missing field, so it is left out.
    pub(super) fn number(&mut self, field: u32, value: u64) {
        if value != 0 {
            self.varint(u64::from(field) << 3);
            self.varint(value);
        }
    }

    /// Writes a varint field even if it is zero, for fields where a reader distinguishes zero from missing.
    pub(super) fn varint_always(&mut self, field: u32, value: u64) {
        self.varint(u64::from(field) << 3);
        self.varint(value);
    }

    /// Writes a field of eight bytes.
    pub(super) fn fixed64(&mut self, field: u32, value: u64) {
        self.varint(u64::from(field) << 3 | 1);
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    /// Writes a floating-point field, even if it is zero.
    pub(super) fn double(&mut self, field: u32, value: f64) {
        self.fixed64(field, value.to_bits());
    }

    /// Writes a packed field of eight-byte numbers.
    pub(super) fn fixed64s(&mut self, field: u32, values: &[u64]) {
        let packed: Vec<u8> = values.iter().flat_map(|it| it.to_le_bytes()).collect();
        self.bytes(field, &packed);
    }

    /// Writes a packed field of varints.
    pub(super) fn numbers(&mut self, field: u32, values: &[u64]) {
        let mut packed = Self::new();
        for &value in values {
            packed.varint(value);
        }
        self.bytes(field, &packed.bytes);
    }

    pub(super) fn message(&mut self, field: u32, message: &Self) {
        self.bytes(field, &message.bytes);
    }

    pub(super) fn text(&mut self, field: u32, text: &str) {
        self.bytes(field, text.as_bytes());
    }

    pub(super) fn bytes(&mut self, field: u32, bytes: &[u8]) {
        self.varint(u64::from(field) << 3 | 2);
        self.varint(bytes.len() as u64);
        self.bytes.extend_from_slice(bytes);
    }

    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.bytes.push((value & 0x7f) as u8 | 0x80);
            value >>= 7;
        }
        self.bytes.push(value as u8);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_those_of_the_encoding_guide() {
        let mut message = Message::new();
        message.number(1, 150);
        message.number(7, 0);
        message.text(2, "testing");
        message.numbers(6, &[3, 270, 86_942]);
        assert_eq!(
            message.finish(),
            [
                0x08, 0x96, 0x01, 0x12, 0x07, 0x74, 0x65, 0x73, 0x74, 0x69, 0x6e, 0x67, 0x32, 0x06,
                0x03, 0x8e, 0x02, 0x9e, 0xa7, 0x05
            ]
        );
    }

    #[test]
    fn the_largest_number_has_ten_bytes() {
        let mut message = Message::new();
        message.number(1, u64::MAX);
        assert_eq!(message.finish().len(), 11);
    }
}
