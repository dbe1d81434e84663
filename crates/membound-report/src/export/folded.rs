//! Folded stacks for flame graph scripts: one line per call chain.

use std::collections::BTreeMap;

use membound_types::Detail;

use super::chains::Chains;

/// Weight of a call chain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Weight {
    /// CPU time of the call chain.
    Time,
    /// The part of the CPU time that was stalled on memory.
    #[default]
    Stall,
}

/// Writes one line per call chain, outermost function first, with its weight in nanoseconds, as in
/// `main;f;g 1234000`. Inlined functions end in `_[i]`. Chains without weight are left out.
#[must_use]
pub fn folded(detail: &Detail, weight: Weight) -> String {
    let chains = Chains::new(detail);
    let mut lines: BTreeMap<String, u64> = BTreeMap::new();
    let mut by_stack: BTreeMap<u32, u64> = BTreeMap::new();
    for (key, sum) in chains.sums() {
        *by_stack.entry(key.stack).or_default() += match weight {
            Weight::Time => sum.cpu_ns,
            Weight::Stall => sum.stall_ns,
        };
    }
    for (stack, weight_ns) in by_stack {
        // Chains that differ only in addresses share a line.
        *lines.entry(line(chains, stack)).or_default() += weight_ns;
    }
    let mut out = String::new();
    for (line, weight_ns) in lines {
        if weight_ns > 0 {
            out.push_str(&format!("{line} {weight_ns}\n"));
        }
    }
    out
}

/// Functions of a chain, outermost first, separated by semicolons.
pub(super) fn line(chains: Chains<'_>, stack: u32) -> String {
    let mut words = Vec::new();
    for position in chains.frames(stack).into_iter().rev() {
        let Some(frame) = chains.frame(position) else {
            continue;
        };
        let name: String = chains
            .name(frame.function)
            .chars()
            .map(|c| match c {
                // The semicolon separates frames.
                ';' => ':',
                c if c.is_control() => ' ',
                c => c,
            })
            .collect();
        words.push(if frame.inlined {
            format!("{name}_[i]")
        } else {
            name
        });
    }
    if words.is_empty() {
        "[unknown]".to_owned()
    } else {
        words.join(";")
    }
}
