//! Finds when the command itself ended, where its process continues for scavengers that are to finish.
//!
//! The agent closes all descriptors of the command at its end, and keeps the process until the last scavenger
//! has finished: the command ended when the process first has no open descriptor.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Time between two polls. Each reads a directory of some entries, about 10 µs.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// A thread that waits for the end of the command.
#[derive(Debug)]
pub(super) struct EndWatch {
    is_over: Arc<AtomicBool>,
    thread: JoinHandle<Option<Duration>>,
}

impl EndWatch {
    /// Watches the process `pid`, which was started at `start`.
    pub(super) fn begin(pid: u32, start: Instant) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let over = Arc::clone(&is_over);
        let thread = std::thread::spawn(move || {
            while !over.load(Ordering::Relaxed) {
                if has_no_descriptor(pid) {
                    return Some(start.elapsed());
                }
                std::thread::sleep(POLL_INTERVAL);
            }
            None
        });
        Self { is_over, thread }
    }

    /// Stops the thread. Returns the time from the start of the command to its end; `None` where the process
    /// ended with it.
    pub(super) fn end(self) -> Option<Duration> {
        self.is_over.store(true, Ordering::Relaxed);
        self.thread.join().ok().flatten()
    }
}

/// Whether the process exists, is readable, and has no open descriptor.
fn has_no_descriptor(pid: u32) -> bool {
    std::fs::read_dir(format!("/proc/{pid}/fd")).is_ok_and(|mut open| open.next().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_with_descriptors_has_not_ended() {
        assert!(!has_no_descriptor(std::process::id()));
        let watch = EndWatch::begin(std::process::id(), Instant::now());
        assert_eq!(watch.end(), None);
    }
}
