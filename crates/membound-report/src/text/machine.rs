//! The whole machine profile on a terminal, and the header that all parts share.

use membound_types::{Level, MachineInfo, MachineProfile, NotMeasured, Outcome};

use super::detail::Detail;
use super::out::Out;
use super::table::{Align, Table};
use super::{bandwidth, calibration, latency, mlp, tlb, topology, window};
use crate::{facts, units};

/// Most notes of one kind; the rest is only counted.
const MAX_NOTES: usize = 6;

pub(super) fn write(out: &mut Out, profile: &MachineProfile) {
    write_machine(out, &profile.machine);
    if profile.incomplete {
        write_incomplete(out);
    }
    out.blank();
    write_levels(out, &profile.levels, Some(profile));
    write_headline(out, profile);
    if let Some(part) = profile.latency.known() {
        latency::write(out, part, &profile.machine, &profile.levels, Detail::Brief);
    }
    if let Some(part) = profile.mlp.known() {
        mlp::write(out, part, &profile.machine, Detail::Brief);
    }
    if let Some(part) = profile.window.known() {
        window::write(out, part, Detail::Brief);
    }
    if let Some(part) = profile.bandwidth.known() {
        bandwidth::write(out, part, Detail::Brief);
    }
    if let Some(part) = profile.loaded.known() {
        bandwidth::write_loaded(out, part, Detail::Brief);
    }
    if let Some(part) = profile.tlb.known() {
        tlb::write(out, part, Detail::Brief);
    }
    if let Some(part) = profile.prefetch.known() {
        tlb::write_prefetch(out, part, Detail::Brief);
    }
    if let Some(part) = profile.numa.known() {
        topology::write_numa(out, part, Detail::Brief);
    }
    if let Some(part) = profile.c2c.known() {
        topology::write_c2c(out, part, Detail::Brief);
    }
    if let Some(part) = profile.calibration.known() {
        calibration::write(out, part, Detail::Brief);
    }
    write_gaps(out, profile);
    write_disturbed(out, profile);
    out.blank();
    out.note(&format!("whole run: {}", units::seconds(profile.elapsed_s)));
}

/// Two or three lines about the machine and its timer.
pub(super) fn write_machine(out: &mut Out, machine: &MachineInfo) {
    let facts = facts::identity(machine);
    let words: Vec<&str> = facts.iter().map(|(_, value)| value.as_str()).collect();
    out.line(&words.join(" · "));
    let timer = &machine.timer;
    if let Some(steps) = facts::timer_steps(timer) {
        out.note(&format!(
            "core clock {} · timer {} {}, {steps}",
            units::hertz(timer.core_clock_hz),
            timer.name,
            units::hertz(timer.rate_hz),
        ));
    }
    let labels = &machine.conditions.labels;
    if !labels.is_empty() {
        let words: Vec<String> = labels.iter().map(|(k, v)| format!("{k}={v}")).collect();
        out.note(&format!("conditions: {}", words.join(", ")));
    }
}

pub(super) fn write_incomplete(out: &mut Out) {
    out.warning("incomplete: the run was cut short or a part failed; figures shown are valid");
}

pub(super) fn write_levels(out: &mut Out, levels: &[Level], profile: Option<&MachineProfile>) {
    let latency_asked = profile.is_none_or(|profile| {
        !profile
            .latency
            .why_missing()
            .is_some_and(NotMeasured::is_not_asked)
    });
    if levels.is_empty() {
        if !latency_asked {
            return;
        }
        out.warning("no levels were found: the latency curve is missing or too short");
        return;
    }
    let bandwidth = profile.and_then(|profile| profile.bandwidth.known());
    let mut table = Table::new()
        .words("level")
        .figures("effective")
        .column("interval", Align::Right, 2)
        .column("declared", Align::Right, 1)
        .figures("ns")
        .column("interval", Align::Right, 3)
        .figures("cycles")
        .column("line", Align::Right, 4)
        .column("GB/s", Align::Right, 5);
    for level in levels {
        let size = level.size_bytes.map(units::bytes).unwrap_or_default();
        let interval = match (level.size_low_bytes, level.size_high_bytes) {
            (Some(low), Some(high)) => {
                units::bytes_interval_after_value(level.size_bytes.unwrap_or(low), low, high)
            }
            _ => String::new(),
        };
        let read = bandwidth
            .and_then(|bandwidth| facts::level_bandwidth(bandwidth, &level.name))
            .and_then(|found| found.one_gb_s.or(found.all.map(|all| all.1)))
            .map(units::number)
            .unwrap_or_default();
        table.row([
            level.name.clone(),
            size,
            interval,
            level.declared_bytes.map(units::bytes).unwrap_or_default(),
            units::number(level.latency_ns),
            units::interval(level.latency_low_ns, level.latency_high_ns),
            units::number(level.latency_cycles),
            level.line_bytes.map(|b| b.to_string()).unwrap_or_default(),
            read,
        ]);
    }
    out.table(&table);
    for level in levels {
        if let Some(note) = &level.note {
            out.note(&format!("{}: {note}", level.name));
        }
    }
}

fn write_headline(out: &mut Out, profile: &MachineProfile) {
    out.blank();
    if let Some(mlp) = profile.mlp.known() {
        let published = profile
            .machine
            .cpu
            .published_rob
            .map_or_else(String::new, |entries| format!(" (published: {entries})"));
        let figure = |text: Option<String>, outcome: &Outcome<f64>| {
            let why = outcome.why_missing().map(facts::missing_text);
            text.or(why).unwrap_or_default()
        };
        match facts::reorder_buffer(mlp) {
            Some(size) => out.line(&format!("reorder buffer: {size} entries{published}")),
            None => out.line(&format!(
                "reorder buffer: {}{published}",
                figure(None, &mlp.rob_size)
            )),
        }
        out.line(&format!(
            "parallel misses by throughput: {}",
            figure(facts::throughput(mlp), &mlp.mlp_throughput)
        ));
        out.line(&format!(
            "parallel misses by the two-load rule: {}",
            figure(facts::rule(mlp), &mlp.mlp_rule)
        ));
    }
    if let Some(model) = profile.model.known() {
        out.line(&format!("model: {}", facts::model::model_line(model)));
    }
    if let Outcome::Known(point) = facts::dram_bandwidth(profile) {
        out.line(&format!(
            "main memory: up to {} ({}, {})",
            units::gb_s(point.gb_s),
            point.kernel,
            units::plural(point.threads as usize, "thread"),
        ));
    }
}

fn write_gaps(out: &mut Out, profile: &MachineProfile) {
    let gaps = facts::gaps(profile);
    if gaps.is_empty() {
        return;
    }
    out.heading("not measured", "");
    for gap in gaps.iter().take(2 * MAX_NOTES) {
        let text = gap.text.strip_prefix("not measured: ").unwrap_or(&gap.text);
        out.note(&format!("{}: {text}", gap.part));
    }
    more(out, gaps.len(), 2 * MAX_NOTES);
}

fn write_disturbed(out: &mut Out, profile: &MachineProfile) {
    let found = facts::disturbed_points(profile);
    if found.is_empty() {
        return;
    }
    out.heading(
        "disturbances",
        &format!(
            "seen at {}, left in {} of them",
            units::plural(found.len(), "point"),
            found
                .iter()
                .filter(|point| point.disturbance.unresolved())
                .count()
        ),
    );
    let slow: Vec<_> = facts::two_modes(&found).collect();
    for point in slow.iter().take(MAX_NOTES) {
        if let Some((fast, slow)) = &point.modes {
            out.note(&format!(
                "slow phase: {} {}: {fast}, and {slow} in {} of the samples",
                point.part,
                point.point,
                point
                    .disturbance
                    .slow_share
                    .map_or_else(|| "some".to_owned(), units::percent),
            ));
        }
    }
    more(out, slow.len(), MAX_NOTES);
    let steal: f64 = found.iter().map(|point| point.disturbance.steal_ms).sum();
    if steal > 0.0 {
        out.note(&format!(
            "{} ms were stolen by the hypervisor: run on a quieter host, or with \
             --thorough, for narrower intervals",
            units::number(steal)
        ));
    }
    let switches: u32 = found
        .iter()
        .map(|p| p.disturbance.involuntary_switches)
        .sum();
    if switches > 0 {
        out.note(&format!(
            "{} preempted the measurement: stop other programs, or measure on an \
             isolated CPU",
            units::plural(switches as usize, "involuntary switch").replace("switchs", "switches")
        ));
    }
}

fn more(out: &mut Out, all: usize, shown: usize) {
    if all > shown {
        out.note(&format!("… and {} more, in the JSON", all - shown));
    }
}
