//! What a profile does not hold, and why.

use membound_types::{MachineProfile, NotMeasured, Outcome};

/// The parts of `measure`, in the order in which they are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Latency,
    Mlp,
    Window,
    Bandwidth,
    Loaded,
    Tlb,
    Prefetch,
    Numa,
    C2c,
}

/// Every part.
pub(crate) const PARTS: [Part; 9] = [
    Part::Latency,
    Part::Mlp,
    Part::Window,
    Part::Bandwidth,
    Part::Loaded,
    Part::Tlb,
    Part::Prefetch,
    Part::Numa,
    Part::C2c,
];

impl Part {
    /// The name on the command line.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Latency => "latency",
            Self::Mlp => "mlp",
            Self::Window => "window",
            Self::Bandwidth => "bandwidth",
            Self::Loaded => "loaded",
            Self::Tlb => "tlb",
            Self::Prefetch => "prefetch",
            Self::Numa => "numa",
            Self::C2c => "c2c",
        }
    }

    /// Why the whole part is missing, or what of it is (and how long it took).
    pub(crate) fn state(self, profile: &MachineProfile) -> Result<(&[String], f64), &NotMeasured> {
        fn look<'a, T>(
            outcome: &'a Outcome<T>,
            fields: impl FnOnce(&'a T) -> (&'a [String], f64),
        ) -> Result<(&'a [String], f64), &'a NotMeasured> {
            match outcome {
                Outcome::Known(part) => Ok(fields(part)),
                Outcome::Missing { not_measured } => Err(not_measured),
            }
        }
        match self {
            Self::Latency => look(&profile.latency, |p| (&p.skipped, p.elapsed_s)),
            Self::Mlp => look(&profile.mlp, |p| (&p.skipped, p.elapsed_s)),
            Self::Window => look(&profile.window, |p| (&p.skipped, p.elapsed_s)),
            Self::Bandwidth => look(&profile.bandwidth, |p| (&p.skipped, p.elapsed_s)),
            Self::Loaded => look(&profile.loaded, |p| (&p.skipped, p.elapsed_s)),
            Self::Tlb => look(&profile.tlb, |p| (&p.skipped, p.elapsed_s)),
            Self::Prefetch => look(&profile.prefetch, |p| (&p.skipped, p.elapsed_s)),
            Self::Numa => look(&profile.numa, |p| (&p.skipped, p.elapsed_s)),
            Self::C2c => look(&profile.c2c, |p| (&p.skipped, p.elapsed_s)),
        }
    }
}

/// Whether there is no part at all.
pub(crate) fn none_measured(profile: &MachineProfile) -> bool {
    PARTS.iter().all(|part| part.state(profile).is_err())
}

/// Something that is not in the profile.
#[derive(Clone, Debug)]
pub(crate) struct Gap {
    /// Part it would belong to.
    pub(crate) part: &'static str,
    /// What and why.
    pub(crate) text: String,
}

/// Everything that is not in the profile: parts that are missing as a whole, then what was
/// skipped inside a part.
pub(crate) fn gaps(profile: &MachineProfile) -> Vec<Gap> {
    let mut missing = Vec::new();
    let mut skipped = Vec::new();
    for part in PARTS {
        match part.state(profile) {
            // What nobody asked for is missed by nobody.
            Err(why) if why.is_not_asked() => {}
            Err(why) => missing.push(Gap {
                part: part.name(),
                text: missing_text(why),
            }),
            Ok((texts, _)) => skipped.extend(texts.iter().map(|text| Gap {
                part: part.name(),
                text: text.clone(),
            })),
        }
    }
    if let Some(mlp) = profile.mlp.known() {
        skipped.extend(mlp.others.iter().flat_map(|other| {
            other.skipped.iter().map(|text| Gap {
                part: "mlp",
                text: format!("{}: {text}", super::mlp_label(other)),
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
