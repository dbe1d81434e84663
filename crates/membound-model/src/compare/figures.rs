//! Lists every figure of a profile that can be compared with another profile's, by name.
//!
//! Names are stable: the part, what distinguishes the figure inside it, and the quantity with
//! its unit, separated by dots, as in `levels.L3.latency_ns`.

mod levels;
mod parallel;
mod places;
mod tlb;
mod traffic;

use membound_types::Worse;

use super::noise::{Noise, Uncertain, Z95};
use super::view::{ParameterView, ProfileView};
use crate::stats::{median, median_error};

/// A named figure of one profile.
#[derive(Clone, Debug, PartialEq)]
pub struct ProfileFigure {
    /// Stable name with dots, as in the module's description.
    pub name: String,
    /// Part of the profile that the figure is from.
    pub part: &'static str,
    /// Name for readers.
    pub title: String,
    /// `ns`, `cycles`, `bytes`, `GB/s` or `Hz`; empty for a number without unit.
    pub unit: &'static str,
    /// Direction of change that is worse.
    pub worse: Worse,
    /// Value, interval, and kind for the scatter between runs.
    pub uncertain: Uncertain,
}

/// Collects figures; values that are not finite are omitted.
struct Figures(Vec<ProfileFigure>);

/// Everything about a figure except its value.
struct Label {
    name: String,
    part: &'static str,
    title: String,
    unit: &'static str,
    worse: Worse,
    noise: Noise,
}

impl Figures {
    fn add(&mut self, label: Label, value: f64, interval: Option<(f64, f64)>) {
        if value.is_finite() {
            self.0.push(ProfileFigure {
                name: label.name,
                part: label.part,
                title: label.title,
                unit: label.unit,
                worse: label.worse,
                uncertain: Uncertain {
                    value,
                    interval: interval.filter(|(low, high)| low.is_finite() && high.is_finite()),
                    noise: label.noise,
                },
            });
        }
    }
}

/// All figures of a profile, part by part in the order of the profile.
#[must_use]
pub fn figures(profile: &ProfileView) -> Vec<ProfileFigure> {
    let mut out = Figures(Vec::new());
    clock(profile, &mut out);
    levels::levels(profile, &mut out);
    levels::latency(profile, &mut out);
    parallel::mlp(profile, &mut out);
    traffic::bandwidth(profile, &mut out);
    traffic::loaded(profile, &mut out);
    tlb::tlb(profile, &mut out);
    traffic::prefetch(profile, &mut out);
    places::numa(profile, &mut out);
    places::c2c(profile, &mut out);
    model(profile, &mut out);
    out.0
}

fn clock(profile: &ProfileView, out: &mut Figures) {
    if let Some(clock) = profile.core_clock_hz {
        out.add(
            Label {
                name: "clock.core_hz".to_owned(),
                part: "clock",
                title: "core clock".to_owned(),
                unit: "Hz",
                worse: Worse::Lower,
                noise: Noise::Clock,
            },
            clock.value,
            Some((clock.low, clock.high)),
        );
    }
}

fn model(profile: &ProfileView, out: &mut Figures) {
    let unit = |text: &str| match text {
        "ns" => "ns",
        "bytes" => "bytes",
        _ => "",
    };
    let worse = |text: &str| match text {
        "ns" => Worse::Higher,
        "bytes" => Worse::Lower,
        _ => Worse::Any,
    };
    let determined = |parameter: &&ParameterView| parameter.identifiable && !parameter.fixed;
    for parameter in profile.model.parameters.iter().filter(determined) {
        let symbol = &parameter.symbol;
        out.add(
            Label {
                name: format!("model.{symbol}"),
                part: "model",
                title: if parameter.name.is_empty() {
                    format!("model {symbol}")
                } else {
                    format!("{}, {symbol}", parameter.name)
                },
                unit: unit(&parameter.unit),
                worse: worse(&parameter.unit),
                noise: Noise::Parameter,
            },
            parameter.value,
            parameter.low.zip(parameter.high),
        );
    }
    for sum in &profile.model.combinations {
        let terms: Vec<String> = sum
            .symbols
            .iter()
            .zip(&sum.coefficients)
            .map(|(symbol, factor)| {
                if *factor == 1.0 {
                    symbol.clone()
                } else {
                    format!("{factor}{symbol}")
                }
            })
            .collect();
        let name = terms.join("+");
        out.add(
            Label {
                name: format!("model.{name}"),
                part: "model",
                title: format!("model {name}"),
                unit: unit(&sum.unit),
                worse: worse(&sum.unit),
                noise: Noise::Parameter,
            },
            sum.value,
            Some((sum.low, sum.high)),
        );
    }
}

/// Relative standard error of the median of a few batches; `None` with fewer than two.
fn relative_error(raw: &[f64]) -> Option<f64> {
    let middle = median(raw)?;
    let error = median_error(raw)?;
    (middle > 0.0).then_some(error / middle)
}

fn around(value: f64, error: f64) -> (f64, f64) {
    (
        value * (1.0 - Z95 * error).max(0.0),
        value * (1.0 + Z95 * error),
    )
}
