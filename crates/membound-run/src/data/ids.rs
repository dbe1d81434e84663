//! Identifiers: positions in the vectors of a run.

use rusqlite::{Row, Statement};

use crate::value::Value;

/// Defines positions in the vectors of [`crate::RunData`].
macro_rules! ids {
    ($($(#[$meta:meta])* $Name:ident;)+) => {$(
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $Name(pub u32);

        impl $Name {
            /// As a position in its vector.
            #[must_use]
            pub const fn index(self) -> usize {
                self.0 as usize
            }
        }

        impl Value for $Name {
            const SQL: &'static str = u32::SQL;

            fn bind(&self, statement: &mut Statement<'_>, at: usize) -> rusqlite::Result<()> {
                self.0.bind(statement, at)
            }

            fn take(row: &Row<'_>, at: usize) -> rusqlite::Result<Self> {
                u32::take(row, at).map(Self)
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
