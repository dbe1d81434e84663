//! What may have perturbed a thread: switches, faults, and time stolen by a hypervisor.

use std::mem::MaybeUninit;
use std::ops::Sub;

use membound_types::CpuId;

use crate::{Root, affinity};

/// Counts of the calling thread since it began, or the difference of two readings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ThreadUsage {
    /// Switches because the time slice ended or another thread was preferred.
    pub involuntary_switches: u64,
    /// Switches because the thread waited.
    pub voluntary_switches: u64,
    /// Page faults that needed no I/O.
    pub minor_faults: u64,
    /// Page faults that needed I/O.
    pub major_faults: u64,
    /// Processor time in user mode, in microseconds.
    pub user_us: u64,
    /// Processor time in the kernel, in microseconds.
    pub system_us: u64,
}

impl ThreadUsage {
    /// The counts so far. One system call.
    #[must_use]
    pub fn now() -> Self {
        Self::of(libc::RUSAGE_THREAD)
    }

    /// The counts of all children of this process that have ended and were waited for.
    #[must_use]
    pub fn of_children() -> Self {
        Self::of(libc::RUSAGE_CHILDREN)
    }

    /// Processor time in both modes, in seconds.
    #[must_use]
    pub const fn cpu_s(&self) -> f64 {
        (self.user_us + self.system_us) as f64 * 1e-6
    }

    fn of(target: libc::c_int) -> Self {
        let mut usage = MaybeUninit::<libc::rusage>::zeroed();
        // SAFETY: the kernel writes one rusage into the place given; with a known `target`
        // and a valid place it cannot fail.
        unsafe { libc::getrusage(target, usage.as_mut_ptr()) };
        // SAFETY: all fields are integers, for which the zeroes from above are valid even
        // if a filter had refused the call.
        let usage = unsafe { usage.assume_init() };
        let count = |value: libc::c_long| u64::try_from(value).unwrap_or(0);
        let time = |value: libc::timeval| {
            u64::try_from(value.tv_sec).unwrap_or(0) * 1_000_000
                + u64::try_from(value.tv_usec).unwrap_or(0)
        };
        Self {
            involuntary_switches: count(usage.ru_nivcsw),
            voluntary_switches: count(usage.ru_nvcsw),
            minor_faults: count(usage.ru_minflt),
            major_faults: count(usage.ru_majflt),
            user_us: time(usage.ru_utime),
            system_us: time(usage.ru_stime),
        }
    }
}

impl Sub for ThreadUsage {
    type Output = Self;

    /// What happened between `earlier` and `self`.
    fn sub(self, earlier: Self) -> Self {
        let less = |now: u64, then: u64| now.saturating_sub(then);
        Self {
            involuntary_switches: less(self.involuntary_switches, earlier.involuntary_switches),
            voluntary_switches: less(self.voluntary_switches, earlier.voluntary_switches),
            minor_faults: less(self.minor_faults, earlier.minor_faults),
            major_faults: less(self.major_faults, earlier.major_faults),
            user_us: less(self.user_us, earlier.user_us),
            system_us: less(self.system_us, earlier.system_us),
        }
    }
}

/// Clock ticks during which these CPUs were busy, summed, since the machine was started. `None`
/// where the kernel does not report them.
#[must_use]
pub fn busy_ticks(root: &Root, cpus: &[CpuId]) -> Option<u64> {
    // The fields after the name are: user nice system idle iowait irq softirq.
    const BUSY: [usize; 5] = [1, 2, 3, 6, 7];
    let stat = root.read("proc/stat").ok()?;
    let mut sum = None;
    for line in stat.lines() {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let number = fields.first()?.strip_prefix("cpu");
        let cpu = number.and_then(|number| number.parse().ok()).map(CpuId);
        if cpu.is_some_and(|cpu| cpus.contains(&cpu)) {
            let ticks = |field: &usize| fields.get(*field)?.parse::<u64>().ok();
            *sum.get_or_insert(0) += BUSY.iter().filter_map(ticks).sum::<u64>();
        }
    }
    sum
}

/// Reads for how long CPUs were busy, with any work.
#[derive(Debug)]
pub struct BusyTime {
    root: Root,
    cpus: Vec<CpuId>,
    ns_per_tick: f64,
}

impl BusyTime {
    /// Of the CPUs that the calling thread may use; the kernel's counts are read below `root`.
    #[must_use]
    pub fn of_allowed(root: Root) -> Self {
        Self {
            root,
            cpus: affinity::allowed().unwrap_or_default(),
            ns_per_tick: 1e9 / clock_ticks_per_second().max(1) as f64,
        }
    }

    /// Number of the CPUs.
    #[must_use]
    pub const fn cpus(&self) -> usize {
        self.cpus.len()
    }

    /// Busy time of all these CPUs since the machine was started, in nanoseconds, in steps of a clock tick
    /// (mostly 10 ms). `None` where the kernel does not report it.
    #[must_use]
    pub fn ns(&self) -> Option<f64> {
        Some(busy_ticks(&self.root, &self.cpus)? as f64 * self.ns_per_tick)
    }
}

/// Clock ticks during which `cpu` was ready to run and the hypervisor ran something else, since the
/// machine was started. `None` where the kernel does not report them.
#[must_use]
pub fn steal_ticks(root: &Root, cpu: CpuId) -> Option<u64> {
    let stat = root.read("proc/stat").ok()?;
    let name = format!("cpu{cpu}");
    let line = stat
        .lines()
        .find(|line| line.split_whitespace().next() == Some(&name))?;
    // user nice system idle iowait irq softirq steal
    line.split_whitespace().nth(8)?.parse().ok()
}

/// Ticks per second of [`steal_ticks`] and [`busy_ticks`].
#[must_use]
pub fn clock_ticks_per_second() -> u64 {
    rustix::param::clock_ticks_per_second()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Tree;

    #[test]
    fn faults_of_this_thread_are_counted() {
        let before = ThreadUsage::now();
        let len = 64 * crate::pages::base_page_bytes();
        // A fresh mapping of its own, so that no page of it is there yet.
        let flags = rustix::mm::MapFlags::PRIVATE;
        let access = rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE;
        // SAFETY: the kernel chooses the address, so that nothing else is replaced.
        let place = unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), len, access, flags) }
            .unwrap();
        // SAFETY: the range is the mapping made above.
        unsafe { place.cast::<u8>().write_bytes(1, len) };
        // SAFETY: nothing refers to the mapping any more.
        unsafe { rustix::mm::munmap(place, len) }.unwrap();
        let spent = ThreadUsage::now() - before;
        assert!(spent.minor_faults >= 1, "{spent:?}");
    }

    #[test]
    fn steal_is_the_eighth_figure_of_the_right_line() {
        let tree = Tree::new().file(
            "proc/stat",
            "cpu  1 2 3 4 5 6 7 99 9 10\ncpu1 1 2 3 4 5 6 7 8 9 10\ncpu11 1 2 3 4 5 6 7 77 0 0\n",
        );
        assert_eq!(steal_ticks(&tree.root(), CpuId(1)), Some(8));
        assert_eq!(steal_ticks(&tree.root(), CpuId(11)), Some(77));
        assert_eq!(steal_ticks(&tree.root(), CpuId(2)), None);
    }

    #[test]
    fn busy_ticks_are_those_of_the_right_lines() {
        let tree = Tree::new().file(
            "proc/stat",
            "cpu  9 9 9 9 9 9 9 9 9 9\ncpu0 1 2 4 1000 1000 8 16 1000 9 9\ncpu1 100 0 0 7 7 0 0 0\n\
             cpu2 5 5 5 5 5 5 5\nintr 4 cpu1\n",
        );
        let busy = |cpus: &[u32]| {
            let cpus: Vec<CpuId> = cpus.iter().copied().map(CpuId).collect();
            busy_ticks(&tree.root(), &cpus)
        };
        assert_eq!(busy(&[0]), Some(31));
        assert_eq!(busy(&[0, 1]), Some(131));
        assert_eq!(busy(&[7]), None);
    }

    #[test]
    fn an_old_kernel_without_steal_gives_none() {
        let tree = Tree::new().file("proc/stat", "cpu0 1 2 3 4\n");
        assert_eq!(steal_ticks(&tree.root(), CpuId(0)), None);
    }
}
