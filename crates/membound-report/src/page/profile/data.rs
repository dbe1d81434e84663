//! Data for the page's script: cells, call chains, and the figures of a profile's rows, as JSON inside the
//! page.
//!
//! The data are columns of whole numbers instead of objects, because there are many; names are positions in
//! one table. If the data do not fit, their resolution is reduced; nothing is cut off silently.

use std::collections::HashMap;

use indexmap::IndexSet;
use membound_types::{CodeRow, Detail, Listing, ObjectRow, Profile, Share, ThreadRow};
use serde::Serialize;
use serde_json::{Value, json};

use super::bounded::{short, short_name};
use super::cells::{Cells, Grain};
use super::numbers::{ends, rounded};
use super::periods::{RowPeriods, rows_with_periods};
use crate::facts::run;
use crate::page::json::escaped;
use crate::units::positive;

/// Most bytes of the JSON: the page may have eight million, and has other parts.
const MAX_BYTES: usize = 6_800_000;
/// Most bytes of all listings.
const LISTING_BYTES: usize = 1_200_000;
/// Most objects whose offsets and code are embedded.
const MAX_INSIDES: usize = 400;
/// Units of weight in an average cell.
const RESOLUTION: f64 = 200.0;
const OFFSETS: usize = 24;

/// Embedded data, and the cells that it contains.
pub(super) struct PageData {
    /// JSON that is safe inside a `script` element.
    pub(super) json: String,
    pub(super) cells: Cells,
}

impl PageData {
    pub(super) fn of(profile: &Profile, detail: &Detail) -> Self {
        let mut grain = Grain::FINEST;
        loop {
            let cells = Cells::of(profile, detail, grain);
            let json = escaped(&document(profile, detail, &cells, grain));
            let excess = json.len() as f64 / MAX_BYTES as f64;
            match grain.coarser(cells.count(), excess) {
                Some(coarser) if excess > 1.0 => grain = coarser,
                _ => return Self { json, cells },
            }
        }
    }
}

/// Distinct names, shortened to what a page can hold.
struct Names<'a> {
    detail: &'a Detail,
    letters: usize,
    texts: IndexSet<String>,
    /// By position in the detail's names, the index of each name that was already added.
    known: HashMap<u32, usize>,
}

impl<'a> Names<'a> {
    fn new(detail: &'a Detail, letters: usize) -> Self {
        Self {
            detail,
            letters,
            texts: IndexSet::new(),
            known: HashMap::new(),
        }
    }

    fn id(&mut self, text: &str) -> usize {
        let text = short_name(text, self.letters);
        let known = self.texts.get_index_of(text.as_ref());
        known.unwrap_or_else(|| self.texts.insert_full(text.into_owned()).0)
    }

    /// Index of the name at `position` in the detail.
    fn of_detail(&mut self, position: u32) -> usize {
        if let Some(&id) = self.known.get(&position) {
            return id;
        }
        let detail = self.detail;
        let text = detail.names.get(position as usize);
        let id = self.id(text.map_or("?", String::as_str));
        self.known.insert(position, id);
        id
    }
}

fn document(profile: &Profile, detail: &Detail, cells: &Cells, grain: Grain) -> String {
    let mut names = Names::new(detail, grain.letters);
    let chains = chains(detail, cells, &mut names);
    let table = cell_table(cells, &chains.places);
    let periods = RowPeriods::of(&detail.periods, grain.rows);
    let functions = rows_with_periods(
        &profile.functions,
        grain.rows,
        &periods.functions,
        |_, row| {
            json!([
                names.id(&row.name),
                names.id(&row.module),
                figures(&row.share)
            ])
        },
    );
    let lines = rows_with_periods(&profile.lines, grain.rows, &periods.lines, |_, row| {
        let file = row.file.as_deref().map(|file| names.id(file));
        let called_from = row
            .called_from
            .as_ref()
            .map(|_| names.id(&run::of_whom(row)));
        json!([
            file,
            row.line,
            figures(&row.share),
            names.id(&row.name),
            called_from
        ])
    });
    let instructions = rows_with_periods(
        &profile.instructions,
        grain.rows,
        &periods.instructions,
        |_, row| instruction(row, &mut names),
    );
    let objects = rows_with_periods(
        &profile.objects,
        grain.rows,
        &periods.objects,
        |index, row| object(row, index < MAX_INSIDES, &mut names),
    );
    let life_spans = life_spans(profile, cells);
    let threads = rows_with_periods(
        &profile.threads,
        grain.rows,
        &periods.threads,
        |index, row| thread(row, life_spans[index], &mut names),
    );
    let levels: Vec<Value> = profile
        .levels
        .iter()
        .map(|row| json!([names.id(&row.name), run::level_color(&row.name)]))
        .collect();
    // Columns of numbers always serialise. They are embedded as text, because one `Value` for each of a
    // million numbers would take longer than everything else.
    let table = serde_json::to_string(&table).unwrap_or_default();
    let rest = json!({
        "from_s": cells.from_s,
        "duration_s": cells.duration_s,
        "bins": cells.bins,
        "periods": detail.periods.len(),
        "frames": chains.frames,
        "stacks": chains.stacks,
        "functions": functions,
        "lines": lines,
        "instructions": instructions,
        "objects": objects,
        "threads": threads,
        "levels": levels,
        "bandwidth": bandwidth(profile),
        "listings": listings(&detail.listings, &mut names),
        "names": names.texts.iter().collect::<Vec<_>>(),
    })
    .to_string();
    format!("{{\"cells\":{table},{}", rest.trim_start_matches('{'))
}

fn instruction(row: &CodeRow, names: &mut Names<'_>) -> Value {
    let address = format!("{:x}", row.address.unwrap_or(0));
    json!([
        names.id(&row.module),
        address,
        figures(&row.share),
        names.id(&row.name)
    ])
}

fn bandwidth(profile: &Profile) -> Vec<Value> {
    profile
        .bandwidth
        .iter()
        .map(|domain| {
            let moments: Vec<[f64; 3]> = domain
                .timeline
                .iter()
                .map(|it| [it.t_s, it.read_gb_s, it.write_gb_s].map(rounded))
                .collect();
            json!({ "name": domain.domain, "basis": domain.basis, "moments": moments })
        })
        .collect()
}

struct ChainTable {
    frames: Value,
    stacks: Value,
    /// Index of each chain, by position in [`Detail::stacks`].
    places: HashMap<u32, usize>,
}

/// The call chains of the cells, including their parents.
fn chains(detail: &Detail, cells: &Cells, names: &mut Names<'_>) -> ChainTable {
    let mut used = vec![false; detail.stacks.len()];
    for group in &cells.groups {
        let mut next = Some(group.key.stack as usize);
        while let Some(at) = next.filter(|&at| at < used.len() && !used[at]) {
            used[at] = true;
            next = detail.stacks[at].parent.map(|parent| parent as usize);
        }
    }
    let mut places = HashMap::new();
    let mut frame_places = IndexSet::new();
    let mut frames: [Vec<Value>; 6] = Default::default();
    let (mut parents, mut of_frame) = (Vec::new(), Vec::new());
    for (index, stack) in detail.stacks.iter().enumerate() {
        if !used[index] {
            continue;
        }
        let (place, is_new) = frame_places.insert_full(stack.frame);
        if is_new {
            let frame = detail.frames.get(stack.frame as usize).copied();
            let frame = frame.unwrap_or_default();
            let columns = [
                json!(names.of_detail(frame.function)),
                json!(frame.file.map(|file| names.of_detail(file))),
                json!(frame.line),
                json!(names.of_detail(frame.module)),
                json!(format!("{:x}", frame.address)),
                json!(u8::from(frame.inlined)),
            ];
            for (column, cell) in frames.iter_mut().zip(columns) {
                column.push(cell);
            }
        }
        // Parents come before their children; a parent that does not is ignored.
        let parent = stack.parent.and_then(|parent| places.get(&parent)).copied();
        places.insert(index as u32, parents.len());
        parents.push(parent.map_or(-1, |parent: usize| parent as i64));
        of_frame.push(place);
    }
    let [function, file, line, module, address, inlined] = frames;
    ChainTable {
        frames: json!({
            "function": function, "file": file, "line": line, "module": module,
            "address": address, "inlined": inlined,
        }),
        stacks: json!({ "parent": parents, "frame": of_frame }),
        places,
    }
}

/// Groups: thread, chain, object, level (−1 if unknown) and number of cells. Cells: distance in time,
/// weight and stall in units of `unit_s`.
#[derive(Serialize)]
struct CellTable {
    unit_s: f64,
    groups: Vec<i64>,
    time: Vec<u32>,
    weight: Vec<u64>,
    stall: Vec<u64>,
}

fn cell_table(cells: &Cells, places: &HashMap<u32, usize>) -> CellTable {
    let total: f64 = all_weights(cells).sum();
    let count = cells.count().max(1) as f64;
    let unit_s = (total / count / RESOLUTION).max(1e-12);
    let (mut groups, mut times, mut weights, mut stalls) =
        (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let (mut weight_left, mut stall_left) = (0.0, 0.0);
    // The rounding error of a cell is carried to the next, so that sums stay right.
    let units = |value: f64, left: &mut f64| {
        let exact = value / unit_s + *left;
        let whole = exact.round().max(0.0);
        *left = exact - whole;
        whole as u64
    };
    for group in &cells.groups {
        let key = group.key;
        let place = places.get(&key.stack).copied().unwrap_or(0);
        groups.extend([
            i64::from(key.thread),
            place as i64,
            key.object.map_or(-1, i64::from),
            key.level.map_or(-1, i64::from),
            group.cells.len() as i64,
        ]);
        let mut before = 0;
        for cell in &group.cells {
            times.push(cell.bin - before);
            before = cell.bin;
            weights.push(units(cell.weight_s, &mut weight_left));
            stalls.push(units(cell.stall_s, &mut stall_left));
        }
    }
    CellTable {
        unit_s,
        groups,
        time: times,
        weight: weights,
        stall: stalls,
    }
}

fn all_weights(cells: &Cells) -> impl Iterator<Item = f64> {
    let groups = cells.groups.iter();
    groups.flat_map(|group| group.cells.iter().map(|cell| cell.weight_s))
}

/// Interval, executions, latency and flag of a row over the whole run.
fn figures(share: &Share) -> Value {
    let mut figures = json!([
        rounded(share.stall_low),
        rounded(share.stall_high),
        share.loads.map(rounded),
        share.stores.map(rounded),
        share.avg_latency_ns.map(rounded),
        share.avg_latency_cycles.map(rounded),
        u8::from(share.flagged),
        rounded(share.stall_fraction),
        rounded(share.time_fraction),
        ends(share.loads_low, share.loads_high),
        ends(share.stores_low, share.stores_high),
        share.llc_misses.map(rounded),
        ends(share.llc_misses_low, share.llc_misses_high),
    ]);
    // Trailing unknown values of many rows would take space that samples need.
    if let Value::Array(figures) = &mut figures {
        while figures.last().is_some_and(Value::is_null) {
            figures.pop();
        }
    }
    figures
}

fn object(row: &ObjectRow, inside: bool, names: &mut Names<'_>) -> Value {
    let chain: Vec<Value> = row
        .alloc_stack
        .iter()
        .filter(|_| inside)
        .map(|frame| {
            let place = run::place(frame.file.as_deref(), frame.line)
                .unwrap_or_else(|| frame.module.clone());
            json!([names.id(&frame.function), names.id(&place)])
        })
        .collect();
    let offsets: Vec<Value> = row
        .offsets
        .iter()
        .filter(|_| inside)
        .take(OFFSETS)
        .map(|it| {
            let ns = it.avg_latency_ns.map(rounded);
            json!([
                it.offset,
                it.bytes,
                it.accesses,
                rounded(it.stall_fraction),
                ns
            ])
        })
        .collect();
    json!({
        "name": names.id(&row.name),
        "about": run::lifetime(row),
        "shared": u8::from(row.false_sharing),
        "figures": figures(&row.share),
        "chain": chain,
        "offsets": offsets,
    })
}

fn thread(row: &ThreadRow, life: (f64, f64), names: &mut Names<'_>) -> Value {
    json!({
        "name": names.id(&row.name),
        "pid": row.pid,
        "tid": row.tid,
        "from": rounded(life.0),
        "to": rounded(life.1),
        "figures": figures(&row.share),
    })
}

/// Start and end of each thread's life in seconds, for drawing. A run records how long a thread lived, but
/// not when: its samples lie inside, and the remaining time is added after them first, then before.
pub(super) fn life_spans(profile: &Profile, cells: &Cells) -> Vec<(f64, f64)> {
    let bin_s = cells.duration_s / f64::from(cells.bins.max(1));
    let mut active_spans: Vec<Option<(f64, f64)>> = vec![None; profile.threads.len()];
    for group in &cells.groups {
        let Some(span) = active_spans.get_mut(group.key.thread as usize) else {
            continue;
        };
        for cell in &group.cells {
            let (from, to) = (f64::from(cell.bin) * bin_s, f64::from(cell.bin + 1) * bin_s);
            *span = Some(span.map_or((from, to), |(a, b)| (a.min(from), b.max(to))));
        }
    }
    profile
        .threads
        .iter()
        .zip(active_spans)
        .map(|(row, span)| {
            let (from, to) = span.unwrap_or((0.0, 0.0));
            let left = (positive(row.lifetime_s) - (to - from)).max(0.0);
            let end = (to + left).min(cells.duration_s);
            let start = (from - (left - (end - to))).max(0.0);
            (start, end)
        })
        .collect()
}

/// Listings of hot functions, hottest first, as many as fit.
fn listings(listings: &[Listing], names: &mut Names<'_>) -> Vec<Value> {
    let mut room = LISTING_BYTES;
    let mut out = Vec::new();
    for listing in listings {
        let source: Vec<Value> = listing
            .source
            .iter()
            .map(|line| {
                json!([
                    line.line,
                    short(&line.text, names.letters),
                    rounded(line.time_fraction),
                    rounded(line.stall_fraction)
                ])
            })
            .collect();
        let assembly: Vec<Value> = listing
            .assembly
            .iter()
            .map(|it| {
                json!([
                    format!("{:x}", it.address),
                    short(&it.text, names.letters),
                    it.line,
                    rounded(it.time_fraction),
                    rounded(it.stall_fraction),
                    it.executions.map(rounded),
                    ends(it.executions_low, it.executions_high)
                ])
            })
            .collect();
        let value = json!({
            "function": names.id(&listing.function),
            "module": names.id(&listing.module),
            "file": listing.file.as_deref().map(|file| names.id(file)),
            "source": source,
            "assembly": assembly,
        });
        let bytes = value.to_string().len();
        if bytes > room {
            continue;
        }
        room -= bytes;
        out.push(value);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_names_lose_their_middle() {
        assert_eq!(short("short", 10), "short");
        let cut = short("0123456789abcdef", 10);
        assert_eq!(cut, "01234…cdef");
        assert_eq!(short(&cut, 10), cut);
        assert_eq!(short(&cut, 6), short("0123456789abcdef", 6));
        assert_eq!(short("éééééééééé", 10), "éééééééééé");
        assert_eq!(short("ééééééééééé", 10), "ééééé…éééé");
    }
}
