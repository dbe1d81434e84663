//! Threads of all processes: names, starts, ends, CPU time, stacks.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::ops::Range;

use membound_platform::threads::Scheduled;
use membound_run::{ProcessId, Thread, ThreadId};
use rustc_hash::FxHashMap;

/// All threads of a run.
#[derive(Debug, Default)]
pub(crate) struct Threads {
    numbers: FxHashMap<(ProcessId, u32), ThreadId>,
    all: Vec<Known>,
    /// Threads whose rows are to be written (again).
    changed: BTreeSet<ThreadId>,
    /// Stacks by process and first address: end, and thread.
    stacks: FxHashMap<ProcessId, BTreeMap<u64, (u64, ThreadId)>>,
    /// CPU time that threads had taken before recording attached to them, by the kernel's numbers of process
    /// and thread.
    before_ns: FxHashMap<(u32, u32), u64>,
}

#[derive(Debug)]
struct Known {
    row: Thread,
    /// Range of its stack, from the stack pointers of samples.
    stack: Option<Range<u64>>,
    named_by: NamedBy,
}

/// Source of a thread's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NamedBy {
    /// `/proc`, which has to be read again to notice changes.
    Proc,
    /// The kernel's events for new threads and for changed names.
    Events,
}

impl Threads {
    /// The number of a thread, which is added if it is new. Its name is then read from `/proc`.
    pub(crate) fn of(&mut self, process: ProcessId, pid: u32, tid: u32, t_ns: u64) -> ThreadId {
        self.known(process, tid).unwrap_or_else(|| {
            let name = name_of(pid, tid).unwrap_or_default();
            self.add(process, tid, t_ns, name, NamedBy::Proc)
        })
    }

    /// The number of a thread that `maker` has just started. It has its maker's name until an event reports
    /// another; if the maker is not known, its name is read as in [`Self::of`].
    pub(crate) fn made(
        &mut self,
        process: ProcessId,
        (pid, tid): (u32, u32),
        maker: Option<ThreadId>,
        t_ns: u64,
    ) -> ThreadId {
        if let Some(number) = self.known(process, tid) {
            return number;
        }
        let name = maker
            .and_then(|maker| self.row(maker))
            .map(|maker| maker.name.clone())
            .filter(|name| !name.is_empty());
        match name {
            Some(name) => self.add(process, tid, t_ns, name, NamedBy::Events),
            None => self.of(process, pid, tid, t_ns),
        }
    }

    /// The number of a thread that an event names; it is added if it is new.
    pub(crate) fn named(
        &mut self,
        process: ProcessId,
        tid: u32,
        name: &[u8],
        t_ns: u64,
    ) -> ThreadId {
        let thread = self
            .known(process, tid)
            .unwrap_or_else(|| self.add(process, tid, t_ns, String::new(), NamedBy::Events));
        self.name(thread, name);
        thread
    }

    fn add(
        &mut self,
        process: ProcessId,
        tid: u32,
        t_ns: u64,
        name: String,
        named_by: NamedBy,
    ) -> ThreadId {
        let number = ThreadId(u32::try_from(self.all.len()).unwrap_or(u32::MAX));
        self.numbers.insert((process, tid), number);
        self.all.push(Known {
            row: Thread {
                process,
                tid,
                name,
                start_ns: t_ns,
                end_ns: None,
                cpu_ns: None,
            },
            stack: None,
            named_by,
        });
        self.changed.insert(number);
        number
    }

    /// The number of a thread that was added before.
    pub(crate) fn known(&self, process: ProcessId, tid: u32) -> Option<ThreadId> {
        self.numbers.get(&(process, tid)).copied()
    }

    /// The row of a thread.
    pub(crate) fn row(&self, thread: ThreadId) -> Option<&Thread> {
        self.all.get(thread.index()).map(|known| &known.row)
    }

    /// Sets a thread's name.
    pub(crate) fn name(&mut self, thread: ThreadId, name: &[u8]) {
        let name = String::from_utf8_lossy(name);
        self.change(thread, |row| {
            let differs = row.name != name;
            if differs {
                row.name = name.into_owned();
            }
            differs
        });
    }

    /// Notes a thread's end.
    pub(crate) fn end(&mut self, thread: ThreadId, t_ns: u64) {
        self.change(thread, |row| row.end_ns.replace(t_ns).is_none());
    }

    /// Sets a thread's CPU time, as the kernel counts it; a lower value is ignored.
    pub(crate) fn ran(&mut self, thread: ThreadId, cpu_ns: u64) {
        self.change(thread, |row| {
            let more = row.cpu_ns.is_none_or(|known| known < cpu_ns);
            if more {
                row.cpu_ns = Some(cpu_ns);
            }
            more
        });
    }

    /// Range of a thread's stack, as far as it is known.
    pub(crate) fn stack(&self, thread: ThreadId) -> Option<&Range<u64>> {
        self.all.get(thread.index())?.stack.as_ref()
    }

    /// Sets the range of a thread's stack.
    pub(crate) fn set_stack(&mut self, thread: ThreadId, stack: Range<u64>) {
        let Some(known) = self.all.get_mut(thread.index()) else {
            return;
        };
        let of_process = self.stacks.entry(known.row.process).or_default();
        if let Some(old) = known.stack.take()
            && of_process
                .get(&old.start)
                .is_some_and(|(_, whose)| *whose == thread)
        {
            of_process.remove(&old.start);
        }
        of_process.insert(stack.start, (stack.end, thread));
        known.stack = Some(stack);
    }

    /// The thread of a process whose stack contains an address; of several with the same range, the one set
    /// last.
    pub(crate) fn on_stack(&self, process: ProcessId, address: u64) -> Option<ThreadId> {
        let (_, (end, thread)) = self.stacks.get(&process)?.range(..=address).next_back()?;
        (address < *end).then_some(*thread)
    }

    /// Excludes the CPU time that a process's threads have taken until now: recording attaches to them now.
    pub(crate) fn begin_at_present(&mut self, pid: u32) {
        for tid in tids(pid) {
            if let Some(cpu_ns) = cpu_ns(pid, tid) {
                self.before_ns.insert((pid, tid), cpu_ns);
            }
        }
    }

    /// The part of a thread's CPU time that was taken since recording began.
    fn recorded_ns(&mut self, pid: u32, tid: u32, cpu_ns: u64) -> u64 {
        match self.before_ns.get(&(pid, tid)) {
            Some(before_ns) if cpu_ns >= *before_ns => cpu_ns - before_ns,
            Some(_) => {
                // A new thread has the number of one that has ended.
                self.before_ns.remove(&(pid, tid));
                cpu_ns
            }
            None => cpu_ns,
        }
    }

    /// Reads names and CPU time of all threads of a process from `/proc`.
    pub(crate) fn look(&mut self, process: ProcessId, pid: u32, t_ns: u64) {
        for tid in tids(pid) {
            let Some(cpu_ns) = cpu_ns(pid, tid) else {
                continue;
            };
            let cpu_ns = self.recorded_ns(pid, tid, cpu_ns);
            let thread = self.of(process, pid, tid, t_ns);
            self.ran(thread, cpu_ns);
            if self.is_named_by_proc(thread)
                && let Some(name) = name_of(pid, tid)
            {
                self.name(thread, name.as_bytes());
            }
        }
    }

    /// Events were lost, which may have reported names: all known threads' names are read from `/proc` again.
    pub(crate) fn events_were_lost(&mut self) {
        for known in &mut self.all {
            known.named_by = NamedBy::Proc;
        }
    }

    fn is_named_by_proc(&self, thread: ThreadId) -> bool {
        let known = self.all.get(thread.index());
        known.is_some_and(|known| known.named_by == NamedBy::Proc)
    }

    fn change(&mut self, thread: ThreadId, change: impl FnOnce(&mut Thread) -> bool) {
        if let Some(known) = self.all.get_mut(thread.index())
            && change(&mut known.row)
        {
            self.changed.insert(thread);
        }
    }

    /// Rows that are new or changed since the last call.
    pub(crate) fn take_changed(&mut self) -> Vec<(ThreadId, Thread)> {
        let changed = std::mem::take(&mut self.changed);
        let row = |thread: ThreadId| Some((thread, self.row(thread)?.clone()));
        changed.into_iter().filter_map(row).collect()
    }
}

/// The kernel's numbers of a process's threads.
fn tids(pid: u32) -> impl Iterator<Item = u32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task"));
    let tasks = tasks.into_iter().flatten().flatten();
    tasks.filter_map(|task| task.file_name().to_str()?.parse().ok())
}

fn cpu_ns(pid: u32, tid: u32) -> Option<u64> {
    Some(Scheduled::of(pid, tid)?.cpu_ns)
}

fn name_of(pid: u32, tid: u32) -> Option<String> {
    let name = fs::read(format!("/proc/{pid}/task/{tid}/comm")).ok()?;
    Some(String::from_utf8_lossy(name.trim_ascii_end()).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_are_told_once_and_again_when_they_change() {
        let mut threads = Threads::default();
        let process = ProcessId(0);
        let thread = threads.of(process, u32::MAX, 5, 10);
        assert_eq!(threads.of(process, u32::MAX, 5, 20), thread);
        assert_ne!(threads.of(ProcessId(1), u32::MAX, 5, 20), thread);
        assert_eq!(threads.take_changed().len(), 2);
        threads.name(thread, b"worker");
        threads.name(thread, b"worker");
        threads.ran(thread, 50);
        threads.ran(thread, 40);
        let changed = threads.take_changed();
        assert_eq!(changed.len(), 1);
        assert_eq!(
            (changed[0].1.name.as_str(), changed[0].1.cpu_ns),
            ("worker", Some(50))
        );
        assert!(threads.take_changed().is_empty());
        threads.end(thread, 99);
        threads.end(thread, 100);
        assert_eq!(threads.take_changed().len(), 1);
    }

    #[test]
    fn a_new_thread_has_its_maker_s_name_until_it_is_given_another() {
        // Numbers above the largest that the kernel gives: nothing can be read of them.
        let (process, pid) = (ProcessId(0), 5_000_000);
        let mut threads = Threads::default();
        let name = |threads: &Threads, thread| threads.row(thread).unwrap().name.clone();
        let main = threads.named(process, pid, b"server", 0);
        let first = threads.made(process, (pid, pid + 1), Some(main), 10);
        assert_eq!(name(&threads, first), "server");
        assert!(!threads.is_named_by_proc(first));
        assert_eq!(threads.named(process, pid + 1, b"worker", 20), first);
        let second = threads.made(process, (pid, pid + 2), Some(first), 30);
        assert_eq!(name(&threads, second), "worker");
        assert_eq!(name(&threads, main), "server");
        threads.events_were_lost();
        assert!(threads.is_named_by_proc(second));
        // Nothing is known of the maker.
        let third = threads.made(process, (pid, pid + 3), None, 40);
        assert!(threads.is_named_by_proc(third));
        assert_eq!(
            threads.made(process, (pid, pid + 3), Some(first), 50),
            third
        );
    }

    #[test]
    fn the_latest_thread_with_a_stack_there_has_it() {
        let mut threads = Threads::default();
        let first = threads.of(ProcessId(0), u32::MAX, 1, 0);
        let second = threads.of(ProcessId(0), u32::MAX, 2, 0);
        threads.set_stack(first, 100..200);
        assert_eq!(threads.on_stack(ProcessId(0), 150), Some(first));
        threads.set_stack(second, 100..200);
        assert_eq!(threads.on_stack(ProcessId(0), 150), Some(second));
        assert_eq!(threads.on_stack(ProcessId(1), 150), None);
        assert_eq!(threads.on_stack(ProcessId(0), 200), None);
    }

    #[test]
    fn time_before_recording_was_attached_is_left_out() {
        let pid = std::process::id();
        let mut threads = Threads::default();
        threads.before_ns.insert((pid, 7), 1_000);
        assert_eq!(threads.recorded_ns(pid, 7, 1_250), 250);
        assert_eq!(threads.recorded_ns(pid, 8, 1_250), 1_250);
        // Another thread has the number now.
        assert_eq!(threads.recorded_ns(pid, 7, 900), 900);
        assert_eq!(threads.recorded_ns(pid, 7, 1_100), 1_100);
        threads.begin_at_present(pid);
        assert!(threads.before_ns.contains_key(&(pid, pid)));
    }

    #[test]
    fn this_thread_s_time_is_known() {
        let pid = std::process::id();
        let mut threads = Threads::default();
        threads.look(ProcessId(0), pid, 0);
        let main = threads.known(ProcessId(0), pid).unwrap();
        assert!(threads.row(main).unwrap().cpu_ns.is_some());
    }
}
