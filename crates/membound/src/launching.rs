//! What every command that starts programs needs to know.

use std::path::PathBuf;
use std::time::UNIX_EPOCH;

use etcetera::BaseStrategy;
use membound_launch::Cache;

/// Where plans are kept, unless there is no place for them.
pub(crate) fn cache() -> Option<Cache> {
    let directories = etcetera::choose_base_strategy().ok()?;
    let directory = directories.cache_dir().join("membound").join("plans");
    Some(Cache::at(directory))
}

/// Tells plans of this build from those of another: its version, and when and how large it
/// was made, for those who build it twice a day.
pub(crate) fn revision() -> String {
    let executable = std::env::current_exe().and_then(std::fs::metadata);
    let built = executable.map(|found| {
        let time = found.modified().unwrap_or(UNIX_EPOCH);
        let time = time.duration_since(UNIX_EPOCH).unwrap_or_default();
        (found.len(), time.as_nanos())
    });
    format!(
        "{} {:?}",
        env!("CARGO_PKG_VERSION"),
        built.unwrap_or_default()
    )
}

/// Where a session puts its socket.
pub(crate) fn directory() -> PathBuf {
    std::env::temp_dir()
}
