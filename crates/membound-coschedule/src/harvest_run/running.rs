//! The command of a harvest from its start to its end.

use std::process::ExitStatus;
use std::time::Duration;

use membound_launch::{Report, Session};
use membound_record::{CutOff, Recorder};
use membound_types::Scavenger;

use super::follower::Observed;
use super::in_place::InPlace;
use super::ordinary::Processes;
use crate::environment::StandIn;
use crate::error::Error;

/// A command that runs with scavengers.
pub(super) enum Running {
    Plain(Session),
    /// The program is profiled while it runs, so that a plan can be made in the same run.
    Recorded(Box<Recorder>),
}

impl Running {
    pub(super) fn session(&self) -> Result<&Session, Error> {
        match self {
            Self::Plain(session) => Ok(session),
            Self::Recorded(recorder) => {
                let session = recorder.session();
                let why = "a program that was started has a session";
                session.ok_or_else(|| Error::Refused(why.to_owned()))
            }
        }
    }

    pub(super) const fn is_recorded(&self) -> bool {
        matches!(self, Self::Recorded(_))
    }

    pub(super) fn cut_off(&self) -> CutOff {
        match self {
            Self::Plain(_) => CutOff::default(),
            Self::Recorded(recorder) => recorder.cut_off(),
        }
    }

    pub(super) fn finish(self) -> Option<Report> {
        match self {
            Self::Plain(session) => Some(session.finish()),
            Self::Recorded(recorder) => recorder.close(),
        }
    }
}

/// A command that was started, and what follows it.
pub(super) struct StartedCommand {
    pub(super) running: Running,
    pub(super) stand_in: Box<dyn StandIn>,
    pub(super) processes: Processes,
    pub(super) in_place: Option<InPlace>,
}

/// A command that has ended, and what was observed of it.
pub(super) struct EndedCommand {
    pub(super) end: ExitStatus,
    pub(super) wall_s: f64,
    pub(super) primary_wall: Option<Duration>,
    pub(super) process_cpu_s: f64,
    pub(super) observed: Observed,
    pub(super) ordinary: Vec<Scavenger>,
    pub(super) was_in_place: bool,
    pub(super) report: Option<Report>,
}
