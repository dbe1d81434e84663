//! A figure with its interval and how it was got, or why there is none.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::names::named;

named! {
    /// How a figure was got.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub enum Basis {
        /// Timed or counted on this machine.
        Measured = "measured",
        /// Computed from measurements by a stated method.
        Estimated = "estimated",
        /// Computed from a model of the machine.
        Modelled = "modelled",
        /// Read from what the machine says of itself (sysfs, CPUID).
        Declared = "declared",
    }
}

/// A value with the interval it lies in, in the unit that the field's name says.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Figure {
    /// The value.
    pub value: f64,
    /// Lower end of the 95 % interval.
    pub low: f64,
    /// Upper end of the 95 % interval.
    pub high: f64,
    /// How it was got.
    pub basis: Basis,
}

/// Why there is no figure, and what would change that.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NotMeasured {
    /// A lower-case fragment: what stands in the way.
    pub reason: String,
    /// What the user can switch on, where there is something.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

impl NotMeasured {
    /// Reason of a part that the user did not ask for.
    pub const NOT_ASKED: &str = "not asked for";

    /// Whether the user did not ask for the part.
    #[must_use]
    pub fn is_not_asked(&self) -> bool {
        self.reason == Self::NOT_ASKED
    }
}

/// Something known, or the reason why it is not. Never 0 or NaN for "unknown".
///
/// In JSON the value itself, or `{"not_measured": {"reason": …, "remedy": …}}`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Outcome<T> {
    /// Not known, and why.
    Missing {
        /// The reason and the remedy.
        not_measured: NotMeasured,
    },
    /// Known.
    Known(T),
}

impl<T> Outcome<T> {
    /// Not measured, for `reason`, with nothing the user could do about it.
    pub fn missing(reason: impl Into<String>) -> Self {
        Self::Missing {
            not_measured: NotMeasured {
                reason: reason.into(),
                remedy: None,
            },
        }
    }

    /// Not measured, for `reason`; `remedy` would change that.
    pub fn missing_with(reason: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::Missing {
            not_measured: NotMeasured {
                reason: reason.into(),
                remedy: Some(remedy.into()),
            },
        }
    }

    /// The value, when there is one.
    pub const fn known(&self) -> Option<&T> {
        match self {
            Self::Known(value) => Some(value),
            Self::Missing { .. } => None,
        }
    }

    /// The reason, when there is no value.
    pub const fn why_missing(&self) -> Option<&NotMeasured> {
        match self {
            Self::Known(_) => None,
            Self::Missing { not_measured } => Some(not_measured),
        }
    }

    /// The same outcome with `f` applied to the value.
    pub fn map<U>(self, f: impl FnOnce(T) -> U) -> Outcome<U> {
        match self {
            Self::Known(value) => Outcome::Known(f(value)),
            Self::Missing { not_measured } => Outcome::Missing { not_measured },
        }
    }
}
