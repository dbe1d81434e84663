//! What was run and how.

use membound_run::RunData;
use membound_types::RunInfo;

use crate::context::Context;
use crate::info::{effective, processes, threads};

/// Describes the program, the machine and the recording.
pub(crate) fn run_info(context: &Context<'_>) -> RunInfo {
    let (run, machine) = (context.run, context.machine.profile);
    let meta = &run.meta;
    let samples = || {
        let samples = run.samples.iter();
        samples.filter(|sample| context.is_selected(sample.thread))
    };
    RunInfo {
        command: meta.command.clone(),
        attached: meta.attached,
        host: meta.host.clone(),
        cpu: machine.map_or_else(String::new, |machine| {
            machine.machine.cpu.model_name.clone()
        }),
        date: meta.date.clone(),
        membound_version: meta.membound_version.clone(),
        exit_code: meta.exit_code,
        signal: meta.signal,
        processes: processes(run) as u64,
        threads: threads(run) as u64,
        timer: meta.timer.name().to_owned(),
        imported: meta.imported.clone(),
        samples: samples().count() as u64,
        effective_samples: effective(samples().map(|sample| sample.weight_ns)),
        timed_accesses: run
            .accesses
            .iter()
            .filter(|access| access.ticks.is_some() && context.is_selected(access.thread))
            .count() as u64,
        latencies_recorded: meta.latencies && is_patched(run),
        objects_recorded: meta.objects_from_bytes.is_some() && is_patched(run),
    }
}

/// True if the code of at least one process could be patched; otherwise neither accesses are timed nor
/// allocations recorded.
fn is_patched(run: &RunData) -> bool {
    (run.processes.iter()).any(|process| process.unpatched.is_none())
}
