//! Known answers: curves of simulated machines with known caches, curves of a real machine, and
//! a whole profile.

mod clock;
mod compare;
mod curves;
#[expect(dead_code, reason = "shared with the campaign in examples/levels.rs")]
mod hierarchies;
mod hierarchy_cases;
mod hierarchy_fit;
mod hierarchy_predict;
mod levels;
mod machines;
mod measured;
mod misfit;
mod profile;
mod properties;
#[expect(dead_code, reason = "shared with the campaign in examples/levels.rs")]
mod scores;
mod seidl_data;
mod stall;
mod topology;
mod window_levels;
