//! The machine's prefetcher switches, as the measuring crate wants them.

use anyhow::{Context, bail};
use membound_measure::Session;
use membound_measure::prefetch::{PrefetchControl, SwitchedOff};
use membound_platform::prefetcher::guard::GuardCommand;
use membound_platform::prefetcher::{Controls, Restore};
use membound_types::{Cpu, CpuId, NotMeasured, Outcome, PrefetchState};

use crate::args::MeasureArgs;

/// Switches of the CPUs that a run measures on.
pub(super) struct Switches {
    controls: Controls,
    cpus: Vec<CpuId>,
    guard: GuardCommand,
}

impl Switches {
    /// # Errors
    /// Why there are none here.
    pub(super) fn detect(session: &Session<'_>, cpu: &Cpu) -> Result<Self, NotMeasured> {
        let controls = match Controls::detect(session.root, cpu) {
            Outcome::Known(controls) => controls,
            Outcome::Missing { not_measured } => return Err(not_measured),
        };
        let program = std::env::current_exe().map_err(|error| NotMeasured {
            reason: format!("cannot find this program's own file: {error}"),
            remedy: None,
        })?;
        // This program is also the guard that puts the prefetchers back.
        let guard = GuardCommand::new(program, ["__restore"]);
        Ok(Self {
            controls,
            cpus: session.cpus.clone(),
            guard,
        })
    }
}

impl PrefetchControl for Switches {
    fn names(&self) -> Vec<String> {
        self.controls
            .names()
            .into_iter()
            .map(str::to_owned)
            .collect()
    }

    fn switch_off(&self, which: &[&str]) -> Result<Box<dyn SwitchedOff>, NotMeasured> {
        let restore = self.controls.switch_off(which, &self.cpus, &self.guard)?;
        Ok(Box::new(Off(restore)))
    }
}

/// Prefetchers that are off until this goes.
struct Off(Restore);

impl SwitchedOff for Off {
    fn restore(self: Box<Self>) -> Result<(), NotMeasured> {
        Ok(self.0.restore()?)
    }
}

/// Switches prefetchers off for a whole run, where `--prefetch-off` asks for it.
pub(super) fn hold(
    session: &Session<'_>,
    args: &MeasureArgs,
    cpu: &Cpu,
) -> anyhow::Result<(PrefetchState, Option<Box<dyn SwitchedOff>>)> {
    if args.prefetch_off.is_empty() {
        return Ok((PrefetchState::Default, None));
    }
    let explain = |not_measured: NotMeasured| {
        let remedy = not_measured
            .remedy
            .map(|text| format!(" ({text})"))
            .unwrap_or_default();
        anyhow::anyhow!("{}{remedy}", not_measured.reason)
    };
    let place = "prefetchers cannot be switched off";
    let switches = Switches::detect(session, cpu)
        .map_err(explain)
        .context(place)?;
    let all = args.prefetch_off == ["off"] || args.prefetch_off == ["all"];
    let known = switches.names();
    if let Some(name) = args
        .prefetch_off
        .iter()
        .find(|name| !all && !known.contains(name))
    {
        bail!(
            "there is no prefetcher `{name}` here: use off, or some of {}",
            known.join(", ")
        );
    }
    // An empty list means all of them.
    let names: Vec<&str> = if all {
        Vec::new()
    } else {
        args.prefetch_off.iter().map(String::as_str).collect()
    };
    let off = switches
        .switch_off(&names)
        .map_err(explain)
        .context(place)?;
    let state = if all {
        PrefetchState::Off
    } else {
        PrefetchState::Without(names.join("+"))
    };
    Ok((state, Some(off)))
}
