//! Reads numbers and slices from bytes, with bounds checks.

/// Byte order of numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ByteOrder {
    /// Least significant byte first.
    Little,
    /// Most significant byte first.
    Big,
}

/// A reading position. Every read returns `None` if too few bytes are left.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cursor<'a> {
    rest: &'a [u8],
    order: ByteOrder,
}

impl<'a> Cursor<'a> {
    pub(crate) const fn new(bytes: &'a [u8], order: ByteOrder) -> Self {
        Self { rest: bytes, order }
    }

    pub(crate) const fn rest(&self) -> &'a [u8] {
        self.rest
    }

    pub(crate) const fn order(&self) -> ByteOrder {
        self.order
    }

    /// Reads the next `length` bytes.
    pub(crate) fn take(&mut self, length: u64) -> Option<&'a [u8]> {
        let length = usize::try_from(length).ok()?;
        let (taken, rest) = self.rest.split_at_checked(length)?;
        self.rest = rest;
        Some(taken)
    }

    pub(crate) fn skip(&mut self, length: u64) -> Option<()> {
        self.take(length).map(|_| ())
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.rest.split_first_chunk()?;
        self.rest = rest;
        Some(*taken)
    }

    pub(crate) fn u16(&mut self) -> Option<u16> {
        let bytes = self.array()?;
        Some(match self.order {
            ByteOrder::Little => u16::from_le_bytes(bytes),
            ByteOrder::Big => u16::from_be_bytes(bytes),
        })
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        let bytes = self.array()?;
        Some(match self.order {
            ByteOrder::Little => u32::from_le_bytes(bytes),
            ByteOrder::Big => u32::from_be_bytes(bytes),
        })
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        let bytes = self.array()?;
        Some(match self.order {
            ByteOrder::Little => u64::from_le_bytes(bytes),
            ByteOrder::Big => u64::from_be_bytes(bytes),
        })
    }

    /// Reads a process or thread number; -1 means one that has ended.
    pub(crate) fn i32(&mut self) -> Option<i32> {
        self.u32().map(u32::cast_signed)
    }

    /// Reads `count` words of eight bytes.
    pub(crate) fn words(&mut self, count: u64) -> Option<Words<'a>> {
        let bytes = self.take(count.checked_mul(8)?)?;
        Some(Words {
            bytes,
            order: self.order,
        })
    }

    /// Reads text with its length before it, as in headers of perf.data, without trailing zeros.
    pub(crate) fn string(&mut self) -> Option<String> {
        let length = self.u32()?;
        self.take(u64::from(length)).map(text)
    }
}

/// The text up to the first zero byte.
pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(until_zero(bytes)).into_owned()
}

/// Text for a message: control characters are escaped.
pub(crate) fn shown(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for letter in text.chars() {
        if letter.is_control() {
            shown.extend(letter.escape_default());
        } else {
            shown.push(letter);
        }
    }
    shown
}

/// The bytes up to the first zero byte.
pub(crate) fn until_zero(bytes: &[u8]) -> &[u8] {
    let end = bytes.iter().position(|byte| *byte == 0);
    &bytes[..end.unwrap_or(bytes.len())]
}

/// A list of 64-bit numbers, still in the byte order of their file.
#[derive(Clone, Copy, Debug)]
pub struct Words<'a> {
    bytes: &'a [u8],
    order: ByteOrder,
}

impl Words<'_> {
    /// How many numbers there are.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.bytes.len() / 8
    }

    /// True if there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The number at a position.
    #[must_use]
    pub fn get(&self, index: usize) -> Option<u64> {
        let rest = self.bytes.get(index.checked_mul(8)?..)?;
        Cursor::new(rest, self.order).u64()
    }

    /// All numbers in order.
    pub fn iter(&self) -> impl Iterator<Item = u64> + '_ {
        let order = self.order;
        self.bytes
            .chunks_exact(8)
            .filter_map(move |bytes| Cursor::new(bytes, order).u64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stand_in_either_order() {
        let bytes = [1, 2, 3, 4, 5, 6, 7, 8, 9];
        let mut little = Cursor::new(&bytes, ByteOrder::Little);
        assert_eq!(little.u64(), Some(0x0807_0605_0403_0201));
        assert_eq!(little.u16(), None);
        assert_eq!(little.rest(), [9]);
        let mut big = Cursor::new(&bytes, ByteOrder::Big);
        assert_eq!(
            (big.u32(), big.u16(), big.u16()),
            (Some(0x0102_0304), Some(0x0506), Some(0x0708))
        );
    }

    #[test]
    fn counts_beyond_the_end_are_refused() {
        let bytes = [0; 24];
        let mut cursor = Cursor::new(&bytes, ByteOrder::Little);
        assert!(cursor.words(u64::MAX).is_none());
        assert!(cursor.words(4).is_none());
        let words = cursor.words(3).unwrap();
        assert_eq!((words.len(), words.iter().count()), (3, 3));
        assert_eq!((words.get(2), words.get(3)), (Some(0), None));
        assert!(words.get(usize::MAX).is_none());
    }

    #[test]
    fn messages_stay_one_line() {
        assert_eq!(shown("a\nb\u{1b}[2J é"), "a\\nb\\u{1b}[2J é");
    }

    #[test]
    fn text_ends_at_its_first_zero() {
        let bytes = [4, 0, 0, 0, b'a', b'b', 0, b'c'];
        let mut cursor = Cursor::new(&bytes, ByteOrder::Little);
        assert_eq!(cursor.string().as_deref(), Some("ab"));
        assert_eq!(cursor.string(), None);
    }
}
