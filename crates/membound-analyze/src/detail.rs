//! Single samples in order of time, with call chains that begin at the access that the sample waited for.
//!
//! A sample is shown with one access, one object and one level, although the samples of one instruction may
//! divide among several. The choice is drawn so that every stretch of samples shows about the shares of the
//! whole: by the fractional parts of multiples of the golden ratio, which are evenly distributed and need
//! no random generator.

use membound_run::{FrameId, RunData, Sample, SiteId, StackId, ThreadId};
use membound_types::{Detail, DetailFrame, DetailSample, DetailStack, HardwareView};
use rustc_hash::FxHashMap;

use crate::context::Context;
use crate::groups::GroupId;
use crate::hardware;
use crate::info;
use crate::levels::Levels;
use crate::parts::Part;

/// Positions of rows in the finished tables, which the detail refers to.
pub(crate) struct Rows<'a> {
    /// Position of each thread in the table of threads.
    pub threads: &'a [u32],
    /// Position of each object in the table of objects.
    pub objects: &'a [Option<u32>],
    pub levels: &'a Levels,
    /// View of hardware-sampled accesses; `None` if the run has none.
    pub hardware: Option<&'a HardwareView>,
}

/// Low-discrepancy sequence that fills the range from 0 to 1 evenly from its first number on.
#[derive(Clone, Copy, Debug, Default)]
struct Even(u32);

impl Even {
    fn next(&mut self) -> f64 {
        // Fractional part of the golden ratio, in units of 2⁻³².
        const STEP: u32 = 0x9E37_79B9;
        self.0 = self.0.wrapping_add(STEP);
        f64::from(self.0) / (f64::from(u32::MAX) + 1.0)
    }
}

/// Index of one of `amounts`, each chosen in proportion to its share, at the position `at` between 0 and 1;
/// `None` if they sum to nothing.
fn draw(at: f64, amounts: impl Iterator<Item = f64> + Clone) -> Option<usize> {
    let sum: f64 = amounts.clone().sum();
    if sum <= 0.0 {
        return None;
    }
    let mut remaining = at * sum;
    let mut last = None;
    for (index, amount) in amounts.enumerate() {
        if amount > 0.0 {
            last = Some(index);
            if remaining < amount {
                return last;
            }
            remaining -= amount;
        }
    }
    last
}

/// Builds the samples with the tables of names, frames and call chains that they refer to.
pub(crate) fn detail(context: &Context<'_>, rows: &Rows<'_>) -> Detail {
    let run = context.run;
    let mut chains = Chains::new(context);
    let mut even: Vec<Even> = vec![Even::default(); run.frames.len()];
    let mut samples = Vec::with_capacity(run.samples.len());
    for sample in in_order(run).iter() {
        let stack = run.stacks[sample.stack.index()];
        if info::is_own(run, stack.frame) || !context.is_selected(sample.thread) {
            continue;
        }
        let even = &mut even[stack.frame.index()];
        let waits = context.waits.of(stack.frame);
        let waited = match waits {
            [only] if only.share > 0.999 => Some(only),
            [] => None,
            several => {
                let at = even.next();
                let rest = 1.0 - several.iter().map(|wait| wait.share).sum::<f64>();
                let shares = several.iter().map(|wait| wait.share).chain([rest.max(0.0)]);
                draw(at, shares).and_then(|index| several.get(index))
            }
        };
        let weight_s = info::seconds(sample.weight_ns);
        let mut detailed = DetailSample {
            t_s: info::seconds(sample.t_ns),
            thread: rows.threads[sample.thread.index()],
            stack: 0,
            object: None,
            weight_s,
            stall_s: 0.0,
            level: None,
        };
        detailed.stack = match waited {
            Some(wait) => {
                stalled(context, rows, sample, wait.site, even, &mut detailed);
                chains.ending_at(stack.parent, run.sites[wait.site.index()].frame)
            }
            None => chains.of(sample.stack),
        };
        samples.push(detailed);
    }
    let accesses = rows.hardware.map_or_else(Vec::new, |view| {
        let thread = |id: ThreadId| rows.threads[id.index()];
        hardware::accesses(context, view, thread, |stack| chains.of(stack))
    });
    Detail {
        names: chains.names,
        frames: chains.frames,
        stacks: chains.stacks,
        threads: (0..rows.threads.len() as u32).collect(),
        objects: rows.objects.iter().flatten().count() as u32,
        samples,
        accesses,
        listings: Vec::new(),
        periods: Vec::new(),
    }
}

/// The samples sorted by time. Ties are broken by the other fields, so that the result does not depend on
/// the order of recording.
fn in_order(run: &RunData) -> std::borrow::Cow<'_, [Sample]> {
    let key = |sample: &Sample| {
        (
            sample.t_ns,
            sample.thread,
            sample.stack,
            sample.weight_ns,
            sample.address,
            sample.object,
        )
    };
    if run.samples.is_sorted_by_key(key) {
        return run.samples.as_slice().into();
    }
    let mut sorted = run.samples.clone();
    sorted.sort_by_key(key);
    sorted.into()
}

/// Sets stall, object and level of a sample that waited for `site`.
fn stalled(
    context: &Context<'_>,
    rows: &Rows<'_>,
    sample: &Sample,
    site: SiteId,
    even: &mut Even,
    detailed: &mut DetailSample,
) {
    let parts = in_thread(context.parts.of(site), sample.thread);
    let (time_ns, stall_ns) = parts.iter().fold((0.0, 0.0), |(time, stall), part| {
        (time + part.time_ns, stall + part.stall_ns)
    });
    let known = sample.object.map(|object| context.groups.of(object));
    let part = known
        .and_then(|group| parts.iter().find(|part| part.group == group))
        .or_else(|| match parts {
            [only] => Some(only),
            several => draw(even.next(), several.iter().map(|part| part.stall_ns))
                .or_else(|| draw(even.next(), several.iter().map(|part| part.time_ns)))
                .map(|index| &several[index]),
        });
    let group: Option<GroupId> = known.or_else(|| part.map(|part| part.group));
    detailed.object = group.and_then(|group| rows.objects[group.index()]);
    if time_ns <= 0.0 || stall_ns <= 0.0 {
        return;
    }
    detailed.stall_s = detailed.weight_s * (stall_ns / time_ns).min(1.0);
    let levels = part
        .filter(|part| part.stall_ns > 0.0)
        .map_or(context.costs[site.index()].stall.levels, |part| part.levels);
    let all = membound_model::stall::Served::ALL;
    let level = draw(even.next(), all.iter().map(|&level| levels.get(level)));
    detailed.level = level.and_then(|level| rows.levels.row_of[all[level] as usize]);
}

/// The parts of `thread` among `parts`, which all belong to one site and are sorted by thread.
fn in_thread(parts: &[Part], thread: ThreadId) -> &[Part] {
    let from = parts.partition_point(|part| part.thread < thread);
    let to = parts.partition_point(|part| part.thread <= thread);
    &parts[from..to]
}

/// Call chains with inlined functions as frames of their own.
struct Chains<'a> {
    context: &'a Context<'a>,
    names: Vec<String>,
    known_names: FxHashMap<String, u32>,
    frames: Vec<DetailFrame>,
    stacks: Vec<DetailStack>,
    known_stacks: FxHashMap<DetailStack, u32>,
    /// By frame of the run: index of its innermost function in `frames`, and the number of functions.
    expanded: Vec<Option<(u32, u32)>>,
    /// Index of the expanded chain, by [`StackId`].
    of_stack: Vec<Option<u32>>,
    ending: FxHashMap<(Option<StackId>, FrameId), u32>,
}

impl<'a> Chains<'a> {
    fn new(context: &'a Context<'a>) -> Self {
        Self {
            context,
            names: Vec::new(),
            known_names: FxHashMap::default(),
            frames: Vec::new(),
            stacks: Vec::new(),
            known_stacks: FxHashMap::default(),
            expanded: vec![None; context.run.frames.len()],
            of_stack: vec![None; context.run.stacks.len()],
            ending: FxHashMap::default(),
        }
    }

    /// Index of the expanded chain of `stack`.
    fn of(&mut self, stack: StackId) -> u32 {
        if let Some(known) = self.of_stack[stack.index()] {
            return known;
        }
        // Chains may be deep, hence no recursion: collect ancestors up to the first known one, then expand
        // inwards.
        let mut pending = vec![stack];
        let mut parent = self.context.run.stacks[stack.index()].parent;
        let mut known = None;
        while let Some(id) = parent {
            known = self.of_stack[id.index()];
            if known.is_some() {
                break;
            }
            pending.push(id);
            parent = self.context.run.stacks[id.index()].parent;
        }
        let mut innermost = 0;
        for id in pending.into_iter().rev() {
            innermost = self.extend(known, self.context.run.stacks[id.index()].frame);
            self.of_stack[id.index()] = Some(innermost);
            known = Some(innermost);
        }
        innermost
    }

    /// Index of the chain that consists of `parent` and, innermost, `frame`.
    fn ending_at(&mut self, parent: Option<StackId>, frame: FrameId) -> u32 {
        if let Some(&known) = self.ending.get(&(parent, frame)) {
            return known;
        }
        let caller = parent.map(|parent| self.of(parent));
        let innermost = self.extend(caller, frame);
        self.ending.insert((parent, frame), innermost);
        innermost
    }

    /// Index of the chain that adds the functions of `frame` inside `caller`.
    fn extend(&mut self, caller: Option<u32>, frame: FrameId) -> u32 {
        let (first, count) = self.expand(frame);
        let mut parent = caller;
        for frame in (first..first + count).rev() {
            let stack = DetailStack { parent, frame };
            let next = self.stacks.len() as u32;
            let id = *self.known_stacks.entry(stack).or_insert(next);
            if id == next {
                self.stacks.push(stack);
            }
            parent = Some(id);
        }
        parent.expect("a frame has at least one function")
    }

    /// Functions of `frame`, innermost first: index of the first in `frames`, and their number.
    fn expand(&mut self, frame: FrameId) -> (u32, u32) {
        if let Some(ancestor) = self.expanded[frame.index()] {
            return ancestor;
        }
        let places = &self.context.places;
        let place = self.context.run.frames[frame.index()];
        let function = places.function(places.function_of(frame));
        let module = self.name(places.module_path(place.module));
        let first = self.frames.len() as u32;
        let locations: Vec<_> = places.locations(frame).collect();
        let count = locations.len().max(1);
        for index in 0..count {
            let at = locations.get(index);
            let outermost = index + 1 == count;
            let name = match at {
                Some(at) if !at.function.is_empty() => at.function.as_str(),
                _ if outermost => &function.name,
                _ => "inlined",
            };
            let function = self.name(name);
            let file = at
                .and_then(|at| at.file.as_deref())
                .map(|file| self.name(file));
            self.frames.push(DetailFrame {
                function,
                file,
                line: at.and_then(|at| at.line),
                module,
                address: place.address,
                inlined: !outermost,
            });
        }
        let range = (first, count as u32);
        self.expanded[frame.index()] = Some(range);
        range
    }

    fn name(&mut self, name: &str) -> u32 {
        if let Some(&known) = self.known_names.get(name) {
            return known;
        }
        let id = self.names.len() as u32;
        self.names.push(name.to_owned());
        self.known_names.insert(name.to_owned(), id);
        id
    }
}
