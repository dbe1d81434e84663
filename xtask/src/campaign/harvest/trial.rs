//! One run: the primary alone, then with its scavengers and under signals, and the differences.

use std::path::Path;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use membound_types::{HarvestRun, Scavenger as Reported, ScavengerState};
use serde_json::{Value, json};

use super::disturb::{Disturbed, Target, children, disturb, end_group, stacks};
use super::draw::Case;
use super::field::{Field, stream};
use crate::campaign::outcome::{Ending, first_difference};
use crate::run::shown;

/// Time that processes left over from a run have to end.
const GRACE: Duration = Duration::from_secs(5);

/// Result of a run.
#[derive(Debug, Default)]
pub(super) struct Trial {
    /// What is wrong with the run, one failure each; empty if nothing is.
    pub(super) failures: Vec<String>,
    /// The command, as a shell would accept it.
    pub(super) command: String,
    /// How the primary ended.
    pub(super) ending: String,
    /// Signals that were sent to the primary.
    pub(super) sent: Disturbed,
    pub(super) elapsed_s: f64,
    /// The document of `harvest run`.
    pub(super) document: Option<HarvestRun>,
    /// State and stacks of everything that hung.
    pub(super) stacks: Option<String>,
}

impl Trial {
    /// Runs a case in a directory of its own.
    pub(super) fn run(field: &Field, case: &Case, room: &Path) -> Result<Self> {
        let mut trial = Self::default();
        let alone = trial.alone(field, case, room)?;
        let mut command = field.command(case, room)?;
        trial.command = line(&command);
        let begun = Instant::now();
        let ending = trial.finish(&mut command, case, field, room)?;
        trial.elapsed_s = begun.elapsed().as_secs_f64();
        trial.ending = ending.to_string();
        trial.compare(case, room, alone, ending);
        let text = std::fs::read_to_string(room.join("harvest.json")).unwrap_or_default();
        match serde_json::from_str::<HarvestRun>(&text) {
            Ok(document) => {
                trial.hold(field, case, room, &document)?;
                trial.document = Some(document);
            }
            Err(error) => trial
                .failures
                .push(format!("there is no document: {error}")),
        }
        Ok(trial)
    }

    fn alone(&mut self, field: &Field, case: &Case, room: &Path) -> Result<Ending> {
        let mut command = field.alone(case, room);
        command
            .stdout(stream(room, "alone.stdout")?)
            .stderr(stream(room, "alone.stderr")?);
        let mut child = command
            .spawn()
            .with_context(|| format!("cannot start {}", shown(&command)))?;
        let ending = wait(&mut child, field.patience)?;
        if let Some(status) = ending {
            return Ok(status);
        }
        self.stacks = Some(stacks(child.id()));
        end_group(child.id());
        child.wait()?;
        self.failures.push("it hangs without membound".to_owned());
        Ok(Ending::Hung)
    }

    /// Runs `membound harvest run` to its end, and sends signals to its primary.
    fn finish(
        &mut self,
        command: &mut Command,
        case: &Case,
        field: &Field,
        room: &Path,
    ) -> Result<Ending> {
        command
            .stdout(stream(room, "stdout")?)
            .stderr(stream(room, "stderr")?);
        let mut child = command.spawn().context("cannot start membound")?;
        let leader = child.id();
        let target = Target {
            path: field.primary(&case.primary),
            parent: leader,
        };
        let begun = Instant::now();
        let over = AtomicBool::new(false);
        let ended = std::thread::scope(|scope| {
            let disturber = scope.spawn(|| disturb(case, target, || !over.load(Ordering::Acquire)));
            let ended = wait(&mut child, field.patience);
            if matches!(ended, Ok(None)) {
                self.stacks = Some(stacks(leader));
            }
            over.store(true, Ordering::Release);
            self.sent = disturber.join().expect("the disturber does not panic");
            ended
        })?;
        let ending = match ended {
            Some(ending) => ending,
            None => {
                self.failures.push(format!(
                    "it hangs after {:.0} s",
                    begun.elapsed().as_secs_f64()
                ));
                end_group(leader);
                child.wait()?;
                Ending::Hung
            }
        };
        self.hold_that_all_is_gone();
        Ok(ending)
    }

    /// Processes that lose their parent become children of this process: none may be left.
    fn hold_that_all_is_gone(&mut self) {
        let begun = Instant::now();
        loop {
            // SAFETY: a null pointer asks for no status; children that `Child` knows were waited for.
            while unsafe { libc::waitpid(-1, std::ptr::null_mut(), libc::WNOHANG) } > 0 {}
            let left = children(std::process::id());
            if left.is_empty() {
                return;
            }
            if begun.elapsed() > GRACE {
                self.failures
                    .push(format!("processes are left over: {left:?}"));
                let told: String = left.iter().map(|process| stacks(*process)).collect();
                self.stacks.get_or_insert_default().push_str(&told);
                for process in left {
                    // SAFETY: it touches no memory; it is a child that has not been waited for.
                    unsafe { libc::kill(process.cast_signed(), libc::SIGKILL) };
                }
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn compare(&mut self, case: &Case, room: &Path, alone: Ending, ending: Ending) {
        if alone == Ending::Hung || ending == Ending::Hung {
            return;
        }
        let by = case.killed.filter(|_| self.sent.is_killed);
        if by.map(|(_, signal)| Ending::Killed(signal)) == Some(ending) {
            return;
        }
        if ending != alone {
            self.failures
                .push(format!("it ended with {ending}, alone with {alone}"));
        }
        for stream in ["stdout", "stderr"] {
            let read = |name: &str| std::fs::read(room.join(name)).unwrap_or_default();
            let kept = |text: Vec<u8>| match stream {
                "stdout" => case.primary.kept(&text),
                _ => String::from_utf8_lossy(&text)
                    .lines()
                    .map(str::to_owned)
                    .collect(),
            };
            let before = kept(read(&format!("alone.{stream}")));
            let after = kept(read(stream));
            if let Some(difference) = first_difference(&before, &after) {
                self.failures.push(format!("{stream}, {difference}"));
            }
        }
    }

    /// Checks how scavengers ended, and compares their outputs with those of runs alone.
    fn hold(
        &mut self,
        field: &Field,
        case: &Case,
        room: &Path,
        document: &HarvestRun,
    ) -> Result<()> {
        let is_killed = self.sent.is_killed;
        let before_it_began =
            |reported: &Reported| is_killed && reported.state == ScavengerState::Refused;
        let copies = document.scavengers.len() / case.scavengers.len().max(1);
        for (index, reported) in document.scavengers.iter().enumerate() {
            let Some(scavenger) = case.scavengers.get(index / copies.max(1)) else {
                self.failures
                    .push("the document has other scavengers".to_owned());
                return Ok(());
            };
            if before_it_began(reported) {
                continue;
            }
            let name = format!("{} {}", scavenger.name, scavenger.words.join(" "));
            if let Some(why) = wrong_end(reported, scavenger.end) {
                self.failures
                    .push(format!("scavenger {index}, `{name}`: {why}"));
            }
            // A primary that dies of a signal has no end at which scavengers could finish, and a
            // signal that arrives while they finish ends that with the primary's own exit code.
            let is_over = document.primary.exit_code.is_some()
                && !is_killed
                && document.options.finish
                && !case.primary.ends_scavengers();
            if is_over && reported.state == ScavengerState::Unfinished {
                self.failures
                    .push(format!("scavenger {index}, `{name}`, did not finish"));
            }
            let has_ended = reported.state != ScavengerState::Unfinished;
            if let (true, true, Some(path)) = (scavenger.is_known, has_ended, &reported.output) {
                let expected = field.output_of(scavenger, room)?;
                let found = std::fs::read(path).unwrap_or_default();
                if expected != found {
                    let text = String::from_utf8_lossy(&found).into_owned();
                    self.failures.push(format!(
                        "scavenger {index}, `{name}`, wrote otherwise: {text}"
                    ));
                }
            }
        }
        Ok(())
    }

    /// Everything except the outputs.
    pub(super) fn raw(&self, case: &Case) -> Value {
        let document = self.document.as_ref();
        let sum = |of: fn(&Reported) -> bool| {
            document.map_or(0, |it| it.scavengers.iter().filter(|it| of(it)).count())
        };
        json!({
            "seed": case.seed,
            "primary": case.primary.name,
            "words": case.primary.words,
            "options": case.options,
            "scavengers": case.scavengers.iter().map(|it| format!("{} {}", it.name, it.words.join(" "))).collect::<Vec<_>>(),
            "ending": self.ending,
            "killed": self.sent.is_killed,
            "signals": self.sent.signals,
            "elapsed_s": self.elapsed_s,
            "yields": document.map(|it| it.primary.yields),
            "threads": document.map(|it| it.primary.threads),
            "notes": document.map(|it| it.notes.clone()),
            "missing_sites": document.map(|it| it.sites.iter().filter(|it| it.reason.is_some()).count()),
            "moves": document.map(|it| it.moves),
            "turns": document.map(|it| it.scavengers.iter().map(|it| it.turns).sum::<u64>()),
            "crashed": sum(|it| it.state == ScavengerState::Crashed),
            "finished": sum(|it| it.state == ScavengerState::Finished),
            "unfinished": sum(|it| it.state == ScavengerState::Unfinished),
            "refused": sum(|it| it.state == ScavengerState::Refused),
            "failures": self.failures,
        })
    }
}

/// What is wrong with how a scavenger ended, if `expected` is its end alone.
fn wrong_end(reported: &Reported, expected: Option<Result<i32, i32>>) -> Option<String> {
    let found = match (reported.state, reported.exit_code, reported.signal) {
        (ScavengerState::Unfinished, ..) => return None,
        (ScavengerState::Finished, Some(code), _) => Ok(code),
        (ScavengerState::Crashed, _, Some(signal)) => Err(signal),
        (state, ..) => return Some(format!("it is {state:?}: {:?}", reported.reason)),
    };
    (Some(found) != expected).then(|| format!("it ended with {found:?}, alone with {expected:?}"))
}

/// A command as a shell accepts it, with the variables that it needs.
fn line(command: &Command) -> String {
    let quoted = |word: &std::ffi::OsStr| {
        let word = word.to_string_lossy();
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./=%".contains(c);
        if word.chars().all(is_plain) {
            word.into_owned()
        } else {
            format!("'{word}'")
        }
    };
    let variables = command
        .get_envs()
        .filter(|(name, _)| *name == "HARVEST_STORM" || *name == "XDG_CACHE_HOME")
        .filter_map(|(name, value)| Some(format!("{}={}", name.to_string_lossy(), quoted(value?))));
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    variables
        .chain(words.map(quoted))
        .collect::<Vec<_>>()
        .join(" ")
}

/// Waits for `child` for at most `patience`; `None` if it did not end.
fn wait(child: &mut Child, patience: Duration) -> Result<Option<Ending>> {
    let begun = Instant::now();
    while begun.elapsed() < patience {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status.into()));
        }
        std::thread::sleep(Duration::from_millis(3));
    }
    Ok(None)
}
