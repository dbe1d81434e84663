//! Pointer chases in each other's stalls: how close they come to the limit and to hand-written
//! switches, and the time of a switch where every load hits.

use anyhow::{Context as _, Error, Result};
use membound_input::parse_size;
use membound_types::{HarvestPart, HarvestPlan, HarvestRole, IdlePolicy};
use serde_json::{Value, json};

use super::super::common::verdict;
use super::arithmetic::{limit, middle, switch_ns};
use super::bed::{Asked, Bed, Said, Words, alternate, ran_apart, read};
use super::failure::failed;
use crate::run::say;

/// Numbers of scavengers beside the primary.
const COPIES: [u32; 4] = [1, 3, 7, 15];
const LIMIT_TARGET: f64 = 0.85;
const BY_HAND_TARGET: f64 = 0.80;
const SWITCH_TARGET_NS: f64 = 6.0;
/// Maximum time in seconds that one of them takes to prepare itself.
pub(super) const REST_S: u64 = 2;
/// Area in which every load of two chases hits the first cache, as in `interleaved`.
const SMALL: &str = "8K";

/// Cases that run in turn.
enum Case {
    Alone,
    /// One chase through as much memory as this many chases have together.
    AloneInAll(u32),
    ByHand,
    Harvested(u32),
}

/// Result of a run.
enum Found {
    /// Numbers that a program printed.
    Said(Said),
    /// Nanoseconds per hop of all contexts together, and whether scavengers ran on their home
    /// threads.
    Hop {
        ns: f64,
        /// Share of the primary's time in which all scavengers had begun to chase.
        share: f64,
        apart: bool,
    },
}

impl Found {
    fn ns(&self, name: &str) -> f64 {
        match self {
            Self::Said(said) => said.get(name).unwrap_or(f64::NAN),
            Self::Hop { ns, .. } => *ns,
        }
    }

    const fn share(&self) -> f64 {
        match self {
            Self::Said(_) => 1.0,
            Self::Hop { share, .. } => *share,
        }
    }

    const fn apart(&self) -> bool {
        matches!(self, Self::Hop { apart: true, .. })
    }
}

/// A chase through `area` with `copies` others; its yields come from a profile of the large area.
fn asked(bed: &Bed<'_>, area: &str, copies: u32, hops: u64) -> Asked {
    let large = bed.args.area.as_str();
    let rest_s = rest_s(area, copies);
    let mut scavenger = bed.scavenger("schase", large);
    scavenger.words = bed.scavenger("schase", area).words;
    Asked {
        primary: resting(bed, area, hops, rest_s),
        profiled: chase(bed, large, 60_000_000),
        scavenger,
        copies,
        // Scavengers prepare themselves while the primary rests.
        idle: if rest_s > 0 {
            IdlePolicy::Harvest
        } else {
            IdlePolicy::Steal
        },
        bound_ns: None,
        // The chase has one load; the cost of its yield on hits is not measured here.
        max_overhead: "100%",
        without: &[],
    }
}

fn chase(bed: &Bed<'_>, area: &str, hops: u64) -> Words {
    bed.words("chase", ["1", area, "own", &bed.amount(hops)])
}

/// How long a primary with `copies` scavengers through `area` rests, in seconds, including once
/// more for loading and planning them; small areas are prepared in a few time slices.
fn rest_s(area: &str, copies: u32) -> u64 {
    if area == SMALL {
        0
    } else {
        (u64::from(copies) + 1) * REST_S
    }
}

/// A chase that rests for `rest_s` seconds first, in which other chases prepare their `area`s.
pub(super) fn resting(bed: &Bed<'_>, area: &str, hops: u64, rest_s: u64) -> Words {
    let (hops, rest) = (bed.amount(hops), rest_s.to_string());
    bed.words("chase", ["1", area, "own", &hops, "thp", "any", &rest])
}

/// The upper bound in `area`: one round of each number of hand-interleaved chases.
fn by_hand(bed: &Bed<'_>, area: &str) -> Result<Said> {
    let hops = bed.amount(16_000_000);
    bed.alone(&bed.words("interleaved", [area, &hops, "own", "thp", "1", "16"]))
}

/// One chase through `bytes` bytes.
fn alone_in(bed: &Bed<'_>, bytes: u64) -> Result<Said> {
    let (area, hops) = (bytes.to_string(), bed.amount(8_000_000));
    bed.alone(&bed.words("interleaved", [&area, &hops, "own", "thp", "1", "1"]))
}

fn hop(bed: &Bed<'_>, area: &str, asked: &Asked) -> Result<Found> {
    let ran = bed.harvested(asked)?;
    let seconds = ran.said.seconds()?;
    let (hops_per_s, share) = ran.all_units_per_s(asked.copies as usize + 1)?;
    let document = ran.document.as_ref();
    Ok(Found::Hop {
        ns: 1e9 / hops_per_s,
        share,
        apart: document.is_some_and(|document| {
            ran_apart(document, seconds, rest_s(area, asked.copies) as f64)
        }),
    })
}

/// Measures chases with 1 to 15 copies.
pub(super) fn interleaving(bed: &Bed<'_>) -> Result<Vec<Value>> {
    let mut cases = vec![Case::Alone, Case::ByHand];
    cases.extend(COPIES.map(Case::Harvested));
    cases.extend(COPIES.map(|copies| Case::AloneInAll(copies + 1)));
    let area = bed.args.area.as_str();
    let bytes = parse_size(area).map_err(Error::msg)?;
    let found = alternate(bed.args.repeat, &cases, |case| match case {
        Case::Alone => {
            let said = bed.alone(&chase(bed, area, 20_000_000))?;
            said.get("ns_per_hop")?;
            Ok(Found::Said(said))
        }
        Case::AloneInAll(contexts) => alone_in(bed, bytes * u64::from(*contexts)).map(Found::Said),
        Case::ByHand => by_hand(bed, area).map(Found::Said),
        Case::Harvested(copies) => hop(bed, area, &asked(bed, area, *copies, 20_000_000)),
    });
    let mut found = found.into_iter();
    let alone = found.next().context("the chase alone comes first")??;
    let by_hand = found.next().context("the chases by hand come second")?;
    let load_ns = middle(&alone, |one| one.ns("ns_per_hop"))?;
    let rows: Vec<(u32, Result<Vec<Found>>)> = COPIES.into_iter().zip(found.by_ref()).collect();
    let in_all = found.map(|runs| middle(&runs.ok()?, |one| one.ns("alone_ns")).ok());
    let references = References::of(load_ns, by_hand, &rows)?;
    say("contexts  hop ns  by hand  faster  limit  of limit  >= 85 %  of hand  >= 80 %");
    let mut summary = Vec::new();
    let mut larger = Vec::new();
    for ((copies, runs), in_all_ns) in rows.into_iter().zip(in_all) {
        let contexts = copies + 1;
        let runs = match runs {
            Ok(runs) => runs,
            Err(error) => {
                say(format_args!("{contexts:>8}"));
                summary.push(json!({ "contexts": contexts, "failed": failed(&error) }));
                continue;
            }
        };
        let ns = middle(&runs, |one| one.ns(""))?;
        let in_all = in_all_ns.map(|load_ns| {
            let share = load_ns / ns / references.limit(load_ns, contexts);
            (load_ns, share)
        });
        larger.extend(in_all.map(|(load_ns, share)| (contexts, load_ns, share)));
        summary.push(references.compared(contexts, &runs, in_all)?);
    }
    // The limit for loads as slow as those of one chase through the memory of all.
    say("contexts  a load in the memory of all, ns  of the limit with that");
    for (contexts, load_ns, share) in larger {
        say(format_args!(
            "{contexts:>8}{load_ns:>33.1}{:>22.0} %",
            share * 100.0
        ));
    }
    Ok(summary)
}

/// Times with which interleaved chases are compared, in nanoseconds.
struct References {
    load_ns: f64,
    /// A switch under misses; `None` if the wait hides it.
    switch: Option<f64>,
    by_hand: Option<Vec<Found>>,
    by_hand_switch: Option<f64>,
}

impl References {
    /// Derives the times of switches from `rows`, by number of scavengers, and from chases `by_hand`.
    fn of(
        load_ns: f64,
        by_hand: Result<Vec<Found>>,
        rows: &[(u32, Result<Vec<Found>>)],
    ) -> Result<Self> {
        let mut hops = Vec::new();
        for (copies, runs) in rows {
            if let Ok(runs) = runs {
                hops.push((copies + 1, middle(runs, |one| one.ns(""))?));
            }
        }
        let switch = switch_ns(&hops);
        say(format_args!(
            "a load alone {load_ns:.1} ns; a switch under misses {}",
            switch.map_or_else(
                || "hidden by the wait".to_owned(),
                |ns| format!("{ns:.1} ns")
            ),
        ));
        if let Err(error) = &by_hand {
            say("switches by hand:");
            failed(error);
        }
        let mut references = Self {
            load_ns,
            switch,
            by_hand: by_hand.ok(),
            by_hand_switch: None,
        };
        let hand_hops = [8, 16].map(|n| references.by_hand_ns(n).map(|ns| (n, ns)));
        references.by_hand_switch = switch_ns(&hand_hops.into_iter().flatten().collect::<Vec<_>>());
        if let Some(ns) = references.by_hand_switch {
            say(format_args!("a switch by hand under misses {ns:.1} ns"));
        }
        Ok(references)
    }

    fn by_hand_ns(&self, contexts: u32) -> Option<f64> {
        let runs = self.by_hand.as_ref()?;
        middle(runs, |one| one.ns(&format!("hop_ns_{contexts}"))).ok()
    }

    fn limit(&self, load_ns: f64, contexts: u32) -> f64 {
        limit(load_ns, self.switch.unwrap_or(0.0), contexts)
    }

    /// Prints and returns the row of `contexts` chases. `in_all` is the time of a load in the memory of all
    /// of them, and the share of the limit with that.
    fn compared(&self, contexts: u32, runs: &[Found], in_all: Option<(f64, f64)>) -> Result<Value> {
        let ns = middle(runs, |one| one.ns(""))?;
        let bound = self.limit(self.load_ns, contexts);
        let faster = self.load_ns / ns;
        let share_of_limit = faster / bound;
        let hand_ns = self.by_hand_ns(contexts).filter(|ns| ns.is_finite());
        let of_hand = hand_ns.map(|hand| hand / ns);
        let (shown_ns, share, met) = of_hand.zip(hand_ns).map_or_else(
            || ("–".to_owned(), "–".to_owned(), "–"),
            |(share, ns)| {
                let met = verdict(share >= BY_HAND_TARGET);
                (format!("{ns:.2}"), format!("{:.0} %", share * 100.0), met)
            },
        );
        let apart = runs.iter().any(Found::apart);
        say(format_args!(
            "{contexts:>8}{ns:>8.2}{shown_ns:>9}{faster:>8.2}{bound:>7.2}{:>8.0} %  {:<7}{share:>9}  {met}",
            share_of_limit * 100.0,
            of_limit(share_of_limit),
        ));
        if apart {
            say("  scavengers ran on threads of their own: that work is in the rate");
        }
        let (in_all_ns, of_limit_in_all) = in_all.unzip();
        Ok(json!({
            "contexts": contexts, "hop_ns": ns, "alone_ns": self.load_ns, "switch_ns": self.switch,
            "by_hand_switch_ns": self.by_hand_switch,
            "limit": bound, "faster": faster, "of_limit": share_of_limit,
            "load_in_all_ns": in_all_ns, "of_limit_in_all": of_limit_in_all,
            "share_of_time": middle(runs, Found::share)?, "by_hand_ns": hand_ns, "of_by_hand": of_hand, "ran_apart": apart,
            "limit_target": LIMIT_TARGET, "by_hand_target": BY_HAND_TARGET,
        }))
    }
}

/// Verdict on a share of the limit. More than all of it, with 5 % for chance, is possible only if
/// the limit is wrong: its switch time comes from the same runs, one of which was perturbed.
const fn of_limit(share: f64) -> &'static str {
    if share > 1.05 {
        "wrong"
    } else {
        verdict(share >= LIMIT_TARGET)
    }
}

/// The time of a switch where every load hits: a hop of two chases, one of which yields to the
/// other.
pub(super) fn switching(bed: &Bed<'_>) -> Result<Vec<Value>> {
    let asked = asked(bed, SMALL, 1, 100_000_000);
    let cases = [Case::ByHand, Case::Harvested(1)];
    let found = alternate(bed.args.repeat, &cases, |case| match case {
        // The large area of `interleaved` is just as small here; its figures for 8 KiB are printed
        // separately.
        Case::Alone | Case::AloneInAll(_) | Case::ByHand => by_hand(bed, SMALL).map(Found::Said),
        Case::Harvested(_) => hop(bed, SMALL, &asked),
    });
    let [by_hand, harvested] = <[_; 2]>::try_from(found)
        .ok()
        .context("two cases were run")?;
    let by_hand = by_hand?;
    let hand_ns = middle(&by_hand, |one| one.ns("switch_ns_2"))?;
    let hit_ns = middle(&by_hand, |one| one.ns("alone_l1_ns"))?;
    let run = bed.recorded(&asked.profiled, &[])?;
    let overhead = ["--max-overhead", asked.max_overhead];
    let plan: HarvestPlan = read(&bed.planned(&run, HarvestRole::Primary, &overhead)?)?;
    say(format_args!(
        "a hit {hit_ns:.2} ns; a hit with a switch by hand {hand_ns:.2} ns; plans reckon with {:.2} ns",
        plan.options.switch_ns,
    ));
    let harvested = harvested?;
    let ns = middle(&harvested, |one| one.ns(""))?;
    say(format_args!(
        "a hit with a switch {ns:.2} ns, {SWITCH_TARGET_NS} ns {}",
        verdict(ns <= SWITCH_TARGET_NS),
    ));
    if harvested.iter().any(Found::apart) {
        say("  scavengers ran on threads of their own: that work is in the rate");
    }
    Ok(vec![json!({
        "switch_ns": ns, "by_hand_ns": hand_ns, "hit_ns": hit_ns,
        "planned_with_ns": plan.options.switch_ns, "target_ns": SWITCH_TARGET_NS,
    })])
}

/// Cost of the parts of a yield where every load hits: saving and restoring registers apart from
/// passing control, and the effect of dead registers, unused vectors and prefetches.
pub(super) fn parts(bed: &Bed<'_>) -> Result<Vec<Value>> {
    const HOPS: u64 = 100_000_000;
    const CASES: [Option<&[HarvestPart]>; 9] = [
        None,
        Some(&[]),
        Some(&[HarvestPart::Switch]),
        Some(&[HarvestPart::Prefetch]),
        Some(&[HarvestPart::LoopSaves]),
        Some(&[HarvestPart::NextContext]),
        Some(&[HarvestPart::Vectors]),
        Some(&[HarvestPart::Liveness]),
        Some(&[HarvestPart::Liveness, HarvestPart::Vectors]),
    ];
    let found = alternate(bed.args.repeat, &CASES, |case| {
        let Some(without) = *case else {
            return bed.alone(&chase(bed, SMALL, HOPS))?.get("ns_per_hop");
        };
        let asked = Asked {
            without,
            ..asked(bed, SMALL, 1, HOPS)
        };
        if without.contains(&HarvestPart::Switch) {
            return bed.harvested(&asked)?.said.get("ns_per_hop");
        }
        Ok(hop(bed, SMALL, &asked)?.ns(""))
    });
    let mut rows = Vec::new();
    let mut times = Vec::new();
    say("a hit with a yield          ns");
    for (case, runs) in CASES.into_iter().zip(found) {
        let name = match case {
            None => "none".to_owned(),
            Some([]) => "all parts".to_owned(),
            Some(parts) => {
                let names: Vec<&str> = parts.iter().map(|part| part.name()).collect();
                format!("without {}", names.join(", "))
            }
        };
        let ns = middle(&runs?, |ns| *ns)?;
        say(format_args!("{name:<25}{ns:>6.2}"));
        rows.push(json!({ "yields": name, "ns": ns }));
        times.push(ns);
    }
    let [none, all, unpassed, ..] = times[..] else {
        return Ok(rows);
    };
    let (saving, passing) = (unpassed - none, all - unpassed);
    say(format_args!(
        "saving and restoring {saving:.2} ns, passing control {passing:.2} ns"
    ));
    rows.push(json!({ "saving_ns": saving, "passing_ns": passing }));
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_than_the_limit_is_no_success() {
        assert_eq!(of_limit(3.0), "wrong");
        assert_eq!(of_limit(1.01), verdict(true));
        assert_eq!(of_limit(0.8), verdict(false));
    }
}
