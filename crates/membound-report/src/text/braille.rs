//! Draws curves in braille characters, each with two by four dots.

/// Colour of a curve, by its index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ink(pub(super) usize);

impl Ink {
    /// Colours that are distinguishable on a light and on a dark background.
    const ESCAPES: [&str; 6] = [
        "\x1b[36m", "\x1b[35m", "\x1b[32m", "\x1b[33m", "\x1b[34m", "\x1b[31m",
    ];

    /// Wraps `text` in this colour.
    pub(super) fn paint(self, text: &str) -> String {
        let escape = Self::ESCAPES[self.0 % Self::ESCAPES.len()];
        format!("{escape}{text}\x1b[0m")
    }
}

/// Plot with two linear axes; for logarithmic axes callers pass logarithms.
#[derive(Clone, Debug)]
pub(super) struct Plot {
    columns: usize,
    rows: usize,
    cells: Vec<u8>,
    /// By cell, the curve that was drawn there last; `None` for rules.
    inks: Vec<Option<Ink>>,
}

const BLANK: u32 = 0x2800;

impl Plot {
    pub(super) fn new(columns: usize, rows: usize) -> Self {
        Self {
            columns,
            rows,
            cells: vec![0; columns * rows],
            inks: vec![None; columns * rows],
        }
    }

    /// Draws a polyline through points given as shares (0 to 1) of width and height.
    pub(super) fn curve(&mut self, points: &[(f64, f64)], ink: Ink) {
        for pair in points.windows(2) {
            let (from, to) = (self.dot(pair[0]), self.dot(pair[1]));
            let steps = (to.0 - from.0).abs().max((to.1 - from.1).abs()).max(1);
            for step in 0..=steps {
                let along = |a: i64, b: i64| a + (b - a) * step / steps;
                self.set(along(from.0, to.0), along(from.1, to.1), Some(ink));
            }
        }
        if let [only] = points {
            let (x, y) = self.dot(*only);
            self.set(x, y, Some(ink));
        }
    }

    /// Draws a horizontal dotted line at a share (0 to 1) of the height.
    pub(super) fn dotted(&mut self, y: f64) {
        const EVERY: usize = 4;
        let (_, y) = self.dot((0.0, y));
        for x in (0..self.columns * 2).step_by(EVERY) {
            self.set(x as i64, y, None);
        }
    }

    /// Rows from top to bottom without trailing blanks, each with its number of columns. Curves are
    /// coloured if `color` is set.
    pub(super) fn lines(&self, color: bool) -> Vec<(String, usize)> {
        let rows = self.cells.chunks(self.columns);
        rows.zip(self.inks.chunks(self.columns))
            .map(|(cells, inks)| {
                let used = cells.iter().rposition(|dots| *dots != 0);
                let used = used.map_or(0, |last| last + 1);
                let mut line = String::new();
                let mut from = 0;
                while from < used {
                    let ink = inks[from];
                    let same = inks[from..used].iter().take_while(|it| **it == ink);
                    let to = from + same.count();
                    let text: String = cells[from..to].iter().map(|dots| letter(*dots)).collect();
                    match ink {
                        Some(ink) if color => line.push_str(&ink.paint(&text)),
                        _ => line.push_str(&text),
                    }
                    from = to;
                }
                (line, used)
            })
            .collect()
    }

    fn dot(&self, (x, y): (f64, f64)) -> (i64, i64) {
        let across = (self.columns * 2 - 1) as f64;
        let down = (self.rows * 4 - 1) as f64;
        (
            (x.clamp(0.0, 1.0) * across).round() as i64,
            ((1.0 - y.clamp(0.0, 1.0)) * down).round() as i64,
        )
    }

    fn set(&mut self, x: i64, y: i64, ink: Option<Ink>) {
        let (Ok(x), Ok(y)) = (usize::try_from(x), usize::try_from(y)) else {
            return;
        };
        let index = y / 4 * self.columns + x / 2;
        if x / 2 >= self.columns {
            return;
        }
        let bit = match (x % 2, y % 4) {
            (0, 3) => 6,
            (_, 3) => 7,
            (0, row) => row,
            (_, row) => row + 3,
        };
        if let Some(cell) = self.cells.get_mut(index) {
            *cell |= 1 << bit;
            self.inks[index] = ink;
        }
    }
}

/// Braille character for a pattern of eight dots.
fn letter(dots: u8) -> char {
    match dots {
        0 => ' ',
        dots => char::from_u32(BLANK + u32::from(dots)).unwrap_or(' '),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn corners_are_where_they_belong() {
        let mut plot = Plot::new(2, 2);
        plot.curve(&[(0.0, 0.0)], Ink(0));
        plot.curve(&[(1.0, 1.0)], Ink(0));
        let rows = |text: [&str; 2], columns: [usize; 2]| -> Vec<(String, usize)> {
            text.map(str::to_owned).into_iter().zip(columns).collect()
        };
        assert_eq!(plot.lines(false), rows([" ⠈", "⡀"], [2, 1]));
        let painted = [" \x1b[36m⠈\x1b[0m", "\x1b[36m⡀\x1b[0m"];
        assert_eq!(plot.lines(true), rows(painted, [2, 1]));
    }

    #[test]
    fn a_line_leaves_no_hole() {
        let mut plot = Plot::new(8, 1);
        plot.curve(&[(0.0, 0.5), (1.0, 0.5)], Ink(0));
        let (line, columns) = plot.lines(false).remove(0);
        assert!(columns == 8 && line.chars().all(|c| c != ' '), "{line}");
    }
}
