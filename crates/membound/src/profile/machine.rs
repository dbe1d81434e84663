//! The machine profile that provides levels and latencies: the named one, else the kept one of this host,
//! else one that is measured now.

use std::path::{Path, PathBuf};

use anyhow::bail;
use membound_platform::Root;
use membound_types::{Kind, LevelKind, MachineProfile, Timer};

use crate::args::Part;
use crate::documents::{self, Other};
use crate::machines::Store;
use crate::measure::calibration;
use crate::{measure, output, version};

/// The profile for a run that begins now. If there is none and none can be measured, prints why and returns
/// `None`: the run then has no levels.
///
/// # Errors
/// If the named file is no machine profile, or the measurement was interrupted.
pub(crate) fn profile(named: Option<&Path>) -> anyhow::Result<Option<MachineProfile>> {
    if let Some(path) = named {
        return read(path).map(Some);
    }
    let info = version::machine(&Root::system(), Timer::default(), Default::default());
    let store = Store::open(&info.host);
    if let Some(path) = store.profile_path()
        && path.exists()
    {
        match read(&path) {
            Ok(profile) if profile.machine.cpu.model_name != info.cpu.model_name => {
                output::complain(&format!(
                    "{} is of another processor ({}): measuring this one",
                    path.display(),
                    profile.machine.cpu.model_name
                ));
            }
            Ok(profile) if lacks_memory(&profile) => output::complain(&format!(
                "{} has no latency of memory: measuring it",
                path.display()
            )),
            Ok(profile) => return Ok(Some(calibrated(profile, &store))),
            Err(error) => output::complain(&format!("{error:#}: measuring anew")),
        }
    }
    output::complain("measuring this machine first (once; about a minute, Ctrl-C ends it)");
    match measure::for_profiles(&[Part::Latency, Part::Bandwidth, Part::Calibration]) {
        Ok(profile) => Ok(Some(profile)),
        Err(error) if error.is::<measure::Interrupted>() => Err(error),
        Err(error) => {
            output::complain(&format!(
                "the machine cannot be measured: {error:#}: the run has no levels"
            ));
            Ok(None)
        }
    }
}

/// True if the profile is of parts that leave out the latency of memory, such as `measure mlp window`. With bandwidth
/// asked for, what [`profile`] measures was measured, and would not be found now either.
fn lacks_memory(profile: &MachineProfile) -> bool {
    let has_memory = profile.levels.iter().any(|it| it.kind == LevelKind::Memory);
    !has_memory && profile.bandwidth.was_not_asked()
}

/// The named profile, or the kept one of this host if it is of this processor and calibrated for this build.
/// Measures nothing.
///
/// # Errors
/// If the named file is no machine profile.
pub(crate) fn at_hand(named: Option<&Path>) -> anyhow::Result<Option<MachineProfile>> {
    if let Some(path) = named {
        return read(path).map(Some);
    }
    let profile = kept_profile().map(|(_, profile)| profile);
    Ok(profile.filter(calibration::is_current))
}

/// Path of the kept profile of this host, if it is of this processor.
pub(crate) fn kept_profile_path() -> Option<PathBuf> {
    kept_profile().map(|(path, _)| path)
}

fn kept_profile() -> Option<(PathBuf, MachineProfile)> {
    let info = version::machine(&Root::system(), Timer::default(), Default::default());
    let path = Store::open(&info.host).profile_path()?;
    let profile = read(&path).ok()?;
    (profile.machine.cpu.model_name == info.cpu.model_name).then_some((path, profile))
}

/// The profile with a calibration for the patches of this build. An older profile may have none, or that of
/// another build; the rest of it stays valid.
fn calibrated(mut profile: MachineProfile, store: &Store) -> MachineProfile {
    if calibration::is_current(&profile) {
        return profile;
    }
    output::complain("calibrating the latency sampler (once; a few seconds)");
    match calibration::renew(&mut profile) {
        Ok(()) => store.finish(&profile),
        Err(error) => output::complain(&format!("the run has no levels: {error:#}")),
    }
    profile
}

/// Reads a machine profile.
pub(crate) fn read(path: &Path) -> anyhow::Result<MachineProfile> {
    match documents::read(path, Kind::Machine, "machine profile")? {
        Ok(profile) => Ok(profile),
        Err(other @ Other::Version(_)) => bail!("{} {other} (measure again)", path.display()),
        Err(other @ Other::Kind(_)) => bail!(
            "{} {other}, not a machine profile (`membound measure --json FILE` writes one)",
            path.display()
        ),
    }
}

#[cfg(test)]
mod tests {
    use membound_types::Outcome;

    use super::*;
    use crate::machines::bundled;

    #[test]
    fn a_profile_of_other_parts_is_completed_once() {
        let bundled = bundled::bundled("amd-zen4-guest").expect("it is bundled");
        let (_, whole) = bundled.expect("it can be read");
        assert!(!lacks_memory(&whole));
        let mut part = MachineProfile::unmeasured(whole.machine.clone());
        assert!(lacks_memory(&part));
        part.levels = whole.levels[..1].to_vec();
        assert!(lacks_memory(&part));
        part.bandwidth = Outcome::missing("no room for the buffers");
        assert!(!lacks_memory(&part));
    }
}
