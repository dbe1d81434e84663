//! Which prefetchers a processor has, and the bits that switch them.

use std::path::PathBuf;

use membound_types::{Cpu, CpuId, Dscr, NotMeasured, PrefetchState};

use super::guard::ValueLocation;
use crate::Root;

const INTEL_MISC_FEATURE_CONTROL: u32 = 0x1a4;
const AMD_PREFETCH_CONTROL: u32 = 0xc000_0108;
const POWER: &str = "sys/devices/system/cpu";

/// One prefetcher: it is off when its bits have one value, and on with any other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Control {
    pub(super) name: &'static str,
    /// The bits that belong to it.
    pub(super) mask: u64,
    /// Their value when it is off.
    off: u64,
}

impl Control {
    pub(super) fn is_on(self, value: u64) -> bool {
        value & self.mask != self.off
    }

    /// `value` with this prefetcher off.
    pub(super) fn off(self, value: u64) -> u64 {
        value & !self.mask | self.off
    }
}

const fn set_is_off(name: &'static str, bit: u32) -> Control {
    Control {
        name,
        mask: 1 << bit,
        off: 1 << bit,
    }
}

/// Intel SDM volume 4, MSR 1A4H.
const INTEL: [Control; 4] = [
    set_is_off("l2-streamer", 0),
    set_is_off("l2-adjacent-line", 1),
    set_is_off("dcu", 2),
    set_is_off("dcu-ip", 3),
];

/// AMD64 manual volume 2, the PREFETCH_CONTROL register; bit 4 is reserved.
const AMD: [Control; 5] = [
    set_is_off("l1-stream", 0),
    set_is_off("l1-stride", 1),
    set_is_off("l1-region", 2),
    set_is_off("l2-stream", 3),
    set_is_off("up-down", 5),
];

/// Power ISA, DSCR: the prefetch depth in the low three bits, where 1 is none, then one
/// enabling bit each for store streams and for strides of more than a line.
const DSCR: [Control; 3] = [
    Control {
        name: "load-stream",
        mask: 7,
        off: 1,
    },
    Control {
        name: "store-stream",
        mask: 8,
        off: 0,
    },
    Control {
        name: "stride-n",
        mask: 16,
        off: 0,
    },
];

/// The method by which prefetchers are switched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    Intel,
    Amd,
    /// POWER: one register file for each CPU.
    Dscr,
    /// POWER: one file for all CPUs.
    DscrDefault,
}

impl Family {
    /// The kind of switch that this processor has, whether it may be used or not.
    pub(super) fn of(root: &Root, cpu: &Cpu) -> Result<Self, NotMeasured> {
        let none = |reason: String| {
            Err(NotMeasured {
                reason,
                remedy: None,
            })
        };
        match (cpu.vendor.as_str(), cpu.architecture.as_str()) {
            // The register came with Nehalem. Knights Landing and the older Atoms have
            // other bits in it.
            ("GenuineIntel", _) if cpu.family == Some(6) => match cpu.model {
                Some(
                    0x57 | 0x85 | 0x1c | 0x26 | 0x27 | 0x35 | 0x36 | 0x37 | 0x4a | 0x4c | 0x4d
                    | 0x5a | 0x5d,
                ) => none("this processor has no documented prefetcher switches".to_owned()),
                _ => Ok(Self::Intel),
            },
            ("AuthenticAMD", _) if amd_has_register(root, cpu) => Ok(Self::Amd),
            ("AuthenticAMD", _) => none(
                "this processor, or its hypervisor, has no prefetcher switches \
                 (CPUID 8000_0021 EAX bit 13 is clear)"
                    .to_owned(),
            ),
            (_, "powerpc64") if root.exists(format!("{POWER}/cpu0/dscr")) => Ok(Self::Dscr),
            (_, "powerpc64") if root.exists(format!("{POWER}/dscr_default")) => {
                Ok(Self::DscrDefault)
            }
            (_, "powerpc64") => none(format!(
                "{} is not there",
                root.path(format!("{POWER}/dscr_default")).display()
            )),
            (_, architecture) => none(format!(
                "no prefetcher switches are known for this processor ({architecture})"
            )),
        }
    }

    pub(super) fn controls(self) -> &'static [Control] {
        match self {
            Self::Intel => &INTEL,
            Self::Amd => &AMD,
            Self::Dscr | Self::DscrDefault => &DSCR,
        }
    }

    /// Every setting that is worth measuring besides the machine's own: all switches off and each
    /// alone off; on POWER every depth, the deepest with store streams, and streams of strides with
    /// the processor's own depth and, with everything, the deepest.
    pub(super) fn settings(self) -> Vec<PrefetchState> {
        match self {
            Self::Dscr | Self::DscrDefault => {
                let values = (0..8).chain([15, 16, 31]);
                values
                    .filter_map(Dscr::new)
                    .map(PrefetchState::Dscr)
                    .collect()
            }
            Self::Intel | Self::Amd => {
                let each = self.controls().iter();
                let each = each.map(|control| PrefetchState::Without(control.name.to_owned()));
                std::iter::once(PrefetchState::Off).chain(each).collect()
            }
        }
    }

    /// Whether the switches are model-specific registers.
    pub(super) fn is_register(self) -> bool {
        matches!(self, Self::Intel | Self::Amd)
    }

    /// Location of the switches of a CPU.
    pub(super) fn place(self, root: &Root, cpu: CpuId) -> ValueLocation {
        let register = |number: u32| ValueLocation::Register {
            path: root.path(format!("dev/cpu/{cpu}/msr")),
            offset: u64::from(number),
        };
        let attribute = |path: PathBuf| ValueLocation::HexAttribute { path };
        match self {
            Self::Intel => register(INTEL_MISC_FEATURE_CONTROL),
            Self::Amd => register(AMD_PREFETCH_CONTROL),
            Self::Dscr => attribute(root.path(format!("{POWER}/cpu{cpu}/dscr"))),
            Self::DscrDefault => attribute(root.path(format!("{POWER}/dscr_default"))),
        }
    }
}

/// CPUID 8000_0021 EAX bit 13. A test tree has no CPUID: there, Zen 4 and later have it.
fn amd_has_register(root: &Root, cpu: &Cpu) -> bool {
    #[cfg(target_arch = "x86_64")]
    if root.is_system() {
        return raw_cpuid::CpuId::new()
            .get_extended_feature_identification_2()
            .is_some_and(|features| features.has_prefetch_ctl_msr());
    }
    !root.is_system() && matches!(cpu.microarchitecture.as_deref(), Some("Zen 4" | "Zen 5"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_all_switches_each_switch_and_every_depth() {
        let named = |family: Family| -> Vec<String> {
            let settings = family.settings();
            settings.iter().map(ToString::to_string).collect()
        };
        assert_eq!(
            named(Family::Intel),
            ["off", "l2-streamer", "l2-adjacent-line", "dcu", "dcu-ip"]
        );
        assert_eq!(named(Family::Amd).len(), 1 + AMD.len());
        assert_eq!(
            named(Family::Dscr).join(" "),
            "dscr=0 dscr=1 dscr=2 dscr=3 dscr=4 dscr=5 dscr=6 dscr=7 dscr=15 dscr=16 dscr=31"
        );
    }

    #[test]
    fn a_set_bit_is_off_on_x86() {
        for control in INTEL.iter().chain(&AMD) {
            assert!(control.is_on(0), "{}", control.name);
            assert!(!control.is_on(u64::MAX), "{}", control.name);
            assert_eq!(control.off(0b100_0000), 0b100_0000 | control.mask);
        }
    }

    #[test]
    fn depth_one_is_off_on_power() {
        let [load, store, stride] = DSCR;
        assert!(load.is_on(0) && load.is_on(7) && !load.is_on(1));
        assert_eq!(load.off(0b1_1111), 0b1_1001);
        assert!(!store.is_on(0) && store.is_on(8));
        assert_eq!(store.off(0b1_1111), 0b1_0111);
        assert_eq!(stride.off(0b1_1111), 0b0_1111);
    }

    #[test]
    fn bits_of_different_prefetchers_do_not_overlap() {
        for family in [Family::Intel, Family::Amd, Family::Dscr] {
            let mut used_bits = 0;
            for control in family.controls() {
                assert_eq!(used_bits & control.mask, 0, "{}", control.name);
                assert_eq!(control.off & !control.mask, 0, "{}", control.name);
                used_bits |= control.mask;
            }
        }
    }
}
