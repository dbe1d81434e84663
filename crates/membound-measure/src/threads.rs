//! Threads that measure together.

use std::thread::ScopedJoinHandle;

/// What `thread` returned; a panic in it goes on in the caller.
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
