//! Tables that fit the terminal: columns are as wide as their content, and if the terminal is too narrow,
//! the least needed columns are dropped first.

use textwrap::core::display_width;

use super::clean::clean;
use crate::facts::plain;
use crate::facts::run::NONE;

/// Alignment of a cell within its column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Align {
    Left,
    Right,
    /// Left, and cut in the middle if too wide: for names that differ at their ends.
    Middle,
}

#[derive(Clone, Debug)]
struct Column {
    title: String,
    align: Align,
    /// Priority: 0 is always kept; of the others the highest is dropped first.
    expendable: u8,
    /// Width to which a name is cut before other columns are dropped.
    least: usize,
}

/// A table under construction.
#[derive(Clone, Debug, Default)]
pub(super) struct Table {
    columns: Vec<Column>,
    rows: Vec<Vec<String>>,
}

const GAP: usize = 2;
/// Suffix of a figure that exceeds a threshold.
const MARK: &str = " !";
/// Width to which a name is cut before other columns are dropped, unless the column sets its own.
const NAME: usize = 20;

impl Table {
    pub(super) fn new() -> Self {
        Self::default()
    }

    /// Adds a column of words.
    pub(super) fn words(self, title: &str) -> Self {
        self.column(title, Align::Left, 0)
    }

    /// Adds a column of names, which are cut in the middle.
    pub(super) fn middle(self, title: &str) -> Self {
        self.column(title, Align::Middle, 0)
    }

    /// Adds a column of figures.
    pub(super) fn figures(self, title: &str) -> Self {
        self.column(title, Align::Right, 0)
    }

    /// Adds a column that is dropped if there is no room; the highest rank is dropped first.
    pub(super) fn column(mut self, title: &str, align: Align, expendable: u8) -> Self {
        self.columns.push(Column {
            title: clean(title),
            align,
            expendable,
            least: NAME,
        });
        self
    }

    /// Adds a column of names that are not cut below `least` columns while others can be dropped.
    pub(super) fn name(self, title: &str, least: usize) -> Self {
        let mut table = self.middle(title);
        if let Some(column) = table.columns.last_mut() {
            column.least = least;
        }
        table
    }

    /// Adds a row; missing cells are empty.
    pub(super) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        let mut cells: Vec<String> = cells.into_iter().map(|cell| clean(&cell)).collect();
        cells.resize(self.columns.len(), String::new());
        self.rows.push(cells);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// True if a cell equals `text`.
    pub(super) fn has(&self, text: &str) -> bool {
        self.rows.iter().flatten().any(|cell| cell == text)
    }

    /// True if a column with this title has a non-empty cell.
    pub(super) fn has_column(&self, title: &str) -> bool {
        let at = self.columns.iter().position(|column| column.title == title);
        at.is_some_and(|at| self.rows.iter().any(|row| !row[at].is_empty()))
    }

    /// True if a cell ends in `mark`.
    pub(super) fn ends_in(&self, mark: char) -> bool {
        self.rows.iter().flatten().any(|cell| cell.ends_with(mark))
    }

    /// Pads figures without [`MARK`] in columns where others have one, so that digits align.
    fn aligned(&self) -> Self {
        let mut table = self.clone();
        for (index, column) in self.columns.iter().enumerate() {
            let marked = |row: &Vec<String>| row[index].ends_with(MARK);
            if column.align != Align::Right || !self.rows.iter().any(marked) {
                continue;
            }
            for cell in table.rows.iter_mut().map(|row| &mut row[index]) {
                if !cell.is_empty() && !cell.ends_with(MARK) {
                    cell.push_str("  ");
                }
            }
        }
        table
    }

    /// Header and rows, none wider than `width`.
    pub(super) fn lines(&self, width: usize) -> Vec<String> {
        let table = self.aligned();
        let lines = table.laid_out(width);
        if lines.iter().any(|line| line.contains('…')) {
            table.plain().laid_out(width)
        } else {
            lines
        }
    }

    /// Shortens all function names if one has to be cut, so that they look alike.
    fn plain(mut self) -> Self {
        for (index, column) in self.columns.iter().enumerate() {
            if column.align == Align::Middle {
                for cell in self.rows.iter_mut().map(|row| &mut row[index]) {
                    // Keep the indentation, which shows the parent row.
                    let name = cell.trim_start();
                    let indent = cell.len() - name.len();
                    *cell = format!("{}{}", " ".repeat(indent), plain(name));
                }
            }
        }
        self
    }

    fn laid_out(&self, width: usize) -> Vec<String> {
        // An expendable column without content is dropped at once.
        let has_content = |index: usize| {
            let may_leave = self.columns[index].expendable > 0;
            let mut cells = self.rows.iter().map(|row| row[index].trim());
            cells.any(|cell| !(cell.is_empty() || may_leave && cell == NONE))
        };
        let mut shown: Vec<usize> = (0..self.columns.len())
            .filter(|&index| has_content(index))
            .collect();
        let natural: Vec<usize> = (0..self.columns.len())
            .map(|index| {
                self.rows
                    .iter()
                    .map(|row| display_width(&row[index]))
                    .chain([display_width(&self.columns[index].title)])
                    .max()
                    .unwrap_or(0)
            })
            .collect();
        let total = |shown: &[usize], widths: &[usize]| {
            shown
                .iter()
                .map(|&index| widths[index] + GAP)
                .sum::<usize>()
                .saturating_sub(GAP)
        };
        // Names are cut in the middle before a column is dropped.
        let least: Vec<usize> = (0..self.columns.len())
            .map(|index| match self.columns[index].align {
                Align::Middle => natural[index].min(self.columns[index].least),
                Align::Left | Align::Right => natural[index],
            })
            .collect();
        while total(&shown, &least) > width {
            let Some(position) = (0..shown.len())
                .filter(|&position| self.columns[shown[position]].expendable > 0)
                .max_by_key(|&position| (self.columns[shown[position]].expendable, position))
            else {
                break;
            };
            shown.remove(position);
        }
        let mut widths = natural;
        while total(&shown, &widths) > width {
            // A cut figure would be a different figure; only words are cut.
            let words = || {
                let is_wide = |index: &&usize| {
                    self.columns[**index].align != Align::Right && widths[**index] > 6
                };
                shown.iter().filter(is_wide)
            };
            let Some(&widest) = words()
                .filter(|&&index| widths[index] > least[index])
                .max_by_key(|&&index| widths[index])
                .or_else(|| words().max_by_key(|&&index| widths[index]))
            else {
                shown.pop();
                continue;
            };
            widths[widest] -= 1;
        }
        let titles: Vec<String> = self.columns.iter().map(|c| c.title.clone()).collect();
        std::iter::once(&titles)
            .chain(&self.rows)
            .map(|cells| self.line(cells, &shown, &widths))
            .collect()
    }

    fn line(&self, cells: &[String], shown: &[usize], widths: &[usize]) -> String {
        let mut line = String::new();
        for (position, &index) in shown.iter().enumerate() {
            if position > 0 {
                line.push_str(&" ".repeat(GAP));
            }
            let cell = match self.columns[index].align {
                Align::Left | Align::Right => truncate(&cells[index], widths[index]),
                Align::Middle => cut_middle(&cells[index], widths[index]),
            };
            let padding = " ".repeat(widths[index].saturating_sub(display_width(&cell)));
            match self.columns[index].align {
                Align::Left | Align::Middle => line.extend([cell.as_str(), &padding]),
                Align::Right => line.extend([padding.as_str(), &cell]),
            }
        }
        line.trim_end().to_owned()
    }
}

pub(super) fn truncate(text: &str, width: usize) -> String {
    if display_width(text) <= width {
        return text.to_owned();
    }
    let mut out = String::new();
    for c in text.chars() {
        if display_width(&out) + display_width(c.encode_utf8(&mut [0; 4])) + 1 > width {
            break;
        }
        out.push(c);
    }
    out.push('…');
    out
}

/// Cuts the middle out of a text: beginning and end say most about a name.
pub(super) fn cut_middle(text: &str, width: usize) -> String {
    if display_width(text) <= width {
        return text.to_owned();
    }
    let room = width.saturating_sub(1);
    let (mut head, mut tail) = (String::new(), Vec::new());
    let mut left = room.div_ceil(2);
    for c in text.chars() {
        let columns = display_width(c.encode_utf8(&mut [0; 4]));
        if columns > left {
            break;
        }
        left -= columns;
        head.push(c);
    }
    let mut left = room - room.div_ceil(2);
    for c in text.chars().rev() {
        let columns = display_width(c.encode_utf8(&mut [0; 4]));
        if columns > left {
            break;
        }
        left -= columns;
        tail.push(c);
    }
    head.push('…');
    head.extend(tail.into_iter().rev());
    head
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let mut table = Table::new()
            .words("name")
            .figures("ns")
            .column("interval", Align::Right, 2)
            .column("note", Align::Left, 1);
        table.row([
            "L1".into(),
            "0.96".into(),
            "[0.95, 0.97]".into(),
            "as declared".into(),
        ]);
        table.row([
            "DRAM".into(),
            "160".into(),
            "[158, 163]".into(),
            String::new(),
        ]);
        table
    }

    #[test]
    fn columns_line_up() {
        assert_eq!(
            table().lines(80),
            [
                "name    ns      interval  note",
                "L1    0.96  [0.95, 0.97]  as declared",
                "DRAM   160    [158, 163]",
            ]
        );
    }

    #[test]
    fn what_is_needed_least_leaves_first() {
        assert_eq!(table().lines(30)[1], "L1    0.96  as declared");
        assert_eq!(table().lines(12)[1], "L1    0.96");
    }

    #[test]
    fn marks_do_not_push_figures_aside() {
        let mut table = Table::new().figures("stalled").words("line");
        table.row(["13 % !".into(), "a".into()]);
        table.row(["5.0 %".into(), "b".into()]);
        assert_eq!(
            table.lines(80),
            [
                "stalled  line", //
                " 13 % !  a",
                "5.0 %    b"
            ]
        );
    }

    #[test]
    fn a_name_keeps_its_width_while_others_can_leave() {
        let mut table = Table::new()
            .name("object", 20)
            .column("by", Align::Middle, 1);
        table.row(["obmalloc.c:2003 (10 MiB)".into(), "_PyObject_Malloc".into()]);
        assert_eq!(table.lines(30)[1], "obmalloc.c:2003 (10 MiB)");
        let mut table = Table::new().name("object", 36).middle("by");
        table.row([
            "obmalloc.c:2003 (10 MiB)".into(),
            "a_function_with_a_very_long_name_indeed".into(),
        ]);
        let line = &table.lines(46)[1];
        assert!(
            line.starts_with("obmalloc.c:2003 (10 MiB)  a_fun"),
            "{line}"
        );
    }

    #[test]
    fn an_empty_column_is_not_shown() {
        let mut table = Table::new().words("a").figures("b");
        table.row(["x".into()]);
        assert_eq!(table.lines(80), ["a", "x"]);
    }

    #[test]
    fn words_are_cut_and_figures_are_not() {
        let mut table = Table::new().words("pattern").figures("ratio");
        table.row(["a pattern with a long name".into(), "0.12".into()]);
        assert_eq!(
            table.lines(20)[1],
            "a pattern wit…  0.12"
                .replace("  0.12", "   0.12")
                .replace("wit…", "wi…")
        );
    }

    #[test]
    fn where_one_function_would_be_cut_all_lose_their_arguments() {
        let mut table = Table::new().middle("function");
        let long = "std::equal_to<long>::operator()(long const&) const";
        table.row([long.into()]);
        table.row(["sum(int)".into()]);
        assert_eq!(table.lines(60)[1..], [long, "sum(int)"]);
        assert_eq!(table.lines(30)[1..], ["std::equal_to::operator()", "sum"]);
        assert_eq!(table.lines(10)[1..], ["std::…or()", "sum"]);
    }

    #[test]
    fn a_column_that_may_leave_is_not_shown_for_nothing() {
        let mut table = Table::new()
            .words("a")
            .figures("b")
            .column("c", Align::Right, 1);
        table.row(["x".into(), NONE.into(), NONE.into()]);
        assert_eq!(table.lines(80), ["a  b", "x  –"]);
    }

    #[test]
    fn names_are_cut_in_the_middle_by_columns_not_letters() {
        assert_eq!(cut_middle("abcdefghij", 10), "abcdefghij");
        assert_eq!(cut_middle("abcdefghij", 7), "abc…hij");
        assert_eq!(cut_middle("abcdefghij", 6), "abc…ij");
        assert_eq!(cut_middle("漢字漢字漢字", 7), "漢…字");
        assert_eq!(cut_middle("abc", 1), "…");
    }
}
