//! A profile of this machine for the suites that need one, measured once.
//!
//! Each suite is a process of its own, and a measurement takes half a minute to a minute. The profile is kept in
//! the target directory, for this build of the command, until the machine boots or [`MAX_AGE`] is over.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;
use std::time::Duration;

use membound_types::MachineProfile;

/// Age at which a profile is measured again: long enough for one run of all tests.
const MAX_AGE: Duration = Duration::from_secs(3600);

/// Number of measurements, of which the best is taken if each is faulty.
const TRIES: usize = 3;

/// Maximum relative difference of the innermost cache's latencies in one machine profile.
const APART: f64 = 0.05;

/// The machine's profile and its file. It is measured again if it lacks a level or contradicts itself; of
/// several faulty profiles, it is one with a memory level and the smallest contradiction.
pub(crate) fn measured() -> &'static (PathBuf, MachineProfile) {
    static MEASURED: LazyLock<(PathBuf, MachineProfile)> = LazyLock::new(|| {
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("machine");
        fs::create_dir_all(&directory).expect("the target directory can be written");
        let path = directory.join(file_name());
        let profile = kept(&path).unwrap_or_else(|| {
            let partial = directory.join(format!("partial-{}.json", std::process::id()));
            let profile = best(&partial);
            let bytes = serde_json::to_vec(&profile).expect("profiles can be written");
            fs::write(&partial, bytes).expect("it was written before");
            fs::rename(&partial, &path).expect("a file can be renamed where it was made");
            profile
        });
        (path, profile)
    });
    &MEASURED
}

/// A file name that differs between builds of the command, and between boots.
fn file_name() -> String {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let built = Path::new(env!("CARGO_BIN_EXE_membound"))
        .metadata()
        .and_then(|data| data.modified())
        .expect("the command is built");
    let built = built.duration_since(std::time::UNIX_EPOCH);
    let built = built.unwrap_or_default().as_nanos();
    format!("{}-{built}.json", boot.trim())
}

/// The profile at `path`, if there is one that is not too old.
fn kept(path: &Path) -> Option<MachineProfile> {
    let age = path.metadata().ok()?.modified().ok()?.elapsed().ok()?;
    if age > MAX_AGE {
        return None;
    }
    serde_json::from_slice(&fs::read(path).ok()?).ok()
}

/// The first profile without a fault, else the best of several; `path` is for the command's output.
fn best(path: &Path) -> MachineProfile {
    let mut tries = Vec::with_capacity(TRIES);
    while tries.len() < TRIES {
        let profile = measure(path);
        let whole = is_calibrated(&profile, "L3") && has_level(&profile, "DRAM");
        if whole && contradiction(&profile) < APART {
            return profile;
        }
        tries.push(profile);
    }
    let rank = |it: &MachineProfile| (!has_level(it, "DRAM"), contradiction(it));
    tries
        .into_iter()
        .min_by(|one, other| {
            let order = rank(one).partial_cmp(&rank(other));
            order.expect("latencies are numbers")
        })
        .expect("there was a try")
}

fn has_level(profile: &MachineProfile, level: &str) -> bool {
    profile.levels.iter().any(|it| it.name == level)
}

/// Whether the latencies of a level are known, or the machine has no such level.
fn is_calibrated(profile: &MachineProfile, level: &str) -> bool {
    let known = profile.calibration.known();
    !has_level(profile, level)
        || known.is_some_and(|known| known.levels.iter().any(|it| it.name == level))
}

/// Relative difference of the innermost cache's latencies during calibration and while levels were measured.
/// If they differ, the clock changed or other programs had the processor in one of the two.
fn contradiction(profile: &MachineProfile) -> f64 {
    let calibrated = profile.calibration.known().and_then(|known| {
        let mut levels = known.levels.iter();
        levels.find(|it| it.name == "L1")
    });
    let measured = profile.levels.iter().find(|it| it.name == "L1");
    calibrated
        .zip(measured)
        .map_or(f64::INFINITY, |(calibrated, measured)| {
            (calibrated.latency_ns / measured.latency_ns - 1.0).abs()
        })
}

/// Measures the machine into a file at `path`.
fn measure(path: &Path) -> MachineProfile {
    let home = tempfile::tempdir().expect("there is room for a directory");
    let output = Command::new(env!("CARGO_BIN_EXE_membound"))
        .args("measure latency bandwidth calibration --quick --json".split(' '))
        .arg(path)
        .current_dir(home.path())
        .env("HOME", home.path())
        .env("XDG_DATA_HOME", home.path().join("data"))
        .env_remove("LD_PRELOAD")
        .output()
        .expect("the command starts");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    let bytes = fs::read(path).expect("it was written");
    let profile: MachineProfile = serde_json::from_slice(&bytes).expect("it is a profile");
    let calibrated = profile.calibration.known();
    assert!(
        calibrated.is_some(),
        "{:?}",
        profile.calibration.why_missing()
    );
    profile
}
