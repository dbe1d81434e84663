//! Who gives scavengers a processor beside the command's stalls: other hardware threads of its cores
//! while its bounds are kept, or the kernel on the other cores.

use membound_launch::{Harvested, Remote};
use membound_platform::{Root, affinity};
use membound_types::{Cpu, CpuId, HarvestSlots, IdlePolicy, SlotMode, SmtPolicy};

use super::args::RunArgs;
use super::beside::{Beside, Use};
use super::guard::Limits;
use super::smt::{Control, Missed, Standing};

/// Who does, as long as the command runs.
#[derive(Debug)]
pub(super) enum Slots {
    /// Nobody in particular, and why.
    Stalls(&'static str),
    /// The kernel, off the hardware threads beside the command's, and why.
    Kernel(Beside, &'static str),
    /// Those hardware threads, or the kernel.
    Smt(Beside, Control),
}

impl Slots {
    /// As it was asked for, on this machine, for so many scavengers.
    pub(super) fn new(args: &RunArgs, cpu: &Cpu, scavengers: usize, limits: Limits) -> Self {
        let cores = cores(args, cpu);
        if cores.is_empty() {
            return Self::Stalls(match args.slo_p95 {
                None => "no core has a second hardware thread that may be used",
                Some(_) => {
                    "no core has a second hardware thread that may be used: what the latency would \
                     decide there (--slo-p95) decides here how much of the time scavengers are let in"
                }
            });
        }
        if args.no_primary {
            return Self::Stalls("there is no command whose cores could be shared (--no-primary)");
        }
        if args.idle != IdlePolicy::Harvest {
            return Self::Stalls(
                "scavengers run on other hardware threads with --idle harvest only",
            );
        }
        if args.smt == SmtPolicy::Auto && args.slo_p95.is_none() {
            return Self::Stalls(
                "without --slo-p95 no scavenger is given a hardware thread beside the command's (--smt on \
                 does)",
            );
        }
        // By whose turns a slowdown is told, is in stalls.
        let in_stalls = usize::from(args.max_slowdown.is_some());
        let most = scavengers.saturating_sub(in_stalls);
        let beside = Beside::new(cores, cpu.allowed.clone(), most);
        match args.smt {
            SmtPolicy::Off => Self::Kernel(
                beside,
                "the other hardware threads of the command's cores are left alone (--smt off)",
            ),
            SmtPolicy::Auto | SmtPolicy::On if most == 0 => Self::Kernel(
                beside,
                "--max-slowdown is held by the turns of scavengers in stalls, and there is only one \
                 scavenger",
            ),
            SmtPolicy::Auto | SmtPolicy::On => Self::Smt(beside, Control::new(limits)),
        }
    }

    /// Whether where the command runs matters.
    pub(super) const fn are_followed(&self) -> bool {
        !matches!(self, Self::Stalls(_))
    }

    /// Looks where the command, of process `pid`, runs, and binds scavengers; see [`Beside::look`].
    pub(super) fn look(&mut self, remote: &Remote, pid: u32, harvested: &Harvested, own_s: &[f64]) {
        let (beside, to) = match self {
            Self::Stalls(_) => return,
            Self::Kernel(beside, _) => (beside, Use::KeepFree),
            Self::Smt(beside, control) if control.is_on() => (beside, Use::Give),
            Self::Smt(beside, _) => (beside, Use::KeepFree),
        };
        beside.look(remote, pid, harvested, own_s, to);
    }

    /// Decides by what was seen. Returns whether it was seen with scavengers beside the command: then it
    /// says nothing of how it fares without, nor what else is to be done about it.
    pub(super) fn decide(&mut self, harvested: &Harvested, holds_back: bool) -> bool {
        let Self::Smt(beside, control) = self else {
            return false;
        };
        let standing = Standing {
            has_beside: beside.is_given(),
            holds_back,
        };
        control.decide(harvested, standing);
        standing.has_beside
    }

    /// What came of it.
    pub(super) fn said(&self) -> HarvestSlots {
        let (mode, why) = match self {
            Self::Stalls(why) => (SlotMode::Stalls, *why),
            Self::Kernel(_, why) => (SlotMode::Kernel, *why),
            Self::Smt(beside, control) => match control.missed() {
                Some(Missed::Requests) => (
                    SlotMode::Kernel,
                    "with scavengers beside the command more than 5 in 100 requests took longer than \
                     they may (--slo-p95)",
                ),
                Some(Missed::Slowdown) => (
                    SlotMode::Kernel,
                    "with scavengers beside the command it was slower than it may be (--max-slowdown)",
                ),
                None if beside.given().cpus.is_empty() => (
                    SlotMode::Kernel,
                    "no hardware thread beside the command's was free while a scavenger lived",
                ),
                None if control.has_limits() => (
                    SlotMode::Smt,
                    "the command keeps to its bounds with scavengers there",
                ),
                None => (
                    SlotMode::Smt,
                    "neither --slo-p95 nor --max-slowdown forbids it",
                ),
            },
        };
        let given = match self {
            Self::Stalls(_) => None,
            Self::Kernel(beside, _) | Self::Smt(beside, _) => Some(beside.given()),
        };
        let given = given.cloned().unwrap_or_default();
        HarvestSlots {
            mode,
            why: why.to_owned(),
            smt_s: given.wall_s,
            beside_s: given.cpu_s,
            changes: match self {
                Self::Smt(_, control) => control.changes(),
                _ => 0,
            },
            cpus: given.cpus.into_iter().collect(),
        }
    }
}

/// Hardware threads that share a core, a list each, of those that may be used.
fn cores(args: &RunArgs, cpu: &Cpu) -> Vec<Vec<CpuId>> {
    let known = if args.siblings.is_empty() {
        cpu.smt_siblings.clone()
    } else {
        given(args)
    };
    let allowed = |core: Vec<CpuId>| -> Vec<CpuId> {
        let may_be_used = |it: &CpuId| cpu.allowed.contains(it);
        core.into_iter().filter(may_be_used).collect()
    };
    let cores = known.into_iter().map(allowed);
    cores.filter(|core| core.len() > 1).collect()
}

/// The lists of `--siblings`.
pub(super) fn given(args: &RunArgs) -> Vec<Vec<CpuId>> {
    args.siblings.iter().map(|core| core.0.clone()).collect()
}

/// What is wrong with the lists of `--siblings`, if anything.
pub(super) fn complaint(args: &RunArgs) -> Option<String> {
    let mut seen = Vec::new();
    for cpu in given(args).into_iter().flatten() {
        if let Err(error) = affinity::check(&Root::system(), cpu) {
            return Some(format!("--siblings: {error}"));
        }
        if seen.contains(&cpu) {
            return Some(format!("--siblings: cpu {cpu} is named twice"));
        }
        seen.push(cpu);
    }
    None
}
