//! Two threads that each announce something and then look for the other's announcement: at least one of
//! them sees the other's.
//!
//! Both accesses of both threads must be sequentially consistent. With weaker ones each store may still be
//! on its way while its thread looks, so that neither sees the other's.

use crate::atomic::{AtomicU32, Ordering};

/// Announces by adding one. The thread looks for the other's announcement afterwards.
#[inline]
pub fn announce(own: &AtomicU32) {
    own.fetch_add(1, Ordering::SeqCst);
}

/// What the other thread has announced.
#[must_use]
#[inline]
pub fn announced(other: &AtomicU32) -> u32 {
    other.load(Ordering::SeqCst)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::{Arc, check, thread};

    #[test]
    fn one_of_two_announcements_is_seen() {
        check(|| {
            let words = Arc::new([0, 0].map(AtomicU32::new));
            let other = {
                let words = words.clone();
                thread::spawn(move || {
                    announce(&words[0]);
                    announced(&words[1])
                })
            };
            announce(&words[1]);
            let own = announced(&words[0]);
            let other = other.join().unwrap();
            assert!(own + other > 0, "neither thread saw the other");
        });
    }
}
