//! Cache and TLB misses per execution, where the machine has counters for them.

use std::collections::HashMap;

use membound_platform::counters::{CounterGroup, Event};
use membound_types::{Misses, NotMeasured, Outcome};

/// Counts around the timed batches of a cell, summed over all its draws of displacements.
pub(super) struct MissCounter {
    group: CounterGroup,
    refused: HashMap<Event, NotMeasured>,
    counted: HashMap<Event, f64>,
    executions: u64,
}

impl MissCounter {
    const EVENTS: [Event; 4] = [
        Event::L1DataMiss,
        Event::L2Miss,
        Event::LastLevelMiss,
        Event::DataTlbMiss,
    ];

    /// Opens the counters that the calling thread may use.
    pub(super) fn open() -> Self {
        let (group, refused) = CounterGroup::open_any(&Self::EVENTS);
        Self {
            group,
            refused: refused.into_iter().collect(),
            counted: HashMap::new(),
            executions: 0,
        }
    }

    /// Starts counting. A counter that fails counts nothing, and [`MissCounter::take`] reports
    /// that.
    pub(super) fn begin(&mut self) {
        if !self.group.events().is_empty() {
            let _ = self.group.reset();
            let _ = self.group.enable();
        }
    }

    /// Stops counting after `executions` executions.
    pub(super) fn end(&mut self, executions: u64) {
        if self.group.events().is_empty() {
            return;
        }
        let _ = self.group.disable();
        for reading in self.group.read().unwrap_or_default() {
            if let Some(count) = reading.count.known() {
                *self.counted.entry(reading.event).or_default() += count;
            }
        }
        self.executions += executions;
    }

    /// Misses per execution since the last call.
    pub(super) fn take(&mut self) -> Outcome<Misses> {
        let executions = std::mem::take(&mut self.executions);
        let counted = std::mem::take(&mut self.counted);
        if self.group.events().is_empty() {
            let reason = Self::EVENTS
                .iter()
                .find_map(|event| self.refused.get(event));
            return match reason {
                Some(not_measured) => Outcome::Missing {
                    not_measured: not_measured.clone(),
                },
                None => Outcome::missing("no counter was granted"),
            };
        }
        let each = |event: Event| match (counted.get(&event), self.refused.get(&event)) {
            (Some(count), _) if executions > 0 => Outcome::Known(count / executions as f64),
            (_, Some(not_measured)) => Outcome::Missing {
                not_measured: not_measured.clone(),
            },
            _ => Outcome::missing("the counter never ran"),
        };
        Outcome::Known(Misses {
            l1: each(Event::L1DataMiss),
            l2: each(Event::L2Miss),
            l3: each(Event::LastLevelMiss),
            tlb: each(Event::DataTlbMiss),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_counters_a_cell_says_why_and_with_them_it_says_how_many() {
        let mut counter = MissCounter::open();
        counter.begin();
        counter.end(100);
        match counter.take() {
            Outcome::Known(misses) => {
                let known = [misses.l1, misses.l2, misses.l3, misses.tlb];
                assert!(
                    known
                        .iter()
                        .any(|miss| miss.known().is_some_and(|count| *count >= 0.0))
                );
            }
            Outcome::Missing { not_measured } => {
                println!("skipped: {}", not_measured.reason);
                assert!(!not_measured.reason.is_empty());
            }
        }
    }
}
