//! Tells the programs of a session apart.

/// Identifies a program: process number and start time of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ProcessKey {
    pub(crate) pid: u32,
    pub(crate) started: u64,
}
