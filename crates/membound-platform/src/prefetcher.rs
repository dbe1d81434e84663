//! Switching hardware prefetchers off and back on.
//!
//! Intel: MSR 0x1A4, a set bit is off. AMD: MSR 0xC000_0108 where CPUID says so, a set bit
//! is off. POWER: the data stream control register behind `/sys/devices/system/cpu`.
//!
//! A setting is one of [`Controls::settings`], or any set of names for [`Controls::switch_off`].
//! Changes are undone when [`Restore`] is dropped, and by a guard process when this process ends
//! without having done so; see [`guard`].

mod family;
pub mod guard;

use std::collections::BTreeMap;

use membound_types::{Cpu, CpuId, Dscr, NotMeasured, Outcome, PrefetchState};

use family::{Control, Family};
use guard::{Change, Guard, GuardCommand};

use crate::{Error, Root, msr};

/// The prefetchers that can be switched on this machine.
#[derive(Clone, Debug)]
pub struct Controls {
    root: Root,
    family: Family,
    cpus: Vec<CpuId>,
}

/// Prefetchers that are off until this is dropped.
#[derive(Debug)]
pub struct Restore {
    changes: Vec<Change>,
    guard: Option<Guard>,
}

impl Controls {
    /// Detects what can be switched. Nothing is changed.
    ///
    /// A guest may still ignore a write; [`Controls::switch_off`] reads back and finds that.
    #[must_use]
    pub fn detect(root: &Root, cpu: &Cpu) -> Outcome<Self> {
        let family = match Family::of(root, cpu) {
            Ok(family) => family,
            Err(not_measured) => return Outcome::Missing { not_measured },
        };
        let controls = Self {
            root: root.clone(),
            family,
            cpus: cpu.online.clone(),
        };
        let first = controls.cpus.first().copied().unwrap_or(CpuId(0));
        match controls.probe(first) {
            Ok(()) => Outcome::Known(controls),
            Err(not_measured) => Outcome::Missing { not_measured },
        }
    }

    /// The names of the prefetchers.
    #[must_use]
    pub fn names(&self) -> Vec<&'static str> {
        self.family
            .controls()
            .iter()
            .map(|control| control.name)
            .collect()
    }

    /// Name → whether it is on, for one CPU.
    ///
    /// # Errors
    /// [`Error::Read`] where the register cannot be read any more.
    pub fn state(&self, cpu: CpuId) -> Result<BTreeMap<String, bool>, Error> {
        let value = self.family.place(&self.root, cpu).read()?;
        Ok(self
            .family
            .controls()
            .iter()
            .map(|control| (control.name.to_owned(), control.is_on(value)))
            .collect())
    }

    /// Switches the prefetchers named in `which` off on `cpus`; an empty `which` means all.
    ///
    /// A guard process is running before the first register is written, and every write is
    /// read back.
    ///
    /// # Errors
    /// [`Error::NoSuchPrefetcher`], [`Error::Guard`] where the guard does not start,
    /// [`Error::Write`], and [`Error::NotKept`] where a register does not keep what was written, as
    /// in a guest. Everything changed until then is restored.
    pub fn switch_off(
        &self,
        which: &[&str],
        cpus: &[CpuId],
        guard: &GuardCommand,
    ) -> Result<Restore, Error> {
        let chosen = self.chosen(which)?;
        let mask = chosen.iter().fold(0, |mask, control| mask | control.mask);
        self.change(mask, cpus, guard, |former| {
            chosen
                .iter()
                .fold(former, |value, control| control.off(value))
        })
    }

    /// Every setting besides the machine's own, for [`Controls::set`].
    #[must_use]
    pub fn settings(&self) -> Vec<PrefetchState> {
        self.family.settings()
    }

    /// Applies one of [`Controls::settings`] on `cpus`; [`PrefetchState::Default`] is the machine's
    /// own, for which nothing is written.
    ///
    /// # Errors
    /// As [`Controls::switch_off`]; [`Error::NoSuchPrefetcher`] for a setting of another
    /// kind of processor.
    pub fn set(
        &self,
        setting: &PrefetchState,
        cpus: &[CpuId],
        guard: &GuardCommand,
    ) -> Result<Restore, Error> {
        match setting {
            PrefetchState::Default => self.change(0, &[], guard, |former| former),
            PrefetchState::Off => self.switch_off(&[], cpus, guard),
            PrefetchState::Without(name) => self.switch_off(&[name], cpus, guard),
            PrefetchState::Dscr(dscr) if self.family.is_register() => {
                Err(Error::NoSuchPrefetcher {
                    name: dscr.to_string(),
                    known: self.names().join(", "),
                })
            }
            PrefetchState::Dscr(dscr) => {
                let value = u64::from(dscr.value());
                let mask = u64::from(Dscr::MAX);
                self.change(mask, cpus, guard, |former| former & !mask | value)
            }
        }
    }

    /// Writes the value that `wanted` computes from each CPU's former one, in the bits of `mask`.
    fn change(
        &self,
        mask: u64,
        cpus: &[CpuId],
        guard: &GuardCommand,
        wanted: impl Fn(u64) -> u64,
    ) -> Result<Restore, Error> {
        let mut changes = Vec::with_capacity(cpus.len());
        for &cpu in cpus {
            let place = self.family.place(&self.root, cpu);
            let former = place.read()?;
            changes.push(Change {
                mask,
                place,
                former,
                wanted: wanted(former),
            });
        }
        let guard = Guard::spawn(guard, &changes)?;
        // From here on every way out goes through the drop of this value.
        let restore = Restore {
            changes,
            guard: Some(guard),
        };
        for change in &restore.changes {
            change.apply()?;
        }
        Ok(restore)
    }

    fn chosen(&self, which: &[&str]) -> Result<Vec<Control>, Error> {
        let all = self.family.controls();
        if which.is_empty() {
            return Ok(all.to_vec());
        }
        which
            .iter()
            .map(|&name| {
                all.iter()
                    .find(|control| control.name == name)
                    .copied()
                    .ok_or_else(|| Error::NoSuchPrefetcher {
                        name: name.to_owned(),
                        known: self.names().join(", "),
                    })
            })
            .collect()
    }

    /// Reads the register and opens it for writing, without writing: the kernel logs which programs
    /// write registers.
    fn probe(&self, cpu: CpuId) -> Result<(), NotMeasured> {
        let place = self.family.place(&self.root, cpu);
        let outcome = place.read().and_then(|_| place.may_write());
        outcome.map_err(|error| match &error {
            Error::Read { path, source } | Error::Write { path, source, .. }
                if self.family.is_register() =>
            {
                msr::refused(path, source)
            }
            Error::Write { path, source, .. } => NotMeasured {
                reason: format!("{} may not be written: {source}", path.display()),
                remedy: Some("run membound as root".to_owned()),
            },
            _ => error.not_measured(),
        })
    }
}

impl Restore {
    /// Restores everything now and returns the first failure; dropping does the same silently.
    ///
    /// # Errors
    /// The first write that failed. The guard process then tries once more.
    pub fn restore(mut self) -> Result<(), Error> {
        self.put_back()
    }

    fn put_back(&mut self) -> Result<(), Error> {
        let mut first_failure = Ok(());
        for change in self.changes.drain(..) {
            let outcome = change.undo();
            if first_failure.is_ok() {
                first_failure = outcome;
            }
        }
        if let Some(guard) = self.guard.take() {
            if first_failure.is_ok() {
                guard.dismiss();
            } else {
                // Its pipe closes without [`guard::restore_main`] reading a dismissal, so it writes
                // all values again.
                guard.release();
            }
        }
        first_failure
    }
}

impl Drop for Restore {
    fn drop(&mut self) {
        // The guard takes over what failed here; a drop cannot report it.
        let _ = self.put_back();
    }
}

/// Prefetcher name → whether it is on, or why that cannot be read. Changes nothing.
#[must_use]
pub fn states(root: &Root, cpu: &Cpu, on: CpuId) -> Outcome<BTreeMap<String, bool>> {
    let family = match Family::of(root, cpu) {
        Ok(family) => family,
        Err(not_measured) => return Outcome::Missing { not_measured },
    };
    let controls = Controls {
        root: root.clone(),
        family,
        cpus: cpu.online.clone(),
    };
    match controls.state(on) {
        Ok(states) => Outcome::Known(states),
        Err(Error::Read { path, source }) if controls.family.is_register() => Outcome::Missing {
            not_measured: msr::refused(&path, &source),
        },
        Err(error) => Outcome::Missing {
            not_measured: error.not_measured(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::msr::{MsrFiles, read_at, write_at};
    use crate::testing::Tree;

    fn intel() -> Cpu {
        Cpu {
            architecture: "x86_64".to_owned(),
            vendor: "GenuineIntel".to_owned(),
            family: Some(6),
            model: Some(0x6a),
            online: vec![CpuId(0), CpuId(1)],
            ..Cpu::default()
        }
    }

    fn registers() -> Tree {
        Tree::new()
            .file("dev/cpu/0/msr", vec![0u8; 0x200])
            .file("dev/cpu/1/msr", vec![0u8; 0x200])
    }

    #[test]
    fn names_and_states_on_a_fake_register_file() {
        let tree = registers();
        let root = tree.root();
        let register = MsrFiles::new(&root).path(CpuId(1));
        write_at(&register, 0x1a4, 0b0101).unwrap();
        let controls = Controls::detect(&root, &intel());
        let controls = controls.known().unwrap();
        assert_eq!(
            controls.names(),
            ["l2-streamer", "l2-adjacent-line", "dcu", "dcu-ip"]
        );
        let state = controls.state(CpuId(1)).unwrap();
        assert_eq!(
            state.into_iter().collect::<Vec<_>>(),
            [
                ("dcu".to_owned(), false),
                ("dcu-ip".to_owned(), true),
                ("l2-adjacent-line".to_owned(), true),
                ("l2-streamer".to_owned(), false),
            ]
        );
    }

    #[test]
    fn an_unknown_name_is_refused_with_the_known_ones() {
        let tree = registers();
        let root = tree.root();
        let controls = Controls::detect(&root, &intel());
        let guard = GuardCommand::new("/nonexistent", [""; 0]);
        let error = controls
            .known()
            .unwrap()
            .switch_off(&["l9"], &[CpuId(0)], &guard)
            .unwrap_err();
        assert_eq!(
            error.to_string(),
            "unknown prefetcher `l9` (known: l2-streamer, l2-adjacent-line, dcu, dcu-ip)"
        );
    }

    #[test]
    fn without_a_guard_nothing_is_changed() {
        let tree = registers();
        let root = tree.root();
        let controls = Controls::detect(&root, &intel());
        let guard = GuardCommand::new("/nonexistent", [""; 0]);
        let error = controls
            .known()
            .unwrap()
            .switch_off(&[], &[CpuId(0)], &guard)
            .unwrap_err();
        assert!(matches!(error, Error::Guard { .. }), "{error}");
        let register = MsrFiles::new(&root).path(CpuId(0));
        assert_eq!(read_at(&register, 0x1a4).unwrap(), 0);
    }

    #[test]
    fn prefetchers_that_cannot_be_switched_have_a_reason() {
        let nowhere = Tree::new().root();
        let reason = |cpu: &Cpu| {
            Controls::detect(&nowhere, cpu)
                .why_missing()
                .cloned()
                .unwrap()
        };
        assert_eq!(
            reason(&intel()).remedy.as_deref(),
            Some("as root: modprobe msr")
        );
        let arm = Cpu {
            architecture: "aarch64".to_owned(),
            ..Cpu::default()
        };
        assert!(reason(&arm).reason.contains("aarch64"));
    }
}
