//! The plan of a module: the result of its analysis, independent of where the module is mapped.

use std::fmt;
use std::ops::{Deref, Range};
use std::sync::Arc;

use membound_wire::{COUNT_APART, COUNT_WORDS, Probe, SLOTS_BYTES};

use super::edit::Edit;
use super::format::{
    EDIT_BYTES, FUNCTION_BYTES, HOOK_BYTES, Header, Number, PUN_BYTES, PlanError, SITE_BYTES,
    Section, half, long, word,
};
use super::pun::Pun;
use super::views::{FunctionView, HookState, HookView, SiteView, WrapView};
use super::{Body, EDIT, Options, Refusal};
use crate::code::Unresolved;
use crate::flow::Direction;
use crate::image::Identity;

/// Largest shift in bytes of an area's parts from the start of a page, in whole cache lines of 64 bytes (page
/// colouring).
///
/// Without the shift, many copies of one module would compete for the same few cache sets.
pub const MAX_COLOUR_BYTES: u64 = 4096 - 64;

/// Sizes in bytes of the area that a plan's code, tables and data take, each a multiple of 4096.
///
/// The three parts follow each other in this order, without gaps. Each has room to begin up to
/// [`MAX_COLOUR_BYTES`] bytes after the start of its pages; all three are shifted by the same distance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Code, to be mapped readable and executable.
    pub code_bytes: u64,
    /// Tables, to be mapped readable.
    pub tables_bytes: u64,
    /// [`membound_wire::Slots`] and the sites' words, to be mapped readable, writable and shared.
    pub data_bytes: u64,
}

impl Layout {
    /// Size of the whole area.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.code_bytes + self.tables_bytes + self.data_bytes
    }
}

/// Owned bytes, possibly a mapped file.
trait Bytes: AsRef<[u8]> + Send + Sync {}
impl<T: AsRef<[u8]> + Send + Sync> Bytes for T {}

/// A part of a plan's bytes; keeps the whole plan's bytes alive.
#[derive(Clone)]
pub struct PlanBytes {
    bytes: Arc<dyn Bytes>,
    range: Range<usize>,
}

impl Deref for PlanBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &(*self.bytes).as_ref()[self.range.clone()]
    }
}

impl fmt::Debug for PlanBytes {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(out)
    }
}

impl PartialEq for PlanBytes {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for PlanBytes {}

/// The plan of a module, made by [`Plan::make`] or read back from its bytes.
pub struct Plan {
    bytes: Arc<dyn Bytes>,
    header: Header,
}

impl fmt::Debug for Plan {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Plan")
            .field("layout", &self.layout())
            .field("sites", &self.count(Section::Sites, SITE_BYTES))
            .finish_non_exhaustive()
    }
}

impl Plan {
    /// Reads a plan back. Only the header and the sizes are checked here; the other parts are read when they
    /// are used.
    ///
    /// # Errors
    /// If the header is not that of a plan of this version, or a size is impossible.
    pub fn from_bytes(bytes: impl AsRef<[u8]> + Send + Sync + 'static) -> Result<Self, PlanError> {
        let header = Header::read(bytes.as_ref())?;
        let plan = Self {
            bytes: Arc::new(bytes),
            header,
        };
        plan.check_sizes()?;
        Ok(plan)
    }

    fn check_sizes(&self) -> Result<(), PlanError> {
        for number in [Number::CodeBytes, Number::TablesBytes, Number::DataBytes] {
            let value = self.number(number);
            if !value.is_multiple_of(4096) || value >= 1 << 31 {
                return Err(PlanError::Damaged("size"));
            }
        }
        let sites = self.number(Number::NumberedSites);
        let words = self.number(Number::SiteWords);
        let data = sites
            .checked_mul(words)
            .map(|data| data + SLOTS_BYTES as u64);
        if data.is_none_or(|data| data > self.number(Number::DataBytes))
            || self.part(Section::Code).len() as u64 > self.number(Number::CodeBytes)
            || self.part(Section::Tables).len() as u64 > self.number(Number::TablesBytes)
            || !self.number(Number::Origin).is_multiple_of(4096)
            || self.number(Number::Span) > 1 << 31
        {
            return Err(PlanError::Damaged("size"));
        }
        Ok(())
    }

    /// The plan as bytes, for [`Plan::from_bytes`].
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        (*self.bytes).as_ref()
    }

    /// True if the plan was made for this image and these options.
    #[must_use]
    pub fn is_for(&self, identity: &Identity, options: &Options) -> bool {
        self.part(Section::Identity) == identity_bytes(identity)
            && self.part(Section::Options) == options.key()
    }

    /// True if the plan patches nothing and has no refusal to report.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.sites().next().is_none()
            && self.hooks().next().is_none()
            && self.wraps().next().is_none()
    }

    /// Sizes of the area that the plan needs in the process.
    #[must_use]
    pub fn layout(&self) -> Layout {
        Layout {
            code_bytes: self.number(Number::CodeBytes),
            tables_bytes: self.number(Number::TablesBytes),
            data_bytes: self.number(Number::DataBytes),
        }
    }

    /// The module's first page and one past its last byte, in the file's addresses: the
    /// area must be within reach of all of it.
    #[must_use]
    pub fn span(&self) -> Range<u64> {
        let origin = self.number(Number::Origin);
        origin..origin.saturating_add(self.number(Number::Span))
    }

    /// The pages that islands need, as file addresses (add the bias). The area should not cover them. Sorted;
    /// each page is 4096 bytes.
    pub fn island_pages(&self) -> impl Iterator<Item = u64> + '_ {
        let origin = self.number(Number::Origin);
        let mut last = None;
        self.puns().filter_map(move |pun| {
            let page = origin.wrapping_add_signed(pun.island) & !4095;
            (last.replace(page) != Some(page)).then_some(page)
        })
    }

    /// Instructions that were to be patched, sorted by address.
    pub fn sites(&self) -> impl Iterator<Item = SiteView> + '_ {
        let origin = self.number(Number::Origin);
        self.records(Section::Sites, SITE_BYTES)
            .map(move |record| SiteView {
                address: origin.wrapping_add(u64::from(word(record, 0))),
                function: origin.wrapping_add(u64::from(word(record, 4))),
                direction: match record[12] {
                    0 => Direction::Load,
                    1 => Direction::Store,
                    _ => Direction::Both,
                },
                number: match refusal_of(record[13]) {
                    None => Ok(word(record, 8)),
                    Some(refusal) => Err(refusal),
                },
            })
    }

    /// Number of site numbers: all numbers are below this. A few of them may be unused.
    #[must_use]
    pub fn numbered_sites(&self) -> u32 {
        u32::try_from(self.number(Number::NumberedSites)).unwrap_or(0)
    }

    /// Byte range of a site's words in the data pages, or `None` if its body has no words. The words are a
    /// `u64` count, or several counts at a distance of [`COUNT_APART`] bytes to be summed, or a [`Probe`].
    #[must_use]
    pub fn data_words(&self, site: u32) -> Option<Range<usize>> {
        let bytes = usize::try_from(self.number(Number::SiteWords)).ok()?;
        if bytes == 0 || site >= self.numbered_sites() {
            return None;
        }
        let start = SLOTS_BYTES + bytes * site as usize;
        Some(start..start + bytes)
    }

    /// All `syscall` instructions that were found.
    pub fn hooks(&self) -> impl Iterator<Item = HookView> + '_ {
        let origin = self.number(Number::Origin);
        self.records(Section::Hooks, HOOK_BYTES)
            .map(move |record| HookView {
                address: origin.wrapping_add(u64::from(word(record, 0))),
                number: Some(word(record, 4)).filter(|number| *number != u32::MAX),
                state: hook_state(record[8]),
            })
    }

    /// Entries of functions that were to be wrapped, sorted by address.
    pub fn wraps(&self) -> impl Iterator<Item = WrapView> + '_ {
        let origin = self.number(Number::Origin);
        self.records(Section::Wraps, HOOK_BYTES)
            .map(move |record| WrapView {
                address: origin.wrapping_add(u64::from(word(record, 0))),
                number: word(record, 4),
                state: hook_state(record[8]),
            })
    }

    /// All functions that were analysed, sorted by address.
    pub fn functions(&self) -> impl Iterator<Item = FunctionView> + '_ {
        let origin = self.number(Number::Origin);
        self.records(Section::Functions, FUNCTION_BYTES)
            .map(move |record| {
                let start = origin.wrapping_add(u64::from(word(record, 0)));
                let at = origin.wrapping_add(u64::from(word(record, 16)));
                FunctionView {
                    range: start..start.saturating_add(u64::from(word(record, 4))),
                    blocks: word(record, 8),
                    unresolved: match word(record, 12) {
                        1 => Some(Unresolved::IndirectJump(at)),
                        2 => Some(Unresolved::Undecodable(at)),
                        3 => Some(Unresolved::EnteredInside(at)),
                        _ => None,
                    },
                }
            })
    }

    pub(super) fn number(&self, number: Number) -> u64 {
        self.header.numbers[number as usize]
    }

    pub(super) fn part(&self, section: Section) -> &[u8] {
        &self.as_bytes()[self.header.sections[section as usize].clone()]
    }

    pub(super) fn shared(&self, section: Section) -> PlanBytes {
        PlanBytes {
            bytes: Arc::clone(&self.bytes),
            range: self.header.sections[section as usize].clone(),
        }
    }

    fn records(&self, section: Section, bytes: usize) -> std::slice::ChunksExact<'_, u8> {
        self.part(section).chunks_exact(bytes)
    }

    fn count(&self, section: Section, bytes: usize) -> usize {
        self.part(section).len() / bytes
    }

    pub(super) fn edits(&self) -> impl ExactSizeIterator<Item = Edit> + '_ {
        self.records(Section::Edits, EDIT_BYTES).map(read_edit)
    }

    /// Numbers of the sites with punned jumps, ascending. Placing may lose them: the only pages such a jump
    /// can lead to may be taken in the process.
    #[must_use]
    pub fn unsure_sites(&self) -> Vec<u32> {
        let punned = self.edits().filter(|edit| usize::from(edit.length) < EDIT);
        let mut numbers: Vec<u32> = punned
            .flat_map(|edit| edit.first_site..edit.first_site + u32::from(edit.sites))
            .collect();
        numbers.sort_unstable();
        numbers
    }

    pub(super) fn puns(&self) -> impl Iterator<Item = Pun> + '_ {
        self.records(Section::Puns, PUN_BYTES).map(read_pun)
    }
}

/// Bytes of a site's words: the most that any body of the plan needs.
pub(super) fn site_words(options: &Options) -> u64 {
    let bytes = options.all_bodies().map(|body| match body {
        Body::Count { .. } => 8,
        Body::CountByStack => (COUNT_WORDS * COUNT_APART) as u64,
        Body::Sample => size_of::<Probe>() as u64,
        Body::Displace
        | Body::Rubbish
        | Body::Record
        | Body::PrefetchYield
        | Body::Yield(_)
        | Body::Mark(_) => 0,
    });
    bytes.max().unwrap_or_default()
}

pub(super) fn identity_bytes(identity: &Identity) -> Vec<u8> {
    let (kind, bytes): (u8, &[u8]) = match identity {
        Identity::BuildId(bytes) => (0, bytes),
        Identity::TextHash(bytes) => (1, bytes),
    };
    let mut all = vec![kind];
    all.extend_from_slice(bytes);
    all
}

const REFUSALS: [Refusal; 11] = [
    Refusal::NoRoom,
    Refusal::UnresolvedFlow,
    Refusal::CallAtBlockStart,
    Refusal::NotRelocatable,
    Refusal::Rseq,
    Refusal::NoStack,
    Refusal::Operand,
    Refusal::Undecodable,
    Refusal::NoIsland,
    Refusal::TextDiffers,
    Refusal::DearState,
];

/// The code of a refusal in a record; 0 if there is none.
pub(super) fn refusal_code(refusal: Option<Refusal>) -> u8 {
    refusal.map_or(0, |refusal| {
        let index = REFUSALS.iter().position(|known| *known == refusal);
        1 + u8::try_from(index.expect("every refusal is listed")).expect("there are few")
    })
}

fn refusal_of(code: u8) -> Option<Refusal> {
    let index = usize::from(code.checked_sub(1)?);
    Some(
        REFUSALS
            .get(index)
            .copied()
            .unwrap_or(Refusal::NotRelocatable),
    )
}

/// The code of a hook's state in a record.
pub(super) fn hook_code(state: HookState) -> u8 {
    match state {
        HookState::NotNeeded => 0,
        HookState::Hooked => 1,
        HookState::Refused(refusal) => 1 + refusal_code(Some(refusal)),
    }
}

fn hook_state(code: u8) -> HookState {
    match code {
        0 => HookState::NotNeeded,
        1 => HookState::Hooked,
        code => HookState::Refused(refusal_of(code - 1).unwrap_or(Refusal::NotRelocatable)),
    }
}

/// Appends a function's record.
pub(super) fn write_function(out: &mut Vec<u8>, view: &FunctionView, origin: u64) {
    let relative = |address: u64| address.wrapping_sub(origin) as u32;
    let (kind, at) = match view.unresolved {
        None => (0, origin),
        Some(Unresolved::IndirectJump(at)) => (1, at),
        Some(Unresolved::Undecodable(at)) => (2, at),
        Some(Unresolved::EnteredInside(at)) => (3, at),
    };
    let length = (view.range.end - view.range.start) as u32;
    let words = [
        relative(view.range.start),
        length,
        view.blocks,
        kind,
        relative(at),
    ];
    for word in words {
        out.extend_from_slice(&word.to_le_bytes());
    }
}

pub(super) fn write_edit(edit: &Edit, out: &mut Vec<u8>) {
    out.extend_from_slice(&edit.text.to_le_bytes());
    out.extend_from_slice(&edit.code.to_le_bytes());
    out.extend_from_slice(&edit.fingerprint.to_le_bytes());
    out.extend_from_slice(&edit.group.to_le_bytes());
    out.extend_from_slice(&[edit.length, edit.starts]);
    out.extend_from_slice(&edit.first_site.to_le_bytes());
    out.extend_from_slice(&edit.sites.to_le_bytes());
    out.extend_from_slice(&[edit.limit, u8::from(edit.unresolved)]);
    out.extend_from_slice(&edit.old);
    out.extend_from_slice(&[0; 4]);
}

fn read_edit(record: &[u8]) -> Edit {
    Edit {
        text: word(record, 0),
        code: word(record, 4),
        fingerprint: word(record, 8),
        group: half(record, 12),
        length: record[14],
        starts: record[15],
        first_site: word(record, 16),
        sites: half(record, 20),
        limit: record[22],
        unresolved: record[23] != 0,
        old: record[24..32].try_into().expect("eight bytes"),
    }
}

pub(super) fn write_pun(pun: &Pun, out: &mut Vec<u8>) {
    out.extend_from_slice(&pun.edit.to_le_bytes());
    out.extend_from_slice(&pun.depends_on.unwrap_or(u32::MAX).to_le_bytes());
    out.extend_from_slice(&pun.island.to_le_bytes());
    out.extend_from_slice(&pun.new);
    out.extend_from_slice(&[0; 4]);
}

fn read_pun(record: &[u8]) -> Pun {
    Pun {
        edit: word(record, 0),
        depends_on: Some(word(record, 4)).filter(|other| *other != u32::MAX),
        island: long(record, 8).cast_signed(),
        new: record[16..24].try_into().expect("eight bytes"),
    }
}
