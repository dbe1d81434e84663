//! The table of bursts, with a compact encoding.
//!
//! Integers are written in groups of seven bits, the least significant group first; every byte of an integer
//! but the last has its highest bit set. Sites are their identifiers, one after the other. An access is two
//! integers. The first is the position of its site, shifted left by one, with 1 in the lowest bit for a
//! store. The second is the difference of its address to the previous one of the same position (0 before the
//! first), with the sign in the lowest bit. A loop over arrays takes 2 or 3 bytes an access.

use rusqlite::types::FromSqlError;
use rusqlite::{Row, Statement};

use crate::record::{Column, Key, Record};
use crate::value::Value as _;
use crate::{Burst, SiteId, ThreadId};

impl Record for Burst {
    const TABLE: &'static str = "bursts";
    const KEY: Key = Key::Order;
    const COLUMNS: &'static [Column] = &[
        ("from_ns", u64::SQL),
        ("to_ns", u64::SQL),
        ("thread", ThreadId::SQL),
        ("count", u64::SQL),
        ("sites", Vec::<u8>::SQL),
        ("accesses", Vec::<u8>::SQL),
    ];
    const ABOUT: &'static str = "bursts";

    fn bind(&self, statement: &mut Statement<'_>, from: usize) -> rusqlite::Result<()> {
        self.from_ns.bind(statement, from)?;
        self.to_ns.bind(statement, from + 1)?;
        self.thread.bind(statement, from + 2)?;
        (self.accesses.len() as u64).bind(statement, from + 3)?;
        pack_sites(&self.sites).bind(statement, from + 4)?;
        pack(&self.accesses).bind(statement, from + 5)
    }

    fn take(row: &Row<'_>, from: usize) -> rusqlite::Result<Self> {
        let packed_sites = row.get_ref(from + 4)?.as_blob()?;
        let packed = row.get_ref(from + 5)?.as_blob()?;
        let sites = unpack_sites(packed_sites);
        let accesses = unpack(packed);
        let (Some(sites), Some(accesses)) = (sites, accesses) else {
            return Err(FromSqlError::InvalidType.into());
        };
        Ok(Self {
            from_ns: u64::take(row, from)?,
            to_ns: u64::take(row, from + 1)?,
            thread: ThreadId::take(row, from + 2)?,
            sites,
            accesses,
        })
    }
}

fn pack_sites(sites: &[SiteId]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(sites.len() * 2);
    for site in sites {
        put(&mut bytes, u64::from(site.0));
    }
    bytes
}

fn unpack_sites(mut bytes: &[u8]) -> Option<Vec<SiteId>> {
    let mut sites = Vec::new();
    while !bytes.is_empty() {
        sites.push(SiteId(u32::try_from(get(&mut bytes)?).ok()?));
    }
    Some(sites)
}

fn pack(accesses: &[(u16, u64, bool)]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(accesses.len() * 3);
    let mut last = Vec::new();
    for &(site, address, store) in accesses {
        put(&mut bytes, u64::from(site) << 1 | u64::from(store));
        let before = before(&mut last, site);
        put(&mut bytes, fold(address.wrapping_sub(*before)));
        *before = address;
    }
    bytes
}

/// Reverses [`pack`]; `None` when the bytes are not valid.
fn unpack(mut bytes: &[u8]) -> Option<Vec<(u16, u64, bool)>> {
    let mut accesses = Vec::with_capacity(bytes.len() / 2);
    let mut last = Vec::new();
    while !bytes.is_empty() {
        let head = get(&mut bytes)?;
        let site = u16::try_from(head >> 1).ok()?;
        let before = before(&mut last, site);
        *before = before.wrapping_add(unfold(get(&mut bytes)?));
        accesses.push((site, *before, head & 1 != 0));
    }
    Some(accesses)
}

/// The previous address of a site, 0 at first.
fn before(last: &mut Vec<u64>, site: u16) -> &mut u64 {
    let site = usize::from(site);
    if last.len() <= site {
        last.resize(site + 1, 0);
    }
    &mut last[site]
}

/// Zigzag encoding: differences that are small in either direction become small numbers.
const fn fold(difference: u64) -> u64 {
    (difference << 1) ^ (difference.cast_signed() >> 63).cast_unsigned()
}

const fn unfold(folded: u64) -> u64 {
    (folded >> 1) ^ (folded & 1).wrapping_neg()
}

fn put(bytes: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        bytes.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
}

fn get(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        let bits = u64::from(byte & 0x7f);
        // The tenth byte has only the one bit that is left.
        if shift == 63 && bits > 1 {
            return None;
        }
        value |= bits << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extremes_come_back() {
        let accesses = [
            (0, u64::MAX, true),
            (0, 0, false),
            (u16::MAX, 1 << 63, true),
            (0, 1, false),
            (u16::MAX, u64::MAX, false),
        ];
        assert_eq!(unpack(&pack(&accesses)).unwrap(), accesses);
        let sites = [SiteId(0), SiteId(u32::MAX), SiteId(127), SiteId(128)];
        assert_eq!(unpack_sites(&pack_sites(&sites)).unwrap(), sites);
    }

    #[test]
    fn a_stream_takes_three_bytes_an_access() {
        let accesses: Vec<(u16, u64, bool)> = (0..3000_u64)
            .map(|i| {
                (
                    (i % 3) as u16,
                    0x7f00_0000_0000 + ((i % 3) << 32) + i / 3 * 8,
                    i % 3 == 2,
                )
            })
            .collect();
        let packed = pack(&accesses);
        assert!(packed.len() < 2 * accesses.len() + 32, "{}", packed.len());
        assert_eq!(unpack(&packed).unwrap(), accesses);
    }

    #[test]
    fn bytes_of_something_else_are_refused() {
        assert_eq!(unpack(&[0]), None, "an access without its address");
        assert_eq!(unpack(&[0x80]), None, "an integer without its end");
        assert_eq!(unpack(&[0xff; 11]), None, "an integer of more than 64 bits");
        assert_eq!(
            unpack(&[0x80, 0x80, 0x10, 0]),
            None,
            "a position beyond 16 bits"
        );
        assert_eq!(unpack_sites(&[0xff, 0xff, 0xff, 0xff, 0x7f]), None);
    }
}
