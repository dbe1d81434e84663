//! Hints: possible causes of typical patterns of a profile's outliers.
//!
//! A hint says where to look and is not a finding: its text describes the pattern before the cause.

use std::collections::HashMap;

use membound_types::Outlier;

/// Relative change below which a figure counts as unchanged.
const MAX_UNCHANGED_RATIO_ERROR: f64 = 0.04;

/// The outliers and figures of one profile in a fleet.
struct Pattern<'a> {
    outliers: &'a [Outlier],
    /// By figure: its value in this profile and the median of the fleet.
    values: &'a HashMap<&'a str, (f64, f64)>,
}

/// Hints for the outliers of one profile; `values` has each figure's value and its median.
pub(super) fn of_outliers(outliers: &[Outlier], values: &HashMap<&str, (f64, f64)>) -> Vec<String> {
    let pattern = Pattern { outliers, values };
    let busy = pattern.busy();
    if busy.is_some() {
        return busy.into_iter().collect();
    }
    let clock = pattern.clock();
    let nodes = pattern.nodes();
    // Each of these also makes memory look slow, and is more specific.
    let explained = clock.is_some() || nodes.is_some() || pattern.huge_pages_lost();
    let memory = if explained { None } else { pattern.memory() };
    [
        clock,
        memory,
        pattern.pages(),
        pattern.prefetchers(),
        nodes,
        pattern.shared_cache(),
        pattern.windows(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn percent(ratio: f64) -> String {
    format!("{:.0} %", (ratio - 1.0).abs() * 100.0)
}

impl Pattern<'_> {
    /// Value ÷ median; `None` if the figure is missing or its median is not positive.
    fn ratio(&self, name: &str) -> Option<f64> {
        let (value, median) = self.values.get(name)?;
        (*median > 0.0).then_some(value / median)
    }

    fn unchanged(&self, name: &str) -> bool {
        self.ratio(name)
            .is_some_and(|ratio| (ratio - 1.0).abs() < MAX_UNCHANGED_RATIO_ERROR)
    }

    fn worse(&self, test: impl Fn(&str) -> bool) -> Vec<&Outlier> {
        self.outliers
            .iter()
            .filter(|outlier| outlier.worse && test(&outlier.name))
            .collect()
    }

    /// The largest change among the outliers, as a ratio to the median.
    fn largest(found: &[&Outlier]) -> f64 {
        found
            .iter()
            .map(|outlier| 1.0 + outlier.relative)
            .max_by(|a, b| (a - 1.0).abs().total_cmp(&(b - 1.0).abs()))
            .unwrap_or(1.0)
    }

    fn busy(&self) -> Option<String> {
        let worse = self.worse(|_| true).len();
        // A lower clock also worsens every time, but not the number of cycles.
        let inner = self.ratio("levels.L1.latency_cycles")?;
        (2 * worse > self.values.len() && inner > 1.0 + MAX_UNCHANGED_RATIO_ERROR).then(|| {
            "most figures are worse, even those of the first level in cycles: the machine was \
             busy; measure it again before looking for a cause"
                .to_owned()
        })
    }

    fn clock(&self) -> Option<String> {
        let ns = self.ratio("levels.L1.latency_ns")?;
        (ns > 1.0 + MAX_UNCHANGED_RATIO_ERROR && self.unchanged("levels.L1.latency_cycles")).then(|| {
            format!(
                "times in ns are {} longer and the same in cycles: a lower core clock (governor, \
                 power or thermal limit)",
                percent(ns)
            )
        })
    }

    fn memory(&self) -> Option<String> {
        let slow = self.worse(|name| {
            name == "levels.DRAM.latency_ns"
                || name.starts_with("latency.thp.")
                || (name.starts_with("loaded.") && name.ends_with(".idle_ns"))
                || (name.starts_with("mlp.thp.") && name.ends_with(".one_load_cycles"))
                || (name.starts_with("numa.") && name.ends_with(".latency_ns"))
        });
        let narrow = self.worse(|name| {
            name.starts_with("bandwidth.DRAM.")
                || name == "bandwidth.memory_max_gb_s"
                || (name.starts_with("loaded.") && name.ends_with(".max_gb_s"))
                || (name.starts_with("numa.") && name.ends_with(".read_gb_s"))
        });
        let caches = self.worse(|name| {
            name.starts_with("levels.L1.latency") || name.starts_with("levels.L2.latency")
        });
        if !caches.is_empty() || (slow.is_empty() && narrow.is_empty()) {
            return None;
        }
        let place = self.one_node(slow.iter().chain(&narrow).copied());
        let (up, down) = (Self::largest(&slow), Self::largest(&narrow));
        Some(match (slow.is_empty(), narrow.is_empty()) {
            (false, false) => format!(
                "memory latency is up by {} and bandwidth down by {}{place}, caches are as usual: \
                 a slow or missing DIMM or channel",
                percent(up),
                percent(down)
            ),
            (true, false) => format!(
                "memory bandwidth is down by {}{place} and latency as usual: a memory channel \
                 without DIMM, or other programs that use the memory",
                percent(down)
            ),
            _ => format!(
                "memory latency is up by {}{place} and bandwidth as usual: memory clock, timings \
                 or power saving, or memory of another node",
                percent(up)
            ),
        })
    }

    /// ` on node N` if the outliers among pairs of nodes all concern one node's memory and
    /// there are other nodes; else empty.
    fn one_node<'a>(&self, found: impl Iterator<Item = &'a Outlier>) -> String {
        let memory = |name: &str| {
            let mut words = name.split('.');
            (words.next() == Some("numa")).then(|| words.nth(1).map(str::to_owned))?
        };
        let mut bad: Vec<String> = found.filter_map(|outlier| memory(&outlier.name)).collect();
        bad.sort();
        bad.dedup();
        let mut all: Vec<String> = self.values.keys().filter_map(|name| memory(name)).collect();
        all.sort();
        all.dedup();
        match bad.as_slice() {
            [node] if all.len() > 1 => format!(" on node {node}"),
            _ => String::new(),
        }
    }

    /// True if huge pages cost as much as small ones here but less in the fleet, and small pages cost
    /// the same as in the fleet.
    fn huge_pages_lost(&self) -> bool {
        let at = |page: &str| {
            self.values
                .get(format!("latency.{page}.256MiB_ns").as_str())
        };
        let (Some(small), Some(large)) = (at("4k"), at("thp")) else {
            return false;
        };
        large.0 > 0.97 * small.0
            && large.1 < 0.93 * small.1
            && (small.0 / small.1 - 1.0).abs() < 2.0 * MAX_UNCHANGED_RATIO_ERROR
    }

    fn pages(&self) -> Option<String> {
        if self.huge_pages_lost() {
            return Some(
                "loads on huge pages take as long as on 4 KiB pages, elsewhere less: the host of \
                 this guest backs it with small pages, or huge pages are off"
                    .to_owned(),
            );
        }
        let base = self.worse(|name| {
            name.starts_with("latency.4k.")
                || (name.starts_with("mlp.4k.") && name.ends_with("_cycles"))
                || (name.starts_with("tlb.4k.") && name.ends_with(".miss_cycles"))
        });
        let large_same = self.unchanged("latency.thp.256MiB_ns")
            || self.unchanged("mlp.thp.local.one_load_cycles");
        (!base.is_empty() && large_same).then(|| {
            format!(
                "loads on 4 KiB pages cost up to {} more and those on huge pages the same: page \
                 walks are dearer (huge pages off on the host of a guest, or nested paging)",
                percent(Self::largest(&base))
            )
        })
    }

    fn prefetchers(&self) -> Option<String> {
        let off = self.worse(|name| name.starts_with("prefetch."));
        let off: Vec<&Outlier> = off
            .into_iter()
            .filter(|outlier| outlier.value > 0.8 && outlier.median < 0.6)
            .collect();
        (off.len() >= 3).then(|| {
            format!(
                "{} patterns that are prefetched elsewhere take as long as random loads: hardware \
                 prefetchers are off (BIOS, or MSR 0x1A4 / 0xC0000108)",
                off.len()
            )
        })
    }

    fn nodes(&self) -> Option<String> {
        if let Some((here, usual)) = self.values.get("numa.nodes")
            && here < usual
        {
            return Some(format!(
                "{here:.0} instead of {usual:.0} nodes: node interleaving is on or NUMA is off \
                 (BIOS, or numa=off)"
            ));
        }
        let (mut local, mut remote) = (Vec::new(), Vec::new());
        for (name, values) in self.values {
            let words: Vec<&str> = name.split('.').collect();
            if let ["numa", cpu, memory, "latency_ns"] = words.as_slice() {
                if cpu == memory {
                    &mut local
                } else {
                    &mut remote
                }
                .push(*values);
            }
        }
        let mean = |values: &[(f64, f64)], read: fn(&(f64, f64)) -> f64| {
            values.iter().map(read).sum::<f64>() / values.len() as f64
        };
        if local.is_empty() || remote.is_empty() {
            return None;
        }
        let here = mean(&remote, |it| it.0) / mean(&local, |it| it.0);
        let usual = mean(&remote, |it| it.1) / mean(&local, |it| it.1);
        (here < 1.05 && usual > 1.15).then(|| {
            format!(
                "remote memory is as near as local ({:.2} against {usual:.2} times elsewhere): \
                 node interleaving in the BIOS",
                here
            )
        })
    }

    fn shared_cache(&self) -> Option<String> {
        let sizes = self.worse(|name| name.starts_with("levels.") && name.ends_with(".size_bytes"));
        let [only] = sizes.as_slice() else {
            return None;
        };
        Some(format!(
            "{} is {} smaller than usual: neighbours use it, or cache allocation limits it",
            only.title,
            percent(1.0 + only.relative)
        ))
    }

    fn windows(&self) -> Option<String> {
        let halved = self.outliers.iter().any(|outlier| {
            outlier.name.ends_with(".rob_entries")
                && (0.4..0.65).contains(&(1.0 + outlier.relative))
        });
        halved.then(|| {
            "the reorder buffer is half of the usual one: another hardware thread of the core was \
             busy"
                .to_owned()
        })
    }
}
