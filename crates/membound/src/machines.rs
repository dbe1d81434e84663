//! The kept machine profile in the user's data directory, and the profiles that come with membound.

pub(crate) mod bundled;

use std::path::PathBuf;

use anyhow::Context;
use etcetera::BaseStrategy;
use membound_types::MachineProfile;

use crate::output;

/// Storage of this host's profile. During the measurement it is `HOST.incomplete.json`, rewritten after every
/// part, so that not even SIGKILL loses a finished part; a complete profile becomes `HOST.json`.
#[derive(Debug)]
pub(crate) struct Store {
    directory: Option<PathBuf>,
    host: String,
}

impl Store {
    /// Creates the directory; if that fails, prints why once and keeps nothing.
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
        // A host name may hold characters that are not allowed, or not safe, in a file name.
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

    /// Path of the complete profile of this host, whether or not it exists; `None` without a directory.
    pub(crate) fn profile_path(&self) -> Option<PathBuf> {
        self.path("json")
    }

    /// Keeps an incomplete profile.
    pub(crate) fn keep(&self, profile: &MachineProfile) {
        self.write("incomplete.json", profile);
    }

    /// Keeps the final profile, under the host's name if it is complete.
    pub(crate) fn finish(&self, profile: &MachineProfile) {
        if profile.incomplete {
            self.write("incomplete.json", profile);
        } else if self.write("json", profile)
            && let Some(path) = self.path("incomplete.json")
        {
            // The file may never have been written.
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
