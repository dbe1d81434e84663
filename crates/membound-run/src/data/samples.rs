//! Timer samples, and the accesses that the sampled instructions waited for.

use crate::{FrameId, ObjectId, SiteId, StackId, ThreadId};

/// A timer sample.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// Time of the expiry.
    pub t_ns: u64,
    /// Thread that ran.
    pub thread: ThreadId,
    /// On which CPU, where it is known.
    pub cpu: Option<u16>,
    /// Call chain; its innermost frame is the sampled instruction, not yet the one that
    /// was waited for.
    pub stack: StackId,
    /// CPU time that it stands for, in nanoseconds.
    pub weight_ns: u64,
    /// Address accessed by the instruction that was waited for, where the registers tell.
    pub address: Option<u64>,
    /// Whether `address` is what was accessed, or only near it (a pointer that was loaded).
    pub exact: bool,
    /// What lies at `address`.
    pub object: Option<ObjectId>,
}

/// An access that a sampled instruction waited for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Attribution {
    /// Instruction on which samples lie.
    pub frame: FrameId,
    /// The access; `None`: it waited for no memory.
    pub site: Option<SiteId>,
    /// Share of the frame's samples that are this access's; those of a frame sum to 1.
    pub share: f64,
    /// How sure that is, from 0 to 1.
    pub confidence: f64,
}
