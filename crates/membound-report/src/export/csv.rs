//! CSV of the groupings of a profile.
//!
//! Names come from binaries, and the file may be opened in a spreadsheet: a text that it would interpret as
//! a formula is prefixed with an apostrophe.

use membound_types::{
    BandwidthDomain, CallFrame, CodeRow, Detail, FunctionObjectRow, LevelShares, NumaRow,
    ObjectRow, Outcome, Profile, Share, ThreadRow,
};

use super::Weight;
use crate::csv::{number, strings};
use crate::facts::calls::{Calls, Direction};
use crate::facts::run;
use crate::facts::sorted::sorted;
use crate::{By, Grouping};

const SHARE: &str = "samples,time_s,time_fraction,stall_fraction,stall_low,stall_high,\
                     stall_l1,stall_l2,stall_l3,stall_dram,stall_remote,stall_unknown,\
                     loads,stores,avg_latency_ns,avg_latency_cycles,flagged,confidence,\
                     loads_low,loads_high,stores_low,stores_high,llc_misses,llc_misses_low,\
                     llc_misses_high";

/// Formats one grouping: a header, then one line per row. Fractions refer to all CPU time; a field is empty
/// if the value is unknown.
#[must_use]
pub fn csv(profile: &Profile, detail: &Detail, grouping: impl Into<Grouping>) -> String {
    let Grouping { by, sort, weight } = grouping.into();
    match by {
        By::Summary => summary(profile),
        By::Function => code(&sorted(&profile.functions, sort)),
        By::Line => code(&sorted(&profile.lines, sort)),
        By::Instruction => code(&sorted(&profile.instructions, sort)),
        By::Object => objects(&sorted(&profile.objects, sort)),
        By::FunctionObject | By::ObjectFunction => pairs(&sorted(&profile.function_objects, sort)),
        By::Callers => calls(detail, Direction::Outwards, weight),
        By::Tree => calls(detail, Direction::Inwards, weight),
        By::Memory => memory(profile),
        By::Thread => threads(&sorted(&profile.threads, sort)),
        By::Level => levels(profile),
        By::Node => nodes(profile),
        By::BandwidthDomain => bandwidth(&profile.bandwidth),
    }
}

fn summary(profile: &Profile) -> String {
    let mut out = String::from("name,value,low,high\n");
    let bound = &profile.memory_bound;
    let mut line = |name: &str, value: f64, low: Option<f64>, high: Option<f64>| {
        strings(
            &mut out,
            &[
                name.to_owned(),
                number(value),
                optional(low),
                optional(high),
            ],
        );
    };
    line("elapsed_s", profile.elapsed_s, None, None);
    line("cpu_s", profile.time.cpu_s, None, None);
    line("memory_stall_s", profile.time.memory_stall_s, None, None);
    line("other_s", profile.time.other_s, None, None);
    line("idle_s", profile.time.idle_s, None, None);
    line(
        "memory_bound",
        bound.fraction,
        Some(bound.low),
        Some(bound.high),
    );
    for (name, value) in run::level_parts(bound) {
        line(&format!("memory_bound {name}"), value, None, None);
    }
    if let Some(latency) = profile.latency.known() {
        line("avg_latency_ns", latency.ns, None, None);
        line("avg_latency_cycles", latency.cycles, None, None);
    }
    line("samples", profile.run.samples as f64, None, None);
    line(
        "effective_samples",
        profile.run.effective_samples,
        None,
        None,
    );
    line(
        "timed_accesses",
        profile.run.timed_accesses as f64,
        None,
        None,
    );
    out
}

fn code(rows: &[&CodeRow]) -> String {
    let mut out = format!("name,function,module,file,line,address,{SHARE}\n");
    for row in rows {
        let mut fields = vec![
            text(&row.name),
            text(&row.function),
            text(&row.module),
            text(row.file.as_deref().unwrap_or("")),
            row.line.map(|line| line.to_string()).unwrap_or_default(),
            row.address
                .map(|address| format!("{address:#x}"))
                .unwrap_or_default(),
        ];
        fields.extend(share(&row.share));
        strings(&mut out, &fields);
    }
    out
}

fn threads(rows: &[&ThreadRow]) -> String {
    let mut out = format!("name,pid,tid,lifetime_s,idle_s,{SHARE}\n");
    for row in rows {
        let mut fields = vec![
            text(&row.name),
            row.pid.to_string(),
            row.tid.to_string(),
            number(row.lifetime_s),
            number(row.idle_s),
        ];
        fields.extend(share(&row.share));
        strings(&mut out, &fields);
    }
    out
}

fn objects(rows: &[&ObjectRow]) -> String {
    let mut out = format!(
        "name,kind,size_bytes,blocks,total_bytes,lifetime_s,false_sharing,node_local_fraction,\
         alloc_stack,{SHARE}\n"
    );
    for row in rows {
        let stack: Vec<String> = row.alloc_stack.iter().map(frame).collect();
        let mut fields = vec![
            text(&row.name),
            row.kind.to_string(),
            row.size_bytes.to_string(),
            row.blocks.to_string(),
            row.total_bytes.to_string(),
            optional(row.lifetime_s),
            row.false_sharing.to_string(),
            optional(row.node_local_fraction),
            text(&stack.join(" < ")),
        ];
        fields.extend(share(&row.share));
        strings(&mut out, &fields);
    }
    out
}

fn pairs(rows: &[&FunctionObjectRow]) -> String {
    let mut out = format!("function,module,object,{SHARE}\n");
    for row in rows {
        let mut fields = vec![text(&row.function), text(&row.module), text(&row.object)];
        fields.extend(share(&row.share));
        strings(&mut out, &fields);
    }
    out
}

/// One line per node of a call tree, each before its children.
fn calls(detail: &Detail, direction: Direction, weight: Weight) -> String {
    let mut out = String::from("depth,function,module,time_s,stall_s\n");
    for node in Calls::new(detail, direction, weight, 0.0).nodes {
        strings(
            &mut out,
            &[
                node.depth.to_string(),
                text(&node.function),
                text(&node.module),
                number(node.time_s),
                number(node.stall_s),
            ],
        );
    }
    out
}

/// One line per change of live bytes: first for all objects together, with an empty name.
fn memory(profile: &Profile) -> String {
    let mut out = String::from("object,kind,t_s,bytes\n");
    let Some(memory) = profile.memory.known() else {
        return out;
    };
    let all = (String::new(), String::new(), &memory.timeline);
    let objects = memory.objects.iter();
    let objects = objects.map(|row| (text(&row.name), row.kind.to_string(), &row.timeline));
    for (name, kind, timeline) in std::iter::once(all).chain(objects) {
        for moment in timeline {
            let fields = [
                name.clone(),
                kind.clone(),
                number(moment.t_s),
                moment.bytes.to_string(),
            ];
            strings(&mut out, &fields);
        }
    }
    out
}

fn frame(frame: &CallFrame) -> String {
    match run::place(frame.file.as_deref(), frame.line) {
        Some(place) => format!("{} {place}", frame.function),
        None => frame.function.clone(),
    }
}

/// Levels by stalled time, then levels of accesses that the processor sampled.
fn levels(profile: &Profile) -> String {
    let mut out = String::from(
        "name,stall_fraction,stall_low,stall_high,accesses_fraction,latency_ns,sampler,\
         sampled_accesses,latency_cycles\n",
    );
    for row in &profile.levels {
        strings(
            &mut out,
            &[
                text(&row.name),
                number(row.stall_fraction),
                number(row.stall_low),
                number(row.stall_high),
                optional(row.accesses_fraction),
                optional(row.latency_ns),
                String::new(),
                String::new(),
                String::new(),
            ],
        );
    }
    if let Some(view) = &profile.hardware {
        for row in &view.levels {
            let mut fields = vec![text(&row.name)];
            fields.resize(4, String::new());
            fields.extend([
                number(row.fraction),
                String::new(),
                text(&view.samplers.join(" ")),
                row.accesses.to_string(),
                optional(row.latency_cycles),
            ]);
            strings(&mut out, &fields);
        }
    }
    out
}

/// Rows of nodes, or one line with the reason if placement is unknown.
fn nodes(profile: &Profile) -> String {
    let mut out = String::from(
        "group,name,local_fraction,remote_share,page_node,advice,missing,local_low,local_high\n",
    );
    let view = match &profile.numa {
        Outcome::Known(view) => view,
        Outcome::Missing { not_measured } => {
            let mut fields = vec![String::new(); 9];
            fields[6] = text(&not_measured.reason);
            strings(&mut out, &fields);
            return out;
        }
    };
    let mut line = |group: &str, row: &NumaRow| {
        let end = |at: usize| {
            row.local_interval
                .map_or_else(String::new, |ends| number(ends[at]))
        };
        strings(
            &mut out,
            &[
                group.to_owned(),
                text(&row.name),
                number(row.local_fraction),
                number(row.remote_share),
                row.node.map(|node| node.to_string()).unwrap_or_default(),
                text(&row.advice),
                String::new(),
                end(0),
                end(1),
            ],
        );
    };
    for row in &view.objects {
        line("object", row);
    }
    for row in &view.lines {
        line("line", row);
    }
    out
}

fn bandwidth(domains: &[BandwidthDomain]) -> String {
    let mut out = String::from("domain,basis,t_s,read_gb_s,write_gb_s,machine_max_gb_s\n");
    for domain in domains {
        for moment in &domain.timeline {
            strings(
                &mut out,
                &[
                    text(&domain.domain),
                    domain.basis.to_string(),
                    number(moment.t_s),
                    number(moment.read_gb_s),
                    number(moment.write_gb_s),
                    optional(domain.machine_max_gb_s.known().copied()),
                ],
            );
        }
    }
    out
}

fn share(share: &Share) -> Vec<String> {
    let LevelShares {
        l1,
        l2,
        l3,
        dram,
        remote,
        unknown,
    } = share.levels;
    let mut fields = vec![share.samples.to_string()];
    fields.extend(
        [
            share.time_s,
            share.time_fraction,
            share.stall_fraction,
            share.stall_low,
            share.stall_high,
            l1,
            l2,
            l3,
            dram,
            remote,
            unknown,
        ]
        .map(number),
    );
    fields.extend(
        [
            share.loads,
            share.stores,
            share.avg_latency_ns,
            share.avg_latency_cycles,
        ]
        .map(optional),
    );
    fields.push(share.flagged.to_string());
    fields.push(number(share.confidence));
    fields.extend(
        [
            share.loads_low,
            share.loads_high,
            share.stores_low,
            share.stores_high,
            share.llc_misses,
            share.llc_misses_low,
            share.llc_misses_high,
        ]
        .map(optional),
    );
    fields
}

fn optional(value: Option<f64>) -> String {
    value.map(number).unwrap_or_default()
}

/// Prefixes a text that a spreadsheet would interpret as a formula.
fn text(text: &str) -> String {
    let first = text.trim_start_matches([' ', '\u{a0}']).chars().next();
    match first {
        Some('=' | '+' | '-' | '@' | '\t' | '\r' | '\n' | '|' | '%') => format!("'{text}"),
        _ => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_text_is_a_formula() {
        for bad in [
            "=1+1", "+A1", "-2", "@SUM(A1)", "\t=1", "  =1", "|cmd", "\r=1",
        ] {
            assert_eq!(text(bad), format!("'{bad}"));
        }
        assert_eq!(text("operator=(int)"), "operator=(int)");
    }
}
