//! The kept machine profile in the user's data directory, and the profiles that come with membound.

pub(crate) mod bundled;

use std::path::PathBuf;

use anyhow::Context;
use etcetera::BaseStrategy;
use membound_platform::output_file::replace;
use membound_types::{Kind, MachineProfile, Outcome};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::{documents, output};

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

    /// Keeps the final profile, under the host's name if it is complete. Parts that were not asked for this
    /// time stay as they were measured on this machine before.
    pub(crate) fn finish(&self, profile: &MachineProfile) {
        if profile.incomplete {
            self.write("incomplete.json", profile);
        } else if self.write(
            "json",
            &without_unreadable(self.with_earlier_parts(profile)),
        ) && let Some(path) = self.path("incomplete.json")
        {
            // The file may never have been written.
            let _ = std::fs::remove_file(path);
        }
    }

    fn with_earlier_parts(&self, profile: &MachineProfile) -> MachineProfile {
        let processor = |profile: &MachineProfile| {
            let cpu = &profile.machine.cpu;
            (cpu.model_name.clone(), cpu.family, cpu.model, cpu.stepping)
        };
        match self.kept() {
            Some(earlier) if processor(&earlier) == processor(profile) => {
                merged(profile.clone(), earlier)
            }
            _ => profile.clone(),
        }
    }

    /// The complete profile of this host, if there is one that can be read.
    fn kept(&self) -> Option<MachineProfile> {
        documents::read(&self.profile_path()?, Kind::Machine, "machine profile")
            .ok()?
            .ok()
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
        match text.and_then(|text| Ok(replace(&path, &(text + "\n"))?)) {
            Ok(()) => true,
            Err(error) => {
                output::complain(&format!("the profile was not kept: {error:#}"));
                false
            }
        }
    }
}

/// Fills the parts of `profile` that were not asked for from `earlier`. Unless everything was asked for, levels
/// come from the sweep that found more of them: that of a small area finds only the first.
fn merged(mut profile: MachineProfile, earlier: MachineProfile) -> MachineProfile {
    let mut calibration = earlier.calibration;
    let is_partial = profile.bandwidth.was_not_asked() || profile.latency.was_not_asked();
    if is_partial && earlier.levels.len() > profile.levels.len() {
        profile.levels = earlier.levels;
        profile.line = earlier.line;
        profile.model = earlier.model;
        profile.latency = earlier.latency;
        profile.core_clock_hz = earlier.core_clock_hz;
        std::mem::swap(&mut profile.calibration, &mut calibration);
    } else {
        fill(&mut profile.latency, earlier.latency);
    }
    fill(&mut profile.calibration, calibration);
    fill(&mut profile.mlp, earlier.mlp);
    fill(&mut profile.window, earlier.window);
    fill(&mut profile.bandwidth, earlier.bandwidth);
    fill(&mut profile.loaded, earlier.loaded);
    fill(&mut profile.tlb, earlier.tlb);
    fill(&mut profile.prefetch, earlier.prefetch);
    fill(&mut profile.numa, earlier.numa);
    fill(&mut profile.c2c, earlier.c2c);
    profile
}

/// `profile` without the parts that could not be read again. JSON has neither infinity nor NaN: one such figure
/// would make the whole profile unreadable.
fn without_unreadable(mut profile: MachineProfile) -> MachineProfile {
    leave_out_unreadable("latency", &mut profile.latency);
    leave_out_unreadable("mlp", &mut profile.mlp);
    leave_out_unreadable("window", &mut profile.window);
    leave_out_unreadable("bandwidth", &mut profile.bandwidth);
    leave_out_unreadable("loaded", &mut profile.loaded);
    leave_out_unreadable("tlb", &mut profile.tlb);
    leave_out_unreadable("prefetch", &mut profile.prefetch);
    leave_out_unreadable("numa", &mut profile.numa);
    leave_out_unreadable("c2c", &mut profile.c2c);
    leave_out_unreadable("calibration", &mut profile.calibration);
    profile
}

/// Replaces `part`, named `name`, by a reason if what would be written of it cannot be read again.
fn leave_out_unreadable<T: Serialize + DeserializeOwned>(name: &str, part: &mut Outcome<T>) {
    let read =
        serde_json::to_string(part).and_then(|text| serde_json::from_str::<Outcome<T>>(&text));
    if read.is_err() {
        let reason = format!("a figure of {name} is no number");
        output::complain(&format!("{reason}: this part is not kept"));
        *part = Outcome::missing(reason);
    }
}

fn fill<T>(part: &mut Outcome<T>, earlier: Outcome<T>) {
    if part.was_not_asked() {
        *part = earlier;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A profile of the bundled machine, with the parts that `asked` takes from the bundled profile.
    fn profile(asked: impl Fn(&mut MachineProfile, MachineProfile)) -> MachineProfile {
        let whole = bundled::bundled("amd-zen4-guest").expect("it is bundled");
        let (_, whole) = whole.expect("it can be read");
        let mut part = MachineProfile::unmeasured(whole.machine.clone());
        asked(&mut part, whole);
        part
    }

    #[test]
    fn a_part_with_a_figure_that_is_no_number_is_left_out() {
        let measured = profile(|part, whole| {
            part.latency = whole.latency;
            part.bandwidth = whole.bandwidth;
            if let Outcome::Known(bandwidth) = &mut part.bandwidth {
                bandwidth.elapsed_s = f64::INFINITY;
            }
        });
        let kept = without_unreadable(measured.clone());
        assert_eq!(kept.latency, measured.latency);
        let why = kept.bandwidth.why_missing().expect("it is left out");
        assert!(why.reason.contains("no number"), "{why:?}");
        let text = serde_json::to_string(&kept).expect("it can be written");
        let read: MachineProfile = serde_json::from_str(&text).expect("it can be read");
        assert_eq!(read, kept);
    }

    #[test]
    fn parts_that_were_not_asked_for_stay() {
        let earlier = profile(|part, whole| {
            part.levels = whole.levels;
            part.line = whole.line;
            part.latency = whole.latency;
            part.bandwidth = whole.bandwidth;
        });
        // A small area has only the first level.
        let later = profile(|part, whole| {
            part.levels = whole.levels[..1].to_vec();
            part.latency = Outcome::missing("of a small area");
            part.mlp = Outcome::missing("measured again");
        });
        let kept = merged(later.clone(), earlier.clone());
        assert_eq!(kept.levels, earlier.levels);
        assert_eq!(kept.latency, earlier.latency);
        assert_eq!(kept.bandwidth, earlier.bandwidth);
        assert_eq!(kept.mlp, later.mlp);
        // Who measures everything again gets what was found.
        let everything = MachineProfile {
            bandwidth: Outcome::missing("measured again"),
            ..later
        };
        assert_eq!(
            merged(everything.clone(), earlier).levels,
            everything.levels
        );
    }
}
