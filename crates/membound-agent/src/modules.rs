//! The dynamic loader's announcements: reports new modules to the launcher, or has the control thread do so.

use core::sync::atomic::Ordering;

use membound_sync::crossed;
use membound_wire::Event;

use crate::loader::{
    CHANGED, REPORTED_BY_CONTROL_THREAD, UNMAPPINGS, end_of_unmapping, unmappings,
};
use crate::settings::{LoaderPhase, loader_state, settings};
use crate::{areas, control, listen, quiesce};

/// The loader is about to change its list, or has changed it.
pub(crate) fn announced() {
    let Some(settings) = settings() else { return };
    match loader_state(settings).phase {
        LoaderPhase::Adding => {}
        LoaderPhase::Deleting => {
            if unmappings().is_some() {
                crossed::announce(&UNMAPPINGS);
            }
            quiesce::wait_for_change();
        }
        LoaderPhase::Consistent => {
            let unmapped = end_of_unmapping();
            let later = REPORTED_BY_CONTROL_THREAD.load(Ordering::Acquire)
                && listen::has_control_thread()
                && quiesce::is_own_process();
            if later {
                CHANGED.store(true, Ordering::Release);
                listen::wake();
            }
            if !later || unmapped && areas::any_without_text() {
                // Without a launcher, new modules stay as they are.
                let _ = control::converse(Event::Modules, [0; 2]);
            }
        }
    }
}
