//! Encodings of events by processor.
//!
//! The kernel's generic cache events are used where they have the right meaning. On AMD they do
//! not: `cache-misses` is L2 there and no event of a core counts last-level misses, so the
//! demand-fill event is used, which distinguishes fills by their source. Encodings are those of the
//! vendors' event lists as Linux has them under `tools/perf/pmu-events`.

use membound_types::{Cpu, NotMeasured};

use super::devices::{Pmu, PmuKind, pmus};
use super::event::Event;
use crate::Root;

const TYPE_HARDWARE: u32 = 0;
const TYPE_SOFTWARE: u32 = 1;
const TYPE_HW_CACHE: u32 = 3;
const TYPE_RAW: u32 = 4;

const HW_CPU_CYCLES: u64 = 0;
const SW_PAGE_FAULTS: u64 = 2;

/// Cache, operation "read" and result "miss" as `PERF_TYPE_HW_CACHE` packs them.
const fn read_miss(cache: u64) -> u64 {
    cache | 1 << 16
}
const CACHE_L1D: u64 = 0;
const CACHE_LL: u64 = 2;
const CACHE_DTLB: u64 = 3;

/// Type and config of `perf_event_attr`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Code {
    pub(super) type_number: u32,
    pub(super) config: u64,
}

const fn code(type_number: u32, config: u64) -> Code {
    Code {
        type_number,
        config,
    }
}

/// An x86 event select and unit mask on the core PMU.
fn raw(root: &Root, event: u64, mask: u64) -> Code {
    // On hybrid processors the PMU of the larger cores has its own type number.
    let hybrid = pmus(root)
        .into_iter()
        .find(|pmu| pmu.name == "cpu_core")
        .and_then(|pmu| pmu.type_number);
    code(hybrid.unwrap_or(TYPE_RAW), mask << 8 | event)
}

pub(super) fn of(root: &Root, cpu: &Cpu, event: Event) -> Result<Code, NotMeasured> {
    match event {
        Event::PageFaults => return Ok(code(TYPE_SOFTWARE, SW_PAGE_FAULTS)),
        Event::Cycles => return Ok(code(TYPE_HARDWARE, HW_CPU_CYCLES)),
        Event::DataTlbMiss => return Ok(code(TYPE_HW_CACHE, read_miss(CACHE_DTLB))),
        Event::L1DataMiss | Event::L2Miss | Event::LastLevelMiss => {}
    }
    let known = match cpu.vendor.as_str() {
        "AuthenticAMD" | "HygonGenuine" => amd(root, cpu, event),
        "GenuineIntel" => intel(root, cpu, event),
        _ => generic(root, cpu, event),
    };
    known.ok_or_else(|| NotMeasured {
        reason: format!(
            "no encoding is known for {event} on this processor ({} family {:#x} model {:#x})",
            if cpu.vendor.is_empty() {
                &cpu.architecture
            } else {
                &cpu.vendor
            },
            cpu.family.unwrap_or(0),
            cpu.model.unwrap_or(0),
        ),
        remedy: None,
    })
}

/// PMC 0x43, demand data cache fills by source: 0x01 is the core's own L2, 0x02 its complex's L3
/// (and the other L2s there), all higher bits are sources beyond.
fn amd(root: &Root, cpu: &Cpu, event: Event) -> Option<Code> {
    const DEMAND_FILLS: u64 = 0x43;
    // Sources beyond the complex: 0x04 and 0x10 other complexes, 0x08 and 0x40 memory; bit 2 has a
    // meaning only from Zen 3 on.
    let beyond = match cpu.family? {
        0x17 | 0x18 => 0x58,
        0x19 | 0x1a => 0x5c,
        _ => return None,
    };
    Some(raw(
        root,
        DEMAND_FILLS,
        match event {
            Event::L1DataMiss => beyond | 0x03,
            Event::L2Miss => beyond | 0x02,
            _ => beyond,
        },
    ))
}

/// MEM_LOAD_RETIRED.L1_MISS, L2_MISS and L3_MISS (0xD1, masks 0x08, 0x10, 0x20): retired loads by
/// the cache that they missed, the same from Haswell to Lion Cove. Earlier processors use only the
/// generic events.
fn intel(root: &Root, cpu: &Cpu, event: Event) -> Option<Code> {
    const MEM_LOAD_RETIRED: u64 = 0xd1;
    let retired = matches!(
        cpu.published_rob,
        // Haswell and Broadwell, Skylake, Sunny Cove, Golden Cove, Lion Cove.
        Some(192 | 224 | 352 | 512 | 576)
    );
    if !retired {
        return generic(root, cpu, event);
    }
    Some(raw(
        root,
        MEM_LOAD_RETIRED,
        match event {
            Event::L1DataMiss => 0x08,
            Event::L2Miss => 0x10,
            _ => 0x20,
        },
    ))
}

fn generic(root: &Root, cpu: &Cpu, event: Event) -> Option<Code> {
    match event {
        Event::L1DataMiss => Some(code(TYPE_HW_CACHE, read_miss(CACHE_L1D))),
        Event::LastLevelMiss => Some(code(TYPE_HW_CACHE, read_miss(CACHE_LL))),
        // L2D_CACHE_REFILL of the Arm architecture's common events.
        Event::L2Miss if cpu.architecture == "aarch64" => {
            let core = pmus(root)
                .into_iter()
                .find(|pmu: &Pmu| pmu.kind == PmuKind::Core)?;
            Some(code(core.type_number.unwrap_or(TYPE_RAW), 0x17))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::{CoreType, microarchitecture};
    use crate::testing::Tree;

    fn processor(vendor: &str, family: u32, model: u32) -> Cpu {
        let known = microarchitecture(vendor, family, model, CoreType::Performance);
        Cpu {
            architecture: "x86_64".to_owned(),
            vendor: vendor.to_owned(),
            family: Some(family),
            model: Some(model),
            published_rob: known.and_then(|known| known.rob),
            ..Cpu::default()
        }
    }

    #[test]
    fn amd_fills_are_counted_by_source() {
        let root = Tree::new().root();
        let zen5 = processor("AuthenticAMD", 0x1a, 2);
        let config = |cpu, event| of(&root, cpu, event).unwrap().config;
        assert_eq!(config(&zen5, Event::L1DataMiss), 0x5f43);
        assert_eq!(config(&zen5, Event::L2Miss), 0x5e43);
        assert_eq!(config(&zen5, Event::LastLevelMiss), 0x5c43);
        let zen2 = processor("AuthenticAMD", 0x17, 0x31);
        assert_eq!(config(&zen2, Event::L2Miss), 0x5a43);
    }

    #[test]
    fn intel_loads_are_counted_by_the_level_they_missed() {
        let root = Tree::new().root();
        let icelake = processor("GenuineIntel", 6, 0x6a);
        let of = |event| of(&root, &icelake, event).unwrap();
        assert_eq!(of(Event::L1DataMiss), code(TYPE_RAW, 0x08d1));
        assert_eq!(of(Event::L2Miss), code(TYPE_RAW, 0x10d1));
        assert_eq!(of(Event::LastLevelMiss), code(TYPE_RAW, 0x20d1));
        assert_eq!(of(Event::DataTlbMiss), code(TYPE_HW_CACHE, 0x1_0003));
    }

    #[test]
    fn a_hybrid_processor_has_its_own_type() {
        let tree = Tree::new().file("sys/bus/event_source/devices/cpu_core/type", "4\n");
        let other = Tree::new().file("sys/bus/event_source/devices/cpu_core/type", "10\n");
        let alder = processor("GenuineIntel", 6, 0x97);
        assert_eq!(
            of(&tree.root(), &alder, Event::L2Miss).unwrap().type_number,
            4
        );
        assert_eq!(
            of(&other.root(), &alder, Event::L2Miss)
                .unwrap()
                .type_number,
            10
        );
    }

    #[test]
    fn unknown_encodings_have_a_reason() {
        let root = Tree::new().root();
        let sandy = processor("GenuineIntel", 6, 0x2d);
        assert!(of(&root, &sandy, Event::L1DataMiss).is_ok());
        let missing = of(&root, &sandy, Event::L2Miss).unwrap_err();
        assert_eq!(
            missing.reason,
            "no encoding is known for L2 cache misses on this processor \
             (GenuineIntel family 0x6 model 0x2d)"
        );
    }
}
