//! State that all parts share: the machine, the clock, the effort, progress and cancellation.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use membound_platform::numa::Topology;
use membound_platform::{Root, affinity};
use membound_types::CpuId;

use crate::arch::{self, Backend};
use crate::{Clock, CoreClock, Error};

/// How much time a run may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effort {
    /// A complete picture of a small machine within a minute.
    Quick,
    /// The default.
    Normal,
    /// As many rounds as narrow intervals need.
    Thorough,
}

impl Effort {
    /// Selects the value for this effort.
    #[must_use]
    pub const fn pick<T: Copy>(self, quick: T, normal: T, thorough: T) -> T {
        match self {
            Self::Quick => quick,
            Self::Normal => normal,
            Self::Thorough => thorough,
        }
    }
}

/// How several copies are spread over CPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Spread {
    /// One per core, as long as there are unused cores.
    #[default]
    Cores,
    /// All hardware threads of a core before the next core.
    Siblings,
}

/// Receives the progress of a part. Never called inside a timed region.
pub trait Progress: Sync {
    /// The part is `share` (0 to 1) done; `doing` describes the next step.
    fn at(&self, share: f64, doing: &str);
}

/// Ignores progress.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl Progress for Silent {
    fn at(&self, _share: f64, _doing: &str) {}
}

/// State that all parts share.
pub struct Session<'a> {
    /// File system root with sysfs and procfs.
    pub root: &'a Root,
    /// NUMA nodes of the machine.
    pub topology: Topology,
    /// Kernels for this processor.
    pub backend: Box<dyn Backend>,
    /// Why the kernels are the portable ones, if they are.
    pub portable_because: Option<String>,
    /// Calibrated clock for all timing.
    pub clock: Clock,
    /// Measures the core clock.
    pub core: CoreClock,
    /// Core clock at the beginning, in hertz.
    pub core_hz: f64,
    /// CPUs that this process may use.
    pub cpus: Vec<CpuId>,
    /// Groups of CPUs that share a core; empty without SMT.
    pub siblings: Vec<Vec<CpuId>>,
    /// CPU of the measuring thread.
    pub cpu: CpuId,
    /// How much time may be spent.
    pub effort: Effort,
    /// Set from outside to end the run early.
    pub cancel: &'a AtomicBool,
    /// Receiver of progress reports.
    pub progress: &'a dyn Progress,
}

impl<'a> Session<'a> {
    /// Reads the machine and calibrates the clocks. `cpu` is the measuring CPU; without it, the
    /// last that this process may use, because the first serves most interrupts.
    ///
    /// # Errors
    /// When the CPU may not be used, or no kernel can be made.
    pub fn new(
        root: &'a Root,
        cpu: Option<CpuId>,
        effort: Effort,
        cancel: &'a AtomicBool,
        progress: &'a dyn Progress,
    ) -> Result<Self, Error> {
        let cpus = affinity::allowed()?;
        if let Some(cpu) = cpu {
            affinity::check(root, cpu)?;
        }
        let cpu = cpu.or(cpus.last().copied()).unwrap_or(CpuId(0));
        let _pinned = affinity::Pinned::to(cpu)?;
        let (backend, portable_because) = arch::native_or_why_not();
        let clock = Clock::calibrate(Duration::from_millis(effort.pick(30, 60, 100)));
        let core = CoreClock::new(&*backend)?;
        // The first runs only raise the core's clock from its idle frequency.
        let _warm = core.measure(&clock, 50);
        let core_hz = core.measure(&clock, 50);
        let topology = Topology::read(root);
        let siblings = membound_platform::cpu::smt_siblings(root, &cpus);
        Ok(Self {
            root,
            topology,
            backend,
            portable_because,
            clock,
            core,
            core_hz,
            cpus,
            siblings,
            cpu,
            effort,
            cancel,
            progress,
        })
    }

    /// Whether the run should end now.
    #[must_use]
    pub fn cancelled(&self) -> bool {
        self.cancel.load(Ordering::Relaxed)
    }

    /// Converts `ticks` of the clock to core cycles at the session's core clock.
    #[must_use]
    pub fn cycles(&self, ticks: f64) -> f64 {
        self.cycles_of_ns(self.clock.ns(ticks))
    }

    /// Converts `ns` nanoseconds to core cycles at the session's core clock.
    #[must_use]
    pub fn cycles_of_ns(&self, ns: f64) -> f64 {
        ns * self.core_hz / 1e9
    }

    /// `count` CPUs to pin copies to, the measuring one first.
    ///
    /// # Errors
    /// [`Error::TooManyThreads`] when there are fewer.
    pub fn cpus_for(&self, count: u32, spread: Spread) -> Result<Vec<CpuId>, Error> {
        let of_siblings: HashMap<CpuId, CpuId> = self
            .siblings
            .iter()
            .flat_map(|core| core.iter().map(|cpu| (*cpu, core[0])))
            .collect();
        let core_of = |cpu: CpuId| of_siblings.get(&cpu).copied().unwrap_or(cpu);
        let mut cpus = vec![self.cpu];
        let mut rest: Vec<CpuId> = self
            .cpus
            .iter()
            .copied()
            .filter(|cpu| *cpu != self.cpu)
            .collect();
        match spread {
            // Sorted by the number of CPUs of the same core that come before: first CPUs of cores
            // first.
            Spread::Cores => {
                let mut cpus_of_core: HashMap<CpuId, usize> = HashMap::new();
                let mut before: HashMap<CpuId, usize> = HashMap::new();
                for cpu in &self.cpus {
                    let count = cpus_of_core.entry(core_of(*cpu)).or_default();
                    before.insert(*cpu, *count);
                    *count += 1;
                }
                rest.sort_by_key(|cpu| {
                    let shares_core = usize::from(core_of(*cpu) == core_of(self.cpu));
                    (before.get(cpu).copied().unwrap_or(0) + shares_core, *cpu)
                });
            }
            Spread::Siblings => rest.sort_by_key(|cpu| {
                let core = core_of(*cpu);
                (core != core_of(self.cpu), core, *cpu)
            }),
        }
        cpus.extend(rest);
        if count as usize > cpus.len() {
            return Err(Error::TooManyThreads {
                threads: count,
                cpus: cpus.len(),
            });
        }
        cpus.truncate(count as usize);
        Ok(cpus)
    }
}
