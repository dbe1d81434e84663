//! Formats text for messages.

/// Most characters of a file's text that a message repeats.
const SHOWN: usize = 40;

/// Most characters of a number that is written without an exponent.
const MAX_FIGURE: usize = 20;

/// `text` with all characters escaped that would break a line.
pub(crate) fn one_line(text: &str) -> String {
    let breaks = |c: char| c.is_control() || matches!(c, '\u{2028}' | '\u{2029}');
    if !text.contains(breaks) {
        return text.to_owned();
    }
    let mut out = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        if breaks(c) {
            out.extend(c.escape_default());
        } else {
            out.push(c);
        }
    }
    out
}

/// A piece of a file for a message: in backticks, in one line, and shortened.
pub(crate) fn shown(text: &str) -> String {
    format!("`{}`", shortened(text, SHOWN))
}

/// `text` in one line, cut to at most `longest` characters before escaping.
pub(crate) fn shortened(text: &str, longest: usize) -> String {
    match text.char_indices().nth(longest) {
        Some((end, _)) => format!("{}…", one_line(&text[..end])),
        None => one_line(text),
    }
}

/// A number for a message: with an exponent if it has many digits.
pub(crate) fn figure(value: f64) -> String {
    let plain = value.to_string();
    if plain.len() > MAX_FIGURE {
        format!("{value:e}")
    } else {
        plain
    }
}

/// A number with a noun, such as `1 value` or `2 values`.
pub(crate) fn plural(number: usize, noun: &str) -> String {
    let end = if number == 1 { "" } else { "s" };
    format!("{number} {noun}{end}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_of_a_file_stay_short_and_in_one_line() {
        assert_eq!(shown("a\nb\u{2028}c"), r"`a\nb\u{2028}c`");
        assert_eq!(shown(&"x".repeat(41)), format!("`{}…`", "x".repeat(40)));
        assert_eq!(shown(&"µ".repeat(40)), format!("`{}`", "µ".repeat(40)));
    }

    #[test]
    fn figures_with_many_digits_are_shown_with_an_exponent() {
        for (value, text) in [
            (-4.2, "-4.2"),
            (1e-8, "0.00000001"),
            (1e300, "1e300"),
            (-5e-324, "-5e-324"),
            (f64::INFINITY, "inf"),
        ] {
            assert_eq!(figure(value), text);
        }
    }
}
