//! Identifiers: positions in the vectors of a run.

use serde::{Deserialize, Serialize};

/// Defines positions in the vectors of [`crate::RunData`].
macro_rules! ids {
    ($($(#[$meta:meta])* $Name:ident;)+) => {$(
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub struct $Name(pub u32);

        impl $Name {
            /// As a position in its vector.
            #[must_use]
            pub const fn index(self) -> usize {
                self.0 as usize
            }
        }
    )+};
}

ids! {
    /// Position of a process image in [`crate::RunData::processes`].
    ProcessId;
    /// Position of a thread in [`crate::RunData::threads`].
    ThreadId;
    /// Position of a module in [`crate::RunData::modules`].
    ModuleId;
    /// Position of a frame in [`crate::RunData::frames`].
    FrameId;
    /// Position of a call chain in [`crate::RunData::stacks`].
    StackId;
    /// Position of a site in [`crate::RunData::sites`].
    SiteId;
    /// Position of an object in [`crate::RunData::objects`].
    ObjectId;
}
