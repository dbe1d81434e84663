//! Counters of the calling thread through `perf_event_open`, and which of them this machine has.
//!
//! A counter that is not available has a reason with a remedy, never a zero: most machines that
//! membound runs on are guests without a PMU, or containers without the permission to count.

mod devices;
mod encoding;
mod event;
mod perf;
mod traffic;

use std::sync::OnceLock;

use membound_types::{Cpu, NotMeasured};

pub use devices::{Pmu, PmuKind, pmus};
pub use event::{Event, Reading};
pub use perf::{breakpoints, hardware_cycles, paranoid, software_clock};
pub use traffic::{Moved, TrafficCounter, traffic_counters};

use crate::{Error, Root, cpu};

/// Events that are counted together for the calling thread.
///
/// The kernel schedules them as one group as far as the PMU has counters for it, so that their
/// ratios hold also where other groups share the counters with them. It counts the thread that
/// opened it, wherever the thread runs, and stops counting when it is disabled.
#[derive(Debug)]
pub struct CounterGroup {
    groups: Vec<perf::Group>,
    order: Vec<Event>,
}

impl CounterGroup {
    /// Opens all of `events`, disabled and at zero.
    ///
    /// # Errors
    /// The reason and the remedy for the first event that is not available.
    pub fn open(events: &[Event]) -> Result<Self, NotMeasured> {
        // Identified once: CPUID traps in a guest, and groups are opened in the middle of
        // measuring.
        static PROCESSOR: OnceLock<Cpu> = OnceLock::new();
        let root = Root::system();
        let processor = PROCESSOR.get_or_init(|| cpu::identify(&root));
        let mut groups: Vec<perf::Group> = Vec::new();
        for &event in events {
            let code = encoding::of(&root, processor, event)?;
            let joined = match groups.last_mut() {
                Some(group) => group.join(event, code)?,
                None => false,
            };
            if !joined {
                groups.push(perf::Group::lead(event, code)?);
            }
        }
        Ok(Self {
            groups,
            order: events.to_vec(),
        })
    }

    /// Opens those of `events` that are available, and returns the reason for each of the others.
    #[must_use]
    pub fn open_any(events: &[Event]) -> (Self, Vec<(Event, NotMeasured)>) {
        let mut refused = Vec::new();
        let mut granted = Vec::new();
        for &event in events {
            match Self::open(&[event]) {
                Ok(_) => granted.push(event),
                Err(reason) => refused.push((event, reason)),
            }
        }
        match Self::open(&granted) {
            Ok(group) => (group, refused),
            Err(reason) => {
                refused.extend(granted.into_iter().map(|event| (event, reason.clone())));
                let none = Self {
                    groups: Vec::new(),
                    order: Vec::new(),
                };
                (none, refused)
            }
        }
    }

    /// The events, in the order of [`CounterGroup::read`].
    #[must_use]
    pub fn events(&self) -> &[Event] {
        &self.order
    }

    /// Starts counting; counts continue from their current values.
    ///
    /// # Errors
    /// [`Error::Call`] where the kernel refuses, which is not expected.
    pub fn enable(&self) -> Result<(), Error> {
        self.groups.iter().try_for_each(perf::Group::enable)
    }

    /// Stops counting and keeps the counts.
    ///
    /// # Errors
    /// As [`CounterGroup::enable`].
    pub fn disable(&self) -> Result<(), Error> {
        self.groups.iter().try_for_each(perf::Group::disable)
    }

    /// Sets the counts to zero.
    ///
    /// # Errors
    /// As [`CounterGroup::enable`], and as [`CounterGroup::read`], because a reset also reads the
    /// times from which shares are computed.
    pub fn reset(&mut self) -> Result<(), Error> {
        self.groups.iter_mut().try_for_each(perf::Group::reset)
    }

    /// The counts since the last reset, in the order in which the events were given.
    ///
    /// # Errors
    /// [`Error::Call`] where the kernel's answer cannot be read.
    pub fn read(&self) -> Result<Vec<Reading>, Error> {
        let mut readings = Vec::with_capacity(self.order.len());
        for group in &self.groups {
            readings.extend(group.read()?);
        }
        Ok(readings)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use membound_types::Outcome;
    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

    /// Touches that many fresh pages, one fault each.
    fn fault(pages: usize) {
        let page = crate::pages::base_page_bytes();
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // Shared memory is not given in huge pages by default, so that each page faults.
        let flags = MapFlags::SHARED;
        // SAFETY: the kernel chooses the address, so that nothing else is replaced.
        let place =
            unsafe { mmap_anonymous(std::ptr::null_mut(), pages * page, access, flags) }.unwrap();
        for index in 0..pages {
            let byte = place.cast::<u8>().wrapping_add(index * page);
            // SAFETY: the byte lies inside the mapping made above.
            unsafe { byte.write_volatile(1) };
        }
        // SAFETY: nothing refers to the mapping any more.
        unsafe { munmap(place, pages * page) }.unwrap();
    }

    fn open(events: &[Event]) -> Option<CounterGroup> {
        match CounterGroup::open(events) {
            Ok(group) => Some(group),
            Err(reason) => {
                assert!(!reason.reason.is_empty());
                eprintln!("skipped: {}", reason.reason);
                None
            }
        }
    }

    #[test]
    fn page_faults_are_counted_between_enable_and_disable() {
        let Some(mut group) = open(&[Event::PageFaults]) else {
            return;
        };
        fault(10);
        group.enable().unwrap();
        fault(100);
        group.disable().unwrap();
        fault(10);
        let readings = group.read().unwrap();
        assert_eq!(readings.len(), 1);
        assert_eq!(readings[0].event, Event::PageFaults);
        let count = *readings[0].count.known().unwrap();
        assert!((100.0..110.0).contains(&count), "{count}");
        group.reset().unwrap();
        group.enable().unwrap();
        fault(50);
        group.disable().unwrap();
        let count = *group.read().unwrap()[0].count.known().unwrap();
        assert!((50.0..60.0).contains(&count), "{count}");
    }

    #[test]
    fn a_group_that_never_ran_has_no_count() {
        let Some(group) = open(&[Event::PageFaults]) else {
            return;
        };
        let reading = &group.read().unwrap()[0];
        assert!(reading.count.known().is_none(), "{reading:?}");
    }

    #[test]
    fn hardware_events_count_or_have_a_reason() {
        let events = [Event::Cycles, Event::L1DataMiss, Event::L2Miss];
        let Some(group) = open(&events) else { return };
        group.enable().unwrap();
        let mut sum = 0u64;
        for step in 0..1_000_000u64 {
            sum = std::hint::black_box(sum.wrapping_mul(3).wrapping_add(step));
        }
        group.disable().unwrap();
        let readings = group.read().unwrap();
        assert_eq!(
            readings
                .iter()
                .map(|reading| reading.event)
                .collect::<Vec<_>>(),
            events
        );
        match &readings[0].count {
            Outcome::Known(cycles) => assert!(*cycles > 1e6, "{cycles}"),
            Outcome::Missing { not_measured } => eprintln!("skipped: {}", not_measured.reason),
        }
    }

    #[test]
    fn unavailable_events_are_named_and_the_rest_is_opened() {
        let (group, refused) = CounterGroup::open_any(&Event::ALL);
        assert_eq!(group.events().len() + refused.len(), Event::ALL.len());
        for (event, reason) in &refused {
            assert!(!reason.reason.is_empty(), "{event}");
        }
        assert_eq!(group.read().unwrap().len(), group.events().len());
    }
}
