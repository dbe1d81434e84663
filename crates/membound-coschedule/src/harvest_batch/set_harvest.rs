//! The harvest in which a set of jobs runs: a child `membound harvest run --no-primary`. This module is the
//! only part of batches that knows the options and the document of that command.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use membound_types::{HarvestRun, Kind, Scavenger, ScavengerState};
use tempfile::TempDir;

use crate::document_file;

/// A job as a scavenger.
#[derive(Clone, Debug)]
pub(super) struct ScavengerJob {
    /// Its program and arguments.
    pub(super) words: Vec<String>,
    /// Path of its plan.
    pub(super) plan: PathBuf,
}

/// How a scavenger ended.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum End {
    Ended {
        exit_code: i32,
        /// The signal that ended it, or 0.
        signal: i32,
        cpu_s: Option<f64>,
        /// Path of its stdout file.
        stdout: Option<PathBuf>,
    },
    /// It was not started, and can run as an ordinary process.
    NotBegun,
    /// It was started, and how it ended is not known.
    Lost,
}

/// A harvest and its files.
#[derive(Debug)]
pub(super) struct Harvest {
    room: TempDir,
    words: Vec<Vec<String>>,
}

impl Harvest {
    /// Creates a directory for the harvest inside `directory`, where the outputs are to go.
    ///
    /// # Errors
    /// If it cannot be created.
    pub(super) fn prepare(directory: &Path) -> std::io::Result<Self> {
        Ok(Self {
            room: TempDir::with_prefix_in(".harvest-", directory)?,
            words: Vec::new(),
        })
    }

    /// The command that runs `scavenger_jobs` with this machine profile. `None` if a word cannot be quoted on
    /// a command line.
    pub(super) fn command(
        &mut self,
        membound: &Path,
        machine: &Path,
        scavenger_jobs: &[ScavengerJob],
    ) -> Option<Command> {
        let mut command = Command::new(membound);
        command.args(["harvest", "run", "--no-primary", "--quiet", "--machine"]);
        command.arg(machine);
        let mut plans: Vec<&Path> = scavenger_jobs.iter().map(|it| it.plan.as_path()).collect();
        plans.sort_unstable();
        plans.dedup();
        for plan in plans {
            command.arg("--plan").arg(plan);
        }
        for scavenger_job in scavenger_jobs {
            let line = shlex::try_join(scavenger_job.words.iter().map(String::as_str)).ok()?;
            command.arg("--scavenger").arg(line);
        }
        command.arg("--output").arg(self.room.path());
        command.arg("--json").arg(self.document());
        let stderr = File::create(self.complaints()).map_or_else(|_| Stdio::null(), Stdio::from);
        command.stdout(Stdio::null()).stderr(stderr);
        self.words = scavenger_jobs.iter().map(|it| it.words.clone()).collect();
        Some(command)
    }

    /// The last line of the command's stderr, if any.
    pub(super) fn complaint(&self) -> Option<String> {
        let text = std::fs::read_to_string(self.complaints()).ok()?;
        text.lines().next_back().map(str::to_owned)
    }

    fn complaints(&self) -> PathBuf {
        self.room.path().join("complaints")
    }

    fn document(&self) -> PathBuf {
        self.room.path().join("harvest.json")
    }

    /// How each scavenger ended, given the exit code or the signal (0: none) of the command.
    pub(super) fn ends(&self, exit_code: i32, signal: i32) -> Vec<End> {
        let read = document_file::read::<HarvestRun>(&self.document(), Kind::Harvest, "harvest");
        if let Ok(Ok(run)) = read {
            return ends(&self.words, &run.scavengers);
        }
        // The command refuses with exit code 1 or 2, and before a scavenger opens its output file.
        let has_begun = std::fs::read_dir(self.room.path()).is_ok_and(|files| {
            let mut names = files.flatten().map(|file| file.path());
            names.any(|name| name.extension().is_some_and(|ending| ending == "out"))
        });
        let refused = signal == 0 && matches!(exit_code, 1 | 2) && !has_begun;
        let end = if refused { End::NotBegun } else { End::Lost };
        vec![end; self.words.len()]
    }
}

/// Path of a scavenger's stderr file, next to its stdout file.
pub(super) fn stderr_path(stdout: &Path) -> PathBuf {
    stdout.with_extension("err")
}

/// How the scavengers with these `words` ended. The document lists ordinary processes last, so entries are
/// matched by words; two with the same words are interchangeable.
fn ends(words: &[Vec<String>], scavengers: &[Scavenger]) -> Vec<End> {
    let mut unmatched: Vec<&Scavenger> = scavengers.iter().collect();
    words
        .iter()
        .map(|words| {
            let at = unmatched.iter().position(|it| it.command == *words);
            at.map_or(End::NotBegun, |at| end(unmatched.remove(at)))
        })
        .collect()
}

fn end(scavenger: &Scavenger) -> End {
    match scavenger.state {
        ScavengerState::Finished | ScavengerState::Crashed => End::Ended {
            exit_code: scavenger.exit_code.unwrap_or(0),
            signal: scavenger.signal.unwrap_or(0),
            cpu_s: scavenger.cpu_s,
            stdout: scavenger.output.as_ref().map(PathBuf::from),
        },
        ScavengerState::Refused => End::NotBegun,
        ScavengerState::Unfinished => End::Lost,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scavenger(command: &[&str], state: ScavengerState, exit_code: Option<i32>) -> Scavenger {
        Scavenger {
            command: command.iter().map(|it| (*it).to_owned()).collect(),
            copy: 0,
            exit_code,
            signal: None,
            state,
            reason: None,
            cpu_s: Some(1.5),
            in_stalls_s: None,
            in_waits_s: 0.0,
            own_thread_s: 0.0,
            calls: 0,
            turns: 0,
            output: Some("/d/1-0.out".to_owned()),
        }
    }

    #[test]
    fn the_command_line_names_each_plan_once_and_each_job() {
        let place = tempfile::tempdir().unwrap();
        let mut harvest = Harvest::prepare(place.path()).unwrap();
        let scavenger_job = |words: &[&str], plan: &str| ScavengerJob {
            words: words.iter().map(|it| (*it).to_owned()).collect(),
            plan: plan.into(),
        };
        let scavenger_jobs = [
            scavenger_job(&["chase", "a b"], "/p/2"),
            scavenger_job(&["chase", "c"], "/p/1"),
            scavenger_job(&["walk"], "/p/2"),
        ];
        let command = harvest
            .command(Path::new("/m"), Path::new("/machine"), &scavenger_jobs)
            .unwrap();
        let words: Vec<_> = command.get_args().map(|it| it.to_string_lossy()).collect();
        let expected = [
            "harvest",
            "run",
            "--no-primary",
            "--quiet",
            "--machine",
            "/machine",
            "--plan",
            "/p/1",
            "--plan",
            "/p/2",
            "--scavenger",
            "chase 'a b'",
            "--scavenger",
            "chase c",
            "--scavenger",
            "walk",
            "--output",
        ];
        assert_eq!(&words[..expected.len()], expected);
    }

    #[test]
    fn scavenger_jobs_are_matched_by_words_in_any_order() {
        let words = [["chase", "1"], ["sort", "1"], ["chase", "1"], ["walk", "3"]]
            .map(|words| words.map(str::to_owned).to_vec());
        let scavengers = [
            scavenger(&["walk", "3"], ScavengerState::Unfinished, None),
            scavenger(&["chase", "1"], ScavengerState::Finished, Some(3)),
            scavenger(&["chase", "1"], ScavengerState::Refused, None),
        ];
        let first = End::Ended {
            exit_code: 3,
            signal: 0,
            cpu_s: Some(1.5),
            stdout: Some("/d/1-0.out".into()),
        };
        assert_eq!(
            ends(&words, &scavengers),
            [first, End::NotBegun, End::NotBegun, End::Lost]
        );
    }

    #[test]
    fn without_a_document_the_exit_code_shows_whether_jobs_began() {
        let place = tempfile::tempdir().unwrap();
        let mut harvest = Harvest::prepare(place.path()).unwrap();
        harvest.words = vec![vec!["a".to_owned()]; 2];
        assert_eq!(harvest.ends(2, 0), [End::NotBegun, End::NotBegun]);
        assert_eq!(harvest.ends(0, 9), [End::Lost, End::Lost]);
        assert_eq!(harvest.ends(0, 0), [End::Lost, End::Lost]);
        std::fs::write(harvest.room.path().join("1-0.out"), "").unwrap();
        assert_eq!(harvest.ends(2, 0), [End::Lost, End::Lost]);
        assert_eq!(
            stderr_path(Path::new("/d/1-0.out")),
            Path::new("/d/1-0.err")
        );
    }
}
