//! Wall time and peak memory of everything that `measure --quick` does.

use std::io::Read as _;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use membound_types::MachineProfile;
use serde_json::json;

use super::common::{measure, verdict};
use crate::results::Kept;
use crate::run::say;

const WALL_TARGET_S: f64 = 60.0;
const MEMORY_TARGET_BYTES: u64 = 5 << 29;

/// Arguments of `bench quick`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Times to run it.
    #[arg(long, default_value_t = 1)]
    runs: usize,
}

pub(super) fn run(membound: &Path, args: &Args) -> Result<Kept> {
    let mut profiles: Vec<MachineProfile> = Vec::new();
    let mut rows = Vec::new();
    for _ in 0..args.runs {
        let (profile, wall, peak_bytes) = watched(membound)?;
        let wall_s = wall.as_secs_f64();
        #[expect(clippy::cast_precision_loss, reason = "shown with two digits")]
        let peak_gib = peak_bytes as f64 / (1_u64 << 30) as f64;
        say(format_args!(
            "wall {wall_s:.1} s of {WALL_TARGET_S:.0} s ({}), peak {peak_gib:.2} GiB of 2.50 GiB ({})",
            verdict(wall_s <= WALL_TARGET_S),
            verdict(peak_bytes <= MEMORY_TARGET_BYTES),
        ));
        for (part, elapsed_s) in parts(&profile) {
            match elapsed_s {
                Some(elapsed_s) => say(format_args!("  {part:<10}{elapsed_s:>7.1} s")),
                None => say(format_args!("  {part:<10}not measured")),
            }
        }
        rows.push(json!({
            "wall_s": wall_s, "wall_target_s": WALL_TARGET_S,
            "peak_bytes": peak_bytes, "peak_target_bytes": MEMORY_TARGET_BYTES,
        }));
        profiles.push(profile);
    }
    Kept::of_profiles("quick", rows, &profiles)
}

/// Each part and its wall time in seconds.
fn parts(profile: &MachineProfile) -> [(&'static str, Option<f64>); 9] {
    [
        (
            "latency",
            profile.latency.known().map(|part| part.elapsed_s),
        ),
        ("mlp", profile.mlp.known().map(|part| part.elapsed_s)),
        ("window", profile.window.known().map(|part| part.elapsed_s)),
        (
            "bandwidth",
            profile.bandwidth.known().map(|part| part.elapsed_s),
        ),
        ("loaded", profile.loaded.known().map(|part| part.elapsed_s)),
        ("tlb", profile.tlb.known().map(|part| part.elapsed_s)),
        (
            "prefetch",
            profile.prefetch.known().map(|part| part.elapsed_s),
        ),
        ("numa", profile.numa.known().map(|part| part.elapsed_s)),
        ("c2c", profile.c2c.known().map(|part| part.elapsed_s)),
    ]
}

/// Runs `measure --quick`: its profile, wall time, and peak of resident and hugetlb memory.
fn watched(membound: &Path) -> Result<(MachineProfile, Duration, u64)> {
    let began = Instant::now();
    let mut child = measure(membound, &["--quick"])
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start {}", membound.display()))?;
    let mut stdout = child.stdout.take().expect("stdout was asked to be a pipe");
    let pid = child.id();
    // hugetlb pages are not counted in ru_maxrss, and are gone when the process has ended.
    let hugetlb = std::thread::spawn(move || {
        let mut peak_bytes = 0;
        while let Some(bytes) = hugetlb_bytes(pid) {
            peak_bytes = peak_bytes.max(bytes);
            std::thread::sleep(Duration::from_millis(250));
        }
        peak_bytes
    });
    let mut text = String::new();
    stdout.read_to_string(&mut text)?;
    let (status, resident_bytes) = wait_with_peak(child)?;
    let wall = began.elapsed();
    if status != 0 {
        bail!("membound measure --quick ended with wait status {status}");
    }
    let hugetlb_bytes = hugetlb.join().expect("reading /proc does not panic");
    let profile = serde_json::from_str(&text).context("membound wrote another document")?;
    Ok((profile, wall, resident_bytes + hugetlb_bytes))
}

/// Bytes on hugetlb pages of a process; `None` once it has ended.
fn hugetlb_bytes(pid: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let kib = status
        .lines()
        .find_map(|line| line.strip_prefix("HugetlbPages:"))?;
    let kib: u64 = kib.trim().trim_end_matches(" kB").parse().ok()?;
    Some(kib << 10)
}

/// Waits for a child: its wait status, and its largest resident set in bytes, transparent
/// huge pages included.
pub(super) fn wait_with_peak(child: Child) -> Result<(i32, u64)> {
    let pid =
        libc::pid_t::try_from(child.id()).context("a process id beyond the kernel's range")?;
    let mut status = 0;
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: both pointers are to live variables of the types that wait4 fills.
    let waited = unsafe { libc::wait4(pid, &raw mut status, 0, usage.as_mut_ptr()) };
    if waited != pid {
        return Err(std::io::Error::last_os_error()).context("cannot wait for membound");
    }
    // SAFETY: a rusage of zeros is valid, and wait4 has filled it.
    let usage = unsafe { usage.assume_init() };
    let kib = u64::try_from(usage.ru_maxrss).context("negative ru_maxrss")?;
    Ok((status, kib << 10))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peak_of_a_child_is_at_least_what_it_filled() {
        let child = std::process::Command::new("sh")
            .args(["-c", "v=$(head -c 20000000 /dev/zero | tr '\\0' x); exit 3"])
            .spawn()
            .unwrap();
        let (status, peak_bytes) = wait_with_peak(child).unwrap();
        assert_eq!(status, 3 << 8);
        assert!(peak_bytes > 20_000_000, "{peak_bytes}");
    }
}
