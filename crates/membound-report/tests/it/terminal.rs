//! Checks text as a terminal shows it.

use membound_report::text::Style;
use textwrap::core::display_width;

/// At every width no line is wider than the terminal, none ends in spaces, and colour changes no character.
pub(crate) fn check(name: &str, text: impl Fn(Style) -> String) {
    for width in [40, 60, 80, 132] {
        let without = text(Style {
            color: false,
            width,
        });
        let with = text(Style { color: true, width });
        assert!(!without.contains('\x1b'), "{name}");
        assert!(!without.contains("NaN"), "{name}");
        assert_eq!(plain(&with), without, "{name} at {width}");
        for line in without.lines() {
            assert!(display_width(line) <= width, "{name} at {width}: {line}");
            assert_eq!(line, line.trim_end(), "{name} at {width}");
        }
    }
}

/// The text without escape sequences.
pub(crate) fn plain(text: &str) -> String {
    let mut parts = text.split('\x1b');
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        // An escape sequence ends with its first letter.
        out.push_str(part.split_once('m').map_or("", |(_, rest)| rest));
    }
    out
}
