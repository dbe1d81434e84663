//! Extents of functions and the whereabouts of their exception tables, from `.eh_frame`.

use std::collections::HashMap;
use std::ops::Range;

use gimli::{
    BaseAddresses, CieOrFde, CommonInformationEntry, EhFrame, EhFrameHdr, EndianSlice,
    LittleEndian, Pointer, UnwindSection as _,
};

use super::elf::Layout;

/// What one frame description entry says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Frame {
    pub(super) range: Range<u64>,
    /// Address of the function's exception table.
    pub(super) exception_table: Option<u64>,
}

type Reader<'data> = EndianSlice<'data, LittleEndian>;

/// Every entry whose extent lies in `text`, sorted and disjoint.
pub(super) fn frames(layout: &Layout<'_>, text: &[Range<u64>]) -> Vec<Frame> {
    let Some((address, bytes)) = section(layout) else {
        return Vec::new();
    };
    let bases = BaseAddresses::default()
        .set_eh_frame(address)
        .set_text(text.first().map_or(0, |range| range.start));
    let section = EhFrame::new(bytes, LittleEndian);
    // Looked up again and again by entries that share one, each time parsed from its start.
    let mut known: HashMap<usize, CommonInformationEntry<Reader<'_>>> = HashMap::new();
    let mut found = Vec::new();
    let mut entries = section.entries(&bases);
    // What cannot be read ends the list: entries after it cannot be found.
    while let Ok(Some(entry)) = entries.next() {
        let partial = match entry {
            CieOrFde::Cie(cie) => {
                known.insert(cie.offset(), cie);
                continue;
            }
            CieOrFde::Fde(partial) => partial,
        };
        let entry = partial.parse(|section, bases, offset| {
            if let Some(cie) = known.get(&offset.0) {
                return Ok(cie.clone());
            }
            let cie = section.cie_from_offset(bases, offset)?;
            known.insert(offset.0, cie.clone());
            Ok(cie)
        });
        let Ok(entry) = entry else { continue };
        let Some(end) = entry.initial_address().checked_add(entry.len()) else {
            continue;
        };
        let range = entry.initial_address()..end;
        let inside = text
            .iter()
            .any(|text| text.start <= range.start && range.end <= text.end);
        if range.is_empty() || !inside {
            continue;
        }
        found.push(Frame {
            range,
            exception_table: match entry.lsda() {
                Some(Pointer::Direct(address)) if address != 0 => Some(address),
                _ => None,
            },
        });
    }
    found.sort_by_key(|frame| (frame.range.start, std::cmp::Reverse(frame.range.end)));
    // Extents do not overlap in files that linkers make.
    let mut covered = 0;
    found.retain(|frame| {
        let open = frame.range.start >= covered;
        covered = covered.max(frame.range.end);
        open
    });
    found
}

/// The address and bytes of `.eh_frame`: where the program header points, as far as the
/// section header says; else by the section header alone.
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
