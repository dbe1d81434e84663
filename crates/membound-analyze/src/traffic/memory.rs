//! Finds the object at an address at a given time.

use membound_run::{ObjectId, ProcessId, RunData};

use crate::groups::{GroupId, Groups};

/// Objects at lower addresses that are examined: the nearest ones may have been freed.
const MAX_EXAMINED_NEIGHBOURS: usize = 16;

/// Objects sorted by address.
#[derive(Debug)]
pub(crate) struct Memory<'a> {
    run: &'a RunData,
    /// Sorted by process and address.
    order: Vec<ObjectId>,
}

impl<'a> Memory<'a> {
    pub(crate) fn new(run: &'a RunData) -> Self {
        let mut order: Vec<ObjectId> = (0..run.objects.len() as u32).map(ObjectId).collect();
        order.sort_by_key(|id| {
            let object = &run.objects[id.index()];
            (object.process, object.address, object.allocated_ns, *id)
        });
        Self { run, order }
    }

    /// Object that contained `address` of `process` at `t_ns`.
    pub(crate) fn at(&self, process: ProcessId, address: u64, t_ns: u64) -> Option<ObjectId> {
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
