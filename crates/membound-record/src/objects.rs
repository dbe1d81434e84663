//! Finds the object that an address of data belongs to, at the time of an access.
//!
//! Blocks of allocators come first, then the stacks of threads, then what was mapped, then
//! the variables of modules, then what `/proc/PID/maps` lists. Only accessed objects become rows; totals are
//! kept for all allocations. Where blocks are sampled, an address between them is taken to be in a block like
//! the nearest one.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use membound_launch::{AllocationAction, AllocationEvent, AllocationFunction};
use membound_run::{
    Allocations, LiveBytes, Object, ObjectClass, ObjectId, ProcessId, StackId, ThreadId,
};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::heap::{Ended, Heap, HeapBlock};
use crate::modules::CodeModule;
use crate::world::World;

/// How long an answer from `/proc/PID/maps` is reused.
const BELIEVED_NS: u64 = 500_000_000;
/// Forks that are followed back in search of a block that was allocated before them.
const GENERATIONS: usize = 16;

/// Identity of objects that no allocation event of the process itself created.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Key {
    /// Process and first address.
    Variable(ProcessId, u64),
    /// Thread and end of its stack.
    Stack(ThreadId, u64),
    /// Process, first address and name.
    Mapping(ProcessId, u64, String),
    /// Unrecorded blocks: accessing process, allocating process, call chain and function of the blocks nearby.
    Unrecorded(ProcessId, ProcessId, u32, AllocationFunction),
    /// Inherited block: accessing process, allocating process, first address, time of allocation.
    Inherited(ProcessId, ProcessId, u64, u64),
}

impl Lies {
    /// The mapping, if it belongs to no file: allocators may have blocks there.
    fn anonymous(&self) -> Option<&Range<u64>> {
        match self {
            Self::Mapping { kind, range, .. } if *kind != ObjectClass::File => Some(range),
            _ => None,
        }
    }
}

/// All objects of a run.
#[derive(Debug, Default)]
pub(crate) struct Objects {
    heaps: FxHashMap<ProcessId, Heap>,
    /// Blocks that a forked child freed and that its parent may still have.
    disowned: FxHashMap<ProcessId, FxHashSet<u64>>,
    /// Call chains by process and their number there.
    chains: FxHashMap<(ProcessId, u32), StackId>,
    /// Rows of blocks that have not been freed.
    live: FxHashMap<ObjectId, Object>,
    named: FxHashMap<Key, ObjectId>,
    /// Cached answers for addresses in no block, by first address.
    places: FxHashMap<ProcessId, BTreeMap<u64, Place>>,
    count: u32,
    changed: BTreeMap<ObjectId, Object>,
    /// Names of allocating functions in addition to the usual ones.
    others: Vec<String>,
}

/// A cached answer for addresses in no block.
#[derive(Clone, Debug)]
struct Place {
    range: Range<u64>,
    object: ObjectId,
    /// True if allocators may have blocks there.
    is_anonymous: bool,
    valid_until_ns: u64,
}

/// What contains an address that is in no block.
enum Lies {
    Stack(ThreadId, Range<u64>),
    Module(Arc<CodeModule>, u64),
    Mapping {
        kind: ObjectClass,
        range: Range<u64>,
        name: String,
    },
}

impl Objects {
    /// Objects of a run in which the functions `others` allocate as well.
    pub(crate) fn new(others: Vec<String>) -> Self {
        Self {
            others,
            ..Self::default()
        }
    }

    /// Adds a call chain of allocations.
    pub(crate) fn chain(&mut self, process: ProcessId, number: u32, stack: StackId) {
        self.chains.insert((process, number), stack);
    }

    /// Applies an allocation or a free.
    pub(crate) fn apply(&mut self, process: ProcessId, event: &AllocationEvent, t_ns: u64) {
        let mut ended = Vec::new();
        let heap = self.heaps.entry(process).or_default();
        if event.action == AllocationAction::Freed && heap.block(event.address).is_none() {
            self.disowned
                .entry(process)
                .or_default()
                .insert(event.address);
        }
        heap.apply(event, t_ns, &mut ended);
        self.finish(&ended);
    }

    fn finish(&mut self, ended: &[Ended]) {
        for Ended { object, t_ns } in ended {
            if let Some(mut row) = self.live.remove(object) {
                row.freed_ns = Some(*t_ns);
                self.changed.insert(*object, row);
            }
        }
    }

    /// The object at an address of a process at a time; `None` if none is known, and in memory of membound's
    /// own.
    pub(crate) fn at(
        &mut self,
        world: &std::sync::Mutex<World>,
        process: ProcessId,
        address: u64,
        t_ns: u64,
    ) -> Option<ObjectId> {
        if let Some(object) = self.block(world, process, address, Heap::block) {
            return Some(object);
        }
        if let Some(place) = self.place(process, address, t_ns).cloned() {
            let unrecorded = place.is_anonymous.then_some(&place.range);
            let unrecorded = unrecorded.and_then(|it| self.unrecorded(world, process, address, it));
            return unrecorded.or(Some(place.object));
        }
        // A thread's stack comes before the mapping that it lies in.
        let lies = look(world, process, address, t_ns);
        if !matches!(lies, Some(Lies::Stack(..))) {
            let mapped = self.heaps.get_mut(&process).and_then(|heap| {
                let (start, block) = heap.mapping(address)?;
                Some(start..start.saturating_add(block.size))
            });
            let mapping = lies.as_ref().and_then(Lies::anonymous);
            if let Some(range) = mapped.as_ref().or(mapping)
                && let Some(object) = self.unrecorded(world, process, address, range)
            {
                return Some(object);
            }
            if let Some(object) = self.block(world, process, address, Heap::mapping) {
                return Some(object);
            }
        }
        let lies = lies?;
        let is_anonymous = lies.anonymous().is_some();
        let (object, range) = self.lying(process, lies, address);
        // A variable found again is the same object; a mapping may be another.
        self.places.entry(process).or_default().insert(
            range.start,
            Place {
                range,
                object,
                is_anonymous,
                valid_until_ns: t_ns.saturating_add(BELIEVED_NS),
            },
        );
        Some(object)
    }

    fn place(&self, process: ProcessId, address: u64, t_ns: u64) -> Option<&Place> {
        let places = self.places.get(&process)?;
        let (_, place) = places.range(..=address).next_back()?;
        (address < place.range.end && t_ns < place.valid_until_ns).then_some(place)
    }

    /// The object that stands for unrecorded blocks like those near `address` in `range`, of the process
    /// itself or of one that it was forked from; `None` if blocks are not sampled there.
    fn unrecorded(
        &mut self,
        world: &std::sync::Mutex<World>,
        process: ProcessId,
        address: u64,
        range: &Range<u64>,
    ) -> Option<ObjectId> {
        let mut holder = process;
        for _ in 0..GENERATIONS {
            let heap = self.heaps.get(&holder);
            let found = heap.and_then(|heap| heap.nearest_sampled(address, range));
            if let Some(&HeapBlock {
                chain, function, ..
            }) = found
            {
                let key = Key::Unrecorded(process, holder, chain, function);
                return Some(self.once(key, |objects| Object {
                    kind: ObjectClass::Heap,
                    process,
                    address: 0,
                    size_bytes: 0,
                    name: objects.function(function),
                    stack: objects.chains.get(&(holder, chain)).copied(),
                    thread: None,
                    allocated_ns: None,
                    freed_ns: None,
                    weight: 0.0,
                }));
            }
            holder = crate::lock(world).forked_from(holder)?;
        }
        None
    }

    /// The object of a block, of the process itself or of one that it was forked from.
    fn block(
        &mut self,
        world: &std::sync::Mutex<World>,
        process: ProcessId,
        address: u64,
        find: impl Fn(&mut Heap, u64) -> Option<(u64, &mut HeapBlock)>,
    ) -> Option<ObjectId> {
        let mut holder = process;
        for _ in 0..GENERATIONS {
            let found = self
                .heaps
                .get_mut(&holder)
                .and_then(|heap| find(heap, address));
            if let Some((start, block)) = found {
                let (block, known) = (*block, block.object);
                if holder == process {
                    if let Some(object) = known {
                        return Some(object);
                    }
                    let object = self.allocated(world, process, holder, start, &block);
                    let heap = self.heaps.get_mut(&holder)?;
                    find(heap, address)?.1.object = Some(object);
                    return Some(object);
                }
                if self
                    .disowned
                    .get(&process)
                    .is_some_and(|gone| gone.contains(&start))
                {
                    return None;
                }
                let key = Key::Inherited(process, holder, start, block.t_ns);
                if let Some(object) = self.named.get(&key) {
                    return Some(*object);
                }
                let object = self.allocated(world, process, holder, start, &block);
                self.named.insert(key, object);
                return Some(object);
            }
            holder = crate::lock(world).forked_from(holder)?;
        }
        None
    }

    /// A row for a block of `holder`'s that `process` accessed.
    fn allocated(
        &mut self,
        world: &std::sync::Mutex<World>,
        process: ProcessId,
        holder: ProcessId,
        start: u64,
        block: &HeapBlock,
    ) -> ObjectId {
        let thread = {
            let mut world = crate::lock(world);
            let pid = world.row(holder).pid;
            world.threads.of(holder, pid, block.thread, block.t_ns)
        };
        let kind = match block.function {
            AllocationFunction::Mmap => ObjectClass::Mapped,
            _ => ObjectClass::Heap,
        };
        let object = Object {
            kind,
            process,
            address: start,
            size_bytes: block.size,
            name: self.function(block.function),
            stack: self.chains.get(&(holder, block.chain)).copied(),
            thread: Some(thread),
            allocated_ns: Some(block.t_ns),
            freed_ns: None,
            weight: f64::from(block.weight),
        };
        let number = self.add(object.clone());
        self.live.insert(number, object);
        number
    }

    /// The object with this identity; the first time, one with the row that `row` returns.
    fn once(&mut self, key: Key, row: impl FnOnce(&Self) -> Object) -> ObjectId {
        if let Some(object) = self.named.get(&key) {
            return *object;
        }
        let row = row(self);
        let object = self.add(row);
        self.named.insert(key, object);
        object
    }

    fn add(&mut self, object: Object) -> ObjectId {
        let number = ObjectId(self.count);
        self.count += 1;
        self.changed.insert(number, object);
        number
    }

    fn function(&self, function: AllocationFunction) -> String {
        match function {
            AllocationFunction::Malloc => "malloc",
            AllocationFunction::Calloc => "calloc",
            AllocationFunction::Realloc => "realloc",
            AllocationFunction::Aligned => "aligned_alloc",
            AllocationFunction::Mmap => "mmap",
            AllocationFunction::Free => "free",
            AllocationFunction::Munmap => "munmap",
            AllocationFunction::Other(number) => self
                .others
                .get(usize::from(number))
                .map_or("", String::as_str),
        }
        .to_owned()
    }

    /// The object that contains an address in no block, and the range that the answer is valid for.
    fn lying(&mut self, process: ProcessId, lies: Lies, address: u64) -> (ObjectId, Range<u64>) {
        let (key, kind, name, range, thread) = match lies {
            Lies::Stack(thread, range) => {
                let key = Key::Stack(thread, range.end);
                (key, ObjectClass::Stack, String::new(), range, Some(thread))
            }
            Lies::Module(module, bias) => {
                let symbols = module.symbols();
                let variable = symbols.and_then(|it| it.variable(address.wrapping_sub(bias)));
                let (name, range) = match variable {
                    Some(variable) => {
                        let start = variable.address.wrapping_add(bias);
                        let end = start.saturating_add(variable.size.max(1));
                        (variable.name, start..end.max(address.saturating_add(1)))
                    }
                    None => (
                        module.path.clone(),
                        module.span(bias).unwrap_or(address..address + 1),
                    ),
                };
                (
                    Key::Variable(process, range.start),
                    ObjectClass::Global,
                    name,
                    range,
                    None,
                )
            }
            Lies::Mapping { kind, range, name } => (
                Key::Mapping(process, range.start, name.clone()),
                kind,
                name,
                range,
                None,
            ),
        };
        let object = self.once(key, |_| Object {
            kind,
            process,
            address: range.start,
            size_bytes: range.end - range.start,
            name,
            stack: None,
            thread,
            allocated_ns: None,
            freed_ns: None,
            weight: 1.0,
        });
        (object, range)
    }

    /// Rows that are new or changed since the last call.
    pub(crate) fn take_changed(&mut self) -> BTreeMap<ObjectId, Object> {
        std::mem::take(&mut self.changed)
    }

    /// Totals by process, call chain and function, without blocks whose chains are not known.
    pub(crate) fn totals(&self) -> Vec<Allocations> {
        let mut all = Vec::new();
        for (process, heap) in &self.heaps {
            for ((chain, function), totals) in &heap.totals {
                let Some(stack) = self.chains.get(&(*process, *chain)) else {
                    continue;
                };
                all.push(Allocations {
                    stack: *stack,
                    process: *process,
                    function: self.function(*function),
                    blocks: totals.blocks.round() as u64,
                    blocks_variance: (totals.blocks_variance > 0.0)
                        .then_some(totals.blocks_variance),
                    bytes: totals.bytes.round() as u64,
                    freed: totals.freed.round() as u64,
                    lifetime_ns: totals.lifetime_ns.round() as u64,
                    peak_bytes: totals.peak_bytes.round() as u64,
                });
            }
        }
        all.sort_by_key(|it| (it.process, it.stack, it.function.clone()));
        all
    }

    /// Events of blocks that [`Self::totals`] leaves out because their call chains are not known.
    pub(crate) fn chainless_events(&self) -> u64 {
        let mut events = 0.0;
        for (process, heap) in &self.heaps {
            for ((chain, _), totals) in &heap.totals {
                if !self.chains.contains_key(&(*process, *chain)) {
                    events += totals.events();
                }
            }
        }
        events.round() as u64
    }

    /// Live bytes over time by call chain.
    pub(crate) fn live(&mut self) -> Vec<LiveBytes> {
        let mut heaps = std::mem::take(&mut self.heaps);
        let mut all = Vec::new();
        for (process, heap) in &mut heaps {
            for ((chain, function), from_ns, to_ns, step) in heap.live.finished() {
                if let Some(stack) = self.chains.get(&(*process, chain)) {
                    all.push(LiveBytes {
                        stack: *stack,
                        process: *process,
                        function: self.function(function),
                        from_ns,
                        to_ns,
                        bytes: step.bytes.round() as u64,
                        peak_bytes: step.peak_bytes.round() as u64,
                    });
                }
            }
        }
        self.heaps = heaps;
        all.sort_by(|a, b| {
            let key = |it: &LiveBytes| (it.process, it.stack, it.from_ns);
            key(a)
                .cmp(&key(b))
                .then_with(|| a.function.cmp(&b.function))
        });
        all
    }

    /// Blocks that were not kept because there were too many.
    pub(crate) fn unkept(&self) -> u64 {
        self.heaps.values().map(|heap| heap.unkept).sum()
    }
}

/// Finds what contains an address in no block: a stack, a module or another mapping.
fn look(
    world: &std::sync::Mutex<World>,
    process: ProcessId,
    address: u64,
    t_ns: u64,
) -> Option<Lies> {
    let mut world = crate::lock(world);
    if let Some(thread) = world.threads.on_stack(process, address)
        && let Some(range) = world.threads.stack(thread)
    {
        return Some(Lies::Stack(thread, range.clone()));
    }
    world.with_space(process, t_ns, |space, modules, _| {
        if space.mapping(address).is_none() {
            space.look(modules, t_ns);
        }
        if space.is_ours(address) {
            return None;
        }
        if let Some(placed) = space.owner(address) {
            return Some(Lies::Module(Arc::clone(&placed.module), placed.bias));
        }
        let map = space.mapping(address)?;
        let name = map.name.to_string_lossy().into_owned();
        let kind = if map.file() {
            ObjectClass::File
        } else if map.name.is_empty() {
            ObjectClass::Mapped
        } else {
            ObjectClass::Unknown
        };
        Some(Lies::Mapping {
            kind,
            range: map.range.clone(),
            name,
        })
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    fn malloc(address: u64, size: u64) -> AllocationEvent {
        AllocationEvent {
            tsc: 0,
            thread: 1,
            action: AllocationAction::Allocated,
            function: AllocationFunction::Malloc,
            address,
            size,
            chain: 3,
            weight: 1.0,
        }
    }

    fn free(address: u64) -> AllocationEvent {
        AllocationEvent {
            action: AllocationAction::Freed,
            function: AllocationFunction::Free,
            ..malloc(address, 0)
        }
    }

    #[test]
    fn a_block_is_one_object_from_its_allocation_to_its_end() {
        let world = Mutex::new(World::default());
        let process = crate::lock(&world).image(u32::MAX, 0);
        let mut objects = Objects::new(Vec::new());
        objects.chain(process, 3, StackId(9));
        objects.apply(process, &malloc(0x1000, 100), 10);
        assert!(objects.take_changed().is_empty(), "nothing fell into it");
        let object = objects.at(&world, process, 0x1010, 20).unwrap();
        assert_eq!(objects.at(&world, process, 0x1063, 21), Some(object));
        assert_eq!(objects.at(&world, process, 0x1064, 21), None);
        let row = &objects.take_changed()[&object];
        assert_eq!((row.kind, row.name.as_str()), (ObjectClass::Heap, "malloc"));
        assert_eq!(
            (row.stack, row.allocated_ns, row.freed_ns),
            (Some(StackId(9)), Some(10), None)
        );
        objects.apply(process, &free(0x1000), 30);
        assert_eq!(objects.take_changed()[&object].freed_ns, Some(30));
        assert_eq!(objects.at(&world, process, 0x1010, 31), None);
        objects.apply(process, &malloc(0x1000, 100), 40);
        assert_ne!(objects.at(&world, process, 0x1010, 41), Some(object));
        let totals = objects.totals();
        assert_eq!(totals.len(), 1);
        assert_eq!(objects.chainless_events(), 0);
        assert_eq!(
            (totals[0].blocks, totals[0].freed, totals[0].lifetime_ns),
            (2, 1, 20)
        );
    }

    #[test]
    fn memory_between_sampled_blocks_is_taken_to_be_of_their_call_chain() {
        let world = Mutex::new(World::default());
        let process = crate::lock(&world).image(std::process::id(), 0);
        let heap = vec![1_u8; 4 << 20];
        let start = heap.as_ptr() as u64;
        let mut objects = Objects::new(Vec::new());
        objects.chain(process, 3, StackId(9));
        let before = objects.at(&world, process, start + 70_000, 5).unwrap();
        for block in 0..4 {
            let event = AllocationEvent {
                weight: 1000.0,
                ..malloc(start + 64_000 * block, 64)
            };
            objects.apply(process, &event, 10);
        }
        let recorded = objects.at(&world, process, start + 64_010, 20).unwrap();
        let between = objects.at(&world, process, start + 70_000, 20).unwrap();
        assert_eq!(
            objects.at(&world, process, start + 150_000, 21),
            Some(between)
        );
        assert!(between != recorded && between != before);
        // Too far from them: the mapping itself.
        let far = objects.at(&world, process, start + (3 << 20), 22);
        assert_eq!(far, Some(before));
        let rows = objects.take_changed();
        let (recorded, between) = (&rows[&recorded], &rows[&between]);
        assert_eq!(
            (between.kind, between.stack),
            (ObjectClass::Heap, recorded.stack)
        );
        assert!(between.is_unrecorded() && !recorded.is_unrecorded());
        assert_eq!(rows[&before].kind, ObjectClass::Mapped);
    }

    #[test]
    fn blocks_of_unknown_call_chains_are_counted_as_missing() {
        let world = Mutex::new(World::default());
        let process = crate::lock(&world).image(u32::MAX, 0);
        let mut objects = Objects::new(Vec::new());
        for block in 0..10 {
            let event = AllocationEvent {
                weight: 40.0,
                ..malloc(0x1000 * (block + 1), 100)
            };
            objects.apply(process, &event, block);
        }
        assert!(objects.totals().is_empty());
        assert_eq!(objects.chainless_events(), 10);
        objects.chain(process, 3, StackId(9));
        assert_eq!(objects.chainless_events(), 0);
        assert_eq!(objects.totals()[0].blocks, 400);
    }

    #[test]
    fn a_child_has_its_parent_s_blocks_until_it_frees_them() {
        let world = Mutex::new(World::default());
        let (parent, child) = {
            let mut world = crate::lock(&world);
            let parent = world.image(u32::MAX, 0);
            (parent, world.forked(u32::MAX, u32::MAX - 1, 15))
        };
        let mut objects = Objects::new(Vec::new());
        objects.apply(parent, &malloc(0x1000, 100), 10);
        let parents = objects.at(&world, parent, 0x1000, 20).unwrap();
        let childs = objects.at(&world, child, 0x1000, 20).unwrap();
        assert_ne!(parents, childs);
        assert_eq!(objects.at(&world, child, 0x1001, 20), Some(childs));
        objects.apply(child, &free(0x1000), 30);
        assert_eq!(objects.at(&world, child, 0x1000, 31), None);
        assert_eq!(objects.at(&world, parent, 0x1000, 31), Some(parents));
    }

    #[test]
    fn variables_stacks_and_mappings_of_this_process_are_told_apart() {
        static VARIABLE: [u64; 100] = [1; 100];
        let pid = std::process::id();
        let world = Mutex::new(World::default());
        let process = crate::lock(&world).image(pid, 0);
        let mut objects = Objects::new(Vec::new());
        let variable = VARIABLE.as_ptr() as u64;
        let object = objects.at(&world, process, variable, 1).unwrap();
        assert_eq!(objects.take_changed()[&object].kind, ObjectClass::Global);
        let local = 0_u64;
        let here = &raw const local as u64;
        {
            let mut world = crate::lock(&world);
            let thread = world.threads.of(process, pid, pid, 0);
            world.threads.set_stack(thread, here - 4096..here + 4096);
        }
        let object = objects.at(&world, process, here, 1).unwrap();
        let row = objects.take_changed()[&object].clone();
        assert_eq!((row.kind, row.size_bytes), (ObjectClass::Stack, 8192));
        assert!(row.thread.is_some());
        assert_eq!(objects.at(&world, process, 8, 1), None);
    }
}
