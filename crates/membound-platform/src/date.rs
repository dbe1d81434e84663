//! The time of day as documents carry it.

use std::time::{SystemTime, UNIX_EPOCH};

/// Now, in RFC 3339 and UTC, to the second.
#[must_use]
pub fn now_utc() -> String {
    let seconds = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs());
    utc(seconds)
}

/// Seconds since 1970 as RFC 3339. The calendar is the days-from-civil method in reverse,
/// in eras of 400 years that begin on a first of March (Hinnant,
/// "chrono-Compatible Low-Level Date Algorithms").
#[must_use]
pub fn utc(seconds: u64) -> String {
    const DAYS_OF_ERA: u64 = 146_097;
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    // 719 468 days lie between 0000-03-01 and 1970-01-01.
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / DAYS_OF_ERA, shifted % DAYS_OF_ERA);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = (month_from_march + 2) % 12 + 1;
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_instants() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (951_868_800, "2000-03-01T00:00:00Z"),
            (1_000_000_000, "2001-09-09T01:46:40Z"),
            (1_735_689_599, "2024-12-31T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(utc(seconds), text);
        }
    }
}
