//! The threads of a process, and the CPUs that they ran on last.

use membound_types::CpuId;

use crate::Root;
use crate::stat::Stat;

/// A thread of a process, as the kernel reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Thread {
    /// Thread number.
    pub id: u32,
    /// Name, up to its first 15 bytes.
    pub name: String,
    /// Whether it runs or is runnable.
    pub runs: bool,
    /// CPU time that it has used, in the kernel's clock ticks.
    pub ticks: u64,
    /// The CPU that it runs on or ran on last.
    pub cpu: CpuId,
}

/// The threads of a process, by number. Threads that end meanwhile are left out; a process that
/// does not exist has none.
#[must_use]
pub fn of(root: &Root, pid: u32) -> Vec<Thread> {
    let tasks = format!("proc/{pid}/task");
    root.numbered(&tasks, "")
        .into_iter()
        .filter_map(|id| thread(id, &root.read(format!("{tasks}/{id}/stat")).ok()?))
        .collect()
}

/// Numbers of the threads of a process, ascending; none if the process does not exist.
#[must_use]
pub fn ids(root: &Root, pid: u32) -> Vec<u32> {
    root.numbered(format!("proc/{pid}/task"), "")
}

/// Parses the line of a thread in `stat`.
fn thread(id: u32, stat: &str) -> Option<Thread> {
    let stat = Stat::parse(stat.as_bytes())?;
    Some(Thread {
        id,
        name: stat.name().to_owned(),
        runs: stat.state() == 'R',
        ticks: stat.cpu_ticks()?,
        cpu: CpuId(stat.cpu()?),
    })
}

/// The scheduler's statistics of a thread since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scheduled {
    /// Its CPU time, in nanoseconds.
    pub cpu_ns: u64,
    /// Time for which it was runnable without a CPU, in nanoseconds.
    pub waited_ns: u64,
    /// Number of times that it was given a CPU.
    pub switches: u64,
}

impl Scheduled {
    /// Reads those of a thread of a process; `None` if it has ended or may not be read.
    #[must_use]
    pub fn of(pid: u32, thread: u32) -> Option<Self> {
        let text = std::fs::read_to_string(format!("/proc/{pid}/task/{thread}/schedstat")).ok()?;
        let mut numbers = text.split_ascii_whitespace().map(str::parse);
        Some(Self {
            cpu_ns: numbers.next()?.ok()?,
            waited_ns: numbers.next()?.ok()?,
            switches: numbers.next()?.ok()?,
        })
    }
}

/// Statistics of the threads of these processes, by process and thread number: of the first `most` processes, and
/// of the first `most` threads of each. Threads that end meanwhile are left out.
pub fn scheduled(
    root: &Root,
    pids: impl IntoIterator<Item = u32>,
    most: usize,
) -> impl Iterator<Item = ((u32, u32), Scheduled)> {
    let threads = pids.into_iter().take(most).flat_map(move |pid| {
        let ids = ids(root, pid).into_iter().take(most);
        ids.map(move |id| (pid, id))
    });
    threads.filter_map(|(pid, id)| Some(((pid, id), Scheduled::of(pid, id)?)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Tree;

    #[test]
    fn a_name_may_hold_anything() {
        let rest = "1 2 3 0 -1 4194304 5 0 0 0 30 12 0 0 20 0 2 0 99 1 2 3 4 5 6 7 8 9 0 0 0 0 0 0 \
                    17 6 0 0 0 0 0\n";
        let tree = Tree::new()
            .file("proc/7/task/7/stat", format!("7 (a) R (b) S {rest}"))
            .file("proc/7/task/9/stat", format!("9 (worker) R {rest}"))
            .file("proc/7/task/10/stat", "10 (cut");
        let found = of(&tree.root(), 7);
        let [first, second] = &found[..] else {
            panic!("{found:?}");
        };
        assert_eq!(
            (first.id, first.name.as_str(), first.runs),
            (7, "a) R (b", false)
        );
        assert_eq!(
            (second.ticks, second.cpu, second.runs),
            (42, CpuId(6), true)
        );
        assert_eq!(of(&tree.root(), 8), []);
    }

    #[test]
    fn the_calling_process_runs() {
        let found = of(&Root::system(), std::process::id());
        assert!(found.iter().any(|thread| thread.runs), "{found:?}");
    }
}
