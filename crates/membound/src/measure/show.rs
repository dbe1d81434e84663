//! Documents and text from a measured profile.

use anyhow::Context;
use membound_report::text::{self, Style};
use membound_types::{Document, Kind, MachineProfile, Outcome, SCHEMA_VERSION};
use serde::Serialize;

use crate::args::{Format, MeasureArgs, Part};
use crate::output;

/// The text for stdout in the requested format.
pub(super) fn stdout(
    profile: &MachineProfile,
    parts: &[Part],
    args: &MeasureArgs,
) -> anyhow::Result<String> {
    let style = output::style();
    match args.format.unwrap_or(Format::Text) {
        Format::Text => Ok(person(profile, parts, style)),
        Format::Json => json(profile, parts),
        Format::Csv => Ok(match (&profile.latency, &profile.mlp, &profile.window) {
            (Outcome::Known(latency), _, _) => membound_report::csv::latency(latency),
            (_, Outcome::Known(mlp), _) => membound_report::csv::mlp(mlp),
            (_, _, Outcome::Known(window)) => membound_report::csv::window(window),
            _ => String::new(),
        }),
        Format::LatMemRd => {
            let latency = profile.latency.known().context("no latency was measured")?;
            output::complain(membound_report::lat_mem_rd::CONVENTION);
            Ok(membound_report::lat_mem_rd::render(
                latency,
                &profile.machine.timer,
            )?)
        }
    }
}

/// The text for a person: the part's own if there is one part, else the machine's.
fn person(profile: &MachineProfile, parts: &[Part], style: Style) -> String {
    let levels = &profile.levels;
    let one = match parts {
        [Part::Latency] => document(profile, Kind::Latency, &profile.latency)
            .map(|it| text::latency(&it, levels, style)),
        [Part::Mlp] => document(profile, Kind::Mlp, &profile.mlp).map(|it| text::mlp(&it, style)),
        // As in the paper's figure: the measurement, the model's curve, and its levels.
        [Part::Window] => {
            document(profile, Kind::Window, &profile.window).map(|it| match &profile.model {
                Outcome::Known(model) => {
                    format!(
                        "{}\n{}",
                        text::window(&it, style),
                        text::model(model, style)
                    )
                }
                Outcome::Missing { .. } => text::window(&it, style),
            })
        }
        [Part::Bandwidth] => document(profile, Kind::Bandwidth, &profile.bandwidth)
            .map(|it| text::bandwidth(&it, style)),
        [Part::Loaded] => {
            document(profile, Kind::Loaded, &profile.loaded).map(|it| text::loaded(&it, style))
        }
        [Part::Tlb] => document(profile, Kind::Tlb, &profile.tlb).map(|it| text::tlb(&it, style)),
        [Part::Prefetch] => document(profile, Kind::Prefetch, &profile.prefetch)
            .map(|it| text::prefetch(&it, style)),
        [Part::Numa] => {
            document(profile, Kind::Numa, &profile.numa).map(|it| text::numa(&it, style))
        }
        [Part::C2c] => document(profile, Kind::C2c, &profile.c2c).map(|it| text::c2c(&it, style)),
        [Part::Calibration] => document(profile, Kind::Calibration, &profile.calibration)
            .map(|it| text::calibration(&it, style)),
        _ => None,
    };
    one.unwrap_or_else(|| text::machine(profile, style))
}

/// The JSON document: the part's if there is one part, else the machine profile.
pub(super) fn json(profile: &MachineProfile, parts: &[Part]) -> anyhow::Result<String> {
    fn part<P: Clone + Serialize>(
        profile: &MachineProfile,
        kind: Kind,
        outcome: &Outcome<P>,
    ) -> anyhow::Result<String> {
        let document =
            document(profile, kind, outcome).with_context(|| match outcome.why_missing() {
                Some(why) => format!("nothing was measured: {}", why.reason),
                None => "nothing was measured".to_owned(),
            })?;
        output::json(&document)
    }
    match parts {
        [Part::Latency] => part(profile, Kind::Latency, &profile.latency),
        [Part::Mlp] => part(profile, Kind::Mlp, &profile.mlp),
        [Part::Window] => part(profile, Kind::Window, &profile.window),
        [Part::Bandwidth] => part(profile, Kind::Bandwidth, &profile.bandwidth),
        [Part::Loaded] => part(profile, Kind::Loaded, &profile.loaded),
        [Part::Tlb] => part(profile, Kind::Tlb, &profile.tlb),
        [Part::Prefetch] => part(profile, Kind::Prefetch, &profile.prefetch),
        [Part::Numa] => part(profile, Kind::Numa, &profile.numa),
        [Part::C2c] => part(profile, Kind::C2c, &profile.c2c),
        [Part::Calibration] => part(profile, Kind::Calibration, &profile.calibration),
        _ => output::json(profile),
    }
}

fn document<P: Clone>(
    profile: &MachineProfile,
    kind: Kind,
    part: &Outcome<P>,
) -> Option<Document<P>> {
    Some(Document {
        schema_version: SCHEMA_VERSION,
        kind,
        incomplete: profile.incomplete,
        machine: profile.machine.clone(),
        part: part.known()?.clone(),
    })
}
