//! Reads and writes the program's memory by address, one operation for each function, and builds text
//! lines.

/// Reads a value at `address`, aligned or not.
///
/// # Safety
///
/// The bytes must be mapped and readable, and valid as a `T`.
pub(crate) unsafe fn get<T: Copy>(address: usize) -> T {
    // SAFETY: the caller vouches for the address.
    unsafe { core::ptr::read_unaligned(address as *const T) }
}

/// Writes a value at `address`, aligned or not.
///
/// # Safety
///
/// The bytes must be mapped and writable, and no reference to them may exist.
pub(crate) unsafe fn put<T: Copy>(address: usize, value: T) {
    // SAFETY: the caller vouches for the address.
    unsafe { core::ptr::write_unaligned(address as *mut T, value) }
}

/// The bytes of a C string at `address`, without its end.
///
/// # Safety
///
/// It must be a C string that stays unchanged for `'a`.
pub(crate) unsafe fn c_string<'a>(address: usize) -> &'a [u8] {
    let mut length = 0;
    // SAFETY: the end of the string is not passed. (`CStr::from_ptr` would want a libc.)
    while (unsafe { get::<u8>(address + length) }) != 0 {
        length += 1;
    }
    // SAFETY: that many bytes were just read.
    unsafe { core::slice::from_raw_parts(address as *const u8, length) }
}

/// A value as its bytes. Only for the `repr(C)` types of the wire, which have no padding.
pub(crate) fn bytes_of<T: Copy>(value: &T) -> &[u8] {
    let start = (&raw const *value).cast::<u8>();
    // SAFETY: the value has that many bytes, all initialised, and is borrowed.
    unsafe { core::slice::from_raw_parts(start, size_of::<T>()) }
}

/// A short text built from parts, kept as a C string.
#[derive(Debug)]
pub(crate) struct Line<const N: usize> {
    bytes: [u8; N],
    length: usize,
}

impl<const N: usize> Line<N> {
    pub(crate) const fn new() -> Self {
        Self {
            bytes: [0; N],
            length: 0,
        }
    }

    /// Appends text; `None` if it does not fit.
    pub(crate) fn push(&mut self, text: &[u8]) -> Option<()> {
        let end = self.length.checked_add(text.len())?;
        // One byte stays 0, the end of the C string.
        if end >= N {
            return None;
        }
        self.bytes.get_mut(self.length..end)?.copy_from_slice(text);
        self.length = end;
        Some(())
    }

    /// Appends a number in decimal digits; `None` if it does not fit.
    pub(crate) fn push_number(&mut self, number: u32) -> Option<()> {
        let mut digits = [0_u8; 10];
        let mut rest = number;
        let mut used = 0;
        for place in digits.iter_mut().rev() {
            *place = b'0' + (rest % 10) as u8;
            rest /= 10;
            used += 1;
            if rest == 0 {
                break;
            }
        }
        self.push(digits.get(10 - used..)?)
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }

    pub(crate) fn as_c_str(&self) -> Option<&core::ffi::CStr> {
        core::ffi::CStr::from_bytes_until_nul(&self.bytes).ok()
    }

    pub(crate) fn address(&self) -> usize {
        self.bytes.as_ptr() as usize
    }
}

/// The number at the start of `text`, in decimal or after `0x`; `None` without a digit.
pub(crate) fn number(text: &[u8]) -> Option<u64> {
    let (digits, radix) = match text.strip_prefix(b"0x") {
        Some(digits) => (digits, 16_u32),
        None => (text, 10),
    };
    let mut value = None;
    for &byte in digits {
        let Some(digit) = char::from(byte).to_digit(radix) else {
            break;
        };
        value = Some(
            value
                .unwrap_or(0_u64)
                .wrapping_mul(u64::from(radix))
                .wrapping_add(u64::from(digit)),
        );
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_refuses_text_that_does_not_fit() {
        let mut line = Line::<16>::new();
        assert_eq!(line.push(b"/proc/"), Some(()));
        assert_eq!(line.push_number(4_294_967), Some(()));
        assert_eq!(line.as_c_str(), Some(c"/proc/4294967"));
        assert_eq!(line.push(b"/abc"), None);
        let mut line = Line::<16>::new();
        assert_eq!(line.push_number(0), Some(()));
        assert_eq!(line.push_number(u32::MAX), Some(()));
        assert_eq!(line.as_bytes(), b"04294967295");
    }

    #[test]
    fn numbers_end_where_their_digits_do() {
        assert_eq!(number(b"0x7ffe 3"), Some(0x7ffe));
        assert_eq!(number(b"17\n"), Some(17));
        assert_eq!(number(b"running"), None);
    }
}
