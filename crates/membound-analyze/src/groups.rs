//! Groups recorded objects: all heap blocks with one allocating call chain are one object to the reader.

use std::collections::BTreeMap;

use membound_run::{
    FrameId, LiveBytes, Object, ObjectClass, ObjectId, ProcessId, RunData, StackId, ThreadId,
};
use rustc_hash::FxHashMap;

use crate::object_group::Group;
use crate::places::Places;

/// Share of the bytes of one kind (heap, or mappings) from which on a call chain gets a row even if no
/// access to its objects was sampled.
///
/// Where blocks are sampled, the chain that allocates most may leave no other trace: an access is assigned
/// to an object only if its block was recorded.
const MIN_ALLOCATED_SHARE: f64 = 0.01;

/// Position in [`Groups::groups`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct GroupId(pub u32);

impl GroupId {
    pub(crate) const fn index(self) -> usize {
        self.0 as usize
    }
}

/// All groups of a run; the first holds all memory that could not be assigned to an object.
#[derive(Debug)]
pub(crate) struct Groups {
    pub groups: Vec<Group>,
    /// Group of each object, by [`ObjectId`].
    of_object: Vec<GroupId>,
    /// Groups of the call chains in [`RunData::live`].
    of_live: FxHashMap<(ObjectClass, StackId), GroupId>,
    /// Groups with at least [`MIN_ALLOCATED_SHARE`] of the bytes, sorted.
    most_allocated: Vec<GroupId>,
}

/// Identity of a call chain; chains that look alike in the source code share one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct ChainId(u32);

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum GroupKey<'a> {
    /// Allocated by a call chain.
    Chain(ObjectClass, ChainId),
    /// Allocated by an unknown call chain.
    Named(ObjectClass, &'a str),
    /// Variable: by module and address in it, or by its address in a process.
    Global(&'a str, Option<membound_run::ModuleId>, u64),
    Stack(ProcessId, Option<ThreadId>),
}

impl Groups {
    /// Group of memory that cannot be named.
    pub(crate) const UNKNOWN: GroupId = GroupId(0);

    /// Groups the objects of `run`.
    pub(crate) fn new(run: &RunData, places: &Places<'_>) -> Self {
        let mut building = Building::new(chains(run, places));
        let of_object = building.objects(run);
        // Memory without a recorded access still counts as consumed.
        let mut of_live: FxHashMap<(ObjectClass, StackId), GroupId> = FxHashMap::default();
        for live in &run.live {
            let kind = live_kind(live);
            of_live.entry((kind, live.stack)).or_insert_with(|| {
                let key = GroupKey::Chain(kind, building.chains[live.stack.index()]);
                building.group(key, kind, Some(live.stack))
            });
        }
        let most_allocated = most_allocated(run, &building.chains)
            .into_iter()
            .map(|(kind, chain, stack)| {
                building.group(GroupKey::Chain(kind, chain), kind, Some(stack))
            })
            .collect();
        building.allocations(run);
        let mut groups = building.groups;
        let lost_events = crate::lost_records::count(run, "objects");
        // A lost event may have been a block of any group that has an allocating call chain.
        for group in &mut groups {
            group.count_what_was_seen(run);
            if matches!(group.kind, ObjectClass::Heap | ObjectClass::Mapped)
                && group.stack.is_some()
            {
                group.lost_events = lost_events;
            }
        }
        crate::object_names::name(run, places, &mut groups);
        Self {
            groups,
            of_object,
            of_live,
            most_allocated,
        }
    }

    /// Groups with enough allocated bytes ([`MIN_ALLOCATED_SHARE`]) to get a row, accessed or not.
    pub(crate) fn most_allocated(&self) -> &[GroupId] {
        &self.most_allocated
    }

    /// Group of the memory that a call chain allocated.
    pub(crate) fn of_live(&self, live: &LiveBytes) -> Option<GroupId> {
        self.of_live.get(&(live_kind(live), live.stack)).copied()
    }

    pub(crate) fn of(&self, object: ObjectId) -> GroupId {
        self.of_object[object.index()]
    }

    pub(crate) fn get(&self, id: GroupId) -> &Group {
        &self.groups[id.index()]
    }

    pub(crate) fn len(&self) -> usize {
        self.groups.len()
    }
}

/// Groups that are being found.
struct Building<'a> {
    /// Chain of each recorded stack.
    chains: Vec<ChainId>,
    groups: Vec<Group>,
    ids: FxHashMap<GroupKey<'a>, GroupId>,
    by_chain: FxHashMap<ChainId, Vec<GroupId>>,
}

impl<'a> Building<'a> {
    fn new(chains: Vec<ChainId>) -> Self {
        Self {
            chains,
            groups: vec![Group::new(ObjectClass::Unknown, None)],
            ids: FxHashMap::default(),
            by_chain: FxHashMap::default(),
        }
    }

    /// The group with this key; a new one has this kind and stack.
    fn group(&mut self, key: GroupKey<'a>, kind: ObjectClass, stack: Option<StackId>) -> GroupId {
        let Self {
            groups,
            ids,
            by_chain,
            ..
        } = self;
        *ids.entry(key).or_insert_with(|| {
            let id = GroupId(groups.len() as u32);
            groups.push(Group::new(kind, stack));
            if let GroupKey::Chain(_, chain) = key {
                by_chain.entry(chain).or_default().push(id);
            }
            id
        })
    }

    /// Groups the recorded objects; returns the group of each.
    fn objects(&mut self, run: &'a RunData) -> Vec<GroupId> {
        let mut of_object = Vec::with_capacity(run.objects.len());
        for (index, object) in run.objects.iter().enumerate() {
            let key = match (object.kind, object.stack) {
                (ObjectClass::Unknown, _) => {
                    of_object.push(Groups::UNKNOWN);
                    continue;
                }
                (ObjectClass::Global, _) => global(run, object),
                (ObjectClass::Stack, _) => GroupKey::Stack(object.process, object.thread),
                (kind @ (ObjectClass::Heap | ObjectClass::Mapped), Some(stack)) => {
                    GroupKey::Chain(kind, self.chains[stack.index()])
                }
                (kind, _) => GroupKey::Named(kind, &object.name),
            };
            let group = self.group(key, object.kind, object.stack);
            if !object.is_unrecorded() {
                let objects = &mut self.groups[group.index()].objects;
                objects.push(ObjectId(index as u32));
            }
            of_object.push(group);
        }
        of_object
    }

    /// Adds the sums of all allocations to the groups of their call chains.
    fn allocations(&mut self, run: &RunData) {
        for allocations in &run.allocations {
            let mapped = is_mapping(&allocations.function);
            let ids = self.by_chain.get(&self.chains[allocations.stack.index()]);
            for id in ids.into_iter().flatten() {
                let group = &mut self.groups[id.index()];
                if (group.kind == ObjectClass::Mapped) == mapped {
                    group.blocks += allocations.blocks;
                    if let Some(variance) = allocations.blocks_variance {
                        *group.blocks_variance.get_or_insert(0.0) += variance;
                    }
                    group.total_bytes += allocations.bytes;
                    group.freed += allocations.freed;
                    group.lifetime_ns += allocations.lifetime_ns;
                }
            }
        }
    }
}

/// A variable is the same in all processes that have its module.
fn global<'a>(run: &RunData, object: &'a Object) -> GroupKey<'a> {
    let mapping = run.mappings.iter().find(|mapping| {
        mapping.process == object.process && (mapping.start..mapping.end).contains(&object.address)
    });
    GroupKey::Global(
        &object.name,
        mapping.map(|mapping| mapping.module),
        object
            .address
            .wrapping_sub(mapping.map_or(0, |mapping| mapping.bias)),
    )
}

/// Kind of the memory that a call chain allocated: mapped or heap.
fn live_kind(live: &LiveBytes) -> ObjectClass {
    if is_mapping(&live.function) {
        ObjectClass::Mapped
    } else {
        ObjectClass::Heap
    }
}

/// Kind and call chain of groups with at least [`MIN_ALLOCATED_SHARE`] of the bytes of their kind, each with
/// one of the chain's stacks.
fn most_allocated(run: &RunData, chains: &[ChainId]) -> Vec<(ObjectClass, ChainId, StackId)> {
    let mut sums: BTreeMap<(bool, ChainId), (u64, StackId)> = BTreeMap::new();
    let mut all: [u64; 2] = [0; 2];
    for it in &run.allocations {
        let mapped = is_mapping(&it.function);
        let chain = chains[it.stack.index()];
        let (bytes, _) = sums.entry((mapped, chain)).or_insert((0, it.stack));
        *bytes = bytes.saturating_add(it.bytes);
        all[usize::from(mapped)] = all[usize::from(mapped)].saturating_add(it.bytes);
    }
    let is_much = |mapped: bool, bytes: u64| {
        bytes > 0 && bytes as f64 >= MIN_ALLOCATED_SHARE * all[usize::from(mapped)] as f64
    };
    sums.into_iter()
        .filter(|((mapped, _), (bytes, _))| is_much(*mapped, *bytes))
        .map(|((mapped, chain), (_, stack))| {
            let kind = if mapped {
                ObjectClass::Mapped
            } else {
                ObjectClass::Heap
            };
            (kind, chain, stack)
        })
        .collect()
}

/// True if the allocation function `function` maps memory.
fn is_mapping(function: &str) -> bool {
    matches!(function, "mmap" | "mmap64" | "mremap" | "brk" | "sbrk")
}

/// What the reader sees of a function in a chain: its name, file and line.
type NamedLocation<'a> = (&'a str, Option<&'a str>, Option<u32>);

/// Chain identity of each stack, by [`StackId`]. Two calls in one source line count as one place, and so do
/// copies of a line that the compiler made.
fn chains(run: &RunData, places: &Places<'_>) -> Vec<ChainId> {
    let mut frames: FxHashMap<Vec<NamedLocation<'_>>, u32> = FxHashMap::default();
    let frame_ids: Vec<u32> = (0..run.frames.len() as u32)
        .map(|index| {
            let locations: Vec<_> = places
                .locations(FrameId(index))
                .filter(|at| !at.function.is_empty())
                .map(|at| (at.function.as_str(), at.file.as_deref(), at.line))
                .collect();
            let nameable = locations.iter().any(|(_, _, line)| line.is_some());
            if !nameable {
                // Only the address distinguishes such frames. They get even identities, named frames odd
                // ones, so that the two kinds never collide.
                return index << 1;
            }
            let next = frames.len() as u32;
            (*frames.entry(locations).or_insert(next) << 1) | 1
        })
        .collect();
    let mut chains: FxHashMap<(Option<ChainId>, u32), ChainId> = FxHashMap::default();
    let mut of_stack: Vec<ChainId> = Vec::with_capacity(run.stacks.len());
    for stack in &run.stacks {
        let parent = stack.parent.map(|parent| of_stack[parent.index()]);
        let next = ChainId(chains.len() as u32);
        let key = (parent, frame_ids[stack.frame.index()]);
        of_stack.push(*chains.entry(key).or_insert(next));
    }
    of_stack
}
