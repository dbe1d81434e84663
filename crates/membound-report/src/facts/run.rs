//! Texts about a run that terminal, page and exports share.

use membound_types::{
    BandwidthDomain, CallFrame, CodeRow, Elsewhere, Figure, InsightKind, LevelShares, MemoryBound,
    Missing, ObjectClass, ObjectRow, OffsetRow, Outcome, Overhead, PlatformNode, Profile, RunInfo,
    SharedLine, SharingThread,
};

use crate::units;

/// Command of the run in shell syntax, or the process that was attached to.
pub(crate) fn command(run: &RunInfo) -> String {
    match (run.command.as_slice(), run.attached) {
        ([], Some(pid)) => format!("process {pid}"),
        ([], None) => "unknown command".to_owned(),
        (words, _) => shell(words),
    }
}

/// Quotes words for a shell.
pub(crate) fn shell(words: &[String]) -> String {
    let words: Vec<String> = words.iter().map(|word| quoted(word)).collect();
    words.join(" ")
}

fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || "-_./=:,+@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}

/// Start and end of the time that a profile covers, in seconds since the run began.
pub(crate) fn span(profile: &Profile) -> (f64, f64) {
    match &profile.selection {
        Some(part) => (part.from_s, part.to_s),
        None => (0.0, profile.elapsed_s),
    }
}

/// Describes the selected part of a run: `1.20 s to 3.40 s, threads 4711 4712`.
pub(crate) fn selection(profile: &Profile) -> Option<String> {
    let part = profile.selection.as_ref()?;
    let mut words = vec![format!(
        "{} to {}",
        units::seconds(part.from_s),
        units::seconds(part.to_s)
    )];
    if !part.tids.is_empty() {
        let tids: Vec<String> = part.tids.iter().map(u32::to_string).collect();
        let noun = if tids.len() == 1 { "thread" } else { "threads" };
        words.push(format!("{noun} {}", tids.join(" ")));
    }
    Some(words.join(", "))
}

/// Describes the peak of live memory, and the objects with most of it.
pub(crate) fn memory(profile: &Profile) -> Option<String> {
    /// Most objects that are named.
    const MAX_NAMED_OBJECTS: usize = 3;
    let memory = profile.memory.known()?;
    let named: Vec<String> = memory
        .objects
        .iter()
        .take(MAX_NAMED_OBJECTS)
        .map(|row| format!("{} {}", row.name, units::bytes(row.peak_bytes)))
        .collect();
    Some(format!(
        "most memory allocated at once: {}, at {}; largest {}",
        units::bytes(memory.peak_bytes),
        units::seconds(memory.peak_s),
        named.join(", ")
    ))
}

/// How the program ended, unless it ended normally.
pub(crate) fn ending(run: &RunInfo) -> Option<String> {
    ended(run.exit_code, run.signal)
}

/// How a program ended, unless it ended normally.
pub(crate) fn ended(exit_code: Option<i32>, signal: Option<i32>) -> Option<String> {
    match (signal, exit_code) {
        (Some(signal), _) => Some(format!("ended by signal {signal}")),
        (None, Some(0) | None) => None,
        (None, Some(code)) => Some(format!("exit code {code}")),
    }
}

/// Source position `file:line`, as far as it is known.
pub(crate) fn place(file: Option<&str>, line: Option<u32>) -> Option<String> {
    let file = without_build(file.filter(|file| !file.is_empty())?);
    Some(match line {
        Some(line) => format!("{file}:{line}"),
        None => file.to_owned(),
    })
}

/// Like [`place`], with only the file's name, for tables.
pub(crate) fn short_place(file: Option<&str>, line: Option<u32>) -> Option<String> {
    let name = file.map(|file| file.rsplit('/').next().unwrap_or(file));
    place(name, line)
}

/// Function of a source line; of a line in a library, the program's own line for which it ran, and that line's function.
pub(crate) fn of_whom(row: &CodeRow) -> String {
    match &row.called_from {
        Some(own) => format!("for {}, {}", own.name, own.function),
        None => row.function.clone(),
    }
}

/// Removes the build directory of Rust's library from a path: `/rustc/` and forty digits.
fn without_build(path: &str) -> &str {
    const DIGITS: usize = 40;
    path.strip_prefix("/rustc/")
        .filter(|rest| {
            let bytes = rest.as_bytes();
            bytes.get(DIGITS) == Some(&b'/') && bytes[..DIGITS].iter().all(u8::is_ascii_hexdigit)
        })
        .map_or(path, |rest| &rest[DIGITS + 1..])
}

/// Stalled share by level, in the order of the hierarchy; the second level only if it could be separated.
pub(crate) fn level_parts(bound: &MemoryBound) -> Vec<(&'static str, f64)> {
    let mut out = if bound.l1_and_l2_together {
        vec![("L1+L2", bound.l1)]
    } else {
        vec![("L1", bound.l1), ("L2", bound.l2)]
    };
    out.extend([
        ("L3", bound.l3),
        ("DRAM", bound.dram),
        ("remote", bound.remote),
        ("unknown", bound.unknown),
    ]);
    out
}

/// Share of CPU time in code that could not be attributed, by reason; `None` if it is negligible.
pub(crate) fn unattributed(profile: &Profile) -> Option<String> {
    const MIN_MENTIONED_SHARE: f64 = 0.005;
    if profile.memory_bound.unseen < MIN_MENTIONED_SHARE {
        return None;
    }
    let reasons: Vec<String> = profile
        .unseen
        .iter()
        .filter(|unseen| unseen.fraction >= MIN_MENTIONED_SHARE)
        .map(|unseen| format!("{} {}", unseen.reason, units::percent(unseen.fraction)))
        .collect();
    Some(format!(
        "not known whether it waits: {}",
        reasons.join("; ")
    ))
}

/// Formats the memory-bound share of a run: `42 % [38, 46]`, or `between 2 and 92 %` where it is hardly known. Where
/// most of the time is not attributed, the share that is says nothing of the whole, and readers take it for an answer.
pub(crate) fn bound_share(bound: &MemoryBound) -> String {
    const MAX_WIDTH: f64 = 0.5;
    if bound.high - bound.low <= MAX_WIDTH {
        let interval = units::percent_interval(bound.low, bound.high);
        return format!("{} {interval}", units::percent(bound.fraction));
    }
    let low = units::percent_value(bound.low);
    format!("between {low} and {}", units::percent(bound.high))
}

/// Name of the [`unattributed`] part in a bar of shares.
pub(crate) const UNATTRIBUTED: &str = "unattributed";

/// Index of a level's colour, by the name in its row.
pub(crate) fn level_color(name: &str) -> usize {
    match name {
        "L1" | "L1+L2" => 0,
        "L2" => 1,
        "L3" => 2,
        "DRAM" => 3,
        "remote" => 4,
        _ => 5,
    }
}

/// Level with the largest part of a stall share.
pub(crate) fn main_level(levels: &LevelShares) -> Option<&'static str> {
    // If the first two levels could not be separated, the first holds both; other text says so.
    [
        ("L1", levels.l1),
        ("L2", levels.l2),
        ("L3", levels.l3),
        ("DRAM", levels.dram),
        ("remote", levels.remote),
        ("unknown", levels.unknown),
    ]
    .into_iter()
    .filter(|level| level.1 > 0.0)
    .max_by(|a, b| a.1.total_cmp(&b.1))
    .map(|level| level.0)
}

/// Formats a share, with a mark if it exceeds a threshold.
pub(crate) fn flagged_percent(share: f64, flagged: bool) -> String {
    let text = units::percent(share);
    if flagged { format!("{text} !") } else { text }
}

/// Formats a predicted gain: `would save 24 % [17, 29] of the run time`.
pub(crate) fn gain(gain: &Figure) -> String {
    format!(
        "would save {} {} of the run time",
        units::percent(gain.value),
        units::percent_interval(gain.low, gain.high)
    )
}

/// Text for a missing figure.
pub(crate) const NONE: &str = "–";

/// Average latency, or a dash if none was measured.
pub(crate) fn latency(ns: Option<f64>) -> String {
    ns.map_or_else(|| NONE.to_owned(), units::ns)
}

/// Title of a finding by its kind.
pub(crate) const fn insight_title(kind: InsightKind) -> &'static str {
    match kind {
        InsightKind::MemoryBound => "memory bound",
        InsightKind::HotObject => "hot object",
        InsightKind::FalseSharing => "false sharing",
        InsightKind::TrueSharing => "true sharing",
        InsightKind::Placement => "placement",
        InsightKind::Bandwidth => "bandwidth",
        InsightKind::Translation => "address translation",
        InsightKind::NotMemoryBound => "not memory bound",
    }
}

/// Size of a block, with the number of blocks if there are several: `48 B × 812 k`; empty for unknown
/// memory.
pub(crate) fn size(object: &ObjectRow) -> String {
    if object.kind == ObjectClass::Unknown {
        return String::new();
    }
    let size = units::bytes(object.size_bytes);
    if object.blocks > 1 {
        format!("{size} × {}", units::short_count(object.blocks as f64))
    } else {
        size
    }
}

/// Function that allocated the object: the one whose line is in the object's name, else the innermost.
pub(crate) fn allocated_by(object: &ObjectRow) -> Option<&str> {
    let stack = &object.alloc_stack;
    naming(stack, &object.name)
        .or_else(|| stack.first())
        .map(|frame| frame.function.as_str())
}

/// Call chain of an object, from the frame whose line is in its name outwards; all of it if there is none.
pub(crate) fn naming_chain(object: &ObjectRow) -> &[CallFrame] {
    let stack = &object.alloc_stack;
    let from = naming(stack, &object.name)
        .and_then(|found| stack.iter().position(|frame| std::ptr::eq(frame, found)));
    &stack[from.unwrap_or(0)..]
}

/// Frame of an allocation's call chain whose line is in the object's name.
fn naming<'a>(stack: &'a [CallFrame], name: &str) -> Option<&'a CallFrame> {
    // The name begins with the line, with as much of the path as distinguishes it from others.
    let end = [" (", " from "].iter().filter_map(|mark| name.find(mark));
    let line = &name[..end.min().unwrap_or(name.len())];
    stack.iter().find(|frame| {
        place(frame.file.as_deref(), frame.line).is_some_and(|place| {
            place
                .strip_suffix(line)
                .is_some_and(|before| before.is_empty() || before.ends_with('/'))
        })
    })
}

/// Kind, blocks, bytes and lifetime of an object.
pub(crate) fn lifetime(object: &ObjectRow) -> String {
    let mut words = vec![object.kind.to_string(), size(object)];
    words.retain(|word| !word.is_empty());
    if object.blocks > 1 {
        words.push(format!("{} in all", units::bytes(object.total_bytes)));
    }
    if let Some(seconds) = object.lifetime_s {
        words.push(format!("lives {}", units::seconds(seconds)));
    }
    if let Some(local) = object.node_local_fraction {
        words.push(format!("{} node-local", units::percent(local)));
    }
    words.join(", ")
}

/// Formats an offset with its size: `+16, 8 B`.
pub(crate) fn offset(row: &OffsetRow) -> String {
    format!("+{}, {} B", row.offset, row.bytes)
}

/// Describes a contended line: position, cost, advice.
pub(crate) fn shared(line: &SharedLine) -> String {
    let mut text = shared_where(line);
    text.push_str(&format!(" {}", line.advice));
    if let Some(figure) = &line.predicted_gain {
        text.push_str(&format!(" ({})", gain(figure)));
    }
    text.push_str(shared_confirmed(line));
    text
}

/// Note that watchpoints confirmed the sharing; else empty.
pub(crate) const fn shared_confirmed(line: &SharedLine) -> &'static str {
    if line.confirmed.is_some() {
        " Confirmed by watchpoints."
    } else {
        ""
    }
}

/// Code that accesses a contended line, by function: `a.c:3, a.c:4 in work; b.c:9 in main`.
pub(crate) fn shared_sites(line: &SharedLine) -> String {
    let mut functions: Vec<(&str, Vec<&str>)> = Vec::new();
    for site in &line.sites {
        let at = functions.iter().position(|it| it.0 == site.function);
        let at = at.unwrap_or_else(|| {
            functions.push((&site.function, Vec::new()));
            functions.len() - 1
        });
        let places = &mut functions[at].1;
        // A line that loads and stores has two sites.
        if !places.contains(&site.name.as_str()) {
            places.push(&site.name);
        }
    }
    let texts: Vec<String> = functions
        .iter()
        .map(|(function, places)| format!("{} in {}", places.join(", "), super::plain(function)))
        .collect();
    texts.join("; ")
}

/// Most threads whose cost is listed.
const MAX_HELD_THREADS: usize = 4;

/// Like [`shared`], without the advice.
pub(crate) fn shared_where(line: &SharedLine) -> String {
    let mut text = line.object.clone();
    if let Some(offset) = line.object_offset {
        text.push_str(&format!(", at offset {offset}"));
    }
    if naming(&line.alloc_stack, &line.object).is_none()
        && let Some(place) = line
            .alloc_stack
            .iter()
            .find_map(|frame| place(frame.file.as_deref(), frame.line))
    {
        text.push_str(&format!(", allocated at {place}"));
    }
    text.push_str(&format!(
        ": {} threads, {} of the CPU time",
        line.threads.len(),
        units::percent(line.stall_fraction)
    ));
    if !line.held.is_empty() {
        let shares = line.held.iter().map(|cost| {
            let share = &cost.share;
            format!(
                "{} [{}, {}]",
                units::percent(share.value),
                units::percent(share.low).trim_end_matches(" %"),
                units::percent(share.high).trim_end_matches(" %")
            )
        });
        let shares: Vec<String> = shares.take(MAX_HELD_THREADS).collect();
        text.push_str(&format!(
            " (measured by holding threads: alone, each takes less CPU time by {})",
            shares.join(", ")
        ));
    }
    if let Some(ns) = line.avg_latency_ns {
        text.push_str(&format!(", {} an access", units::ns(ns)));
        if let Some(l1) = line.l1_latency_ns {
            text.push_str(&format!(" (L1: {})", units::ns(l1)));
        }
    }
    text.push('.');
    text
}

/// Accesses of one thread to a contended line: `worker-0: bytes 0 to 7, 12 loads, 12 stores`.
pub(crate) fn shared_by(thread: &SharingThread) -> String {
    format!(
        "{} ({}): bytes {} to {}, {}, {}",
        thread.name,
        thread.tid,
        thread.from,
        thread.to.saturating_sub(1).max(thread.from),
        units::plural(thread.loads as usize, "load"),
        units::plural(thread.stores as usize, "store")
    )
}

/// Ratio of the ends of an average from which on it is printed as a range.
const MAX_KNOWN_RATIO: f64 = 1.5;

/// Average traffic of a domain, compared with the measured maximum.
pub(crate) fn traffic(domain: &BandwidthDomain) -> String {
    let ends = domain.average_low_gb_s.zip(domain.average_high_gb_s);
    let ends = ends.filter(|(low, high)| *high > MAX_KNOWN_RATIO * low && *high >= MIN_GB_S);
    let most = match &domain.machine_max_gb_s {
        Outcome::Known(most) if *most > 0.0 => {
            let part = match ends {
                Some((low, high)) => format!(
                    "{} to {}",
                    units::percent(low / most),
                    units::percent((high / most).min(1.0))
                ),
                None => units::percent(domain.average_gb_s / most),
            };
            format!(
                "{part} of the {} that this machine was measured to do with as many threads and \
                 the same part of writes",
                units::gb_s(*most)
            )
        }
        Outcome::Known(_) => "the machine's most is not known".to_owned(),
        Outcome::Missing { not_measured } => {
            format!("the machine's most: {}", super::missing_text(not_measured))
        }
    };
    let name = &domain.domain;
    let basis = domain.basis;
    if let Some((low, high)) = ends {
        let (low, high) = (units::gb_s(low), units::gb_s(high));
        return format!(
            "{name} traffic: between {low} and {high} on average ({basis}; how often its loops ran is not known better), \
             {most}"
        );
    }
    if domain.average_gb_s < MIN_GB_S {
        let least = units::gb_s(MIN_GB_S);
        return format!("{name} traffic: less than {least} on average ({basis})");
    }
    let average = units::gb_s(domain.average_gb_s);
    format!("{name} traffic: {average} on average ({basis}), {most}")
}

/// Formats a list of CPUs: `0-3,8`.
pub(crate) fn cpu_list(cpus: &[u32]) -> String {
    let runs = cpus.chunk_by(|a, b| a + 1 == *b);
    let words: Vec<String> = runs
        .map(|run| match run {
            [only] => only.to_string(),
            [first, .., last] => format!("{first}-{last}"),
            [] => String::new(),
        })
        .collect();
    words.join(",")
}

/// CPUs of a node, `CPU 2` or `CPUs 0-3`, and how many were busy on average.
pub(crate) fn node_cpus(node: &PlatformNode) -> String {
    let list = match node.cpus.as_slice() {
        [] => "no CPU".to_owned(),
        [only] => format!("CPU {only}"),
        cpus => format!("CPUs {}", cpu_list(cpus)),
    };
    format!("{list}, {} busy", units::compact(node.busy_cpus))
}

/// Formats a rate, and its share of the measured maximum.
pub(crate) fn rate_of(gb_s: f64, most_gb_s: Option<f64>) -> String {
    match most_gb_s.filter(|most| *most > 0.0) {
        Some(most) => format!(
            "{}, {} of {}",
            units::gb_s(gb_s),
            units::percent(gb_s / most),
            units::gb_s(most)
        ),
        None => units::gb_s(gb_s),
    }
}

/// Traffic of a node's memory.
pub(crate) fn node_memory(node: &PlatformNode) -> String {
    node.dram_gb_s.map_or_else(
        || "memory: traffic not known".to_owned(),
        |gb_s| format!("memory {}", rate_of(gb_s, node.dram_max_gb_s)),
    )
}

/// Smallest rate that is shown; a smaller one would be printed as 0.
pub(crate) const MIN_GB_S: f64 = 0.01;

/// Prediction for another machine, as a sentence.
pub(crate) fn elsewhere(other: &Elsewhere) -> String {
    let ratio = &other.time_ratio;
    let most = match &other.machine_max_gb_s {
        Outcome::Known(most) => format!(" of {}", units::gb_s(*most)),
        Outcome::Missing { .. } => String::new(),
    };
    format!(
        "{}: memory bound {} {}; run time × {} {}; each core would ask for {}{most}",
        other.machine,
        units::percent(other.memory_bound.value),
        units::percent_interval(other.memory_bound.low, other.memory_bound.high),
        units::number(ratio.value),
        units::interval(ratio.low, ratio.high),
        units::gb_s(other.per_core_gb_s)
    )
}

/// Assumption about the time without stalls on another machine.
pub(crate) fn computing(other: &Elsewhere) -> String {
    match &other.compute_ratio {
        Outcome::Known(ratio) => format!(
            "computing × {} {}: as many core clock cycles as here, of that machine's clock; another \
             design may need more or fewer, which is in the interval",
            units::number(ratio.value),
            units::interval(ratio.low, ratio.high)
        ),
        Outcome::Missing { not_measured } => format!(
            "stalls alone are scaled, not the speed of computing: {}",
            super::missing_text(not_measured)
        ),
    }
}

/// Names a table with missing data, and the reason.
pub(crate) fn gap(gap: &Missing) -> String {
    match &gap.why.remedy {
        Some(remedy) => format!("{}: {} ({remedy})", gap.table, gap.why.reason),
        None => format!("{}: {}", gap.table, gap.why.reason),
    }
}

/// Formats a signed change in seconds.
pub(crate) fn signed_seconds(seconds: f64) -> String {
    let text = units::seconds(seconds.abs());
    if seconds < 0.0 {
        format!("−{text}")
    } else {
        format!("+{text}")
    }
}

/// Change of a finding between the first and the last run.
pub(crate) fn presence_change(present: &[bool]) -> &'static str {
    match (present.first(), present.last()) {
        (Some(true), Some(false)) => "gone",
        (Some(false), Some(true)) => "new",
        (Some(true), Some(true)) => "still there",
        _ => "in between only",
    }
}

/// Sentences about the evidence behind the figures and the cost of recording.
pub(crate) fn evidence_and_cost(profile: &Profile) -> Vec<String> {
    let run = &profile.run;
    let timer = match run.timer.as_str() {
        "cpu-clock" => "the kernel's CPU clock",
        "agent-timer" => "a timer in each thread",
        "cycles" => "a counter of core clock cycles",
        "none" => "no clock",
        other => other,
    };
    let mut basis = format!(
        "{} by {timer}",
        units::plural(run.samples as usize, "sample")
    );
    if run.samples > 0 && run.effective_samples < 0.95 * run.samples as f64 {
        basis.push_str(&format!(
            " (as good as {} of equal weight)",
            units::count(run.effective_samples.max(0.0).round() as u64)
        ));
    }
    basis.push_str(&if run.timed_accesses > 0 {
        format!(
            ", {} timed",
            units::plural_of(run.timed_accesses, "access", "accesses")
        )
    } else {
        ", no access timed".to_owned()
    });
    let overhead = &profile.overhead;
    let cost = match &run.imported {
        Some(source) => format!("imported from {source}: what recording cost is not known"),
        None if profile.selection.is_none() && run.samples < MIN_SAMPLES_OF_COST => format!(
            "recording took {} of CPU time beside the program, which was too short to tell how much \
             longer it ran",
            units::seconds(overhead.own_cpu_s)
        ),
        None => cost(overhead, profile.selection.is_some()),
    };
    let lost: Vec<String> = [
        (overhead.lost_samples, "sample", "samples"),
        (overhead.lost_accesses, "timed access", "timed accesses"),
        (
            overhead.lost_allocations,
            "allocation event",
            "allocation events",
        ),
    ]
    .into_iter()
    .filter(|(number, ..)| *number > 0)
    .map(|(number, one, many)| units::plural_of(number, one, many))
    .collect();
    let mut out = vec![basis, cost];
    if !lost.is_empty() {
        out.push(format!("lost: {}", lost.join(", ")));
    }
    out
}

/// Samples from which on the part of them inside the recorder tells something.
const MIN_SAMPLES_OF_COST: u64 = 20;

/// Describes the cost of recording, which is known of the whole run only.
fn cost(overhead: &Overhead, of_part: bool) -> String {
    let mut cost = format!(
        "{}recording made the program take about {} longer: {} of its CPU time were spent inside it, \
         and {} beside it",
        if of_part { "in the whole run, " } else { "" },
        units::percent(overhead.cost_fraction),
        units::percent(overhead.inside_fraction),
        units::seconds(overhead.own_cpu_s)
    );
    if let Some(stop_ms) = overhead.longest_stop_ms.filter(|stop_ms| *stop_ms > 0.0) {
        let longest = units::seconds(stop_ms / 1e3);
        cost.push_str(&format!(", and stopped no thread longer than {longest}"));
    }
    cost
}

/// Converts an RFC 3339 date in UTC to seconds since 1970; `None` for another form.
pub(crate) fn epoch_s(date: &str) -> Option<u64> {
    let number = |from: usize, to: usize| date.get(from..to)?.parse::<u64>().ok();
    let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
    let (hour, minute, second) = (number(11, 13)?, number(14, 16)?, number(17, 19)?);
    if !date.ends_with('Z') || year < 1970 || !(1..=12).contains(&month) || !(1..=31).contains(&day)
    {
        return None;
    }
    // Count years from March, so that the leap day is the last day of a year.
    let (year, month) = if month > 2 {
        (year, month - 3)
    } else {
        (year - 1, month + 9)
    };
    let days = 365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day - 1;
    // Days from 1 March 0 to 1 January 1970.
    let days = days.checked_sub(719_468)?;
    Some(days * 86_400 + hour * 3600 + minute * 60 + second)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_that_is_hardly_known_is_an_interval_alone() {
        let share = |fraction, low, high| {
            bound_share(&MemoryBound {
                fraction,
                low,
                high,
                ..MemoryBound::default()
            })
        };
        assert_eq!(share(0.42, 0.38, 0.46), "42 % [38, 46]");
        assert_eq!(share(0.07, 0.02, 0.92), "between 2.0 and 92 %");
        assert_eq!(share(0.0, 0.0, 0.97), "between 0 and 97 %");
    }

    #[test]
    fn cpus_stand_in_runs() {
        assert_eq!(cpu_list(&[0, 1, 2, 5, 7, 8]), "0-2,5,7-8");
        assert_eq!(cpu_list(&[]), "");
    }

    #[test]
    fn dates_are_read_as_the_calendar_has_them() {
        assert_eq!(epoch_s("1970-01-01T00:00:00Z"), Some(0));
        assert_eq!(epoch_s("2000-02-29T12:00:00Z"), Some(951_825_600));
        assert_eq!(epoch_s("2026-11-20T17:02:11Z"), Some(1_795_194_131));
        for bad in [
            "",
            "yesterday",
            "2026-13-01T00:00:00Z",
            "2026-11-20T17:02:11",
        ] {
            assert_eq!(epoch_s(bad), None, "{bad}");
        }
    }

    #[test]
    fn places_do_not_say_where_a_library_was_built() {
        let hash = "59807616e1fa2540724bfbac14d7976d7e4a3860";
        let path = format!("/rustc/{hash}/library/alloc/src/vec/mod.rs");
        let shown = place(Some(&path), Some(7));
        assert_eq!(shown.as_deref(), Some("library/alloc/src/vec/mod.rs:7"));
        let shown = short_place(Some(&path), Some(7));
        assert_eq!(shown.as_deref(), Some("mod.rs:7"));
        for other in ["/rustc/x/a.rs", "/home/rustc/a.rs"] {
            assert_eq!(place(Some(other), None).as_deref(), Some(other));
        }
    }

    #[test]
    fn the_frame_that_names_an_object_is_found_by_the_end_of_its_path() {
        let frame = |function: &str, file: &str, line| CallFrame {
            function: function.to_owned(),
            file: Some(file.to_owned()),
            line: Some(line),
            module: String::new(),
        };
        let stack = [
            frame("alloc", "/library/alloc.rs", 95),
            frame("other", "/home/a/xpool.rs", 4),
            frame("make", "/home/a/pool.rs", 4),
            frame("main", "main.rs", 7),
        ];
        for (name, function) in [
            ("pool.rs:4 (512 B)", Some("make")),
            ("a/pool.rs:4 from main.rs:7 (512 B)", Some("make")),
            ("main.rs:7", Some("main")),
            ("data", None),
        ] {
            let found = naming(&stack, name).map(|frame| frame.function.as_str());
            assert_eq!(found, function, "{name}");
        }
    }

    #[test]
    fn commands_are_quoted_as_a_shell_needs_it() {
        let mut run = RunInfo {
            command: ["./a.out", "two words", "it's", ""]
                .map(str::to_owned)
                .to_vec(),
            processes: 1,
            threads: 1,
            ..RunInfo::default()
        };
        assert_eq!(command(&run), "./a.out 'two words' 'it'\\''s' ''");
        run.command.clear();
        run.attached = Some(7);
        assert_eq!(command(&run), "process 7");
    }
}
