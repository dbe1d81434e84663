//! Compares machine profiles, and finds a fleet's outliers.
//!
//! [`ProfileView`] is the part of a profile that is read. [`compare`] compares several profiles
//! with the first: every figure ([`figures`]) with its difference and whether that is more than
//! noise ([`noise`]), every curve with its relation to the first profile's ([`relation`]), and
//! document 000's summary table ([`table`]). The curves of all conditions are also returned, so
//! that they can be drawn in one picture. [`Fleet`] takes any number of profiles, one
//! after the other, keeps only their figures, and finds outliers. [`guard`]
//! decides whether anything is worse than allowed.

pub mod curves;
pub mod figures;
mod fleet;
pub mod guard;
mod hints;
pub mod noise;
mod overlays;
pub mod relation;
mod side_by_side;
pub mod table;
mod view;

use membound_types::ComparisonMethod;

pub use fleet::{Fleet, Reading};
pub use side_by_side::compare;
pub use view::*;

/// Accepted share of false positives among the differences reported as different.
pub const FALSE_DISCOVERY_RATE: f64 = 0.05;

/// Description of the method for the comparison document.
#[must_use]
pub fn method() -> ComparisonMethod {
    ComparisonMethod {
        test: "two-sided normal test of the difference of logarithms; the standard deviation of \
               each value is its 95 % interval ÷ 3.92 and the scatter between runs in quadrature"
            .to_owned(),
        correction: "Benjamini–Hochberg over the figures of a pair of profiles".to_owned(),
        false_discovery_rate: FALSE_DISCOVERY_RATE,
        curves: "later = slope · first + shift by York's line with errors in both values, \
                 weighed by Tukey's biweight"
            .to_owned(),
        floors: noise::floors(),
    }
}
