//! The machine profile under the user's data directory, and those that come with membound.

pub(crate) mod bundled;

use std::path::PathBuf;

use anyhow::Context;
use etcetera::BaseStrategy;
use membound_types::MachineProfile;

use crate::output;

/// Where the profile of this host is kept. While it is measured it is `HOST.incomplete.json`,
/// written anew after every part, so that not even kill -9 loses a finished part; a whole
/// profile becomes `HOST.json`.
#[derive(Debug)]
pub(crate) struct Store {
    directory: Option<PathBuf>,
    host: String,
}

impl Store {
    /// Makes the directory; where that is not possible, says so once and keeps nothing.
    pub(crate) fn open(host: &str) -> Self {
        let directory = etcetera::choose_base_strategy()
            .context("there is no home directory")
            .map(|dirs| dirs.data_dir().join("membound").join("machines"))
            .and_then(|path| {
                std::fs::create_dir_all(&path)
                    .and_then(|()| tempfile::NamedTempFile::new_in(&path).map(drop))
                    .with_context(|| format!("cannot write {}", path.display()))?;
                Ok(path)
            });
        let directory = directory.map_or_else(
            |error| {
                output::complain(&format!(
                    "the profile will not be kept: {error:#} (set XDG_DATA_HOME)"
                ));
                None
            },
            Some,
        );
        // A host name is a file name only as far as it looks like one.
        let safe = |c: char| {
            if c.is_ascii_alphanumeric() || "-_.".contains(c) {
                c
            } else {
                '_'
            }
        };
        let host: String = host.chars().map(safe).collect();
        let host = if host.trim_matches('.').is_empty() {
            "host".to_owned()
        } else {
            host
        };
        Self { directory, host }
    }

    /// Where the whole profile of this host is, if one was ever kept.
    pub(crate) fn kept(&self) -> Option<PathBuf> {
        self.path("json")
    }

    /// Keeps what there is so far.
    pub(crate) fn keep(&self, profile: &MachineProfile) {
        self.write("incomplete.json", profile);
    }

    /// Keeps the end: under the host's name when it is whole.
    pub(crate) fn finish(&self, profile: &MachineProfile) {
        if profile.incomplete {
            self.write("incomplete.json", profile);
        } else if self.write("json", profile)
            && let Some(path) = self.path("incomplete.json")
        {
            // It may never have been written.
            let _ = std::fs::remove_file(path);
        }
    }

    fn path(&self, ending: &str) -> Option<PathBuf> {
        Some(
            self.directory
                .as_ref()?
                .join(format!("{}.{ending}", self.host)),
        )
    }

    fn write(&self, ending: &str, profile: &MachineProfile) -> bool {
        let Some(path) = self.path(ending) else {
            return false;
        };
        let text = serde_json::to_string(profile).context("cannot write JSON");
        match text.and_then(|text| output::replace(&path, &(text + "\n"))) {
            Ok(()) => true,
            Err(error) => {
                output::complain(&format!("the profile was not kept: {error:#}"));
                false
            }
        }
    }
}
