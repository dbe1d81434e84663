//! The tables: one for each vector of [`RunData`](crate::RunData), with one row for each element. [`Meta`] is
//! the only row of `run`, except for its machine profile, which is the only row of `machine`.

use crate::record::{Record, create};
use crate::{
    Access, Allocations, Attribution, BlockCount, Burst, Code, Executions, Frame, Gap,
    HardwareAccess, Hold, Laps, LiveBytes, Location, LoopAround, Mapping, Meta, Module, Object,
    PageNode, Process, Sample, Site, Stack, Thread, Traffic, Watched,
};

/// Distinguishes runs from other databases: SQLite's `application_id`.
pub const APPLICATION: i32 = i32::from_be_bytes(*b"mbnd");

/// Version of the layout: SQLite's `user_version`. It is raised when readers of the previous version
/// could not read what is written.
pub const LAYOUT: i64 = 1;

/// The machine profile has its own table, because it is large and rarely written.
pub(crate) const MACHINE: &str = "CREATE TABLE machine (profile TEXT NOT NULL)";

/// Tables that files of this layout may lack, since earlier versions had no such tables.
pub(crate) const LATER_TABLES: [&str; 4] = [
    Laps::TABLE,
    LoopAround::TABLE,
    LiveBytes::TABLE,
    HardwareAccess::TABLE,
];

/// The statements that create all tables.
pub(crate) fn create_all() -> Vec<String> {
    vec![
        create::<Meta>(),
        create::<Process>(),
        create::<Thread>(),
        create::<Module>(),
        create::<Mapping>(),
        create::<Frame>(),
        create::<Stack>(),
        create::<Sample>(),
        create::<Site>(),
        create::<Attribution>(),
        create::<Executions>(),
        create::<Laps>(),
        create::<LoopAround>(),
        create::<Access>(),
        create::<Burst>(),
        create::<BlockCount>(),
        create::<Object>(),
        create::<Allocations>(),
        create::<LiveBytes>(),
        create::<Location>(),
        create::<Code>(),
        create::<PageNode>(),
        create::<Traffic>(),
        create::<Watched>(),
        create::<Hold>(),
        create::<HardwareAccess>(),
        create::<Gap>(),
        MACHINE.to_owned(),
    ]
}
