//! A figure with its interval and basis, or the reason why there is none.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::names::named;

named! {
    /// How a figure was obtained.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub enum Basis {
        /// Timed or counted on this machine.
        Measured = "measured",
        /// Computed from measurements by a stated method.
        Estimated = "estimated",
        /// Computed from a model of the machine.
        Modelled = "modelled",
        /// Read from the machine's own description (sysfs, CPUID).
        Declared = "declared",
    }
}

/// A value with its 95 % interval, in the unit that the field's name gives.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Figure {
    /// The value, in the unit of the field's name.
    pub value: f64,
    /// Lower end of the 95 % interval.
    pub low: f64,
    /// Upper end of the 95 % interval.
    pub high: f64,
    /// How the value was obtained.
    pub basis: Basis,
}

/// Why a figure is missing, and what the user can do about it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NotMeasured {
    /// Cause, as a lower-case fragment.
    pub reason: String,
    /// What the user can enable to get the figure; absent if nothing helps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

impl NotMeasured {
    /// Reason of a part that the user did not request.
    pub const NOT_ASKED: &str = "not asked for";

    /// True if the user did not request the part.
    #[must_use]
    pub fn is_not_asked(&self) -> bool {
        self.reason == Self::NOT_ASKED
    }
}

/// A known value, or the reason why it is unknown; an unknown value is never written as 0 or NaN.
///
/// In JSON, the value itself, or `{"not_measured": {"reason": …, "remedy": …}}`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Outcome<T> {
    /// The value is unknown.
    Missing {
        /// Reason, and remedy if there is one.
        not_measured: NotMeasured,
    },
    /// The value is known.
    Known(T),
}

impl<T> Outcome<T> {
    /// True if the part was not requested.
    #[must_use]
    pub fn was_not_asked(&self) -> bool {
        matches!(self, Self::Missing { not_measured } if not_measured.is_not_asked())
    }

    /// Missing for `reason`, without a remedy.
    pub fn missing(reason: impl Into<String>) -> Self {
        Self::Missing {
            not_measured: NotMeasured {
                reason: reason.into(),
                remedy: None,
            },
        }
    }

    /// Missing for `reason`, with a `remedy` for the user.
    pub fn missing_with(reason: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::Missing {
            not_measured: NotMeasured {
                reason: reason.into(),
                remedy: Some(remedy.into()),
            },
        }
    }

    /// The value; `None` if it is missing.
    pub const fn known(&self) -> Option<&T> {
        match self {
            Self::Known(value) => Some(value),
            Self::Missing { .. } => None,
        }
    }

    /// The reason; `None` if there is a value.
    pub const fn why_missing(&self) -> Option<&NotMeasured> {
        match self {
            Self::Known(_) => None,
            Self::Missing { not_measured } => Some(not_measured),
        }
    }

    /// Applies `f` to the value, if there is one.
    pub fn map<U>(self, f: impl FnOnce(T) -> U) -> Outcome<U> {
        match self {
            Self::Known(value) => Outcome::Known(f(value)),
            Self::Missing { not_measured } => Outcome::Missing { not_measured },
        }
    }
}
