//! Parses numbers as people and other programs write them.

use crate::check;
use crate::text::shown;

/// Bytes of a mebibyte.
const MIB: f64 = 1_048_576.0;

/// Parses a size: bytes from `64`, `4K`, `1.5M`, `2G` or `1T`.
///
/// Units are powers of 1024; `K`, `KB` and `KiB` mean the same, in any case.
///
/// # Errors
///
/// A fragment of a message that names the text and the accepted forms.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let bad = || {
        format!(
            "{} is no size: use bytes, or K, M, G, as in 16K or 1.5M",
            shown(text)
        )
    };
    let upper = text.trim().to_ascii_uppercase();
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

/// Parses a whole number of bytes, also as `16384.0` or `1e6`, the form in which tables of floating
/// point numbers are saved.
///
/// # Errors
/// A fragment of a message that begins with the value.
pub(crate) fn bytes(text: &str) -> Result<u64, String> {
    let bytes = match text.parse::<u64>() {
        Ok(bytes) => bytes,
        Err(_) => whole(text)?,
    };
    check::size(bytes)?;
    Ok(bytes)
}

fn whole(text: &str) -> Result<u64, String> {
    let value = number(text)?;
    if value.is_nan() {
        return Err("NaN is no size".to_owned());
    }
    if value < 0.0 {
        return Err(format!("{} is negative; sizes are above 0", shown(text)));
    }
    if value >= f64::exp2(64.0) {
        return Err(format!(
            "{} is beyond 64 bits; sizes are in bytes",
            shown(text)
        ));
    }
    if value.fract() != 0.0 {
        return Err(format!(
            "{} is not a whole number of bytes: is this KiB or MiB? Sizes are in bytes",
            shown(text)
        ));
    }
    Ok(value as u64)
}

/// Parses a number, including NaN and infinities, which the caller has to check.
///
/// # Errors
/// A fragment of a message that begins with the value.
pub(crate) fn number(text: &str) -> Result<f64, String> {
    text.parse().map_err(|_| {
        if has_decimal_comma(text) {
            format!("{} has a decimal comma; expected is a point", shown(text))
        } else {
            format!("{} is not a number", shown(text))
        }
    })
}

/// True if `text` is a number with a comma instead of its decimal point.
pub(crate) fn has_decimal_comma(text: &str) -> bool {
    text.split_once(',').is_some_and(|(whole, rest)| {
        let digit = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_digit);
        digit(whole.as_bytes().last())
            && digit(rest.as_bytes().first())
            && format!("{whole}.{rest}").parse::<f64>().is_ok()
    })
}

/// Parses a whole number without a unit.
///
/// # Errors
/// A fragment of a message that begins with the value.
pub(crate) fn count(text: &str) -> Result<u64, String> {
    text.parse()
        .map_err(|_| format!("{} is not a whole number", shown(text)))
}

/// Parses a stride in bytes, above 0.
///
/// # Errors
/// A fragment of a message that begins with the value.
pub(crate) fn stride(text: &str) -> Result<u64, String> {
    match count(text)? {
        0 => Err("0 is no stride; strides are above 0".to_owned()),
        stride => Ok(stride),
    }
}

/// Bytes that were printed as `text` MiB with `decimals` decimal places.
///
/// Many whole numbers are printed alike; the result is the one with the most trailing zero bits.
/// With five places no two multiples of 16 are printed alike, so that sizes which
/// are such multiples are restored exactly.
///
/// # Errors
/// A fragment of a message that begins with the value.
pub(crate) fn printed_mib(text: &str, decimals: i32) -> Result<u64, String> {
    let value = number(text)?;
    if value.is_nan() {
        return Err("NaN is no size".to_owned());
    }
    if value < 0.0 {
        return Err(format!("{} is negative; sizes are above 0", shown(text)));
    }
    let half = 0.5 * 10f64.powi(-decimals) * MIB;
    let centre = value * MIB;
    if centre >= f64::exp2(63.0) {
        return Err(format!(
            "{} MiB are more than any machine addresses",
            shown(text)
        ));
    }
    let least = (centre - half).ceil().max(1.0) as u64;
    let most = (centre + half).floor() as u64;
    let bytes = roundest(least, most);
    check::size(bytes)?;
    Ok(bytes)
}

/// True if `bytes` is printed as `text` MiB with `decimals` decimal places.
pub(crate) fn prints_as_mib(bytes: u64, text: &str, decimals: i32) -> bool {
    let half = 0.5 * 10f64.powi(-decimals);
    // Programs may round halves up, down or to even.
    let slack = 1e-9;
    number(text).is_ok_and(|value| (bytes as f64 / MIB - value).abs() <= half + slack)
}

/// The number from `least` to `most` with the most trailing zero bits.
fn roundest(least: u64, most: u64) -> u64 {
    let mut best = most;
    for shift in 0..64 {
        // Clearing the low bits of `most` gives the largest multiple up to it.
        let candidate = most >> shift << shift;
        if candidate < least || candidate == 0 {
            break;
        }
        best = candidate;
    }
    best
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
            (" 16KiB ", 16 << 10),
            ("1.5M", 3 << 19),
            ("2G", 2 << 30),
            ("2GB", 2 << 30),
            ("1T", 1 << 40),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
        for text in [
            "", "K", "-1", "0", "1.3", "4Q", "nan", "inf", "1e40", "9999999T", "µ",
        ] {
            let error = parse_size(text).unwrap_err();
            assert!(error.contains(&format!("`{text}`")), "{error}");
        }
    }

    #[test]
    fn bytes_of_tables_are_whole() {
        assert_eq!(bytes("16384"), Ok(16384));
        assert_eq!(bytes("16384.0"), Ok(16384));
        assert_eq!(bytes("1e6"), Ok(1_000_000));
        for (text, begin) in [
            ("0", "0 bytes hold nothing"),
            ("4", "4 bytes hold no pointer"),
            ("0.5", "`0.5` is not a whole number of bytes"),
            ("-4096", "`-4096` is negative"),
            ("nan", "NaN is no size"),
            ("inf", "`inf` is beyond 64 bits"),
            ("18446744073709551616", "`18446744073709551616` is beyond"),
            ("18446744073709551615", "18446744073709551615 bytes are"),
            ("4K", "`4K` is not a number"),
        ] {
            let error = bytes(text).unwrap_err();
            assert!(error.starts_with(begin), "{text}: {error}");
        }
    }

    #[test]
    fn printed_mebibytes_come_back_as_the_roundest_bytes() {
        assert_eq!(printed_mib("0.00049", 5), Ok(512));
        assert_eq!(printed_mib("0.00098", 5), Ok(1024));
        assert_eq!(printed_mib("0.00293", 5), Ok(3072));
        assert_eq!(printed_mib("0.07031", 5), Ok(72 << 10));
        assert_eq!(printed_mib("120.00000", 5), Ok(120 << 20));
        assert_eq!(printed_mib("0.029", 3), Ok(30 << 10));
        assert_eq!(printed_mib("2000.000", 3), Ok(2000 << 20));
        assert!(printed_mib("0.00000", 5).is_err());
        assert!(printed_mib("1e300", 5).is_err());
    }

    #[test]
    fn the_roundest_number_of_a_range_lies_in_it() {
        for (least, most, expected) in [(1, 1, 1), (5, 7, 6), (509, 519, 512), (0, 0, 0)] {
            assert_eq!(roundest(least, most), expected, "{least} {most}");
        }
        assert_eq!(roundest(1, u64::MAX), 1 << 63);
    }

    #[test]
    fn multiples_of_sixteen_survive_five_digits() {
        for size_bytes in (16..200_000u64).step_by(16) {
            let printed = format!("{:.5}", size_bytes as f64 / MIB);
            let back = printed_mib(&printed, 5).unwrap();
            assert!(prints_as_mib(back, &printed, 5), "{size_bytes}");
            assert_eq!(back, size_bytes);
        }
    }
}
