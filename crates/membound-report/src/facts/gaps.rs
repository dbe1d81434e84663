//! What a profile does not hold, and why.

use membound_types::{Kind, MachineProfile, NotMeasured, Outcome};

/// What was skipped inside each part, in the order in which parts are shown, or why the
/// whole part is missing.
fn skipped_by_part(profile: &MachineProfile) -> [(Kind, Result<&[String], &NotMeasured>); 10] {
    fn look<'a, P>(
        part: &'a Outcome<P>,
        skipped: impl FnOnce(&'a P) -> &'a [String],
    ) -> Result<&'a [String], &'a NotMeasured> {
        match part {
            Outcome::Known(part) => Ok(skipped(part)),
            Outcome::Missing { not_measured } => Err(not_measured),
        }
    }
    [
        (Kind::Latency, look(&profile.latency, |p| &p.skipped)),
        (Kind::Mlp, look(&profile.mlp, |p| &p.skipped)),
        (Kind::Window, look(&profile.window, |p| &p.skipped)),
        (Kind::Bandwidth, look(&profile.bandwidth, |p| &p.skipped)),
        (Kind::Loaded, look(&profile.loaded, |p| &p.skipped)),
        (Kind::Tlb, look(&profile.tlb, |p| &p.skipped)),
        (Kind::Prefetch, look(&profile.prefetch, |p| &p.skipped)),
        (Kind::Numa, look(&profile.numa, |p| &p.skipped)),
        (Kind::C2c, look(&profile.c2c, |p| &p.skipped)),
        (
            Kind::Calibration,
            look(&profile.calibration, |p| &p.skipped),
        ),
    ]
}

/// Whether there is no part at all.
pub(crate) fn none_measured(profile: &MachineProfile) -> bool {
    skipped_by_part(profile)
        .iter()
        .all(|(_, state)| state.is_err())
}

/// Something that is not in the profile.
#[derive(Clone, Debug)]
pub(crate) struct Gap {
    /// Part it would belong to.
    pub(crate) part: Kind,
    /// What and why.
    pub(crate) text: String,
}

/// Everything that is not in the profile: parts that are missing as a whole, then what was
/// skipped inside a part.
pub(crate) fn gaps(profile: &MachineProfile) -> Vec<Gap> {
    let mut missing = Vec::new();
    let mut skipped = Vec::new();
    for (part, state) in skipped_by_part(profile) {
        match state {
            // The reader does not miss a part that was not asked for.
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

/// `not measured: reason (remedy)`.
pub(crate) fn missing_text(why: &NotMeasured) -> String {
    match &why.remedy {
        Some(remedy) => format!("not measured: {} ({remedy})", why.reason),
        None => format!("not measured: {}", why.reason),
    }
}
