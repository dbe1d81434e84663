//! What the analyses say, held to what happens.

mod effects;
mod liveness;
mod programs;
