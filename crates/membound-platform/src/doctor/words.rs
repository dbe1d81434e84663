//! Formats sizes, rates and counts for people.

/// `48 KiB`, `1.5 MiB`, `31.3 GiB`: in the largest unit that gives at least 1.
pub(super) fn size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["bytes", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{} {}", short(value), UNITS[unit])
}

/// `2.596 GHz`, `800 MHz`.
pub(super) fn rate(hz: f64) -> String {
    if hz >= 1e9 {
        format!("{:.3} GHz", hz / 1e9)
    } else {
        format!("{} MHz", short(hz / 1e6))
    }
}

/// A share as a whole percentage: `150 %`.
pub(super) fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

/// At most one digit after the decimal point, and none if it is a zero.
pub(super) fn short(value: f64) -> String {
    let text = format!("{value:.1}");
    text.strip_suffix(".0").map(str::to_owned).unwrap_or(text)
}

/// `1 node`, `2 nodes`.
pub(super) fn count(number: usize, noun: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {noun}{plural}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_well() {
        assert_eq!(size(64), "64 bytes");
        assert_eq!(size(48 << 10), "48 KiB");
        assert_eq!(size(3 << 19), "1.5 MiB");
        assert_eq!(size(32 << 30), "32 GiB");
        assert_eq!(rate(2_596_120_000.0), "2.596 GHz");
        assert_eq!(rate(8e8), "800 MHz");
        assert_eq!(percent(1.5), "150 %");
        assert_eq!(count(1, "node"), "1 node");
        assert_eq!(count(0, "slot"), "0 slots");
    }
}
