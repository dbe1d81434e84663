//! Parses events (`struct perf_event_attr`), which determine the layout of samples.

use crate::Error;
use crate::bytes::{ByteOrder, Cursor};

/// Bits of `sample_type`.
pub(super) mod sample_type {
    pub(in super::super) const IP: u64 = 1;
    pub(in super::super) const TID: u64 = 1 << 1;
    pub(in super::super) const TIME: u64 = 1 << 2;
    pub(in super::super) const ADDR: u64 = 1 << 3;
    pub(in super::super) const READ: u64 = 1 << 4;
    pub(in super::super) const CALLCHAIN: u64 = 1 << 5;
    pub(in super::super) const ID: u64 = 1 << 6;
    pub(in super::super) const CPU: u64 = 1 << 7;
    pub(in super::super) const PERIOD: u64 = 1 << 8;
    pub(in super::super) const STREAM_ID: u64 = 1 << 9;
    pub(in super::super) const RAW: u64 = 1 << 10;
    pub(in super::super) const BRANCH_STACK: u64 = 1 << 11;
    pub(in super::super) const REGS_USER: u64 = 1 << 12;
    pub(in super::super) const STACK_USER: u64 = 1 << 13;
    pub(in super::super) const WEIGHT: u64 = 1 << 14;
    pub(in super::super) const DATA_SRC: u64 = 1 << 15;
    pub(in super::super) const IDENTIFIER: u64 = 1 << 16;
    pub(in super::super) const TRANSACTION: u64 = 1 << 17;
    pub(in super::super) const REGS_INTR: u64 = 1 << 18;
    pub(in super::super) const PHYS_ADDR: u64 = 1 << 19;
    pub(in super::super) const WEIGHT_STRUCT: u64 = 1 << 24;
    /// All bits whose fields are known.
    pub(in super::super) const KNOWN: u64 = (1 << 25) - 1;
}

/// Bits of `read_format`.
pub(super) mod read_format {
    pub(in super::super) const TIME_ENABLED: u64 = 1;
    pub(in super::super) const TIME_RUNNING: u64 = 1 << 1;
    pub(in super::super) const ID: u64 = 1 << 2;
    pub(in super::super) const GROUP: u64 = 1 << 3;
    pub(in super::super) const LOST: u64 = 1 << 4;
}

/// Smallest size of `struct perf_event_attr` in any version, in bytes.
pub(super) const SMALLEST: u64 = 64;

/// The needed attributes of an event.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Attr {
    pub(super) kind: u32,
    pub(super) config: u64,
    pub(super) period: u64,
    pub(super) sample_type: u64,
    pub(super) read_format: u64,
    pub(super) is_frequency: bool,
    pub(super) precise: u8,
    pub(super) has_sample_id: bool,
    pub(super) branch_sample_type: u64,
    pub(super) user_registers: u64,
    pub(super) interrupt_registers: u64,
}

/// Bit numbers of the flags after `read_format`.
mod flag {
    pub(super) const FREQUENCY: u32 = 10;
    pub(super) const PRECISE: u32 = 15;
    pub(super) const SAMPLE_ID_ALL: u32 = 18;
}

impl Attr {
    /// Parses `bytes`, which may be longer or shorter than the known structure: missing fields are 0.
    pub(super) fn read(bytes: &[u8], order: ByteOrder) -> Option<Self> {
        let mut cursor = Cursor::new(bytes, order);
        let kind = cursor.u32()?;
        let size = cursor.u32()?;
        let size = if size == 0 { SMALLEST } else { u64::from(size) };
        // The size stated in the attribute takes precedence over the space that it was given.
        let size = usize::try_from(size).ok()?.min(bytes.len());
        let mut cursor = Cursor::new(bytes.get(8..size.max(8))?, order);
        let config = cursor.u64()?;
        let period = cursor.u64()?;
        let sample_type = cursor.u64()?;
        let read_format = cursor.u64()?;
        let flags = cursor.u64()?;
        // On big-endian machines, bit fields begin at the other end of the word.
        let flag = |number: u32| match order {
            ByteOrder::Little => flags >> number & 1 != 0,
            ByteOrder::Big => flags >> (63 - number) & 1 != 0,
        };
        let precise = match order {
            ByteOrder::Little => flags >> flag::PRECISE & 3,
            ByteOrder::Big => flags >> (62 - flag::PRECISE) & 3,
        };
        // wakeup, bp_type, config1.
        cursor.skip(16)?;
        let _config2 = cursor.u64();
        let branch_sample_type = cursor.u64().unwrap_or(0);
        let user_registers = cursor.u64().unwrap_or(0);
        // sample_stack_user, clockid.
        let _ = cursor.u64();
        let interrupt_registers = cursor.u64().unwrap_or(0);
        Some(Self {
            kind,
            config,
            period,
            sample_type,
            read_format,
            is_frequency: flag(flag::FREQUENCY),
            precise: precise as u8,
            has_sample_id: flag(flag::SAMPLE_ID_ALL),
            branch_sample_type,
            user_registers,
            interrupt_registers,
        })
    }

    pub(super) const fn has(&self, bits: u64) -> bool {
        self.sample_type & bits != 0
    }

    /// Offset in bytes of the identifier in a sample; `None` if samples have none.
    pub(super) const fn id_in_sample(&self) -> Option<u64> {
        use sample_type::{ADDR, ID, IDENTIFIER, IP, TID, TIME};
        if self.has(IDENTIFIER) {
            Some(0)
        } else if self.has(ID) {
            let before = self.sample_type & (IP | TID | TIME | ADDR);
            Some(before.count_ones() as u64 * 8)
        } else {
            None
        }
    }

    /// Bytes from the identifier to the end of other records; `None` if they have none.
    pub(super) const fn id_in_others(&self) -> Option<u64> {
        use sample_type::{CPU, ID, IDENTIFIER, STREAM_ID};
        if !self.has_sample_id {
            None
        } else if self.has(IDENTIFIER) {
            Some(8)
        } else if self.has(ID) {
            let from = self.sample_type & (ID | STREAM_ID | CPU);
            Some(from.count_ones() as u64 * 8)
        } else {
            None
        }
    }

    /// Bytes at the end of records that are no samples (`sample_id`).
    pub(super) const fn trailer(&self) -> u64 {
        use sample_type::{CPU, ID, IDENTIFIER, STREAM_ID, TID, TIME};
        if !self.has_sample_id {
            return 0;
        }
        let fields = self.sample_type & (TID | TIME | ID | STREAM_ID | CPU | IDENTIFIER);
        fields.count_ones() as u64 * 8
    }

    /// Refuses samples with unknown fields, because the fields after them cannot be located.
    pub(super) fn check(&self, event: &str) -> Result<(), Error> {
        let bits = self.sample_type & !sample_type::KNOWN;
        if bits == 0 {
            return Ok(());
        }
        Err(Error::UnknownFields {
            event: event.to_owned(),
            bits,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The attributes of `perf record -e cpu-clock -F 1000`, in a byte order.
    fn attr(order: ByteOrder) -> Vec<u8> {
        let (words, halves) = match order {
            ByteOrder::Little => (
                u64::to_le_bytes as fn(u64) -> [u8; 8],
                u32::to_le_bytes as fn(u32) -> [u8; 4],
            ),
            ByteOrder::Big => (
                u64::to_be_bytes as fn(u64) -> [u8; 8],
                u32::to_be_bytes as fn(u32) -> [u8; 4],
            ),
        };
        let number = |position: u32| match order {
            ByteOrder::Little => 1_u64 << position,
            ByteOrder::Big => 1 << (63 - position),
        };
        let mut bytes = [halves(1), halves(72)].concat();
        let flags = number(10) | number(18) | number(16);
        for word in [
            0,
            1000,
            sample_type::IP | sample_type::ID,
            4,
            flags,
            0,
            0,
            0,
        ] {
            bytes.extend(words(word));
        }
        bytes
    }

    #[test]
    fn attributes_are_equal_in_either_byte_order() {
        let mut both = [ByteOrder::Little, ByteOrder::Big]
            .map(|order| Attr::read(&attr(order), order).unwrap());
        // The more significant bit of two is the one that was set: it lies first in either order.
        assert_eq!((both[0].precise, both[1].precise), (2, 1));
        both[1].precise = 2;
        assert_eq!(both[0], both[1]);
        assert!(both[0].is_frequency && both[0].has_sample_id);
        assert_eq!(both[0].id_in_sample(), Some(8));
        assert_eq!(both[0].id_in_others(), Some(8));
        assert_eq!(both[0].trailer(), 8);
    }

    #[test]
    fn attributes_that_are_too_short_are_none() {
        let bytes = attr(ByteOrder::Little);
        assert_eq!(Attr::read(&bytes[..63], ByteOrder::Little), None);
        assert!(Attr::read(&bytes[..64], ByteOrder::Little).is_some());
        let mut liar = bytes.clone();
        liar[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(Attr::read(&liar, ByteOrder::Little).is_some());
        liar[4..8].copy_from_slice(&9_u32.to_le_bytes());
        assert_eq!(Attr::read(&liar, ByteOrder::Little), None);
    }
}
