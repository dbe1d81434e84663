//! Formats quantities in one place, so that page and terminal agree to the digit.
//!
//! Every function takes the unit that its name or argument says, and returns text for a reader. A value
//! that is not finite is written as [`NO_VALUE`]; a report never contains `NaN` or `inf`.

/// Text for a value that is not a finite number.
pub const NO_VALUE: &str = "n/a";

const BINARY_UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

/// Formats a p-value: `p = 0.62`, `p = 0.004`, `p < 0.001`.
#[must_use]
pub fn p_value(p: f64) -> String {
    if !p.is_finite() {
        format!("p {NO_VALUE}")
    } else if p < 0.001 {
        "p < 0.001".to_owned()
    } else if p < 0.0995 {
        format!("p = {p:.3}")
    } else {
        format!("p = {:.2}", p.min(1.0))
    }
}

/// Formats a size: `48 KiB`, `1.5 MiB`, `11.3 MiB`.
#[must_use]
pub fn bytes(size_bytes: u64) -> String {
    let (value, unit) = scaled_bytes(size_bytes as f64);
    format!("{} {unit}", compact(value))
}

/// Formats the interval of a size in the unit of `size_bytes`: `[46.4, 49.6]`. Units are added if the ends
/// are far from the value.
#[must_use]
pub fn bytes_interval_after_value(size_bytes: u64, low_bytes: u64, high_bytes: u64) -> String {
    let (value, _) = scaled_bytes(size_bytes as f64);
    let scale = if value > 0.0 {
        size_bytes as f64 / value
    } else {
        1.0
    };
    let (low, high) = (low_bytes as f64 / scale, high_bytes as f64 / scale);
    let shares_unit = low >= 0.01 && high < 9999.5;
    if shares_unit {
        format!("[{}, {}]", compact(low), compact(high))
    } else {
        format!("[{}, {}]", bytes(low_bytes), bytes(high_bytes))
    }
}

/// Formats a number with three significant digits, at most two of them decimals: `0.96`, `15.2`, `160`;
/// from 10¹⁰ on as `1.23e12`.
#[must_use]
pub fn number(value: f64) -> String {
    if !value.is_finite() {
        return NO_VALUE.to_owned();
    }
    let magnitude = value.abs();
    if magnitude >= 1e10 {
        return format!("{value:.2e}");
    }
    let decimals = if magnitude >= 99.95 {
        0
    } else if magnitude >= 9.995 {
        1
    } else {
        2
    };
    unsigned_zero(format!("{value:.decimals$}"))
}

/// Like [`number`], without trailing zeros: `4096`, `96`, `0.5`. For axis ticks and counts.
#[must_use]
pub fn compact(value: f64) -> String {
    trim_zeros(&number(value))
}

/// Formats an interval in the digits of [`number`]: `[0.95, 0.97]`.
#[must_use]
pub fn interval(low: f64, high: f64) -> String {
    format!("[{}, {}]", number(low), number(high))
}

/// Formats nanoseconds: `0.96 ns`.
#[must_use]
pub fn ns(value_ns: f64) -> String {
    with_unit(value_ns, "ns")
}

/// Formats core clock cycles: `3.9 cycles`.
#[must_use]
pub fn cycles(value_cycles: f64) -> String {
    with_unit(value_cycles, "cycles")
}

/// Formats a rate in 10⁹ bytes per second: `37.2 GB/s`.
#[must_use]
pub fn gb_s(value_gb_s: f64) -> String {
    with_unit(value_gb_s, "GB/s")
}

/// Formats a duration in seconds in the unit that suits it: `850 ns`, `1.23 µs`, `12.4 s`.
#[must_use]
pub fn seconds(value_s: f64) -> String {
    if !value_s.is_finite() {
        return NO_VALUE.to_owned();
    }
    let (factor, unit) = unit_of_seconds(value_s);
    with_unit(value_s * factor, unit)
}

/// Unit that suits a duration in seconds, and the factor to convert to it.
fn unit_of_seconds(value_s: f64) -> (f64, &'static str) {
    let magnitude = value_s.abs();
    if magnitude >= 1.0 || magnitude == 0.0 {
        (1.0, "s")
    } else if magnitude >= 1e-3 {
        (1e3, "ms")
    } else if magnitude >= 1e-6 {
        (1e6, "µs")
    } else {
        (1e9, "ns")
    }
}

/// Formats a duration in nanoseconds in the unit that suits it: `850 ns`, `1.23 µs`, `12.4 s`.
#[must_use]
pub fn duration_ns(value_ns: f64) -> String {
    let (value, unit) = scaled_ns(value_ns);
    with_unit(value, unit)
}

/// Like [`duration_ns`], without trailing zeros: `1 µs`. For axes and spans.
#[must_use]
pub fn short_duration_ns(value_ns: f64) -> String {
    let (value, unit) = scaled_ns(value_ns);
    if value.is_finite() {
        format!("{} {unit}", compact(value))
    } else {
        NO_VALUE.to_owned()
    }
}

/// `value` if it is finite and above 0, else 0. Drawings and other programs' files cannot show infinities,
/// and a negative time or weight is an error of the clock.
pub(crate) fn positive(value: f64) -> f64 {
    if value.is_finite() {
        value.max(0.0)
    } else {
        0.0
    }
}

fn scaled_ns(value_ns: f64) -> (f64, &'static str) {
    const UNITS: [&str; 4] = ["ns", "µs", "ms", "s"];
    let (mut value, mut index) = (value_ns, 0);
    // 999.6 would be written as 1000 of the smaller unit, so it uses the larger one.
    while value.abs() >= 999.5 && index + 1 < UNITS.len() {
        value /= 1000.0;
        index += 1;
    }
    (value, UNITS[index])
}

/// Formats a frequency in hertz: `4.06 GHz`, `26 MHz`.
#[must_use]
pub fn hertz(value_hz: f64) -> String {
    let (factor, unit) = if value_hz.abs() >= 1e15 {
        return with_unit(value_hz, "Hz");
    } else if value_hz >= 1e9 {
        (1e-9, "GHz")
    } else if value_hz >= 1e6 {
        (1e-6, "MHz")
    } else if value_hz >= 1e3 {
        (1e-3, "kHz")
    } else {
        (1.0, "Hz")
    };
    if !value_hz.is_finite() {
        return NO_VALUE.to_owned();
    }
    format!(
        "{} {unit}",
        trim_zeros(&format!("{:.3}", value_hz * factor))
    )
}

/// Formats a share from 0 to 1 as a percentage: `12 %`, `0.4 %`; one that would print as 0.0 is `0 %`.
#[must_use]
pub fn percent(share: f64) -> String {
    let value = share * 100.0;
    if !value.is_finite() {
        return NO_VALUE.to_owned();
    }
    if value.abs() >= 1e10 {
        format!("{} %", number(value))
    } else if value.abs() < 0.05 {
        "0 %".to_owned()
    } else if value.abs() >= 9.95 {
        format!("{value:.0} %")
    } else {
        format!("{value:.1} %")
    }
}

/// Formats the interval of a share, for use beside [`percent`]: `[38, 46]`.
#[must_use]
pub fn percent_interval(low: f64, high: f64) -> String {
    format!("[{}, {}]", percent_value(low), percent_value(high))
}

/// Formats a share like [`percent`], without the sign.
pub(crate) fn percent_value(share: f64) -> String {
    let text = percent(share);
    text.strip_suffix(" %").unwrap_or(&text).to_owned()
}

/// Formats a large count with three digits: `812`, `12.4 k`, `1.24 G`.
#[must_use]
pub fn short_count(value: f64) -> String {
    let magnitude = value.abs();
    let (factor, unit) = if magnitude >= 1e12 {
        (1e-12, " T")
    } else if magnitude >= 1e9 {
        (1e-9, " G")
    } else if magnitude >= 1e6 {
        (1e-6, " M")
    } else if magnitude >= 1e4 {
        (1e-3, " k")
    } else if value.is_finite() {
        return format!("{value:.0}");
    } else {
        return NO_VALUE.to_owned();
    };
    format!("{}{unit}", number(value * factor))
}

/// Formats an estimated count, with its interval if an end differs by more than a tenth, as in `1.24 G
/// [0.9, 2.6 G]`.
#[must_use]
pub fn count_in_interval(value: f64, low: Option<f64>, high: Option<f64>) -> String {
    let text = short_count(value);
    match (low, high) {
        (Some(low), Some(high)) if low < 0.9 * value || high > 1.1 * value => {
            format!("{text} [{}, {}]", short_count(low), short_count(high))
        }
        _ => text,
    }
}

/// Factor between the ends of an interval from which on [`brief_count`] shows it.
const WIDE: f64 = 3.0;

/// Formats an estimated count; of a wide interval only the ends, as in `300 M–9.7 G`.
#[must_use]
pub fn brief_count(value: f64, low: Option<f64>, high: Option<f64>) -> String {
    match (low, high) {
        (Some(low), Some(high)) if high > WIDE * low && high >= 1.0 => {
            format!("{}–{}", short_count(low), short_count(high))
        }
        _ => short_count(value),
    }
}

/// Formats a whole number with digits grouped by narrow spaces: `12 345`.
#[must_use]
pub fn count(value: u64) -> String {
    let digits = value.to_string();
    if digits.len() < 5 {
        return digits;
    }
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push('\u{202f}');
        }
        out.push(digit);
    }
    out
}

/// Formats a noun with its number: `1 point`, `3 points`.
#[must_use]
pub fn plural(number: usize, noun: &str) -> String {
    let ending = if number == 1 { "" } else { "s" };
    format!("{} {noun}{ending}", count(number as u64))
}

/// Formats a noun with an irregular plural and its number: `1 access`, `3 accesses`.
#[must_use]
pub fn plural_of(number: u64, one: &str, many: &str) -> String {
    format!("{} {}", count(number), if number == 1 { one } else { many })
}

fn with_unit(value: f64, unit: &str) -> String {
    if value.is_finite() {
        format!("{} {unit}", number(value))
    } else {
        NO_VALUE.to_owned()
    }
}

fn scaled_bytes(size_bytes: f64) -> (f64, &'static str) {
    let mut value = size_bytes;
    let mut index = 0;
    // 1023.6 would be written as 1024 of the smaller unit, so it uses the larger one.
    while value >= 1023.5 && index + 1 < BINARY_UNITS.len() {
        value /= 1024.0;
        index += 1;
    }
    (value, BINARY_UNITS[index])
}

fn trim_zeros(text: &str) -> String {
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        text.to_owned()
    }
}

fn unsigned_zero(text: String) -> String {
    match text.strip_prefix('-') {
        Some(rest) if rest.chars().all(|c| c == '0' || c == '.') => rest.to_owned(),
        _ => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_take_the_unit_that_a_person_would() {
        for (size, text) in [
            (0, "0 B"),
            (512, "512 B"),
            (1023, "1023 B"),
            (1024, "1 KiB"),
            (48 << 10, "48 KiB"),
            (49_000, "47.9 KiB"),
            (1_048_575, "1 MiB"),
            (1_310_720, "1.25 MiB"),
            (3 << 19, "1.5 MiB"),
            (11_849_000, "11.3 MiB"),
            (32 << 20, "32 MiB"),
            (1 << 30, "1 GiB"),
            (u64::MAX, "16384 PiB"),
        ] {
            assert_eq!(bytes(size), text);
        }
        assert_eq!(
            bytes_interval_after_value(49_000, 47_500, 50_800),
            "[46.4, 49.6]"
        );
        assert_eq!(
            bytes_interval_after_value(1_030_000, 985_000, 1_090_000),
            "[962, 1064]"
        );
        assert_eq!(
            bytes_interval_after_value(1 << 30, 1024, 1 << 31),
            "[1 KiB, 2 GiB]"
        );
        assert_eq!(bytes_interval_after_value(0, 0, 0), "[0 B, 0 B]");
    }

    #[test]
    fn numbers_keep_three_digits_and_are_never_nan() {
        for (value, text) in [
            (0.0, "0.00"),
            (-0.001, "0.00"),
            (0.958, "0.96"),
            (9.996, "10.0"),
            (15.24, "15.2"),
            (99.96, "100"),
            (159.6, "160"),
            (12_345.6, "12346"),
            (1.234e12, "1.23e12"),
            (f64::NAN, NO_VALUE),
            (f64::INFINITY, NO_VALUE),
        ] {
            assert_eq!(number(value), text);
        }
        assert_eq!(seconds(f64::NAN), NO_VALUE);
        assert_eq!(percent(f64::INFINITY), NO_VALUE);
        assert_eq!(hertz(f64::NAN), NO_VALUE);
    }

    #[test]
    fn durations_and_rates_take_their_unit() {
        assert_eq!(seconds(12.41), "12.4 s");
        assert_eq!(seconds(0.0034), "3.40 ms");
        assert_eq!(seconds(1.234e-6), "1.23 µs");
        assert_eq!(seconds(8.5e-7), "850 ns");
        assert_eq!(duration_ns(850.0), "850 ns");
        assert_eq!(duration_ns(999.6), "1.00 µs");
        assert_eq!(duration_ns(12.4e9), "12.4 s");
        assert_eq!(duration_ns(f64::NAN), NO_VALUE);
        assert_eq!(short_duration_ns(1000.0), "1 µs");
        assert_eq!(short_duration_ns(2.5e6), "2.5 ms");
        assert_eq!(short_duration_ns(f64::INFINITY), NO_VALUE);
        assert_eq!(hertz(2.596e9), "2.596 GHz");
        assert_eq!(hertz(4.06e9), "4.06 GHz");
        assert_eq!(percent(0.123), "12 %");
        assert_eq!(percent(0.004), "0.4 %");
        assert_eq!(compact(96.0), "96");
        assert_eq!(compact(0.5), "0.5");
        assert_eq!(count(1234), "1234");
        assert_eq!(count(1_234_567), "1\u{202f}234\u{202f}567");
        assert_eq!(percent_interval(0.384, 0.461), "[38, 46]");
        assert_eq!(percent_interval(0.004, 0.021), "[0.4, 2.1]");
        assert_eq!(short_count(812.0), "812");
        assert_eq!(short_count(12_400.0), "12.4 k");
        assert_eq!(short_count(1.24e9), "1.24 G");
        let counted = |low, high| count_in_interval(1.24e9, Some(low), Some(high));
        assert_eq!(counted(1.2e9, 1.3e9), "1.24 G");
        assert_eq!(counted(0.9e9, 1.3e9), "1.24 G [900 M, 1.30 G]");
        assert_eq!(count_in_interval(1.24e9, None, None), "1.24 G");
        let brief = |low, high| brief_count(1.24e9, Some(low), Some(high));
        assert_eq!(brief(0.9e9, 2.6e9), "1.24 G");
        assert_eq!(brief(0.3e9, 9.7e9), "300 M–9.70 G");
        assert_eq!(brief_count(0.0, Some(0.0), Some(0.2)), "0");
        assert_eq!(short_count(f64::NAN), NO_VALUE);
        assert_eq!(plural_of(2, "access", "accesses"), "2 accesses");
        assert_eq!(plural(1, "point"), "1 point");
        assert_eq!(plural(3, "point"), "3 points");
    }
}
