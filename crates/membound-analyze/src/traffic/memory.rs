//! Finds the object at an address at a given time.

use membound_run::{ObjectClass, ObjectId, ProcessId, RunData};

use crate::groups::{GroupId, Groups};

/// Objects at lower addresses that are examined: the nearest ones may have been freed.
const MAX_EXAMINED_NEIGHBOURS: usize = 16;

/// Maximum distance in bytes from a recorded access to an address that counts for the same heap block: the mean
/// distance of sampled blocks is at most this.
const MAX_GAP_BYTES: u64 = 1 << 20;

/// Objects sorted by address.
#[derive(Debug)]
pub(crate) struct Memory<'a> {
    run: &'a RunData,
    /// Sorted by process and address.
    order: Vec<ObjectId>,
    /// Recorded accesses to heap blocks: process, address and object, sorted.
    heap_accesses: Vec<(ProcessId, u64, ObjectId)>,
}

impl<'a> Memory<'a> {
    pub(crate) fn new(run: &'a RunData) -> Self {
        let mut order: Vec<ObjectId> = (0..run.objects.len() as u32).map(ObjectId).collect();
        order.sort_by_key(|id| {
            let object = &run.objects[id.index()];
            (object.process, object.address, object.allocated_ns, *id)
        });
        let accesses = run.accesses.iter();
        let accesses = accesses.map(|access| (access.object, Some(access.address)));
        let samples = run.samples.iter();
        let samples = samples.map(|sample| (sample.object, sample.address));
        let mut heap_accesses: Vec<_> = accesses
            .chain(samples)
            .filter_map(|(object, address)| {
                let (id, address) = (object?, address?);
                let object = &run.objects[id.index()];
                let is_block = object.kind == ObjectClass::Heap;
                is_block.then_some((object.process, address, id))
            })
            .collect();
        heap_accesses.sort_unstable();
        heap_accesses.dedup();
        Self {
            run,
            order,
            heap_accesses,
        }
    }

    /// Object that contained `address` of `process` at `t_ns`. Where no accessed block is known, the heap block
    /// of the nearest recorded access.
    pub(crate) fn at(&self, process: ProcessId, address: u64, t_ns: u64) -> Option<ObjectId> {
        let recorded = self.recorded(process, address, t_ns);
        // A mapping that no call chain made may hold the blocks of an allocator.
        let is_block = recorded.is_some_and(|id| {
            let object = &self.run.objects[id.index()];
            match object.kind {
                ObjectClass::Unknown => false,
                ObjectClass::Mapped => object.stack.is_some(),
                _ => true,
            }
        });
        if is_block {
            return recorded;
        }
        self.nearest_block(process, address).or(recorded)
    }

    fn nearest_block(&self, process: ProcessId, address: u64) -> Option<ObjectId> {
        let all = &self.heap_accesses;
        let behind = all.partition_point(|one| (one.0, one.1) <= (process, address));
        let around = &all[behind.saturating_sub(1)..(behind + 1).min(all.len())];
        let of_process = around.iter().filter(|one| one.0 == process);
        let nearest = of_process.min_by_key(|one| one.1.abs_diff(address))?;
        (nearest.1.abs_diff(address) <= MAX_GAP_BYTES).then_some(nearest.2)
    }

    fn recorded(&self, process: ProcessId, address: u64, t_ns: u64) -> Option<ObjectId> {
        let behind = self.order.partition_point(|id| {
            let object = &self.run.objects[id.index()];
            (object.process, object.address) <= (process, address)
        });
        self.order[behind.saturating_sub(MAX_EXAMINED_NEIGHBOURS)..behind]
            .iter()
            .rev()
            .copied()
            .find(|id| {
                let object = &self.run.objects[id.index()];
                object.process == process
                    && address - object.address < object.size_bytes
                    && object.allocated_ns.is_none_or(|from| from <= t_ns)
                    && object.freed_ns.is_none_or(|to| t_ns < to)
            })
    }

    /// Address of the first byte, and the address behind the last byte.
    pub(crate) fn range(&self, object: ObjectId) -> (u64, u64) {
        let object = &self.run.objects[object.index()];
        (
            object.address,
            object.address.saturating_add(object.size_bytes),
        )
    }
}

/// Group of an object, or the group of unknown memory.
pub(crate) fn group(groups: &Groups, object: Option<ObjectId>) -> GroupId {
    object.map_or(Groups::UNKNOWN, |object| groups.of(object))
}
