//! Shares of accesses that some levels served.

use membound_model::stall::{Estimate, Mixture, Served};

/// Share of the accesses of `mixture` served by the levels `wanted`, including accesses that took longer
/// than any level.
pub(crate) fn served_share(mixture: &Mixture, wanted: &[Served]) -> Estimate {
    let shares = mixture
        .levels
        .iter()
        .filter(|level| wanted.contains(&level.served))
        .map(|level| level.share)
        .chain([mixture.beyond]);
    sum(shares).clamped(0.0, 1.0)
}

/// Sum of shares of one whole. Their errors partly cancel, since an overestimated share makes another too
/// small; so deviations are added as squares.
fn sum(shares: impl Iterator<Item = Estimate>) -> Estimate {
    let (mut value, mut below, mut above) = (0.0, 0.0, 0.0);
    for share in shares {
        value += share.value;
        below += (share.value - share.low).powi(2);
        above += (share.high - share.value).powi(2);
    }
    Estimate::new(value, value - f64::sqrt(below), value + f64::sqrt(above))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deviations_of_shares_add_up_by_their_squares() {
        let shares = [
            Estimate::new(0.3, 0.27, 0.34),
            Estimate::new(0.4, 0.36, 0.43),
        ];
        let all = sum(shares.into_iter());
        assert!((all.value - 0.7).abs() < 1e-12);
        assert!((all.low - 0.65).abs() < 1e-12, "{all:?}");
        assert!((all.high - 0.75).abs() < 1e-12, "{all:?}");
        assert_eq!(sum(std::iter::empty()), Estimate::exactly(0.0));
    }
}
