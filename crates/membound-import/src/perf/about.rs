//! Parses feature headers after the records: they describe the machine and the recording.

use super::attr::Attr;
use crate::bytes::{ByteOrder, Cursor, text, until_zero};

/// Feature numbers.
pub(super) mod feature {
    pub(in super::super) const BUILD_ID: u32 = 2;
    pub(in super::super) const HOST: u32 = 3;
    pub(in super::super) const RELEASE: u32 = 4;
    pub(in super::super) const PERF_VERSION: u32 = 5;
    pub(in super::super) const ARCHITECTURE: u32 = 6;
    pub(in super::super) const CPUS: u32 = 7;
    pub(in super::super) const CPU_DESCRIPTION: u32 = 8;
    pub(in super::super) const CPU_ID: u32 = 9;
    pub(in super::super) const COMMAND: u32 = 11;
    pub(in super::super) const EVENTS: u32 = 12;
    pub(in super::super) const NODES: u32 = 14;
    pub(in super::super) const UNITS: u32 = 16;
    pub(in super::super) const DIRECTORY: u32 = 24;
    pub(in super::super) const COMPRESSED: u32 = 27;
    pub(in super::super) const CLOCKS: u32 = 29;
}

/// Build-id of a recorded file with code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Path of the file.
    pub path: String,
    /// Build-id in hexadecimal digits.
    pub build_id: String,
}

/// Description of the machine and of the recording.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct About {
    /// Host name of the machine.
    pub host: Option<String>,
    /// Release of its kernel.
    pub release: Option<String>,
    /// Its architecture, as in `uname -m`.
    pub architecture: Option<String>,
    /// Version of perf.
    pub perf_version: Option<String>,
    /// Number of CPUs that were online.
    pub cpus: Option<u32>,
    /// Name of the processor.
    pub cpu_description: Option<String>,
    /// Identifier of the processor, such as `GenuineIntel,6,85,7`.
    pub cpu_id: Option<String>,
    /// Command line of perf.
    pub command: Vec<String>,
    /// NUMA nodes with the CPUs of each.
    pub nodes: Vec<(u32, Vec<u32>)>,
    /// Files with code and their build-ids.
    pub identities: Vec<Identity>,
    /// Two clocks at one moment, in nanoseconds: time since 1970, and the recording's clock.
    pub clocks: Option<(u64, u64)>,
    /// Names of PMUs by their type numbers.
    pub(super) units: Vec<(u32, String)>,
    /// Events as described in the header of events.
    pub(super) events: Vec<Described>,
}

/// An event as described in the header of events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Described {
    pub(super) attr: Attr,
    pub(super) name: String,
    pub(super) ids: Vec<u64>,
}

/// CPUs of one node, at most: a list such as `0-4294967295` is ignored.
const MAX_CPUS: u32 = 1 << 16;

impl About {
    /// Name of the PMU with this type number.
    pub(super) fn unit(&self, number: u32) -> Option<&str> {
        let found = self.units.iter().find(|(it, _)| *it == number);
        found.map(|(_, name)| name.as_str())
    }

    /// Vendor of the processor, as in CPUID.
    pub(super) fn cpu_vendor(&self) -> Option<&str> {
        self.cpu_id.as_deref()?.split(',').next()
    }

    /// Parses the feature header with this number. A header that cannot be read is ignored, since no record
    /// depends on it.
    pub(super) fn add(&mut self, number: u32, bytes: &[u8], order: ByteOrder) {
        let mut cursor = Cursor::new(bytes, order);
        let string = |mut cursor: Cursor<'_>| cursor.string().filter(|text| !text.is_empty());
        match number {
            feature::HOST => self.host = string(cursor),
            feature::RELEASE => self.release = string(cursor),
            feature::PERF_VERSION => self.perf_version = string(cursor),
            feature::ARCHITECTURE => self.architecture = string(cursor),
            feature::CPU_DESCRIPTION => self.cpu_description = string(cursor),
            feature::CPU_ID => self.cpu_id = string(cursor),
            feature::CPUS => {
                let _available = cursor.u32();
                self.cpus = cursor.u32();
            }
            feature::COMMAND => self.command = strings(cursor).unwrap_or_default(),
            feature::NODES => self.nodes = nodes(cursor).unwrap_or_default(),
            feature::UNITS => self.units = units(cursor).unwrap_or_default(),
            feature::EVENTS => self.events = events(cursor, order).unwrap_or_default(),
            feature::BUILD_ID => self.identities = identities(cursor, order),
            feature::CLOCKS => {
                let _version_and_clock = cursor.u64();
                self.clocks = cursor.u64().zip(cursor.u64());
            }
            _ => {}
        }
    }
}

fn strings(mut cursor: Cursor<'_>) -> Option<Vec<String>> {
    let count = cursor.u32()?;
    let mut strings = Vec::new();
    for _ in 0..count {
        strings.push(cursor.string()?);
    }
    Some(strings)
}

fn nodes(mut cursor: Cursor<'_>) -> Option<Vec<(u32, Vec<u32>)>> {
    let count = cursor.u32()?;
    let mut nodes = Vec::new();
    for _ in 0..count {
        let number = cursor.u32()?;
        let _memory = (cursor.u64()?, cursor.u64()?);
        nodes.push((number, cpu_list(&cursor.string()?)));
    }
    Some(nodes)
}

/// Parses a list of CPUs such as `0-3,8`.
fn cpu_list(list: &str) -> Vec<u32> {
    let mut cpus = Vec::new();
    for part in list.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        if let (Ok(first), Ok(last)) = (first.trim().parse::<u32>(), last.trim().parse::<u32>())
            && last < MAX_CPUS
            && cpus.len() < MAX_CPUS as usize
        {
            cpus.extend(first..=last);
        }
    }
    cpus
}

fn units(mut cursor: Cursor<'_>) -> Option<Vec<(u32, String)>> {
    let count = cursor.u32()?;
    let mut units = Vec::new();
    for _ in 0..count {
        let number = cursor.u32()?;
        units.push((number, cursor.string()?));
    }
    Some(units)
}

fn events(mut cursor: Cursor<'_>, order: ByteOrder) -> Option<Vec<Described>> {
    let count = cursor.u32()?;
    let size = cursor.u32()?;
    let mut events = Vec::new();
    for _ in 0..count {
        let attr = Attr::read(cursor.take(u64::from(size))?, order)?;
        let ids = cursor.u32()?;
        let name = cursor.string()?;
        let ids = cursor.words(u64::from(ids))?.iter().collect();
        events.push(Described { attr, name, ids });
    }
    Some(events)
}

/// Parses records with build-ids, up to the first one that is invalid.
fn identities(mut cursor: Cursor<'_>, order: ByteOrder) -> Vec<Identity> {
    let mut identities = Vec::new();
    let mut next = || -> Option<Option<Identity>> {
        let _kind = cursor.u32()?;
        let misc = cursor.u16()?;
        let length = u64::from(cursor.u16()?).checked_sub(8)?;
        Some(identity(cursor.take(length)?, misc, order))
    };
    while let Some(found) = next() {
        identities.extend(found);
    }
    identities
}

/// Parses a record with a file's build-id.
pub(super) fn identity(body: &[u8], misc: u16, order: ByteOrder) -> Option<Identity> {
    /// Flag: the length of the build-id follows it.
    const HAS_SIZE: u16 = 1 << 15;
    /// Length of a build-id in bytes where the record does not state it.
    const USUAL: usize = 20;
    let mut cursor = Cursor::new(body, order);
    let _process = cursor.u32()?;
    let id = cursor.take(24)?;
    let size = if misc & HAS_SIZE != 0 {
        usize::from(id[USUAL]).min(USUAL)
    } else {
        USUAL
    };
    let path = text(until_zero(cursor.rest()));
    (!path.is_empty() && size > 0).then(|| Identity {
        path,
        build_id: digits(&id[..size]),
    })
}

/// Bytes in hexadecimal digits.
pub(super) fn digits(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::new(), |mut digits, byte| {
        let _ = write!(digits, "{byte:02x}");
        digits
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cpus_are_read_within_reason() {
        assert_eq!(cpu_list("0-2,8\n"), [0, 1, 2, 8]);
        assert_eq!(cpu_list("0-4294967295"), [] as [u32; 0]);
        assert_eq!(cpu_list(""), [] as [u32; 0]);
    }

    #[test]
    fn headers_that_cannot_be_read_are_not_there() {
        let mut about = About::default();
        for number in 0..40 {
            about.add(number, &[0xff; 12], ByteOrder::Little);
        }
        assert_eq!(about.host, None);
        assert!(about.command.is_empty() && about.events.is_empty());
        about.add(feature::HOST, b"\x04\0\0\0box\0", ByteOrder::Little);
        assert_eq!(about.host.as_deref(), Some("box"));
    }

    #[test]
    fn build_ids_have_their_declared_length() {
        let mut body = 7_u32.to_le_bytes().to_vec();
        body.extend([0xab; 20]);
        body.extend([0; 4]);
        body.extend(b"/bin/x\0\0");
        let found = identity(&body, 0, ByteOrder::Little).unwrap();
        assert_eq!((found.path.as_str(), found.build_id.len()), ("/bin/x", 40));
        body[24] = 8;
        let found = identity(&body, 1 << 15, ByteOrder::Little).unwrap();
        assert_eq!(found.build_id, "abababababababab");
        assert_eq!(identity(&body[..20], 0, ByteOrder::Little), None);
    }
}
