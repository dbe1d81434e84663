//! Starting and joining the threads of one measurement.

use std::thread::{Builder, Scope, ScopedJoinHandle};

use membound_types::CpuId;

use crate::Error;

/// Starts a thread that executes `run`, which is dropped if no thread can be started. `cpu` is only
/// named in the error.
///
/// # Errors
/// [`Error::Copy`] when the system has no more threads.
pub(crate) fn spawned<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    cpu: CpuId,
    run: impl FnOnce() -> T + Send + 'scope,
) -> Result<ScopedJoinHandle<'scope, T>, Error> {
    let thread = Builder::new().spawn_scoped(scope, run);
    thread.map_err(|error| Error::Copy {
        cpu,
        reason: format!("no thread: {error} (raise ulimit -u, or the container's pids limit)"),
    })
}

/// Result of `thread`; a panic in it continues in the caller.
pub(crate) fn joined<T>(thread: ScopedJoinHandle<'_, T>) -> T {
    thread
        .join()
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "in the thread")]
    fn a_panic_goes_on_in_the_caller() {
        std::thread::scope(|scope| joined(scope.spawn(|| panic!("in the thread"))))
    }

    #[test]
    fn results_come_back_in_the_order_of_the_threads() {
        let squares: Vec<u32> = std::thread::scope(|scope| {
            let running: Vec<_> = (0..4).map(|n| scope.spawn(move || n * n)).collect();
            running.into_iter().map(joined).collect()
        });
        assert_eq!(squares, [0, 1, 4, 9]);
    }
}
