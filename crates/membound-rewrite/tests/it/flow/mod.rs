//! What the analyses say, held to what happens.

mod effects;
mod ipa_ra;
mod known;
mod liveness;
pub(crate) mod programs;
mod saving;
mod unconventional;
