//! Builds C programs and runs them under sessions whose output goes to files.

use std::ffi::OsString;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};

use membound_launch::{
    Change, Live, ModuleReport, Options, Patched, Program, Report, Session, ShortLived,
};
use membound_rewrite::image::{FunctionBounds, Image};
use membound_rewrite::patch;
use membound_testkit::skipped;
use tempfile::TempDir;

/// One at a time, so that programs do not compete for the machine.
pub(crate) fn busy() -> MutexGuard<'static, ()> {
    static BUSY: Mutex<()> = Mutex::new(());
    BUSY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A built program in a directory of its own.
pub(crate) struct Fixture {
    pub(crate) home: TempDir,
    pub(crate) program: PathBuf,
}

impl Fixture {
    /// Builds `source` from `fixtures`; `None`, with a message, without a compiler.
    pub(crate) fn build(source: &str) -> Option<Self> {
        Self::build_with(source, &[])
    }

    /// As [`Self::build`], with further `options`.
    pub(crate) fn build_with(source: &str, options: &[&str]) -> Option<Self> {
        Self::build_by("gcc", source, options)
    }

    /// The same, by another compiler.
    pub(crate) fn build_by(compiler: &str, source: &str, options: &[&str]) -> Option<Self> {
        let home = tempfile::tempdir().expect("a directory can be made");
        let code = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("tests/it/fixtures")
            .join(source);
        let program = home.path().join("program");
        let built = Command::new(compiler)
            .args(["-O1", "-fno-builtin", "-pthread", "-o"])
            .args([&program, &code])
            .args(options)
            .output();
        match built {
            Ok(output) if output.status.success() => Some(Self { home, program }),
            Ok(output) => {
                skipped(String::from_utf8_lossy(&output.stderr));
                None
            }
            Err(error) => {
                skipped(format_args!("{compiler}: {error}"));
                None
            }
        }
    }

    /// Options for a session without a cache.
    pub(crate) fn options(&self, plan: patch::Options) -> Options {
        Options {
            plan,
            cache: None,
            revision: String::new(),
            live: Live::Off,
            text_at_start: None,
            short_lived: ShortLived::All,
            period: 100,
            recording: None,
            objects: None,
            timers: None,
            perf_maps: None,
            harvest: None,
            directory: self.home.path().to_owned(),
        }
    }

    /// Makes the program write into a file, and returns its path: a shell redirects the output.
    pub(crate) fn start(&self, options: Options, words: &[&str]) -> (Session, PathBuf) {
        self.start_reading(options, words, Path::new("/dev/null"))
    }

    /// The same, with `input` to read from.
    pub(crate) fn start_reading(
        &self,
        options: Options,
        words: &[&str],
        input: &Path,
    ) -> (Session, PathBuf) {
        self.start_within(options, words, input, membound_launch::environment())
    }

    /// The same, in an environment.
    pub(crate) fn start_within(
        &self,
        options: Options,
        words: &[&str],
        input: &Path,
        environment: Vec<OsString>,
    ) -> (Session, PathBuf) {
        let out = self.home.path().join("out");
        let (input, to) = (input.display(), out.display());
        let script = format!("exec \"$0\" \"$@\" < {input} > {to}");
        let mut arguments: Vec<OsString> = vec!["-c".into(), script.into()];
        arguments.push(self.program.clone().into_os_string());
        arguments.extend(words.iter().map(Into::into));
        let program = Program {
            name: "sh".into(),
            arguments,
            search: std::env::var_os("PATH"),
            environment,
        };
        let session = Session::start(&program, options).expect("there is a shell");
        (session, out)
    }

    /// Runs it to its end, which must be successful; returns its output.
    pub(crate) fn run(&self, options: Options, words: &[&str]) -> (Report, String) {
        let (session, out) = self.start(options, words);
        ends_well(&session);
        let report = session.finish();
        (report, fs::read_to_string(out).expect("the shell made it"))
    }

    /// All functions of the program.
    pub(crate) fn functions(&self) -> Vec<FunctionBounds> {
        let bytes = fs::read(&self.program).expect("it was built");
        let image = Image::parse(&bytes).expect("the compiler writes ELF files");
        image.functions().to_vec()
    }

    /// A function of the program.
    pub(crate) fn function(&self, name: &str) -> FunctionBounds {
        let bytes = fs::read(&self.program).expect("it was built");
        let image = Image::parse(&bytes).expect("the compiler writes ELF files");
        let functions = image.functions();
        let found = functions.iter().find(|it| it.name.as_deref() == Some(name));
        found.expect("the source has it").clone()
    }

    /// Report on the program's own file.
    pub(crate) fn patched<'a>(&self, report: &'a Report) -> &'a Patched {
        let own = |module: &&ModuleReport| module.path == self.program;
        let module = report.modules.iter().find(own);
        let module = module.expect("the program was looked at");
        module.outcome.as_ref().expect("it is an ordinary file")
    }
}

pub(crate) fn ends_well(session: &Session) {
    match session.wait().expect("it is a child") {
        Change::Ended(status) => assert!(status.success(), "{status}"),
        Change::Stopped(signal) => panic!("stopped by {signal}"),
    }
}

/// True if the report's program was patched; prints a message if the machine does not permit it.
pub(crate) fn could_be_patched(report: &Report) -> bool {
    let Some(reason) = &report.unpatched else {
        return true;
    };
    let cannot = ["not permitted", "Permission denied", "no agent for"];
    assert!(cannot.iter().any(|it| reason.contains(it)), "{reason}");
    skipped(reason);
    false
}

/// The addresses that `walk` prints.
pub(crate) struct Places {
    /// Its array.
    pub(crate) cells: Range<u64>,
}

impl Places {
    pub(crate) fn of(out: &str) -> Self {
        let mut words = out.split_whitespace();
        let word = words.next().and_then(|it| it.strip_prefix("0x"));
        let start = word.and_then(|word| u64::from_str_radix(word, 16).ok());
        let start = start.expect("the program prints its array's address first");
        Self {
            cells: start..start + 8192,
        }
    }
}
