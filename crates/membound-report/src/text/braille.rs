//! A curve in braille dots: two by four dots a character.

/// A plot over two axes that are linear in what they are given; callers pass logarithms.
#[derive(Clone, Debug)]
pub(super) struct Plot {
    columns: usize,
    rows: usize,
    cells: Vec<u8>,
}

const BLANK: u32 = 0x2800;

impl Plot {
    pub(super) fn new(columns: usize, rows: usize) -> Self {
        Self {
            columns,
            rows,
            cells: vec![0; columns * rows],
        }
    }

    /// Joins points that are given as shares (0 to 1) of the width and the height.
    pub(super) fn curve(&mut self, points: &[(f64, f64)]) {
        for pair in points.windows(2) {
            let (from, to) = (self.dot(pair[0]), self.dot(pair[1]));
            let steps = (to.0 - from.0).abs().max((to.1 - from.1).abs()).max(1);
            for step in 0..=steps {
                let along = |a: i64, b: i64| a + (b - a) * step / steps;
                self.set(along(from.0, to.0), along(from.1, to.1));
            }
        }
        if let [only] = points {
            let (x, y) = self.dot(*only);
            self.set(x, y);
        }
    }

    /// The rows, top first, each `columns` characters wide.
    pub(super) fn lines(&self) -> Vec<String> {
        self.cells
            .chunks(self.columns)
            .map(|row| {
                row.iter()
                    .map(|&dots| match dots {
                        0 => ' ',
                        // Every pattern of eight dots is a character of that block.
                        dots => char::from_u32(BLANK + u32::from(dots)).unwrap_or(' '),
                    })
                    .collect()
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

    fn set(&mut self, x: i64, y: i64) {
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
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn corners_are_where_they_belong() {
        let mut plot = Plot::new(2, 2);
        plot.curve(&[(0.0, 0.0)]);
        plot.curve(&[(1.0, 1.0)]);
        assert_eq!(plot.lines(), [" ⠈", "⡀ "]);
    }

    #[test]
    fn a_line_leaves_no_hole() {
        let mut plot = Plot::new(8, 1);
        plot.curve(&[(0.0, 0.5), (1.0, 0.5)]);
        assert!(plot.lines()[0].chars().all(|c| c != ' '));
    }
}
