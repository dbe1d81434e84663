//! Decodes packets of Arm's Statistical Profiling Extension, as in the Arm Architecture Reference Manual (DDI
//! 0487, "Statistical Profiling Extension sample record specification").
//!
//! A sampled operation is a sequence of packets that ends with a timestamp or an end packet. Numbers are
//! little-endian. Each core may encode data sources in its own way; the encoding read here is that of
//! Neoverse and Cortex cores, which other cores share.

use std::ops::Range;

use crate::bytes::{ByteOrder, Cursor};
use crate::{MemoryAccess, Operation, Served, Snoop, Translation};

/// A sampled operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SpeRecord {
    /// Address of the sampled instruction.
    pub(crate) ip: Option<u64>,
    /// Exception level of the instruction; 0 if there is no instruction address.
    pub(crate) exception_level: u8,
    /// Time of the generic timer.
    pub(crate) timestamp: Option<u64>,
    /// Context packet: Linux puts the thread's number there.
    pub(crate) context: Option<u32>,
    /// The access; `None` if the operation was no load or store.
    pub(crate) access: Option<MemoryAccess>,
}

/// How data sources are encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sources {
    /// The encoding of Neoverse cores.
    Common,
    /// Unknown: data source packets are ignored.
    Unknown,
}

/// The next part of a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// An operation, and its range of bytes.
    Record(Range<usize>, SpeRecord),
    /// Number of bytes of the rest, which is not made of packets or is an incomplete operation.
    Rest(usize),
}

/// Iterates over the operations of a trace.
#[derive(Clone, Debug)]
pub(crate) struct Records<'a> {
    trace: &'a [u8],
    at: usize,
    sources: Sources,
}

impl<'a> Records<'a> {
    pub(crate) const fn new(trace: &'a [u8], sources: Sources) -> Self {
        Self::from(trace, 0, sources)
    }

    /// Begins at a position where an operation begins. The bytes before it are needed, since packets are
    /// aligned relative to the beginning of the trace.
    pub(crate) const fn from(trace: &'a [u8], at: usize, sources: Sources) -> Self {
        Self { trace, at, sources }
    }
}

impl Iterator for Records<'_> {
    type Item = Next;

    fn next(&mut self) -> Option<Next> {
        let from = self.at;
        let mut parts = Parts::default();
        while self.at < self.trace.len() {
            let Some((packet, length)) = packet(self.trace, self.at) else {
                self.at = self.trace.len();
                return Some(Next::Rest(self.at - from));
            };
            self.at += length;
            match packet {
                Packet::End => {
                    return Some(Next::Record(from..self.at, parts.record(self.sources)));
                }
                Packet::Timestamp(time) => {
                    parts.timestamp = Some(time);
                    return Some(Next::Record(from..self.at, parts.record(self.sources)));
                }
                Packet::Padding => {}
                packet => {
                    parts.any = true;
                    parts.add(packet);
                }
            }
        }
        // Padding at the end of a buffer is no loss.
        (parts.any && from < self.at).then(|| Next::Rest(self.at - from))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Packet {
    Padding,
    End,
    Timestamp(u64),
    Events(u64),
    Source(u64),
    Context(u32),
    Operation { class: u8, payload: u8 },
    Address { index: u8, payload: u64 },
    Counter { index: u8, payload: u16 },
}

/// The packet at a position, and its length in bytes; `None` if there is no valid packet.
fn packet(trace: &[u8], at: usize) -> Option<(Packet, usize)> {
    let mut cursor = Cursor::new(trace.get(at..)?, ByteOrder::Little);
    let before = cursor.rest().len();
    let header = byte(&mut cursor)?;
    let packet = match header {
        0x00 => Packet::Padding,
        0x01 => Packet::End,
        0x71 => Packet::Timestamp(cursor.u64()?),
        _ if header & 0xcf == 0x42 => Packet::Events(sized(&mut cursor, header)?),
        _ if header & 0xcf == 0x43 => Packet::Source(sized(&mut cursor, header)?),
        _ if header & 0xfc == 0x64 => Packet::Context(cursor.u32()?),
        _ if header & 0xfc == 0x48 => Packet::Operation {
            class: header & 3,
            payload: byte(&mut cursor)?,
        },
        _ if header & 0xfc == 0x20 => extended(&mut cursor, header, at)?,
        _ => indexed(&mut cursor, header, header & 7)?,
    };
    Some((packet, before - cursor.rest().len()))
}

fn byte(cursor: &mut Cursor<'_>) -> Option<u8> {
    cursor.take(1)?.first().copied()
}

/// A number whose size is in the header.
fn sized(cursor: &mut Cursor<'_>, header: u8) -> Option<u64> {
    match header >> 4 & 3 {
        0 => byte(cursor).map(u64::from),
        1 => cursor.u16().map(u64::from),
        2 => cursor.u32().map(u64::from),
        _ => cursor.u64(),
    }
}

/// A packet with a header of two bytes.
fn extended(cursor: &mut Cursor<'_>, header: u8, at: usize) -> Option<Packet> {
    let second = byte(cursor)?;
    if second == 0 {
        // Alignment: padding up to a multiple of a power of two, including the header.
        let alignment = 1_usize << ((header & 0xf) + 1);
        let behind = at + 2;
        let padding = behind.next_multiple_of(alignment) - behind;
        cursor.skip(padding as u64)?;
        return Some(Packet::Padding);
    }
    indexed(cursor, second, (header & 3) << 3 | second & 7)
}

fn indexed(cursor: &mut Cursor<'_>, header: u8, index: u8) -> Option<Packet> {
    match header & 0xf8 {
        0xb0 => Some(Packet::Address {
            index,
            payload: cursor.u64()?,
        }),
        0x98 => Some(Packet::Counter {
            index,
            payload: cursor.u16()?,
        }),
        _ => None,
    }
}

/// The contents of the packets of one operation.
#[derive(Clone, Copy, Debug, Default)]
struct Parts {
    any: bool,
    instruction: Option<u64>,
    address: Option<u64>,
    physical_address: Option<u64>,
    timestamp: Option<u64>,
    context: Option<u32>,
    events: Option<u64>,
    source: Option<u64>,
    operation: Option<(u8, u8)>,
    total_latency: Option<u16>,
}

impl Parts {
    fn add(&mut self, packet: Packet) {
        match packet {
            Packet::Events(events) => self.events = Some(events),
            Packet::Source(source) => self.source = Some(source),
            Packet::Context(context) => self.context = Some(context),
            Packet::Operation { class, payload } => self.operation = Some((class, payload)),
            Packet::Address { index: 0, payload } => self.instruction = Some(payload),
            Packet::Address { index: 2, payload } => self.address = Some(payload),
            Packet::Address { index: 3, payload } => self.physical_address = Some(payload),
            Packet::Counter { index: 0, payload } => self.total_latency = Some(payload),
            Packet::Address { .. }
            | Packet::Counter { .. }
            | Packet::Padding
            | Packet::End
            | Packet::Timestamp(_) => {}
        }
    }

    fn record(&self, sources: Sources) -> SpeRecord {
        SpeRecord {
            ip: self.instruction.map(virtual_address),
            exception_level: self
                .instruction
                .map_or(0, |payload| (payload >> 61 & 3) as u8),
            timestamp: self.timestamp,
            context: self.context,
            access: self.access(sources),
        }
    }

    fn access(&self, sources: Sources) -> Option<MemoryAccess> {
        /// Class of loads, stores and atomic operations.
        const ACCESS: u8 = 1;
        let (class, payload) = self.operation?;
        if class != ACCESS {
            return None;
        }
        // Extended subclass: atomic and exclusive accesses, each with a bit of its own.
        let is_extended = payload & 0xe2 == 0x02;
        let is_atomic = is_extended && payload & 0x04 != 0;
        let stores = payload & 1 != 0;
        let operation = match (is_atomic, stores) {
            (true, true) => Operation::LoadStore,
            (_, true) => Operation::Store,
            (_, false) => Operation::Load,
        };
        let (served, missed, snoop) = self.source(sources);
        Some(MemoryAccess {
            operation,
            served,
            missed,
            snoop,
            translation: self.translation(),
            locked: Some(is_atomic),
            latency_cycles: self.total_latency.map(u32::from),
            address: self.address.map(virtual_address),
            physical_address: self.physical_address.map(|payload| payload & LOW_BYTES),
        })
    }

    fn has(&self, event: u32) -> bool {
        self.events.is_some_and(|events| events >> event & 1 != 0)
    }

    fn source(&self, sources: Sources) -> (Served, Option<Served>, Snoop) {
        if let (Some(source), Sources::Common) = (self.source, sources) {
            let decoded = match source {
                0x0 => Some((Served::L1, Snoop::None)),
                0x8 => Some((Served::L2, Snoop::None)),
                0x9 | 0xa | 0xc => Some((Served::RemoteCache, Snoop::Forwarded)),
                0xb => Some((Served::L3, Snoop::None)),
                0xd => Some((Served::RemoteDram, Snoop::Unknown)),
                0xe => Some((Served::Dram, Snoop::None)),
                _ => None,
            };
            if let Some((served, snoop)) = decoded {
                return (served, None, snoop);
            }
        }
        // Without a data source, event bits show which caches hit or missed.
        if self.has(event::REMOTE) {
            (Served::RemoteCache, None, Snoop::Unknown)
        } else if self.has(event::LAST_CACHE_MISS) {
            (Served::Unknown, Some(Served::L3), Snoop::Unknown)
        } else if self.has(event::LAST_CACHE_ACCESS) {
            (Served::L3, None, Snoop::Unknown)
        } else if self.has(event::L1_REFILL) {
            (Served::Unknown, Some(Served::L1), Snoop::Unknown)
        } else if self.has(event::L1_ACCESS) {
            (Served::L1, None, Snoop::Unknown)
        } else {
            (Served::Unknown, None, Snoop::Unknown)
        }
    }

    fn translation(&self) -> Translation {
        if self.has(event::TLB_WALK) {
            Translation::Walk
        } else if self.has(event::TLB_ACCESS) {
            Translation::Tlb
        } else {
            Translation::Unknown
        }
    }
}

/// Bit numbers in an events packet.
mod event {
    pub(super) const L1_ACCESS: u32 = 2;
    pub(super) const L1_REFILL: u32 = 3;
    pub(super) const TLB_ACCESS: u32 = 4;
    pub(super) const TLB_WALK: u32 = 5;
    pub(super) const LAST_CACHE_ACCESS: u32 = 8;
    pub(super) const LAST_CACHE_MISS: u32 = 9;
    pub(super) const REMOTE: u32 = 10;
}

/// The lower seven bytes of an address; the eighth has a tag or other data.
const LOW_BYTES: u64 = (1 << 56) - 1;

/// The address in a packet; for kernel addresses the highest byte is filled with ones again.
const fn virtual_address(payload: u64) -> u64 {
    let low = payload & LOW_BYTES;
    if low >> 52 == 0xf {
        low | !LOW_BYTES
    } else {
        low
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(index: u8, payload: u64) -> Vec<u8> {
        let mut packet = vec![0xb0 | index];
        packet.extend(payload.to_le_bytes());
        packet
    }

    fn timestamp(time: u64) -> Vec<u8> {
        let mut packet = vec![0x71];
        packet.extend(time.to_le_bytes());
        packet
    }

    /// A load from memory of the local node, as a Neoverse N1 writes it.
    fn load() -> Vec<u8> {
        [
            address(0, 0x40_0800),
            vec![0x64, 7, 0, 0, 0],
            vec![0x52, 0x1e, 0x03],
            vec![0x49, 0x00],
            vec![0x98, 0xc8, 0x00],
            vec![0x99, 0x05, 0x00],
            vec![0x9a, 0x03, 0x00],
            address(2, 0xab00_ffff_8000_1234),
            address(3, 0x8000_0000_1234_5678),
            vec![0x43, 0x0e],
            timestamp(1000),
        ]
        .concat()
    }

    fn records(trace: &[u8]) -> Vec<Next> {
        Records::new(trace, Sources::Common).collect()
    }

    #[test]
    fn a_load_is_read_from_its_packets() {
        let trace = load();
        let [Next::Record(range, record)] = &records(&trace)[..] else {
            panic!("one record");
        };
        assert_eq!(*range, 0..trace.len());
        assert_eq!(record.ip, Some(0x40_0800));
        assert_eq!((record.timestamp, record.context), (Some(1000), Some(7)));
        let access = record.access.unwrap();
        assert_eq!(access.operation, Operation::Load);
        assert_eq!((access.served, access.missed), (Served::Dram, None));
        assert_eq!(access.latency_cycles, Some(200));
        assert_eq!(access.address, Some(0x00_ffff_8000_1234));
        assert_eq!(access.physical_address, Some(0x1234_5678));
        assert_eq!(access.translation, Translation::Tlb);
    }

    #[test]
    fn events_stand_in_for_a_source_that_is_not_known() {
        let of = |events: [u8; 2]| {
            let trace = [&[0x52, events[0], events[1]][..], &[0x49, 1, 0x01]].concat();
            let [Next::Record(_, record)] = &records(&trace)[..] else {
                panic!("one record");
            };
            let access = record.access.unwrap();
            assert_eq!(access.operation, Operation::Store);
            (access.served, access.missed)
        };
        assert_eq!(of([0x04, 0]), (Served::L1, None));
        assert_eq!(of([0x0c, 0]), (Served::Unknown, Some(Served::L1)));
        assert_eq!(of([0x0c, 1]), (Served::L3, None));
        assert_eq!(of([0x0c, 3]), (Served::Unknown, Some(Served::L3)));
        assert_eq!(of([0x0c, 7]), (Served::RemoteCache, None));
        let unknown: Vec<Next> = Records::new(&load(), Sources::Unknown).collect();
        let Next::Record(_, record) = &unknown[0] else {
            panic!("one record");
        };
        assert_eq!(record.access.unwrap().missed, Some(Served::L3));
    }

    #[test]
    fn extended_headers_and_alignment_are_stepped_over() {
        // A counter with index 8, an alignment to 16 bytes, then an end.
        let mut trace = vec![0x21, 0x98, 1, 0];
        trace.extend([0x23, 0x00]);
        trace.resize(16, 0xff);
        trace.push(0x01);
        assert_eq!(records(&trace), [Next::Record(0..17, SpeRecord::default())]);
    }

    #[test]
    fn an_operation_with_an_alignment_is_read_again_at_its_offset() {
        // An end, and from byte 1 on a load with an alignment to 16 bytes before its end.
        let mut trace = vec![0x01, 0x49, 0x00, 0x23, 0x00];
        trace.resize(16, 0xff);
        trace.push(0x01);
        let all = records(&trace);
        let [_, Next::Record(range, record)] = &all[..] else {
            panic!("two records: {all:?}");
        };
        assert_eq!(*range, 1..17);
        assert!(record.access.is_some());
        let again = Records::from(&trace, range.start, Sources::Common).next();
        assert_eq!(again.as_ref(), all.last());
    }

    #[test]
    fn truncated_operations_are_reported_and_padding_is_not() {
        let whole = load();
        for length in 1..whole.len() {
            assert_eq!(records(&whole[..length]), [Next::Rest(length)], "{length}");
        }
        let mut padded = whole.clone();
        padded.extend([0; 40]);
        assert_eq!(records(&padded).len(), 1);
        let mut damaged = whole.clone();
        damaged.extend([0xff, 0x01, 0x01]);
        assert_eq!(records(&damaged)[1..], [Next::Rest(3)]);
    }

    #[test]
    fn atomic_operations_and_others_are_distinguished() {
        let of = |class: u8, payload: u8| {
            let trace = [0x48 | class, payload, 0x01];
            let [Next::Record(_, record)] = &records(&trace)[..] else {
                panic!("one record");
            };
            record
                .access
                .map(|access| (access.operation, access.locked))
        };
        assert_eq!(of(1, 0x07), Some((Operation::LoadStore, Some(true))));
        assert_eq!(of(1, 0x00), Some((Operation::Load, Some(false))));
        assert_eq!(of(2, 0x00), None);
        assert_eq!(of(0, 0x00), None);
    }

    #[test]
    fn addresses_of_the_kernel_are_sign_extended() {
        let trace = [address(0, 0xc0ff_8000_1000_0000), vec![0x01]].concat();
        let [Next::Record(_, record)] = &records(&trace)[..] else {
            panic!("one record");
        };
        assert_eq!(record.ip, Some(0xffff_8000_1000_0000));
        assert_eq!(record.exception_level, 2);
    }
}
