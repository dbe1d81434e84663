//! Runs programs together: a command with scavengers ([`harvest_run`]), lists of jobs ([`harvest_batch`]), and
//! comparisons of settings ([`harvest_explore`]).
//!
//! Plans are made by `membound-harvest`, programs are started by `membound-launch`, and `membound-control` decides
//! how a harvest goes on; this crate connects them with processes, files and clocks. What belongs to a command line
//! is left to the caller: it checks where documents go, shows them, catches signals, and hands in an
//! [`Environment`]. Profiles and sets of jobs run in child processes of the caller's own executable, which must
//! therefore be the command `membound`.

#![forbid(unsafe_code)]

mod document_file;
mod environment;
mod error;
pub mod harvest_batch;
pub mod harvest_explore;
pub mod harvest_run;
pub mod harvest_stop;
mod kept_plans;
mod named_programs;
pub mod planning;
mod slice_timing;

pub use environment::{Environment, StandIn};
pub use error::{CallerError, Error, one_line};

/// Fails where this build has no agent, without which no program can be harvested.
///
/// # Errors
/// [`Error::Refused`] with the reason.
pub fn check_agent() -> Result<(), Error> {
    if membound_launch::AGENT.is_empty() {
        let why = membound_launch::Unpatched::NoAgent;
        return Err(Error::Refused(format!(
            "nothing can be harvested here: {why}"
        )));
    }
    Ok(())
}
