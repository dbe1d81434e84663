//! Prints why something could not be measured.

use crate::run::say;

/// Prints why something could not be measured, in lines of 80 columns, and returns the reason.
pub(super) fn failed(error: &anyhow::Error) -> String {
    let why = format!("{error:#}");
    for line in wrapped(&format!("failed: {why}"), 76) {
        say(format_args!("  {line}"));
    }
    why
}

/// `text` in lines of at most `columns` letters, broken between words; a longer word has its own
/// line.
fn wrapped(text: &str, columns: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= columns => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_broken_between_words() {
        assert_eq!(wrapped("one two three", 7), ["one two", "three"]);
        assert_eq!(wrapped("a-long-word b", 4), ["a-long-word", "b"]);
        assert!(wrapped(" ", 4).is_empty());
    }
}
