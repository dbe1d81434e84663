//! What the library takes from the process that it runs in, instead of reading the environment, printing, and
//! catching signals itself.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::process::ExitStatus;

use membound_launch::{Cache, Program, Session, environment};
use membound_platform::{Root, machine_info};
use membound_record::Options;
use membound_types::{MachineInfo, Timer};

use crate::error::CallerError;

/// The caller's build, directories and user. One value serves for the whole process.
#[derive(Clone, Debug)]
pub struct Environment {
    /// Version, commit and profile of the build, for documents.
    pub version: String,
    /// Distinguishes cached patch plans of different builds.
    pub revision: String,
    /// `PATH`, in which programs are looked up.
    pub search: Option<OsString>,
    /// membound's directory for files that may be deleted at any time; `None`: nothing is kept.
    pub cache: Option<PathBuf>,
    /// Directory for temporary files.
    pub temporary: PathBuf,
    /// Shows the user a message of one line.
    pub complain: fn(&str),
    /// Begins to catch the signals that are meant for a program which is about to be started.
    pub stand_in: fn() -> Result<Box<dyn StandIn>, CallerError>,
}

/// The caller in the place of a program that it started: it passes signals on, and stops with the program.
pub trait StandIn {
    /// Stands in for the session's program until the program ends.
    ///
    /// # Errors
    /// If the program cannot be waited for.
    fn follow(self: Box<Self>, session: &Session) -> Result<ExitStatus, CallerError>;
}

impl Environment {
    /// Shows the user a message of one line.
    pub(crate) fn complain(&self, line: &str) {
        (self.complain)(line);
    }

    /// The machine and its conditions.
    pub(crate) fn machine_info(&self) -> MachineInfo {
        MachineInfo {
            membound_version: self.version.clone(),
            ..machine_info(&Root::system(), Timer::default(), BTreeMap::new())
        }
    }

    /// A program with its arguments, found as the user's shell would find it.
    #[must_use]
    pub fn program(&self, name: &OsStr, arguments: &[OsString]) -> Program {
        Program {
            name: name.to_owned(),
            arguments: arguments.to_vec(),
            search: self.search.clone(),
            environment: environment(),
        }
    }

    /// The cache of patch plans; `None` without a cache directory.
    #[must_use]
    pub fn patch_plans(&self) -> Option<Cache> {
        let cache = self.cache.as_ref()?;
        Some(Cache::at(cache.join("plans")))
    }

    /// Directory in which plans of harvests are kept.
    pub(crate) fn harvest_plans(&self) -> Option<PathBuf> {
        Some(self.cache.as_ref()?.join("harvest"))
    }

    /// Options that all recordings of this build share, for one into the file `run`.
    #[must_use]
    pub fn recording(&self, run: PathBuf) -> Options {
        Options {
            cache: self.patch_plans(),
            revision: self.revision.clone(),
            directory: self.temporary.clone(),
            membound_version: self.version.clone(),
            ..Options::new(run)
        }
    }
}
