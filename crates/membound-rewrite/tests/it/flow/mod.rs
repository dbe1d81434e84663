//! Compares the results of the analyses with executions.

mod effects;
mod ipa_ra;
mod known;
mod liveness;
pub(crate) mod programs;
mod saving;
mod unconventional;
