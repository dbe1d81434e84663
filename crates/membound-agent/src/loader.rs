//! What the dynamic loader maps and unmaps while the program runs.
//!
//! The loader announces a change before it makes it, and again when its list is consistent, to debuggers
//! and so to `modules`. If a control thread can report new modules, the program does not wait: a
//! program that loads a hundred plugins would wait for a hundred conversations. It does wait when text with
//! trampolines was unmapped, since the next module may be mapped in its place.
//!
//! No text is changed while the loader unmaps modules ([`unmappings`]): the change could be written into
//! the next mapping at that address.

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use membound_sync::crossed;

/// True if the control thread reports new modules.
pub(crate) static REPORTED_BY_CONTROL_THREAD: AtomicBool = AtomicBool::new(false);
/// Set when the list of modules has changed since the control thread's last report.
pub(crate) static CHANGED: AtomicBool = AtomicBool::new(false);
/// Twice the number of unmappings so far, plus one while the loader unmaps modules.
pub(crate) static UNMAPPINGS: AtomicU32 = AtomicU32::new(0);

/// Makes the control thread report new modules from now on.
pub(crate) fn report_from_control_thread() {
    REPORTED_BY_CONTROL_THREAD.store(true, Ordering::Release);
}

/// True if the list of modules has changed since the last [`take_changed`].
pub(crate) fn has_changed() -> bool {
    CHANGED.load(Ordering::Acquire)
}

/// True if the list of modules has changed since the last call.
pub(crate) fn take_changed() -> bool {
    has_changed() && CHANGED.swap(false, Ordering::AcqRel)
}

/// Number of times that modules were unmapped; `None` while the loader unmaps some.
///
/// Sequentially consistent with the beginning of a change of text: either the change sees that the loader is
/// about to unmap, or the loader sees the change and waits for it.
pub(crate) fn unmappings() -> Option<u32> {
    let count = crossed::announced(&UNMAPPINGS);
    count.is_multiple_of(2).then_some(count)
}

/// In a forked child: the parent's loader may have been unmapping.
pub(crate) fn after_fork() {
    end_of_unmapping();
}

/// Ends an unmapping; true if one was in progress.
pub(crate) fn end_of_unmapping() -> bool {
    let unmapped = unmappings().is_none();
    if unmapped {
        crossed::announce(&UNMAPPINGS);
    }
    unmapped
}
