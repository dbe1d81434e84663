//! Joins the chunks of a plan: code, tables, edits and descriptions, with offsets in the whole.

use membound_wire::{Call, LINE_BYTES, SLOTS_BYTES, TableHeader, TrampolineEntry};
use rayon::prelude::*;

use super::edit::Edit;
use super::emit::{DataField, DataTarget};
use super::format::{Builder, Number, Section};
use super::function::PlannedFunction;
use super::plan::{
    MAX_COLOUR_BYTES, Plan, hook_code, identity_bytes, refusal_code, site_words, write_edit,
    write_function, write_pun,
};
use super::pun::{self, IslandRange};
use super::syscalls::is_made_again;
use super::table::Tables;
use super::trampoline::Chunk;
use super::views::{FunctionView, HookState};
use super::{Hooks, Options, Refusal};
use crate::flow::Direction;
use crate::image::Image;

/// Bytes of pattern at the start of the code area, from which `Body::Rubbish` takes its values.
pub(super) const PATTERN_BYTES: usize = 64;
/// Space next to the module, in bytes, that islands must leave free for trampolines and other allocations.
const FREE_MARGIN_BYTES: i64 = 64 << 20;
const PAGE: usize = 4096;

/// Address of the module's first page, in the file's addresses.
pub(super) fn origin_of(image: &Image<'_>) -> u64 {
    image.span().start & !(PAGE as u64 - 1)
}

/// A chunk and the functions planned in it.
pub(super) struct Part {
    /// Code and tables.
    pub chunk: Chunk,
    /// The functions, sorted by address.
    pub found: Vec<(FunctionView, PlannedFunction)>,
}

impl Part {
    /// A part without functions.
    pub(super) fn empty(image: &Image<'_>) -> Self {
        Self {
            chunk: Chunk::new(origin_of(image)),
            found: Vec::new(),
        }
    }
}

/// The plan that has these parts.
pub(super) fn assemble(image: &Image<'_>, options: &Options, parts: Vec<Part>) -> Plan {
    let assembly = Assembly {
        origin: origin_of(image),
        end: image.span().end,
        identity: identity_bytes(image.identity()),
        options,
    };
    assembly.plan(parts, |at, length| {
        let start = assembly.origin + u64::from(at);
        image.bytes(start..start.checked_add(length as u64)?)
    })
}

/// What is needed to join chunks into a plan.
pub(super) struct Assembly<'a> {
    /// The module's first page.
    pub origin: u64,
    /// One past the module's last byte, in the file's addresses.
    pub end: u64,
    /// The identity of the module, as bytes.
    pub identity: Vec<u8>,
    /// The options of the plan.
    pub options: &'a Options,
}

/// All chunks' shapes, and for each chunk the numbers of its shapes among them.
struct MergedShapes {
    shapes: Tables,
    numbers: Vec<Vec<u32>>,
}

impl MergedShapes {
    fn of(chunks: &[Chunk]) -> Self {
        let mut shapes = Tables::default();
        let numbers = chunks.iter().map(|chunk| shapes.join(&chunk.tables));
        Self {
            numbers: numbers.collect(),
            shapes,
        }
    }
}

/// Offsets of a chunk's code, places and sites in the whole plan.
#[derive(Clone, Copy, Default)]
struct Base {
    code: u32,
    place: u32,
    site: u32,
}

impl Assembly<'_> {
    /// Joins `parts`; `text` returns the original bytes at an offset from the origin.
    pub(super) fn plan<'a>(
        &self,
        parts: Vec<Part>,
        text: impl Fn(u32, usize) -> Option<&'a [u8]>,
    ) -> Plan {
        let (chunks, lists): (Vec<Chunk>, Vec<_>) = parts
            .into_iter()
            .map(|part| (part.chunk, part.found))
            .unzip();
        let (bases, end) = bases(&chunks);
        let mut found = found(lists, &bases);
        let merged = MergedShapes::of(&chunks);
        let overflowed =
            merged.shapes.overflowed || chunks.iter().any(|chunk| chunk.out.overflowed);
        let mut builder = Builder::default();
        let calls = self.calls(&found);
        self.tables(
            &chunks,
            &bases,
            &merged,
            &calls,
            builder.section(Section::Tables),
        );

        let words = site_words(self.options);
        let data = SLOTS_BYTES as u64 + words * u64::from(end.site);
        let pages = |bytes: u64| (bytes + MAX_COLOUR_BYTES).next_multiple_of(PAGE as u64);
        let code_bytes = pages(u64::from(end.code));
        let tables_bytes = pages(builder.section(Section::Tables).len() as u64);
        let data_bytes = pages(data);
        let area = code_bytes + tables_bytes + data_bytes;
        let resolve = Resolve {
            data: code_bytes + tables_bytes,
            words,
        };
        *builder.section(Section::Code) = code(&chunks, &bases, end.code, &resolve);
        let mut edits = edits(&chunks, &bases);
        write_relocations(&chunks, &bases, builder.section(Section::Relocations));
        drop(chunks);
        let overflowed = overflowed || area >= 1 << 31;
        if overflowed {
            // An index or a displacement would not fit: nothing can be patched.
            lose(&mut found, &edits, self.origin);
            edits.clear();
        }
        self.write_edits(edits, area, text, &mut found, &mut builder);
        self.describe(&found, &mut builder);
        *builder.section(Section::Identity) = self.identity.clone();
        *builder.section(Section::Options) = self.options.key();
        builder.set(Number::Origin, self.origin);
        builder.set(Number::Span, self.end - self.origin);
        builder.set(Number::NumberedSites, u64::from(end.site));
        builder.set(Number::SiteWords, words);
        builder.set(Number::CodeBytes, code_bytes);
        builder.set(Number::TablesBytes, tables_bytes);
        builder.set(Number::DataBytes, data_bytes);
        Plan::from_bytes(builder.finish()).expect("what was just written can be read")
    }

    /// Writes the edits and their puns, and refuses the sites of edits whose jump needs an island where none
    /// fits. `area` is the size of code, tables and data in bytes.
    fn write_edits<'a>(
        &self,
        mut edits: Vec<Edit>,
        area: u64,
        text: impl Fn(u32, usize) -> Option<&'a [u8]>,
        found: &mut [(FunctionView, PlannedFunction)],
        builder: &mut Builder,
    ) {
        let island_range = self.island_range(area);
        let (mut puns, without_island) = pun::find(&mut edits, &island_range, text);
        for index in without_island.iter().map(|index| *index as usize) {
            lose(found, &edits[index..=index], self.origin);
        }
        puns.sort_unstable_by_key(|pun| pun.island);
        let remaining = keep(&mut edits, &mut puns, &without_island);
        for edit in &remaining {
            write_edit(edit, builder.section(Section::Edits));
        }
        for pun in &puns {
            write_pun(pun, builder.section(Section::Puns));
        }
    }

    fn island_range(&self, area: u64) -> IslandRange {
        let reserve = FREE_MARGIN_BYTES + 2 * area.cast_signed();
        let span = (self.end - self.origin).cast_signed();
        let floor = if self.origin == 0 {
            i64::MIN
        } else {
            // The module is mapped at the addresses in the file, and a process may not map the lowest
            // addresses.
            0x1_0000 - self.origin.cast_signed()
        };
        IslandRange {
            occupied: (-reserve, span + reserve),
            floor,
        }
    }

    fn tables(
        &self,
        chunks: &[Chunk],
        bases: &[Base],
        merged: &MergedShapes,
        calls: &[Call],
        out: &mut Vec<u8>,
    ) {
        let header = self.table_header(chunks, &merged.shapes, calls.len());
        out.reserve(header.calls_offset as usize + size_of_val(calls));
        out.extend_from_slice(header.words().map(u64::to_le_bytes).as_flattened());
        for ((chunk, base), numbers) in chunks.iter().zip(bases).zip(&merged.numbers) {
            for place in &chunk.tables.places {
                let fields = [
                    place.code + base.code,
                    place.original,
                    numbers[place.shape as usize],
                ];
                out.extend_from_slice(fields.map(u32::to_le_bytes).as_flattened());
            }
        }
        out.resize(out.len().next_multiple_of(8), 0);
        let (shapes, steps, undos) = merged.shapes.parts();
        for shape in shapes {
            out.extend_from_slice(&shape.first.to_le_bytes());
            out.extend_from_slice(&shape.count.to_le_bytes());
        }
        for step in steps {
            for field in [step.offset, step.resume, step.undo, step.undos] {
                out.extend_from_slice(&field.to_le_bytes());
            }
        }
        for undo in undos {
            out.extend_from_slice(&[undo.kind, undo.register]);
            out.extend_from_slice(&undo.reserved.to_le_bytes());
            out.extend_from_slice(&undo.value.to_le_bytes());
        }
        for (chunk, base) in chunks.iter().zip(bases) {
            for entry in &chunk.entries {
                out.extend_from_slice(&(entry + base.place).to_le_bytes());
            }
        }
        for call in calls {
            let fields = [call.original, call.number];
            out.extend_from_slice(fields.map(u32::to_le_bytes).as_flattened());
        }
    }

    /// Numbers and offsets of all tables; the header is followed by them in the order of its fields.
    fn table_header(&self, chunks: &[Chunk], shapes: &Tables, calls: usize) -> TableHeader {
        let (shape_list, steps, undos) = shapes.parts();
        let places: usize = chunks.iter().map(|chunk| chunk.tables.places.len()).sum();
        let entries: usize = chunks.iter().map(|chunk| chunk.entries.len()).sum();
        let mut header = TableHeader {
            places_offset: size_of::<TableHeader>() as u64,
            places: places as u64,
            shapes: shape_list.len() as u64,
            steps: steps.len() as u64,
            undos: undos.len() as u64,
            entries: entries as u64,
            calls: calls as u64,
            hooks: u64::from(self.options.hooks != Hooks::LeaveOut),
            ..TableHeader::default()
        };
        header.shapes_offset =
            header.places_offset + size_of::<TrampolineEntry>() as u64 * header.places;
        header.shapes_offset = header.shapes_offset.next_multiple_of(8);
        header.steps_offset = header.shapes_offset + 8 * header.shapes;
        header.undos_offset = header.steps_offset + 8 * header.steps;
        header.entries_offset = header.undos_offset + 8 * header.undos;
        header.calls_offset = header.entries_offset + 4 * header.entries;
        header
    }

    /// System calls that the agent must restart when one of its signals has interrupted them.
    fn calls(&self, found: &[(FunctionView, PlannedFunction)]) -> Vec<Call> {
        if self.options.hooks == Hooks::LeaveOut {
            return Vec::new();
        }
        let hooks = found.iter().flat_map(|(_, found)| &found.hooks);
        let calls = hooks.filter_map(|hook| {
            let number = hook.number.filter(|number| is_made_again(*number))?;
            Some(Call {
                original: u32::try_from(hook.address - self.origin).ok()?,
                number,
            })
        });
        let mut calls: Vec<Call> = calls.collect();
        calls.sort_unstable_by_key(|call| call.original);
        calls
    }

    fn describe(&self, found: &[(FunctionView, PlannedFunction)], builder: &mut Builder) {
        let relative = |address: u64| (address - self.origin) as u32;
        for (view, found) in found {
            let function = relative(view.range.start);
            write_function(builder.section(Section::Functions), view, self.origin);
            let out = builder.section(Section::Sites);
            for site in &found.sites {
                let number = site.number.unwrap_or(u32::MAX);
                out.extend_from_slice(&relative(site.address).to_le_bytes());
                out.extend_from_slice(&function.to_le_bytes());
                out.extend_from_slice(&number.to_le_bytes());
                let direction = match site.direction {
                    Direction::Load => 0,
                    Direction::Store => 1,
                    Direction::Both => 2,
                };
                let refusal = refusal_code(site.number.err());
                out.extend_from_slice(&[direction, refusal, 0, 0]);
            }
            let out = builder.section(Section::Hooks);
            for hook in &found.hooks {
                out.extend_from_slice(&relative(hook.address).to_le_bytes());
                out.extend_from_slice(&hook.number.unwrap_or(u32::MAX).to_le_bytes());
                out.extend_from_slice(&[hook_code(hook.state), 0, 0, 0]);
            }
            let out = builder.section(Section::Wraps);
            for wrap in &found.wraps {
                out.extend_from_slice(&relative(wrap.view.address).to_le_bytes());
                out.extend_from_slice(&wrap.view.number.to_le_bytes());
                out.extend_from_slice(&[hook_code(wrap.view.state), 0, 0, 0]);
            }
        }
    }
}

fn bases(chunks: &[Chunk]) -> (Vec<Base>, Base) {
    let mut next = Base {
        code: PATTERN_BYTES as u32,
        ..Base::default()
    };
    let bases = chunks
        .iter()
        .map(|chunk| {
            if chunk.out.has_lines {
                let begins = next.code.checked_next_multiple_of(LINE_BYTES as u32);
                next.code = begins.unwrap_or(u32::MAX);
            }
            let base = next;
            // Sums beyond 4 GiB saturate, and the plan is then found to be too large.
            next.code = next.code.saturating_add(chunk.out.at());
            let places = u32::try_from(chunk.tables.places.len()).unwrap_or(u32::MAX);
            next.place = next.place.saturating_add(places);
            next.site = next.site.saturating_add(chunk.sites);
            base
        })
        .collect();
    (bases, next)
}

/// The functions that the chunks planned, with sites numbered through the whole plan.
fn found(
    lists: Vec<Vec<(FunctionView, PlannedFunction)>>,
    bases: &[Base],
) -> Vec<(FunctionView, PlannedFunction)> {
    let mut found = Vec::new();
    for (list, base) in lists.into_iter().zip(bases) {
        for (view, mut function) in list {
            for site in &mut function.sites {
                site.number = site.number.map(|number| base.site + number);
            }
            found.push((view, function));
        }
    }
    found
}

fn write_relocations(chunks: &[Chunk], bases: &[Base], out: &mut Vec<u8>) {
    for (chunk, base) in chunks.iter().zip(bases) {
        for field in &chunk.out.relocations {
            out.extend_from_slice(&(field + base.code).to_le_bytes());
        }
    }
}

fn edits(chunks: &[Chunk], bases: &[Base]) -> Vec<Edit> {
    let mut edits: Vec<Edit> = chunks
        .iter()
        .zip(bases)
        .flat_map(|(chunk, base)| {
            chunk.edits.iter().map(|edit| Edit {
                code: edit.code + base.code,
                first_site: edit.first_site + base.site,
                ..*edit
            })
        })
        .collect();
    edits.sort_by_key(|edit| edit.text);
    edits
}

/// Offset of the data pages from the start of the code area, and bytes of words per site.
struct Resolve {
    data: u64,
    words: u64,
}

impl Resolve {
    /// The value of a field in a chunk that begins at `base`.
    fn value(&self, field: &DataField, base: Base) -> u32 {
        let target = match field.what {
            DataTarget::Number(site, mark) => return (base.site + site) | mark,
            DataTarget::Slots(offset) => self.data + u64::from(offset),
            DataTarget::Site { site, byte } => {
                let site = u64::from(base.site) + u64::from(site);
                self.data + SLOTS_BYTES as u64 + self.words * site + u64::from(byte)
            }
            DataTarget::Pattern => 0,
        };
        let end = u64::from(base.code) + u64::from(field.at) + 4 + u64::from(field.trailing);
        // Two's complement: the low half of the difference is the displacement, negative or not.
        target.wrapping_sub(end) as u32
    }
}

fn code(chunks: &[Chunk], bases: &[Base], end: u32, resolve: &Resolve) -> Vec<u8> {
    let mut code = vec![0; end as usize];
    let (pattern, mut rest) = code.split_at_mut(PATTERN_BYTES);
    let mut value = 0x6d65_6d62_6f75_6e64_u64;
    for word in pattern.chunks_exact_mut(8) {
        value = value
            .wrapping_mul(0x5851_f42d_4c95_7f2d)
            .wrapping_add(0x1405_7b7e_f767_814f);
        word.copy_from_slice(&value.to_le_bytes());
    }
    let mut pieces = Vec::with_capacity(chunks.len());
    let mut at = PATTERN_BYTES;
    for (chunk, base) in chunks.iter().zip(bases) {
        let gap = (base.code as usize - at).min(rest.len());
        let behind_gap = &mut rest[gap..];
        let length = chunk.out.bytes.len().min(behind_gap.len());
        let (piece, behind) = behind_gap.split_at_mut(length);
        at += gap + piece.len();
        rest = behind;
        pieces.push((piece, chunk, *base));
    }
    pieces.into_par_iter().for_each(|(piece, chunk, base)| {
        if piece.len() != chunk.out.bytes.len() {
            return;
        }
        piece.copy_from_slice(&chunk.out.bytes);
        for at in &chunk.out.relocations {
            // The field was written as if the chunk began at the origin.
            let field = &mut piece[*at as usize..][..4];
            let value = u32::from_le_bytes((&*field).try_into().expect("four bytes"));
            field.copy_from_slice(&value.wrapping_sub(base.code).to_le_bytes());
        }
        for open in &chunk.out.data {
            let value = resolve.value(open, base);
            piece[open.at as usize..][..4].copy_from_slice(&value.to_le_bytes());
        }
    });
    code
}

/// Marks the sites and hooks of these edits as refused, because no jump to their trampoline fits.
fn lose(found: &mut [(FunctionView, PlannedFunction)], edits: &[Edit], origin: u64) {
    for edit in edits {
        let reason = if edit.unresolved {
            Refusal::UnresolvedFlow
        } else {
            Refusal::NoRoom
        };
        let sites = edit.first_site..edit.first_site + u32::from(edit.sites);
        let text = origin + u64::from(edit.text);
        let group = text..text + u64::from(edit.group);
        let after = found.partition_point(|(view, _)| view.range.start <= text);
        let Some((_, found)) = after.checked_sub(1).and_then(|index| found.get_mut(index)) else {
            continue;
        };
        let first = found.sites.partition_point(|site| site.at < text);
        for site in &mut found.sites[first..] {
            // A call whose body stands at the end of a group lies directly after that group.
            if site.at > group.end {
                break;
            }
            if site.number.is_ok_and(|number| sites.contains(&number)) {
                site.number = Err(reason);
            }
        }
        for hook in &mut found.hooks {
            if hook.state == HookState::Hooked && group.contains(&hook.address) {
                hook.state = HookState::Refused(reason);
            }
        }
        for wrap in &mut found.wraps {
            if wrap.view.state == HookState::Hooked && group.contains(&wrap.view.address) {
                wrap.view.state = HookState::Refused(reason);
            }
        }
    }
}

/// Removes the edits in `without_island` and renumbers the references to the others.
fn keep(edits: &mut Vec<Edit>, puns: &mut [pun::Pun], without_island: &[u32]) -> Vec<Edit> {
    let mut is_removed = vec![false; edits.len()];
    for index in without_island {
        is_removed[*index as usize] = true;
    }
    let mut new = Vec::with_capacity(edits.len());
    let mut numbers = Vec::with_capacity(edits.len());
    for (edit, is_removed) in edits.drain(..).zip(&is_removed) {
        numbers.push(new.len() as u32);
        if !is_removed {
            new.push(edit);
        }
    }
    for pun in puns {
        pun.edit = numbers[pun.edit as usize];
        pun.depends_on = pun.depends_on.map(|other| numbers[other as usize]);
    }
    new
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_begin_where_they_did_in_their_chunk_when_all_are_joined() {
        let chunk = |bytes: &[u8], has_lines| {
            let mut chunk = Chunk::new(0);
            chunk.out.raw(bytes);
            if has_lines {
                chunk.out.begin_line();
                chunk.out.raw(&[0x90]);
            }
            chunk
        };
        let chunks = [
            chunk(&[1; 10], false),
            chunk(&[2; 7], true),
            chunk(&[3; 5], false),
            chunk(&[], true),
        ];
        let (bases, end) = bases(&chunks);
        let begin: Vec<u32> = bases.iter().map(|base| base.code).collect();
        assert_eq!((&*begin, end.code), (&[64, 128, 193, 256][..], 257));
        let resolve = Resolve { data: 0, words: 0 };
        let code = code(&chunks, &bases, end.code, &resolve);
        assert_eq!(code[64..74], [1; 10]);
        assert_eq!((&code[128..135], code[192]), (&[2; 7][..], 0x90));
        assert_eq!(code[193..198], [3; 5]);
        assert_eq!((code.len(), code[256]), (257, 0x90));
    }
}
