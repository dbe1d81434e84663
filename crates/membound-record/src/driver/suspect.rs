//! Passes accesses to the detectors of contended lines: trials and watchpoints.

use membound_run::{ProcessId, ThreadId};

use super::Driver;
use crate::holding::Noted;
use crate::sampling::ResolvedSample;
use crate::watch::{ObservedAccess, Wrote};

impl Driver {
    /// Notes the access of `address` that a sample waited for.
    pub(super) fn suspect_sample(&mut self, sample: &ResolvedSample, address: u64) {
        let (leaf, process, thread) = (sample.leaf, sample.process, sample.thread);
        let site = self
            .sites
            .likeliest(leaf)
            .and_then(|site| self.sites.row(site));
        let Some((bytes, kind)) = site.map(|site| (site.bytes, site.kind)) else {
            return;
        };
        let wrote = if kind.stores() { Wrote::Yes } else { Wrote::No };
        self.may_hold(process, thread, address, wrote);
        self.watch(process, thread, (address, bytes), wrote);
    }

    /// Notes an access for trials, which need lines that several threads use.
    pub(super) fn may_hold(
        &mut self,
        process: ProcessId,
        thread: ThreadId,
        address: u64,
        wrote: Wrote,
    ) {
        let world = crate::lock(&self.world);
        let Some(tid) = world.threads.row(thread).map(|row| row.tid) else {
            return;
        };
        self.trials.note(Noted {
            pid: world.row(process).pid,
            tid,
            thread,
            address,
            stores: wrote == Wrote::Yes,
        });
    }

    /// Notes an access for watchpoints; it is given by its address and its number of bytes.
    pub(super) fn watch(
        &mut self,
        process: ProcessId,
        thread: ThreadId,
        (address, bytes): (u64, u32),
        wrote: Wrote,
    ) {
        let Some(watching) = &mut self.watching else {
            return;
        };
        let world = crate::lock(&self.world);
        let Some(tid) = world.threads.row(thread).map(|row| row.tid) else {
            return;
        };
        let pid = world.row(process).pid;
        watching.note(ObservedAccess {
            pid,
            tid,
            address,
            bytes: bytes.max(1),
            wrote,
        });
    }
}
