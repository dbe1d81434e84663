//! Fields of `/proc/PID/stat` of a process, and of `/proc/PID/task/TID/stat` of a thread.

use std::io;
use std::str::FromStr;

use crate::kernel_file;

/// A line of such a file, whose fields `proc(5)` numbers from 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stat {
    name: String,
    /// The fields from [`Self::STATE`] on.
    fields: Vec<String>,
}

impl Stat {
    const STATE: usize = 3;
    const PARENT: usize = 4;
    const USER: usize = 14;
    const SYSTEM: usize = 15;
    const STARTED: usize = 22;
    const CPU: usize = 39;
    const HEAP: usize = 47;

    /// Reads the line of a process.
    ///
    /// # Errors
    /// When the process is gone.
    pub fn of(pid: u32) -> io::Result<Self> {
        let text = kernel_file::read(format!("/proc/{pid}/stat"))?;
        Self::parse(&text).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// Parses such a line; `None` if it is cut off before the state.
    #[must_use]
    pub fn parse(text: &[u8]) -> Option<Self> {
        let text = String::from_utf8_lossy(text);
        // A name may contain any characters, so the last `) ` ends it.
        let (before, rest) = text.rsplit_once(") ")?;
        let (_, name) = before.split_once('(')?;
        let fields: Vec<String> = rest.split_ascii_whitespace().map(str::to_owned).collect();
        let is_whole = fields.first().is_some_and(|state| state.len() == 1);
        is_whole.then(|| Self {
            name: name.to_owned(),
            fields,
        })
    }

    /// Name of the process or thread, up to its first 15 bytes.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// One letter: `R` if it runs or is runnable, `Z` and `X` if it has ended.
    #[must_use]
    pub fn state(&self) -> char {
        let state = self.fields.first().and_then(|state| state.chars().next());
        state.unwrap_or('?')
    }

    /// Whether it has ended; its parent may not have waited for it yet.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        matches!(self.state(), 'Z' | 'X')
    }

    /// Whether a signal or a debugger has stopped it.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        matches!(self.state(), 'T' | 't')
    }

    /// Number of the parent process.
    #[must_use]
    pub fn parent(&self) -> Option<u32> {
        self.field(Self::PARENT)
    }

    /// CPU time that it has used, in the kernel's clock ticks.
    #[must_use]
    pub fn cpu_ticks(&self) -> Option<u64> {
        let user: u64 = self.field(Self::USER)?;
        Some(user.saturating_add(self.field(Self::SYSTEM)?))
    }

    /// The part of [`Self::cpu_ticks`] that it has spent in the kernel.
    #[must_use]
    pub fn kernel_ticks(&self) -> Option<u64> {
        self.field(Self::SYSTEM)
    }

    /// Start time, as [`started`] returns it.
    #[must_use]
    pub fn started(&self) -> Option<u64> {
        self.field(Self::STARTED)
    }

    /// The CPU that it runs on or ran on last.
    #[must_use]
    pub fn cpu(&self) -> Option<u32> {
        self.field(Self::CPU)
    }

    /// Address at which the heap that `brk` moves begins; 0 where the kernel hides it.
    #[must_use]
    pub fn heap_start(&self) -> Option<u64> {
        self.field(Self::HEAP)
    }

    fn field<T: FromStr>(&self, number: usize) -> Option<T> {
        self.fields.get(number - Self::STATE)?.parse().ok()
    }
}

/// Start time of a process, in the kernel's clock ticks since boot: unique together with the PID.
///
/// # Errors
/// When the process is gone.
pub fn started(pid: u32) -> io::Result<u64> {
    let started = Stat::of(pid)?.started();
    started.ok_or_else(|| io::ErrorKind::InvalidData.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_with_any_name_are_parsed() {
        let rest: Vec<String> = (4..=52).map(|field| field.to_string()).collect();
        let line = format!("77 (a) Z (b) T {}\n", rest.join(" "));
        let stat = Stat::parse(line.as_bytes()).unwrap();
        assert_eq!((stat.name(), stat.state()), ("a) Z (b", 'T'));
        assert!(stat.is_stopped() && !stat.has_ended());
        assert_eq!(stat.parent(), Some(4));
        assert_eq!(stat.cpu_ticks(), Some(14 + 15));
        assert_eq!(stat.kernel_ticks(), Some(15));
        assert_eq!(stat.started(), Some(22));
        assert_eq!(stat.cpu(), Some(39));
        assert_eq!(stat.heap_start(), Some(47));
    }

    #[test]
    fn truncated_lines_lack_fields() {
        for cut in ["", "77 (a", "77 (a)", "77 (a) ", "77 a Z"] {
            assert_eq!(Stat::parse(cut.as_bytes()), None, "{cut}");
        }
        let stat = Stat::parse(b"77 (a) Z 1").unwrap();
        assert!(stat.has_ended());
        assert_eq!((stat.parent(), stat.started()), (Some(1), None));
    }

    #[test]
    fn this_process_runs_and_has_a_parent() {
        let stat = Stat::of(std::process::id()).unwrap();
        assert!(!stat.has_ended() && !stat.is_stopped());
        assert!(stat.parent().is_some() && stat.started().is_some());
        assert!(Stat::of(u32::MAX).is_err());
    }
}
