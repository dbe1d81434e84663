//! What the analyses say, held to what happens.

mod effects;
mod ipa_ra;
mod known;
mod liveness;
mod programs;
mod saving;
