//! Turns raw samples into samples with call chains.

use std::ops::Range;
use std::sync::Arc;

use membound_launch::{Registers, Remote, Standing, TimerSample};
use membound_run::{Frame, FrameId, ModuleKind, ProcessId, StackId, ThreadId};

use crate::modules::CodeModule;
use crate::world::World;

/// A sample with its call chain.
#[derive(Clone, Debug)]
pub(crate) struct ResolvedSample {
    pub(crate) t_ns: u64,
    pub(crate) process: ProcessId,
    pub(crate) thread: ThreadId,
    pub(crate) cpu: Option<u16>,
    pub(crate) weight_ns: u64,
    pub(crate) stack: StackId,
    /// The sampled instruction.
    pub(crate) leaf: FrameId,
    /// Its module, its address in the file and the bias, if it is an instruction of the program that may have
    /// waited for memory.
    pub(crate) code: Option<(Arc<CodeModule>, u64, u64)>,
    pub(crate) registers: Registers,
    /// Whether the thread was in a trampoline or in the agent.
    pub(crate) patched: Patched,
    /// The owner of the thread.
    pub(crate) owner: Owner,
}

/// The owner of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// The program's.
    Program,
    /// The agent itself.
    Agent,
    /// A scavenger inside the program.
    Scavenger,
}

/// Whether a sampled thread was in membound's own code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Patched {
    /// No: in the program.
    No,
    /// In a trampoline, at a displaced instruction of the program.
    Trampoline,
    /// In the agent, or in the body of a trampoline.
    Agent,
}

/// A raw sample, taken from outside the process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RawSample<'a> {
    pub(crate) pid: u32,
    pub(crate) tid: u32,
    pub(crate) t_ns: u64,
    pub(crate) cpu: Option<u16>,
    pub(crate) weight_ns: u64,
    pub(crate) registers: Option<Registers>,
    /// Address of the program's instruction where there are no registers, as in 32-bit code.
    pub(crate) ip: Option<u64>,
    /// Bytes of the stack, from the stack pointer on.
    pub(crate) stack: &'a [u8],
    /// True if the thread was in the kernel.
    pub(crate) in_kernel: bool,
}

impl World {
    /// Resolves a raw sample. `remote` knows the trampolines of the programs.
    pub(crate) fn resolve_perf_sample(
        &mut self,
        seen: &RawSample<'_>,
        remote: Option<&Remote>,
    ) -> ResolvedSample {
        let mut registers = seen.registers.unwrap_or_default();
        let bottom = registers.stack_pointer();
        let read = |address: u64| word(seen.stack, bottom, address);
        let standing = match (remote, seen.registers) {
            (Some(remote), Some(_)) => remote.standing(seen.pid, &mut registers, &read),
            _ => Standing::Program,
        };
        let patched = match standing {
            Standing::Program => Patched::No,
            Standing::Trampoline => Patched::Trampoline,
            Standing::Body | Standing::Called | Standing::Agent => Patched::Agent,
        };
        // Of 32-bit code only the instruction pointer is known; it still is the program's.
        let bare = seen.ip.filter(|_| seen.registers.is_none());
        if let Some(ip) = bare {
            registers.ip = ip;
        }
        let process = self.image(seen.pid, seen.t_ns);
        let mut callers = Vec::new();
        if seen.registers.is_some() {
            self.with_space(process, seen.t_ns, |space, modules, _| {
                // An unknown address may be in a new mapping: this reads the mappings again.
                let _ = space.spot(modules, registers.ip, seen.t_ns);
                space.unwind(&registers, &mut { read }, &mut callers);
            });
        }
        self.take(
            &Where {
                pid: seen.pid,
                tid: seen.tid,
                t_ns: seen.t_ns,
                cpu: seen.cpu,
                weight_ns: seen.weight_ns,
                patched,
                in_kernel: seen.in_kernel || (seen.registers.is_none() && bare.is_none()),
            },
            process,
            &registers,
            &callers,
        )
    }

    /// Resolves a sample that the agent took at `t_ns`.
    pub(crate) fn resolve_agent_sample(
        &mut self,
        pid: u32,
        sample: &TimerSample,
        t_ns: u64,
    ) -> ResolvedSample {
        let process = self.image(pid, t_ns);
        let patched = if sample.inside {
            Patched::Agent
        } else {
            Patched::No
        };
        self.take(
            &Where {
                pid,
                tid: sample.thread,
                t_ns,
                cpu: sample.cpu,
                weight_ns: sample.weight_ns,
                patched,
                in_kernel: false,
            },
            process,
            &sample.registers,
            &sample.callers,
        )
    }

    fn take(
        &mut self,
        place: &Where,
        process: ProcessId,
        registers: &Registers,
        callers: &[u64],
    ) -> ResolvedSample {
        let thread = self.threads.of(process, place.pid, place.tid, place.t_ns);
        self.find_stack(place, process, thread, registers.stack_pointer());
        let t_ns = place.t_ns;
        let (mut frames, spot) = self.with_space(process, t_ns, |space, modules, interner| {
            let callers = space.callers(modules, interner, callers, t_ns);
            (callers, space.spot(modules, registers.ip, t_ns))
        });
        let own = spot
            .placed
            .as_ref()
            .is_some_and(|it| it.module.kind == ModuleKind::Agent);
        let mut leaf = self.interner.frame(spot.frame);
        let mut code = spot
            .placed
            .map(|it| (it.module, spot.frame.address, it.bias));
        // The agent's thread remains the agent's while it is in the kernel.
        let agents = self
            .threads
            .row(thread)
            .is_some_and(|row| row.is_agents(place.pid));
        let of_scavenger = self
            .threads
            .row(thread)
            .is_some_and(|row| row.is_scavengers(place.pid));
        if place.patched == Patched::Agent || own || agents {
            code = None;
            if !own {
                frames.insert(0, leaf);
            }
            leaf = self.special("[agent]", ModuleKind::Agent);
        } else if place.in_kernel {
            code = None;
            if registers.ip != 0 {
                frames.insert(0, leaf);
            }
            leaf = self.special("[kernel]", ModuleKind::Kernel);
        }
        frames.insert(0, leaf);
        let stack = self.interner.stack(&frames);
        ResolvedSample {
            t_ns,
            process,
            thread,
            cpu: place.cpu,
            weight_ns: place.weight_ns,
            stack: stack.expect("a chain with a leaf is not empty"),
            leaf,
            code,
            registers: *registers,
            patched: place.patched,
            owner: match (agents, of_scavenger) {
                (true, _) => Owner::Agent,
                (false, true) => Owner::Scavenger,
                (false, false) => Owner::Program,
            },
        }
    }

    /// The one frame for all code of the agent or of the kernel.
    fn special(&mut self, name: &str, kind: ModuleKind) -> FrameId {
        let module = self.modules.special(name, kind).id;
        self.interner.frame(Frame {
            module: Some(module),
            address: 0,
        })
    }

    /// Updates a thread's stack range if its stack pointer is outside the known range.
    fn find_stack(&mut self, place: &Where, process: ProcessId, thread: ThreadId, pointer: u64) {
        let known = self.threads.stack(thread).cloned();
        let is_inside = |stack: &Range<u64>| stack.contains(&pointer);
        if pointer == 0 || known.as_ref().is_some_and(is_inside) {
            return;
        }
        // The agent's and scavengers' threads are not the program's, and the kernel may have merged their
        // stacks with the program's memory.
        let row = self.threads.row(thread);
        if row.is_some_and(|row| row.is_agents(place.pid) || row.is_scavengers(place.pid)) {
            return;
        }
        let found = self.with_space(process, place.t_ns, |space, modules, _| {
            if space.mapping(pointer).is_none() {
                space.look(modules, place.t_ns);
            }
            space.stack_at(pointer, known.as_ref())
        });
        if let Some(stack) = found {
            self.threads.set_stack(thread, stack);
        }
    }
}

/// Data of a raw sample that are independent of its source.
struct Where {
    pid: u32,
    tid: u32,
    t_ns: u64,
    cpu: Option<u16>,
    weight_ns: u64,
    patched: Patched,
    in_kernel: bool,
}

/// Reads 8 bytes at `address` from a copy of memory that begins at address `bottom`.
pub(crate) fn word(memory: &[u8], bottom: u64, address: u64) -> Option<u64> {
    let at = usize::try_from(address.checked_sub(bottom)?).ok()?;
    let bytes = memory.get(at..)?.first_chunk()?;
    Some(u64::from_ne_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_read_where_there_are_some() {
        let memory: Vec<u8> = (0..32).collect();
        let first = u64::from_ne_bytes([0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(word(&memory, 1000, 1000), Some(first));
        assert_eq!(word(&memory, 1000, 1025), None);
        assert_eq!(word(&memory, 1000, 999), None);
    }

    #[test]
    fn a_sample_of_this_process_is_resolved() {
        let pid = std::process::id();
        let mut world = World::default();
        let mut registers = Registers {
            ip: word as *const () as u64,
            ..Registers::default()
        };
        let local = 0_u64;
        registers.general[Registers::STACK_POINTER] = &raw const local as u64;
        let mut seen = RawSample {
            pid,
            tid: pid,
            t_ns: 5,
            cpu: Some(1),
            weight_ns: 7,
            registers: Some(registers),
            ip: None,
            stack: &[],
            in_kernel: false,
        };
        let taken = world.resolve_perf_sample(&seen, None);
        let (module, address, bias) = taken.code.clone().unwrap();
        assert_eq!(module.kind, ModuleKind::File);
        assert_eq!(address + bias, registers.ip);
        assert_eq!(taken.patched, Patched::No);
        let stack = world.threads.stack(taken.thread).unwrap();
        assert!(stack.contains(&(&raw const local as u64)));
        seen.in_kernel = true;
        let kernel = world.resolve_perf_sample(&seen, None);
        assert!(kernel.code.is_none());
        assert_ne!(kernel.leaf, taken.leaf);
        // Without registers, as in 32-bit code, it is the kernel's only where it was there.
        seen.registers = None;
        assert_eq!(world.resolve_perf_sample(&seen, None).leaf, kernel.leaf);
        seen.in_kernel = false;
        assert_eq!(world.resolve_perf_sample(&seen, None).leaf, kernel.leaf);
        seen.ip = Some(registers.ip);
        assert_eq!(world.resolve_perf_sample(&seen, None).leaf, taken.leaf);
    }
}
