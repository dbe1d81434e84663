//! Extents of functions and the whereabouts of their exception tables, from `.eh_frame`.

use std::collections::HashMap;
use std::ops::Range;

use gimli::{
    BaseAddresses, CallFrameInstruction, CieOrFde, CommonInformationEntry, EhFrame, EhFrameHdr,
    EndianSlice, FrameDescriptionEntry, LittleEndian, Pointer, UnwindSection as _, X86_64,
};

use super::elf::Layout;

/// What one frame description entry says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Frame {
    pub(super) range: Range<u64>,
    /// Address of the function's exception table.
    pub(super) exception_table: Option<u64>,
    /// Bytes between the return address and the stack pointer where it begins: not 0 in
    /// the cold part of a function.
    pub(super) depth: Option<u64>,
    /// The same for rbp, where that is the frame pointer there.
    pub(super) frame_depth: Option<u64>,
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
        // The kernel returns from handlers to these few bytes, and unwinders know them by
        // sight. Their entry begins a byte early, inside of what stands before them.
        if entry.is_signal_trampoline() {
            continue;
        }
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
        let (depth, frame_depth) = depth_at_entry(&entry, &section, &bases);
        found.push(Frame {
            range,
            depth,
            frame_depth,
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

/// How deep the stack is where a function begins, for the stack pointer and the frame
/// pointer: by the rules before the first advance. Without any, the call has just happened.
fn depth_at_entry(
    entry: &FrameDescriptionEntry<Reader<'_>>,
    section: &EhFrame<Reader<'_>>,
    bases: &BaseAddresses,
) -> (Option<u64>, Option<u64>) {
    // The canonical frame address lies just above the return address.
    let (mut register, mut offset) = (X86_64::RSP, Some(8_u64));
    let mut instructions = entry.instructions(section, bases);
    while let Ok(Some(instruction)) = instructions.next() {
        match instruction {
            CallFrameInstruction::AdvanceLoc { .. } | CallFrameInstruction::SetLoc { .. } => break,
            CallFrameInstruction::DefCfa {
                register: new,
                offset: at,
            } => (register, offset) = (new, Some(at)),
            CallFrameInstruction::DefCfaOffset { offset: at } => offset = Some(at),
            CallFrameInstruction::DefCfaRegister { register: new } => register = new,
            CallFrameInstruction::DefCfaSf { .. }
            | CallFrameInstruction::DefCfaOffsetSf { .. }
            | CallFrameInstruction::DefCfaExpression { .. } => offset = None,
            _ => {}
        }
    }
    let depth = offset.and_then(|offset| offset.checked_sub(8));
    match register {
        X86_64::RSP => (depth, None),
        X86_64::RBP => (None, depth),
        _ => (None, None),
    }
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
