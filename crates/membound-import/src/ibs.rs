//! Decodes registers of AMD's Instruction-Based Sampling, which perf stores raw with a sample.
//!
//! Layout of the raw bytes: capabilities of IBS (32 bits), then the registers of an op in the order of their
//! numbers: control, instruction pointer, data, data 2, data 3, linear address, physical address. Bits are
//! those of AMD's Processor Programming Reference for family 19h.

use crate::bytes::{ByteOrder, Cursor};
use crate::{MemoryAccess, Operation, Served, Snoop, Translation};

/// Capability bit: data sources have five bits, with the meaning of Zen 4.
const CAPABILITY_ZEN_4: u32 = 1 << 11;

/// Decoded registers of an op.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Op {
    /// Address of the sampled instruction, if valid.
    pub(crate) ip: Option<u64>,
    /// The access; `None` if the op was no load or store.
    pub(crate) access: Option<MemoryAccess>,
}

/// Decodes raw bytes; `None` if there are too few.
pub(crate) fn decode(raw: &[u8], order: ByteOrder) -> Option<Op> {
    let mut cursor = Cursor::new(raw, order);
    let capabilities = cursor.u32()?;
    let _control = cursor.u64()?;
    let ip = cursor.u64()?;
    let data = cursor.u64()?;
    let data2 = cursor.u64()?;
    let data3 = cursor.u64()?;
    let linear = cursor.u64()?;
    let physical = cursor.u64()?;
    let is_ip_invalid = data & (1 << 38) != 0;
    let operation = match (bit(data3, 0), bit(data3, 1)) {
        (true, true) => Operation::LoadStore,
        (true, false) if bit(data3, 21) => Operation::Prefetch,
        (true, false) => Operation::Load,
        (false, true) => Operation::Store,
        (false, false) => {
            return Some(Op {
                ip: (!is_ip_invalid).then_some(ip),
                access: None,
            });
        }
    };
    let is_zen_4 = capabilities & CAPABILITY_ZEN_4 != 0;
    let (served, missed, snoop) = source(operation, data2, data3, is_zen_4);
    // The register has the latency of loads only.
    let has_latency = bit(data3, 7) && matches!(operation, Operation::Load | Operation::LoadStore);
    Some(Op {
        ip: (!is_ip_invalid).then_some(ip),
        access: Some(MemoryAccess {
            operation,
            served,
            missed,
            snoop,
            translation: translation(data3),
            locked: Some(bit(data3, 15)),
            latency_cycles: has_latency.then_some((data3 >> 32 & 0xffff) as u32),
            address: bit(data3, 17).then_some(linear),
            physical_address: bit(data3, 18).then_some(physical),
        }),
    })
}

const fn bit(value: u64, number: u32) -> bool {
    value >> number & 1 != 0
}

/// The source of the line, the outermost cache known to have missed if that is unknown, and the snoop result.
fn source(
    operation: Operation,
    data2: u64,
    data3: u64,
    is_zen_4: bool,
) -> (Served, Option<Served>, Snoop) {
    if bit(data3, 14) {
        return (Served::Uncached, None, Snoop::Unknown);
    }
    if !bit(data3, 7) {
        return (Served::L1, None, Snoop::Unknown);
    }
    if !bit(data3, 20) {
        return (Served::L2, None, Snoop::Unknown);
    }
    // The registers do not have the source of stores.
    if !matches!(operation, Operation::Load | Operation::LoadStore) {
        return (Served::Unknown, Some(Served::L2), Snoop::Unknown);
    }
    let is_remote = bit(data2, 4);
    let number = if is_zen_4 {
        (data2 >> 6 & 3) << 3 | data2 & 7
    } else {
        data2 & 7
    };
    let served = match (is_zen_4, number) {
        (true, 1) => Served::L3,
        // Before Zen 4, the local L3 and caches of a neighbouring core complex are one source.
        (false, 2) => Served::L3,
        (true, 2 | 5) | (false, 4) => Served::RemoteCache,
        (_, 3) if is_remote => Served::RemoteDram,
        (_, 3) => Served::Dram,
        (true, 6) => Served::Persistent,
        (_, 7) => Served::Device,
        (true, 8) => Served::Cxl,
        _ => Served::Unknown,
    };
    let missed = (served == Served::Unknown).then_some(Served::L2);
    let snoop = match served {
        Served::L3 | Served::RemoteCache if bit(data2, 5) => Snoop::Modified,
        Served::RemoteCache => Snoop::Hit,
        _ => Snoop::Unknown,
    };
    (served, missed, snoop)
}

const fn translation(data3: u64) -> Translation {
    if !bit(data3, 17) {
        Translation::Unknown
    } else if !bit(data3, 2) {
        Translation::L1
    } else if !bit(data3, 3) {
        Translation::L2
    } else {
        Translation::Walk
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(capabilities: u32, data2: u64, data3: u64) -> Vec<u8> {
        let mut raw = capabilities.to_le_bytes().to_vec();
        for register in [0, 0x40_1000, 0, data2, data3, 0x7f00_1234, 0x1234] {
            raw.extend(u64::to_le_bytes(register));
        }
        raw
    }

    fn access(capabilities: u32, data2: u64, data3: u64) -> MemoryAccess {
        let op = decode(&raw(capabilities, data2, data3), ByteOrder::Little).unwrap();
        assert_eq!(op.ip, Some(0x40_1000));
        op.access.unwrap()
    }

    const LOAD: u64 = 1;
    const STORE: u64 = 2;
    const MISSED_L1: u64 = 1 << 7;
    const MISSED_L2: u64 = 1 << 20;
    const ADDRESSES: u64 = 3 << 17;

    #[test]
    fn a_load_from_memory_has_source_latency_and_addresses() {
        let data3 = LOAD | MISSED_L1 | MISSED_L2 | ADDRESSES | 3 << 2 | 345 << 32;
        let found = access(CAPABILITY_ZEN_4, 3, data3);
        assert_eq!(found.operation, Operation::Load);
        assert_eq!((found.served, found.missed), (Served::Dram, None));
        assert_eq!(found.latency_cycles, Some(345));
        assert_eq!(found.address, Some(0x7f00_1234));
        assert_eq!(found.physical_address, Some(0x1234));
        assert_eq!(found.translation, Translation::Walk);
        assert_eq!(
            access(CAPABILITY_ZEN_4, 3 | 1 << 4, data3).served,
            Served::RemoteDram
        );
    }

    #[test]
    fn sources_have_other_numbers_before_zen_4() {
        let data3 = LOAD | MISSED_L1 | MISSED_L2;
        let both = |data2| {
            [CAPABILITY_ZEN_4, 0].map(|capabilities| access(capabilities, data2, data3).served)
        };
        assert_eq!(both(1), [Served::L3, Served::Unknown]);
        assert_eq!(both(2), [Served::RemoteCache, Served::L3]);
        assert_eq!(both(4), [Served::Unknown, Served::RemoteCache]);
        // Two more bits of the source: 8 is memory attached by CXL; without them it is 0, which means
        // nothing.
        assert_eq!(both(1 << 6), [Served::Cxl, Served::Unknown]);
        assert_eq!(both(5 | 1 << 5)[0], Served::RemoteCache);
        assert_eq!(
            access(CAPABILITY_ZEN_4, 5 | 1 << 5, data3).snoop,
            Snoop::Modified
        );
    }

    #[test]
    fn near_caches_and_stores_have_no_source() {
        assert_eq!(access(0, 3, LOAD).served, Served::L1);
        assert_eq!(access(0, 3, LOAD).latency_cycles, None);
        assert_eq!(access(0, 3, LOAD | MISSED_L1).served, Served::L2);
        let store = access(0, 3, STORE | MISSED_L1 | MISSED_L2 | 99 << 32);
        assert_eq!(
            (store.served, store.missed),
            (Served::Unknown, Some(Served::L2))
        );
        assert_eq!(store.latency_cycles, None);
        assert_eq!((store.address, store.physical_address), (None, None));
    }

    #[test]
    fn records_without_an_access_and_short_records_are_none() {
        let op = decode(&raw(0, 0, 0), ByteOrder::Little).unwrap();
        assert_eq!(op.access, None);
        let whole = raw(0, 0, LOAD);
        assert_eq!(decode(&whole[..whole.len() - 1], ByteOrder::Little), None);
        assert_eq!(decode(&[], ByteOrder::Little), None);
    }
}
