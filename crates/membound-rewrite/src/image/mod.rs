//! An ELF file as the bytes that a process would see.
//!
//! [`Image::parse`] reads what the file declares: segments, functions, and what the loader will write. It
//! does not follow code; [`crate::code`] does. Every count is limited by the file's size, whatever its
//! headers claim.

mod elf;
mod error;
mod exceptions;
mod frames;
mod functions;
mod identity;
mod kind;
mod padding;
mod relocations;
mod symbols;
mod unwind;

use std::ops::Range;
use std::sync::OnceLock;

use elf::Layout;
pub use error::{Error, Unsupported};
pub(crate) use frames::Depth;
pub use functions::FunctionBounds;
use functions::Undescribed;
pub use identity::{Convention, Identity};
pub use kind::Kind;
pub(crate) use padding::leading_padding;

/// An ELF file that has been read.
#[derive(Clone, Debug)]
pub struct Image<'data> {
    layout: Layout<'data>,
    text: Vec<Range<u64>>,
    functions: Vec<FunctionBounds>,
    inner_symbols: Vec<u64>,
    frames: Vec<frames::FrameDescription>,
    frame_section: Option<frames::FrameSection<'data>>,
    relocations: relocations::Relocations<'data>,
    /// Computed at the first use: without a build-id it is a hash of all text.
    identity: OnceLock<Identity>,
    convention: Convention,
}

/// The layout of a file whose code may be patched; an error for Go programs.
fn patched_layout(data: &[u8]) -> Result<Layout<'_>, Error> {
    let layout = Layout::parse(data)?;
    if identity::is_go(&layout) {
        return Err(Error::Unsupported(Unsupported::Go));
    }
    if symbols::DynamicSymbols::read(&layout).is_mono() {
        return Err(Error::Unsupported(Unsupported::Mono));
    }
    Ok(layout)
}

impl<'data> Image<'data> {
    /// Reads an ELF file.
    ///
    /// # Errors
    /// If the file is malformed or of a kind that is not patched.
    pub fn parse(data: &'data [u8]) -> Result<Self, Error> {
        patched_layout(data).map(|layout| Self::of_layout(layout, Undescribed::Found))
    }

    /// Reads only the file's identity, as [`Self::identity`] returns it: much faster than [`Self::parse`].
    ///
    /// # Errors
    /// The same as for [`Self::parse`].
    pub fn identify(data: &[u8]) -> Result<Identity, Error> {
        patched_layout(data).map(|layout| identity::identity(&layout))
    }

    /// Reads only the build-id, if the file has one. Any other identity requires reading all of the text.
    ///
    /// # Errors
    /// The same as for [`Self::parse`].
    pub fn build_id(data: &[u8]) -> Result<Option<Identity>, Error> {
        patched_layout(data).map(|layout| identity::build_id(&layout))
    }

    /// Reads an ELF file whose code is analysed but not patched; Go programs are accepted too.
    ///
    /// # Errors
    /// If the file is malformed or of an unsupported kind.
    pub fn parse_unpatched(data: &'data [u8]) -> Result<Self, Error> {
        Layout::parse(data).map(|layout| Self::of_layout(layout, Undescribed::Found))
    }

    /// Like [`Self::parse`], with only the functions that contain one of `addresses`, and their neighbours: much
    /// faster. The caller answers for it that no other code enters these functions but at their starts.
    ///
    /// # Errors
    /// The same as for [`Self::parse`].
    pub fn parse_around(data: &'data [u8], addresses: &[u64]) -> Result<Self, Error> {
        let layout = patched_layout(data)?;
        let mut image = Self::of_layout(layout, Undescribed::LeftOut);
        let selected = addresses.iter().filter_map(|at| image.function_at(*at));
        let selected: Vec<usize> = selected.collect();
        let is_near = |index: usize| selected.iter().any(|it| it.abs_diff(index) <= 1);
        let mut index = 0..;
        image
            .functions
            .retain(|_| index.next().is_some_and(is_near));
        let kept = &image.functions;
        let is_kept = |range: &Range<u64>| {
            let overlaps =
                |it: &FunctionBounds| it.range.start < range.end && range.start < it.range.end;
            kept.iter().any(overlaps)
        };
        image.frames.retain(|frame| is_kept(&frame.range));
        image.inner_symbols.retain(|at| is_kept(&(*at..*at + 1)));
        Ok(image)
    }

    /// Like [`Self::parse_unpatched`], without the functions that neither symbols nor unwind information
    /// describe: much faster.
    ///
    /// # Errors
    /// The same as for [`Self::parse_unpatched`].
    pub fn parse_described(data: &'data [u8]) -> Result<Self, Error> {
        Layout::parse(data).map(|layout| Self::of_layout(layout, Undescribed::LeftOut))
    }

    fn of_layout(layout: Layout<'data>, undescribed: Undescribed) -> Self {
        let text: Vec<Range<u64>> = layout
            .segments
            .iter()
            .filter(|segment| segment.executable)
            .map(|segment| layout.code_of(segment))
            .filter(|range| !range.is_empty())
            .collect();
        let dynamic = symbols::DynamicSymbols::read(&layout);
        let relocations = relocations::Relocations::read(&layout, &dynamic);
        let symbols = symbols::code_symbols(&layout, &dynamic);
        let frame_section = frames::FrameSection::find(&layout);
        let frames = frame_section.map_or_else(Vec::new, |section| frames::frames(&section, &text));
        let found = functions::find(&layout, &text, &frames, &symbols, &relocations, undescribed);
        let covered = frames
            .iter()
            .map(|frame| frame.range.end - frame.range.start)
            .sum();
        Self {
            identity: OnceLock::new(),
            convention: identity::convention(&layout, &symbols, covered),
            layout,
            text,
            functions: found.functions,
            inner_symbols: found.inner,
            frames,
            frame_section,
            relocations,
        }
    }

    /// The bytes at a range of addresses; `None` unless one segment has all of them in the file.
    #[must_use]
    pub fn bytes(&self, range: Range<u64>) -> Option<&'data [u8]> {
        self.layout.bytes(range)
    }

    /// The bytes from an address to the end of its segment in the file.
    #[must_use]
    pub fn bytes_from(&self, address: u64) -> Option<&'data [u8]> {
        self.layout.bytes_from(address)
    }

    /// The file-backed parts of executable segments, ascending. If there are section headers, from the first
    /// executable section of a segment to its last.
    #[must_use]
    pub fn text(&self) -> &[Range<u64>] {
        &self.text
    }

    /// True if an address lies in text.
    #[must_use]
    pub fn is_text(&self, address: u64) -> bool {
        self.layout.is_text(address)
    }

    /// True if the program may write to the address. Memory that the loader relocates and then protects
    /// counts as writable.
    #[must_use]
    pub fn is_writable(&self, address: u64) -> bool {
        self.layout
            .segment_at(address)
            .is_some_and(|segment| segment.writable)
    }

    /// The range from the lowest to the highest address of all segments.
    #[must_use]
    pub fn span(&self) -> Range<u64> {
        match (self.layout.segments.first(), self.layout.segments.last()) {
            (Some(first), Some(last)) => first.backed.start..last.end,
            _ => 0..0,
        }
    }

    /// The image's functions, sorted and disjoint.
    #[must_use]
    pub fn functions(&self) -> &[FunctionBounds] {
        &self.functions
    }

    /// Index of the function that contains an address.
    #[must_use]
    pub fn function_at(&self, address: u64) -> Option<usize> {
        let after = self
            .functions
            .partition_point(|function| function.range.start <= address);
        let index = after.checked_sub(1)?;
        self.functions[index]
            .range
            .contains(&address)
            .then_some(index)
    }

    /// Functions that this file defines under names that are `wanted`: address, and name as in the symbol
    /// table.
    #[must_use]
    pub fn functions_named(&self, wanted: impl Fn(&[u8]) -> bool) -> Vec<(u64, &'data [u8])> {
        let dynamic = symbols::DynamicSymbols::read(&self.layout);
        symbols::functions_named(&self.layout, &dynamic, wanted)
    }

    /// True if a function begins at the address.
    #[must_use]
    pub fn is_function_start(&self, address: u64) -> bool {
        self.functions
            .binary_search_by(|function| function.range.start.cmp(&address))
            .is_ok()
    }

    /// The file's identity for caches.
    #[must_use]
    pub fn identity(&self) -> &Identity {
        self.identity
            .get_or_init(|| identity::identity(&self.layout))
    }

    /// The calling convention that may be assumed.
    #[must_use]
    pub const fn convention(&self) -> Convention {
        self.convention
    }

    /// The interpreter's path from `PT_INTERP`.
    #[must_use]
    pub const fn interpreter(&self) -> Option<&'data [u8]> {
        self.layout.interpreter
    }

    /// The kind of module that the file makes.
    #[must_use]
    pub const fn kind(&self) -> Kind {
        self.layout.kind
    }

    /// True if the addresses are fixed, so that code and data may contain addresses without a relocation.
    #[must_use]
    pub const fn position_dependent(&self) -> bool {
        self.layout.position_dependent
    }

    /// The program's entry point; 0 if there is none.
    #[must_use]
    pub const fn entry(&self) -> u64 {
        self.layout.entry
    }

    /// Words that the loader fills with addresses within the image: the address of each word and its value,
    /// both as in the file, sorted.
    #[must_use]
    pub fn relative_relocations(&self) -> &[(u64, u64)] {
        &self.relocations.pointers
    }

    /// The address within the image that the loader writes into the word at `at`.
    #[must_use]
    pub fn pointer_at(&self, at: u64) -> Option<u64> {
        let pointers = &self.relocations.pointers;
        let index = pointers.partition_point(|&(address, _)| address < at);
        pointers
            .get(index)
            .filter(|&&(address, _)| address == at)
            .map(|&(_, value)| value)
    }

    /// The name of the symbol whose address the loader writes into the word at `slot`.
    #[must_use]
    pub fn import_at(&self, slot: u64) -> Option<&'data [u8]> {
        let imports = &self.relocations.imports;
        let index = imports.partition_point(|&(address, _)| address < slot);
        imports
            .get(index)
            .filter(|&&(address, _)| address == slot)
            .map(|&(_, name)| name)
    }

    /// Addresses inside functions, other than their starts, that have a symbol or an unwind entry, sorted.
    #[must_use]
    pub fn inner_symbols(&self) -> &[u64] {
        &self.inner_symbols
    }

    /// The range of the file-backed section with this name, if the file has section headers.
    #[must_use]
    pub fn section(&self, name: &str) -> Option<Range<u64>> {
        self.layout
            .sections
            .iter()
            .find(|section| section.name == name.as_bytes())
            .map(|section| section.range.clone())
    }

    /// The file-backed data segments, ascending: start address and bytes.
    pub(crate) fn data_segments(&self) -> impl Iterator<Item = (u64, &'data [u8])> {
        self.layout
            .segments
            .iter()
            .filter(|segment| !segment.executable)
            .filter_map(|segment| {
                let bytes = self.layout.bytes(segment.backed.clone())?;
                Some((segment.backed.start, bytes))
            })
    }

    /// The image's compact unwind table ([`membound_wire::UnwindHeader`] and its rows). Its addresses are
    /// relative to the first page of [`Self::span`]. Empty if the file has no unwind information.
    #[must_use]
    pub fn unwind_table(&self) -> Vec<u8> {
        const PAGE: u64 = 4096;
        let origin = self.span().start & !(PAGE - 1);
        self.frame_section.map_or_else(Vec::new, |section| {
            unwind::table(&section, &self.text, origin)
        })
    }

    /// The depth of the stack before the instruction at an address, from unwind information.
    pub(crate) fn depth_at(&self, address: u64) -> Option<Depth> {
        let after = self
            .frames
            .partition_point(|frame| frame.range.start <= address);
        let frame = self.frames[..after].last()?;
        let inside = frame.range.contains(&address);
        self.frame_section.filter(|_| inside)?.depth(frame, address)
    }

    /// The unwind entries that begin in `range` and have an exception table: the extent of each entry and the
    /// address of its table.
    pub(crate) fn exception_tables(
        &self,
        range: Range<u64>,
    ) -> impl Iterator<Item = (Range<u64>, u64)> {
        let first = self
            .frames
            .partition_point(|frame| frame.range.start < range.start);
        self.frames[first..]
            .iter()
            .take_while(move |frame| frame.range.start < range.end)
            .filter_map(|frame| Some((frame.range.clone(), frame.exception_table?)))
    }
}
