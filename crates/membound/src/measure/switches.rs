//! The machine's prefetcher switches in the form that the measuring crate uses.

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
    /// Finds the switches.
    ///
    /// # Errors
    /// The reason if there are none here.
    pub(super) fn detect(session: &Session<'_>, cpu: &Cpu) -> Result<Self, NotMeasured> {
        let controls = match Controls::detect(session.root, cpu) {
            Outcome::Known(controls) => controls,
            Outcome::Missing { not_measured } => return Err(not_measured),
        };
        let program = std::env::current_exe().map_err(|error| NotMeasured {
            reason: format!("cannot find this program's own file: {error}"),
            remedy: None,
        })?;
        // Membound itself runs as the guard process that restores the prefetchers.
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

    fn settings(&self) -> Vec<PrefetchState> {
        self.controls.settings()
    }

    fn set(&self, setting: &PrefetchState) -> Result<Box<dyn SwitchedOff>, NotMeasured> {
        let restore = self.controls.set(setting, &self.cpus, &self.guard)?;
        Ok(Box::new(DisabledPrefetchers(restore)))
    }
}

/// Prefetchers that are off until this is restored or dropped.
struct DisabledPrefetchers(Restore);

impl SwitchedOff for DisabledPrefetchers {
    fn restore(self: Box<Self>) -> Result<(), NotMeasured> {
        Ok(self.0.restore()?)
    }
}

/// A reason and its remedy as one error.
fn explain(not_measured: NotMeasured) -> anyhow::Error {
    let remedy = not_measured
        .remedy
        .map(|text| format!(" ({text})"))
        .unwrap_or_default();
    anyhow::anyhow!("{}{remedy}", not_measured.reason)
}

/// The settings that `--prefetch-settings` names, after the machine's own; `all` stands for every setting of
/// this machine.
///
/// # Errors
/// For an unknown setting, with those that this machine has.
pub(super) fn settings(
    switches: &dyn PrefetchControl,
    names: &[String],
) -> anyhow::Result<Vec<PrefetchState>> {
    let known = switches.settings();
    let mut settings = vec![PrefetchState::Default];
    for name in names {
        let setting = PrefetchState::of_name(name);
        if name == "all" {
            settings.extend(known.iter().cloned());
        } else if known.contains(&setting) {
            settings.push(setting);
        } else if setting != PrefetchState::Default {
            let known: Vec<String> = known.iter().map(ToString::to_string).collect();
            bail!(
                "there is no prefetch setting `{name}` here: use all, default, or some of {}",
                known.join(", ")
            );
        }
    }
    let mut once: Vec<PrefetchState> = Vec::new();
    for setting in settings {
        if !once.contains(&setting) {
            once.push(setting);
        }
    }
    Ok(once)
}

/// The switches that `--prefetch-settings` needs.
///
/// # Errors
/// The reason if there are none here.
pub(super) fn required(session: &Session<'_>, cpu: &Cpu) -> anyhow::Result<Switches> {
    Switches::detect(session, cpu)
        .map_err(explain)
        .context("prefetchers cannot be set")
}

/// Switches prefetchers off for a whole run if `--prefetch-off` is given.
pub(super) fn hold(
    session: &Session<'_>,
    args: &MeasureArgs,
    cpu: &Cpu,
) -> anyhow::Result<(PrefetchState, Option<Box<dyn SwitchedOff>>)> {
    if args.prefetch_off.is_empty() {
        return Ok((PrefetchState::Default, None));
    }
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
        .controls
        .switch_off(&names, &switches.cpus, &switches.guard)
        .map_err(|error| explain(error.not_measured()))
        .context(place)?;
    let state = if all {
        PrefetchState::Off
    } else {
        PrefetchState::Without(names.join("+"))
    };
    Ok((state, Some(Box::new(DisabledPrefetchers(off)))))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Power;

    impl PrefetchControl for Power {
        fn names(&self) -> Vec<String> {
            Vec::new()
        }

        fn settings(&self) -> Vec<PrefetchState> {
            ["dscr=0", "dscr=1", "dscr=7", "dscr=16"]
                .map(PrefetchState::of_name)
                .to_vec()
        }

        fn set(&self, _: &PrefetchState) -> Result<Box<dyn SwitchedOff>, NotMeasured> {
            unreachable!("nothing is set here")
        }
    }

    #[test]
    fn settings_are_named_once_and_the_machines_own_is_the_first() {
        let given = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            settings(&Power, &names).map(|all| {
                let all: Vec<String> = all.iter().map(ToString::to_string).collect();
                all.join(" ")
            })
        };
        assert_eq!(
            given(&["all"]).unwrap(),
            "default dscr=0 dscr=1 dscr=7 dscr=16"
        );
        assert_eq!(
            given(&["dscr=16", "default", "dscr=16"]).unwrap(),
            "default dscr=16"
        );
        assert_eq!(
            given(&["dcu"]).unwrap_err().to_string(),
            "there is no prefetch setting `dcu` here: use all, default, or some of dscr=0, \
             dscr=1, dscr=7, dscr=16"
        );
    }
}
