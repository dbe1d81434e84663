//! Machine profiles side by side, and a fleet's outliers.
//!
//! [`ProfileView`] is what is read of a profile. [`compare`] sets several against the
//! first: every figure ([`figures`]) with its difference and whether that is more than
//! noise ([`noise`]), every curve with how it follows from the first's ([`relation`]), and
//! document 000's summary table ([`table`]). Curves of all conditions are there to be
//! overlaid. [`Fleet`] takes any number of profiles, one
//! after the other, keeps their figures only, and names those that stand out. [`guard`]
//! says whether anything is worse than is allowed.

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
pub use side_by_side::{NamedProfile, compare};
pub use view::*;

/// Share of the differences called different that may be noise.
pub const FALSE_DISCOVERY_RATE: f64 = 0.05;

/// How differences are judged, for the document.
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
