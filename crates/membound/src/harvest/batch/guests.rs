//! The harvest that a set of jobs runs in: a child `membound harvest run --no-primary`. All that this crate
//! knows of that command's options and document, as far as batches are concerned, stands here.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use membound_types::{HarvestRun, Kind, Scavenger, ScavengerState};
use tempfile::TempDir;

use crate::documents;
use crate::profile::machine;

/// A job as a guest.
#[derive(Clone, Debug)]
pub(super) struct Guest {
    /// Its words, the program first.
    pub(super) words: Vec<String>,
    /// Its plan.
    pub(super) plan: PathBuf,
}

/// How a guest ended.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum End {
    Ended {
        exit_code: i32,
        /// The signal that ended it, or 0.
        signal: i32,
        cpu_s: Option<f64>,
        /// The file of its stdout.
        stdout: Option<PathBuf>,
    },
    /// It was not begun, and can run as an ordinary process.
    NotBegun,
    /// It was begun, and what became of it is not known.
    Lost,
}

/// The machine profile that harvests here take latencies from: the one at `named`, else the one kept of this
/// host. Without one a harvest would measure the machine for a minute, which no batch is to wait for.
///
/// # Errors
/// When the file at `named` is none.
pub(super) fn machine(named: Option<&Path>) -> anyhow::Result<Option<PathBuf>> {
    if let Some(path) = named {
        machine::read(path)?;
        return Ok(Some(path.to_owned()));
    }
    Ok(machine::kept())
}

/// A harvest, and its files.
#[derive(Debug)]
pub(super) struct Harvest {
    room: TempDir,
    words: Vec<Vec<String>>,
}

impl Harvest {
    /// With files in a directory inside `directory`, where the outputs are to go.
    ///
    /// # Errors
    /// When there can be none.
    pub(super) fn prepare(directory: &Path) -> std::io::Result<Self> {
        Ok(Self {
            room: TempDir::with_prefix_in(".harvest-", directory)?,
            words: Vec::new(),
        })
    }

    /// The command that runs `guests`, with this machine profile. `None` where a word cannot be written on a
    /// command line.
    pub(super) fn command(
        &mut self,
        membound: &Path,
        machine: &Path,
        guests: &[Guest],
    ) -> Option<Command> {
        let mut command = Command::new(membound);
        command.args(["harvest", "run", "--no-primary", "--quiet", "--machine"]);
        command.arg(machine);
        let mut plans: Vec<&Path> = guests.iter().map(|it| it.plan.as_path()).collect();
        plans.sort_unstable();
        plans.dedup();
        for plan in plans {
            command.arg("--plan").arg(plan);
        }
        for guest in guests {
            let line = shlex::try_join(guest.words.iter().map(String::as_str)).ok()?;
            command.arg("--scavenger").arg(line);
        }
        command.arg("--output").arg(self.room.path());
        command.arg("--json").arg(self.document());
        let told = File::create(self.complaints()).map_or_else(|_| Stdio::null(), Stdio::from);
        command.stdout(Stdio::null()).stderr(told);
        self.words = guests.iter().map(|it| it.words.clone()).collect();
        Some(command)
    }

    /// The last line that the command complained with, if any.
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

    /// How each guest ended, after the command ended with this exit code or signal (0: none).
    pub(super) fn ends(&self, exit_code: i32, signal: i32) -> Vec<End> {
        let read = documents::read::<HarvestRun>(&self.document(), Kind::Harvest, "harvest");
        if let Ok(Ok(run)) = read {
            return ends(&self.words, &run.scavengers);
        }
        // What it refuses, it refuses with its own exit codes, and before a guest opens its output.
        let has_begun = std::fs::read_dir(self.room.path()).is_ok_and(|files| {
            let mut names = files.flatten().map(|file| file.path());
            names.any(|name| name.extension().is_some_and(|ending| ending == "out"))
        });
        let refused = signal == 0 && matches!(exit_code, 1 | 2) && !has_begun;
        let end = if refused { End::NotBegun } else { End::Lost };
        vec![end; self.words.len()]
    }
}

/// The file of a guest's stderr, by that of its stdout.
pub(super) fn stderr_beside(stdout: &Path) -> PathBuf {
    stdout.with_extension("err")
}

/// How guests with these `words` ended. A document lists those that ran as ordinary processes last; of two with
/// the same words it does not matter which is which.
fn ends(words: &[Vec<String>], scavengers: &[Scavenger]) -> Vec<End> {
    let mut told: Vec<&Scavenger> = scavengers.iter().collect();
    words
        .iter()
        .map(|words| {
            let at = told.iter().position(|it| it.command == *words);
            at.map_or(End::NotBegun, |at| end(told.remove(at)))
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
        let guest = |words: &[&str], plan: &str| Guest {
            words: words.iter().map(|it| (*it).to_owned()).collect(),
            plan: plan.into(),
        };
        let guests = [
            guest(&["chase", "a b"], "/p/2"),
            guest(&["chase", "c"], "/p/1"),
            guest(&["walk"], "/p/2"),
        ];
        let command = harvest
            .command(Path::new("/m"), Path::new("/machine"), &guests)
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
    fn guests_are_told_by_their_words_in_whatever_order() {
        let words = [["chase", "1"], ["sort", "1"], ["chase", "1"], ["walk", "3"]]
            .map(|words| words.map(str::to_owned).to_vec());
        let told = [
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
            ends(&words, &told),
            [first, End::NotBegun, End::NotBegun, End::Lost]
        );
    }

    #[test]
    fn without_a_document_the_exit_code_says_whether_anything_began() {
        let place = tempfile::tempdir().unwrap();
        let mut harvest = Harvest::prepare(place.path()).unwrap();
        harvest.words = vec![vec!["a".to_owned()]; 2];
        assert_eq!(harvest.ends(2, 0), [End::NotBegun, End::NotBegun]);
        assert_eq!(harvest.ends(0, 9), [End::Lost, End::Lost]);
        assert_eq!(harvest.ends(0, 0), [End::Lost, End::Lost]);
        std::fs::write(harvest.room.path().join("1-0.out"), "").unwrap();
        assert_eq!(harvest.ends(2, 0), [End::Lost, End::Lost]);
        assert_eq!(
            stderr_beside(Path::new("/d/1-0.out")),
            Path::new("/d/1-0.err")
        );
    }
}
