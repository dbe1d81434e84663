//! The files that `dist` makes for a processor.

use std::path::{Path, PathBuf};

use super::processor::Processor;

/// The files that are made for a processor.
pub(super) struct Made {
    pub(super) processor: Processor,
    pub(super) tarball: PathBuf,
    pub(super) deb: PathBuf,
    pub(super) rpm: PathBuf,
    pub(super) wheel: PathBuf,
    pub(super) sbom: PathBuf,
    pub(super) debug: PathBuf,
}

impl Made {
    /// The paths of all files.
    pub(super) fn files(&self) -> [&Path; 6] {
        let files = [&self.tarball, &self.deb, &self.rpm];
        let [tarball, deb, rpm] = files.map(PathBuf::as_path);
        [tarball, deb, rpm, &self.wheel, &self.sbom, &self.debug]
    }
}
