//! Decodes the bytes of a file to text.

use std::borrow::Cow;

use crate::error::Fault;

/// The text of a file without a byte order mark. Carriage returns become line feeds if the file has
/// no line feed.
pub(crate) fn decode(bytes: &[u8]) -> Result<Cow<'_, str>, Fault> {
    if bytes.starts_with(&[0xff, 0xfe]) || bytes.starts_with(&[0xfe, 0xff]) {
        return Err(Fault::NotText {
            offset: 0,
            what: "UTF-16, as PowerShell's `>` writes it; save the file as UTF-8".to_owned(),
        });
    }
    let not_text = |offset: usize| Fault::NotText {
        offset,
        what: format!(
            "0x{:02x} is no text; expected are text files in UTF-8",
            bytes.get(offset).copied().unwrap_or_default()
        ),
    };
    let text = str::from_utf8(bytes).map_err(|error| not_text(error.valid_up_to()))?;
    let binary = |byte: &u8| byte.is_ascii_control() && !byte.is_ascii_whitespace();
    if let Some(offset) = bytes.iter().position(binary) {
        return Err(not_text(offset));
    }
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    Ok(if text.contains('\r') && !text.contains('\n') {
        Cow::Owned(text.replace('\r', "\n"))
    } else {
        Cow::Borrowed(text)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_order_mark_is_no_text() {
        assert_eq!(decode(b"\xef\xbb\xbfns").unwrap(), "ns");
        assert_eq!(decode(b"").unwrap(), "");
    }

    #[test]
    fn carriage_returns_alone_end_lines() {
        assert_eq!(decode(b"a\rb\r").unwrap(), "a\nb\n");
        assert_eq!(decode(b"a\r\nb\r").unwrap(), "a\r\nb\r");
    }
}
