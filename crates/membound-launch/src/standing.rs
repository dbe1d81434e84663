//! Finds where a thread is that is inspected from outside: in the program, in a trampoline, or in the
//! agent.
//!
//! Every conversation updates which trampolines a process has, so that a query does not read the process. A
//! forked child is read at the first query about it: it has its parent's trampolines of the fork, and
//! changes them only by conversations of its own.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::time::{Duration, Instant};

use membound_platform::stat;
use membound_rewrite::patch::PlanBytes;
use membound_wire::{CALL_FRAME_BASE, CALL_FRAME_RETURN, State, Tables};
use rustc_hash::FxHashMap;

use crate::timers::{Registers, Standing};

/// Interval between two checks whether a number still belongs to the same process.
const SAME_FOR: Duration = Duration::from_millis(500);
/// Number of rbp among the general registers.
const FRAME_POINTER: usize = 5;

/// The trampolines of one module, as they are mapped in the processes that have them.
#[derive(Debug)]
pub(crate) struct Trampolines {
    pub(crate) code: Range<u64>,
    /// Address that original addresses in the tables are relative to.
    pub(crate) base: u64,
    pub(crate) tables: PlanBytes,
    /// The agent's own mapping in those processes.
    pub(crate) agent: Range<u64>,
    /// Pages of islands that lead here, once they are mapped.
    pub(crate) islands: OnceLock<Vec<Range<u64>>>,
}

impl Trampolines {
    /// The original program's state for a thread in one of these trampolines.
    fn original(
        &self,
        state: &State,
        read: &dyn Fn(u64) -> Option<u64>,
    ) -> Option<(Standing, State)> {
        let byte = u32::try_from(state.ip.checked_sub(self.code.start)?).ok()?;
        let tables = Tables::new(&self.tables)?;
        let found = tables.find(byte)?;
        let mut original = state.undone(tables.undos(&found), read)?;
        original.ip = self.base.wrapping_add(u64::from(found.place.original));
        // A sampled thread is at the instruction behind the one that took its time. So a thread at the
        // first byte of a place waited for an instruction before it, and one at the displaced instruction,
        // with a body before that, waited for the body.
        let within = byte - found.place.code;
        let displaced = tables.displaced(&found)?;
        let standing = if within > 0 && within <= u32::from(displaced) {
            Standing::Body
        } else {
            Standing::Trampoline
        };
        Some((standing, original))
    }
}

/// The trampolines of every known process.
#[derive(Debug, Default)]
pub(crate) struct Spaces {
    of: RwLock<FxHashMap<u32, Space>>,
}

#[derive(Debug)]
struct Space {
    /// Start time of the process, which distinguishes it from a later one with its number.
    started: u64,
    checked: Mutex<Instant>,
    /// Sorted by the start of their code.
    trampolines: Vec<Arc<Trampolines>>,
    agent: Range<u64>,
}

impl Space {
    fn new(started: u64, mut trampolines: Vec<Arc<Trampolines>>) -> Self {
        trampolines.sort_unstable_by_key(|it| it.code.start);
        let agent = trampolines.first().map_or(0..0, |it| it.agent.clone());
        Self {
            started,
            checked: Mutex::new(Instant::now()),
            trampolines,
            agent,
        }
    }

    fn at(&self, ip: u64) -> Option<&Trampolines> {
        let after = self.trampolines.partition_point(|it| it.code.start <= ip);
        let found = self.trampolines.get(after.checked_sub(1)?)?;
        found.code.contains(&ip).then_some(&**found)
    }

    fn original(&self, state: &State, read: &dyn Fn(u64) -> Option<u64>) -> Option<State> {
        let (_, original) = self.at(state.ip)?.original(state, read)?;
        Some(original)
    }

    fn on_island(&self, ip: u64) -> bool {
        let mut islands = self
            .trampolines
            .iter()
            .filter_map(|it| it.islands.get())
            .flatten();
        islands.any(|island| island.contains(&ip))
    }

    /// True if the process is still the same, which is checked every [`SAME_FOR`].
    fn holds(&self, pid: u32) -> bool {
        let mut checked = self.checked.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        if now - *checked < SAME_FOR {
            return true;
        }
        *checked = now;
        drop(checked);
        stat::started(pid).ok() == Some(self.started)
    }

    /// The frame of the stub by which the agent was called, for a thread inside the agent.
    ///
    /// The agent is compiled with frame pointers, so the frames form a chain up to the stub's. Above the
    /// rbp that the stub has saved are the flags and the address in the trampoline.
    fn call_frame(&self, state: &State, read: &dyn Fn(u64) -> Option<u64>) -> Option<u64> {
        const MAX_DEPTH_BYTES: u64 = 16 << 10;
        const MAX_FRAMES: usize = 32;
        // Bit 1 is always set, and nothing above bit 21 is.
        let like_flags = |word: u64| word & 2 != 0 && word >> 22 == 0;
        let top = state.stack_pointer();
        let mut base = state.general[FRAME_POINTER];
        let mut low = top;
        for _ in 0..MAX_FRAMES {
            let near = base >= low && base - top <= MAX_DEPTH_BYTES && base.is_multiple_of(8);
            if !near {
                break;
            }
            if like_flags(read(base + 8)?) && self.at(read(base + 16)?).is_some() {
                return base.checked_sub(CALL_FRAME_BASE);
            }
            low = base + 16;
            base = read(base)?;
        }
        // Before it has its frame, and after it has removed it, the stub has pushed at most two words.
        (0..3)
            .map(|word| top + 8 * word)
            .find(|slot| read(*slot).is_some_and(|back| self.at(back).is_some()))
            .and_then(|slot| slot.checked_sub(CALL_FRAME_RETURN))
    }
}

impl Spaces {
    /// Records that a new program runs in the process, without the trampolines of the old one.
    pub(crate) fn begin(&self, pid: u32, started: u64, agent: Range<u64>) {
        let mut space = Space::new(started, Vec::new());
        space.agent = agent;
        self.write().insert(pid, space);
    }

    /// Records that the process is about to run in these trampolines.
    pub(crate) fn add(&self, pid: u32, new: &Arc<Trampolines>) {
        // A process without an entry is read at the first query about it.
        if let Some(space) = self.write().get_mut(&pid) {
            let overlaps =
                |it: &Trampolines| it.code.start < new.code.end && new.code.start < it.code.end;
            space.trampolines.retain(|it| !overlaps(it));
            let at = space
                .trampolines
                .partition_point(|it| it.code.start < new.code.start);
            space.trampolines.insert(at, Arc::clone(new));
        }
    }

    /// Records that the trampolines whose code begins at `code` are unmapped.
    pub(crate) fn remove(&self, pid: u32, code: u64) {
        if let Some(space) = self.write().get_mut(&pid) {
            space.trampolines.retain(|it| it.code.start != code);
        }
    }

    fn write(&self) -> std::sync::RwLockWriteGuard<'_, FxHashMap<u32, Space>> {
        self.of.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls `ask` with the entry of a process; `inherited` reads the trampolines of one that has no entry.
    fn with<T>(
        &self,
        pid: u32,
        inherited: impl Fn() -> Option<Vec<Arc<Trampolines>>>,
        ask: impl FnOnce(&Space) -> T,
    ) -> Option<T> {
        {
            let spaces = self.of.read().unwrap_or_else(PoisonError::into_inner);
            if let Some(space) = spaces.get(&pid)
                && space.holds(pid)
            {
                return Some(ask(space));
            }
        }
        let space = Space::new(stat::started(pid).ok()?, inherited()?);
        let answer = ask(&space);
        let mut spaces = self.write();
        if spaces.len() > MAX_KNOWN {
            spaces.retain(|pid, space| stat::started(*pid).ok() == Some(space.started));
        }
        spaces.insert(pid, space);
        Some(answer)
    }

    /// Restores the registers that the thread would have in the original program.
    pub(crate) fn standing(
        &self,
        pid: u32,
        registers: &mut Registers,
        read: &dyn Fn(u64) -> Option<u64>,
        inherited: impl Fn() -> Option<Vec<Arc<Trampolines>>>,
    ) -> Standing {
        let state = State {
            general: *registers.x86_64(),
            ip: registers.ip,
            flags: 0,
        };
        let found = self.with(pid, inherited, |space| standing(space, pid, &state, read));
        let Some((standing, original)) = found else {
            return Standing::Program;
        };
        *registers = Registers {
            ip: original.ip,
            ..Registers::from(original.general)
        };
        standing
    }
}

/// Most processes with an entry before entries of ended ones are removed.
const MAX_KNOWN: usize = 4096;

fn standing(
    space: &Space,
    pid: u32,
    state: &State,
    read: &dyn Fn(u64) -> Option<u64>,
) -> (Standing, State) {
    if let Some(trampolines) = space.at(state.ip) {
        return match trampolines.original(state, read) {
            Some(found) => found,
            None => (Standing::Agent, *state),
        };
    }
    if space.agent.contains(&state.ip) {
        let original = space
            .call_frame(state, read)
            .and_then(|frame| state.of_call(frame, read))
            .and_then(|call| space.original(&call, read));
        return match original {
            Some(original) => (Standing::Called, original),
            None => (Standing::Agent, *state),
        };
    }
    if space.on_island(state.ip) {
        // On an island, between the text and a trampoline: the registers are still the original ones.
        let original = island_target(pid, state.ip)
            .and_then(|ip| space.original(&State { ip, ..*state }, read));
        return match original {
            Some(original) => (Standing::Trampoline, original),
            None => (Standing::Agent, *state),
        };
    }
    (Standing::Program, *state)
}

/// Target of the jump at `ip`.
fn island_target(pid: u32, ip: u64) -> Option<u64> {
    const JUMP: u8 = 0xe9;
    let mut bytes = [0; 5];
    let memory = File::open(format!("/proc/{pid}/mem")).ok()?;
    memory.read_exact_at(&mut bytes, ip).ok()?;
    let [JUMP, displacement @ ..] = bytes else {
        return None;
    };
    let displacement = i64::from(i32::from_le_bytes(displacement));
    Some(ip.wrapping_add(5).wrapping_add_signed(displacement))
}
