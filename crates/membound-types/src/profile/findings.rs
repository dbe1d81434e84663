//! What a reader should look at first, with advice.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Figure;
use crate::names::named;

named! {
    /// What a finding is about.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
    pub enum InsightKind {
        /// A large share of time is stalled.
        MemoryBound = "memory-bound",
        /// One object has much of the stall.
        HotObject = "hot-object",
        /// Threads fight over a line without sharing data.
        FalseSharing = "false-sharing",
        /// Threads write the same data.
        TrueSharing = "true-sharing",
        /// Pages lie on other nodes than the threads that use them.
        Placement = "placement",
        /// Traffic is near what the machine can do.
        Bandwidth = "bandwidth",
        /// Time goes into address translation.
        Translation = "translation",
        /// There is nothing to gain here.
        NotMemoryBound = "not-memory-bound",
    }
}

/// Something worth a look.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Insight {
    /// What it is about.
    pub kind: InsightKind,
    /// One sentence that says what was found, with its figures.
    pub text: String,
    /// One sentence that says what to do; empty if nothing.
    pub advice: String,
    /// Share of the wall time that following the advice would save, where it can be said.
    pub predicted_gain: Option<Figure>,
    /// The threshold that was passed, in words.
    pub threshold: String,
}
