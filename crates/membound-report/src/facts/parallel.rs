//! Texts about memory-level parallelism, sequential loads, page walks and the reach of the TLB.

use membound_types::{
    AreaPoint, Basis, Figure, Filler, Mlp, MlpCell, MlpMode, Outcome, PageWalks, PlacementOutlier,
    PlacementPoint, Tlb, TlbReach, WindowLimit,
};

use super::missing_text;
use crate::units;

/// Formats a value with its interval: `168 [150, 186]`.
pub(crate) fn with_interval(figure: &Figure) -> String {
    format!(
        "{} {}",
        units::number(figure.value),
        units::interval(figure.low, figure.high)
    )
}

/// Result of the rule with its interval if it has one: `20.7 [16.9, 24.8]`.
pub(crate) fn rule(mlp: &Mlp) -> Option<String> {
    interval_or_value(&mlp.mlp_rule_interval, &mlp.mlp_rule)
}

/// Time of two loads in sequence, with its interval if it has one.
pub(crate) fn pair(mlp: &Mlp) -> Option<String> {
    interval_or_value(&mlp.sequential_pair_interval, &mlp.sequential_pair_cycles)
}

/// Throughput, with its interval if it has one.
pub(crate) fn throughput(mlp: &Mlp) -> Option<String> {
    interval_or_value(&mlp.mlp_throughput_interval, &mlp.mlp_throughput)
}

fn interval_or_value(interval: &Outcome<Figure>, value: &Outcome<f64>) -> Option<String> {
    let with_interval = interval.known().map(with_interval);
    with_interval.or_else(|| value.known().map(|value| units::number(*value)))
}

/// Entries of the reorder buffer with their interval: `447 [445, 449]`.
pub(crate) fn reorder_buffer(mlp: &Mlp) -> Option<String> {
    let entries = units::compact(*mlp.rob_size.known()?);
    Some(match reorder_buffer_interval(mlp) {
        Some(interval) => format!("{entries} {interval}"),
        None => entries,
    })
}

/// Interval of the window measurement that gave the reorder buffer's entries.
pub(crate) fn reorder_buffer_interval(mlp: &Mlp) -> Option<String> {
    let entries = mlp.rob_size.known()?;
    let found = mlp
        .windows
        .iter()
        .find(|window| (window.entries.value - entries).abs() < 0.5)?;
    Some(units::interval(found.entries.low, found.entries.high))
}

/// What to think of a measured reorder buffer that is not the published one; `None` if it is.
pub(crate) fn reorder_buffer_doubt(mlp: &Mlp, published: u32) -> Option<String> {
    /// Share of the published size up to which the measured one is the same.
    const MAX_DIFFERENCE: f64 = 0.03;
    let measured = *mlp.rob_size.known()?;
    let differs = measured / f64::from(published) - 1.0;
    if !differs.is_finite() || differs.abs() <= MAX_DIFFERENCE {
        return None;
    }
    Some(if differs < 0.0 {
        format!(
            "{} less than published: a busy hardware thread on the same core, of another guest too, \
             takes its part of every window; what is shown is a lower bound",
            units::percent(-differs)
        )
    } else {
        format!(
            "{} more than published: fillers share entries, or a disturbed search ended too late",
            units::percent(differs)
        )
    })
}

/// Cells of the N × K plane with one filler: parallel loads with the run's own pages and node.
pub(crate) fn plane_cells(mlp: &Mlp, filler: Filler) -> impl Iterator<Item = &MlpCell> {
    mlp.cells.iter().filter(move |cell| {
        cell.mode == MlpMode::Parallel
            && cell.filler == filler
            && cell.page == mlp.page
            && cell.node == mlp.node
    })
}

/// Explains the columns of placement noise.
pub(crate) const PLACEMENTS: &str = "cycles; between: standard deviation between placements, \
    within: half of what the middle half of one placement's batches scatters over";

/// Describes a placement that was excluded from the figures, and the probable cause.
pub(crate) fn placement_outlier(outlier: &PlacementOutlier) -> String {
    let repeated = outlier
        .repeated_ratio
        .known()
        .map_or_else(String::new, |ratio| {
            format!(" (repeated: {} times)", units::compact(*ratio))
        });
    format!(
        "placement {} left out, {} times the others' cycles{repeated}: {}; {} ms stolen, {} \
         involuntary switches",
        outlier.placement,
        units::compact(outlier.ratio),
        outlier.reason,
        units::compact(outlier.steal_ms),
        outlier.involuntary_switches
    )
}

/// Title of a placement point: `4 at once`, `2 in sequence`.
pub(crate) fn placement_title(point: &PlacementPoint) -> String {
    let how = match point.mode {
        MlpMode::Parallel => "at once",
        MlpMode::Sequential => "in sequence",
    };
    format!("{} {how}", point.loads)
}

/// Answer in the form of document 000: `between 19 and 21: 20 loads at once take 1266 cycles, 22 take 1305,
/// two in sequence 1299`. `None` if the rule gave no answer.
pub(crate) fn rule_between(mlp: &Mlp) -> Option<String> {
    let between = mlp.mlp_rule_between?;
    let reached = between.reached;
    let most = reached.loads.saturating_sub(1);
    let pair = mlp
        .sequential_pair_cycles
        .known()
        .map_or_else(String::new, |pair| {
            format!(", two in sequence {}", units::number(*pair))
        });
    let times = match between.below {
        Some(below) => format!(
            "{} loads at once take {} cycles, {} take {}",
            below.loads,
            units::number(below.cycles),
            reached.loads,
            units::number(reached.cycles)
        ),
        None => format!(
            "{} loads at once, the fewest measured, take {} cycles",
            reached.loads,
            units::number(reached.cycles)
        ),
    };
    let answer = match between.below {
        Some(below) => format!("between {} and {most}", below.loads.saturating_sub(1)),
        None => format!("at most {most}"),
    };
    Some(format!("{answer}: {times}{pair}"))
}

/// The run and all others, in order.
pub(crate) fn runs(mlp: &Mlp) -> impl Iterator<Item = &Mlp> {
    std::iter::once(mlp).chain(&mlp.others)
}

/// Runs whose page walks could be determined, with the result.
pub(crate) fn walks(mlp: &Mlp) -> Vec<(&Mlp, &PageWalks)> {
    runs(mlp)
        .filter_map(|run| Some((run, run.page_walks.known()?)))
        .collect()
}

/// Formats a pattern of fillers: `nop`, `branch, x87 in turns`.
fn pattern(kinds: &[Filler]) -> String {
    let names: Vec<&str> = kinds.iter().map(|kind| kind.name()).collect();
    if names.len() > 1 {
        format!("{} in turns", names.join(", "))
    } else {
        names.concat()
    }
}

/// Filler of a window, with the kinds of a mix: `integer`, `branch, x87 in turns`.
pub(crate) fn window_filler(window: &WindowLimit) -> String {
    if window.pattern.is_empty() {
        window.filler.to_string()
    } else {
        pattern(&window.pattern)
    }
}

/// Window of the filler of the N × K plane.
pub(crate) fn plane_window(mlp: &Mlp) -> Option<&WindowLimit> {
    mlp.windows.iter().find(|it| it.filler == mlp.filler)
}

/// Filler of the N × K plane, with the kinds of a mix.
pub(crate) fn plane_filler(mlp: &Mlp) -> String {
    plane_window(mlp).map_or_else(|| mlp.filler.to_string(), window_filler)
}

/// Evidence for the size of the reorder buffer: `9 fillers without a kind in common end at 318 to 321
/// instructions in the window: branch; x87; …`.
pub(crate) fn reorder_evidence(mlp: &Mlp) -> Option<String> {
    let evidence = match &mlp.reorder_evidence {
        Outcome::Known(evidence) => evidence,
        // Documents written before the search tried mixes give no useful reason.
        Outcome::Missing { not_measured } => {
            return mlp.windows.iter().any(|it| it.filler == Filler::Branch).then(|| {
                format!(
                    "{}: the reorder buffer is what nops show, and may be less where they are fused",
                    not_measured.reason
                )
            });
        }
    };
    let instructions = || evidence.agreeing.iter().map(|cliff| cliff.instructions);
    let names: Vec<String> = evidence
        .agreeing
        .iter()
        .map(|cliff| {
            cliff
                .pattern
                .iter()
                .map(|kind| kind.name())
                .collect::<Vec<_>>()
                .join("+")
        })
        .collect();
    Some(format!(
        "{} fillers without a kind in common end at {} to {} instructions in the window: {}",
        names.len(),
        instructions().min()?,
        instructions().max()?,
        names.join(", ")
    ))
}

/// Accesses of a point by serving level, with intervals if estimated: `L1 5.5 [5.4, 5.6], L2 5.5 [5.4,
/// 5.6]`. Levels that served hardly any are left out; empty if nothing is known.
pub(crate) fn hits(point: &AreaPoint) -> String {
    const HARDLY: f64 = 0.005;
    let least = HARDLY * f64::from(point.loads);
    let Some(hits) = point.hits.known() else {
        return String::new();
    };
    let parts: Vec<String> = hits
        .iter()
        .filter(|level| level.hits.value > least)
        .map(|level| match level.hits.basis {
            Basis::Measured => format!("{} {}", level.level, units::number(level.hits.value)),
            _ => format!("{} {}", level.level, with_interval(&level.hits)),
        })
        .collect();
    parts.join(", ")
}

/// Level that serves at least 99 % of the accesses of each of `points`.
pub(crate) fn only_level<'a>(points: &[&'a AreaPoint]) -> Option<&'a str> {
    const ALL: f64 = 0.99;
    let only = |point: &&'a AreaPoint| {
        point
            .hits
            .known()?
            .iter()
            .find(|level| level.hits.value >= ALL * f64::from(point.loads))
            .map(|level| level.level.as_str())
    };
    let first = points.first().and_then(only)?;
    points
        .iter()
        .all(|point| only(point) == Some(first))
        .then_some(first)
}

/// Source of the hits of a sweep, or why there are none.
pub(crate) fn hits_source(points: &[AreaPoint]) -> Option<String> {
    let basis = |basis| {
        points
            .iter()
            .filter_map(|point| point.hits.known())
            .flatten()
            .any(|it| it.hits.basis == basis)
    };
    if basis(Basis::Measured) {
        return Some("by the counters of the machine".to_owned());
    }
    if basis(Basis::Estimated) {
        return Some(
            "from the times of single accesses: N of them are served as one is, N times".to_owned(),
        );
    }
    points
        .iter()
        .find_map(|point| point.hits.why_missing())
        .map(missing_text)
}

/// Page walks at once, or the known lower bound: `1.0 [1.0, 1.3]`, `at least 4.4`.
pub(crate) fn walks_at_once(walks: &PageWalks) -> String {
    match &walks.walks {
        Outcome::Known(figure) => with_interval(figure),
        Outcome::Missing { .. } => format!("at least {}", units::number(walks.walks_at_least)),
    }
}

/// Explains the number of walks at once in a sentence.
pub(crate) fn walks_reading(walks: &PageWalks) -> String {
    let range = format!("N = {}…{}", walks.from_loads, walks.to_loads);
    match &walks.walks {
        Outcome::Known(_) => format!(
            "The excess over {} pages grows over {range}: walks queue, and the cost of one walk \
             divided by what each further load takes is how many are under way at once.",
            walks.against
        ),
        Outcome::Missing { .. } => format!(
            "The excess over {} pages does not grow over {range}: walks hide behind the loads, \
             so that only the least number at once is known.",
            walks.against
        ),
    }
}

/// Reach of one page kind beside a cache: `25 MiB`, or `≥ 1 GiB` if its end was not reached.
pub(crate) fn reach_text(reach: &TlbReach) -> String {
    let bytes = units::bytes(reach.reach_bytes);
    match reach.tlb_level {
        Some(_) => bytes,
        None => format!("≥ {bytes}"),
    }
}

/// Rows of the table of reaches: one per cache, each with the reach of every page kind.
pub(crate) fn reach_rows(tlb: &Tlb) -> Vec<(&TlbReach, Vec<&TlbReach>)> {
    let mut rows: Vec<(&TlbReach, Vec<&TlbReach>)> = Vec::new();
    for reach in &tlb.reach {
        match rows
            .iter_mut()
            .find(|(first, _)| first.level == reach.level && first.size_bytes == reach.size_bytes)
        {
            Some((_, row)) => row.push(reach),
            None => rows.push((reach, vec![reach])),
        }
    }
    rows
}

/// Size of a cache, marked if it is only declared.
pub(crate) fn cache_size(reach: &TlbReach) -> String {
    let size = units::bytes(reach.size_bytes);
    match reach.size_basis {
        Basis::Declared => format!("{size} declared"),
        _ => size,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use membound_types::{RuleBracket, RuleTime};

    fn part(between: Option<RuleBracket>) -> Mlp {
        Mlp {
            mlp_rule: Outcome::Known(4.36),
            mlp_rule_between: between,
            sequential_pair_cycles: Outcome::Known(520.0),
            elapsed_s: 1.0,
            ..Mlp::default()
        }
    }

    #[test]
    fn a_buffer_that_is_not_the_published_one_is_doubted() {
        let measured = |entries| Mlp {
            rob_size: Outcome::Known(entries),
            ..Mlp::default()
        };
        assert_eq!(reorder_buffer_doubt(&measured(505.0), 512), None);
        let less = reorder_buffer_doubt(&measured(256.0), 512).unwrap();
        assert!(less.starts_with("50 % less than published"), "{less}");
        let more = reorder_buffer_doubt(&measured(1269.0), 320).unwrap();
        assert!(more.contains("more than published"), "{more}");
        assert_eq!(reorder_buffer_doubt(&Mlp::default(), 512), None);
    }

    #[test]
    fn the_rule_in_the_documents_form() {
        let time = |loads, cycles| RuleTime { loads, cycles };
        let bracket = RuleBracket {
            below: Some(time(5, 495.0)),
            reached: time(6, 565.0),
        };
        let mlp = part(Some(bracket));
        assert_eq!(
            rule_between(&mlp).as_deref(),
            Some(
                "between 4 and 5: 5 loads at once take 495 cycles, 6 take 565, two in sequence 520"
            )
        );
        assert_eq!(rule(&mlp).as_deref(), Some("4.36"));
        let lone = part(Some(RuleBracket {
            below: None,
            reached: time(2, 530.0),
        }));
        let text = rule_between(&lone).unwrap();
        assert!(
            text.starts_with("at most 1: 2 loads at once, the fewest"),
            "{text}"
        );
        assert_eq!(rule_between(&part(None)), None);
    }
}
