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
    /// In [`crate::RunData::processes`].
    ProcessId;
    /// In [`crate::RunData::threads`].
    ThreadId;
    /// In [`crate::RunData::modules`].
    ModuleId;
    /// In [`crate::RunData::frames`].
    FrameId;
    /// In [`crate::RunData::stacks`].
    StackId;
    /// In [`crate::RunData::sites`].
    SiteId;
    /// In [`crate::RunData::objects`].
    ObjectId;
}
