//! Finds which of all cliffs is the reorder buffer's, and what limits the others: pure functions,
//! without a clock.
//!
//! No single filler can be trusted on every core. Zen 4 keeps four nops in one entry and
//! lets an address computation share one with a branch; Intel's cores run out of branches
//! first; a filler that writes a register runs out of registers. So fillers of one, two and
//! three kinds are tried, and two rules find the buffer:
//!
//! - A mix whose kinds are all well below the number of them that the core was observed to hold has
//!   met a limit that its kinds share.
//! - Where such mixes and single kinds end at the same number of instructions **without a kind of
//!   resource in common**, that limit is the reorder buffer. Fused kinds agree too, but at a larger
//!   number; so the smallest one counts.
//!
//! The sizes of no processor are built in.

use membound_types::{Filler, FillerCliff};

/// Loads in the window, besides the fillers.
pub(super) const WINDOW_LOADS: u32 = 2;

/// Relative difference up to which two numbers of instructions count as the same.
const MAX_RELATIVE_DIFFERENCE: f64 = 0.015;

/// Factor by which the core must hold more of a kind than a mix contains, so that this kind did not
/// end the mix.
const MIN_CAPACITY_FACTOR: f64 = 1.15;

/// Kinds that mixes are made of: those of which a core holds many.
const INGREDIENTS: [Filler; 6] = [
    Filler::Nop,
    Filler::Branch,
    Filler::X87,
    Filler::Vector,
    Filler::Flags,
    Filler::Integer,
];

/// The resource, besides the reorder buffer, that a filler occupies. Integer registers and flags
/// are one, because many cores keep them in one file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Resource {
    Nothing,
    General,
    Vector,
    Mask,
    Branch,
    X87,
    Store,
}

const fn resource(filler: Filler) -> Resource {
    match filler {
        Filler::Nop | Filler::Mixed => Resource::Nothing,
        Filler::Integer
        | Filler::Flags
        | Filler::Move
        | Filler::Zero
        | Filler::Load
        | Filler::Dependent => Resource::General,
        Filler::Vector => Resource::Vector,
        Filler::Mask => Resource::Mask,
        Filler::Branch => Resource::Branch,
        Filler::X87 => Resource::X87,
        Filler::Store => Resource::Store,
    }
}

/// Every mix of two or three of the available kinds: `aab`, `ab` and `abc`.
pub(super) fn mixes(kinds: &[Filler]) -> Vec<Vec<Filler>> {
    let parts: Vec<Filler> = INGREDIENTS
        .into_iter()
        .filter(|filler| kinds.contains(filler))
        .collect();
    let mut mixes = Vec::new();
    for (index, &a) in parts.iter().enumerate() {
        for &b in parts.iter().filter(|b| **b != a) {
            mixes.push(vec![a, a, b]);
        }
        for (further, &b) in parts.iter().enumerate().skip(index + 1) {
            mixes.push(vec![a, b]);
            for &c in &parts[further + 1..] {
                mixes.push(vec![a, b, c]);
            }
        }
    }
    mixes
}

/// A number of instructions at which fillers of different kinds end alike.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Agreement {
    /// Instructions in the window: the median of the agreeing cliffs.
    pub(super) instructions: f64,
    /// All agreeing cliffs, ascending.
    pub(super) agreeing: Vec<FillerCliff>,
    /// The agreeing mix whose kinds are farthest from their own limits.
    pub(super) mix: Vec<Filler>,
}

/// Finds the reorder buffer among `cliffs`, one for each pattern; `None` where no fillers of
/// different kinds agree.
pub(super) fn agreement(cliffs: &[FillerCliff]) -> Option<Agreement> {
    const MIN_MIXES: usize = 2;
    const MIN_CLIFFS: usize = 4;
    const MIN_RESOURCES: usize = 3;
    let mut candidates: Vec<&FillerCliff> = cliffs
        .iter()
        // Without any filler inside the window there is no window.
        .filter(|cliff| cliff.instructions > WINDOW_LOADS)
        .filter(|cliff| cliff.pattern.len() == 1 || slack(cliff, cliffs) >= MIN_CAPACITY_FACTOR)
        .collect();
    candidates.sort_by_key(|cliff| cliff.instructions);
    let near = |instructions: f64| -> Vec<&FillerCliff> {
        candidates
            .iter()
            .copied()
            .filter(|cliff| {
                (f64::from(cliff.instructions) / instructions - 1.0).abs()
                    <= MAX_RELATIVE_DIFFERENCE
            })
            .collect()
    };
    let is_mix = |cliff: &&FillerCliff| cliff.pattern.len() > 1;
    candidates
        .iter()
        .copied()
        .filter(is_mix)
        .find_map(|anchor| {
            // The anchor may be a straggler: the middle of its neighbourhood counts.
            let around = near(f64::from(anchor.instructions));
            let middle = f64::from(around.get(around.len() / 2)?.instructions);
            let members = near(middle);
            let sets: Vec<Vec<Resource>> = members
                .iter()
                .map(|cliff| cliff.pattern.iter().copied().map(resource).collect())
                .collect();
            let all = distinct(sets.iter().flatten());
            let in_every = |what: &Resource| sets.iter().all(|set| set.contains(what));
            let enough = members.len() >= MIN_CLIFFS
                && members.iter().copied().filter(|it| is_mix(it)).count() >= MIN_MIXES
                && all.len() >= MIN_RESOURCES
                && !all.iter().any(in_every);
            if !enough {
                return None;
            }
            let mix = members
                .iter()
                .copied()
                .filter(is_mix)
                .max_by(|a, b| rank(a, cliffs).total_cmp(&rank(b, cliffs)))?;
            Some(Agreement {
                instructions: f64::from(members[members.len() / 2].instructions),
                mix: mix.pattern.clone(),
                agreeing: members.into_iter().cloned().collect(),
            })
        })
}

/// Order of preference: slack, where more than twice counts as twice; then the number of kinds.
fn rank(cliff: &FillerCliff, cliffs: &[FillerCliff]) -> f64 {
    let kinds = distinct(cliff.pattern.iter()).len();
    slack(cliff, cliffs).min(2.0) + 0.1 * kinds as f64
}

fn distinct<'a, T: Copy + PartialEq + 'a>(items: impl Iterator<Item = &'a T>) -> Vec<T> {
    let mut found = Vec::new();
    for item in items {
        if !found.contains(item) {
            found.push(*item);
        }
    }
    found
}

/// The largest number of a kind at any cliff, divided by its number at `cliff`: the minimum over
/// the kinds of the pattern of `cliff`.
fn slack(cliff: &FillerCliff, cliffs: &[FillerCliff]) -> f64 {
    distinct(cliff.pattern.iter())
        .into_iter()
        .map(|kind| {
            let most = cliffs
                .iter()
                .map(|other| count(other, kind))
                .fold(0.0, f64::max);
            most / count(cliff, kind)
        })
        .fold(f64::INFINITY, f64::min)
}

/// Fillers of `kind` in the window at the cliff.
fn count(cliff: &FillerCliff, kind: Filler) -> f64 {
    let mine = cliff.pattern.iter().filter(|part| **part == kind).count();
    let fillers = f64::from(cliff.instructions.saturating_sub(WINDOW_LOADS));
    fillers * mine as f64 / cliff.pattern.len() as f64
}

/// The structure that limits a filler.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum LimitingStructure {
    /// The reorder buffer; the value is the number of fillers per entry.
    ReorderBuffer(f64),
    IntegerRegisters,
    FlagRegisters,
    VectorRegisters,
    MaskRegisters,
    Branches,
    X87,
    LoadQueue,
    StoreQueue,
    Scheduler,
}

impl LimitingStructure {
    /// Name for documents and reports.
    pub(super) fn name(self, filler: Filler) -> String {
        match self {
            // No core is known to put a fraction of a filler into an entry.
            Self::ReorderBuffer(each) if each.fract() > 0.0 => {
                "reorder buffer (the mixes that show it ended earlier)".to_owned()
            }
            Self::ReorderBuffer(each) if each > 1.0 && filler == Filler::Nop => {
                format!("reorder buffer (nop fusion: {each} share an entry)")
            }
            Self::ReorderBuffer(each) if each > 1.0 => {
                format!("reorder buffer ({each} share an entry)")
            }
            Self::ReorderBuffer(_) => "reorder buffer".to_owned(),
            Self::IntegerRegisters => "integer registers".to_owned(),
            Self::FlagRegisters => "flag registers".to_owned(),
            Self::VectorRegisters => "vector registers".to_owned(),
            Self::MaskRegisters => "mask registers".to_owned(),
            Self::Branches => "branches in flight".to_owned(),
            Self::X87 => "x87 queue".to_owned(),
            Self::LoadQueue => "load queue".to_owned(),
            Self::StoreQueue => "store queue".to_owned(),
            Self::Scheduler => "scheduler".to_owned(),
        }
    }

    /// How many of the two loads occupy an entry of this structure.
    pub(super) const fn loads(self) -> u32 {
        match self {
            Self::ReorderBuffer(_) | Self::IntegerRegisters | Self::LoadQueue => WINDOW_LOADS,
            Self::FlagRegisters
            | Self::VectorRegisters
            | Self::MaskRegisters
            | Self::Branches
            | Self::X87
            | Self::StoreQueue
            | Self::Scheduler => 0,
        }
    }

    pub(super) const fn fillers_per_entry(self) -> f64 {
        match self {
            Self::ReorderBuffer(each) => each,
            _ => 1.0,
        }
    }
}

/// The structure that limits the single kind `filler`, whose cliff is at `instructions`, in a core
/// whose reorder buffer has `reorder` entries.
pub(super) fn ended(
    filler: Filler,
    instructions: u32,
    reorder: Option<f64>,
    cliffs: &[FillerCliff],
) -> LimitingStructure {
    /// Share of the reorder buffer below which another structure ended the filler.
    const MAX_REORDER_BUFFER_SHARE: f64 = 0.97;
    let fillers = f64::from(instructions.saturating_sub(WINDOW_LOADS));
    if let Some(reorder) = reorder {
        let each = fillers / (reorder - f64::from(WINDOW_LOADS));
        if each >= MAX_REORDER_BUFFER_SHARE {
            return LimitingStructure::ReorderBuffer(share(each));
        }
    }
    let alike = |pattern: &[Filler], within: f64| {
        of(cliffs, pattern)
            .is_some_and(|other| (f64::from(other) / f64::from(instructions) - 1.0).abs() < within)
    };
    match filler {
        Filler::Integer | Filler::Move | Filler::Zero => LimitingStructure::IntegerRegisters,
        // If flags are in the integer registers' file, mixes of both kinds end where each kind ends
        // alone, regardless of their proportion.
        Filler::Flags
            if alike(&[Filler::Integer, Filler::Integer, Filler::Flags], 0.08)
                && alike(&[Filler::Flags, Filler::Flags, Filler::Integer], 0.08) =>
        {
            LimitingStructure::IntegerRegisters
        }
        Filler::Flags => LimitingStructure::FlagRegisters,
        Filler::Vector => LimitingStructure::VectorRegisters,
        Filler::Mask => LimitingStructure::MaskRegisters,
        Filler::Branch => LimitingStructure::Branches,
        Filler::X87 => LimitingStructure::X87,
        Filler::Load if alike(&[Filler::Integer], 0.06) => LimitingStructure::IntegerRegisters,
        Filler::Load => LimitingStructure::LoadQueue,
        Filler::Store => LimitingStructure::StoreQueue,
        Filler::Dependent => LimitingStructure::Scheduler,
        Filler::Nop | Filler::Mixed => LimitingStructure::ReorderBuffer(1.0),
    }
}

/// Fillers per entry: a whole number where one is near, else rounded to a tenth.
fn share(each: f64) -> f64 {
    const MAX_ROUNDING_ERROR: f64 = 0.06;
    let whole = each.round().max(1.0);
    if (each / whole - 1.0).abs() < MAX_ROUNDING_ERROR {
        whole
    } else {
        (each * 10.0).round() / 10.0
    }
}

fn of(cliffs: &[FillerCliff], pattern: &[Filler]) -> Option<u32> {
    cliffs
        .iter()
        .find(|cliff| cliff.pattern == pattern)
        .map(|cliff| cliff.instructions)
}

#[cfg(test)]
mod tests;
