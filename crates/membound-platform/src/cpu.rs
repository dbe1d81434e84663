//! The processor as it declares itself.
//!
//! On the machine itself x86 facts come from CPUID; everything else, and everything on a test tree,
//! comes from `/proc/cpuinfo`.

mod models;

use membound_types::{Cpu, CpuId};

pub use models::{CoreType, Microarchitecture, microarchitecture};

use crate::hypervisor::has_flag;
use crate::{Root, affinity, list};

/// Reads the processor. On a hybrid one, microarchitecture and reorder buffer are those of
/// the core that the calling thread runs on.
#[must_use]
pub fn read(root: &Root) -> Cpu {
    let mut cpu = identify(root);
    cpu.online = affinity::online(root);
    cpu.allowed = affinity::allowed_under(root).unwrap_or_else(|_| cpu.online.clone());
    cpu.smt_siblings = smt_siblings(root, &cpu.online);
    cpu
}

/// Identifies the processor, without the lists of its CPUs.
#[must_use]
pub fn identify(root: &Root) -> Cpu {
    let cpuinfo = root.read("proc/cpuinfo").unwrap_or_default();
    let mut cpu = from_cpuinfo(&cpuinfo);
    let core = if root.is_system() {
        cpu.architecture = std::env::consts::ARCH.to_owned();
        cpuid::fill(&mut cpu)
    } else {
        CoreType::Performance
    };
    name_microarchitecture(&mut cpu, core, &cpuinfo);
    cpu
}

/// The groups of online CPUs that share a core; none where no core has two threads.
#[must_use]
pub fn smt_siblings(root: &Root, online: &[CpuId]) -> Vec<Vec<CpuId>> {
    let mut groups: Vec<Vec<CpuId>> = Vec::new();
    for cpu in online {
        let topology = format!("sys/devices/system/cpu/cpu{cpu}/topology");
        let siblings = root
            .attribute(format!("{topology}/thread_siblings_list"))
            .or_else(|| root.attribute(format!("{topology}/core_cpus_list")))
            .and_then(|text| list::cpus(&text));
        if let Some(mut group) = siblings {
            group.retain(|sibling| online.binary_search(sibling).is_ok());
            if group.len() > 1 && !groups.contains(&group) {
                groups.push(group);
            }
        }
    }
    groups
}

/// The socket of a CPU; `None` where sysfs does not give it.
#[must_use]
pub fn socket(root: &Root, cpu: CpuId) -> Option<u32> {
    root.number(format!(
        "sys/devices/system/cpu/cpu{cpu}/topology/physical_package_id"
    ))
}

fn from_cpuinfo(text: &str) -> Cpu {
    let field = |name: &str| {
        text.lines().find_map(|line| {
            let (key, value) = line.split_once(':')?;
            let value = value.trim();
            (key.trim() == name && !value.is_empty()).then(|| value.to_owned())
        })
    };
    let number = |name: &str| field(name)?.parse::<u32>().ok();
    if let Some(vendor) = field("vendor_id") {
        return Cpu {
            architecture: "x86_64".to_owned(),
            vendor,
            model_name: field("model name").unwrap_or_default(),
            family: number("cpu family"),
            model: number("model"),
            stepping: number("stepping"),
            ..Cpu::default()
        };
    }
    if let Some(implementer) = field("CPU implementer") {
        let part = field("CPU part").and_then(|part| hex(&part));
        let implementer = hex(&implementer);
        return Cpu {
            architecture: "aarch64".to_owned(),
            vendor: models::arm_vendor(implementer),
            model_name: models::arm_core(implementer, part)
                .map_or_else(|| format!("part {:#x}", part.unwrap_or(0)), str::to_owned),
            ..Cpu::default()
        };
    }
    if let Some(power) = field("cpu").filter(|name| name.starts_with("POWER")) {
        return Cpu {
            architecture: "powerpc64".to_owned(),
            vendor: "IBM".to_owned(),
            model_name: power,
            ..Cpu::default()
        };
    }
    Cpu::default()
}

fn hex(text: &str) -> Option<u32> {
    u32::from_str_radix(text.strip_prefix("0x")?, 16).ok()
}

fn name_microarchitecture(cpu: &mut Cpu, core: CoreType, cpuinfo: &str) {
    if let (Some(family), Some(model)) = (cpu.family, cpu.model) {
        let found = microarchitecture(&cpu.vendor, family, model, core);
        if let Some(found) = found.filter(|found| !is_disguised(found, cpuinfo)) {
            cpu.microarchitecture = Some(found.name.to_owned());
            cpu.published_rob = found.rob;
        }
    } else if cpu.architecture == "powerpc64" {
        // `POWER9, altivec supported` and `POWER10 (architected), altivec supported`.
        cpu.microarchitecture = cpu
            .model_name
            .split([',', ' '])
            .next()
            .map(|name| name.replace("POWER", "POWER "));
    } else if cpuinfo.contains("CPU implementer") && !cpu.model_name.starts_with("part ") {
        cpu.microarchitecture = Some(cpu.model_name.clone());
    }
}

/// Whether a hypervisor presents another processor as `found`: the flags have AMX, which no core
/// with a smaller reorder buffer than Golden Cove's has.
fn is_disguised(found: &Microarchitecture, cpuinfo: &str) -> bool {
    const FIRST_WITH_AMX: u32 = 512;
    has_flag(cpuinfo, "amx_tile") && found.rob.is_none_or(|rob| rob < FIRST_WITH_AMX)
}

#[cfg(not(target_arch = "x86_64"))]
mod cpuid {
    use membound_types::Cpu;

    use super::CoreType;

    /// On other architectures `/proc/cpuinfo` is the only source.
    pub(super) fn fill(_: &mut Cpu) -> CoreType {
        CoreType::Performance
    }
}

#[cfg(target_arch = "x86_64")]
mod cpuid {
    use membound_types::Cpu;
    use raw_cpuid::{CpuId, cpuid};

    use super::CoreType;

    /// Replaces the facts from `/proc/cpuinfo` by those from CPUID.
    pub(super) fn fill(cpu: &mut Cpu) -> CoreType {
        let cpuid = CpuId::new();
        if let Some(vendor) = cpuid.get_vendor_info() {
            vendor.as_str().clone_into(&mut cpu.vendor);
        }
        if let Some(brand) = cpuid.get_processor_brand_string() {
            let brand = brand.as_str().trim();
            if !brand.is_empty() {
                brand.clone_into(&mut cpu.model_name);
            }
        }
        let Some(features) = cpuid.get_feature_info() else {
            return CoreType::Performance;
        };
        cpu.family = Some(u32::from(features.family_id()));
        cpu.model = Some(u32::from(features.model_id()));
        cpu.stepping = Some(u32::from(features.stepping_id()));
        core_type()
    }

    /// Leaf 0x1A of hybrid processors: EAX bits 31 to 24 are 0x20 on an Atom core.
    fn core_type() -> CoreType {
        let highest = cpuid!(0).eax;
        if highest >= 0x1a && cpuid!(0x1a).eax >> 24 == 0x20 {
            CoreType::Efficiency
        } else {
            CoreType::Performance
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Tree;

    #[test]
    fn an_intel_server_with_smt() {
        let mut tree = Tree::new()
            .file("sys/devices/system/cpu/present", "0-7\n")
            .file("sys/devices/system/cpu/online", "0-6\n")
            .file("proc/self/status", "Cpus_allowed_list:\t0-3\n")
            .file(
                "proc/cpuinfo",
                "processor\t: 0\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 106\n\
                 model name\t: Intel(R) Xeon(R) Platinum 8352Y CPU @ 2.20GHz\nstepping\t: 6\n\n\
                 processor\t: 1\nvendor_id\t: GenuineIntel\nmodel\t\t: 1\n",
            );
        for cpu in 0..8 {
            let core = cpu % 4;
            tree = tree.file(
                &format!("sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"),
                format!("{core},{}\n", core + 4),
            );
        }
        let cpu = read(&tree.root());
        assert_eq!(
            cpu.microarchitecture.as_deref(),
            Some("Sunny Cove (Ice Lake)")
        );
        assert_eq!(cpu.published_rob, Some(352));
        assert_eq!(cpu.online.len(), 7);
        assert_eq!(cpu.allowed.len(), 4);
        // CPU 7 is offline, so core 3 has one thread.
        let groups = [[0, 4], [1, 5], [2, 6]].map(|pair| pair.map(CpuId).to_vec());
        assert_eq!(cpu.smt_siblings, groups);
    }

    #[test]
    fn a_processor_in_disguise_has_no_name() {
        let model_of = |model: u32, flags: &str| {
            let cpu = from_tree(&format!(
                "vendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: {model}\nflags\t\t: {flags}\n"
            ));
            (cpu.microarchitecture, cpu.published_rob)
        };
        assert_eq!(model_of(167, "fpu avx512f").1, Some(352));
        assert_eq!(model_of(167, "fpu avx512f amx_tile"), (None, None));
        assert_eq!(model_of(143, "fpu avx512f amx_tile").1, Some(512));
    }

    #[test]
    fn arm_and_power_have_names_and_no_reorder_buffer() {
        let arm = from_tree("CPU implementer\t: 0x41\nCPU part\t: 0xd40\n");
        assert_eq!(arm.vendor, "Arm");
        assert_eq!(arm.microarchitecture.as_deref(), Some("Neoverse V1"));
        let unknown = from_tree("CPU implementer\t: 0x41\nCPU part\t: 0xfff\n");
        assert_eq!(unknown.model_name, "part 0xfff");
        assert_eq!(unknown.microarchitecture, None);
        let power = from_tree("processor\t: 0\ncpu\t\t: POWER9, altivec supported\n");
        assert_eq!(power.architecture, "powerpc64");
        assert_eq!(power.microarchitecture.as_deref(), Some("POWER 9"));
        assert_eq!(power.published_rob, None);
    }

    fn from_tree(cpuinfo: &str) -> Cpu {
        read(&Tree::new().file("proc/cpuinfo", cpuinfo).root())
    }

    #[test]
    fn no_cpuinfo_is_an_unnamed_processor() {
        assert_eq!(read(&Tree::new().root()).vendor, "");
    }

    #[test]
    fn this_machine_agrees_with_its_cpuinfo() {
        let root = Root::system();
        let cpu = read(&root);
        assert!(!cpu.online.is_empty() && !cpu.allowed.is_empty());
        let from_proc = from_cpuinfo(&root.read("proc/cpuinfo").unwrap());
        if from_proc.vendor.is_empty() || cpu.architecture != "x86_64" {
            eprintln!("skipped: /proc/cpuinfo has no x86 vendor");
            return;
        }
        assert_eq!(
            (cpu.vendor, cpu.family, cpu.model, cpu.stepping),
            (
                from_proc.vendor,
                from_proc.family,
                from_proc.model,
                from_proc.stepping
            )
        );
    }
}
