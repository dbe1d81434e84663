//! The virtual machines that run on this host, and where their threads may run.
//!
//! Figures from inside a guest are steady only while its threads stay where they are: the
//! experiments that membound takes its memory-parallelism kernel from were noisy while a guest's
//! threads migrated, less so on one shared CPU, and steady with a CPU each on one socket. So the
//! host should be checked before a guest is measured.

use std::collections::BTreeSet;

use membound_types::CpuId;

use crate::{Root, affinity, cpu, list};

/// A process that runs a virtual machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VirtualMachine {
    /// Process number.
    pub pid: u32,
    /// Name of the process.
    pub name: String,
    /// All of its threads, by number.
    pub threads: Vec<VmThread>,
    /// Effect of their placement on figures from inside the guest.
    pub placement: Placement,
}

/// A thread of a virtual machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VmThread {
    /// Thread number.
    pub tid: u32,
    /// Its name, such as `CPU 0/KVM`.
    pub name: String,
    /// Whether it runs guest code.
    pub is_vcpu: bool,
    /// The CPUs that it may run on.
    pub allowed: Vec<CpuId>,
}

/// How the virtual CPUs of a machine are placed on the host's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// A CPU each on one socket: the steadiest placement.
    SeparateOneSocket,
    /// A CPU each, on several sockets.
    SeparateSeveralSockets,
    /// Each has one CPU, and some share it.
    Shared,
    /// Some may move between CPUs.
    Migrating,
    /// The kernel does not report on which CPUs they may run.
    Unknown,
}

impl Placement {
    /// The effect of the placement, and what would be better.
    #[must_use]
    pub const fn advice(self) -> &'static str {
        match self {
            Self::SeparateOneSocket => "each virtual CPU has a CPU of its own on one socket",
            Self::SeparateSeveralSockets => {
                "each virtual CPU has a CPU of its own, but on several sockets: \
                 keep a machine on one"
            }
            Self::Shared => {
                "several virtual CPUs share a CPU: give each one of its own on the same socket"
            }
            Self::Migrating => {
                "virtual CPUs may migrate: pin each to a CPU of its own on one socket \
                 (taskset -pc CPU TID, or virsh vcpupin)"
            }
            Self::Unknown => "where its virtual CPUs may run is not readable",
        }
    }
}

/// Programs whose processes are virtual machines, as `/proc/PID/comm` cuts them off after
/// 15 bytes.
const PROGRAMS: [&str; 7] = [
    "qemu-",
    "kvm",
    "firecracker",
    "cloud-hyperviso",
    "crosvm",
    "VBoxHeadless",
    "vmware-vmx",
];

/// All virtual machines that can be seen, by process number.
#[must_use]
pub fn virtual_machines(root: &Root) -> Vec<VirtualMachine> {
    root.numbered("proc", "")
        .into_iter()
        .filter_map(|pid| {
            let name = root.attribute(format!("proc/{pid}/comm"))?;
            let named = PROGRAMS.iter().any(|program| name.starts_with(program));
            // Kernel threads such as `kvm-nx-lpage-re` have no executable.
            let user = root.link(format!("proc/{pid}/exe")).is_ok();
            if !(named && user || holds_machine(root, pid)) {
                return None;
            }
            let threads = threads(root, pid);
            Some(VirtualMachine {
                pid,
                name,
                placement: placement(root, &threads),
                threads,
            })
        })
        .collect()
}

/// Whether the process holds a virtual machine of KVM, regardless of its name.
fn holds_machine(root: &Root, pid: u32) -> bool {
    let dir = format!("proc/{pid}/fd");
    root.names(&dir).iter().any(|fd| {
        root.link(format!("{dir}/{fd}")).is_ok_and(|target| {
            let target = target.to_string_lossy();
            target.starts_with("anon_inode:kvm-vm") || target.starts_with("anon_inode:kvm-vcpu")
        })
    })
}

fn threads(root: &Root, pid: u32) -> Vec<VmThread> {
    root.numbered(format!("proc/{pid}/task"), "")
        .into_iter()
        .filter_map(|tid| {
            let dir = format!("proc/{pid}/task/{tid}");
            let name = root.attribute(format!("{dir}/comm"))?;
            let status = root.read(format!("{dir}/status")).unwrap_or_default();
            let allowed = status
                .lines()
                .find_map(|line| line.strip_prefix("Cpus_allowed_list:"))
                .and_then(list::cpus)
                .unwrap_or_default();
            Some(VmThread {
                tid,
                is_vcpu: is_vcpu(&name),
                name,
                allowed,
            })
        })
        .collect()
}

/// `CPU 0/KVM` (QEMU), `fc_vcpu 0` (Firecracker), `vcpu0` (Cloud Hypervisor),
/// `EMT-0` (VirtualBox), `vmx-vcpu-0` (VMware).
fn is_vcpu(name: &str) -> bool {
    (name.starts_with("CPU ") && name.ends_with("/KVM"))
        || name.contains("vcpu")
        || name.starts_with("EMT")
}

fn placement(root: &Root, threads: &[VmThread]) -> Placement {
    let vcpus: Vec<&VmThread> = threads.iter().filter(|thread| thread.is_vcpu).collect();
    // If a program does not name its threads, all of them count.
    let judged = if vcpus.is_empty() {
        threads.iter().collect()
    } else {
        vcpus
    };
    if judged.is_empty() || judged.iter().any(|thread| thread.allowed.is_empty()) {
        return Placement::Unknown;
    }
    let online = affinity::online(root);
    let can_move = |thread: &&&VmThread| {
        thread
            .allowed
            .iter()
            .filter(|cpu| online.contains(cpu))
            .count()
            > 1
    };
    if judged.iter().any(|thread| can_move(&thread)) {
        return Placement::Migrating;
    }
    let cpus: BTreeSet<CpuId> = judged.iter().map(|thread| thread.allowed[0]).collect();
    if cpus.len() < judged.len() {
        return Placement::Shared;
    }
    let sockets: BTreeSet<Option<u32>> = cpus
        .iter()
        .map(|&host_cpu| cpu::socket(root, host_cpu))
        .collect();
    if sockets.len() > 1 {
        return Placement::SeparateSeveralSockets;
    }
    Placement::SeparateOneSocket
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Tree;

    /// A host with four CPUs on two sockets.
    fn host() -> Tree {
        (0..4).fold(
            Tree::new()
                .file("sys/devices/system/cpu/online", "0-3\n")
                .file("proc/meminfo", "MemTotal: 1 kB\n"),
            |tree, cpu| {
                tree.file(
                    &format!("sys/devices/system/cpu/cpu{cpu}/topology/physical_package_id"),
                    format!("{}\n", cpu / 2),
                )
            },
        )
    }

    fn process(tree: Tree, pid: u32, comm: &str, threads: &[(&str, &str)]) -> Tree {
        let tree = tree
            .file(&format!("proc/{pid}/comm"), format!("{comm}\n"))
            .link(&format!("proc/{pid}/exe"), "/usr/bin/program");
        threads
            .iter()
            .enumerate()
            .fold(tree, |tree, (index, (name, cpus))| {
                let dir = format!("proc/{pid}/task/{}", pid + index as u32);
                tree.file(&format!("{dir}/comm"), format!("{name}\n")).file(
                    &format!("{dir}/status"),
                    format!("Name:\t{name}\nCpus_allowed:\tf\nCpus_allowed_list:\t{cpus}\n"),
                )
            })
    }

    fn only(tree: &Tree) -> VirtualMachine {
        let mut machines = virtual_machines(&tree.root());
        assert_eq!(machines.len(), 1, "{machines:?}");
        machines.remove(0)
    }

    #[test]
    fn a_machine_whose_threads_migrate() {
        let tree = process(
            host(),
            500,
            "qemu-system-x86",
            &[
                ("qemu-system-x86", "0-3"),
                ("CPU 0/KVM", "0-3"),
                ("CPU 1/KVM", "2"),
            ],
        );
        let machine = only(&tree);
        assert_eq!((machine.pid, machine.threads.len()), (500, 3));
        assert!(machine.threads[1].is_vcpu && !machine.threads[0].is_vcpu);
        assert_eq!(machine.threads[2].allowed, [CpuId(2)]);
        assert_eq!(machine.placement, Placement::Migrating);
    }

    #[test]
    fn separate_cpus_of_one_socket_are_distinguished() {
        let placed = |first, second| {
            let threads = [("main", "0-3"), ("fc_vcpu 0", first), ("fc_vcpu 1", second)];
            only(&process(host(), 7, "firecracker", &threads)).placement
        };
        assert_eq!(placed("0", "1"), Placement::SeparateOneSocket);
        assert_eq!(placed("1", "2"), Placement::SeparateSeveralSockets);
        assert_eq!(placed("1", "1"), Placement::Shared);
        // An offline CPU in the mask gives no room to move.
        assert_eq!(placed("0,9", "1"), Placement::SeparateOneSocket);
        assert_eq!(placed("", "1"), Placement::Unknown);
    }

    #[test]
    fn a_process_of_any_name_that_holds_a_machine() {
        let tree = process(host(), 42, "my-vmm", &[("my-vmm", "1")])
            .link("proc/42/fd/3", "/dev/kvm")
            .link("proc/42/fd/9", "anon_inode:kvm-vm");
        assert_eq!(only(&tree).name, "my-vmm");
    }

    #[test]
    fn other_processes_are_none() {
        let tree = process(host(), 1, "init", &[("init", "0-3")])
            // A kernel thread: no executable.
            .file("proc/90/comm", "kvm-nx-lpage-re\n");
        assert!(virtual_machines(&tree.root()).is_empty());
    }
}
