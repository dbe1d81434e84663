//! The layout of text, which callers of this module choose.

/// Layout of the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Style {
    /// True to emphasise with ANSI escape sequences.
    pub color: bool,
    /// Width of the terminal in columns; at least 40 are assumed.
    pub width: usize,
}

impl Default for Style {
    fn default() -> Self {
        Self {
            color: false,
            width: 80,
        }
    }
}
