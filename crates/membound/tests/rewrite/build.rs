//! Fixtures from their sources, built once and kept until a source changes.

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use membound_testkit::Fixtures;
pub(crate) use membound_testkit::{Compiler, is_there};

static FIXTURES: LazyLock<Fixtures> = LazyLock::new(|| {
    Fixtures::new(
        concat!(env!("CARGO_MANIFEST_DIR"), "/tests/rewrite/fixtures"),
        concat!(env!("CARGO_TARGET_TMPDIR"), "/rewrite"),
    )
});

/// Where programs are built and kept.
pub(crate) fn directory() -> &'static Path {
    FIXTURES.directory()
}

/// Builds `source` with `words`; see [`Fixtures::build`].
pub(crate) fn build(compiler: Compiler, source: &str, words: &str) -> Option<PathBuf> {
    FIXTURES.build(compiler, source, words)
}
