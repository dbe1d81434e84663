//! Reads `.eh_frame`: the extents of functions and the addresses of their exception tables.

use std::ops::Range;

use gimli::{
    BaseAddresses, CfaRule, CieOrFde, CommonInformationEntry, EhFrame, EhFrameHdr, EhFrameOffset,
    EndianSlice, LittleEndian, Pointer, UnwindContext, UnwindSection as _, X86_64,
};
use rustc_hash::FxHashMap;

use super::elf::{Layout, range_holding};

/// The contents of a frame description entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FrameDescription {
    pub(super) range: Range<u64>,
    /// Address of the function's exception table, if it has one.
    pub(super) exception_table: Option<u64>,
    /// Offset of the entry in the section.
    offset: usize,
}

/// Distance in bytes from a register up to the return address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Depth {
    /// From the stack pointer.
    Stack(u64),
    /// From rbp, which is the frame pointer there.
    Frame(u64),
}

type Reader<'data> = EndianSlice<'data, LittleEndian>;

/// The `.eh_frame` section, for repeated queries.
#[derive(Clone, Copy, Debug)]
pub(super) struct FrameSection<'data> {
    address: u64,
    pub(super) bytes: &'data [u8],
}

impl<'data> FrameSection<'data> {
    /// Finds the section: at the address in the program header, with the length from the section header if
    /// they agree; otherwise by the section header alone.
    pub(super) fn find(layout: &Layout<'data>) -> Option<Self> {
        let (address, bytes) = section(layout)?;
        Some(Self { address, bytes })
    }

    pub(super) fn bases(&self) -> BaseAddresses {
        BaseAddresses::default().set_eh_frame(self.address)
    }

    /// Visits every entry: its extent, its offset in the section, and whether it is a kernel signal frame.
    pub(super) fn each_entry(&self, mut visit: impl FnMut(Range<u64>, usize, bool)) {
        self.each(|entry| visit(entry.range, entry.offset, entry.signal));
    }

    fn each(&self, mut visit: impl FnMut(Visited)) {
        let bases = self.bases();
        let section = EhFrame::new(self.bytes, LittleEndian);
        // Entries share a CIE, which would otherwise be parsed again for each of them.
        let mut common_entries: FxHashMap<usize, CommonInformationEntry<Reader<'_>>> =
            FxHashMap::default();
        let mut entries = section.entries(&bases);
        // An unreadable entry ends the list, because the entries after it cannot be found.
        while let Ok(Some(entry)) = entries.next() {
            let partial = match entry {
                CieOrFde::Cie(cie) => {
                    common_entries.insert(cie.offset(), cie);
                    continue;
                }
                CieOrFde::Fde(partial) => partial,
            };
            let entry = partial.parse(|section, bases, offset| {
                if let Some(cie) = common_entries.get(&offset.0) {
                    return Ok(cie.clone());
                }
                let cie = section.cie_from_offset(bases, offset)?;
                common_entries.insert(offset.0, cie.clone());
                Ok(cie)
            });
            let Ok(entry) = entry else { continue };
            let Some(end) = entry.initial_address().checked_add(entry.len()) else {
                continue;
            };
            visit(Visited {
                range: entry.initial_address()..end,
                offset: entry.offset(),
                signal: entry.is_signal_trampoline(),
                exception_table: match entry.lsda() {
                    Some(Pointer::Direct(address)) if address != 0 => Some(address),
                    _ => None,
                },
            });
        }
    }

    /// The depth of the stack before the instruction at an address that `frame` covers.
    pub(super) fn depth(&self, frame: &FrameDescription, address: u64) -> Option<Depth> {
        let section = EhFrame::new(self.bytes, LittleEndian);
        let bases = self.bases();
        let entry = section
            .fde_from_offset(&bases, EhFrameOffset(frame.offset), |section, bases, at| {
                section.cie_from_offset(bases, at)
            })
            .ok()?;
        let mut context = UnwindContext::new();
        let row = entry
            .unwind_info_for_address(&section, &bases, &mut context, address)
            .ok()?;
        let CfaRule::RegisterAndOffset { register, offset } = *row.cfa() else {
            return None;
        };
        // The canonical frame address is 8 bytes above the return address.
        let depth = u64::try_from(offset).ok()?.checked_sub(8)?;
        match register {
            X86_64::RSP => Some(Depth::Stack(depth)),
            X86_64::RBP => Some(Depth::Frame(depth)),
            _ => None,
        }
    }
}

/// An entry, as [`FrameSection::each`] passes it on.
struct Visited {
    range: Range<u64>,
    offset: usize,
    /// True if the frame is a kernel signal frame (`S` in the CIE augmentation).
    signal: bool,
    exception_table: Option<u64>,
}

/// Every entry whose extent lies in `text`, sorted and disjoint.
pub(super) fn frames(section: &FrameSection<'_>, text: &[Range<u64>]) -> Vec<FrameDescription> {
    let mut found = Vec::new();
    section.each(|entry| {
        // Unwinders recognize signal frames by their code, and their entries begin one byte early, within the
        // code before them.
        if entry.signal {
            return;
        }
        let range = entry.range;
        let inside = range_holding(text, range.start).is_some_and(|text| range.end <= text.end);
        if range.is_empty() || !inside {
            return;
        }
        found.push(FrameDescription {
            range,
            offset: entry.offset,
            exception_table: entry.exception_table,
        });
    });
    found.sort_by_key(|frame| (frame.range.start, std::cmp::Reverse(frame.range.end)));
    // Linkers do not produce overlapping extents, so an overlap is damage.
    let mut covered = 0;
    found.retain(|frame| {
        let open = frame.range.start >= covered;
        covered = covered.max(frame.range.end);
        open
    });
    found
}

/// The address and bytes of `.eh_frame`: at the address in the program header, with the length from the
/// section header if they agree; otherwise by the section header alone.
fn section<'data>(layout: &Layout<'data>) -> Option<(u64, &'data [u8])> {
    let by_name = layout
        .sections
        .iter()
        .find(|section| section.name == b".eh_frame");
    let pointed_to = layout.frame_header.clone().and_then(|range| {
        let bases = BaseAddresses::default().set_eh_frame_hdr(range.start);
        let bytes = layout.bytes(range)?;
        let header = EhFrameHdr::new(bytes, LittleEndian).parse(&bases, 8).ok()?;
        header.eh_frame_ptr().direct().ok()
    });
    match (pointed_to, by_name) {
        (Some(address), Some(section)) if section.range.start == address => {
            Some((address, layout.bytes(section.range.clone())?))
        }
        (Some(address), _) => Some((address, layout.bytes_from(address)?)),
        (None, Some(section)) => Some((section.range.start, layout.bytes(section.range.clone())?)),
        (None, None) => None,
    }
}
