//! The kept corpus: a few inputs of each target, in git, from which every run of a fuzzer begins.
//!
//! `fuzz/corpus` grows without limit and is no part of the repository. From it, libFuzzer's merge chooses
//! inputs that together reach all code that the seeds do not reach; the shortest of them are kept, up to a
//! number of bytes.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use super::target::Target;
use crate::run::{program, root, say, succeed};

/// Most bytes that are kept for a target.
const MAX_BYTES: u64 = 32 << 10;
/// Most inputs that are kept for a target.
const MAX_INPUTS: usize = 64;

/// Directory of the inputs that are kept for a target.
pub(super) fn directory(target: Target) -> PathBuf {
    root().join("fuzz/kept").join(target.name())
}

/// Chooses which inputs of a target are kept: of its corpus, and of the inputs that are kept so far.
pub(super) fn write(target: Target, built: &Path) -> Result<()> {
    let name = target.name();
    let kept = directory(target);
    let corpus = target.corpus();
    for directory in [&kept, &corpus] {
        fs::create_dir_all(directory).with_context(|| unusable(directory))?;
    }
    let merged = tempfile::tempdir()?;
    let seeds = copy_all(&target.seeds()?, merged.path())?;
    let mut merge = program(built.join(name));
    merge
        .arg("-set_cover_merge=1")
        .arg(format!("-max_len={}", target.longest()))
        .args([merged.path(), &kept, &corpus]);
    succeed(&mut merge)?;
    let mut chosen = Vec::new();
    for (size, path) in by_size(merged.path())? {
        if !path.file_name().is_some_and(|name| seeds.contains(name)) {
            chosen.push((
                size,
                fs::read(&path).with_context(|| unusable(&path))?,
                path,
            ));
        }
    }
    let shortest = shortest(chosen.iter().map(|(size, ..)| *size));
    fs::remove_dir_all(&kept).with_context(|| unusable(&kept))?;
    fs::create_dir_all(&kept).with_context(|| unusable(&kept))?;
    for (_, bytes, path) in &chosen[..shortest] {
        let path = kept.join(path.file_name().unwrap_or_default());
        fs::write(&path, bytes).with_context(|| unusable(&path))?;
    }
    say(format_args!(
        "{name}: {shortest} of {} inputs kept",
        chosen.len()
    ));
    Ok(())
}

/// Number of inputs from the shortest on that are kept.
fn shortest(sizes: impl Iterator<Item = u64>) -> usize {
    let sums = sizes.scan(0, |sum, size| {
        *sum += size;
        Some(*sum)
    });
    sums.take(MAX_INPUTS)
        .take_while(|sum| *sum <= MAX_BYTES)
        .count()
}

/// Files of a directory with their sizes, the smallest first.
fn by_size(directory: &Path) -> Result<Vec<(u64, PathBuf)>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(directory).with_context(|| unusable(directory))? {
        let entry = entry.with_context(|| unusable(directory))?;
        let metadata = entry.metadata().with_context(|| unusable(&entry.path()))?;
        if metadata.is_file() {
            files.push((metadata.len(), entry.path()));
        }
    }
    files.sort_unstable();
    Ok(files)
}

/// Copies the files of a directory and returns their names.
fn copy_all(from: &Path, to: &Path) -> Result<BTreeSet<OsString>> {
    let mut names = BTreeSet::new();
    for (_, path) in by_size(from)? {
        let name = path.file_name().unwrap_or_default().to_owned();
        fs::copy(&path, to.join(&name)).with_context(|| unusable(&path))?;
        names.insert(name);
    }
    Ok(names)
}

fn unusable(path: &Path) -> String {
    format!("cannot read or write {}", path.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inputs_are_kept_up_to_a_size_and_a_number() {
        assert_eq!(shortest([1, 2, MAX_BYTES].into_iter()), 2);
        assert_eq!(shortest([1; 1000].into_iter()), MAX_INPUTS);
        assert_eq!(shortest(std::iter::empty()), 0);
    }

    #[test]
    fn the_kept_corpus_is_small() {
        for target in Target::ALL {
            let files = by_size(&directory(target)).unwrap_or_default();
            let bytes: u64 = files.iter().map(|(size, _)| size).sum();
            assert!(bytes <= MAX_BYTES, "{target:?}: {bytes} bytes");
        }
    }
}
