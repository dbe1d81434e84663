//! Reads call chains and samples for all export formats. Positions that are out of range in a damaged run
//! are skipped.

use std::collections::BTreeMap;

use membound_types::{Detail, DetailFrame, DetailSample};

use crate::units::positive;

/// Frames at which a chain is cut at its outer end; only a loop in a damaged run is this deep.
const DEEPEST: usize = 4096;
/// Replaces a missing name.
const NAMELESS: &str = "?";

/// Resolves names, frames and chains of a [`Detail`].
#[derive(Clone, Copy)]
pub(super) struct Chains<'a> {
    detail: &'a Detail,
}

/// Samples with equal keys are added up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    pub(super) thread: u32,
    pub(super) stack: u32,
    pub(super) object: Option<u32>,
    pub(super) level: Option<u8>,
}

/// Sum of samples. Every sample is rounded to nanoseconds before it is added, so that all formats agree to
/// the nanosecond.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sum {
    pub(super) samples: u64,
    pub(super) cpu_ns: u64,
    pub(super) stall_ns: u64,
}

impl Sum {
    /// Values of one sample; the stalled part is at most the whole.
    pub(super) fn of(sample: &DetailSample) -> Self {
        let cpu_ns = nanoseconds(sample.weight_s);
        Self {
            samples: 1,
            cpu_ns,
            stall_ns: nanoseconds(sample.stall_s).min(cpu_ns),
        }
    }

    pub(super) fn add(&mut self, other: Self) {
        self.samples += other.samples;
        self.cpu_ns = self.cpu_ns.saturating_add(other.cpu_ns);
        self.stall_ns = self.stall_ns.saturating_add(other.stall_ns);
    }
}

impl Key {
    pub(super) fn of(sample: &DetailSample) -> Self {
        Self {
            thread: sample.thread,
            stack: sample.stack,
            object: sample.object,
            level: sample.level,
        }
    }
}

impl<'a> Chains<'a> {
    pub(super) const fn new(detail: &'a Detail) -> Self {
        Self { detail }
    }

    pub(super) fn name(self, position: u32) -> &'a str {
        self.detail
            .names
            .get(position as usize)
            .map_or(NAMELESS, String::as_str)
    }

    /// Positions of a chain's frames, innermost first.
    pub(super) fn frames(self, stack: u32) -> Vec<u32> {
        let mut out = Vec::new();
        let mut next = Some(stack);
        while let Some(node) = next.and_then(|at| self.detail.stacks.get(at as usize)) {
            if (node.frame as usize) < self.detail.frames.len() {
                out.push(node.frame);
            }
            if out.len() >= DEEPEST {
                break;
            }
            next = node.parent;
        }
        out
    }

    /// Innermost frame of a chain.
    pub(super) fn innermost(self, stack: u32) -> Option<&'a DetailFrame> {
        self.frame(self.detail.stacks.get(stack as usize)?.frame)
    }

    /// Frames of a chain, innermost first, grouped by address: inlined functions, and last the function
    /// that they were inlined into.
    pub(super) fn frames_by_address(self, stack: u32) -> Vec<Vec<u32>> {
        let mut out = Vec::new();
        let mut of_address = Vec::new();
        for position in self.frames(stack) {
            of_address.push(position);
            if !self.frame(position).is_some_and(|frame| frame.inlined) {
                out.push(std::mem::take(&mut of_address));
            }
        }
        if !of_address.is_empty() {
            out.push(of_address);
        }
        out
    }

    /// By module: the address behind the highest frame.
    pub(super) fn limits(self) -> BTreeMap<u32, u64> {
        let mut out = BTreeMap::new();
        for frame in &self.detail.frames {
            let limit = out.entry(frame.module).or_insert(0);
            *limit = frame.address.saturating_add(1).max(*limit);
        }
        out
    }

    pub(super) fn frame(self, position: u32) -> Option<&'a DetailFrame> {
        self.detail.frames.get(position as usize)
    }

    /// Sums of the samples by thread, chain, object and level.
    pub(super) fn sums(self) -> BTreeMap<Key, Sum> {
        let mut out: BTreeMap<Key, Sum> = BTreeMap::new();
        for sample in &self.detail.samples {
            out.entry(Key::of(sample)).or_default().add(Sum::of(sample));
        }
        out
    }
}

/// Samples sorted by time; the sort is stable.
pub(super) fn by_time(detail: &Detail) -> Vec<&DetailSample> {
    let mut samples: Vec<&DetailSample> = detail.samples.iter().collect();
    samples.sort_by(|a, b| positive(a.t_s).total_cmp(&positive(b.t_s)));
    samples
}

/// Converts seconds to whole nanoseconds; 0 for negative or infinite values.
pub(super) fn nanoseconds(seconds: f64) -> u64 {
    (positive(seconds) * 1e9).round() as u64
}
