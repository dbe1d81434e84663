//! Shared by benches: building and running the command, documents, and a few figures.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};
use serde_json::Value;

use crate::run::{cargo, program, stdout_of, succeed};

/// Builds the command in release mode and returns its path.
pub(crate) fn build() -> Result<PathBuf> {
    succeed(&mut cargo(["build", "--release", "--package", "membound"]))?;
    let metadata = stdout_of(&mut cargo(
        "metadata --no-deps --format-version 1".split(' '),
    ))?;
    let metadata: Value = serde_json::from_str(&metadata).context("cargo metadata is no JSON")?;
    let target = metadata["target_directory"]
        .as_str()
        .context("cargo metadata names no target directory")?;
    Ok(Path::new(target).join("release/membound"))
}

/// `membound measure PARTS… --json -`, ready to run.
pub(super) fn measure(membound: &Path, words: &[&str]) -> Command {
    let mut command = program(membound);
    command.arg("measure").args(words).args(["--json", "-"]);
    command
}

/// Measures the machine quickly, as far as profiles and plans need it, and writes the document to
/// `path`.
pub(crate) fn machine_profile(membound: &Path, path: &Path) -> Result<()> {
    let mut command = program(membound);
    command.args(["measure", "latency", "bandwidth", "calibration", "--quick"]);
    stdout_of(command.arg("--json").arg(path)).map(drop)
}

/// Runs `command` and reads the document that it writes to stdout.
pub(crate) fn document<T: serde::de::DeserializeOwned>(command: &mut Command) -> Result<T> {
    let text = stdout_of(command)?;
    serde_json::from_str(&text)
        .with_context(|| format!("`{}` wrote another document", crate::run::shown(command)))
}

/// The median of `values`; `None` when there are none.
pub(super) fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        count if count % 2 == 1 => Some(sorted[middle]),
        _ => Some(f64::midpoint(sorted[middle - 1], sorted[middle])),
    }
}

/// `met` or `missed`, for a table.
pub(crate) const fn verdict(met: bool) -> &'static str {
    if met { "met" } else { "MISSED" }
}

/// A size in the largest binary unit that divides it.
pub(super) fn size(bytes: u64) -> String {
    let units = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
    units
        .into_iter()
        .find(|(shift, _)| bytes.trailing_zeros() >= *shift && bytes > 0)
        .map_or_else(
            || format!("{bytes} B"),
            |(shift, unit)| format!("{} {unit}", bytes >> shift),
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_of_even_and_odd_counts() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
    }

    #[test]
    fn sizes_are_exact() {
        assert_eq!(size(1 << 30), "1 GiB");
        assert_eq!(size(48 << 10), "48 KiB");
        assert_eq!(size(1000), "1000 B");
    }
}
