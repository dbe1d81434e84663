//! Sizes and lists as people type them.

/// Bytes from `64`, `4K`, `1.5M`, `2G` or `1T` (powers of 1024).
///
/// # Errors
/// A fragment that names the text and the forms that are understood.
pub(crate) fn parse(text: &str) -> Result<u64, String> {
    let bad = || format!("`{text}` is no size: use bytes, or K, M, G, as in 16K or 1.5M");
    let trimmed = text.trim();
    let upper = trimmed.to_ascii_uppercase();
    let plain = upper
        .strip_suffix("IB")
        .or_else(|| upper.strip_suffix('B'))
        .unwrap_or(&upper);
    let (number, shift) = match plain.char_indices().last() {
        Some((at, 'K')) => (&plain[..at], 10),
        Some((at, 'M')) => (&plain[..at], 20),
        Some((at, 'G')) => (&plain[..at], 30),
        Some((at, 'T')) => (&plain[..at], 40),
        _ => (plain, 0),
    };
    let number: f64 = number.parse().map_err(|_| bad())?;
    let bytes = number * f64::exp2(f64::from(shift));
    if !bytes.is_finite() || bytes < 1.0 || bytes >= f64::exp2(63.0) || bytes.fract() != 0.0 {
        return Err(bad());
    }
    Ok(bytes as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_as_people_type_them() {
        for (text, bytes) in [
            ("64", 64),
            ("4K", 4096),
            ("4k", 4096),
            ("16KiB", 16 << 10),
            ("1.5M", 3 << 19),
            ("2G", 2 << 30),
            ("2GB", 2 << 30),
            ("1T", 1 << 40),
        ] {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn what_is_no_size_is_named() {
        for text in [
            "", "K", "-1", "0", "1.3", "4Q", "nan", "inf", "1e40", "9999999T",
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(&format!("`{text}`")), "{error}");
        }
    }
}
