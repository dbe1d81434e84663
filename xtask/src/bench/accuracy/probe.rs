//! Checks whether the machine still behaves as when it was measured: probes before, beside and
//! after each repetition. Their verdict does not depend on what the repetition found.

use std::path::Path;

use anyhow::Result;
use membound_platform::Root;
use membound_platform::disturb::{clock_ticks_per_second, steal_ticks};
use membound_types::{CpuId, MachineProfile};
use serde::Serialize;

use super::case::{latency_ns, size_bytes, told};
use crate::run::{program, stdout_of};

/// Relative slowdown of arithmetic and hits from which on the clock has changed or other programs
/// use part of the core.
const APART: f64 = 0.05;
/// The same for the loop inside the profiled program, whose time includes the recorder's
/// interrupts.
const APART_BESIDE: f64 = 0.1;
/// Multiple of the unperturbed time of a hop from which on hops were mostly not in their level.
const ELSEWHERE: f64 = 1.5;
/// Share of a CPU's time that the hypervisor may take.
const STOLEN: f64 = 0.02;
/// Runs of a probe; the shortest counts.
const TRIES: usize = 3;

/// Runs the probes: the program of the shares.
pub(super) struct Prober<'a> {
    share: &'a Path,
    /// Half of the innermost cache, in bytes.
    near: u64,
    /// Unperturbed nanoseconds of a round of arithmetic.
    round_ns: f64,
    /// Nanoseconds of a hit, from the machine profile.
    hit_ns: f64,
    cpus: Vec<CpuId>,
}

/// Result of one probe of the machine.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct Probe {
    /// Nanoseconds of a round of arithmetic.
    round_ns: f64,
    /// Nanoseconds of a hit in the innermost cache.
    hit_ns: f64,
    /// Seconds that the hypervisor has taken from the CPUs so far.
    stolen_s: f64,
}

/// What the profiled program measures of its surroundings with its own clock.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct Beside {
    /// Nanoseconds per round of arithmetic, without the time of recording.
    pub(super) round_ns: Option<f64>,
    /// Nanoseconds per hop of its chase, and of an unperturbed hop; only for a chase through a
    /// cache.
    pub(super) hop_ns: Option<(f64, f64)>,
    /// Wall time of the repetition in seconds.
    pub(super) elapsed_s: f64,
}

impl<'a> Prober<'a> {
    /// Measures the unperturbed time of arithmetic: the shortest of many runs.
    ///
    /// # Errors
    /// When the program fails.
    pub(super) fn new(share: &'a Path, machine: &MachineProfile) -> Result<Self> {
        let mut prober = Self {
            share,
            near: size_bytes(machine, "L1").map_or(16 << 10, |size| size / 2),
            round_ns: f64::INFINITY,
            hit_ns: latency_ns(machine, "L1").unwrap_or(f64::INFINITY),
            cpus: machine.machine.cpu.allowed.clone(),
        };
        prober.round_ns = prober.shortest((4096, 0), ("alu_ns", "rounds"), 4 * TRIES)?;
        Ok(prober)
    }

    /// Probes the machine now.
    ///
    /// # Errors
    /// When the program fails.
    pub(super) fn probe(&self) -> Result<Probe> {
        let root = Root::system();
        let stolen = self.cpus.iter().filter_map(|cpu| steal_ticks(&root, *cpu));
        Ok(Probe {
            round_ns: self.shortest((4096, 0), ("alu_ns", "rounds"), TRIES)?,
            hit_ns: self.hop_ns(self.near)?,
            stolen_s: stolen.sum::<u64>() as f64 / clock_ticks_per_second() as f64,
        })
    }

    /// Nanoseconds of a hop of the chase through `area_bytes` while nothing is profiled.
    ///
    /// # Errors
    /// When the program fails.
    pub(super) fn hop_ns(&self, area_bytes: u64) -> Result<f64> {
        self.shortest((area_bytes, 100), ("chase_ns", "hops"), TRIES)
    }

    /// Time per operation of the program run alone: the shortest of `tries` runs.
    fn shortest(
        &self,
        (area_bytes, percent): (u64, u32),
        (all, one): (&str, &str),
        tries: usize,
    ) -> Result<f64> {
        let words = [area_bytes.to_string(), percent.to_string(), "50".to_owned()];
        let mut least = f64::INFINITY;
        for _ in 0..tries {
            let said = stdout_of(program(self.share).args(&words))?;
            least = least.min(told(&said, all)? / told(&said, one)?.max(1.0));
        }
        Ok(least)
    }

    /// How probes and program differ from when the machine was measured; `None` if they do not.
    pub(super) fn disturbance(
        &self,
        before: &Probe,
        beside: &Beside,
        after: &Probe,
    ) -> Option<String> {
        for (when, probe) in [("before", before), ("after", after)] {
            let rounds = probe.round_ns / self.round_ns;
            if rounds > 1.0 + APART {
                return Some(format!(
                    "{when}: arithmetic took {rounds:.2} times what it takes alone"
                ));
            }
            let hits = probe.hit_ns / self.hit_ns;
            if (hits - 1.0).abs() > APART {
                return Some(format!(
                    "{when}: hits took {hits:.2} times what they took when the machine was measured"
                ));
            }
        }
        let stolen = (after.stolen_s - before.stolen_s) / beside.elapsed_s;
        if stolen > STOLEN {
            return Some(format!(
                "the hypervisor took {:.0} % of a CPU",
                stolen * 100.0
            ));
        }
        if let Some(round_ns) = beside.round_ns
            && round_ns > self.round_ns * (1.0 + APART_BESIDE)
        {
            let times = round_ns / self.round_ns;
            return Some(format!(
                "beside the chase, arithmetic took {times:.2} times what it takes alone"
            ));
        }
        if let Some((hop_ns, undisturbed_ns)) = beside.hop_ns
            && hop_ns > ELSEWHERE * undisturbed_ns
        {
            return Some(format!(
                "a hop took {hop_ns:.1} ns instead of {undisturbed_ns:.1} ns: others had that cache"
            ));
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prober() -> Prober<'static> {
        Prober {
            share: Path::new("share"),
            near: 16 << 10,
            round_ns: 4.0,
            hit_ns: 1.0,
            cpus: vec![CpuId(0)],
        }
    }

    const QUIET: Probe = Probe {
        round_ns: 4.0,
        hit_ns: 1.0,
        stolen_s: 7.0,
    };

    const BESIDE: Beside = Beside {
        round_ns: Some(4.2),
        hop_ns: Some((5.0, 4.0)),
        elapsed_s: 2.0,
    };

    #[test]
    fn a_quiet_machine_is_no_disturbance() {
        assert_eq!(prober().disturbance(&QUIET, &BESIDE, &QUIET), None);
    }

    #[test]
    fn each_probe_is_heard() {
        let slow = Probe {
            round_ns: 4.4,
            ..QUIET
        };
        let clocked = Probe {
            hit_ns: 0.9,
            ..QUIET
        };
        let robbed = Probe {
            stolen_s: 7.1,
            ..QUIET
        };
        let shared = Beside {
            round_ns: Some(5.0),
            ..BESIDE
        };
        let pushed_out = Beside {
            hop_ns: Some((9.0, 4.0)),
            ..BESIDE
        };
        for (before, beside, after, word) in [
            (slow, BESIDE, QUIET, "before: arithmetic"),
            (QUIET, BESIDE, clocked, "after: hits"),
            (QUIET, BESIDE, robbed, "hypervisor"),
            (QUIET, shared, QUIET, "beside the chase"),
            (QUIET, pushed_out, QUIET, "others had that cache"),
        ] {
            let found = prober().disturbance(&before, &beside, &after);
            assert!(
                found.as_ref().is_some_and(|it| it.contains(word)),
                "{found:?}"
            );
        }
    }
}
