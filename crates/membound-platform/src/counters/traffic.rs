//! Counters of the bytes that memory controllers and links between packages move.
//!
//! Intel's controllers (`uncore_imc_N`) list their events and units in sysfs. Those of AMD
//! (`amd_umc_N`) and Intel's links (`uncore_upi_N`) do not: their encodings are those of the
//! vendors' event lists as Linux has them under `tools/perf/pmu-events`.

use super::devices::{DEVICES, pmus};
use crate::{Root, list};

/// Bytes of a line; a memory controller moves one line per count.
const LINE_BYTES: f64 = 64.0;
/// Bytes of data in a flit of UPI: a line takes nine.
const FLIT_BYTES: f64 = 64.0 / 9.0;

/// What a counter counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Moved {
    /// Lines read from memory.
    Read,
    /// Lines written to memory.
    Written,
    /// Data sent to the other package.
    Sent,
}

/// A counter of bytes moved, on one PMU of one package.
#[derive(Clone, Debug, PartialEq)]
pub struct TrafficCounter {
    /// Name of the PMU.
    pub pmu: String,
    /// Its type number for `perf_event_open`.
    pub type_number: u32,
    /// Value of `perf_event_attr.config` for its event.
    pub config: u64,
    /// A CPU of its package, on which it must be opened.
    pub cpu: u32,
    /// Number of its package.
    pub package: u32,
    /// Kind and direction of the counted transfers.
    pub moved: Moved,
    /// Bytes of one count.
    pub bytes: f64,
}

/// All traffic counters, on every package.
#[must_use]
pub fn traffic_counters(root: &Root) -> Vec<TrafficCounter> {
    let mut counters = Vec::new();
    for pmu in pmus(root) {
        let Some(type_number) = pmu.type_number else {
            continue;
        };
        let events = events(root, &pmu.name);
        if events.is_empty() {
            continue;
        }
        let mask = root.attribute(format!("{DEVICES}/{}/cpumask", pmu.name));
        let cpus = mask.and_then(|mask| list::numbers(&mask));
        for cpu in cpus.unwrap_or_else(|| vec![0]) {
            let topology = format!("sys/devices/system/cpu/cpu{cpu}/topology/physical_package_id");
            let package = root.number(topology).unwrap_or(0);
            counters.extend(events.iter().map(|event| TrafficCounter {
                pmu: pmu.name.clone(),
                type_number,
                config: event.config,
                cpu,
                package,
                moved: event.moved,
                bytes: event.bytes,
            }));
        }
    }
    counters
}

struct Encoded {
    config: u64,
    moved: Moved,
    bytes: f64,
}

/// The events of a PMU that count bytes.
fn events(root: &Root, pmu: &str) -> Vec<Encoded> {
    if pmu.starts_with("uncore_imc") && !pmu.starts_with("uncore_imc_free_running") {
        let named = |name: &str, moved| named(root, pmu, name, moved);
        return [
            named("cas_count_read", Moved::Read),
            named("cas_count_write", Moved::Written),
        ]
        .into_iter()
        .flatten()
        .collect();
    }
    let coded = |config, moved, bytes| Encoded {
        config,
        moved,
        bytes,
    };
    if pmu.starts_with("amd_umc") {
        // Event 0x0a counts CAS commands; bits 8 and 9 choose reads and writes.
        return vec![
            coded(0x10a, Moved::Read, LINE_BYTES),
            coded(0x20a, Moved::Written, LINE_BYTES),
        ];
    }
    if pmu.starts_with("uncore_upi") {
        // UNC_UPI_TxL_FLITS.ALL_DATA.
        return vec![coded(0x0f02, Moved::Sent, FLIT_BYTES)];
    }
    Vec::new()
}

/// An event that sysfs describes: `event=0x05,umask=0xcf`, with `.scale` and `.unit` beside it.
fn named(root: &Root, pmu: &str, name: &str, moved: Moved) -> Option<Encoded> {
    let path = format!("{DEVICES}/{pmu}/events/{name}");
    let mut config = 0;
    for term in root.attribute(&path)?.trim().split(',') {
        let (field, value) = term.split_once('=')?;
        let value = u64::from_str_radix(value.trim_start_matches("0x"), 16).ok()?;
        config |= match field {
            "event" => value,
            "umask" => value << 8,
            // The position of any other field is unknown, and without it the event would be
            // another.
            _ => return None,
        };
    }
    let scale = root.attribute(format!("{path}.scale"));
    let scale = scale.and_then(|text| text.trim().parse::<f64>().ok());
    let unit = root.attribute(format!("{path}.unit"));
    let bytes = match (scale, unit.as_deref().map(str::trim)) {
        (Some(scale), Some("MiB")) => scale * f64::from(1 << 20),
        _ => LINE_BYTES,
    };
    Some(Encoded {
        config,
        moved,
        bytes,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Tree;

    #[test]
    fn controllers_of_two_packages_are_found_with_their_units() {
        let device = format!("{DEVICES}/uncore_imc_0");
        let package =
            |cpu: u32| format!("sys/devices/system/cpu/cpu{cpu}/topology/physical_package_id");
        let tree = Tree::new()
            .file(&format!("{device}/type"), "24\n")
            .file(&format!("{device}/cpumask"), "0,28\n")
            .file(
                &format!("{device}/events/cas_count_read"),
                "event=0x05,umask=0xcf\n",
            )
            .file(
                &format!("{device}/events/cas_count_read.scale"),
                "6.103515625e-5\n",
            )
            .file(&format!("{device}/events/cas_count_read.unit"), "MiB\n")
            .file(
                &format!("{device}/events/cas_count_write"),
                "event=0x05,umask=0xf0\n",
            )
            .file(&format!("{DEVICES}/uncore_imc_free_running_0/type"), "25\n")
            .file(&format!("{DEVICES}/amd_umc_0/type"), "30\n")
            .file(&format!("{DEVICES}/amd_umc_0/cpumask"), "0\n")
            .file(&format!("{DEVICES}/uncore_upi_1/type"), "31\n")
            .file(&format!("{DEVICES}/uncore_upi_1/cpumask"), "28\n")
            .file(&package(0), "0\n")
            .file(&package(28), "1\n");
        let counters = traffic_counters(&tree.root());
        let of = |pmu: &str| -> Vec<(u64, u32, u32, Moved)> {
            let counters = counters.iter().filter(|it| it.pmu == pmu);
            counters
                .map(|it| (it.config, it.cpu, it.package, it.moved))
                .collect()
        };
        assert_eq!(
            of("uncore_imc_0"),
            [
                (0xcf05, 0, 0, Moved::Read),
                (0xf005, 0, 0, Moved::Written),
                (0xcf05, 28, 1, Moved::Read),
                (0xf005, 28, 1, Moved::Written),
            ]
        );
        assert!(
            counters
                .iter()
                .all(|it| it.moved == Moved::Sent || it.bytes == 64.0)
        );
        assert_eq!(of("amd_umc_0").len(), 2);
        assert_eq!(of("uncore_upi_1"), [(0x0f02, 28, 1, Moved::Sent)]);
        assert_eq!(counters.len(), 7, "no free-running counters: {counters:?}");
    }

    #[test]
    fn an_event_with_a_field_of_unknown_place_is_left_alone() {
        let device = format!("{DEVICES}/uncore_imc_0");
        let tree = Tree::new().file(&format!("{device}/type"), "24\n").file(
            &format!("{device}/events/cas_count_read"),
            "event=0x05,ch_mask=0x1\n",
        );
        assert_eq!(traffic_counters(&tree.root()), []);
    }
}
