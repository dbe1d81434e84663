//! Classifies recorded events.

use super::about::About;
use super::attr::{Attr, sample_type};
use crate::Sampler;
use crate::bytes::shown;

/// The quantity that an event counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EventKind {
    /// CPU time, from a timer: periods are in nanoseconds.
    CpuTime,
    /// Core clock cycles.
    Cycles,
    /// Any other.
    Other,
}

/// A recorded event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Name, as perf prints it.
    pub name: String,
    /// The quantity that it counts.
    pub kind: EventKind,
    /// Fixed number of events per sample; `None` if the event had a frequency.
    pub period: Option<u64>,
    /// The unit that samples accesses for this event; `None` if its samples have no access.
    pub sampler: Option<Sampler>,
}

/// Values of `perf_event_attr.type`.
mod kind {
    pub(super) const HARDWARE: u32 = 0;
    pub(super) const SOFTWARE: u32 = 1;
    pub(super) const RAW: u32 = 4;
}

impl Event {
    pub(super) fn of(attr: &Attr, name: Option<&str>, about: &About) -> Self {
        let unit = about.unit(attr.kind);
        let name = match (name, unit) {
            (Some(name), _) if !name.is_empty() => shown(name),
            (_, Some(unit)) => shown(&format!("{unit}/config={:#x}/", attr.config)),
            _ => default_name(attr),
        };
        Self {
            kind: event_kind(attr, &name),
            period: (!attr.is_frequency).then_some(attr.period),
            sampler: sampler(attr, unit, about),
            name,
        }
    }
}

fn default_name(attr: &Attr) -> String {
    match (attr.kind, attr.config & 0xffff_ffff) {
        (kind::SOFTWARE, 0) => "cpu-clock".to_owned(),
        (kind::SOFTWARE, 1) => "task-clock".to_owned(),
        (kind::HARDWARE, 0) => "cycles".to_owned(),
        (kind, config) => format!("type {kind} config {config:#x}"),
    }
}

fn event_kind(attr: &Attr, name: &str) -> EventKind {
    // On hybrid processors, the bits above 32 have the PMU of the kind of core.
    match (attr.kind, attr.config & 0xffff_ffff) {
        (kind::SOFTWARE, 0 | 1) => EventKind::CpuTime,
        (kind::HARDWARE, 0) => EventKind::Cycles,
        (kind::HARDWARE | kind::SOFTWARE, _) => EventKind::Other,
        _ if is_cycles(name) => EventKind::Cycles,
        _ => EventKind::Other,
    }
}

/// True if a name such as `cpu_core/cycles/P` means core clock cycles.
pub(crate) fn is_cycles(name: &str) -> bool {
    let name = name.split_once('/').map_or(name, |(_, event)| event);
    let end = name.find(['/', ':', ',']).unwrap_or(name.len());
    matches!(&name[..end], "cycles" | "cpu-cycles" | "cpu_cycles")
}

/// The unit that samples accesses for an event; `None` if its samples have no access.
fn sampler(attr: &Attr, unit: Option<&str>, about: &About) -> Option<Sampler> {
    match unit {
        Some("ibs_op") => return Some(Sampler::Ibs),
        Some(unit) if unit.starts_with("arm_spe") => return Some(Sampler::Spe),
        _ => {}
    }
    if !attr.has(sample_type::DATA_SRC) || attr.kind == kind::SOFTWARE {
        return None;
    }
    let is_core = matches!(attr.kind, kind::HARDWARE | kind::RAW)
        || unit.is_some_and(|unit| unit.starts_with("cpu"));
    Some(match about.cpu_vendor() {
        Some("GenuineIntel") if is_core => Sampler::Pebs,
        Some("AuthenticAMD") => Sampler::Ibs,
        _ => Sampler::Other,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_cycles_are_known() {
        for name in [
            "cycles",
            "cycles:P",
            "cpu_core/cycles/P",
            "cpu/cpu-cycles,period=1/",
        ] {
            assert!(is_cycles(name), "{name}");
        }
        for name in ["ref-cycles", "cycle_activity", "cpu/mem-loads/P"] {
            assert!(!is_cycles(name), "{name}");
        }
    }
}
