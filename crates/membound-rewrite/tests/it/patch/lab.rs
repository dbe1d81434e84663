//! Code in memory of its own, with room for trampolines beside it, and a plan applied.

use std::ops::Range;

use iced_x86::code_asm::{CodeAssembler, qword_ptr, rsp};
use membound_rewrite::Gpr;
use membound_rewrite::patch::{Options, Placed, Placement, Plan};
use membound_wire::{COUNT_APART, Entry};

use crate::machine::{ARENA_BYTES, Arena, Fault, Machine, Random, State, Unit};

const TEXT_BYTES: usize = 1 << 16;
const AREA_BYTES: usize = 4 << 20;
const STUBS_BYTES: usize = 1 << 12;

/// What the stub has recorded: number of calls, and the last arguments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Log {
    pub(crate) calls: u64,
    pub(crate) site: u64,
    pub(crate) address: u64,
    pub(crate) ticks: u64,
    pub(crate) hit: u64,
    pub(crate) drain: u64,
}

/// Text, trampolines, tables and data in one mapping, and islands at the addresses they need.
pub(crate) struct Lab {
    start: *mut u8,
    log: Box<Log>,
    islands: Vec<(u64, usize)>,
    /// What was placed.
    pub(crate) placed: Option<Placed>,
    /// The plan.
    pub(crate) plan: Option<Plan>,
}

const MAPPED: usize = TEXT_BYTES + AREA_BYTES + STUBS_BYTES;

impl Lab {
    pub(crate) fn new() -> Self {
        // SAFETY: a new private mapping at an address of the kernel's choice.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                MAPPED,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        assert_ne!(start, libc::MAP_FAILED);
        Self {
            start: start.cast(),
            log: Box::default(),
            islands: Vec::new(),
            placed: None,
            plan: None,
        }
    }

    pub(crate) fn text(&self) -> u64 {
        self.start as u64
    }

    pub(crate) fn area(&self) -> u64 {
        self.text() + TEXT_BYTES as u64
    }

    pub(crate) fn log(&self) -> Log {
        // SAFETY: the stubs write the box behind the compiler's back.
        unsafe { std::ptr::read_volatile(&*self.log) }
    }

    fn protect(&self, range: Range<usize>, protection: i32) {
        let at = self.start.wrapping_add(range.start);
        // SAFETY: the range lies in this lab's own mapping.
        let result = unsafe { libc::mprotect(at.cast(), range.len(), protection) };
        assert_eq!(result, 0);
    }

    fn write(&mut self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= MAPPED);
        let to = self.start.wrapping_add(offset);
        // SAFETY: inside the mapping, which is writable while code is put into it.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
    }

    pub(crate) fn read(&self, offset: usize, bytes: usize) -> Vec<u8> {
        assert!(offset + bytes <= MAPPED);
        let from = self.start.wrapping_add(offset);
        // SAFETY: inside the mapping, which is always readable.
        unsafe { std::slice::from_raw_parts(from, bytes) }.to_vec()
    }

    /// Loads `code`, unpatched.
    pub(crate) fn load(&mut self, code: &[u8]) {
        self.unmap_islands();
        self.protect(0..MAPPED, libc::PROT_READ | libc::PROT_WRITE);
        self.write(0, &[0xcc; 4096]);
        self.write(0, code);
        self.protect(0..TEXT_BYTES, libc::PROT_READ | libc::PROT_EXEC);
        self.placed = None;
        self.plan = None;
    }

    /// Loads `code` and patches it.
    pub(crate) fn patch(&mut self, code: &[u8], options: &Options, jumps: Jumps) {
        self.load(code);
        let plan = Plan::of_code(code, self.text(), options);
        let plan = Plan::from_bytes(plan.as_bytes().to_vec()).unwrap();
        let mut placed = plan
            .place(&Placement {
                bias: 0,
                area: self.area(),
            })
            .unwrap();
        self.protect(0..MAPPED, libc::PROT_READ | libc::PROT_WRITE);
        let layout = plan.layout();
        assert!(layout.bytes() as usize <= AREA_BYTES, "{layout:?}");
        let code_bytes = layout.code_bytes as usize;
        self.write(TEXT_BYTES, &placed.code);
        self.write(TEXT_BYTES + code_bytes, &placed.tables);
        let data = TEXT_BYTES + code_bytes + layout.tables_bytes as usize;
        self.write(data, &vec![0; layout.data_bytes as usize]);
        self.slots(data);
        self.drop_unmappable(&mut placed);
        if jumps == Jumps::Planted {
            for edit in &placed.edits {
                let offset = (edit.address - self.text()) as usize;
                let length = usize::from(edit.length);
                assert_eq!(self.read(offset, length), edit.old[..length]);
                let group = self.read(offset, usize::from(edit.group));
                let original = &code[offset..];
                assert_eq!(
                    edit.fingerprint,
                    membound_wire::fingerprint(&original[..group.len()])
                );
                self.write(offset, &edit.new[..length]);
            }
        }
        self.protect(
            0..TEXT_BYTES + code_bytes,
            libc::PROT_READ | libc::PROT_EXEC,
        );
        self.placed = Some(placed);
        self.plan = Some(plan);
    }

    /// Offset of the data pages.
    fn data(&self) -> usize {
        let layout = self.plan.as_ref().expect("patched").layout();
        TEXT_BYTES + (layout.code_bytes + layout.tables_bytes) as usize
    }

    /// A site's words.
    pub(crate) fn words(&self, site: u32) -> Vec<u8> {
        let range = self.plan.as_ref().unwrap().data_words(site).unwrap();
        self.read(self.data() + range.start, range.len())
    }

    /// The count of a site.
    pub(crate) fn counted(&self, site: u32) -> u64 {
        let words = self.words(site);
        let counts = words.chunks(COUNT_APART);
        counts
            .map(|line| u64::from_le_bytes(line[..8].try_into().unwrap()))
            .sum()
    }

    /// Sets the first word of every site.
    pub(crate) fn arm(&mut self, countdown: u32) {
        for site in 0..self.plan.as_ref().unwrap().numbered_sites() {
            let at = self.plan.as_ref().unwrap().data_words(site).unwrap().start;
            self.write(self.data() + at, &countdown.to_le_bytes());
        }
    }

    /// Turns a burst on.
    pub(crate) fn burst(&mut self) {
        let at = self.data() + std::mem::offset_of!(membound_wire::Slots, burst);
        self.write(at, &1_u32.to_le_bytes());
    }

    fn slots(&mut self, data: usize) {
        *self.log = Log::default();
        let stubs = TEXT_BYTES + AREA_BYTES;
        let code = stub(std::ptr::from_ref(&*self.log) as u64);
        self.write(stubs, &code);
        self.protect(
            stubs..stubs + STUBS_BYTES,
            libc::PROT_READ | libc::PROT_EXEC,
        );
        let address = self.text() + stubs as u64;
        for entry in [Entry::Sample, Entry::Record, Entry::Yield, Entry::Mark] {
            self.write(data + 8 * entry as usize, &address.to_le_bytes());
        }
    }

    fn drop_unmappable(&mut self, placed: &mut Placed) {
        let mut lost = vec![false; placed.edits.len()];
        for island in &placed.islands {
            let address = island.address as *mut libc::c_void;
            // SAFETY: takes free addresses only.
            let mapped = unsafe {
                libc::mmap(
                    address,
                    island.bytes.len(),
                    libc::PROT_READ | libc::PROT_WRITE,
                    libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE,
                    -1,
                    0,
                )
            };
            if mapped != address {
                for edit in &island.edits {
                    lost[*edit] = true;
                }
                continue;
            }
            self.islands.push((island.address, island.bytes.len()));
            // SAFETY: the page was mapped right above.
            unsafe {
                std::ptr::copy_nonoverlapping(
                    island.bytes.as_ptr(),
                    mapped.cast(),
                    island.bytes.len(),
                );
            }
            let executable = libc::PROT_READ | libc::PROT_EXEC;
            // SAFETY: the same page.
            let result = unsafe { libc::mprotect(mapped, island.bytes.len(), executable) };
            assert_eq!(result, 0);
        }
        let mut keep = lost.iter().map(|lost| !lost);
        placed.edits.retain(|_| keep.next().unwrap());
        let mut keep = lost.iter().map(|lost| !lost);
        placed.sites.retain(|_| keep.next().unwrap());
    }

    fn unmap_islands(&mut self) {
        for (address, bytes) in self.islands.drain(..) {
            // SAFETY: pages that this lab has mapped.
            unsafe { libc::munmap(address as *mut libc::c_void, bytes) };
        }
    }

    /// Whether each site is patched, by site number.
    pub(crate) fn planted(&self) -> Vec<bool> {
        let mut planted = vec![false; self.plan.as_ref().unwrap().numbered_sites() as usize];
        for sites in &self.placed.as_ref().unwrap().sites {
            for site in sites.clone() {
                planted[site as usize] = true;
            }
        }
        planted
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        self.unmap_islands();
        // SAFETY: exactly the mapping made in `new`.
        unsafe { libc::munmap(self.start.cast(), MAPPED) };
    }
}

/// Whether text is changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Jumps {
    Planted,
    LeftOut,
}

/// Stubs for the agent's entry points: they record their calls and preserve all state.
fn stub(log: u64) -> Vec<u8> {
    use iced_x86::code_asm::{rax, rcx};
    let mut a = CodeAssembler::new(64).unwrap();
    a.pushfq().unwrap();
    a.push(rax).unwrap();
    a.push(rcx).unwrap();
    a.mov(rax, log).unwrap();
    a.add(qword_ptr(rax), 1).unwrap();
    // The return address, rcx, rax and the flags lie below the arguments.
    for argument in 1..6 {
        a.mov(rcx, qword_ptr(rsp + 24 + 8 * argument)).unwrap();
        a.mov(qword_ptr(rax + 8 * argument), rcx).unwrap();
    }
    a.pop(rcx).unwrap();
    a.pop(rax).unwrap();
    a.popfq().unwrap();
    a.ret().unwrap();
    a.assemble(0).unwrap()
}

/// Bytes below the stack pointer that are not compared, because trampolines and signals use them.
const SCRATCH: usize = 4096;

/// Runs the code at `text` from `state`, with `memory` in the arena.
pub(crate) fn run(
    machine: &mut Machine,
    text: u64,
    state: &State,
    memory: &[u8],
    around: impl Fn(&mut CodeAssembler, &dyn Fn(&mut CodeAssembler)),
) -> Outcome {
    machine.load(|a| {
        around(a, &|a| a.call(text).unwrap());
    });
    machine.arena.fill(memory);
    let after = machine.run(state);
    let mut memory = machine.arena.contents().to_vec();
    let stack = (state.gpr(Gpr::RSP) - start(&machine.arena)) as usize;
    memory[stack - SCRATCH..stack].fill(0);
    (after, memory)
}

/// Calls the code without anything around the call.
pub(crate) fn plainly(a: &mut CodeAssembler, call: &dyn Fn(&mut CodeAssembler)) {
    call(a);
}

fn start(arena: &Arena) -> u64 {
    arena.middle() - ARENA_BYTES as u64 / 2
}

/// The units in which two results differ.
pub(crate) fn differences(left: &State, right: &State) -> Vec<Unit> {
    Unit::all()
        .into_iter()
        .filter(|unit| left.bytes(*unit) != right.bytes(*unit))
        .collect()
}

/// Result of a run: how it ended, and the memory.
pub(crate) type Outcome = (Result<State, Fault>, Vec<u8>);

/// Asserts that two runs had the same result. Inserted instructions make some programs divide by zero; those
/// must do so when patched, too.
#[track_caller]
pub(crate) fn assert_same(expected: &Outcome, after: &Outcome, what: &str) {
    let differences = match (&expected.0, &after.0) {
        (Ok(expected), Ok(after)) => differences(expected, after),
        (expected, after) => {
            assert_eq!(expected.is_ok(), after.is_ok(), "{what}");
            Vec::new()
        }
    };
    assert_eq!(differences, [], "{what}");
    assert!(expected.1 == after.1, "memory differs: {what}");
}

/// Initial state and memory.
pub(crate) fn beginning(machine: &Machine, random: &mut Random) -> (State, Vec<u8>) {
    let mut state = State::random(random, &machine.arena);
    crate::flow::programs::aim(&mut state, machine);
    (state, Arena::random_contents(random))
}
