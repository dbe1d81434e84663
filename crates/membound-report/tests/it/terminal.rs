//! Text as a terminal shows it.

use membound_report::text::Style;
use textwrap::core::display_width;

/// At every width no line is wider than the terminal, none ends in blanks, and colour changes no
/// letter.
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

fn plain(text: &str) -> String {
    ["\x1b[0m", "\x1b[1m", "\x1b[2m", "\x1b[33m"]
        .into_iter()
        .fold(text.to_owned(), |text, escape| text.replace(escape, ""))
}
