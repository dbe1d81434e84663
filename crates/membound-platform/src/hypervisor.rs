//! Whether this machine is a guest, of which hypervisor, and whether this is a container.

use crate::Root;

/// Name of the "hypervisor" that emulates the processor's instructions.
const EMULATOR: &str = "QEMU TCG";

/// True where instructions are translated, not executed: such a processor has no pipeline, and times of
/// instructions are the emulator's.
#[must_use]
pub fn is_emulator(root: &Root) -> bool {
    name(root).is_some_and(|name| name.starts_with(EMULATOR))
}

/// The hypervisor's name, or `None` on bare metal (as far as it can be seen).
#[must_use]
pub fn name(root: &Root) -> Option<String> {
    #[cfg(target_arch = "x86_64")]
    if root.is_system()
        && let Some(name) = cpuid()
    {
        return Some(with_product(root, name));
    }
    if let Some(kind) = root.attribute("sys/hypervisor/type") {
        return Some(with_product(root, capitalised(&kind)));
    }
    if let Some(tree) = root.attribute("proc/device-tree/hypervisor/compatible") {
        let first = tree.split('\0').next().unwrap_or(&tree);
        let name = match first {
            "linux,kvm" => "KVM",
            "xen,xen" | "xen" => "Xen",
            other => other,
        };
        return Some(with_product(root, name.to_owned()));
    }
    if root.exists("proc/ppc64/lparcfg") && root.exists("proc/device-tree/ibm,partition-no") {
        return Some("PowerVM".to_owned());
    }
    if let Some(product) = product(root)
        && let Some(name) = by_product(&product)
    {
        return Some(with_product(root, name.to_owned()));
    }
    let flagged = root
        .read("proc/cpuinfo")
        .is_ok_and(|text| has_flag(&text, "hypervisor"));
    flagged.then(|| with_product(root, "unknown".to_owned()))
}

/// The container's kind, if there is evidence of one.
#[must_use]
pub fn container(root: &Root) -> Option<String> {
    if let Some(kind) = root.attribute("run/systemd/container") {
        return Some(kind);
    }
    if root.exists("run/.containerenv") {
        return Some("podman".to_owned());
    }
    if root.exists(".dockerenv") {
        return Some("docker".to_owned());
    }
    let groups = root.read("proc/self/cgroup").ok()?;
    for (sign, kind) in [
        ("kubepods", "kubernetes"),
        ("docker", "docker"),
        ("libpod", "podman"),
        ("lxc", "lxc"),
        ("machine.slice/", "systemd-nspawn"),
    ] {
        if groups.contains(sign) {
            return Some(kind.to_owned());
        }
    }
    None
}

/// Whether `/proc/cpuinfo` lists a processor flag.
pub(crate) fn has_flag(cpuinfo: &str, flag: &str) -> bool {
    cpuinfo
        .lines()
        .filter(|line| line.starts_with("flags") || line.starts_with("Features"))
        .take(1)
        .any(|line| line.split_whitespace().any(|word| word == flag))
}

/// `KVM (Amazon EC2 m7a.large)`, where the firmware names a product.
fn with_product(root: &Root, name: String) -> String {
    match product(root) {
        Some(product) if product != name => format!("{name} ({product})"),
        _ => name,
    }
}

fn product(root: &Root) -> Option<String> {
    let vendor = root.attribute("sys/class/dmi/id/sys_vendor");
    let product = root.attribute("sys/class/dmi/id/product_name");
    match (vendor, product) {
        (Some(vendor), Some(product)) if product.starts_with(&vendor) => Some(product),
        (Some(vendor), Some(product)) => Some(format!("{vendor} {product}")),
        (vendor, product) => product.or(vendor),
    }
}

fn by_product(product: &str) -> Option<&'static str> {
    let signs = [
        ("Amazon EC2", "KVM or Xen"),
        ("Google Compute Engine", "KVM"),
        ("QEMU", "QEMU"),
        ("VMware", "VMware"),
        ("VirtualBox", "VirtualBox"),
        ("Parallels", "Parallels"),
        ("OpenStack", "KVM"),
        ("Microsoft Corporation Virtual Machine", "Hyper-V"),
    ];
    // Bare-metal instances of the clouds carry the cloud's name and are no guests.
    if product.contains(".metal") {
        return None;
    }
    signs
        .iter()
        .find(|(sign, _)| product.contains(sign))
        .map(|(_, name)| *name)
}

fn capitalised(text: &str) -> String {
    let mut letters = text.chars();
    letters
        .next()
        .map(|first| first.to_uppercase().chain(letters).collect())
        .unwrap_or_default()
}

/// Leaf 0x4000_0000: twelve letters in EBX, ECX, EDX.
#[cfg(target_arch = "x86_64")]
fn cpuid() -> Option<String> {
    let features = raw_cpuid::CpuId::new().get_feature_info()?;
    if !features.has_hypervisor() {
        return None;
    }
    let leaf = raw_cpuid::cpuid!(0x4000_0000);
    let letters: Vec<u8> = [leaf.ebx, leaf.ecx, leaf.edx]
        .into_iter()
        .flat_map(u32::to_le_bytes)
        .collect();
    Some(by_signature(&letters))
}

#[cfg(any(test, target_arch = "x86_64"))]
fn by_signature(letters: &[u8]) -> String {
    let text = String::from_utf8_lossy(letters);
    let text = text.trim_matches(|letter: char| letter == '\0' || letter == ' ');
    let known = match text {
        "KVMKVMKVM" => "KVM",
        "TCGTCGTCGTCG" => EMULATOR,
        "Microsoft Hv" => "Hyper-V",
        "VMwareVMware" => "VMware",
        "XenVMMXenVMM" => "Xen",
        "VBoxVBoxVBox" => "VirtualBox",
        "bhyve bhyve" => "bhyve",
        "prl hyperv" | "lrpepyh vr" => "Parallels",
        "ACRNACRNACRN" => "ACRN",
        "QNXQVMBSQG" => "QNX",
        "Jailhouse" => "Jailhouse",
        "" => "unknown",
        other => other,
    };
    known.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Tree;

    #[test]
    fn signatures_have_names() {
        assert_eq!(by_signature(b"KVMKVMKVM\0\0\0"), "KVM");
        assert_eq!(by_signature(b"TCGTCGTCGTCG"), EMULATOR);
        assert_eq!(by_signature(b"Microsoft Hv"), "Hyper-V");
        assert_eq!(by_signature(b"bhyve bhyve "), "bhyve");
        assert_eq!(by_signature(b"SomethingNew"), "SomethingNew");
        assert_eq!(by_signature(&[0; 12]), "unknown");
        // Bytes that are no text must not panic.
        assert!(!by_signature(&[0xff; 12]).is_empty());
    }

    #[test]
    fn files_name_it_where_cpuid_does_not() {
        let xen = Tree::new().file("sys/hypervisor/type", "xen\n");
        assert_eq!(name(&xen.root()).as_deref(), Some("Xen"));
        let arm = Tree::new().file("proc/device-tree/hypervisor/compatible", "linux,kvm\0");
        assert_eq!(name(&arm.root()).as_deref(), Some("KVM"));
        let gce = Tree::new()
            .file("sys/class/dmi/id/sys_vendor", "Google\n")
            .file("sys/class/dmi/id/product_name", "Google Compute Engine\n");
        assert_eq!(
            name(&gce.root()).as_deref(),
            Some("KVM (Google Compute Engine)")
        );
        let flag = Tree::new().file("proc/cpuinfo", "flags\t\t: fpu hypervisor lm\n");
        assert_eq!(name(&flag.root()).as_deref(), Some("unknown"));
    }

    #[test]
    fn bare_metal_has_none() {
        let server = Tree::new()
            .file("proc/cpuinfo", "flags\t\t: fpu lm\nbugs\t: hypervisor\n")
            .file("sys/class/dmi/id/sys_vendor", "Dell Inc.\n")
            .file("sys/class/dmi/id/product_name", "PowerEdge R650\n");
        assert_eq!(name(&server.root()), None);
        let metal = Tree::new()
            .file("sys/class/dmi/id/sys_vendor", "Amazon EC2\n")
            .file("sys/class/dmi/id/product_name", "m7a.metal-48xl\n");
        assert_eq!(name(&metal.root()), None);
    }

    #[test]
    fn containers_leave_signs() {
        assert_eq!(container(&Tree::new().root()), None);
        let docker = Tree::new().file(".dockerenv", "");
        assert_eq!(container(&docker.root()).as_deref(), Some("docker"));
        let pod = Tree::new().file("proc/self/cgroup", "0::/kubepods/besteffort/pod1\n");
        assert_eq!(container(&pod.root()).as_deref(), Some("kubernetes"));
    }
}
