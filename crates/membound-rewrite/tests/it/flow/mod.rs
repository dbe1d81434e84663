//! Compares the results of the analyses with executions.

mod effects;
mod ipa_ra;
mod liveness;
pub(crate) mod programs;
mod small_functions;
mod unconventional;
