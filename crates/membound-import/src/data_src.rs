//! `PERF_SAMPLE_DATA_SRC`: the bit fields of `union perf_mem_data_src` in `linux/perf_event.h`.
//!
//! For the other byte order the header declares the fields in reverse, so that the number is the same.

use crate::{MemoryAccess, Operation, Served, Snoop, Translation};

/// The field of `bits` bits that begins at bit `shift`.
const fn field(value: u64, shift: u32, bits: u32) -> u64 {
    (value >> shift) & ((1 << bits) - 1)
}

mod operation {
    pub(super) const LOAD: u64 = 0x02;
    pub(super) const STORE: u64 = 0x04;
    pub(super) const PREFETCH: u64 = 0x08;
    pub(super) const EXECUTE: u64 = 0x10;
}

mod level {
    pub(super) const HIT: u64 = 0x02;
    pub(super) const MISS: u64 = 0x04;
    pub(super) const L1: u64 = 0x08;
    pub(super) const LINE_FILL: u64 = 0x10;
    pub(super) const L2: u64 = 0x20;
    pub(super) const L3: u64 = 0x40;
    pub(super) const LOCAL_RAM: u64 = 0x80;
    pub(super) const REMOTE_RAM: u64 = 0x100 | 0x200;
    pub(super) const REMOTE_CACHE: u64 = 0x400 | 0x800;
    pub(super) const DEVICE: u64 = 0x1000;
    pub(super) const UNCACHED: u64 = 0x2000;
}

mod snoop {
    pub(super) const NONE: u64 = 0x02;
    pub(super) const HIT: u64 = 0x04;
    pub(super) const MISS: u64 = 0x08;
    pub(super) const MODIFIED: u64 = 0x10;
}

mod tlb {
    pub(super) const HIT: u64 = 0x02;
    pub(super) const MISS: u64 = 0x04;
    pub(super) const L1: u64 = 0x08;
    pub(super) const L2: u64 = 0x10;
    pub(super) const WALK: u64 = 0x20;
}

/// Decodes `value`. Addresses and latency are in other fields of a sample and stay `None`.
pub(crate) fn decode(value: u64) -> MemoryAccess {
    let levels = field(value, 5, 14);
    let (served, missed) = served(value, levels);
    MemoryAccess {
        operation: operation(field(value, 0, 5)),
        served,
        missed,
        snoop: snoop(field(value, 19, 5), field(value, 38, 2)),
        translation: translation(field(value, 26, 7)),
        locked: match field(value, 24, 2) {
            0x02 => Some(true),
            0x01 | 0x03 => None,
            _ => Some(false),
        },
        latency_cycles: None,
        address: None,
        physical_address: None,
    }
}

const fn operation(bits: u64) -> Operation {
    let (loads, stores) = (bits & operation::LOAD != 0, bits & operation::STORE != 0);
    if loads && stores {
        Operation::LoadStore
    } else if loads {
        Operation::Load
    } else if stores {
        Operation::Store
    } else if bits & operation::PREFETCH != 0 {
        Operation::Prefetch
    } else if bits & operation::EXECUTE != 0 {
        Operation::Execute
    } else {
        Operation::Unknown
    }
}

/// The source of the line or, if unknown, the outermost cache known to have missed. The level number
/// is more precise than the older bits.
fn served(value: u64, levels: u64) -> (Served, Option<Served>) {
    let remote = field(value, 37, 1) != 0;
    let missed = levels & level::MISS != 0 && levels & level::HIT == 0;
    let numbered = match field(value, 33, 4) {
        0x1 | 0x7 => Some(Served::L1),
        0x2 | 0x5 => Some(Served::L2),
        0x3 => Some(Served::L3),
        0x4 | 0x6 => Some(Served::L4),
        0x8 => Some(Served::Uncached),
        0x9 => Some(Served::Cxl),
        0xa => Some(Served::Device),
        0xb => Some(Served::Cache),
        0xc => Some(Served::LineFill),
        0xd => Some(Served::Dram),
        0xe => Some(Served::Persistent),
        _ => None,
    };
    let bits = |mask: u64| levels & mask != 0;
    let found = numbered
        .map(|served| match served {
            Served::L1 | Served::L2 | Served::L3 | Served::L4 | Served::Cache if remote => {
                Served::RemoteCache
            }
            // For "any cache", the older bits are more precise.
            Served::Cache if bits(level::REMOTE_CACHE) => Served::RemoteCache,
            Served::Dram if remote || bits(level::REMOTE_RAM) => Served::RemoteDram,
            served => served,
        })
        .or_else(|| {
            let by_bits = [
                (level::L1, Served::L1),
                (level::LINE_FILL, Served::LineFill),
                (level::L2, Served::L2),
                (level::L3, Served::L3),
                (level::LOCAL_RAM, Served::Dram),
                (level::REMOTE_RAM, Served::RemoteDram),
                (level::REMOTE_CACHE, Served::RemoteCache),
                (level::DEVICE, Served::Device),
                (level::UNCACHED, Served::Uncached),
            ];
            by_bits
                .into_iter()
                .find_map(|(mask, served)| bits(mask).then_some(served))
        });
    match found {
        Some(level) if missed => (Served::Unknown, Some(level)),
        found => (found.unwrap_or_default(), None),
    }
}

const fn snoop(bits: u64, more: u64) -> Snoop {
    if bits & snoop::MODIFIED != 0 {
        Snoop::Modified
    } else if more != 0 {
        Snoop::Forwarded
    } else if bits & snoop::HIT != 0 {
        Snoop::Hit
    } else if bits & snoop::MISS != 0 {
        Snoop::Miss
    } else if bits & snoop::NONE != 0 {
        Snoop::None
    } else {
        Snoop::Unknown
    }
}

const fn translation(bits: u64) -> Translation {
    if bits & tlb::MISS != 0 || (bits & tlb::WALK != 0 && bits & (tlb::L1 | tlb::L2) == 0) {
        return Translation::Walk;
    }
    if bits & tlb::HIT == 0 {
        return Translation::Unknown;
    }
    match (bits & tlb::L1 != 0, bits & tlb::L2 != 0) {
        (true, false) => Translation::L1,
        (false, true) => Translation::L2,
        _ => Translation::Tlb,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A value out of the fields: operation, levels, snoop, lock, TLB, number, remote.
    const fn value(op: u64, lvl: u64, snoop: u64, lock: u64, tlb: u64, num: u64, rem: u64) -> u64 {
        op | lvl << 5 | snoop << 19 | lock << 24 | tlb << 26 | num << 33 | rem << 37
    }

    #[test]
    fn the_value_of_a_common_load_agrees_with_perf() {
        // `perf script` shows 0x68100142 as |OP LOAD|LVL L1 hit|SNP None|TLB L1 or L2 hit|LCK No.
        let access = decode(0x6810_0142);
        assert_eq!(access.operation, Operation::Load);
        assert_eq!((access.served, access.missed), (Served::L1, None));
        assert_eq!(access.snoop, Snoop::None);
        assert_eq!(access.translation, Translation::Tlb);
        assert_eq!(access.locked, Some(false));
    }

    #[test]
    fn numbers_of_levels_go_before_bits() {
        let check = |value: u64, served: Served| assert_eq!(decode(value).served, served);
        check(value(2, 0x02 | 0x40, 0, 0, 0, 0xd, 0), Served::Dram);
        check(value(2, 0x02 | 0x40, 0, 0, 0, 0xf, 0), Served::L3);
        check(value(2, 0x02 | 0x100, 0, 0, 0, 0xd, 0), Served::RemoteDram);
        check(value(2, 0, 0, 0, 0, 0xd, 1), Served::RemoteDram);
        check(value(2, 0, 0, 0, 0, 0xb, 1), Served::RemoteCache);
        check(value(2, 0x02 | 0x800, 0, 0, 0, 0, 0), Served::RemoteCache);
        check(value(2, 0, 0, 0, 0, 0xc, 0), Served::LineFill);
        check(value(2, 0, 0, 0, 0, 0x9, 0), Served::Cxl);
        check(value(2, 0x01, 0, 0, 0, 0, 0), Served::Unknown);
    }

    #[test]
    fn a_miss_has_no_source() {
        let store = decode(value(4, 0x04 | 0x08, 0, 1, 0, 0, 0));
        assert_eq!(store.operation, Operation::Store);
        assert_eq!(
            (store.served, store.missed),
            (Served::Unknown, Some(Served::L1))
        );
        assert_eq!(store.locked, None);
    }

    #[test]
    fn lines_that_another_core_changed_are_recognised() {
        let access = decode(value(2, 0x02 | 0x40, 0x10, 2, 0x04 | 0x20, 3, 0));
        assert_eq!(access.snoop, Snoop::Modified);
        assert_eq!(access.locked, Some(true));
        assert_eq!(access.translation, Translation::Walk);
        assert_eq!(decode(u64::MAX).operation, Operation::LoadStore);
    }
}
