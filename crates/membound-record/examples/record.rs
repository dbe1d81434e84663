//! Records a command without the rest of membound: `record RUN agent|perf COMMAND…`. Prints a summary of the
//! run, for work on the recorder.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::os::unix::process::ExitStatusExt as _;

use membound_launch::{Change, Program};
use membound_record::{Ended, Options, Recorder, TimerChoice};
use membound_run::RunData;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut words = std::env::args_os().skip(1);
    let path = words.next().ok_or("no run file")?;
    let timer = match words.next().ok_or("no timer")?.to_str() {
        Some("agent") => TimerChoice::Agent,
        _ => TimerChoice::Auto,
    };
    let program = Program {
        name: words.next().ok_or("no command")?,
        arguments: words.collect(),
        search: std::env::var_os("PATH"),
        environment: membound_launch::environment(),
    };
    let mut options = Options::new(path.into());
    options.timer = timer;
    if let Some(cache) = std::env::var_os("RECORD_CACHE") {
        options.cache = Some(membound_launch::Cache::at(cache.into()));
    }
    let recorder = Recorder::launch(&program, options)?;
    let session = recorder.session().ok_or("it has a session")?;
    let status = loop {
        if let Change::Ended(status) = session.wait()? {
            break status;
        }
    };
    let summary = recorder.finish(match (status.code(), status.signal()) {
        (Some(code), _) => Ended::Exited(code),
        (_, signal) => Ended::Killed(signal.unwrap_or(0)),
    })?;
    let run = RunData::open(&summary.path)?;
    let mut out = std::io::stderr().lock();
    let taken: u64 = run.threads.iter().filter_map(|it| it.cpu_ns).sum();
    writeln!(
        out,
        "elapsed {:.3} s, threads took {:.3} s, membound {:.3} s",
        run.meta.elapsed_ns as f64 / 1e9,
        taken as f64 / 1e9,
        run.meta.own_cpu_ns as f64 / 1e9
    )?;
    writeln!(
        out,
        "samples {}, accesses {}, executions {}, objects {}, allocations {}, sites {}, frames {}, stacks {}, processes {}, threads {}, bursts {}, blocks {}",
        run.samples.len(),
        run.accesses.len(),
        run.executions.len(),
        run.objects.len(),
        run.allocations.len(),
        run.sites.len(),
        run.frames.len(),
        run.stacks.len(),
        run.processes.len(),
        run.threads.len(),
        run.bursts.len(),
        run.blocks.len()
    )?;
    for thread in &run.threads {
        writeln!(out, "  {thread:?}")?;
    }
    let mut times: BTreeMap<&str, u64> = BTreeMap::new();
    for sample in &run.samples {
        let leaf = run.stacks[sample.stack.index()].frame;
        let named = run.locations.iter().find(|it| it.frame == leaf);
        *times
            .entry(named.map_or("?", |it| &it.function))
            .or_default() += sample.weight_ns;
    }
    let mut times: Vec<_> = times.into_iter().collect();
    times.sort_by_key(|(_, time)| std::cmp::Reverse(*time));
    for (name, time) in times.iter().take(20) {
        writeln!(out, "  {:8.3} ms  {name}", *time as f64 / 1e6)?;
    }
    for window in run.executions.iter().take(40) {
        let site = &run.sites[window.site.index()];
        writeln!(
            out,
            "  {:8.3}..{:8.3} ms  {:9} times in {:8.3} ms of CPU  {}",
            window.from_ns as f64 / 1e6,
            window.to_ns as f64 / 1e6,
            window.count,
            window.cpu_ns as f64 / 1e6,
            site.text
        )?;
    }
    for site in &run.sites {
        if let Some(why) = &site.refused {
            writeln!(out, "  refused {}: {why}", site.text)?;
        }
    }
    for object in run.objects.iter().take(20) {
        writeln!(out, "  {object:?}")?;
    }
    for gap in &run.gaps {
        writeln!(out, "  {gap:?}")?;
    }
    Ok(())
}
