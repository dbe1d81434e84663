//! What the agent has found at the start: the launcher's socket, its own file, and the loader's record.

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, Ordering};

use crate::memory::{self, Line};

/// Settings from the start, for the rest of the process's life.
#[derive(Debug)]
pub(crate) struct Settings {
    /// `MEMBOUND_AGENT=<socket>`.
    pub(crate) control: Line<160>,
    /// Bytes of `control` before the socket's path.
    pub(crate) control_name: usize,
    /// Path of the agent's own file.
    pub(crate) own_path: Line<1024>,
    /// Address of the loader's `struct r_debug`, 0 if unknown.
    pub(crate) r_debug: usize,
}

impl Settings {
    /// The socket's path.
    pub(crate) fn control_path(&self) -> &[u8] {
        self.control
            .as_bytes()
            .get(self.control_name..)
            .unwrap_or_default()
    }
}

pub(crate) struct Cell(pub(crate) UnsafeCell<Settings>);

// SAFETY: written once by the initialiser, before `READY` is set and before any other
// thread exists; only read afterwards.
unsafe impl Sync for Cell {}

pub(crate) static SETTINGS: Cell = Cell(UnsafeCell::new(Settings {
    control: Line::new(),
    control_name: 0,
    own_path: Line::new(),
    r_debug: 0,
}));

pub(crate) static READY: AtomicBool = AtomicBool::new(false);

/// The settings, once the agent has found its launcher.
pub(crate) fn settings() -> Option<&'static Settings> {
    if !READY.load(Ordering::Acquire) {
        return None;
    }
    // SAFETY: `READY` was set after the last write.
    Some(unsafe { &*SETTINGS.0.get() })
}

/// The value of `text`, if it is the variable `name`.
pub(crate) fn value_of<'a>(text: &'a [u8], name: &str) -> Option<&'a [u8]> {
    text.strip_prefix(name.as_bytes())?.strip_prefix(b"=")
}

/// The loader's hook for debuggers, and the present phase.
pub(crate) struct LoaderState {
    /// Address of the function called on every change, 0 if unknown.
    pub(crate) hook: u64,
    pub(crate) phase: LoaderPhase,
}

/// What the loader does with its list of modules (`r_state`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LoaderPhase {
    /// Nothing is being added or removed.
    Consistent,
    /// It maps modules.
    Adding,
    /// It unmaps modules.
    Deleting,
}

/// Reads `struct r_debug`.
pub(crate) fn loader_state(settings: &Settings) -> LoaderState {
    if settings.r_debug == 0 {
        return LoaderState {
            hook: 0,
            phase: LoaderPhase::Consistent,
        };
    }
    // SAFETY: the loader's record lives as long as the process.
    let hook: u64 = unsafe { memory::get(settings.r_debug + 16) };
    // SAFETY: as above.
    let state: u32 = unsafe { memory::get(settings.r_debug + 24) };
    LoaderState {
        hook,
        phase: match state {
            0 => LoaderPhase::Consistent,
            2 => LoaderPhase::Deleting,
            _ => LoaderPhase::Adding,
        },
    }
}
