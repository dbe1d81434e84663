//! Lists every figure of a profile that can be compared with another profile's, by name.
//!
//! Names are stable: the part, what distinguishes the figure inside it, and the quantity with
//! its unit, separated by dots, as in `levels.L3.latency_ns`.

mod figure;
mod levels;
mod parallel;
mod places;
mod tlb;
mod traffic;

pub use self::figure::ProfileFigure;
use self::figure::{Figures, Label};
use super::noise::Noise;
use super::view::{ParameterView, ProfileView};

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
                noise: Noise::Parameter,
            },
            sum.value,
            Some((sum.low, sum.high)),
        );
    }
}
