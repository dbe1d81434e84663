//! Microarchitectures by family and model, with the reorder buffers that their makers (or,
//! for AMD, the optimisation guides and Hot Chips talks) have published.
//!
//! Model numbers are those of Linux: `arch/x86/include/asm/intel-family.h`, and the generations
//! that `arch/x86/kernel/cpu/amd.c` distinguishes. Uncertain entries are left out.

/// Kind of core of a hybrid processor's CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CoreType {
    /// A core of the larger kind, or of a processor with one kind only.
    Performance,
    /// An Intel core of the smaller kind.
    Efficiency,
}

/// A microarchitecture with its published reorder buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Microarchitecture {
    /// Its name, with the product line where that is better known.
    pub name: &'static str,
    /// Entries of the reorder buffer.
    pub rob: Option<u32>,
}

const fn known(name: &'static str, rob: u32) -> Option<Microarchitecture> {
    Some(Microarchitecture {
        name,
        rob: Some(rob),
    })
}

/// The microarchitecture of an x86 processor, or `None` for one that is not in the table.
///
/// `core` matters on hybrid processors only.
#[must_use]
pub fn microarchitecture(
    vendor: &str,
    family: u32,
    model: u32,
    core: CoreType,
) -> Option<Microarchitecture> {
    match vendor {
        "GenuineIntel" => intel(family, model, core),
        "AuthenticAMD" => amd(family, model),
        // Hygon's Dhyana is a licensed Zen.
        "HygonGenuine" if family == 0x18 => known("Zen (Dhyana)", 192),
        _ => None,
    }
}

fn intel(family: u32, model: u32, core: CoreType) -> Option<Microarchitecture> {
    if family != 6 {
        return None;
    }
    let efficient = core == CoreType::Efficiency;
    match model {
        0x1a | 0x1e | 0x1f | 0x2e => known("Nehalem", 128),
        0x25 | 0x2c | 0x2f => known("Westmere", 128),
        0x2a | 0x2d => known("Sandy Bridge", 168),
        0x3a | 0x3e => known("Ivy Bridge", 168),
        0x3c | 0x3f | 0x45 | 0x46 => known("Haswell", 192),
        0x3d | 0x47 | 0x4f | 0x56 => known("Broadwell", 192),
        0x4e | 0x5e => known("Skylake", 224),
        0x55 => known(
            "Skylake server (Skylake-SP, Cascade Lake, Cooper Lake)",
            224,
        ),
        0x8e | 0x9e => known("Skylake (Kaby Lake, Coffee Lake)", 224),
        0xa5 | 0xa6 => known("Skylake (Comet Lake)", 224),
        0x7d | 0x7e | 0x6a | 0x6c => known("Sunny Cove (Ice Lake)", 352),
        0xa7 => known("Cypress Cove (Rocket Lake)", 352),
        0x8c | 0x8d => known("Willow Cove (Tiger Lake)", 352),
        0x86 | 0x96 | 0x9c => known("Tremont", 208),
        0xbe => known("Gracemont (Alder Lake-N)", 256),
        0x97 | 0x9a if efficient => known("Gracemont (Alder Lake)", 256),
        0x97 | 0x9a => known("Golden Cove (Alder Lake)", 512),
        0xb7 | 0xba | 0xbf if efficient => known("Gracemont (Raptor Lake)", 256),
        0xb7 | 0xba | 0xbf => known("Raptor Cove (Raptor Lake)", 512),
        0x8f => known("Golden Cove (Sapphire Rapids)", 512),
        0xcf => known("Raptor Cove (Emerald Rapids)", 512),
        0xaa | 0xac if efficient => known("Crestmont (Meteor Lake)", 256),
        0xaa | 0xac => known("Redwood Cove (Meteor Lake)", 512),
        0xad | 0xae => known("Redwood Cove (Granite Rapids)", 512),
        0xaf => known("Crestmont (Sierra Forest)", 256),
        0xc5 | 0xc6 if efficient => known("Skymont (Arrow Lake)", 416),
        0xc5 | 0xc6 => known("Lion Cove (Arrow Lake)", 576),
        0xbd if efficient => known("Skymont (Lunar Lake)", 416),
        0xbd => known("Lion Cove (Lunar Lake)", 576),
        _ => None,
    }
}

fn amd(family: u32, model: u32) -> Option<Microarchitecture> {
    match (family, model) {
        (0x17, 0x08 | 0x18) => known("Zen+", 192),
        (0x17, 0x00..=0x2f | 0x50..=0x5f) => known("Zen", 192),
        (0x17, 0x30..=0x4f | 0x60..=0x7f | 0x90..=0x91 | 0xa0..=0xaf) => known("Zen 2", 224),
        (0x19, 0x00..=0x0f | 0x20..=0x5f) => known("Zen 3", 256),
        (0x19, 0x10..=0x1f | 0x60..=0xaf) => known("Zen 4", 320),
        (0x1a, 0x00..=0x2f | 0x40..=0x4f | 0x60..=0x7f) => known("Zen 5", 448),
        _ => None,
    }
}

/// The maker of an Arm core, by the implementer code of MIDR.
pub(super) fn arm_vendor(implementer: Option<u32>) -> String {
    match implementer {
        Some(0x41) => "Arm".to_owned(),
        Some(0x42) => "Broadcom".to_owned(),
        Some(0x43) => "Cavium".to_owned(),
        Some(0x46) => "Fujitsu".to_owned(),
        Some(0x48) => "HiSilicon".to_owned(),
        Some(0x4e) => "NVIDIA".to_owned(),
        Some(0x51) => "Qualcomm".to_owned(),
        Some(0x61) => "Apple".to_owned(),
        Some(0xc0) => "Ampere".to_owned(),
        Some(other) => format!("implementer {other:#x}"),
        None => String::new(),
    }
}

/// The name of an Arm core, by implementer and part number of MIDR.
pub(super) fn arm_core(implementer: Option<u32>, part: Option<u32>) -> Option<&'static str> {
    Some(match (implementer?, part?) {
        (0x41, 0xd03) => "Cortex-A53",
        (0x41, 0xd07) => "Cortex-A57",
        (0x41, 0xd08) => "Cortex-A72",
        (0x41, 0xd0a) => "Cortex-A75",
        (0x41, 0xd0b) => "Cortex-A76",
        (0x41, 0xd0c) => "Neoverse N1",
        (0x41, 0xd40) => "Neoverse V1",
        (0x41, 0xd49) => "Neoverse N2",
        (0x41, 0xd4f) => "Neoverse V2",
        (0x46, 0x001) => "A64FX",
        (0x48, 0xd01) => "TaiShan v110",
        (0xc0, 0xac3) => "Ampere-1",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reorder_buffers_of_known_processors() {
        let rob = |vendor, family, model| {
            microarchitecture(vendor, family, model, CoreType::Performance)
                .and_then(|found| found.rob)
        };
        for (vendor, family, model, entries) in [
            ("AuthenticAMD", 0x17, 0x01, 192), // Naples
            ("AuthenticAMD", 0x17, 0x31, 224), // Rome
            ("AuthenticAMD", 0x17, 0x71, 224), // Matisse
            ("AuthenticAMD", 0x19, 0x01, 256), // Milan
            ("AuthenticAMD", 0x19, 0x21, 256), // Vermeer
            ("AuthenticAMD", 0x19, 0x11, 320), // Genoa
            ("AuthenticAMD", 0x19, 0x61, 320), // Raphael
            ("AuthenticAMD", 0x1a, 0x02, 448), // Turin
            ("AuthenticAMD", 0x1a, 0x44, 448), // Granite Ridge
            ("GenuineIntel", 6, 0x2d, 168),    // Sandy Bridge-EP
            ("GenuineIntel", 6, 0x3f, 192),    // Haswell-EP
            ("GenuineIntel", 6, 0x55, 224),    // Skylake-SP
            ("GenuineIntel", 6, 0x6a, 352),    // Ice Lake-SP
            ("GenuineIntel", 6, 0x8f, 512),    // Sapphire Rapids
            ("GenuineIntel", 6, 0xad, 512),    // Granite Rapids
            ("GenuineIntel", 6, 0xc6, 576),    // Arrow Lake-S
        ] {
            assert_eq!(
                rob(vendor, family, model),
                Some(entries),
                "{vendor} {family:#x} {model:#x}"
            );
        }
        for (vendor, family, model) in [
            ("GenuineIntel", 6, 0xcc),
            ("GenuineIntel", 15, 4),
            ("AuthenticAMD", 0x15, 2),
            ("AuthenticAMD", 0x1a, 0x50),
            ("CentaurHauls", 6, 0x3f),
        ] {
            assert_eq!(
                rob(vendor, family, model),
                None,
                "{vendor} {family:#x} {model:#x}"
            );
        }
    }

    #[test]
    fn hybrid_cores_are_distinguished() {
        let core = |core| {
            microarchitecture("GenuineIntel", 6, 0x97, core)
                .unwrap()
                .rob
        };
        assert_eq!(core(CoreType::Performance), Some(512));
        assert_eq!(core(CoreType::Efficiency), Some(256));
    }
}
