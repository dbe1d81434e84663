//! One process image: its mappings, and how its threads are unwound.
//!
//! perf reports executable mappings as they are made; they are read from `/proc` when an unknown address is
//! met. All other mappings are read from `/proc` when an address of data is to be named.

use std::ops::Range;
use std::sync::Arc;

use membound_launch::Mapping;
use membound_run::{Frame, FrameId, ModuleKind, ProcessId};
use membound_symbolize::{Registers, Unwinder};

use crate::intern::Interner;
use crate::modules::{self, CodeModule, Modules};

/// Shortest interval between two readings of `/proc/PID/maps`.
const LOOK_EVERY_NS: u64 = 20_000_000;

/// Stack size that the C library gives a thread where there is no limit to be read, in bytes.
const USUAL_STACK_LIMIT: u64 = 8 << 20;

/// A higher limit is no guide to the size of stacks: mappings of data are as large.
const MAX_STACK_LIMIT: u64 = 64 << 20;

/// Bytes on either side of a stack pointer that are assumed to be its stack where the stack's bounds are not
/// known: frames are seldom larger.
const AROUND_POINTER: u64 = 64 << 10;

/// Size in bytes of the stacks of a process's threads: its soft limit, which the C library uses for threads
/// as well.
fn stack_limit(pid: u32) -> u64 {
    let limits = std::fs::read_to_string(format!("/proc/{pid}/limits")).unwrap_or_default();
    let line = limits
        .lines()
        .find_map(|line| line.strip_prefix("Max stack size"));
    let soft = line.and_then(|line| line.split_ascii_whitespace().next()?.parse().ok());
    soft.unwrap_or(USUAL_STACK_LIMIT).min(MAX_STACK_LIMIT)
}

/// A mapping of code in a process.
#[derive(Clone, Debug)]
pub(crate) struct Placed {
    /// Addresses in the process.
    pub(crate) range: Range<u64>,
    /// The module that is mapped there.
    pub(crate) module: Arc<CodeModule>,
    /// Address in the process minus address in the file.
    pub(crate) bias: u64,
}

/// A process image.
#[derive(Debug)]
pub(crate) struct Space {
    /// Process number.
    pub(crate) pid: u32,
    /// The image's number in the run.
    pub(crate) process: ProcessId,
    /// Mappings of code, sorted by address, without overlaps.
    code: Vec<Placed>,
    unwinder: Unwinder,
    /// All mappings, as they were last read from `/proc`.
    maps: Vec<Mapping>,
    looked_ns: Option<u64>,
    /// New rows of mappings, until [`Self::take_fresh`] returns them.
    fresh: Vec<membound_run::Mapping>,
}

/// An instruction, as a frame and by its mapping.
#[derive(Clone, Debug)]
pub(crate) struct Spot {
    /// The frame, for the run.
    pub(crate) frame: Frame,
    /// The mapping that contains it, if known.
    pub(crate) placed: Option<Placed>,
}

impl Space {
    /// An image without known mappings.
    pub(crate) fn new(pid: u32, process: ProcessId) -> Self {
        Self {
            pid,
            process,
            code: Vec::new(),
            unwinder: Unwinder::new(),
            maps: Vec::new(),
            looked_ns: None,
            fresh: Vec::new(),
        }
    }

    /// The image of a forked child, which has the same mappings.
    pub(crate) fn forked(&self, pid: u32, process: ProcessId, now_ns: u64) -> Self {
        let mut child = Self::new(pid, process);
        for placed in &self.code {
            child.put(placed.clone(), now_ns);
        }
        child.maps.clone_from(&self.maps);
        child
    }

    /// True if no mapping of code is known.
    pub(crate) const fn is_unknown(&self) -> bool {
        self.code.is_empty()
    }

    /// Adds an executable mapping.
    pub(crate) fn map(&mut self, modules: &mut Modules, map: &Mapping, now_ns: u64) {
        let (module, bias) = modules.of(self.pid, self.process, map);
        self.map_as(module, bias, map, now_ns);
    }

    /// Adds an executable mapping of `module`.
    pub(crate) fn map_as(
        &mut self,
        module: Arc<CodeModule>,
        bias: u64,
        map: &Mapping,
        now_ns: u64,
    ) {
        let placed = Placed {
            range: map.range.clone(),
            module,
            bias,
        };
        self.put(placed, now_ns);
    }

    /// Adds an executable mapping of a file that must not be read on this machine.
    pub(crate) fn map_unread(&mut self, modules: &mut Modules, map: &Mapping, now_ns: u64) {
        let placed = Placed {
            range: map.range.clone(),
            module: modules.unread(map),
            bias: map.range.start.wrapping_sub(map.offset),
        };
        self.put(placed, now_ns);
    }

    fn put(&mut self, placed: Placed, now_ns: u64) {
        let Range { start, end } = placed.range;
        if start >= end {
            return;
        }
        let same = self.code.iter().any(|it| {
            it.range == placed.range && it.bias == placed.bias && it.module.id == placed.module.id
        });
        if same {
            return;
        }
        let overlaps = |it: &Placed| it.range.start < end && start < it.range.end;
        let cut: Vec<Placed> = self
            .code
            .iter()
            .filter(|it| overlaps(it))
            .cloned()
            .collect();
        self.code.retain(|it| !overlaps(it));
        for old in cut {
            self.unwinder.remove(old.range.start);
            // The parts of an old mapping beside the new one stay.
            for rest in [old.range.start..start, end..old.range.end] {
                if rest.start < rest.end {
                    self.insert(Placed {
                        range: rest,
                        ..old.clone()
                    });
                }
            }
        }
        self.fresh.push(membound_run::Mapping {
            process: self.process,
            module: placed.module.id,
            start,
            end,
            bias: placed.bias,
            t_ns: now_ns,
        });
        self.insert(placed);
    }

    fn insert(&mut self, placed: Placed) {
        if let Some(frames) = placed.module.frames() {
            self.unwinder.add(placed.range.clone(), placed.bias, frames);
        }
        let at = self
            .code
            .partition_point(|it| it.range.start < placed.range.start);
        self.code.insert(at, placed);
    }

    /// Reads `/proc/PID/maps`, unless that was done a moment ago.
    pub(crate) fn look(&mut self, modules: &mut Modules, now_ns: u64) {
        let soon = self
            .looked_ns
            .is_some_and(|last| now_ns < last.saturating_add(LOOK_EVERY_NS));
        if soon {
            return;
        }
        self.looked_ns = Some(now_ns);
        let Ok(maps) = membound_launch::maps_of(self.pid) else {
            return;
        };
        if maps.is_empty() {
            // A process that has ended and was not waited for yet has no mappings.
            return;
        }
        let here = |map: &Mapping| map.executable && map.name != "[vsyscall]";
        let known: Vec<Placed> = self.code.clone();
        let gone = known.iter().filter(|placed| {
            let touches = |map: &Mapping| {
                map.range.start < placed.range.end && placed.range.start < map.range.end
            };
            !maps.iter().any(|map| here(map) && touches(map))
        });
        for placed in gone {
            self.unwinder.remove(placed.range.start);
            self.code.retain(|it| it.range != placed.range);
        }
        for map in maps.iter().filter(|map| here(map)) {
            self.map(modules, map, now_ns);
        }
        self.maps = maps;
    }

    /// The mapping of code that contains an address, if known.
    pub(crate) fn placed(&self, address: u64) -> Option<&Placed> {
        let after = self.code.partition_point(|it| it.range.start <= address);
        let placed = &self.code[after.checked_sub(1)?];
        placed.range.contains(&address).then_some(placed)
    }

    /// The frame and the mapping of an instruction's address.
    pub(crate) fn spot(&mut self, modules: &mut Modules, address: u64, now_ns: u64) -> Spot {
        if self.placed(address).is_none() {
            self.look(modules, now_ns);
        }
        let placed = self.placed(address).cloned();
        let frame = frame_at(placed.as_ref(), address);
        Spot { frame, placed }
    }

    /// Frames of the calls before these return addresses, innermost first. Frames in the agent are left out:
    /// they are not part of the program's chain.
    pub(crate) fn callers(
        &mut self,
        modules: &mut Modules,
        interner: &mut Interner,
        addresses: &[u64],
        now_ns: u64,
    ) -> Vec<FrameId> {
        let mut frames = Vec::with_capacity(addresses.len() + 1);
        for address in addresses {
            let call = address.wrapping_sub(1);
            if self.placed(call).is_none() {
                self.look(modules, now_ns);
            }
            let placed = self.placed(call);
            if placed.is_none_or(|placed| placed.module.kind != ModuleKind::Agent) {
                frames.push(interner.frame(frame_at(placed, call)));
            }
        }
        frames
    }

    /// Appends the return addresses of a thread to `out`, innermost first; `read` reads words of its memory.
    pub(crate) fn unwind(
        &mut self,
        registers: &membound_launch::Registers,
        read: &mut dyn FnMut(u64) -> Option<u64>,
        out: &mut Vec<u64>,
    ) {
        let registers = Registers {
            general: registers.general,
            ip: registers.ip,
        };
        // Whether unwinding ended properly is visible in the outermost frame.
        let _ = self.unwinder.unwind(&registers, read, out);
    }

    /// The mapping at an address, as it was last read.
    pub(crate) fn mapping(&self, address: u64) -> Option<&Mapping> {
        let after = self.maps.partition_point(|map| map.range.start <= address);
        let map = &self.maps[after.checked_sub(1)?];
        map.range.contains(&address).then_some(map)
    }

    /// The part of the mapping at a stack pointer that is certainly that thread's stack. The kernel merges
    /// neighbouring mappings with the same rights: a thread's stack may be listed together with any memory
    /// above it, or below it where it has no guard page. So a mapping that is larger than stacks are made, or
    /// has no guard page, is cut to the surroundings of the pointer, joined with the `known` range if that is
    /// near.
    pub(crate) fn stack_at(&self, pointer: u64, known: Option<&Range<u64>>) -> Option<Range<u64>> {
        let map = self.mapping(pointer)?;
        // A coroutine's stack may be in any memory; only anonymous memory outside the heap counts.
        if map.inode != 0 || map.name == "[heap]" {
            return None;
        }
        let size = map.range.end - map.range.start;
        let limit = stack_limit(self.pid);
        let is_guarded = self
            .mapping(map.range.start.wrapping_sub(1))
            .is_some_and(|below| !below.readable && !below.writable);
        if map.name == "[stack]" || (is_guarded && size <= limit) {
            return Some(map.range.clone());
        }
        let near = pointer.saturating_sub(AROUND_POINTER)..pointer.saturating_add(AROUND_POINTER);
        let near = match known {
            Some(known) => {
                let both = near.start.min(known.start)..near.end.max(known.end);
                let meet = near.start <= known.end && known.start <= near.end;
                if meet && both.end - both.start <= limit {
                    both
                } else {
                    near
                }
            }
            None => near,
        };
        Some(near.start.max(map.range.start)..near.end.min(map.range.end))
    }

    /// The module whose memory an address of data lies in: its text, its initialised variables or its
    /// zero-initialised ones.
    pub(crate) fn owner(&self, address: u64) -> Option<&Placed> {
        self.code.iter().find(|placed| {
            placed.module.kind == ModuleKind::File
                && placed
                    .module
                    .span(placed.bias)
                    .is_some_and(|span| span.contains(&address))
        })
    }

    /// True if an address lies in memory of membound's own.
    pub(crate) fn is_ours(&self, address: u64) -> bool {
        self.mapping(address)
            .is_some_and(|map| modules::is_ours(map.name.as_encoded_bytes()))
    }

    /// New rows of mappings since the last call.
    pub(crate) fn take_fresh(&mut self) -> Vec<membound_run::Mapping> {
        std::mem::take(&mut self.fresh)
    }
}

/// The frame of an address in the mapping `placed`, or of an address in no known mapping.
fn frame_at(placed: Option<&Placed>, address: u64) -> Frame {
    Frame {
        module: placed.map(|placed| placed.module.id),
        address: address.wrapping_sub(placed.map_or(0, |placed| placed.bias)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::modules::executable as map;

    #[test]
    fn what_is_mapped_over_something_takes_its_place() {
        let mut modules = Modules::default();
        let mut space = Space::new(u32::MAX, ProcessId(0));
        space.map(&mut modules, &map(0x1000..0x9000, ""), 1);
        space.map(&mut modules, &map(0x3000..0x4000, "/no/such/file"), 2);
        let path = |space: &Space, at| space.placed(at).map(|it| it.module.path.clone());
        assert_eq!(path(&space, 0x2fff).as_deref(), Some("[jit]"));
        assert_eq!(path(&space, 0x3000).as_deref(), Some("/no/such/file"));
        assert_eq!(path(&space, 0x4000).as_deref(), Some("[jit]"));
        assert_eq!(path(&space, 0x9000), None);
        assert_eq!(path(&space, 0xfff), None);
        assert_eq!(space.take_fresh().len(), 2);
        // Mapped again in the same way, it gives no new row.
        space.map(&mut modules, &map(0x3000..0x4000, "/no/such/file"), 3);
        assert!(space.take_fresh().is_empty());
        let child = space.forked(7, ProcessId(1), 4);
        assert_eq!(path(&child, 0x3000).as_deref(), Some("/no/such/file"));
        assert_eq!(child.fresh.len(), 3);
    }

    #[test]
    fn a_mapping_that_swallowed_a_stack_is_no_stack() {
        let mut space = Space::new(u32::MAX, ProcessId(0));
        let data = |range, name: &str| Mapping {
            writable: true,
            executable: false,
            ..map(range, name)
        };
        let guard = |range| Mapping {
            readable: false,
            writable: false,
            ..data(range, "")
        };
        const MIB: u64 = 1 << 20;
        space.maps = vec![
            data(MIB..(1 << 30), ""),
            guard((2 << 30) - 4096..2 << 30),
            data(2 << 30..(2 << 30) + 8 * MIB, ""),
            data(1 << 40..(1 << 40) + 200 * MIB, "[stack]"),
        ];
        // 1 GiB of data, with the stack of a thread somewhere in it.
        let pointer = 500 * MIB;
        let first = space.stack_at(pointer, None).unwrap();
        assert_eq!(first, pointer - AROUND_POINTER..pointer + AROUND_POINTER);
        let deeper = space.stack_at(first.start, Some(&first)).unwrap();
        assert_eq!(deeper, first.start - AROUND_POINTER..first.end);
        assert_eq!(space.stack_at(MIB + 16, Some(&first)).unwrap().start, MIB);
        // With a guard page and the size of a stack it is one, and so is what the kernel names.
        assert_eq!(
            space.stack_at((2 << 30) + 5, None),
            Some(2 << 30..(2 << 30) + 8 * MIB)
        );
        assert_eq!(
            space.stack_at((1 << 40) + 5, None),
            Some(1 << 40..(1 << 40) + 200 * MIB)
        );
        assert_eq!(space.stack_at(5, None), None);
    }

    #[test]
    fn this_process_is_read_and_resolved() {
        let pid = std::process::id();
        let mut modules = Modules::default();
        let mut interner = Interner::default();
        let mut space = Space::new(pid, ProcessId(0));
        let here = this_process_is_read_and_resolved as *const () as u64;
        let spot = space.spot(&mut modules, here, 0);
        let placed = spot.placed.unwrap();
        assert_eq!(spot.frame.address, here - placed.bias);
        assert_eq!(
            space
                .callers(&mut modules, &mut interner, &[here + 1], 0)
                .len(),
            1
        );
        assert_eq!(interner.take_frames().1, [spot.frame]);
        let local = 0_u64;
        let stack = space.mapping(&raw const local as u64).unwrap();
        assert!(stack.writable);
        static VARIABLE: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
        let owner = space.owner(VARIABLE.as_ptr() as u64).unwrap();
        assert_eq!(owner.module.id, placed.module.id);
        // Nothing is mapped there, and the mappings are not read again at once.
        assert!(space.spot(&mut modules, 1, 1).placed.is_none());
    }
}
