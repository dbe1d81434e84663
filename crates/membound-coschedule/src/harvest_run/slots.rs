//! Which processor time scavengers get in addition to the command's stalls: SMT siblings of its cores while its
//! bounds are kept, or other cores through the kernel's scheduler.

use membound_control::{ExceededBound, SiblingControl};
use membound_launch::{Harvested, Remote};
use membound_platform::{Root, affinity};
use membound_types::{Cpu, CpuId, HarvestSlots, IdlePolicy, SlotMode, SmtPolicy};

use super::run_config::RunConfig;
use super::sibling_binding::{SiblingBinding, SiblingUse};

/// The source of processor time in addition to stalls, chosen once for the run.
#[derive(Debug)]
pub(super) enum Slots {
    /// No other hardware thread is managed, for the reason given.
    Stalls(&'static str),
    /// The kernel's scheduler, on all CPUs but the SMT siblings of the command's, for the reason given.
    Kernel(SiblingBinding, &'static str),
    /// Those SMT siblings while the controller permits, else the kernel's scheduler as in `Kernel`.
    Smt(SiblingBinding),
}

impl Slots {
    /// Chooses from the options, the machine's cores and the number of scavengers.
    pub(super) fn new(config: &RunConfig, cpu: &Cpu, scavengers: usize) -> Self {
        let cores = cores(config, cpu);
        if cores.is_empty() {
            return Self::Stalls(match config.slo_p95_ns {
                None => "no core has a second hardware thread that may be used",
                Some(_) => {
                    "no core has a second hardware thread that may be used: what the latency would \
                     decide there (--slo-p95) decides here how much of the time scavengers are let in"
                }
            });
        }
        if config.no_primary {
            return Self::Stalls(
                "there is no command whose cores scavengers could share (--no-primary)",
            );
        }
        if config.idle != IdlePolicy::Harvest {
            return Self::Stalls(
                "scavengers run on other hardware threads only with --idle harvest",
            );
        }
        if config.smt == SmtPolicy::Auto && config.slo_p95_ns.is_none() {
            return Self::Stalls(
                "without --slo-p95 no scavenger is given a hardware thread beside the command's (--smt on \
                 does)",
            );
        }
        // The slowdown is measured by time slices, so one scavenger has to stay in stalls.
        let in_stalls = usize::from(config.max_slowdown.is_some());
        let most = scavengers.saturating_sub(in_stalls);
        let binding = SiblingBinding::new(cores, cpu.allowed.clone(), most);
        match config.smt {
            SmtPolicy::Off => Self::Kernel(
                binding,
                "the other hardware threads of the command's cores are left alone (--smt off)",
            ),
            SmtPolicy::Auto | SmtPolicy::On if most == 0 => Self::Kernel(
                binding,
                "--max-slowdown is held by the turns of scavengers in stalls, and there is only one \
                 scavenger",
            ),
            SmtPolicy::Auto | SmtPolicy::On => Self::Smt(binding),
        }
    }

    /// Whether the CPUs on which the command runs are polled.
    pub(super) const fn are_followed(&self) -> bool {
        !matches!(self, Self::Stalls(_))
    }

    /// Whether the controller decides about SMT siblings.
    pub(super) const fn are_controlled(&self) -> bool {
        matches!(self, Self::Smt(_))
    }

    /// Whether a scavenger is on an SMT sibling.
    pub(super) fn uses_siblings(&self) -> bool {
        matches!(self, Self::Smt(binding) if binding.is_given())
    }

    /// Finds where the command, process `pid`, runs, and binds scavengers; see [`SiblingBinding::poll`].
    pub(super) fn poll(
        &mut self,
        (remote, pid): (&Remote, u32),
        harvested: &Harvested,
        own_s: &[f64],
        control: Option<&SiblingControl>,
    ) {
        let (binding, to) = match self {
            Self::Stalls(_) => return,
            Self::Kernel(binding, _) => (binding, SiblingUse::KeepFree),
            Self::Smt(binding) if control.is_some_and(SiblingControl::is_on) => {
                (binding, SiblingUse::Give)
            }
            Self::Smt(binding) => (binding, SiblingUse::KeepFree),
        };
        binding.poll(remote, pid, harvested, own_s, to);
    }

    /// The mode and its reason, for the report.
    pub(super) fn report(&self, control: Option<&SiblingControl>) -> HarvestSlots {
        let (mode, why) = match self {
            Self::Stalls(why) => (SlotMode::Stalls, *why),
            Self::Kernel(_, why) => (SlotMode::Kernel, *why),
            Self::Smt(binding) => match control.and_then(SiblingControl::exceeded) {
                Some(ExceededBound::Requests) => (
                    SlotMode::Kernel,
                    "with scavengers beside the command more than 5 in 100 requests took longer than \
                     they may (--slo-p95)",
                ),
                Some(ExceededBound::Slowdown) => (
                    SlotMode::Kernel,
                    "with scavengers beside the command it was slower than allowed (--max-slowdown)",
                ),
                None if binding.given().cpus.is_empty() => (
                    SlotMode::Kernel,
                    "no hardware thread beside the command's was free while a scavenger lived",
                ),
                None if control.is_some_and(SiblingControl::has_limits) => (
                    SlotMode::Smt,
                    "the command keeps its bounds with scavengers there",
                ),
                None => (
                    SlotMode::Smt,
                    "neither --slo-p95 nor --max-slowdown forbids it",
                ),
            },
        };
        let given = match self {
            Self::Stalls(_) => None,
            Self::Kernel(binding, _) | Self::Smt(binding) => Some(binding.given()),
        };
        let given = given.cloned().unwrap_or_default();
        HarvestSlots {
            mode,
            why: why.to_owned(),
            smt_s: given.wall_s,
            beside_s: given.cpu_s,
            changes: control.map_or(0, SiblingControl::changes),
            cpus: given.cpus.into_iter().collect(),
        }
    }
}

/// Usable hardware threads by core: one list for each core that has more than one.
fn cores(config: &RunConfig, cpu: &Cpu) -> Vec<Vec<CpuId>> {
    let known = if config.siblings.is_empty() {
        cpu.smt_siblings.clone()
    } else {
        sibling_lists(config)
    };
    let allowed = |core: Vec<CpuId>| -> Vec<CpuId> {
        let may_be_used = |it: &CpuId| cpu.allowed.contains(it);
        core.into_iter().filter(may_be_used).collect()
    };
    let cores = known.into_iter().map(allowed);
    cores.filter(|core| core.len() > 1).collect()
}

/// The lists of `--siblings`.
pub(super) fn sibling_lists(config: &RunConfig) -> Vec<Vec<CpuId>> {
    config.siblings.iter().map(|core| core.0.clone()).collect()
}

/// What is wrong with the lists of `--siblings`, or `None`.
pub(super) fn complaint(config: &RunConfig) -> Option<String> {
    let mut named = Vec::new();
    for cpu in sibling_lists(config).into_iter().flatten() {
        if let Err(error) = affinity::check(&Root::system(), cpu) {
            return Some(format!("--siblings: {error}"));
        }
        if named.contains(&cpu) {
            return Some(format!("--siblings: cpu {cpu} is named twice"));
        }
        named.push(cpu);
    }
    None
}
