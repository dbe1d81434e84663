//! Converts accesses that processors sampled into rows.

use membound_import as import;
use membound_run::{
    AccessSampler, HardwareAccess, Operation, ServedBy, Snoop, StackId, ThreadId, Translation,
};

/// Time, thread and call chain of a sampled access.
#[derive(Clone, Copy, Debug)]
pub(super) struct At {
    pub(super) t_ns: u64,
    pub(super) thread: ThreadId,
    pub(super) cpu: Option<u16>,
    pub(super) stack: StackId,
    pub(super) period: u64,
}

/// Converts an access into a row.
pub(super) fn row(
    at: At,
    sampler: import::Sampler,
    access: &import::MemoryAccess,
) -> HardwareAccess {
    HardwareAccess {
        t_ns: at.t_ns,
        thread: at.thread,
        cpu: at.cpu,
        stack: at.stack,
        sampler: match sampler {
            import::Sampler::Pebs => AccessSampler::Pebs,
            import::Sampler::Ibs => AccessSampler::Ibs,
            import::Sampler::Spe => AccessSampler::Spe,
            import::Sampler::Other => AccessSampler::Other,
        },
        operation: match access.operation {
            import::Operation::Unknown => None,
            import::Operation::Load => Some(Operation::Load),
            import::Operation::Store => Some(Operation::Store),
            import::Operation::LoadStore => Some(Operation::LoadStore),
            import::Operation::Prefetch => Some(Operation::Prefetch),
            import::Operation::Execute => Some(Operation::Execute),
        },
        served: served(access.served),
        missed: access.missed.and_then(served),
        snoop: match access.snoop {
            import::Snoop::Unknown => None,
            import::Snoop::None => Some(Snoop::None),
            import::Snoop::Miss => Some(Snoop::Miss),
            import::Snoop::Hit => Some(Snoop::Hit),
            import::Snoop::Modified => Some(Snoop::Modified),
            import::Snoop::Forwarded => Some(Snoop::Forwarded),
        },
        translation: match access.translation {
            import::Translation::Unknown => None,
            import::Translation::L1 => Some(Translation::L1),
            import::Translation::L2 => Some(Translation::L2),
            import::Translation::Tlb => Some(Translation::Tlb),
            import::Translation::Walk => Some(Translation::Walk),
        },
        locked: access.locked,
        latency_cycles: access.latency_cycles,
        address: access.address,
        physical_address: access.physical_address,
        period: at.period,
    }
}

const fn served(served: import::Served) -> Option<ServedBy> {
    match served {
        import::Served::Unknown => None,
        import::Served::L1 => Some(ServedBy::L1),
        import::Served::LineFill => Some(ServedBy::LineFill),
        import::Served::L2 => Some(ServedBy::L2),
        import::Served::L3 => Some(ServedBy::L3),
        import::Served::L4 => Some(ServedBy::L4),
        import::Served::Cache => Some(ServedBy::Cache),
        import::Served::RemoteCache => Some(ServedBy::RemoteCache),
        import::Served::Dram => Some(ServedBy::Dram),
        import::Served::RemoteDram => Some(ServedBy::RemoteDram),
        import::Served::Persistent => Some(ServedBy::Persistent),
        import::Served::Cxl => Some(ServedBy::Cxl),
        import::Served::Device => Some(ServedBy::Device),
        import::Served::Uncached => Some(ServedBy::Uncached),
    }
}
