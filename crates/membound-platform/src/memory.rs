//! How much memory a buffer may have: what is free, and what the limits of this process leave.

use crate::Root;
use crate::cgroup::{self, Group, Version};
use crate::numa::meminfo_bytes;

/// Limits of at least this size mean no limit: v1 writes the largest multiple of a page.
const UNLIMITED: u64 = 1 << 62;

/// Memory of the machine in bytes; 0 where procfs is not readable.
#[must_use]
pub fn total_bytes(root: &Root) -> u64 {
    let meminfo = root.read("proc/meminfo").unwrap_or_default();
    meminfo_bytes(&meminfo, "MemTotal:").unwrap_or(0)
}

/// Bytes that this process can still allocate without swapping, being killed or being refused: the
/// minimum of what the machine has available, what each cgroup on the way to the root leaves, and
/// what `RLIMIT_AS` and `RLIMIT_DATA` leave.
#[must_use]
pub fn available_bytes(root: &Root) -> u64 {
    let meminfo = root.read("proc/meminfo").unwrap_or_default();
    // MemAvailable is there since 3.14; MemFree is the safe lower figure before that.
    let machine = meminfo_bytes(&meminfo, "MemAvailable:")
        .or_else(|| meminfo_bytes(&meminfo, "MemFree:"))
        .unwrap_or(0);
    machine
        .min(cgroup_left(root).unwrap_or(u64::MAX))
        .min(rlimit_left(root).unwrap_or(u64::MAX))
}

/// Bytes that the tightest cgroup leaves; `None` where no cgroup limits this process.
#[must_use]
pub fn cgroup_left(root: &Root) -> Option<u64> {
    cgroup::visible_ancestors(root, "memory")
        .into_iter()
        .filter_map(|group| group_left(root, &group))
        .min()
}

/// Limit minus use of one group. Inactive file pages are reclaimed when the limit is reached, so
/// they count as free.
fn group_left(root: &Root, group: &Group) -> Option<u64> {
    let number = |name: &str| root.number::<u64>(group.dir.join(name));
    let (limit, usage, inactive) = match group.version {
        Version::One => (
            number("memory.limit_in_bytes"),
            number("memory.usage_in_bytes"),
            "total_inactive_file",
        ),
        Version::Two => (
            // Beyond `high` the group is slowed down to a crawl, so it is a limit too.
            [number("memory.max"), number("memory.high")]
                .into_iter()
                .flatten()
                .min(),
            number("memory.current"),
            "inactive_file",
        ),
    };
    let limit = limit.filter(|&bytes| bytes < UNLIMITED)?;
    let stat = root.read(group.dir.join("memory.stat")).unwrap_or_default();
    let reclaimable = stat
        .lines()
        .find_map(|line| line.strip_prefix(inactive)?.trim().parse::<u64>().ok())
        .unwrap_or(0);
    let used = usage.unwrap_or(0).saturating_sub(reclaimable);
    Some(limit.saturating_sub(used))
}

/// Bytes that the limits on address space and data leave; `None` where there are no limits.
fn rlimit_left(root: &Root) -> Option<u64> {
    let limits = Limits::read(root, "self")?;
    let status = root.read("proc/self/status").ok()?;
    let left = |limit: Option<u64>, used: &str| {
        Some(limit?.saturating_sub(meminfo_bytes(&status, used).unwrap_or(0)))
    };
    [
        left(limits.address_space, "VmSize:"),
        left(limits.data, "VmData:"),
    ]
    .into_iter()
    .flatten()
    .min()
}

/// Soft limits on the memory of a process in bytes; `None` where there is no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// `RLIMIT_AS`: of its address space.
    pub address_space: Option<u64>,
    /// `RLIMIT_DATA`: of its private memory that it can write.
    pub data: Option<u64>,
}

impl Limits {
    /// Those of process `pid`; `None` if it is gone.
    #[must_use]
    pub fn of(root: &Root, pid: u32) -> Option<Self> {
        Self::read(root, &pid.to_string())
    }

    fn read(root: &Root, process: &str) -> Option<Self> {
        let limits = root.read(format!("proc/{process}/limits")).ok()?;
        let soft = |name: &str| {
            let line = limits.lines().find_map(|line| line.strip_prefix(name))?;
            line.split_whitespace().next()?.parse().ok()
        };
        Some(Self {
            address_space: soft("Max address space"),
            data: soft("Max data size"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Tree;

    const MIB: u64 = 1 << 20;

    fn machine() -> Tree {
        Tree::new().file(
            "proc/meminfo",
            "MemTotal:       8388608 kB\nMemFree:  1048576 kB\nMemAvailable: 4194304 kB\n",
        )
    }

    #[test]
    fn without_limits_it_is_the_memory_of_the_machine() {
        let tree = machine();
        assert_eq!(total_bytes(&tree.root()), 8192 * MIB);
        assert_eq!(available_bytes(&tree.root()), 4096 * MIB);
    }

    #[test]
    fn the_tightest_ancestor_group_counts_v2() {
        let tree = machine()
            .file("proc/self/cgroup", "0::/a/b\n")
            .file(
                "proc/self/mountinfo",
                "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw\n",
            )
            .file("sys/fs/cgroup/a/memory.max", format!("{}\n", 512 * MIB))
            .file("sys/fs/cgroup/a/memory.current", format!("{}\n", 200 * MIB))
            .file(
                "sys/fs/cgroup/a/memory.stat",
                format!("anon 5\ninactive_file {}\nactive_file 9\n", 100 * MIB),
            )
            .file("sys/fs/cgroup/a/b/memory.max", "max\n")
            .file("sys/fs/cgroup/a/b/memory.high", format!("{}\n", 1024 * MIB))
            .file("sys/fs/cgroup/a/b/memory.current", "0\n");
        assert_eq!(available_bytes(&tree.root()), 412 * MIB);
    }

    #[test]
    fn a_container_sees_its_own_group_at_the_mount_v1() {
        let tree = machine()
            .file(
                "proc/self/cgroup",
                "5:cpu:/docker/x\n4:memory:/docker/x\n0::/docker/x\n",
            )
            .file(
                "proc/self/mountinfo",
                "35 31 0:32 /docker/x /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n",
            )
            .file(
                "sys/fs/cgroup/memory/memory.limit_in_bytes",
                format!("{}\n", 256 * MIB),
            )
            .file(
                "sys/fs/cgroup/memory/memory.usage_in_bytes",
                format!("{}\n", 56 * MIB),
            );
        assert_eq!(available_bytes(&tree.root()), 200 * MIB);
    }

    #[test]
    fn an_unlimited_v1_group_is_no_limit() {
        let tree = machine()
            .file("proc/self/cgroup", "4:memory:/\n")
            .file(
                "proc/self/mountinfo",
                "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n",
            )
            .file(
                "sys/fs/cgroup/memory/memory.limit_in_bytes",
                "9223372036854771712\n",
            )
            .file("sys/fs/cgroup/memory/memory.usage_in_bytes", "4096\n");
        assert_eq!(cgroup_left(&tree.root()), None);
    }

    #[test]
    fn limits_of_the_process_count() {
        let tree = machine()
            .file(
                "proc/self/limits",
                "Limit                     Soft Limit           Hard Limit           Units\n\
                 Max data size             unlimited            unlimited            bytes\n\
                 Max address space         1073741824           unlimited            bytes\n",
            )
            .file("proc/self/status", "VmSize:\t  24576 kB\nVmData:\t 1 kB\n");
        assert_eq!(available_bytes(&tree.root()), 1000 * MIB);
    }

    #[test]
    fn this_machine_has_memory() {
        let available = available_bytes(&Root::system());
        assert!(available > 0 && available <= total_bytes(&Root::system()));
    }
}
