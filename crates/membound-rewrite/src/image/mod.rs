//! An ELF file as the bytes that a process would see.
//!
//! [`Image::parse`] reads what the file says of itself: segments, functions, what the
//! loader will write. It does not follow code; that is [`crate::code`]'s. Every count is
//! bounded by the file's size, whatever its headers claim.

mod elf;
mod exceptions;
mod frames;
mod functions;
mod identity;
mod padding;
mod relocations;
mod symbols;
mod unwind;

use std::ops::Range;

use elf::Layout;
pub(crate) use frames::Depth;
pub(crate) use padding::leading_padding;

/// Why a file is left alone as a whole. Its functions are not looked at.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// It cannot be read as what it says it is.
    #[error("malformed ELF file: {0}")]
    Malformed(String),
    /// Something that is not patched, by kind.
    #[error("{0}")]
    Unsupported(Unsupported),
}

/// Files that are not patched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unsupported {
    /// No ELF magic.
    #[error("not an ELF file")]
    NotElf,
    /// Another instruction set, word size or byte order.
    #[error("not x86-64 code")]
    Machine,
    /// Neither an executable nor a shared object.
    #[error("neither an executable nor a shared object")]
    Kind,
    /// Text is to be relocated, or lies in a writable segment.
    #[error("its text is writable or is relocated when it is loaded")]
    WritableText,
    /// Made by Go: its stacks move, and its runtime unwinds by tables of its own.
    #[error("a Go program: its runtime moves stacks and unwinds by its own tables")]
    Go,
    /// It spans more than a jump reaches.
    #[error("it spans more than 1 GiB")]
    TooLarge,
}

/// What an image is called in caches: the same bytes have the same identity.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Identity {
    /// The linker's build-id.
    BuildId(Vec<u8>),
    /// SHA-256 of program headers and executable segments, where there is no build-id.
    TextHash([u8; 32]),
}

/// What may be assumed at calls and returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Convention {
    /// Made by compilers that follow the System V ABI (gcc, clang, rustc; by the file's
    /// `.comment` or DWARF producers).
    SystemV,
    /// Unknown: everything is alive at calls and returns.
    Unknown,
}

/// A function's extent in the file's addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FunctionBounds {
    /// First byte and one past the last.
    pub range: Range<u64>,
    /// Name, mangled as it stands in the symbol table, when there is one.
    pub name: Option<Box<str>>,
    /// Whether anybody outside the module may call it (a dynamic symbol).
    pub exported: bool,
    /// Hand-written assembly, as far as known (no `STT_FUNC` type, or no unwind
    /// information): no convention is assumed of it.
    pub assembly: bool,
}

/// What kind of module a file makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// An executable whose addresses are fixed.
    Executable,
    /// An executable that may lie anywhere.
    PositionIndependentExecutable,
    /// A shared object, the loader among them.
    SharedObject,
    /// An executable that no loader prepares, whether its addresses are fixed or not.
    Static,
}

/// A file, read.
#[derive(Clone, Debug)]
pub struct Image<'data> {
    layout: Layout<'data>,
    text: Vec<Range<u64>>,
    functions: Vec<FunctionBounds>,
    inner_symbols: Vec<u64>,
    frames: Vec<frames::Frame>,
    frame_section: Option<frames::FrameSection<'data>>,
    relocations: relocations::Relocations<'data>,
    identity: Identity,
    convention: Convention,
}

/// Whether functions that nothing describes are looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Undescribed {
    Found,
    LeftOut,
}

/// The layout of a file whose code may be patched: not of one that was made by Go.
fn patched_layout(data: &[u8]) -> Result<Layout<'_>, Error> {
    let layout = Layout::parse(data)?;
    if identity::is_go(&layout) {
        return Err(Error::Unsupported(Unsupported::Go));
    }
    Ok(layout)
}

impl<'data> Image<'data> {
    /// Reads an ELF file.
    ///
    /// # Errors
    /// When it is malformed, or of a kind that is not patched.
    pub fn parse(data: &'data [u8]) -> Result<Self, Error> {
        patched_layout(data).map(|layout| Self::of_layout(layout, Undescribed::Found))
    }

    /// Reads only what the file is called by, as [`Self::identity`] does: much faster than [`Self::parse`].
    ///
    /// # Errors
    /// As of [`Self::parse`].
    pub fn identify(data: &[u8]) -> Result<Identity, Error> {
        patched_layout(data).map(|layout| identity::identity(&layout))
    }

    /// Reads only the build-id, where the file has one: no other identity is known without reading all text.
    ///
    /// # Errors
    /// As of [`Self::parse`].
    pub fn build_id(data: &[u8]) -> Result<Option<Identity>, Error> {
        patched_layout(data).map(|layout| identity::build_id(&layout))
    }

    /// Reads an ELF file whose code is only looked at: also one that is not patched because it
    /// was made by Go.
    ///
    /// # Errors
    /// When it is malformed, or of a kind that is not looked at.
    pub fn parse_unpatched(data: &'data [u8]) -> Result<Self, Error> {
        Layout::parse(data).map(|layout| Self::of_layout(layout, Undescribed::Found))
    }

    /// The same without the functions that neither symbols nor unwind information describe: much faster.
    ///
    /// # Errors
    /// As of [`Self::parse_unpatched`].
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
            identity: identity::identity(&layout),
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

    /// The bytes of a range of addresses, when one segment of the file holds them all.
    #[must_use]
    pub fn bytes(&self, range: Range<u64>) -> Option<&'data [u8]> {
        self.layout.bytes(range)
    }

    /// The bytes from an address to the end of its segment in the file.
    #[must_use]
    pub fn bytes_from(&self, address: u64) -> Option<&'data [u8]> {
        self.layout.bytes_from(address)
    }

    /// The file-backed parts of executable segments, ascending; where sections say so, without what lies
    /// before and behind the code in them.
    #[must_use]
    pub fn text(&self) -> &[Range<u64>] {
        &self.text
    }

    /// Whether an address lies in text.
    #[must_use]
    pub fn is_text(&self, address: u64) -> bool {
        self.layout.is_text(address)
    }

    /// Whether an address lies in a part of the file that the program may write to. What
    /// the loader relocates and then protects counts as writable.
    #[must_use]
    pub fn is_writable(&self, address: u64) -> bool {
        self.layout
            .segment_at(address)
            .is_some_and(|segment| segment.writable)
    }

    /// From the lowest to the highest address of all segments.
    #[must_use]
    pub fn span(&self) -> Range<u64> {
        match (self.layout.segments.first(), self.layout.segments.last()) {
            (Some(first), Some(last)) => first.backed.start..last.end,
            _ => 0..0,
        }
    }

    /// Functions, sorted and disjoint.
    #[must_use]
    pub fn functions(&self) -> &[FunctionBounds] {
        &self.functions
    }

    /// Index of the function that an address lies in.
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

    /// Functions that are defined here under names that are `wanted`: their addresses, and each
    /// of those names as it stands in a symbol table.
    #[must_use]
    pub fn functions_named(&self, wanted: impl Fn(&[u8]) -> bool) -> Vec<(u64, &'data [u8])> {
        let dynamic = symbols::DynamicSymbols::read(&self.layout);
        symbols::functions_named(&self.layout, &dynamic, wanted)
    }

    /// Whether a function begins at an address.
    #[must_use]
    pub fn is_function_start(&self, address: u64) -> bool {
        self.functions
            .binary_search_by(|function| function.range.start.cmp(&address))
            .is_ok()
    }

    /// What the file is called in caches.
    #[must_use]
    pub const fn identity(&self) -> &Identity {
        &self.identity
    }

    /// What may be assumed at calls and returns.
    #[must_use]
    pub const fn convention(&self) -> Convention {
        self.convention
    }

    /// The interpreter's path, as `PT_INTERP` names it.
    #[must_use]
    pub const fn interpreter(&self) -> Option<&'data [u8]> {
        self.layout.interpreter
    }

    /// What kind of module it makes.
    #[must_use]
    pub const fn kind(&self) -> Kind {
        self.layout.kind
    }

    /// Whether its addresses are fixed, so that they may stand in its code and data
    /// without a relocation.
    #[must_use]
    pub const fn position_dependent(&self) -> bool {
        self.layout.position_dependent
    }

    /// Where the program begins, 0 where there is no such place.
    #[must_use]
    pub const fn entry(&self) -> u64 {
        self.layout.entry
    }

    /// Words that will hold addresses within the image: where each lies, and the address
    /// (both the file's), sorted.
    #[must_use]
    pub fn relative_relocations(&self) -> &[(u64, u64)] {
        &self.relocations.pointers
    }

    /// The address within the image that the word at `at` will hold.
    #[must_use]
    pub fn pointer_at(&self, at: u64) -> Option<u64> {
        let pointers = &self.relocations.pointers;
        let index = pointers.partition_point(|&(address, _)| address < at);
        pointers
            .get(index)
            .filter(|&&(address, _)| address == at)
            .map(|&(_, value)| value)
    }

    /// The name of the symbol whose address the word at `slot` will hold.
    #[must_use]
    pub fn import_at(&self, slot: u64) -> Option<&'data [u8]> {
        let imports = &self.relocations.imports;
        let index = imports.partition_point(|&(address, _)| address < slot);
        imports
            .get(index)
            .filter(|&&(address, _)| address == slot)
            .map(|&(_, name)| name)
    }

    /// Addresses inside functions, not their starts, that a symbol or an unwind entry
    /// names, sorted.
    #[must_use]
    pub fn inner_symbols(&self) -> &[u64] {
        &self.inner_symbols
    }

    /// A file-backed section with this name, if the file has section headers.
    #[must_use]
    pub fn section(&self, name: &str) -> Option<Range<u64>> {
        self.layout
            .sections
            .iter()
            .find(|section| section.name == name.as_bytes())
            .map(|section| section.range.clone())
    }

    /// Parts of the file that hold data, file-backed, ascending.
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

    /// The image's compact unwind table ([`membound_wire::UnwindHeader`] and what follows
    /// it), whose addresses count from the first page of [`Self::span`]; empty without
    /// unwind information.
    #[must_use]
    pub fn unwind_table(&self) -> Vec<u8> {
        const PAGE: u64 = 4096;
        let origin = self.span().start & !(PAGE - 1);
        self.frame_section.map_or_else(Vec::new, |section| {
            unwind::table(&section, &self.text, origin)
        })
    }

    /// How deep the stack is before the instruction at an address, by unwind information.
    pub(crate) fn depth_at(&self, address: u64) -> Option<Depth> {
        let after = self
            .frames
            .partition_point(|frame| frame.range.start <= address);
        let frame = self.frames[..after].last()?;
        let inside = frame.range.contains(&address);
        self.frame_section.filter(|_| inside)?.depth(frame, address)
    }

    /// Exception tables of the unwind entries that begin in `range`: the extent of each
    /// entry and the address of its table.
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
