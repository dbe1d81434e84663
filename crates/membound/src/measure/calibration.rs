//! `measure calibration`: starts membound itself as the program whose loads come from known levels.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use membound_launch::Program;
use membound_measure::calibration::{Area, follow, load, locked_hit_ns};
use membound_measure::{Effort, Session, Silent};
use membound_platform::Root;
use membound_record::calibrate::{Calibrate, CalibrateError, Meeting, Stretch, calibrate};
use membound_rewrite::patch::sampler_identity;
use membound_types::{
    CacheKind, Calibration, CpuId, LevelKind, MachineProfile, NodePolicy, Outcome, PageKind,
};

use super::plan;
use crate::args::MeasureArgs;
use crate::launching;

/// Name of the subcommand that runs as the program.
pub(crate) const PROGRAM: &str = "__chase";
/// Size of the area in which another core modifies one line per page: small enough for that core's
/// second-level cache, and large enough for an iteration to take longer than handing the area over.
const MODIFIED_BYTES: u64 = 1 << 20;
/// Time beyond the requested one after which the program counts as stuck.
const TIMEOUT_MARGIN: Duration = Duration::from_secs(60);

/// Arguments of the program.
#[derive(Args, Debug)]
pub(crate) struct ChaseArgs {
    /// CPU that loads.
    #[arg(long)]
    cpu: u32,
    /// Time in each area.
    #[arg(long)]
    each_ms: u64,
    /// Where its chains go.
    #[arg(long)]
    area: Vec<Area>,
    /// Where it meets the command that started it.
    directory: PathBuf,
}

/// Loads from each level in turn; runs as the calibrated program.
pub(crate) fn chase(args: &ChaseArgs) -> anyhow::Result<ExitCode> {
    membound_launch::load_agent().context("cannot load the agent")?;
    let never = AtomicBool::new(false);
    let root = Root::system();
    let cpu = Some(CpuId(args.cpu));
    let session = Session::new(&root, cpu, Effort::Quick, &never, &Silent)?;
    let meeting = Meeting::at(&args.directory);
    if !meeting.wait() {
        bail!("this process was not patched");
    }
    for area in &args.area {
        let stretch = match follow(&session, area, Duration::from_millis(args.each_ms)) {
            Ok(stayed) => Stretch::Stayed {
                name: stayed.name,
                latency_ns: stayed.latency_ns,
                from_tsc: stayed.from_tsc,
                to_tsc: stayed.to_tsc,
            },
            Err(error) => Stretch::Skipped {
                name: area.name.clone(),
                reason: error.to_string(),
            },
        };
        meeting
            .report(&stretch)
            .context("cannot send to the command")?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Calibrates for the levels of `profile`, or for the declared caches if it has none. If programs cannot be
/// patched here, the result is missing, with the reason.
///
/// # Errors
/// If the program that loads fails.
pub(super) fn measure(
    session: &Session<'_>,
    args: &MeasureArgs,
    profile: &MachineProfile,
) -> anyhow::Result<Outcome<Calibration>> {
    session.progress.at(0.0, "calibration");
    let Some(load) = load() else {
        return Ok(Outcome::missing("programs are patched on x86-64 only"));
    };
    let areas = areas(session, args, profile);
    let each = Duration::from_millis(session.effort.pick(220, 600, 2500));
    let executable = std::env::current_exe().context("cannot find this command's own file")?;
    let mut arguments = vec![
        PROGRAM.to_owned(),
        format!("--cpu={}", session.cpu),
        format!("--each-ms={}", each.as_millis()),
    ];
    arguments.extend(areas.iter().map(|area| format!("--area={area}")));
    let request = Calibrate {
        program: Program {
            name: executable.clone().into(),
            arguments: arguments.into_iter().map(Into::into).collect(),
            search: None,
            environment: membound_launch::environment(),
        },
        executable,
        load,
        levels: areas
            .iter()
            .map(|area| (area.name.clone(), area.bytes))
            .collect(),
        limit: TIMEOUT_MARGIN + 8 * each * u32::try_from(areas.len()).unwrap_or(u32::MAX),
        cache: launching::cache(),
        revision: launching::revision(),
        directory: launching::directory(),
        tick_hz: session.clock.ticks(1e9),
    };
    match calibrate(request, &|| session.cancelled()) {
        Ok(mut calibration) => {
            calibration.locked_ns = Some(locked_hit_ns(session));
            Ok(Outcome::Known(calibration))
        }
        Err(error @ (CalibrateError::Unpatched(_) | CalibrateError::Launch(_))) => {
            Ok(Outcome::missing(error.to_string()))
        }
        Err(error) => Err(error.into()),
    }
}

/// Whether `profile` has a calibration for the patches of this build.
pub(crate) fn is_current(profile: &MachineProfile) -> bool {
    let calibration = profile.calibration.known();
    calibration.is_some_and(|it| it.patch == sampler_identity())
}

/// Calibrates again for a profile that was measured earlier.
///
/// # Errors
/// If the machine cannot be measured.
pub(crate) fn renew(profile: &mut MachineProfile) -> anyhow::Result<()> {
    let never = AtomicBool::new(false);
    let root = Root::system();
    let session = Session::new(&root, None, Effort::Quick, &never, &Silent)?;
    profile.calibration = measure(&session, &MeasureArgs::default(), profile)?;
    Ok(())
}

/// Areas whose loads come from each level, innermost first.
fn areas(session: &Session<'_>, args: &MeasureArgs, profile: &MachineProfile) -> Vec<Area> {
    let caches = caches(profile);
    let area = |name: &str, bytes: u64, page: PageKind| Area {
        name: name.to_owned(),
        bytes: bytes.next_multiple_of(4096),
        page,
        node: NodePolicy::LOCAL,
        modified_on: None,
    };
    let mut areas = Vec::new();
    let mut inner = None;
    for (name, bytes) in &caches {
        let inside = match inner {
            None => bytes / 2,
            // The geometric mean of this cache's size and the size of the level before.
            Some(before) => (before as f64 * *bytes as f64).sqrt() as u64,
        };
        areas.push(area(name, inside, PageKind::Base));
        inner = Some(*bytes);
    }
    let memory = memory_bytes(profile, &caches);
    let large = plan::pages(session, args)
        .into_iter()
        .find(|page| *page != PageKind::Base);
    if let Some(page) = large {
        areas.push(area("DRAM", memory, page));
    }
    let small = if large.is_some() { "DRAM 4k" } else { "DRAM" };
    areas.push(area(small, memory, PageKind::Base));
    let sibling = |cpu: CpuId| {
        session
            .siblings
            .iter()
            .any(|group| group.contains(&cpu) && group.contains(&session.cpu))
    };
    // Not a sibling: hardware threads of one core share their caches.
    let other = session
        .cpus
        .iter()
        .copied()
        .find(|cpu| *cpu != session.cpu && !sibling(*cpu));
    if let Some(cpu) = other {
        areas.push(Area {
            modified_on: Some(cpu),
            ..area("core", MODIFIED_BYTES, PageKind::Base)
        });
    }
    let local = session.topology.node_of(session.cpu);
    for node in session.topology.memory_nodes() {
        if node != local {
            areas.push(Area {
                node: NodePolicy::Node(node),
                ..area(
                    &format!("node {node}"),
                    memory,
                    large.unwrap_or(PageKind::Base),
                )
            });
        }
    }
    areas
}

/// Names and sizes in bytes of the caches, as measured if they were, else as declared.
fn caches(profile: &MachineProfile) -> Vec<(String, u64)> {
    let found: Vec<(String, u64)> = profile
        .levels
        .iter()
        .filter(|level| level.kind == LevelKind::Cache)
        .filter_map(|level| Some((level.name.clone(), level.size_bytes?)))
        .collect();
    if !found.is_empty() {
        return found;
    }
    let mut declared: Vec<(u32, u64)> = profile
        .machine
        .caches
        .iter()
        .filter(|cache| cache.kind != CacheKind::Instruction)
        .map(|cache| (cache.level, cache.size_bytes))
        .collect();
    declared.sort_unstable();
    declared.dedup_by_key(|(level, _)| *level);
    declared
        .into_iter()
        .map(|(level, bytes)| (format!("L{level}"), bytes))
        .collect()
}

/// Size of the area in memory, in bytes: four times the largest cache, within limits.
fn memory_bytes(profile: &MachineProfile, caches: &[(String, u64)]) -> u64 {
    const MIN_MEMORY_BYTES: u64 = 64 << 20;
    const MAX_MEMORY_BYTES: u64 = 512 << 20;
    let declared = profile.machine.caches.iter().map(|cache| cache.size_bytes);
    let largest = declared.chain(caches.iter().map(|(_, bytes)| *bytes)).max();
    (4 * largest.unwrap_or(MIN_MEMORY_BYTES)).clamp(MIN_MEMORY_BYTES, MAX_MEMORY_BYTES)
}
