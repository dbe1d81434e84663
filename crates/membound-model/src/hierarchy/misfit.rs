//! Distinguishes a wrong model from noisy data: noise changes sign from one area to the next, a
//! wrong model errs in the same direction for many areas in a row.

use crate::stats::{median, robust_sigma};

/// Median relative residual up to which no misfit is reported.
const MAX_UNREPORTED_RESIDUAL: f64 = 0.04;
/// Correlation of neighbouring residuals above which they are not noise.
const MIN_RESIDUAL_CORRELATION: f64 = 0.4;
/// Fewest pairs of neighbours for a verdict.
const MIN_PAIRS: usize = 5;
/// Robust standard deviations at which a residual is cut.
const CUT_SIGMAS: f64 = 3.0;

/// A relative residual with its window and area.
#[derive(Clone, Copy, Debug)]
pub(super) struct Miss {
    /// Window in bytes; for loads any value, the same for all.
    pub(super) window: f64,
    /// Area in bytes.
    pub(super) area: f64,
    /// model ÷ measured − 1.
    pub(super) relative: f64,
}

/// Median relative residual of a model that does not describe its data, found by the correlation
/// of neighbouring residuals. `None` if the model describes the data, or with too few values.
pub(super) fn misfit(misses: &mut [Miss]) -> Option<f64> {
    misses.sort_by(|one, other| {
        let window = one.window.total_cmp(&other.window);
        window.then(one.area.total_cmp(&other.area))
    });
    let sizes: Vec<f64> = misses.iter().map(|miss| miss.relative.abs()).collect();
    let typical = median(&sizes).filter(|typical| *typical > MAX_UNREPORTED_RESIDUAL)?;
    let all: Vec<f64> = misses.iter().map(|miss| miss.relative).collect();
    let most = CUT_SIGMAS * robust_sigma(&all)?.max(typical);
    let cut = |miss: &Miss| miss.relative.clamp(-most, most);
    let pairs = misses
        .windows(2)
        .filter(|pair| pair[0].window.total_cmp(&pair[1].window).is_eq());
    let (mut together, mut apart, mut count) = (0.0, 0.0, 0);
    for pair in pairs {
        let (one, other) = (cut(&pair[0]), cut(&pair[1]));
        together += one * other;
        apart += (one * one + other * other) / 2.0;
        count += 1;
    }
    (count >= MIN_PAIRS && together > MIN_RESIDUAL_CORRELATION * apart).then_some(typical)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Random;

    fn misses(relative: impl Fn(usize) -> f64) -> Vec<Miss> {
        (0..60)
            .map(|index| Miss {
                window: if index % 2 == 0 { 1024.0 } else { 4096.0 },
                area: 2_f64.powi(14 + index as i32 / 2),
                relative: relative(index / 2),
            })
            .collect()
    }

    #[test]
    fn noise_is_no_misfit_whatever_its_size() {
        for seed in 0..50 {
            let noise: Vec<f64> = {
                let mut draws = Random::new(seed);
                (0..60).map(|_| 0.2 * draws.normal()).collect()
            };
            let mut all = misses(|_| 0.0);
            for (miss, noise) in all.iter_mut().zip(noise) {
                miss.relative = noise;
            }
            assert_eq!(misfit(&mut all), None, "seed {seed}");
        }
    }

    #[test]
    fn values_off_the_same_way_in_a_row_are_a_misfit() {
        let wave = |index: usize| 0.3 * (index as f64 / 5.0).sin();
        assert!(misfit(&mut misses(wave)).is_some_and(|typical| typical > 0.1));
        assert_eq!(misfit(&mut misses(|index| 0.02 * wave(index))), None);
        assert_eq!(misfit(&mut misses(wave)[..4]), None);
    }
}
