//! Findings that a reader should look at first, with advice.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Figure;
use crate::names::named;

named! {
    /// Kind of a finding.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
    pub enum InsightKind {
        /// A large share of time is stalled.
        MemoryBound = "memory-bound",
        /// One object has much of the stall.
        HotObject = "hot-object",
        /// Threads contend for a line without sharing data.
        FalseSharing = "false-sharing",
        /// Threads write the same data.
        TrueSharing = "true-sharing",
        /// Pages are on other nodes than the threads that use them.
        Placement = "placement",
        /// Traffic is near the machine's limit.
        Bandwidth = "bandwidth",
        /// Much time is spent on address translation.
        Translation = "translation",
        /// Hardly any time is stalled, so there is little to gain.
        NotMemoryBound = "not-memory-bound",
    }
}

/// A finding with advice.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Insight {
    /// Kind of the finding.
    pub kind: InsightKind,
    /// Description with figures, in one sentence.
    pub text: String,
    /// Advice in one sentence; empty if there is none.
    pub advice: String,
    /// Share of the wall time that following the advice would save, if it can be estimated.
    pub predicted_gain: Option<Figure>,
    /// Threshold that was exceeded, in words.
    pub threshold: String,
}
