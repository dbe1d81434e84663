//! Reads counters of the bytes that memory controllers and links between packages move, where the machine has
//! them and permits reading. They count the traffic of the whole machine, not only of the program.

use std::collections::BTreeMap;

use membound_platform::Root;
use membound_platform::counters::{Moved, TrafficCounter, paranoid, traffic_counters};
use membound_run::Traffic;

use crate::gaps::Gaps;
use crate::perf::{Attr, Event};

/// Packages up to which the target of a link is known: on machines with more, it is not known which link
/// leads where.
const MAX_LINKED_PACKAGES: usize = 2;

#[derive(Debug)]
struct Counter {
    event: Event,
    of: TrafficCounter,
    count: u64,
}

/// Open traffic counters.
#[derive(Debug, Default)]
pub(crate) struct TrafficCounters {
    counters: Vec<Counter>,
    packages: Vec<u32>,
    read_ns: u64,
}

impl TrafficCounters {
    /// Opens all counters of the machine; notes a gap where counters exist but may not be read.
    pub(crate) fn open(root: &Root, now_ns: u64, gaps: &mut Gaps) -> Self {
        let mut opened = Self {
            read_ns: now_ns,
            ..Self::default()
        };
        for of in traffic_counters(root) {
            let attr = Attr::counter(of.type_number, of.config);
            match Event::open_on_cpu(&attr, of.cpu) {
                Ok(event) => {
                    if !opened.packages.contains(&of.package) {
                        opened.packages.push(of.package);
                    }
                    let count = event.count().unwrap_or(0);
                    opened.counters.push(Counter { event, of, count });
                }
                Err(error) => {
                    let level = paranoid(root).map_or_else(String::new, |level| {
                        format!(" (kernel.perf_event_paranoid is {level})")
                    });
                    let reason =
                        format!("counters of memory traffic cannot be read: {error}{level}");
                    let remedy = "as root: sysctl kernel.perf_event_paranoid=0";
                    gaps.note("bandwidth", reason, Some(remedy));
                }
            }
        }
        opened
    }

    /// Bytes moved since the last call, by domain (a package's DRAM or a link).
    pub(crate) fn read(&mut self, now_ns: u64) -> Vec<Traffic> {
        if self.counters.is_empty() || now_ns <= self.read_ns {
            return Vec::new();
        }
        let mut domains: BTreeMap<String, (f64, f64)> = BTreeMap::new();
        for counter in &mut self.counters {
            let Ok(count) = counter.event.count() else {
                continue;
            };
            let bytes = count.wrapping_sub(counter.count) as f64 * counter.of.bytes;
            counter.count = count;
            if let Some(domain) = domain(&counter.of, &self.packages) {
                let sum = domains.entry(domain).or_default();
                match counter.of.moved {
                    Moved::Read | Moved::Sent => sum.0 += bytes,
                    Moved::Written => sum.1 += bytes,
                }
            }
        }
        let from_ns = std::mem::replace(&mut self.read_ns, now_ns);
        domains
            .into_iter()
            .map(|(domain, (read, written))| Traffic {
                domain,
                from_ns,
                to_ns: now_ns,
                read_bytes: read as u64,
                write_bytes: written as u64,
            })
            .collect()
    }
}

/// Name of a counter's domain on a machine with these packages; `None` if it is not known.
fn domain(counter: &TrafficCounter, packages: &[u32]) -> Option<String> {
    let from = counter.package;
    if counter.moved != Moved::Sent {
        return Some(format!("DRAM {from}"));
    }
    let other = packages.iter().find(|package| **package != from)?;
    (packages.len() <= MAX_LINKED_PACKAGES).then(|| format!("interconnect {from}→{other}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_belong_to_packages_and_to_the_link_between_two() {
        let counter = |package, moved| TrafficCounter {
            pmu: String::new(),
            type_number: 24,
            config: 0,
            cpu: 0,
            package,
            moved,
            bytes: 64.0,
        };
        let domain = |package, moved, packages: &[u32]| domain(&counter(package, moved), packages);
        assert_eq!(domain(1, Moved::Written, &[0, 1]).unwrap(), "DRAM 1");
        assert_eq!(domain(1, Moved::Sent, &[0, 1]).unwrap(), "interconnect 1→0");
        assert_eq!(domain(0, Moved::Sent, &[0]), None, "there is no other");
        assert_eq!(
            domain(0, Moved::Sent, &[0, 1, 2]),
            None,
            "nobody knows where to"
        );
    }

    #[test]
    fn without_counters_nothing_is_read() {
        let scratch = tempfile::tempdir().unwrap();
        let mut gaps = Gaps::default();
        let mut counters = TrafficCounters::open(&Root::at(scratch.path()), 5, &mut gaps);
        assert_eq!(counters.read(10), []);
        assert!(gaps.all().is_empty());
    }
}
