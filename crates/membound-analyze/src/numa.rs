//! Nodes on which pages lie, and nodes from which threads access them.
//!
//! Each access is weighted by the executions that it represents, so that densely sampled sites do not count
//! more. If no access was recorded, timer samples are used instead, weighted by their time.

use std::collections::BTreeMap;

use membound_model::stats::student_95;
use membound_run::{ProcessId, RunData, ThreadId};
use membound_types::{NumaRow, NumaView, Outcome};
use rustc_hash::FxHashMap;

use crate::context::Context;
use crate::groups::{GroupId, Groups};
use crate::names;
use crate::places::LineId;
use crate::recorded_accesses;

/// Size of the pages whose node is queried: the kernel's base page on x86-64.
const PAGE_BYTES: u64 = 4096;

/// Most rows of each table.
const MAX_ROWS: usize = 100;

/// Fewest timer samples with known pages that are accepted instead of accesses.
const MIN_SAMPLES: usize = 30;

/// The recorder waits for 5 ms between windows, so a longer pause than this between two accesses separates
/// two windows.
const WINDOW_GAP_NS: u64 = 4_000_000;

/// Placement of all objects.
#[derive(Debug)]
pub(crate) struct Placement {
    pub view: Outcome<NumaView>,
    /// Local share of each object's accesses, if known.
    pub local: FxHashMap<GroupId, f64>,
    /// Objects whose pages should be on other nodes, most remote accesses first.
    pub misplaced: Vec<Misplaced>,
}

/// Object whose pages should be on other nodes.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Misplaced {
    pub group: GroupId,
    pub local_fraction: f64,
    pub advice: String,
}

/// Weighted accesses by node of the thread and node of the page.
#[derive(Clone, Debug)]
struct Matrix {
    nodes: usize,
    cells: Vec<f64>,
    /// Local accesses and all accesses, by window.
    windows: BTreeMap<usize, (f64, f64)>,
}

impl Matrix {
    fn new(nodes: usize) -> Self {
        Self {
            nodes,
            cells: vec![0.0; nodes * nodes],
            windows: BTreeMap::new(),
        }
    }

    fn add(&mut self, sighting: &Sighting) {
        let Sighting {
            from, to, weight, ..
        } = *sighting;
        self.cells[usize::from(from) * self.nodes + usize::from(to)] += weight;
        let (local, total) = self.windows.entry(sighting.window).or_default();
        *local += if from == to { weight } else { 0.0 };
        *total += weight;
    }

    fn total(&self) -> f64 {
        self.cells.iter().sum()
    }

    fn local(&self) -> f64 {
        (0..self.nodes)
            .map(|node| self.cells[node * self.nodes + node])
            .sum()
    }

    fn remote(&self) -> f64 {
        self.total() - self.local()
    }

    fn local_fraction(&self) -> f64 {
        self.local() / self.total().max(f64::MIN_POSITIVE)
    }

    /// Ends of the 95 % interval of the local fraction.
    ///
    /// The ratio estimate of a cluster sample (Cochran, Sampling Techniques, 1977, 9A.1). Windows are the
    /// clusters, because chance decides which threads run during a window. One window gives no variance,
    /// hence `[0, 1]`.
    fn local_interval(&self) -> [f64; 2] {
        let count = self.windows.len();
        if count < 2 {
            return [0.0, 1.0];
        }
        let fraction = self.local_fraction();
        let squares: f64 = self
            .windows
            .values()
            .map(|(local, total)| (local - fraction * total).powi(2))
            .sum();
        let clusters = count as f64;
        let error = (squares * clusters / (clusters - 1.0)).sqrt() / self.total();
        let half = student_95(count - 1) * error;
        [(fraction - half).max(0.0), (fraction + half).min(1.0)]
    }

    /// Share of all accesses by node of the thread (rows) and node of the page (columns).
    fn shares(&self) -> Vec<Vec<f64>> {
        let total = self.total().max(f64::MIN_POSITIVE);
        let share = |cell: &f64| cell / total;
        let rows = self.cells.chunks(self.nodes);
        rows.map(|row| row.iter().map(share).collect()).collect()
    }

    /// Accesses by node of the page.
    fn by_page(&self) -> Vec<f64> {
        (0..self.nodes)
            .map(|to| {
                (0..self.nodes)
                    .map(|from| self.cells[from * self.nodes + to])
                    .sum()
            })
            .collect()
    }

    /// Accesses by node of the thread.
    fn by_thread(&self) -> Vec<f64> {
        self.cells
            .chunks(self.nodes)
            .map(|row| row.iter().sum())
            .collect()
    }
}

/// Compares where pages lie with where the threads run that access them.
pub(crate) fn placement(context: &Context<'_>) -> Placement {
    let run = context.run;
    let missing = |view| Placement {
        view,
        local: FxHashMap::default(),
        misplaced: Vec::new(),
    };
    if run.meta.nodes <= 1 {
        return missing(Outcome::missing("the machine has one node"));
    }
    if run.meta.cpu_nodes.is_empty() {
        return missing(Outcome::missing(
            "it is not known which CPUs belong to which node",
        ));
    }
    let nodes = nodes(run);
    let mut all = Matrix::new(nodes);
    let mut by_group: BTreeMap<GroupId, Matrix> = BTreeMap::new();
    let mut by_line: BTreeMap<LineId, Matrix> = BTreeMap::new();
    for sighting in sightings(context) {
        all.add(&sighting);
        by_group
            .entry(sighting.group)
            .or_insert_with(|| Matrix::new(nodes))
            .add(&sighting);
        by_line
            .entry(sighting.line)
            .or_insert_with(|| Matrix::new(nodes))
            .add(&sighting);
    }
    if all.total() <= 0.0 {
        return missing(Outcome::missing_with(
            "no page of a sampled access was looked up",
            "record for longer, or with `membound profile -- COMMAND`, where accesses are timed",
        ));
    }
    let remote = all.remote();
    let (objects, misplaced) = objects(context, &by_group, remote);
    let line = |(line, matrix): (&LineId, &Matrix)| {
        row(
            &context.places.line(*line).name,
            matrix,
            remote,
            String::new(),
        )
    };
    let lines = by_line.iter().map(line).collect();
    Placement {
        view: Outcome::Known(NumaView {
            nodes: nodes as u32,
            local_fraction: all.local_fraction(),
            local_interval: Some(all.local_interval()),
            matrix: all.shares(),
            objects: sorted(objects),
            lines: sorted(lines),
        }),
        local: by_group
            .iter()
            .map(|(&group, matrix)| (group, matrix.local_fraction()))
            .collect(),
        misplaced,
    }
}

/// Rows of objects, and the objects whose pages should be on other nodes, most remote accesses first. `remote` is the
/// weight of all remote accesses.
fn objects(
    context: &Context<'_>,
    by_group: &BTreeMap<GroupId, Matrix>,
    remote: f64,
) -> (Vec<NumaRow>, Vec<Misplaced>) {
    let initialized = initialized(context);
    let mut rows = Vec::new();
    let mut misplaced = Vec::new();
    for (&group, matrix) in by_group {
        let advice = if group == Groups::UNKNOWN {
            String::new()
        } else {
            advice(context, group, matrix, initialized.get(&group))
        };
        if !advice.is_empty() {
            misplaced.push(Misplaced {
                group,
                local_fraction: matrix.local_fraction(),
                advice: advice.clone(),
            });
        }
        rows.push(row(&context.groups.get(group).name, matrix, remote, advice));
    }
    let remote_of = |object: &Misplaced| by_group[&object.group].remote();
    misplaced.sort_by(|a, b| remote_of(b).total_cmp(&remote_of(a)));
    (rows, misplaced)
}

/// Access by a thread on one node to a page on another, or on the same.
pub(crate) struct Sighting {
    /// Node of the thread.
    pub from: u16,
    /// Node of the page.
    pub to: u16,
    pub group: GroupId,
    line: LineId,
    /// Executions; time in nanoseconds if none were counted.
    pub weight: f64,
    /// Number of the window that recorded it; each timer sample is a window of its own.
    window: usize,
}

/// All accesses whose thread and page have known nodes.
pub(crate) fn sightings(context: &Context<'_>) -> Vec<Sighting> {
    let nodes = nodes(context.run);
    let pages = Pages::new(context.run);
    let mut sightings = accessed(context, &pages);
    if sightings.is_empty() {
        sightings = sampled(context, &pages);
        if sightings.len() < MIN_SAMPLES {
            sightings.clear();
        }
    }
    // Drop accesses with an impossible node or without weight: they are part of no figure.
    sightings.retain(|it| usize::from(it.from.max(it.to)) < nodes && it.weight > 0.0);
    sightings
}

/// Numbers the windows of accesses; each access comes with its time in nanoseconds.
fn number_windows(mut accesses: Vec<(u64, Sighting)>) -> Vec<Sighting> {
    accesses.sort_by_key(|(t_ns, _)| *t_ns);
    let (mut window, mut last_ns) = (0, 0);
    let number = |(t_ns, sighting): (u64, Sighting)| {
        window += usize::from(t_ns.saturating_sub(last_ns) > WINDOW_GAP_NS);
        last_ns = t_ns;
        Sighting { window, ..sighting }
    };
    accesses.into_iter().map(number).collect()
}

/// Accesses recorded by the latency sampler.
fn accessed(context: &Context<'_>, pages: &Pages) -> Vec<Sighting> {
    let run = context.run;
    let factors = factors(context);
    let sites = (0..run.sites.len()).map(|index| membound_run::SiteId(index as u32));
    let accesses = sites
        .flat_map(|site| context.touches.of(site))
        .filter(|(_, access)| context.is_selected(access.thread))
        .filter_map(|(index, access)| {
            let process = run.threads[access.thread.index()].process;
            let page = access
                .node
                .or_else(|| pages.node(process, access.address, access.t_ns));
            let sighting = Sighting {
                from: node_of_cpu(run, access.cpu)?,
                to: page?,
                group: recorded_accesses::group_of(access, &context.groups),
                line: context.places.line_of(run.sites[access.site.index()].frame),
                weight: context.touches.weight(index) * factors[access.site.index()],
                window: 0,
            };
            Some((access.t_ns, sighting))
        });
    number_windows(accesses.collect())
}

/// Accesses that timer samples waited for: the only source for programs without patches.
fn sampled(context: &Context<'_>, pages: &Pages) -> Vec<Sighting> {
    let run = context.run;
    run.samples
        .iter()
        .enumerate()
        .filter(|(_, sample)| context.is_selected(sample.thread))
        .filter_map(|(index, sample)| {
            let address = sample.address.filter(|_| sample.exact)?;
            let process = run.threads[sample.thread.index()].process;
            let frame = run.stacks[sample.stack.index()].frame;
            let waits = context.waits.of(frame).iter();
            let likeliest = waits.max_by(|a, b| a.share.total_cmp(&b.share))?;
            Some(Sighting {
                from: node_of_cpu(run, sample.cpu)?,
                to: pages.node(process, address, sample.t_ns)?,
                group: sample
                    .object
                    .map_or(Groups::UNKNOWN, |object| context.groups.of(object)),
                line: context
                    .places
                    .line_of(run.sites[likeliest.site.index()].frame),
                weight: sample.weight_ns as f64,
                window: index,
            })
        })
        .collect()
}

/// Number of nodes to allow for; nodes with memory but no CPU count too.
pub(crate) fn nodes(run: &RunData) -> usize {
    let of_cpus = run.meta.cpu_nodes.iter().copied();
    let of_pages = run.pages.iter().map(|page| page.node);
    let of_accesses = run.accesses.iter().filter_map(|access| access.node);
    let highest = of_cpus.chain(of_pages).chain(of_accesses).max();
    let count = usize::from(highest.unwrap_or(0)) + 1;
    count.max(run.meta.nodes as usize)
}

pub(crate) fn node_of_cpu(run: &RunData, cpu: Option<u16>) -> Option<u16> {
    run.meta.cpu_nodes.get(usize::from(cpu?)).copied()
}

/// By site: executions over the whole run ÷ executions that its recorded accesses represent.
fn factors(context: &Context<'_>) -> Vec<f64> {
    (0_u32..)
        .zip(&context.costs)
        .map(|(index, cost)| {
            let site = membound_run::SiteId(index);
            let represented: f64 = context
                .touches
                .of(site)
                .map(|(index, _)| context.touches.weight(index))
                .sum();
            match cost.executed {
                Some(executed) if represented > 0.0 => executed.count / represented,
                _ => 1.0,
            }
        })
        .collect()
}

fn row(name: &str, matrix: &Matrix, remote: f64, advice: String) -> NumaRow {
    let by_page = matrix.by_page();
    let most = (0..by_page.len())
        .max_by(|&a, &b| by_page[a].total_cmp(&by_page[b]).then(b.cmp(&a)))
        .map(|node| node as u16);
    NumaRow {
        name: name.to_owned(),
        local_fraction: matrix.local_fraction(),
        local_interval: Some(matrix.local_interval()),
        remote_share: if remote > 0.0 {
            matrix.remote() / remote
        } else {
            0.0
        },
        node: most,
        advice,
    }
}

fn sorted(mut rows: Vec<NumaRow>) -> Vec<NumaRow> {
    rows.sort_by(|a, b| {
        (b.remote_share.total_cmp(&a.remote_share)).then_with(|| a.name.cmp(&b.name))
    });
    rows.truncate(MAX_ROWS);
    rows
}

/// First writer of an object: the first thread that was seen to store to it, else the thread that allocated
/// it.
#[derive(Clone, Copy, Debug)]
struct Initialized {
    thread: ThreadId,
    line: Option<LineId>,
    t_ns: u64,
}

fn initialized(context: &Context<'_>) -> FxHashMap<GroupId, Initialized> {
    let run = context.run;
    let mut first: FxHashMap<GroupId, Initialized> = FxHashMap::default();
    for access in run.accesses.iter().filter(|access| access.store) {
        let group = recorded_accesses::group_of(access, &context.groups);
        let line = context.places.line_of(run.sites[access.site.index()].frame);
        let candidate = Initialized {
            thread: access.thread,
            line: Some(line),
            t_ns: access.t_ns,
        };
        let entry = first.entry(group).or_insert(candidate);
        if (candidate.t_ns, candidate.thread) < (entry.t_ns, entry.thread) {
            *entry = candidate;
        }
    }
    first
}

/// Advice about the pages of `group`; empty if there is none.
fn advice(
    context: &Context<'_>,
    group: GroupId,
    matrix: &Matrix,
    initialized: Option<&Initialized>,
) -> String {
    if 1.0 - matrix.local_fraction() < context.options.thresholds.remote {
        return String::new();
    }
    let run = context.run;
    let name = &context.groups.get(group).name;
    let shares = |amounts: Vec<f64>| -> Vec<(usize, f64)> {
        let sum: f64 = amounts.iter().sum();
        amounts
            .into_iter()
            .map(|amount| amount / sum.max(f64::MIN_POSITIVE))
            .enumerate()
            .filter(|(_, share)| *share >= context.options.thresholds.remote)
            .collect()
    };
    let (pages, users) = (shares(matrix.by_page()), shares(matrix.by_thread()));
    let numbers = |nodes: &[(usize, f64)]| {
        let numbers: Vec<String> = nodes.iter().map(|(node, _)| node.to_string()).collect();
        names::list(&numbers, 4)
    };
    let allocator = || {
        let object = context.groups.get(group).objects.first()?;
        run.objects[object.index()].thread
    };
    let origin = initialized.map(|first| {
        let thread = &run.threads[first.thread.index()];
        let line = first.line.map(|line| &context.places.line(line).name);
        match line {
            Some(line) => format!(", written first by thread {} at {line}", thread.tid),
            None => format!(", written first by thread {}", thread.tid),
        }
    });
    let origin = origin.or_else(|| {
        let thread = &run.threads[allocator()?.index()];
        Some(format!(", allocated by thread {}", thread.tid))
    });
    let placement = format!(
        "Pages of {name} lie on node {}{}, and threads on node {} use them",
        numbers(&pages),
        origin.unwrap_or_default(),
        numbers(&users),
    );
    let what = if users.len() > 1 && pages.len() == 1 {
        "let each thread initialise the part that it works on (a page lies where it is first \
         written), or interleave the pages"
    } else if users.len() == 1 {
        "initialise it in the threads that use it, or bind it to their node"
    } else {
        "let each thread work on the part whose pages lie on its own node"
    };
    format!("{placement}: {what}.")
}

/// Nodes of pages, for accesses whose own node was not queried.
struct Pages {
    /// Process, address, time in nanoseconds and node; sorted.
    pages: Vec<(ProcessId, u64, u64, u16)>,
}

impl Pages {
    fn new(run: &RunData) -> Self {
        let mut pages: Vec<_> = run
            .pages
            .iter()
            .map(|page| (page.process, page.address, page.t_ns, page.node))
            .collect();
        pages.sort_unstable();
        Self { pages }
    }

    /// Node of the page at `address`: the last query before `t_ns`, or else the first after it.
    fn node(&self, process: ProcessId, address: u64, t_ns: u64) -> Option<u16> {
        let page = address & !(PAGE_BYTES - 1);
        let from = self
            .pages
            .partition_point(|&(of, at, ..)| (of, at) < (process, page));
        let to = self
            .pages
            .partition_point(|&(of, at, ..)| (of, at) <= (process, page));
        let of_page = &self.pages[from..to];
        let before = of_page.partition_point(|&(_, _, at, _)| at <= t_ns);
        let best = before
            .checked_sub(1)
            .map_or_else(|| of_page.first(), |index| of_page.get(index));
        best.map(|&(.., node)| node)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matrix(windows: &[(f64, f64)]) -> Matrix {
        let mut matrix = Matrix::new(2);
        let sighting = |window: usize, to: u16, weight: f64| Sighting {
            from: 0,
            to,
            group: Groups::UNKNOWN,
            line: LineId(0),
            weight,
            window,
        };
        for (window, (local, remote)) in windows.iter().enumerate() {
            matrix.add(&sighting(window, 0, *local));
            matrix.add(&sighting(window, 1, *remote));
        }
        matrix
    }

    #[test]
    fn a_local_fraction_has_the_interval_of_its_windows() {
        // By hand: deviations of ±0.4 around 1 of 2 accesses, Student's t of 3 degrees of freedom.
        let four = matrix(&[(1.4, 0.6), (0.6, 1.4), (1.4, 0.6), (0.6, 1.4)]);
        let [low, high] = four.local_interval();
        let half = 3.182_446 * (0.64_f64 * 4.0 / 3.0).sqrt() / 8.0;
        assert!((low - (0.5 - half)).abs() < 1e-6, "{low}");
        assert!((high - (0.5 + half)).abs() < 1e-6, "{high}");
        assert_eq!(matrix(&[(3.0, 5.0)]).local_interval(), [0.0, 1.0]);
        assert_eq!(
            matrix(&[(2.0, 0.0), (1.0, 0.0)]).local_interval(),
            [1.0, 1.0]
        );
    }

    #[test]
    fn windows_are_separated_by_pauses() {
        let at = |t_ms: u64| {
            let sighting = Sighting {
                from: 0,
                to: 0,
                group: Groups::UNKNOWN,
                line: LineId(0),
                weight: 1.0,
                window: 0,
            };
            (t_ms * 1_000_000, sighting)
        };
        let numbered = number_windows(vec![at(30), at(100), at(33), at(104), at(36)]);
        let windows: Vec<usize> = numbered.iter().map(|sighting| sighting.window).collect();
        assert_eq!(windows[0], windows[2]);
        assert_eq!(windows[3], windows[4]);
        assert_ne!(windows[2], windows[3]);
    }
}
