//! `compare` on a terminal: differences first, then curves, conditions and the fleet.

use std::collections::HashSet;

use membound_types::{
    ComparedCurve, ComparedFigure, ComparedProfile, Comparison, ConditionRow, CurveVerdict,
    FleetGroup, OddProfile, Overlay, OverlayPoint,
};

use super::Style;
use super::out::Out;
use super::plot::{self, Across, Look, Picture, Up};
use super::table::{Align, Table};
use crate::facts::comparison as facts;
use crate::units;

/// Most differing figures of a profile, unless all are requested.
const MAX_ROWS: usize = 20;
/// Most odd profiles of a fleet, and most outliers of each.
const MAX_OUTLYING_PROFILES: usize = 12;
const MAX_OUTLIERS: usize = 5;
/// Most later profiles that get tables of their own; the others are only counted.
const MAX_PROFILES: usize = 8;

/// Most curves of one picture: more cannot be distinguished.
const MAX_OVERLAID_CURVES: usize = 8;

/// Longest name that is used as the heading of a column.
const NAME: usize = 16;

/// How much of a comparison is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shown {
    /// Only what differs.
    Differences,
    /// Every figure and every curve.
    Everything,
}

/// Formats a comparison: the profiles, differences, curves, document 000's summary table, the fleet and its
/// outliers.
#[must_use]
pub fn comparison(comparison: &Comparison, shown: Shown, style: Style) -> String {
    let mut out = Out::new(style);
    profiles(&mut out, comparison);
    for (index, summary) in comparison.summaries.iter().enumerate() {
        let column = index + 1;
        if index >= MAX_PROFILES && shown == Shown::Differences {
            out.note(&format!(
                "… and {} more profiles, in the JSON",
                comparison.summaries.len() - MAX_PROFILES
            ));
            break;
        }
        out.blank();
        out.heading(
            &format!(
                "{} against {}",
                facts::title(comparison, column, NAME),
                facts::title(comparison, 0, NAME)
            ),
            &count(summary),
        );
        match shown {
            Shown::Differences => differing(&mut out, comparison, column),
            Shown::Everything => everything(&mut out, comparison, column),
        }
    }
    curves(&mut out, comparison, shown);
    conditions(&mut out, comparison);
    for overlay in &comparison.overlays {
        overlaid(&mut out, overlay);
    }
    for group in &comparison.fleets {
        fleet(&mut out, group, shown);
    }
    guard(&mut out, comparison);
    if !comparison.notes.is_empty() {
        out.blank();
    }
    for note in &comparison.notes {
        out.warning(note);
    }
    out.finish()
}

fn profiles(out: &mut Out, comparison: &Comparison) {
    for (index, profile) in comparison.profiles.iter().enumerate() {
        if index > MAX_PROFILES {
            break;
        }
        out.line(&format!("{}  {}", facts::letter(index), identity(profile)));
    }
}

/// Name, file, host, processor and date of a profile, without repetitions.
fn identity(profile: &ComparedProfile) -> String {
    let mut words = vec![profile.name.clone()];
    let file_name = profile.file.rsplit('/').next().unwrap_or_default();
    let ending = file_name.strip_prefix(&profile.name);
    if ending.is_some_and(|ending| ending.is_empty() || ending.starts_with('.')) {
        // The file's name already contains the profile's name.
        words = vec![profile.file.clone()];
    } else {
        words.push(profile.file.clone());
    }
    for word in [&profile.host, &profile.cpu, &profile.date] {
        if !words.contains(word) {
            words.push(word.clone());
        }
    }
    words.retain(|word| !word.is_empty());
    words.join(" · ")
}

/// Counts verdicts: `41 of 52 figures the same within noise, 7 worse, 2 better, 2 undecided`.
fn count(summary: &membound_types::ComparisonSummary) -> String {
    let mut words = vec![format!(
        "{} of {} the same within noise",
        summary.same,
        units::plural(summary.compared, "figure")
    )];
    for (number, what) in [
        (summary.worse, "worse"),
        (summary.better, "better"),
        (summary.neither, "neither worse nor better"),
        (summary.unknown, "undecided"),
        (summary.missing, "in one of the two only"),
    ] {
        if number > 0 {
            words.push(format!("{number} {what}"));
        }
    }
    words.join(", ")
}

fn figure_table(comparison: &Comparison, column: usize) -> Table {
    Table::new()
        .column("part", Align::Left, 2)
        .words("figure")
        .figures(&facts::title(comparison, 0, NAME))
        .figures(&facts::title(comparison, column, NAME))
        .figures("change")
        .column("interval", Align::Right, 1)
        .words("")
}

fn row(table: &mut Table, figure: &ComparedFigure, column: usize) {
    let difference = facts::at(&figure.differences, column);
    let interval = difference.and_then(|it| it.relative_low.zip(it.relative_high));
    table.row([
        figure.part.clone(),
        figure.title.clone(),
        facts::value_at(figure, 0),
        facts::value_at(figure, column),
        difference.map_or_else(String::new, |it| facts::difference(&it, &figure.unit)),
        interval.map_or_else(String::new, |(low, high)| {
            format!("[{}, {}]", facts::change(low), facts::change(high))
        }),
        difference.map_or_else(String::new, |it| facts::verdict(figure, &it).to_owned()),
    ]);
}

fn differing(out: &mut Out, comparison: &Comparison, column: usize) {
    let found = facts::differing(comparison, column);
    let mut table = figure_table(comparison, column);
    for figure in found.iter().take(MAX_ROWS) {
        row(&mut table, figure, column);
    }
    if !table.is_empty() {
        out.table(&table);
        intervals(out, found.iter().take(MAX_ROWS).copied(), column);
    }
    if found.len() > MAX_ROWS {
        out.note(&format!("… and {} more (--all)", found.len() - MAX_ROWS));
    }
}

fn everything(out: &mut Out, comparison: &Comparison, column: usize) {
    let mut table = figure_table(comparison, column);
    for figure in &comparison.figures {
        if facts::in_either(figure, column) {
            row(&mut table, figure, column);
        }
    }
    if !table.is_empty() {
        out.table(&table);
        intervals(out, comparison.figures.iter(), column);
    }
}

/// Lists the wide intervals of figures in the first profile and in `column`.
fn intervals<'a>(out: &mut Out, figures: impl Iterator<Item = &'a ComparedFigure>, column: usize) {
    let of = |figure: &ComparedFigure| {
        let both = [0, column].map(|column| facts::wide_interval(figure, column));
        both.iter().any(Option::is_some).then(|| {
            let [first, later] = both.map(|it| it.unwrap_or_else(|| "–".to_owned()));
            format!("{} {first} and {later}", figure.title)
        })
    };
    let found: Vec<String> = figures.filter_map(of).collect();
    if !found.is_empty() {
        out.note(&format!("95 % intervals: {}", found.join("; ")));
    }
}

fn curves(out: &mut Out, comparison: &Comparison, shown: Shown) {
    if comparison.curves.is_empty() {
        return;
    }
    let same = comparison
        .curves
        .iter()
        .filter(|curve| curve.verdict == Some(CurveVerdict::Same))
        .count();
    out.blank();
    out.heading(
        "curves",
        &format!(
            "{same} of {} the same within noise; later = slope · first + shift",
            comparison.curves.len()
        ),
    );
    let several = comparison.summaries.len() > 1;
    let mut table = Table::new()
        .words("curve")
        .column("profile", Align::Left, if several { 0 } else { 9 })
        .words("verdict")
        .words("by")
        .column("differs at", Align::Left, 1);
    let mut left = 0_usize;
    let shows = |curve: &&ComparedCurve| {
        shown == Shown::Everything || curve.verdict.is_some_and(|it| it != CurveVerdict::Same)
    };
    for curve in comparison.curves.iter().filter(shows) {
        if shown == Shown::Differences && left >= MAX_ROWS {
            left += 1;
            continue;
        }
        left += 1;
        let (shift, slope) = facts::parameters(curve);
        let by: Vec<String> = [slope, shift]
            .into_iter()
            .flatten()
            .map(|it| it.value)
            .collect();
        let (by, places) = (by.join(" "), facts::places(curve));
        let other = by.is_empty();
        table.row([
            format!("{}: {}", curve.part, curve.title),
            if several {
                column_letter(comparison, &curve.profile)
            } else {
                String::new()
            },
            curve
                .verdict
                .map_or("too few places", facts::curve_verdict)
                .to_owned(),
            if by.is_empty() { places.clone() } else { by },
            if other { String::new() } else { places },
        ]);
    }
    if !table.is_empty() {
        out.table(&table);
    }
    if shown == Shown::Differences && left > MAX_ROWS {
        out.note(&format!("… and {} more (--all)", left - MAX_ROWS));
    }
}

fn column_letter(comparison: &Comparison, name: &str) -> String {
    comparison
        .profiles
        .iter()
        .position(|profile| profile.name == name)
        .map_or_else(|| name.to_owned(), facts::letter)
}

fn conditions(out: &mut Out, comparison: &Comparison) {
    if comparison.conditions.is_empty() {
        return;
    }
    out.blank();
    out.heading(
        "parallel loads by condition",
        "cycles; MLP + 1 loads at once take as long as two in sequence",
    );
    // The letter alone names the profile where conditions would be cut to the same text.
    let named: [fn(&ConditionRow) -> &str; 2] = [|row| &row.condition, facts::condition_within];
    let laid_out = named.map(|name| {
        let lines = condition_table(comparison, name).lines(out.width());
        (name, lines)
    });
    let distinct = |lines: &[String]| {
        let mut cut = lines.iter().filter_map(|line| line.split_once('…'));
        let mut seen = HashSet::new();
        cut.all(|(kept, _)| seen.insert(kept))
    };
    let [whole, short] = laid_out;
    let (name, lines) = if distinct(&whole.1) { whole } else { short };
    out.laid_out(lines);
    let mut intervals = Vec::new();
    for (index, row) in comparison.conditions.iter().enumerate() {
        let text = facts::condition(row, index == 0);
        if !text.interval.is_empty() {
            let letter = column_letter(comparison, &row.profile);
            intervals.push(format!("{letter} {} {}", name(row), text.interval));
        }
    }
    if !intervals.is_empty() {
        out.note(&format!(
            "95 % intervals of the MLP: {}",
            intervals.join("; ")
        ));
    }
    let noise = facts::placement_noise(comparison, |row| {
        let letter = column_letter(comparison, &row.profile);
        format!("{letter} {}", name(row))
    });
    if let Some(noise) = noise {
        out.note(&noise);
    }
}

/// The table of conditions, which `name` names.
fn condition_table(comparison: &Comparison, name: fn(&ConditionRow) -> &str) -> Table {
    let mut table = Table::new()
        .words("")
        .words("condition")
        .figures("MLP")
        .figures("one load")
        .column("pair", Align::Right, 2)
        .column("N", Align::Right, 1)
        .figures("MLP + 1 loads")
        .figures("overhead");
    for (index, row) in comparison.conditions.iter().enumerate() {
        let text = facts::condition(row, index == 0);
        table.row([
            column_letter(comparison, &row.profile),
            name(row).to_owned(),
            text.mlp,
            text.one,
            text.pair,
            text.loads,
            text.time,
            text.overhead,
        ]);
    }
    table
}

/// Draws a curve under all conditions in one picture.
fn overlaid(out: &mut Out, overlay: &Overlay) {
    if !plot::has_enough_points(overlay.curves.iter().map(|curve| curve.points.len())) {
        return;
    }
    let sizes = overlay.x_unit == "bytes";
    let mut drawn = Vec::new();
    for (ink, curve) in overlay.curves.iter().take(MAX_OVERLAID_CURVES).enumerate() {
        let values = |of: fn(&OverlayPoint) -> Option<f64>| -> Vec<(f64, f64)> {
            let points = curve.points.iter();
            points
                .filter_map(|point| Some((point.x, of(point)?)))
                .collect()
        };
        drawn.push(plot::Curve {
            name: curve.label.clone(),
            points: values(|point| Some(point.y)),
            look: Look::Line,
            ink,
        });
        // For placements, the scatter is the content of the picture.
        if overlay.name == "placements" {
            for end in [values(|point| point.low), values(|point| point.high)] {
                drawn.push(plot::Curve {
                    name: String::new(),
                    points: end,
                    look: Look::Dots,
                    ink,
                });
            }
        }
    }
    out.blank();
    out.heading(&overlay.title, &facts::overlay_remark(overlay));
    plot::write(
        out,
        &Picture {
            unit: &overlay.y_unit,
            remark: "",
            across: if sizes {
                Across::Sizes
            } else {
                Across::Numbers
            },
            up: if sizes { Up::Logarithmic } else { Up::FromZero },
            curves: &drawn,
            rules: &[],
            ends: &[],
        },
    );
    if overlay.curves.len() > MAX_OVERLAID_CURVES {
        out.note(&format!(
            "… and {} more, on the page (--html)",
            units::plural(overlay.curves.len() - MAX_OVERLAID_CURVES, "condition")
        ));
    }
}

fn fleet(out: &mut Out, group: &FleetGroup, shown: Shown) {
    out.blank();
    let limit = group.limit_sigmas.map_or_else(
        || "too few to name outliers".to_owned(),
        |limit| {
            format!(
                "standing out: {}, beyond {} robust σ and {}",
                group.odd.len(),
                units::compact(limit),
                units::percent(group.limit_relative)
            )
        },
    );
    out.heading(
        &group.cpu,
        &format!("{}; {limit}", units::plural(group.profiles, "profile")),
    );
    let mut table = Table::new()
        .words("figure")
        .figures("median")
        .figures("robust σ")
        .column("5 % to 95 %", Align::Right, 1)
        .column("profiles", Align::Right, 2);
    let all_have = group
        .figures
        .iter()
        .all(|figure| figure.count == group.profiles);
    for figure in &group.figures {
        if shown == Shown::Differences && !facts::is_headline(&figure.name) {
            continue;
        }
        table.row([
            figure.title.clone(),
            facts::value(figure.median, &figure.unit),
            facts::scatter(figure),
            facts::middle(figure),
            if all_have {
                String::new()
            } else {
                units::count(figure.count as u64)
            },
        ]);
    }
    if !table.is_empty() {
        out.table(&table);
    }
    let most = if shown == Shown::Everything {
        usize::MAX
    } else {
        MAX_OUTLYING_PROFILES
    };
    for profile in group.odd.iter().take(most) {
        odd(out, profile, shown);
    }
    if group.odd.len() > most {
        out.blank();
        out.note(&format!(
            "… and {} more profiles that stand out (--all)",
            group.odd.len() - most
        ));
    }
}

fn odd(out: &mut Out, profile: &OddProfile, shown: Shown) {
    out.blank();
    let count = facts::outlier_count(profile);
    let remark = if count.is_empty() {
        profile.file.clone()
    } else {
        format!("{}: {count}", profile.file)
    };
    out.heading(&profile.host, &remark);
    for hint in &profile.hints {
        out.warning(hint);
    }
    if !profile.conditions.is_empty() {
        let words: Vec<String> = profile
            .conditions
            .iter()
            .map(|it| format!("{} {} (usual: {})", it.name, it.value, it.usual))
            .collect();
        out.note(&format!("conditions: {}", words.join(", ")));
    }
    if !profile.missing.is_empty() {
        out.note(&format!("not measured: {}", profile.missing.join(", ")));
    }
    let most = if shown == Shown::Everything {
        usize::MAX
    } else {
        MAX_OUTLIERS
    };
    let mut table = Table::new()
        .words("  figure")
        .figures("here")
        .figures("median")
        .figures("change")
        .column("robust σ", Align::Right, 1)
        .words("");
    for outlier in profile.outliers.iter().take(most) {
        table.row([
            format!("  {}", outlier.title),
            facts::value(outlier.value, &outlier.unit),
            facts::value(outlier.median, &outlier.unit),
            facts::change(outlier.relative),
            units::number(outlier.sigmas.abs()),
            facts::outlier_verdict(outlier).to_owned(),
        ]);
    }
    if !table.is_empty() {
        out.table(&table);
    }
    if profile.outliers.len() > most {
        out.note(&format!(
            "… and {} more (--all)",
            profile.outliers.len() - most
        ));
    }
}

fn guard(out: &mut Out, comparison: &Comparison) {
    let Some(guard) = &comparison.guard else {
        return;
    };
    out.blank();
    if guard.exceeded {
        out.warning(&format!(
            "{} worse by more than {} % and by more than noise",
            units::plural(guard.worst.len(), "figure"),
            units::compact(guard.limit_percent)
        ));
    } else {
        out.line(&format!(
            "no figure is worse by more than {} % and by more than noise",
            units::compact(guard.limit_percent)
        ));
    }
}
