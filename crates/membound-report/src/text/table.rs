//! Tables that fit: columns as wide as their content, and those that are least needed
//! leave first when the terminal is too narrow.

use textwrap::core::display_width;

use super::out::clean;

/// Which side of its column a cell stands on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Align {
    Left,
    Right,
    /// Left, and cut in the middle when it is too wide: names that differ at their ends.
    Middle,
}

#[derive(Clone, Debug)]
struct Column {
    title: String,
    align: Align,
    /// 0 stays always; of the others the highest goes first.
    expendable: u8,
}

/// A table under construction.
#[derive(Clone, Debug, Default)]
pub(super) struct Table {
    columns: Vec<Column>,
    rows: Vec<Vec<String>>,
}

const GAP: usize = 2;
/// Columns that a name is cut to before other columns leave.
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

    /// Adds a column that leaves when there is no room: the highest rank first.
    pub(super) fn column(mut self, title: &str, align: Align, expendable: u8) -> Self {
        self.columns.push(Column {
            title: clean(title),
            align,
            expendable,
        });
        self
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

    /// Whether a cell ends in `mark`.
    pub(super) fn ends_in(&self, mark: char) -> bool {
        self.rows.iter().flatten().any(|cell| cell.ends_with(mark))
    }

    /// The header and the rows, none wider than `width`.
    pub(super) fn lines(&self, width: usize) -> Vec<String> {
        let mut shown: Vec<usize> = (0..self.columns.len())
            .filter(|&index| self.rows.iter().any(|row| !row[index].is_empty()))
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
        // A name can lose its middle before a column has to leave.
        let least: Vec<usize> = (0..self.columns.len())
            .map(|index| match self.columns[index].align {
                Align::Middle => natural[index].min(NAME),
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
            // Figures cannot be cut without becoming other figures; words can.
            let Some(&widest) = shown
                .iter()
                .filter(|&&index| self.columns[index].align != Align::Right && widths[index] > 6)
                .max_by_key(|&&index| widths[index])
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
                Align::Left | Align::Right => cut(&cells[index], widths[index]),
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

pub(super) fn cut(text: &str, width: usize) -> String {
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

/// The text with its middle left out: beginning and end say most of a name.
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
    fn names_are_cut_in_the_middle_by_columns_not_letters() {
        assert_eq!(cut_middle("abcdefghij", 10), "abcdefghij");
        assert_eq!(cut_middle("abcdefghij", 7), "abc…hij");
        assert_eq!(cut_middle("abcdefghij", 6), "abc…ij");
        assert_eq!(cut_middle("漢字漢字漢字", 7), "漢…字");
        assert_eq!(cut_middle("abc", 1), "…");
    }
}
