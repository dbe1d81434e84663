//! One run of a command with the agent in it.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use membound_rewrite::image::Identity;
use membound_rewrite::patch::{self, Hooks};
use membound_wire::{CONTROL_VARIABLE, PADDING_VARIABLE, Runtime, ScavengerPlacement};
use rustix::process::{Pid, WaitOptions, waitpid};
use tempfile::TempDir;

use crate::allocations::Objects;
use crate::allocators::Allocators;
use crate::cache::Cache;
use crate::channel::Listener;
use crate::choice::{Choice, Pace};
use crate::collecting::Collector;
use crate::exchange::Executed;
use crate::following::Following;
use crate::harvest::{Harvest, Harvested, Harvesting};
use crate::live::Doorbells;
use crate::modules::Plans;
use crate::planting::Planting;
use crate::program::{self, CannotRun, Unpatched};
use crate::records::Recording;
use crate::report::Report;
use crate::server::{Live, Server, Wanted};
use crate::short_lived::{Draw, ShortLived};
use crate::ticks::Ticks;
use crate::timers::{Registers, Standing, Timers};
use crate::trials::{Held, Holding};
use crate::unwind::{self, Unwinding};
use crate::withdrawn::YieldPlace;
use crate::{slice, spawn};

pub(crate) const PRELOAD: &str = "LD_PRELOAD";
/// Runs scripts that name no interpreter.
const SHELL: &str = "/bin/sh";

/// How programs are patched and observed.
#[derive(Clone, Debug)]
pub struct Options {
    /// Options of the plans.
    pub plan: patch::Options,
    /// Where plans are stored; `None`: nowhere.
    pub cache: Option<Cache>,
    /// Distinguishes plans of different builds in the cache.
    pub revision: String,
    /// Whether patches change while programs run.
    pub live: Live,
    /// Bytes of text for whose plans a program waits, in all its files that were never planned. Files beyond that are
    /// planned while it runs; what their code does before it is patched is not observed. `None`: programs wait for the
    /// plans of all files, also of those that they open later.
    pub text_at_start: Option<u64>,
    /// Which processes of short-lived executables are patched. With timer samples or a harvest, all are.
    pub short_lived: ShortLived,
    /// Mean number of executions between two samples of a site.
    pub period: u32,
    /// How recorded accesses are collected; `None`: programs do not record.
    pub recording: Option<Recording>,
    /// How allocations are followed; `None`: they are not.
    pub objects: Option<Objects>,
    /// How the agent takes timer samples; `None`: it does not.
    pub timers: Option<Timers>,
    /// What runs inside the command; `None`: nothing.
    pub harvest: Option<Harvest>,
    /// Parent of the session's directory: a short path that programs can access.
    pub directory: PathBuf,
    /// Directory for files with names of trampolines; `None`: none are written. perf reads those in `/tmp`.
    pub perf_maps: Option<PathBuf>,
}

/// The command to run.
#[derive(Debug)]
pub struct Program {
    /// Name or path of the command.
    pub name: OsString,
    /// Its arguments, without the name.
    pub arguments: Vec<OsString>,
    /// Value of `PATH` with which the command is found.
    pub search: Option<OsString>,
    /// Entries of the environment in order, `NAME=value` or any other text.
    pub environment: Vec<OsString>,
}

/// Why a session cannot begin.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The command does not exist or cannot be executed.
    #[error(transparent)]
    CannotRun(#[from] CannotRun),
    /// The session's own files cannot be made.
    #[error("cannot prepare the agent in {}: {error}", directory.display())]
    Prepare {
        /// Directory of these files.
        directory: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// This process would fail in the middle of a recording, and the command with it.
    #[error(
        "this shell permits {mebibytes} MiB of address space (ulimit -v), and a recording needs {}",
        MIN_ADDRESS_SPACE_BYTES >> 20
    )]
    LittleAddressSpace {
        /// The limit.
        mebibytes: u64,
    },
}

/// Address space that a session may need for plans, rings and names of a usual program.
const MIN_ADDRESS_SPACE_BYTES: u64 = 768 << 20;

/// A running command.
#[derive(Debug)]
pub struct Session {
    pid: u32,
    /// Threads that collect records, allocations and timer samples.
    collectors: Vec<Collector>,
    path: PathBuf,
    obstacle: Option<Unpatched>,
    server: Arc<Server>,
    listener: Arc<Listener>,
    thread: JoinHandle<()>,
    /// Deleted with the session.
    _directory: TempDir,
}

/// How the agent gets into the programs of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Agent {
    /// By the program's loader.
    Inside,
    /// By the program itself, see [`crate::load_agent`].
    SelfLoaded,
    Absent,
}

/// A change of the command's process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It was stopped by this signal.
    Stopped(i32),
    /// It has ended.
    Ended(ExitStatus),
}

impl Session {
    /// Starts `program` with its environment and this process's descriptors and process group.
    ///
    /// # Errors
    /// If the command cannot be run at all. A command that cannot be patched runs as it is, and [`Report`]
    /// says why.
    pub fn start(program: &Program, options: Options) -> Result<Self, Error> {
        Self::begin(program, options, Agent::Inside)
    }

    /// Starts `program` as [`Self::start`] does, but without the agent: its environment stays as it is, and
    /// nothing in it is ever patched. For recordings that need nothing from inside the program.
    ///
    /// # Errors
    /// If the command cannot be run.
    pub fn start_untouched(program: &Program, options: Options) -> Result<Self, Error> {
        Self::begin(program, options, Agent::Absent)
    }

    /// Starts `program` as [`Self::start`] does. It calls [`crate::load_agent`], and may be statically
    /// linked.
    ///
    /// # Errors
    /// If the command cannot be run.
    pub fn start_self_loading(program: &Program, options: Options) -> Result<Self, Error> {
        Self::begin(program, options, Agent::SelfLoaded)
    }

    fn begin(program: &Program, options: Options, presence: Agent) -> Result<Self, Error> {
        let limit = rustix::process::getrlimit(rustix::process::Resource::As).current;
        if let Some(limit) = limit.filter(|limit| *limit < MIN_ADDRESS_SPACE_BYTES) {
            return Err(Error::LittleAddressSpace {
                mebibytes: limit >> 20,
            });
        }
        let mut path = program::find(&program.name, program.search.as_deref())?;
        let mut obstacle = match presence {
            Agent::Inside => program::examine(&path),
            Agent::SelfLoaded | Agent::Absent => None,
        };
        let place = options.directory.clone();
        let prepare = |error| Error::Prepare {
            directory: place.clone(),
            error,
        };
        let directory = own_directory(&options.directory).map_err(prepare)?;
        let control = directory.path().join("control");
        let listener = Arc::new(Listener::bind(&control).map_err(prepare)?);
        if rustix::process::geteuid().is_root() {
            open_for_all(directory.path(), 0o711).map_err(prepare)?;
            open_for_all(&control, 0o666).map_err(prepare)?;
        }
        let server = Arc::new(server(options, presence));
        let thread = {
            let (server, listener) = (Arc::clone(&server), Arc::clone(&listener));
            std::thread::spawn(move || {
                slice::shorten();
                server.run(&listener);
            })
        };
        let mut environment = program.environment.clone();
        let is_wanted = presence != Agent::Absent && !program::is_32_bit(&path);
        if is_wanted && !crate::AGENT.is_empty() {
            let agent = directory.path().join("agent.so");
            fs::write(&agent, crate::AGENT).map_err(prepare)?;
            open_for_all(&agent, 0o755).map_err(prepare)?;
            bring_agent(&mut environment, &agent, &control, &path);
        }
        let pid = start(program, &mut path, &environment)?;
        if presence == Agent::Inside && path == Path::new(SHELL) {
            obstacle = program::examine(&path);
        }
        Ok(Self {
            pid,
            collectors: collectors(&server),
            path,
            obstacle,
            server,
            listener,
            thread,
            _directory: directory,
        })
    }

    /// The command's process number.
    #[must_use]
    pub const fn pid(&self) -> u32 {
        self.pid
    }

    /// Why the command runs without patches, as far as that is known before it has started.
    #[must_use]
    pub const fn obstacle(&self) -> Option<&Unpatched> {
        self.obstacle.as_ref()
    }

    /// Waits until the command ends or is stopped.
    ///
    /// # Errors
    /// The system's error if it cannot be waited for.
    pub fn wait(&self) -> io::Result<Change> {
        let pid = i32::try_from(self.pid()).ok().and_then(Pid::from_raw);
        let pid = pid.ok_or(io::ErrorKind::InvalidInput)?;
        loop {
            match waitpid(Some(pid), WaitOptions::UNTRACED) {
                Ok(Some((_, status))) => {
                    if let Some(signal) = status.stopping_signal() {
                        return Ok(Change::Stopped(signal));
                    }
                    if status.exited() || status.signaled() {
                        let status = ExitStatus::from_raw(status.as_raw());
                        return Ok(Change::Ended(status));
                    }
                }
                Ok(None) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// A handle that can change the text from another thread.
    #[must_use]
    pub fn remote(&self) -> Remote {
        Remote(Arc::clone(&self.server))
    }

    /// Ends the session: programs that still run go on as they are, without a server.
    #[must_use]
    pub fn finish(self) -> Report {
        self.listener.close();
        // It ends when the listener is closed.
        let _ = self.thread.join();
        // Records made until now are collected first.
        for collector in self.collectors {
            collector.end();
        }
        Report::of(&self.server, self.pid, &self.path, self.obstacle)
    }
}

/// Changes the text of a session's programs, from any thread.
#[derive(Clone, Debug)]
pub struct Remote(Arc<Server>);

impl Remote {
    /// Sets whether the patches of the session's own plan should be in the text of all programs.
    pub fn want(&self, wanted: Wanted) {
        self.0.want(wanted);
    }

    /// True if an exchange with a choice in `file` plans within milliseconds. If not, this starts the slow part of
    /// planning, an outline of the file, in the background.
    #[must_use]
    pub fn is_ready(&self, file: &Identity) -> bool {
        self.0.plans().is_ready(file)
    }

    /// Makes `choices` the complete set of patches beside the session's own plan: in programs of a live
    /// session soon, in modules that are loaded later at once. Returns a number for [`Self::settled`].
    /// Yields of a harvest, and modules of scavengers, stay as they are.
    pub fn exchange(&self, choices: Vec<Choice>) -> u64 {
        self.0.exchange(choices)
    }

    /// Sets whether what programs report is collected rarely, because they serve requests and nothing is
    /// patched: accesses and allocations then arrive some 0.1 s late.
    pub fn set_calm(&self, calm: bool) {
        self.0.pacing.set_calm(calm);
    }

    /// True if any program of a live session takes part in exchanges: one whose start is complete, and
    /// which can be patched. Until then choices are placed in no program.
    #[must_use]
    pub fn takes_part(&self) -> bool {
        self.0.settling.any()
    }

    /// Why a program of the session is not patched and will not be: the first one's reason; `None`: there
    /// is no such program.
    #[must_use]
    pub fn given_up(&self) -> Option<String> {
        self.0.ledger().given_up().map(str::to_owned)
    }

    /// True if every program of a live session that still runs has done the exchange of this number, or a
    /// later one. Forked children that do not execute another program are ignored: they keep the text of
    /// the fork.
    #[must_use]
    pub fn settled(&self, exchange: u64) -> bool {
        self.0.settled(exchange)
    }

    /// Sum of the time, in nanoseconds, in which the text of programs was being changed so far: threads stood, or met
    /// traps.
    #[must_use]
    pub fn changing_ns(&self) -> u64 {
        self.0.stops.changing_ns()
    }

    /// Addresses of a choice that cannot be patched, with reasons; `None` if it was not placed in any
    /// program yet.
    #[must_use]
    pub fn refused(&self, choice: &Choice) -> Option<Vec<(u64, patch::Refusal)>> {
        self.0.refused(choice)
    }

    /// Sets how often sites of a choice are sampled, and how many times, in all programs that have it or
    /// will have it. Sites without a pace are sampled with [`Options::period`], without end. Must be called
    /// before an exchange that chooses it, since executions meanwhile may be counted wrong. `paces` has
    /// addresses in the file, sorted.
    pub fn arm(&self, choice: &Choice, paces: &[(u64, Pace)]) {
        self.0.arm(choice, paces);
    }

    /// Restores the registers that a thread of `pid` would have in the original program, if it is in a
    /// trampoline. `read` reads words of that thread's stack.
    #[must_use]
    pub fn standing(
        &self,
        pid: u32,
        registers: &mut Registers,
        read: &dyn Fn(u64) -> Option<u64>,
    ) -> Standing {
        self.0.standing(pid, registers, read)
    }

    /// Results of the session's harvest so far; `None` without a harvest.
    #[must_use]
    pub fn harvested(&self) -> Option<Harvested> {
        self.0.harvesting.as_ref().map(Harvesting::harvested)
    }

    /// Sets the share of the time, 0 to 1, in which scavengers are admitted from now on.
    pub fn set_admitted_share(&self, share: f64) {
        if let Some(harvesting) = &self.0.harvesting {
            harvesting.set_admitted_share(share);
        }
    }

    /// Sets where each scavenger runs, in the order of the scavengers. A scavenger in a run queue moves at
    /// the next yield of that queue's thread. The caller binds home threads to CPUs
    /// ([`ScavengerStatus::thread`](crate::ScavengerStatus::thread)).
    pub fn set_places(&self, places: &[ScavengerPlacement]) {
        if let Some(harvesting) = &self.0.harvesting {
            harvesting.set_places(places);
        }
    }

    /// Removes these yields of the command from its text, and installs all others: soon, if the session is
    /// live. A yield whose group also holds one that stays is not removed; [`Harvested::withdrawn`] has the
    /// removed ones. Returns a number for [`Self::settled`].
    pub fn withdraw(&self, yields: Vec<YieldPlace>) -> u64 {
        self.0.withdraw(yields)
    }

    /// Adds yields to those of the command; in a live session they are soon installed in its running text.
    /// Those without a place are in [`Harvested::missed`]. (Scavengers get all their yields before they
    /// run.) Returns a number for [`Self::settled`].
    pub fn plant(&self, primary: Vec<Planting>) -> u64 {
        self.0.plant_more(primary)
    }

    /// Makes phases with and without scavengers at least this long, in nanoseconds, up to half a second:
    /// requests that take longer are counted in none.
    pub fn lengthen_phases(&self, length_ns: f64) {
        if let Some(harvesting) = &self.0.harvesting {
            harvesting.lengthen_phases(length_ns);
        }
    }

    /// Sets, from now on, the time from a yield until the command's data have arrived, in nanoseconds, and
    /// the number of time slices that scavengers skip after each miss of their own.
    pub fn set_turns(&self, span_ns: f64, skips: u32) {
        if let Some(harvesting) = &self.0.harvesting {
            harvesting.set_turns(span_ns, skips);
        }
    }

    /// Requests a trial in a process of a live session: see [`Holding`]. [`Self::held`] returns its result.
    pub fn hold(&self, holding: Holding) {
        self.0.hold(holding);
    }

    /// Takes the result of the last trial, when it is over.
    #[must_use]
    pub fn held(&self) -> Option<Held> {
        self.0.trials.take()
    }

    /// Executions of a choice's sites so far; `None` if it was placed nowhere yet, or its body does not
    /// count.
    #[must_use]
    pub fn executed(&self, choice: &Choice) -> Option<Vec<Executed>> {
        self.0.executed(choice)
    }
}

/// The server of a session.
fn server(options: Options, presence: Agent) -> Server {
    let mut plan = options.plan;
    if (options.timers.is_some() || options.harvest.is_some()) && plan.hooks == Hooks::Plant {
        let waits = options.harvest.as_ref().is_some_and(Harvest::in_waits);
        plan.hooks = if waits { Hooks::Waiting } else { Hooks::Timed };
    }
    let mut plans = Plans::new(plan, options.cache, options.revision);
    if let Some(harvest) = &options.harvest {
        plans = plans.around(harvest.alone());
    }
    if let Some(objects) = &options.objects {
        plans = plans.wrapping(Allocators::new(&objects.others));
    }
    let doorbells = Arc::new(Doorbells::default());
    if let Some(text_at_start) = options.text_at_start {
        plans = plans.deferring(text_at_start, Arc::clone(&doorbells));
    }
    let mut server = Server::new(
        Arc::new(plans),
        doorbells,
        options.live,
        options.period,
        options.recording,
        options.perf_maps,
    );
    if options.objects.is_some() || options.timers.is_some() {
        server.unwinding = Some(Unwinding::default());
        unwind::prepare_own();
    }
    if options.timers.is_none() && options.harvest.is_none() {
        server.draw = Draw::new(options.short_lived);
    }
    server.harvesting = options.harvest.map(Harvesting::new);
    server.following = options.objects.map(Following::new);
    server.ticks = options.timers.map(Ticks::new);
    server.loads_itself = presence == Agent::SelfLoaded;
    server
}

/// Makes the loader of the program at `path` load the agent, and tells the agent where the launcher listens.
fn bring_agent(environment: &mut Vec<OsString>, agent: &Path, control: &Path, path: &Path) {
    let users = spawn::value(environment, PRELOAD).map(OsStr::to_owned);
    let list = preload(agent, users.as_deref(), File::open(path).ok().as_ref());
    spawn::set(environment, PRELOAD, &list);
    spawn::set(environment, CONTROL_VARIABLE, control.as_os_str());
    if users.is_some() {
        spawn::set(environment, PADDING_VARIABLE, OsStr::new(""));
    }
}

/// Starts the threads that collect what agents write.
fn collectors(server: &Arc<Server>) -> Vec<Collector> {
    let collector = |collect: fn(&Server, &dyn Fn(Duration) -> bool)| {
        let of = Arc::clone(server);
        Collector::start(&server.pacing, move |stopped| collect(&of, stopped))
    };
    let mut collectors = vec![collector(|server, stopped| server.collect(stopped))];
    if server.following.is_some() {
        collectors.push(collector(|server, stopped| {
            if let Some(following) = &server.following {
                following.run(stopped);
            }
        }));
    }
    if server.ticks.is_some() {
        collectors.push(collector(|server, stopped| {
            if let Some(ticks) = &server.ticks {
                ticks.run(stopped);
            }
        }));
    }
    collectors
}

/// Starts the command. A file that the kernel does not accept as a program is given to the shell, as
/// `execvp` does; `path` is then the shell's.
fn start(
    program: &Program,
    path: &mut PathBuf,
    environment: &[OsString],
) -> Result<u32, CannotRun> {
    let mut words = vec![program.name.clone()];
    words.extend_from_slice(&program.arguments);
    let refused = |path: &Path, error: &io::Error| CannotRun::NotExecutable {
        path: path.to_owned(),
        reason: error.to_string(),
    };
    match spawn::spawn(path, &words, environment) {
        Ok(pid) => Ok(pid),
        Err(error)
            if error.raw_os_error() == Some(libc::ENOEXEC)
                && spawn::is_script_without_magic(path) =>
        {
            let script = std::mem::replace(path, PathBuf::from(SHELL));
            words[0] = SHELL.into();
            words.insert(1, script.into_os_string());
            spawn::spawn(path, &words, environment).map_err(|error| refused(path, &error))
        }
        Err(error) => Err(refused(path, &error)),
    }
}

/// Makes a directory that other users cannot read. The loader splits its list of objects at spaces and
/// colons, and a socket's path has at most 108 bytes.
fn own_directory(parent: &Path) -> io::Result<TempDir> {
    const MAX_DIRECTORY_PATH_BYTES: usize = 70;
    let usable = |path: &Path| {
        let bytes = path.as_os_str().as_bytes();
        path.is_absolute()
            && bytes.len() <= MAX_DIRECTORY_PATH_BYTES
            && !bytes.iter().any(|byte| matches!(byte, b' ' | b':' | b'\n'))
    };
    let parent = if usable(parent) {
        parent
    } else {
        Path::new("/tmp")
    };
    tempfile::Builder::new()
        .prefix("membound-")
        .permissions(fs::Permissions::from_mode(0o700))
        .tempdir_in(parent)
}

/// Sets the mode of a file that programs need which root starts and which then become another user, as servers
/// do. Who may converse is decided by [`crate::channel::Channel::peer`].
fn open_for_all(path: &Path, mode: u32) -> io::Result<()> {
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
}

/// The list of preloaded objects with the agent, for the program in `file`. The agent precedes the user's
/// objects, so that it is initialised before they run.
fn preload(agent: &Path, users: Option<&OsStr>, file: Option<&File>) -> OsString {
    let runtime = Runtime::of(users.map(OsStr::as_bytes), |offset, room| {
        file?.read_exact_at(room, offset).ok()
    });
    let mut list = Vec::new();
    if let Some(runtime) = runtime {
        list.extend_from_slice(runtime.name());
        list.push(b':');
    }
    list.extend_from_slice(agent.as_os_str().as_bytes());
    if let Some(users) = users {
        list.push(b':');
        list.extend_from_slice(users.as_bytes());
    }
    OsString::from_vec(list)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_users_own_objects_stay_in_the_list_as_they_are() {
        let agent = Path::new("/t/agent.so");
        assert_eq!(preload(agent, None, None), "/t/agent.so");
        assert_eq!(
            preload(agent, Some("a.so b.so:/c.so".as_ref()), None),
            "/t/agent.so:a.so b.so:/c.so"
        );
        assert_eq!(preload(agent, Some("".as_ref()), None), "/t/agent.so:");
    }

    #[test]
    fn a_directory_that_the_loader_would_split_is_not_used() {
        for parent in ["/tmp/a b", "/tmp/a:b", "relative", &"/x".repeat(60)] {
            let made = own_directory(Path::new(parent)).unwrap();
            assert!(made.path().starts_with("/tmp"), "{parent}");
            let mode = fs::metadata(made.path()).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o700);
        }
    }
}
