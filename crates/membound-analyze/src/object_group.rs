//! Recorded objects that the reader sees as one, with their sizes and counts.

use membound_run::{ObjectClass, ObjectId, RunData, StackId};

/// Recorded objects that the reader sees as one.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    pub kind: ObjectClass,
    /// Recorded objects of the group, in the order of the run.
    pub objects: Vec<ObjectId>,
    /// Call chain of the allocation, taken from the first object.
    pub stack: Option<StackId>,
    /// Size of one block: if they differ, the median of the recorded ones, or the mean of all if the recorded
    /// ones are not like the others.
    pub size_bytes: u64,
    /// Number of blocks that the chain allocated.
    pub blocks: u64,
    /// Variance of `blocks`, if blocks were sampled.
    pub blocks_variance: Option<f64>,
    /// Allocation events of the run that were lost. Each may have been a block of this group.
    pub lost_events: u64,
    pub total_bytes: u64,
    pub freed: u64,
    pub lifetime_ns: u64,
    pub name: String,
}

impl Group {
    pub(crate) fn new(kind: ObjectClass, stack: Option<StackId>) -> Self {
        Self {
            kind,
            objects: Vec::new(),
            stack,
            size_bytes: 0,
            blocks: 0,
            blocks_variance: None,
            lost_events: 0,
            total_bytes: 0,
            freed: 0,
            lifetime_ns: 0,
            name: String::new(),
        }
    }

    /// Bounds of the number of blocks with 95 % confidence; `None` if all blocks were recorded.
    pub(crate) fn blocks_interval(&self) -> Option<(u64, u64)> {
        const DEVIATIONS: f64 = 1.96;
        if self.blocks_variance.is_none() && self.lost_events == 0 {
            return None;
        }
        let variance = self.blocks_variance.unwrap_or(0.0);
        let half_interval = (DEVIATIONS * variance.sqrt()).ceil() as u64;
        // A recorded event represents this many blocks: the variance is the sum of weight · (weight − 1).
        let weight = 1.0 + variance / self.blocks.max(1) as f64;
        let lost = (self.lost_events as f64 * weight).ceil() as u64;
        let recorded = self.objects.len() as u64;
        let low = self.blocks.saturating_sub(half_interval).max(recorded);
        let high = self
            .blocks
            .saturating_add(half_interval)
            .saturating_add(lost);
        Some((low.min(self.blocks), high))
    }

    /// Sets the sizes, and the counts if allocations were not counted separately.
    pub(crate) fn count_what_was_seen(&mut self, run: &RunData) {
        let mut sizes: Vec<u64> = Vec::with_capacity(self.objects.len());
        let (mut weight, mut bytes) = (0.0, 0.0);
        for object in self.objects.iter().map(|id| &run.objects[id.index()]) {
            sizes.push(object.size_bytes);
            weight += object.weight;
            bytes += object.weight * object.size_bytes as f64;
        }
        sizes.sort_unstable();
        if self.blocks == 0 {
            self.blocks = weight.round() as u64;
            self.total_bytes = bytes.round() as u64;
            for object in self.objects.iter().map(|id| &run.objects[id.index()]) {
                if let (Some(from), Some(to)) = (object.allocated_ns, object.freed_ns) {
                    self.freed += 1;
                    self.lifetime_ns += to.saturating_sub(from);
                }
            }
        }
        let mean = self.total_bytes.checked_div(self.blocks).unwrap_or(0);
        // No median exceeds twice the mean: then mostly large blocks were recorded, of many small ones.
        let median = sizes.get(sizes.len() / 2).copied();
        self.size_bytes = median
            .filter(|median| *median <= 2 * mean || mean == 0)
            .unwrap_or(mean);
    }
}
