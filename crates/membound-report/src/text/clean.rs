//! Removes control characters from text that comes from outside, for all text on a terminal.

/// Text without control characters, which could move the cursor or colour the terminal if they come from a
/// host name or a label in an untrusted file.
pub(super) fn clean(text: &str) -> String {
    text.chars()
        .map(|c| match c {
            '\n' | '\t' => ' ',
            c if c.is_control() || is_direction_control(c) => '\u{fffd}',
            c => c,
        })
        .collect()
}

/// True for characters that change the direction of the following text.
const fn is_direction_control(c: char) -> bool {
    matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}
