//! Memory full of ones, allocated and written by a thread on a chosen CPU.

use membound_platform::affinity::Pinned;

use crate::threads::{joined, spawned};
use crate::{Error, Region, RegionConfig, Session};

/// Allocates a region on a thread pinned to `config.cpu` and writes 1.0 to every double, so that
/// arithmetic on it meets no denormals and no cache can drop zeroes that are written over zeroes.
/// A cancelled session leaves the rest unwritten.
///
/// # Errors
/// As [`Region::new`], and when the thread cannot be pinned.
pub(crate) fn region_of_ones(session: &Session<'_>, config: RegionConfig) -> Result<Region, Error> {
    let make = || -> Result<Region, Error> {
        let _pinned = Pinned::to(config.cpu)?;
        let region = Region::new(session, config)?;
        let start = region.start().cast::<f64>();
        let doubles = region.len() / size_of::<f64>();
        for index in 0..doubles {
            // Writing all memory takes seconds, and a cancelled run measures nothing in it.
            if index % (1 << 20) == 0 && session.cancelled() {
                break;
            }
            // SAFETY: the double lies inside the region, which is writable, aligned and not yet
            // shared with other code.
            unsafe { start.wrapping_add(index).write(1.0) };
        }
        Ok(region)
    };
    std::thread::scope(|scope| joined(spawned(scope, config.cpu, make)?))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use membound_platform::Root;
    use membound_types::{NodePolicy, PageKind};

    use super::*;
    use crate::{Effort, Silent};

    #[test]
    fn every_double_is_one() {
        let root = Root::system();
        let cancel = AtomicBool::new(false);
        let session = Session::new(&root, None, Effort::Quick, &cancel, &Silent).unwrap();
        for cpu in session.cpus.clone() {
            let config = RegionConfig {
                bytes: 100_000,
                page: PageKind::Base,
                node: NodePolicy::LOCAL,
                cpu,
            };
            let region = region_of_ones(&session, config).unwrap();
            let start = region.start().cast::<f64>();
            for index in 0..region.len() / 8 {
                // SAFETY: the double lies inside the region.
                let double = unsafe { start.wrapping_add(index).read() };
                assert_eq!(double, 1.0);
            }
        }
    }
}
