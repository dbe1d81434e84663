//! Lanes over time: all threads, the busiest threads, traffic, live bytes. Drawn here so that they work
//! without the script, which draws them again for a selection.

use maud::{Markup, html};
use membound_types::{BandwidthDomain, MemoryMoment, MemoryUse, Outcome, Profile};

use super::cells::Cells;
use super::data::life_spans;
use crate::units;

/// Most threads with a lane of their own; the table has all.
const LANES: usize = 16;
const TICKS: u32 = 6;
/// Most objects whose live bytes have a colour of their own.
const LIVE_OBJECTS: usize = 4;

pub(super) fn markup(profile: &Profile, cells: &Cells) -> Markup {
    let life_spans = life_spans(profile, cells);
    let bin_s = cells.duration_s / f64::from(cells.bins.max(1));
    let mut alive = vec![0.0; cells.bins as usize];
    for life in &life_spans {
        for (bin, alive) in alive.iter_mut().enumerate() {
            *alive += inside(*life, bin, bin_s);
        }
    }
    let all = cells.lane(None);
    // The scale is the largest number of CPUs that were busy at once.
    let most_busy = all.iter().map(|lane| lane.0).fold(0.0, f64::max) / bin_s.max(1e-12);
    let scale = most_busy.max(1e-9);
    let busiest = busiest(profile);
    let left_out = profile.threads.len() - busiest.len();
    let memory = profile.memory.known();
    let memory = memory.filter(|memory| memory.peak_bytes > 0);
    html! {
        div.lanes id="lanes" {
            div.names {
                div.lane { span { "all threads" } small { "to " (units::compact(scale)) @if scale > 1.0 { " CPUs" } @else { " CPU" } } }
                @for &index in &busiest {
                    @let thread = &profile.threads[index];
                    div.lane {
                        button type="button" data-thread=(index) aria-pressed="false" title=(thread.name) { (thread.name) }
                        small { (thread.tid) }
                    }
                }
                @if let Some(memory) = memory {
                    div.lane { span { "live bytes" } small { "to " (units::bytes(memory.peak_bytes)) } }
                }
                @for domain in &profile.bandwidth {
                    div.lane { span { (domain.domain) } small { "to " (units::gb_s(top(domain))) ", " (domain.basis) } }
                }
            }
            div.plot tabindex="0" role="group" aria-label="timeline: arrow keys move, Shift and arrow keys select a span, Escape selects the whole run" {
                (lane(None, scale, &all, &alive, bin_s))
                @for &index in &busiest {
                    @let alive: Vec<f64> = (0..cells.bins as usize).map(|bin| inside(life_spans[index], bin, bin_s)).collect();
                    (lane(Some(index), 1.0, &cells.lane(Some(index as u32)), &alive, bin_s))
                }
                @if let Some(memory) = memory { (live(memory, cells)) }
                @for domain in &profile.bandwidth { (traffic(domain, cells)) }
                div.span id="span" hidden {}
                div.cursorline id="cursor" hidden {}
                div.ticks aria-hidden="true" {
                    @for tick in 0..=TICKS {
                        @let share = f64::from(tick) / f64::from(TICKS);
                        span style=(format!("left:{:.2}%", share * 100.0)) { (units::seconds(cells.from_s + share * cells.duration_s)) }
                    }
                }
            }
        }
        p.lanekeys {
            span { i.key.stalled {} "stalled on memory" }
            span { i.key.busy {} "computing" }
            span { i.key.idle {} "idle" }
            @if !profile.bandwidth.is_empty() {
                span { i.key.read {} "read" }
                span { i.key.written {} "written" }
            }
            @if let Some(memory) = memory {
                @for (index, row) in memory.objects.iter().take(LIVE_OBJECTS).enumerate() {
                    span { i class=(format!("key live{index}")) {} (row.name) }
                }
                @if memory.objects.len() > LIVE_OBJECTS { span { i class="key live9" {} "other live bytes" } }
            }
        }
        p.note id="selected" role="status" {}
        @if left_out > 0 { p.note { (units::plural(left_out, "thread")) " with less CPU time have no lane; the table by thread has them." } }
    }
}

/// The threads that have lanes.
fn busiest(profile: &Profile) -> Vec<usize> {
    let mut busiest: Vec<usize> = (0..profile.threads.len()).collect();
    busiest.sort_by(|&a, &b| {
        let time = |index: usize| profile.threads[index].share.time_s;
        time(b).total_cmp(&time(a))
    });
    busiest.truncate(LANES);
    // Keep the threads in their original order, so that neighbours stay neighbours.
    busiest.sort_unstable();
    busiest
}

/// Part of a bin that lies within a thread's life, in seconds.
fn inside((from, to): (f64, f64), bin: usize, bin_s: f64) -> f64 {
    let start = bin as f64 * bin_s;
    (to.min(start + bin_s) - from.max(start)).max(0.0)
}

fn lane(
    thread: Option<usize>,
    cpus: f64,
    values: &[(f64, f64)],
    alive: &[f64],
    bin_s: f64,
) -> Markup {
    let full = cpus * bin_s;
    let busy: Vec<f64> = values.iter().map(|it| it.0 / full).collect();
    let stalled: Vec<f64> = values.iter().map(|it| it.1 / full).collect();
    let alive: Vec<f64> = alive.iter().map(|it| it / full).collect();
    html! {
        svg.lane viewBox=(format!("0 0 {} 100", values.len())) preserveAspectRatio="none" aria-hidden="true"
            data-scale=(format!("{cpus:.6}")) data-thread=[thread] {
            path.idle d=(area(&alive)) {}
            path.busy d=(area(&busy)) {}
            path.stalled d=(area(&stalled)) {}
        }
    }
}

/// Path of steps from left to right, each one unit wide; the value 1 is the top.
fn area(values: &[f64]) -> String {
    let mut d = String::from("M0 100");
    let mut at = f64::NAN;
    for (index, value) in values.iter().enumerate() {
        let value = if value.is_finite() { *value } else { 0.0 };
        let top = ((1.0 - value.clamp(0.0, 1.0)) * 1000.0).round() / 10.0;
        if top != at {
            d.push_str(&format!("H{index}V{top}"));
            at = top;
        }
    }
    d.push_str(&format!("H{}V100Z", values.len()));
    d
}

/// Top of a traffic lane: the machine's maximum, or the largest traffic if that is more.
fn top(domain: &BandwidthDomain) -> f64 {
    let highest_gb_s = domain
        .timeline
        .iter()
        .map(|moment| moment.read_gb_s + moment.write_gb_s)
        .filter(|value| value.is_finite())
        .fold(0.0, f64::max);
    match &domain.machine_max_gb_s {
        Outcome::Known(most) if most.is_finite() => highest_gb_s.max(*most),
        _ => highest_gb_s,
    }
}

/// Live bytes: the largest objects stacked, and above them all others.
fn live(memory: &MemoryUse, cells: &Cells) -> Markup {
    let shown = memory.objects.iter().take(LIVE_OBJECTS);
    // Live bytes of the stack of objects so far, in each span.
    let mut below = vec![0_u64; cells.bins as usize];
    let mut layers: Vec<(String, Vec<u64>)> = Vec::new();
    for (index, row) in shown.enumerate() {
        for (sum, bytes) in below.iter_mut().zip(in_bins(&row.timeline, cells)) {
            *sum += bytes;
        }
        layers.push((format!("live{index}"), below.clone()));
    }
    let all = in_bins(&memory.timeline, cells);
    // Peaks of single objects may be at different moments of one span, and sum to more than the total.
    let top: Vec<u64> = all
        .iter()
        .zip(&below)
        .map(|(all, sum)| *all.max(sum))
        .collect();
    layers.push(("live9".to_owned(), top));
    let highest = layers.iter().flat_map(|(_, bytes)| bytes).max();
    let scale = memory.peak_bytes.max(highest.copied().unwrap_or(0)).max(1) as f64;
    html! {
        svg.lane viewBox=(format!("0 0 {} 100", cells.bins)) preserveAspectRatio="none" aria-hidden="true" {
            @for (class, bytes) in layers.iter().rev() {
                @let shares: Vec<f64> = bytes.iter().map(|bytes| *bytes as f64 / scale).collect();
                path class=(class) d=(area(&shares)) {}
            }
        }
    }
}

/// Most live bytes in each span.
fn in_bins(timeline: &[MemoryMoment], cells: &Cells) -> Vec<u64> {
    let mut most = vec![0_u64; cells.bins as usize];
    let bins = most.len();
    let bin = |t_s: f64| {
        let share = (t_s - cells.from_s) / cells.duration_s.max(1e-12);
        share.clamp(0.0, 1.0) * bins as f64
    };
    for (index, moment) in timeline.iter().enumerate() {
        let next = timeline.get(index + 1).map(|next| bin(next.t_s));
        let first = (bin(moment.t_s) as usize).min(bins.saturating_sub(1));
        let behind = next.map_or(bins, |next| (next.ceil() as usize).clamp(first + 1, bins));
        for most in &mut most[first..behind] {
            *most = moment.bytes.max(*most);
        }
    }
    most
}

fn traffic(domain: &BandwidthDomain, cells: &Cells) -> Markup {
    let across = |t_s: f64| across(t_s - cells.from_s, cells.duration_s);
    let top = top(domain);
    let path = |value: fn(&membound_types::BandwidthMoment) -> f64| {
        let mut d = String::from("M0 100");
        let mut end = 0.0;
        for (index, moment) in domain.timeline.iter().enumerate() {
            let start = across(moment.t_s);
            end = domain
                .timeline
                .get(index + 1)
                .map_or(1000.0, |next| across(next.t_s));
            let share = if top > 0.0 { value(moment) / top } else { 0.0 };
            let share = if share.is_finite() { share } else { 0.0 };
            let height = 100.0 - share.clamp(0.0, 1.0) * 100.0;
            d.push_str(&format!("H{start:.1}V{height:.1}H{end:.1}"));
        }
        d.push_str(&format!("H{end:.1}V100Z"));
        d
    };
    html! {
        svg.lane viewBox="0 0 1000 100" preserveAspectRatio="none" aria-hidden="true" {
            path.read d=(path(|moment| moment.read_gb_s + moment.write_gb_s)) {}
            path.written d=(path(|moment| moment.write_gb_s)) {}
        }
    }
}

fn across(t_s: f64, duration_s: f64) -> f64 {
    if duration_s > 0.0 && t_s.is_finite() {
        (t_s / duration_s).clamp(0.0, 1.0) * 1000.0
    } else {
        0.0
    }
}
