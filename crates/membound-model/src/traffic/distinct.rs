//! Number of distinct lines in a given number of consecutive touches.

use super::Survival;

/// The expected number of distinct lines in consecutive touches.
///
/// In a row of touches, the touch that is followed by k others is the last one to its line if the
/// line's next touch is more than k away. The sum over k is the expected number of lines.
#[derive(Clone, Debug, PartialEq)]
pub struct Distinct {
    /// Corners (touches, lines) of a piecewise linear curve.
    corners: Vec<(f64, f64)>,
}

impl Distinct {
    /// For rows of up to `touches` touches with these reuse times.
    #[must_use]
    pub fn new(survival: &Survival, touches: u32) -> Self {
        let mut corners = vec![(0.0, 0.0)];
        let (mut at, mut lines, mut slope) = (0.0, 0.0, 1.0);
        for (time, value) in survival.steps() {
            let time = f64::from(time);
            if time >= f64::from(touches) {
                break;
            }
            lines += slope * (time - at);
            corners.push((time, lines));
            (at, slope) = (time, value);
        }
        let end = f64::from(touches).max(at);
        corners.push((end, lines + slope * (end - at)));
        Self { corners }
    }

    /// Expected lines in the longest row.
    #[must_use]
    pub fn most(&self) -> f64 {
        self.corners.last().map_or(0.0, |corner| corner.1)
    }

    /// Number of touches of that many `lines`; `None` if even the longest row has fewer.
    #[must_use]
    pub fn touches(&self, lines: f64) -> Option<f64> {
        let behind = self.corners.partition_point(|corner| corner.1 < lines);
        let to = self.corners.get(behind)?;
        let Some(from) = behind.checked_sub(1).map(|at| self.corners[at]) else {
            return Some(0.0);
        };
        let along = (lines - from.1) / (to.1 - from.1);
        Some(along.mul_add(to.0 - from.0, from.0))
    }
}

#[cfg(test)]
mod tests {
    use super::super::Observed;
    use super::*;

    #[test]
    fn a_sweep_goes_to_as_many_lines_as_it_has() {
        // 8 touches of each line, each line again after 800 touches.
        let observed = (0..8000_u32)
            .map(|at| match at % 8 {
                0 if at < 800 => Observed::Beyond(at),
                0 => Observed::After(793),
                _ => Observed::After(1),
            })
            .collect();
        let distinct = Distinct::new(&Survival::of(observed), 8000);
        assert!((distinct.most() - 100.0).abs() < 4.0, "{}", distinct.most());
        let touches = distinct.touches(50.0).unwrap();
        assert!((touches - 400.0).abs() < 20.0, "{touches}");
        assert_eq!(distinct.touches(200.0), None);
        assert_eq!(distinct.touches(0.0), Some(0.0));
    }
}
