//! Writes lines within the terminal's width: headings, paragraphs, notes and tables.

use textwrap::core::display_width;
use textwrap::{Options, WordSeparator, WordSplitter};

use super::clean::clean;
use super::style::Style;
use super::table::{Table, truncate};

const NARROWEST: usize = 40;

/// Emphasis of a line.
#[derive(Clone, Copy)]
enum Emphasis {
    None,
    Bold,
    Dim,
    Warning,
}

impl Emphasis {
    const fn escape(self) -> &'static str {
        match self {
            Self::None => "",
            Self::Bold => "\x1b[1m",
            Self::Dim => "\x1b[2m",
            Self::Warning => "\x1b[33m",
        }
    }
}

/// Text under construction.
pub(super) struct Out {
    style: Style,
    text: String,
}

impl Out {
    pub(super) fn new(style: Style) -> Self {
        Self {
            style: Style {
                width: style.width.max(NARROWEST),
                ..style
            },
            text: String::new(),
        }
    }

    pub(super) const fn width(&self) -> usize {
        self.style.width
    }

    pub(super) const fn color(&self) -> bool {
        self.style.color
    }

    pub(super) fn finish(mut self) -> String {
        let kept = self.text.trim_end_matches('\n').len();
        self.text.truncate(kept);
        self.text.push('\n');
        self.text
    }

    /// Adds an empty line; never two in a row.
    pub(super) fn blank(&mut self) {
        if !self.text.is_empty() && !self.text.ends_with("\n\n") {
            self.text.push('\n');
        }
    }

    /// Adds a heading with a remark, on one line if both fit.
    pub(super) fn heading(&mut self, title: &str, remark: &str) {
        let title = clean(title);
        let remark = clean(remark);
        self.blank();
        if remark.is_empty() {
            self.paragraph(&title, "", "  ", Emphasis::Bold);
        } else if display_width(&title) + 2 + display_width(&remark) <= self.style.width {
            let bold = self.painted(&title, Emphasis::Bold);
            let dim = self.painted(&remark, Emphasis::Dim);
            self.text.push_str(&format!("{bold}  {dim}\n"));
        } else {
            self.paragraph(&title, "", "  ", Emphasis::Bold);
            self.paragraph(&remark, "  ", "  ", Emphasis::Dim);
        }
    }

    /// Adds a wrapped paragraph.
    pub(super) fn line(&mut self, text: &str) {
        self.paragraph(&clean(text), "", "  ", Emphasis::None);
    }

    /// Adds a wrapped and indented remark, for use under a table.
    pub(super) fn note(&mut self, text: &str) {
        self.paragraph(&clean(text), "  ", "  ", Emphasis::Dim);
    }

    /// Adds a wrapped item of a numbered list.
    pub(super) fn item(&mut self, number: usize, text: &str) {
        let first = format!("{number:>2}. ");
        self.paragraph(&clean(text), &first, "    ", Emphasis::None);
    }

    /// Adds the header of the lines that follow.
    pub(super) fn head(&mut self, text: &str) {
        self.push(&truncate(&clean(text), self.style.width), Emphasis::Dim);
    }

    /// Adds a line that is cut at the edge instead of wrapped.
    pub(super) fn cut_line(&mut self, text: &str) {
        self.push(&truncate(text, self.style.width), Emphasis::None);
    }

    /// Adds a wrapped warning: something to act on or to doubt.
    pub(super) fn warning(&mut self, text: &str) {
        self.paragraph(&clean(text), "! ", "  ", Emphasis::Warning);
    }

    /// Adds lines that are already laid out.
    pub(super) fn verbatim(&mut self, lines: &[String]) {
        for line in lines {
            self.push(line, Emphasis::None);
        }
    }

    pub(super) fn table(&mut self, table: &Table) {
        self.laid_out(table.lines(self.style.width));
    }

    /// Adds the lines of a table: its header and its rows.
    pub(super) fn laid_out(&mut self, lines: Vec<String>) {
        let mut lines = lines.into_iter();
        if let Some(header) = lines.next() {
            self.push(&header, Emphasis::Dim);
        }
        for line in lines {
            self.push(&line, Emphasis::None);
        }
    }

    fn paragraph(&mut self, text: &str, first: &str, rest: &str, emphasis: Emphasis) {
        let options = Options::new(self.style.width)
            .initial_indent(first)
            .subsequent_indent(rest)
            .break_words(true)
            // Do not break a kernel release or an option at its hyphens.
            .word_splitter(WordSplitter::NoHyphenation)
            .word_separator(WordSeparator::AsciiSpace);
        // Keep a percent sign with its number. The no-break spaces are removed again, since the reader may
        // search the text.
        let text = text.replace(" %", "\u{a0}%");
        for line in textwrap::wrap(&text, options) {
            self.push(&line.replace('\u{a0}', " "), emphasis);
        }
    }

    fn push(&mut self, line: &str, emphasis: Emphasis) {
        let line = self.painted(line.trim_end(), emphasis);
        self.text.push_str(&line);
        self.text.push('\n');
    }

    fn painted(&self, text: &str, emphasis: Emphasis) -> String {
        let escape = emphasis.escape();
        if !self.style.color || escape.is_empty() || text.is_empty() {
            text.to_owned()
        } else {
            format!("{escape}{text}\x1b[0m")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_from_outside_do_not_reach_the_terminal() {
        assert_eq!(clean("a\x1b[31mb\nc"), "a\u{fffd}[31mb c");
        assert_eq!(clean("\u{202e}evil"), "\u{fffd}evil");
        let mut out = Out::new(Style::default());
        out.line("host\x1b]0;title\x07");
        assert!(!out.finish().contains('\x1b'));
    }

    #[test]
    fn a_percent_sign_does_not_begin_a_line() {
        let mut out = Out::new(Style {
            color: false,
            width: 40,
        });
        out.line("recording of all of this program took 77 % of it");
        let text = out.finish();
        assert_eq!(
            text,
            "recording of all of this program took\n  77 % of it\n"
        );
    }

    #[test]
    fn paragraphs_keep_to_the_width_and_colour_adds_no_column() {
        for color in [false, true] {
            let mut out = Out::new(Style { color, width: 50 });
            out.warning(&"some words to wrap ".repeat(12));
            out.note(&"x".repeat(120));
            for line in out.finish().lines() {
                let plain = line
                    .replace("\x1b[33m", "")
                    .replace("\x1b[2m", "")
                    .replace("\x1b[0m", "");
                assert!(display_width(&plain) <= 50, "{plain}");
            }
        }
    }
}
