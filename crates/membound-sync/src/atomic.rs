//! The atomics of the protocols: those of `core`, or loom's in the model.

#[cfg(not(loom))]
pub use core::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
#[cfg(loom)]
pub use loom::sync::atomic::{Ordering, fence};
#[cfg(loom)]
pub use modelled::{AtomicU32, AtomicU64};

#[cfg(loom)]
mod modelled {
    //! Loom's atomics, with sequentially consistent accesses.
    //!
    //! Loom models such fences, but not such accesses: two threads that each store a word and then load the
    //! other's could both miss the other's store. Here such a load acquires and such a store releases, and a
    //! fence stands between a store and the next load of the same thread. If either access is weaker, there is
    //! no fence: then the language promises nothing.

    use core::cell::Cell;

    use super::{Ordering, fence};

    loom::thread_local! {
        /// True if the thread has stored with sequential consistency since its last fence.
        static HAS_STORED: Cell<bool> = Cell::new(false);
    }

    fn before_load(order: Ordering) {
        if order == Ordering::SeqCst && HAS_STORED.with(|stored| stored.replace(false)) {
            fence(Ordering::SeqCst);
        }
    }

    fn after_store(order: Ordering) {
        if order == Ordering::SeqCst {
            HAS_STORED.with(|stored| stored.set(true));
        }
    }

    /// The order of a load without the fence.
    fn of_load(order: Ordering) -> Ordering {
        match order {
            Ordering::SeqCst => Ordering::Acquire,
            other => other,
        }
    }

    /// The order of a store without the fence.
    fn of_store(order: Ordering) -> Ordering {
        match order {
            Ordering::SeqCst => Ordering::Release,
            other => other,
        }
    }

    /// The order of a load with a store, without the fence.
    fn of_both(order: Ordering) -> Ordering {
        match order {
            Ordering::SeqCst => Ordering::AcqRel,
            other => other,
        }
    }

    macro_rules! modelled {
        ($name:ident, $value:ty) => {
            /// An atomic word.
            #[derive(Debug)]
            pub struct $name(loom::sync::atomic::$name);

            impl $name {
                /// A word with this value.
                #[must_use]
                pub fn new(value: $value) -> Self {
                    Self(loom::sync::atomic::$name::new(value))
                }

                /// Loads the value.
                pub fn load(&self, order: Ordering) -> $value {
                    before_load(order);
                    self.0.load(of_load(order))
                }

                /// Stores `value`.
                pub fn store(&self, value: $value, order: Ordering) {
                    self.0.store(value, of_store(order));
                    after_store(order);
                }

                /// Stores `value`; returns the value before.
                pub fn swap(&self, value: $value, order: Ordering) -> $value {
                    before_load(order);
                    let before = self.0.swap(value, of_both(order));
                    after_store(order);
                    before
                }

                /// Adds `more`; returns the value before.
                pub fn fetch_add(&self, more: $value, order: Ordering) -> $value {
                    before_load(order);
                    let before = self.0.fetch_add(more, of_both(order));
                    after_store(order);
                    before
                }

                /// Stores `new` if the value is `current`.
                ///
                /// # Errors
                /// The value, if that is another one.
                pub fn compare_exchange(
                    &self,
                    current: $value,
                    new: $value,
                    success: Ordering,
                    failure: Ordering,
                ) -> Result<$value, $value> {
                    // The fence orders the failing load too, so it needs both orders.
                    if success == failure {
                        before_load(success);
                    }
                    let outcome =
                        self.0
                            .compare_exchange(current, new, of_both(success), of_load(failure));
                    if outcome.is_ok() {
                        after_store(success);
                    }
                    outcome
                }
            }
        };
    }

    modelled!(AtomicU32, u32);
    modelled!(AtomicU64, u64);
}
