//! Starts a test binary so that it finds the same environment wherever the tests are started: under
//! `nohup`, in a container, from an editor.
//!
//! The standard library gives every child an empty signal mask. But signals that the parent ignores
//! stay ignored, and its environment and limits are inherited: `env` and `prlimit` reset these,
//! without code of our own between fork and exec.

use std::ffi::OsString;
use std::path::Path;
use std::process::Command;
use std::sync::LazyLock;

use crate::run::{note, program};

/// Words before a program so that it starts with every signal's default action, no core files, the
/// usual number of descriptors and the usual stack. The limits are soft ones: a test that needs
/// more can raise them.
const WORDS: [&str; 6] = [
    "env",
    "--default-signal",
    "prlimit",
    "--core=0:",
    "--nofile=1024:",
    "--stack=8388608:",
];

/// Variables that are kept; a name that ends with `*` matches all names that begin so.
const KEPT: [&str; 15] = [
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "TMPDIR",
    "CARGO*",
    "RUST*",
    "PROPTEST_*",
    "INSTA_*",
    "GO*",
    "LD_LIBRARY_PATH",
    "CI",
    "PWD",
    "SSL_CERT_*",
    "DEBIAN_FRONTEND",
];

/// Variables that have the same value everywhere.
const FIXED: [(&str, &str); 4] = [
    ("LANG", "C.UTF-8"),
    ("TZ", "UTC"),
    ("TERM", "dumb"),
    ("SHELL", "/bin/sh"),
];

/// The program at `path`, to be started in `directory`.
pub(super) fn undisturbed(path: &Path, directory: &Path) -> Command {
    let mut command = if *RESETS {
        let mut command = Command::new(WORDS[0]);
        command.args(&WORDS[1..]).arg(path);
        command
    } else {
        Command::new(path)
    };
    command
        .current_dir(directory)
        .stdin(std::process::Stdio::null());
    command.env_clear();
    command.envs(kept(std::env::vars_os()));
    command.envs(FIXED);
    command
}

/// Whether `env` and `prlimit` can do this; a note is printed if they cannot.
static RESETS: LazyLock<bool> = LazyLock::new(|| {
    let mut trial = program(WORDS[0]);
    let can = trial
        .args(&WORDS[1..])
        .arg("true")
        .output()
        .is_ok_and(|output| output.status.success());
    if !can {
        note(
            "tests inherit ignored signals and limits: `env --default-signal` (coreutils 8.31) or \
             `prlimit` (util-linux) does not work here",
        );
    }
    can
});

fn kept(
    variables: impl Iterator<Item = (OsString, OsString)>,
) -> impl Iterator<Item = (OsString, OsString)> {
    variables.filter(|(name, _)| {
        let name = name.to_string_lossy();
        KEPT.iter().any(|kept| match kept.strip_suffix('*') {
            Some(beginning) => name.starts_with(beginning),
            None => name == *kept,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_listed_is_kept() {
        let given = [
            "PATH",
            "CARGO_HOME",
            "COLUMNS",
            "NO_COLOR",
            "LD_PRELOAD",
            "CIX",
        ];
        let names: Vec<_> = kept(given.map(|name| (name.into(), "x".into())).into_iter())
            .map(|(name, _)| name)
            .collect();
        assert_eq!(names, ["PATH", "CARGO_HOME"]);
    }

    /// As under `nohup`: the process that starts the tests ignores SIGHUP.
    #[test]
    fn an_ignored_signal_has_its_default_action_again() {
        // Signals after the first 31 are used by the C library, and `env` leaves them as they are.
        const STANDARD: u64 = (1 << 31) - 1;
        if !*RESETS {
            membound_testkit::skipped("no env --default-signal, or no prlimit");
            return;
        }
        let inner = undisturbed(Path::new("sh"), Path::new("/"));
        let words: Vec<OsString> = std::iter::once(inner.get_program().to_owned())
            .chain(inner.get_args().map(Into::into))
            .collect();
        let told = |words: &[OsString]| {
            let mut outer = Command::new("sh");
            outer
                .args(["-c", "trap '' HUP; exec \"$@\"", "sh"])
                .args(words);
            outer.args(["-c", "grep SigIgn /proc/self/status; ulimit -Sc"]);
            let output = outer.output().expect("there is a shell");
            String::from_utf8_lossy(&output.stdout).into_owned()
        };
        let ignored = |text: &str| {
            let mask = text
                .lines()
                .next()
                .and_then(|line| line.split_whitespace().nth(1));
            let mask = u64::from_str_radix(mask.expect("a line of the mask"), 16);
            mask.expect("a number") & STANDARD
        };
        assert_eq!(ignored(&told(&["sh".into()])) & 1, 1);
        let text = told(&words);
        assert_eq!(
            (ignored(&text), text.lines().nth(1)),
            (0, Some("0")),
            "{text}"
        );
    }
}
