//! Estimates how many cells are in use, from samples of positions.

/// The number of cells in use, if `samples` fell into `occupied` different ones of `all`.
///
/// If U cells are used equally, samples fall into U·(1 − exp(−samples ÷ U)) of them; this is
/// that equation solved for U. If no two samples fell into the same cell, it has no solution, and
/// all cells count as used.
#[must_use]
pub fn used_cells(samples: u64, occupied: u64, all: f64) -> f64 {
    let (samples, occupied) = (samples as f64, occupied as f64);
    let all = all.max(occupied);
    let expected = |used: f64| used * -(-samples / used).exp_m1();
    if occupied <= 0.0 || occupied >= samples || expected(all) <= occupied {
        return if occupied <= 0.0 { 0.0 } else { all };
    }
    let (mut low, mut high) = (occupied, all);
    for _ in 0..60 {
        let middle = f64::midpoint(low, high);
        if expected(middle) < occupied {
            low = middle;
        } else {
            high = middle;
        }
    }
    f64::midpoint(low, high)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_footprint_follows_from_coincident_samples() {
        assert_eq!(used_cells(0, 0, 64.0), 0.0);
        assert_eq!(used_cells(3, 3, 64.0), 64.0);
        assert!((used_cells(1000, 64, 64.0) - 64.0).abs() < 1e-3);
        assert!((used_cells(1000, 8, 64.0) - 8.0).abs() < 1e-3);
        // If 64 cells are in use, 64 samples fall into 40 of them.
        assert!((used_cells(64, 40, 1e6) - 64.0).abs() < 3.0);
    }
}
