//! Switches a running harvest of another process off (`membound harvest stop`).

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt as _;

use membound_platform::Root;
use membound_platform::signal_masks;
use membound_platform::stat::Stat;
use rustix::process::{Pid, Signal, kill_process};

use crate::error::{At as _, Error};

/// Switches off the harvest that was named by its process or its command's, or the only one that runs. Returns the
/// process ID of the harvest.
///
/// # Errors
/// [`Error::Usage`] if several harvests run and none was named; if there is none, or it cannot be signalled.
pub fn switch_off(named: Option<u32>) -> Result<u32, Error> {
    let running = running();
    let pid = match (named, running.as_slice()) {
        (Some(named), _) => find(named, &running)?,
        (None, []) => {
            return Err(Error::Refused(
                "you have no running harvest here".to_owned(),
            ));
        }
        (None, [only]) => *only,
        (None, several) => {
            let several: Vec<String> = several.iter().map(u32::to_string).collect();
            let several = several.join(", ");
            return Err(Error::Usage(format!(
                "several harvests run ({several}): name one of them"
            )));
        }
    };
    let process = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let process = process.ok_or_else(|| Error::Refused(format!("{pid} is no process")))?;
    kill_process(process, Signal::USR2)
        .map_err(std::io::Error::from)
        .at(|| format!("cannot signal process {pid}"))?;
    Ok(pid)
}

/// The harvest with process ID `named`, or the one whose command has that ID.
fn find(named: u32, running: &[u32]) -> Result<u32, Error> {
    let parent = Stat::of(named).ok().and_then(|stat| stat.parent());
    let mut running = running.iter().copied();
    running
        .find(|pid| *pid == named || Some(*pid) == parent)
        .ok_or_else(|| {
            Error::Refused(format!(
                "process {named} is neither a harvest of yours nor the command of one"
            ))
        })
}

/// Process IDs of the harvests that this user may signal.
fn running() -> Vec<u32> {
    let mut processes = Root::system().numbered("proc", "");
    processes.retain(|pid| is_harvest(*pid));
    processes
}

/// Whether the process is a `membound harvest run` that may be signalled, and that catches the signal
/// already, so that it is not killed by it.
fn is_harvest(pid: u32) -> bool {
    // The links of other users' processes cannot be read.
    let Ok(executable) = fs::read_link(format!("/proc/{pid}/exe")) else {
        return false;
    };
    let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let mut words = words
        .split(|byte| *byte == 0)
        .map(|word| OsString::from_vec(word.to_vec()));
    let is_membound = executable
        .file_name()
        .is_some_and(|name| name.as_encoded_bytes().starts_with(b"membound"));
    is_membound
        && words.nth(1).is_some_and(|word| word == "harvest")
        && words.next().is_some_and(|word| word == "run")
        && signal_masks::caught(pid) & 1 << (Signal::USR2.as_raw() - 1) != 0
}
