//! Data that a machine profile lacks, and why.

use membound_types::{Kind, MachineProfile, NotMeasured, Outcome};

/// For each part in the order of display: what was skipped within it, or why the whole part is missing.
fn skipped_by_part(profile: &MachineProfile) -> [(Kind, Result<&[String], &NotMeasured>); 10] {
    fn skipped_or_reason<'a, P>(
        part: &'a Outcome<P>,
        skipped: impl FnOnce(&'a P) -> &'a [String],
    ) -> Result<&'a [String], &'a NotMeasured> {
        match part {
            Outcome::Known(part) => Ok(skipped(part)),
            Outcome::Missing { not_measured } => Err(not_measured),
        }
    }
    [
        (
            Kind::Latency,
            skipped_or_reason(&profile.latency, |p| &p.skipped),
        ),
        (Kind::Mlp, skipped_or_reason(&profile.mlp, |p| &p.skipped)),
        (
            Kind::Window,
            skipped_or_reason(&profile.window, |p| &p.skipped),
        ),
        (
            Kind::Bandwidth,
            skipped_or_reason(&profile.bandwidth, |p| &p.skipped),
        ),
        (
            Kind::Loaded,
            skipped_or_reason(&profile.loaded, |p| &p.skipped),
        ),
        (Kind::Tlb, skipped_or_reason(&profile.tlb, |p| &p.skipped)),
        (
            Kind::Prefetch,
            skipped_or_reason(&profile.prefetch, |p| &p.skipped),
        ),
        (Kind::Numa, skipped_or_reason(&profile.numa, |p| &p.skipped)),
        (Kind::C2c, skipped_or_reason(&profile.c2c, |p| &p.skipped)),
        (
            Kind::Calibration,
            skipped_or_reason(&profile.calibration, |p| &p.skipped),
        ),
    ]
}

/// True if no part was measured.
pub(crate) fn none_measured(profile: &MachineProfile) -> bool {
    skipped_by_part(profile)
        .iter()
        .all(|(_, state)| state.is_err())
}

/// Something that the profile lacks.
#[derive(Clone, Debug)]
pub(crate) struct Gap {
    /// Part that it would belong to.
    pub(crate) part: Kind,
    /// What is missing, and why.
    pub(crate) text: String,
}

/// Everything that the profile lacks: missing parts first, then what was skipped within a part.
pub(crate) fn gaps(profile: &MachineProfile) -> Vec<Gap> {
    let mut missing = Vec::new();
    let mut skipped = Vec::new();
    for (part, state) in skipped_by_part(profile) {
        match state {
            // Parts that were not requested are not reported as missing.
            Err(why) if why.is_not_asked() => {}
            Err(why) => missing.push(Gap {
                part,
                text: missing_text(why),
            }),
            Ok(texts) => skipped.extend(texts.iter().map(|text| Gap {
                part,
                text: text.clone(),
            })),
        }
    }
    if let Some(why) = profile
        .model
        .why_missing()
        .filter(|why| !why.is_not_asked())
    {
        missing.push(Gap {
            part: Kind::Model,
            text: missing_text(why),
        });
    }
    if let Some(mlp) = profile.mlp.known() {
        skipped.extend(mlp.others.iter().flat_map(|other| {
            other.skipped.iter().map(|text| Gap {
                part: Kind::Mlp,
                text: format!("{}: {text}", super::mlp_title(other)),
            })
        }));
    }
    missing.extend(skipped);
    missing
}

/// Formats the reason: `not measured: reason (remedy)`.
pub(crate) fn missing_text(why: &NotMeasured) -> String {
    match &why.remedy {
        Some(remedy) => format!("not measured: {} ({remedy})", why.reason),
        None => format!("not measured: {}", why.reason),
    }
}
