//! Compiling fixtures.

use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

/// The fixtures' sources.
pub(crate) fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/it/fixtures")
        .join(name)
}

/// Files of one test.
pub(crate) struct Workshop(TempDir);

impl Workshop {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().expect("there is room for a directory"))
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Compiles a fixture. `None`, with a message, if there is no such compiler.
    pub(crate) fn compile(
        &self,
        compiler: &str,
        flags: &str,
        fixture: &str,
        out: &str,
    ) -> Option<PathBuf> {
        let path = self.path(out);
        let mut command = Command::new(compiler);
        // Compilers speak of the directory that they were started in.
        command.current_dir(self.0.path());
        command.args(flags.split_whitespace());
        command.arg("-o").arg(&path).arg(source(fixture));
        self.succeed(compiler, command).then_some(path)
    }

    /// Runs a tool on files of the workshop. `false`, with a message, if there is no such tool.
    pub(crate) fn tool(&self, tool: &str, arguments: &[&str]) -> bool {
        let mut command = Command::new(tool);
        command.current_dir(self.0.path()).args(arguments);
        self.succeed(tool, command)
    }

    fn succeed(&self, name: &str, mut command: Command) -> bool {
        let out = match command.output() {
            Ok(out) => out,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                membound_testkit::skipped(format!("no {name}"));
                return false;
            }
            Err(error) => panic!("cannot start {name}: {error}"),
        };
        assert!(
            out.status.success(),
            "{command:?}: {}",
            String::from_utf8_lossy(&out.stderr)
        );
        true
    }
}
