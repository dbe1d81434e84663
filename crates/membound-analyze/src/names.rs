//! Short names and formatted figures for tables; different things never get the same name.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;

/// Shortens each of `paths` to its last components, as few as distinguish all of them.
pub(crate) fn short_paths<'a>(
    paths: impl IntoIterator<Item = &'a str>,
) -> FxHashMap<&'a str, &'a str> {
    let mut by_name: BTreeMap<&str, Vec<&'a str>> = BTreeMap::new();
    let mut short = FxHashMap::default();
    for path in paths {
        if short.insert(path, path).is_none() {
            by_name.entry(tail(path, 1)).or_default().push(path);
        }
    }
    for same in by_name.into_values() {
        let components = |path: &str| path.split('/').count();
        let longest = same.iter().map(|path| components(path)).max().unwrap_or(1);
        for &path in &same {
            let unique = (1..=longest).map(|count| tail(path, count)).find(|short| {
                let count = short.split('/').count();
                same.iter()
                    .filter(|other| tail(other, count) == *short)
                    .count()
                    == 1
            });
            short.insert(path, unique.unwrap_or(path));
        }
    }
    short
}

/// The last `count` components of `path`.
fn tail(path: &str, count: usize) -> &str {
    let start = path
        .rmatch_indices('/')
        .nth(count.saturating_sub(1))
        .map_or(0, |(at, _)| at + 1);
    &path[start..]
}

/// The last component of `path`.
pub(crate) fn file_name(path: &str) -> &str {
    tail(path, 1)
}

/// Formats a size: `512 B`, `48 KiB`, `1.5 MiB`.
pub(crate) fn size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = UNITS[0];
    for next in &UNITS[1..] {
        // A value that would print as 1024 moves to the next unit.
        if value < 1023.95 {
            break;
        }
        value /= 1024.0;
        unit = next;
    }
    let digits = if value < 100.0 { 1 } else { 0 };
    let text = format!("{value:.digits$}");
    let text = text.strip_suffix(".0").unwrap_or(&text);
    format!("{text} {unit}")
}

/// Formats a count: `812`, `1 330 290`.
pub(crate) fn count(value: u64) -> String {
    let digits = value.to_string();
    if digits.len() < 5 {
        return digits;
    }
    let mut out = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push('\u{202f}');
        }
        out.push(digit);
    }
    out
}

/// Formats a share as a percentage: `42 %`, `4.2 %`, `0.4 %`; one that would print as 0.0 is `0 %`.
pub(crate) fn percent(share: f64) -> String {
    let value = share * 100.0;
    if value.abs() < 0.05 {
        "0 %".to_owned()
    } else if value.abs() < 9.95 {
        format!("{value:.1} %")
    } else {
        format!("{value:.0} %")
    }
}

/// Formats a latency: `0.98 ns`, `12.3 ns`, `160 ns`.
pub(crate) fn nanoseconds(ns: f64) -> String {
    if ns < 9.95 {
        format!("{ns:.2} ns")
    } else if ns < 99.5 {
        format!("{ns:.1} ns")
    } else {
        format!("{ns:.0} ns")
    }
}

/// Lists at most `most` of `parts`: `a`, `a and b`, `a, b and c`; then the number of the others.
pub(crate) fn list(parts: &[String], most: usize) -> String {
    let remaining = parts.len().saturating_sub(most);
    let shown: Vec<&str> = parts.iter().take(most).map(String::as_str).collect();
    match (shown.as_slice(), remaining) {
        ([], _) => String::new(),
        ([only], 0) => (*only).to_owned(),
        ([first @ .., last], 0) => format!("{} and {last}", first.join(", ")),
        (all, remaining) => format!("{} and {remaining} more", all.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_shortened_as_far_as_they_stay_apart() {
        let short = short_paths([
            "/a/x/main.c",
            "/a/y/main.c",
            "/b/x/main.c",
            "/a/util.h",
            "plain.c",
        ]);
        assert_eq!(short["/a/util.h"], "util.h");
        assert_eq!(short["plain.c"], "plain.c");
        assert_eq!(short["/a/y/main.c"], "y/main.c");
        assert_eq!(short["/a/x/main.c"], "a/x/main.c");
        assert_eq!(short["/b/x/main.c"], "b/x/main.c");
    }

    #[test]
    fn a_path_that_is_the_end_of_another_keeps_apart_from_it() {
        let short = short_paths(["main.c", "/src/main.c"]);
        assert_ne!(short["main.c"], short["/src/main.c"]);
        assert_eq!(short["/src/main.c"], "src/main.c");
    }

    #[test]
    fn sizes_and_shares_have_few_digits() {
        for (bytes, text) in [
            (0, "0 B"),
            (512, "512 B"),
            (1024, "1 KiB"),
            (1536, "1.5 KiB"),
            (300 << 20, "300 MiB"),
            ((1 << 20) - 1, "1 MiB"),
            (3 << 30, "3 GiB"),
        ] {
            assert_eq!(size(bytes), text);
        }
        assert_eq!(percent(0.424), "42 %");
        assert_eq!(percent(0.0042), "0.4 %");
        assert_eq!(percent(0.000_4), "0 %");
        assert_eq!(count(1234), "1234");
        assert_eq!(count(1_330_290), "1\u{202f}330\u{202f}290");
        assert_eq!(nanoseconds(0.98), "0.98 ns");
    }

    #[test]
    fn lists_read_like_sentences() {
        let parts: Vec<String> = ["a", "b", "c"].map(str::to_owned).into();
        assert_eq!(list(&parts, 3), "a, b and c");
        assert_eq!(list(&parts[..2], 3), "a and b");
        assert_eq!(list(&parts, 2), "a, b and 1 more");
        assert_eq!(list(&[], 2), "");
    }
}
