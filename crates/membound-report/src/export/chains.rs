//! Call chains and samples as every format needs them: positions that a damaged run could
//! have broken are passed over, never followed.

use std::collections::BTreeMap;

use membound_types::{Detail, DetailFrame};

/// Frames beyond which a chain is cut at its outer end; only a loop in a damaged run is
/// this deep.
const DEEPEST: usize = 4096;
/// What stands for a name that is not there.
const NAMELESS: &str = "?";

/// Reads names, frames and chains of a [`Detail`].
#[derive(Clone, Copy)]
pub(super) struct Chains<'a> {
    detail: &'a Detail,
}

/// Whose samples are added up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    pub(super) thread: u32,
    pub(super) stack: u32,
    pub(super) object: Option<u32>,
    pub(super) level: Option<u8>,
}

/// Samples added up.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Sum {
    pub(super) samples: u64,
    pub(super) weight_s: f64,
    pub(super) stall_s: f64,
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

    /// The frames of a chain by their positions, innermost first.
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

    pub(super) fn frame(self, position: u32) -> Option<&'a DetailFrame> {
        self.detail.frames.get(position as usize)
    }

    /// Samples added up by thread, chain, object and level.
    pub(super) fn sums(self) -> BTreeMap<Key, Sum> {
        let mut out: BTreeMap<Key, Sum> = BTreeMap::new();
        for sample in &self.detail.samples {
            let key = Key {
                thread: sample.thread,
                stack: sample.stack,
                object: sample.object,
                level: sample.level,
            };
            let sum = out.entry(key).or_default();
            sum.samples += 1;
            sum.weight_s += finite(sample.weight_s);
            sum.stall_s += finite(sample.stall_s);
        }
        out
    }
}

/// The value, or nothing where it is no number or below zero.
pub(super) fn finite(value: f64) -> f64 {
    if value.is_finite() {
        value.max(0.0)
    } else {
        0.0
    }
}

/// Seconds as whole nanoseconds.
pub(super) fn nanoseconds(seconds: f64) -> u64 {
    (finite(seconds) * 1e9).round() as u64
}
