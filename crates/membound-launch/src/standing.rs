//! Where a thread stands that is looked at from outside: in the program, in a trampoline, or
//! in the agent.
//!
//! Which trampolines a process has is followed with every conversation, so that a question
//! costs no look into the process. A forked child is looked at when it is first asked about:
//! it has what its parent had then, and changes it only by conversations of its own.

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

/// Between two looks whether a process is still the one that had this number.
const SAME_FOR: Duration = Duration::from_millis(500);
/// Number of rbp among the general registers.
const FRAME_POINTER: usize = 5;

/// The trampolines of one module, as they lie in the processes that have them.
#[derive(Debug)]
pub(crate) struct Trampolines {
    pub(crate) code: Range<u64>,
    /// What the original addresses in the tables are relative to.
    pub(crate) base: u64,
    pub(crate) tables: PlanBytes,
    /// The agent's own mapping in those processes.
    pub(crate) agent: Range<u64>,
    /// Pages of jumps that lead here, once they are mapped.
    pub(crate) islands: OnceLock<Vec<Range<u64>>>,
}

impl Trampolines {
    /// The original program's state for a thread in one of them.
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
        // A thread is seen at the instruction behind the one that took its time. So what is
        // seen at a place's first byte waited for an instruction before it, and what is seen at
        // the displaced one, with a body before it, for the body.
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

/// The trampolines of every process that is known.
#[derive(Debug, Default)]
pub(crate) struct Spaces {
    of: RwLock<FxHashMap<u32, Space>>,
}

#[derive(Debug)]
struct Space {
    /// Start time of the process, by which it is told from a later one of its number.
    started: u64,
    checked: Mutex<Instant>,
    /// Sorted by where their code begins.
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

    /// Whether the process is still the one that this is about, looked at now and then.
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

    /// The frame by which the agent was called, for a thread inside it.
    ///
    /// The agent is compiled with frame pointers, so the frames form a chain up to the
    /// stub's, above whose saved rbp lie the flags and the address in the trampoline.
    fn call_frame(&self, state: &State, read: &dyn Fn(u64) -> Option<u64>) -> Option<u64> {
        const DEEPEST: u64 = 16 << 10;
        const MOST: usize = 32;
        // Bit 1 is always set, and nothing above bit 21 is.
        let like_flags = |word: u64| word & 2 != 0 && word >> 22 == 0;
        let top = state.stack_pointer();
        let mut base = state.general[FRAME_POINTER];
        let mut low = top;
        for _ in 0..MOST {
            let near = base >= low && base - top <= DEEPEST && base.is_multiple_of(8);
            if !near {
                break;
            }
            if like_flags(read(base + 8)?) && self.at(read(base + 16)?).is_some() {
                return base.checked_sub(CALL_FRAME_BASE);
            }
            low = base + 16;
            base = read(base)?;
        }
        // The stub has pushed two words at most before it has a frame, and after.
        (0..3)
            .map(|word| top + 8 * word)
            .find(|slot| read(*slot).is_some_and(|back| self.at(back).is_some()))
            .and_then(|slot| slot.checked_sub(CALL_FRAME_RETURN))
    }
}

impl Spaces {
    /// A new program runs in the process: nothing of the old one's is there any more.
    pub(crate) fn begin(&self, pid: u32, started: u64, agent: Range<u64>) {
        let mut space = Space::new(started, Vec::new());
        space.agent = agent;
        self.write().insert(pid, space);
    }

    /// The process is about to run in these.
    pub(crate) fn add(&self, pid: u32, new: &Arc<Trampolines>) {
        // Of a process that nobody has asked about yet, all is found out when somebody does.
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

    /// Those whose code begins at `code` are gone.
    pub(crate) fn remove(&self, pid: u32, code: u64) {
        if let Some(space) = self.write().get_mut(&pid) {
            space.trampolines.retain(|it| it.code.start != code);
        }
    }

    fn write(&self) -> std::sync::RwLockWriteGuard<'_, FxHashMap<u32, Space>> {
        self.of.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets `ask` look at a process; `inherited` finds out what one has that is not known.
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
        if spaces.len() > MOST_KNOWN {
            spaces.retain(|pid, space| stat::started(*pid).ok() == Some(space.started));
        }
        spaces.insert(pid, space);
        Some(answer)
    }

    /// Puts registers back to what they would be in the original program.
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

/// Processes that are remembered before those are let go that have ended.
const MOST_KNOWN: usize = 4096;

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
        // On the way from the text to a trampoline, where nothing has changed yet.
        let original = island_target(pid, state.ip)
            .and_then(|ip| space.original(&State { ip, ..*state }, read));
        return match original {
            Some(original) => (Standing::Trampoline, original),
            None => (Standing::Agent, *state),
        };
    }
    (Standing::Program, *state)
}

/// Where the jump at `ip` leads.
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
