//! What must hold of a plan that was put beside its module, whatever the code was.

use std::collections::BTreeSet;

use iced_x86::{Code, Decoder, DecoderOptions, FlowControl, Instruction};
use membound_rewrite::code::{BasicBlock, Function, Unresolved};
use membound_rewrite::image::Image;
use membound_rewrite::patch::{Placed, Placement, Plan};
use membound_wire::{
    AS_FOUND, EDIT_BYTES, Shape, Step, TableHeader, TextEdit, TrampolineEntry, Undo, UndoKind,
    fingerprint,
};

/// A plan at its place, and the module it is for.
pub struct Ground<'a> {
    pub image: &'a Image<'a>,
    pub functions: &'a [Function],
    pub plan: &'a Plan,
    pub placement: Placement,
    pub placed: &'a Placed,
}

impl Ground<'_> {
    pub fn check(&self) {
        for edit in &self.placed.edits {
            self.check_edit(edit);
        }
        for pair in self.placed.edits.windows(2) {
            let end = pair[0].address + u64::from(pair[0].length);
            assert!(end <= pair[1].address, "edits overlap: {:x?}", pair);
        }
        for edit in &self.placed.edits {
            self.check_jump(edit);
        }
        self.check_branches();
        let reached = self.check_trampolines();
        self.check_tables(&reached);
        let words = self.plan.layout().data_bytes as usize;
        for site in 0..self.plan.numbered_sites() {
            if let Some(range) = self.plan.data_words(site) {
                assert!(range.end <= words, "a counter outside of its pages");
            }
        }
    }

    /// The edit is of text as it is, and of whole instructions that control enters only at the first one.
    fn check_edit(&self, edit: &TextEdit) {
        let length = usize::from(edit.length);
        let group = usize::from(edit.group);
        assert!(
            (1..=EDIT_BYTES).contains(&length) && length <= group,
            "{edit:x?}"
        );
        let start = edit.address - self.placement.bias;
        let text = self.image.bytes(start..start + edit.group as u64);
        let text = text.expect("an edit lies in text");
        assert_eq!(&edit.old[..length], &text[..length], "what stands there");
        assert_eq!(
            edit.fingerprint,
            fingerprint(text),
            "the group's fingerprint"
        );
        let code = self.placement.area..self.placement.area + self.placed.code.len() as u64;
        assert!(code.contains(&edit.target), "a jump beside the trampolines");
        let function = self.function_at(start).expect("an edit lies in a function");
        let first = function
            .instructions
            .iter()
            .position(|one| one.ip() == start);
        let first = first.unwrap_or_else(|| panic!("{start:#x} begins no instruction"));
        let end = start + length as u64;
        for (index, one) in function.instructions.iter().enumerate().skip(first + 1) {
            if one.ip() >= end {
                break;
            }
            assert!(
                edit.starts & 1 << (one.ip() - start) != 0,
                "{:#x} begins an instruction",
                one.ip()
            );
            assert!(
                function.unresolved.is_none(),
                "{:#x} is displaced with a neighbour, and {}",
                one.ip(),
                function.unresolved.expect("it is unresolved")
            );
            let block = function
                .blocks
                .iter()
                .position(|block| block.first as usize == index);
            assert!(
                block.is_none_or(|block| is_entered_only_from_before(function, block)),
                "{:#x} begins a block that is entered from elsewhere, and is overwritten",
                one.ip()
            );
        }
        for range in &function.untouchable {
            assert!(
                end <= range.start || range.end <= start,
                "rseq text is overwritten"
            );
        }
    }

    /// Where the edit stands, control goes to its trampoline.
    fn check_jump(&self, edit: &TextEdit) {
        let bytes = self.text_after(edit.address);
        let jump = Decoder::with_ip(64, &bytes, edit.address, DecoderOptions::NONE).decode();
        assert_eq!(
            jump.code(),
            Code::Jmp_rel32_64,
            "no jump at {:#x}",
            edit.address
        );
        let to = jump.near_branch_target();
        if to == edit.target {
            return;
        }
        let page = self
            .placed
            .islands
            .iter()
            .find(|page| (page.address..page.address + page.bytes.len() as u64).contains(&to));
        let page = page.unwrap_or_else(|| panic!("{to:#x} is no trampoline and no island"));
        let span = self.image.span();
        let module = span.start + self.placement.bias..span.end + self.placement.bias;
        assert!(
            page.address >= module.end || page.address + page.bytes.len() as u64 <= module.start,
            "an island in the module"
        );
        let index = self.placed.edits.iter().position(|one| one == edit);
        assert!(
            page.edits.contains(&index.expect("it is among them")),
            "an island's edits"
        );
        let at = (to - page.address) as usize;
        let onward = Decoder::with_ip(64, &page.bytes[at..], to, DecoderOptions::NONE).decode();
        assert_eq!(
            onward.code(),
            Code::Jmp_rel32_64,
            "an island without a jump"
        );
        assert_eq!(onward.near_branch_target(), edit.target, "an island's jump");
    }

    /// Fifteen bytes of text from `address` on, with all edits made.
    fn text_after(&self, address: u64) -> Vec<u8> {
        let start = address - self.placement.bias;
        let mut bytes = Vec::new();
        for at in start..start + 15 {
            match self.image.bytes(at..at + 1) {
                Some(byte) => bytes.push(byte[0]),
                None => break,
            }
        }
        for edit in &self.placed.edits {
            for (offset, byte) in edit.new[..usize::from(edit.length)].iter().enumerate() {
                let at = (edit.address + offset as u64).checked_sub(address);
                if let Some(old) = at.and_then(|at| bytes.get_mut(at as usize)) {
                    *old = *byte;
                }
            }
        }
        bytes
    }

    /// No direct branch of the module leads into the middle of what was overwritten. Bytes
    /// that are no code can be read in more than one way: what jumps there is no promise.
    fn check_branches(&self) {
        for function in self.functions {
            if matches!(function.unresolved, Some(Unresolved::Undecodable(_))) {
                continue;
            }
            for instruction in &function.instructions {
                if is_branch(instruction) {
                    let to = instruction.near_branch_target();
                    self.check_arrival(to.wrapping_add(self.placement.bias));
                }
            }
        }
    }

    fn check_arrival(&self, to: u64) {
        let after = self.placed.edits.partition_point(|edit| edit.address < to);
        if let Some(edit) = self.placed.edits[..after].last() {
            assert!(
                to >= edit.address + u64::from(edit.length),
                "a branch into the overwritten bytes: {to:#x} in {edit:x?}"
            );
        }
    }

    /// Follows every trampoline; gives the instruction boundaries that are reached.
    fn check_trampolines(&self) -> BTreeSet<u64> {
        let area = self.placement.area;
        let tables = Tables::read(&self.placed.tables);
        let code = area..area + self.placed.code.len() as u64;
        let mut waiting: Vec<u64> = self.placed.edits.iter().map(|edit| edit.target).collect();
        let mut reached = BTreeSet::new();
        while let Some(at) = waiting.pop() {
            if !reached.insert(at) {
                continue;
            }
            let bytes = &self.placed.code[(at - area) as usize..];
            let one = Decoder::with_ip(64, bytes, at, DecoderOptions::NONE).decode();
            assert!(
                !one.is_invalid(),
                "no instruction in a trampoline at {at:#x}"
            );
            let mut lead = |to: u64| {
                if code.contains(&to) {
                    waiting.push(to);
                } else if self.is_code(&tables, at) {
                    self.check_arrival(to);
                }
            };
            match one.flow_control() {
                FlowControl::UnconditionalBranch => lead(one.near_branch_target()),
                FlowControl::ConditionalBranch => {
                    lead(one.near_branch_target());
                    lead(one.next_ip());
                }
                FlowControl::IndirectBranch | FlowControl::Return | FlowControl::Exception => {}
                _ => {
                    assert!(code.contains(&one.next_ip()), "a trampoline without an end");
                    lead(one.next_ip());
                }
            }
        }
        reached
    }

    /// Whether the original of what stands at `at` in a trampoline is in a function all of
    /// which is code.
    fn is_code(&self, tables: &Tables, at: u64) -> bool {
        let offset = at - self.placement.area;
        let after = tables
            .places
            .partition_point(|place| u64::from(place.code) <= offset);
        let place = tables.places[..after].last().expect("a place holds it");
        let original = u64::from(place.original) + self.placed.base - self.placement.bias;
        self.function_at(original)
            .is_none_or(|function| !matches!(function.unresolved, Some(Unresolved::Undecodable(_))))
    }

    /// Every boundary in a trampoline has its original place, and each displaced
    /// instruction's start that is gone has a place in a trampoline.
    fn check_tables(&self, reached: &BTreeSet<u64>) {
        let tables = Tables::read(&self.placed.tables);
        let area = self.placement.area;
        let span = self.image.span();
        for pair in tables.places.windows(2) {
            assert!(pair[0].code < pair[1].code, "places are sorted");
        }
        for shape in &tables.shapes {
            let steps = tables
                .steps
                .get(shape.first as usize..(shape.first + shape.count) as usize);
            let steps = steps.expect("a shape's steps are there");
            assert!(
                steps.first().is_some_and(|step| step.offset == 0),
                "the first step"
            );
            assert!(steps.windows(2).all(|pair| pair[0].offset < pair[1].offset));
            for step in steps {
                let end = usize::from(step.undo) + usize::from(step.undos);
                assert!(end <= tables.undos.len(), "a step's undos are there");
            }
        }
        for undo in &tables.undos {
            let known = UndoKind::Load as u8..=UndoKind::Stack as u8;
            assert!(known.contains(&undo.kind) && undo.register < 16, "{undo:?}");
        }
        for place in &tables.places {
            assert!(
                (place.shape as usize) < tables.shapes.len(),
                "a place's shape"
            );
            assert!(u64::from(place.code) < self.placed.code.len() as u64);
            let original = u64::from(place.original) + self.placed.base;
            assert!(
                (span.start..span.end).contains(&(original - self.placement.bias)),
                "a place belongs to the module"
            );
            // Resumption is at an instruction.
            let shape = tables.shapes[place.shape as usize];
            let steps = &tables.steps[shape.first as usize..(shape.first + shape.count) as usize];
            let next = tables
                .places
                .partition_point(|other| other.code <= place.code);
            let end = tables
                .places
                .get(next)
                .map_or(u64::MAX, |next| u64::from(next.code));
            for step in steps.iter().filter(|step| step.resume != AS_FOUND) {
                let at = u64::from(place.code) + u64::from(step.offset);
                let resume = u64::from(place.code) + u64::from(step.resume);
                if at < end && reached.contains(&(area + at)) {
                    assert!(
                        reached.contains(&(area + resume)),
                        "execution would go on inside an instruction: {place:?} {step:?}"
                    );
                }
            }
        }
        for &at in reached {
            let offset = (at - area) as u32;
            let after = tables.places.partition_point(|place| place.code <= offset);
            assert!(after > 0, "{at:#x} in a trampoline belongs to no place");
        }
        let entries: Vec<u64> = tables
            .entries
            .iter()
            .map(|entry| {
                let place = tables.places.get(*entry as usize);
                u64::from(place.expect("an entry's place is there").original)
            })
            .collect();
        assert!(entries.is_sorted(), "entries are sorted");
        for edit in &self.placed.edits {
            for offset in (0..edit.length).filter(|offset| edit.starts & 1 << offset != 0) {
                let original = edit.address + u64::from(offset) - self.placed.base;
                assert!(
                    entries.binary_search(&original).is_ok(),
                    "{:#x} is gone and has no entry",
                    original + self.placed.base
                );
            }
        }
    }

    fn function_at(&self, address: u64) -> Option<&Function> {
        self.functions
            .iter()
            .find(|function| function.bounds.range.contains(&address))
    }
}

/// Whether control enters a block only from the end of the block before it.
fn is_entered_only_from_before(function: &Function, number: usize) -> bool {
    let enters = |block: &BasicBlock| {
        let mut targets = block.successors.iter().chain(&block.landing_pad);
        targets.any(|to| to.index() == number)
    };
    let mut blocks = function.blocks.iter().enumerate();
    !function.blocks[number].entered_from_outside
        && blocks.all(|(from, block)| from + 1 == number || !enters(block))
}

fn is_branch(instruction: &Instruction) -> bool {
    instruction.is_jmp_short_or_near()
        || instruction.is_jcc_short_or_near()
        || instruction.is_call_near()
        || instruction.is_loop()
        || instruction.is_loopcc()
        || instruction.is_jcx_short()
}

/// The tables of a placed plan.
struct Tables {
    places: Vec<TrampolineEntry>,
    shapes: Vec<Shape>,
    steps: Vec<Step>,
    undos: Vec<Undo>,
    entries: Vec<u32>,
}

impl Tables {
    fn read(bytes: &[u8]) -> Self {
        let long = |at: usize| {
            let field = bytes.get(at..at + 8).expect("tables have a header");
            u64::from_ne_bytes(field.try_into().expect("eight bytes are eight")) as usize
        };
        let records = |field: usize, size: usize| {
            let (start, count) = (long(field), long(field + 8));
            let all = bytes.get(start..start + count * size);
            all.expect("a table lies in its bytes").chunks_exact(size)
        };
        let word = |record: &[u8], at: usize| {
            u32::from_ne_bytes(record[at..at + 4].try_into().expect("four bytes are four"))
        };
        let half = |record: &[u8], at: usize| {
            u16::from_ne_bytes(record[at..at + 2].try_into().expect("two bytes are two"))
        };
        assert!(bytes.len() >= size_of::<TableHeader>());
        Self {
            places: records(0, size_of::<TrampolineEntry>())
                .map(|record| TrampolineEntry {
                    code: word(record, 0),
                    original: word(record, 4),
                    shape: word(record, 8),
                })
                .collect(),
            shapes: records(16, size_of::<Shape>())
                .map(|record| Shape {
                    first: word(record, 0),
                    count: word(record, 4),
                })
                .collect(),
            steps: records(32, size_of::<Step>())
                .map(|record| Step {
                    offset: half(record, 0),
                    resume: half(record, 2),
                    undo: half(record, 4),
                    undos: half(record, 6),
                })
                .collect(),
            undos: records(48, size_of::<Undo>())
                .map(|record| Undo {
                    kind: record[0],
                    register: record[1],
                    reserved: half(record, 2),
                    value: word(record, 4).cast_signed(),
                })
                .collect(),
            entries: records(64, 4).map(|record| word(record, 0)).collect(),
        }
    }
}
