//! Whole machines as test trees, and the findings and capabilities of the doctor on them.

use membound_types::{Capability, CapabilityState, Doctor, NodeId, NotMeasured, Outcome, Timer};

use super::*;
use crate::testing::Tree;

fn timer() -> Timer {
    Timer {
        name: "tsc".to_owned(),
        rate_hz: 2.6e9,
        quantum_ticks: 26,
        overhead_ns: 9.4,
        invariant: true,
        core_clock_hz: 4.06e9,
    }
}

fn open() -> Probes {
    Probes {
        hardware_cycles: Ok(()),
        software_clock: Ok(()),
        breakpoints: Ok(4),
        placement: Ok(()),
    }
}

fn value<'a>(doctor: &'a Doctor, key: &str) -> &'a str {
    let found = doctor.findings.iter().find(|finding| finding.key == key);
    let found = found.unwrap_or_else(|| panic!("no finding {key}"));
    match &found.value {
        Outcome::Known(text) => text,
        Outcome::Missing { not_measured } => &not_measured.reason,
    }
}

fn remedy<'a>(doctor: &'a Doctor, key: &str) -> Option<&'a str> {
    let found = doctor.findings.iter().find(|finding| finding.key == key)?;
    found.value.why_missing()?.remedy.as_deref()
}

fn can<'a>(doctor: &'a Doctor, what: &str) -> &'a Capability {
    let found = doctor
        .capabilities
        .iter()
        .find(|capability| capability.what == what);
    found.unwrap_or_else(|| panic!("no capability {what}"))
}

fn cpus(mut tree: Tree, number: u32, siblings: impl Fn(u32) -> String) -> Tree {
    for cpu in 0..number {
        let dir = format!("sys/devices/system/cpu/cpu{cpu}/topology");
        tree = tree
            .file(&format!("{dir}/thread_siblings_list"), siblings(cpu))
            .file(
                &format!("{dir}/physical_package_id"),
                format!("{}\n", cpu % 2),
            );
    }
    tree
}

fn node(tree: Tree, id: u32, cpulist: &str, gib: u64, distance: &str) -> Tree {
    let dir = format!("sys/devices/system/node/node{id}");
    let kib = gib << 20;
    tree.file(&format!("{dir}/cpulist"), format!("{cpulist}\n"))
        .file(&format!("{dir}/distance"), format!("{distance}\n"))
        .file(
            &format!("{dir}/meminfo"),
            format!("Node {id} MemTotal: {kib} kB\nNode {id} MemFree: {kib} kB\n"),
        )
}

fn cache(tree: Tree, cpu: u32, index: u32, level: u32, kind: &str, kib: u32, shared: &str) -> Tree {
    let dir = format!("sys/devices/system/cpu/cpu{cpu}/cache/index{index}");
    tree.file(&format!("{dir}/level"), format!("{level}\n"))
        .file(&format!("{dir}/type"), format!("{kind}\n"))
        .file(&format!("{dir}/size"), format!("{kib}K\n"))
        .file(&format!("{dir}/coherency_line_size"), "64\n")
        .file(&format!("{dir}/shared_cpu_list"), format!("{shared}\n"))
}

/// Two sockets of Ice Lake, two threads a core, everything permitted, no modules read.
fn intel_server() -> Tree {
    const CPU: &str = "sys/devices/system/cpu";
    const THP: &str = "sys/kernel/mm/transparent_hugepage";
    let mut tree = Tree::new()
        .file(
            "proc/cpuinfo",
            "processor : 0\nvendor_id : GenuineIntel\ncpu family : 6\nmodel : 106\n\
             model name : Intel(R) Xeon(R) Gold 6330 CPU @ 2.00GHz\nstepping : 6\n\
             flags : fpu tsc\n",
        )
        .file(
            "proc/meminfo",
            "MemTotal: 268435456 kB\nMemAvailable: 260046848 kB\n",
        )
        .file("proc/self/status", "Seccomp:\t0\nCpus_allowed_list:\t0-7\n")
        .file("proc/sys/kernel/hostname", "icelake\n")
        .file("proc/sys/kernel/osrelease", "6.12.0\n")
        .file("proc/sys/kernel/perf_event_paranoid", "1\n")
        .file(&format!("{CPU}/present"), "0-7\n")
        .file(&format!("{CPU}/online"), "0-7\n")
        .file(&format!("{CPU}/intel_pstate/no_turbo"), "0\n")
        .file(
            &format!("{CPU}/cpu0/cpufreq/scaling_governor"),
            "powersave\n",
        )
        .file(&format!("{CPU}/cpu0/cpufreq/base_frequency"), "2000000\n")
        .file(&format!("{CPU}/cpu0/cpuidle/state1/name"), "C1\n")
        .file(&format!("{CPU}/cpu0/cpuidle/state1/latency"), "2\n")
        .file(&format!("{CPU}/cpu0/cpuidle/state1/disable"), "1\n")
        .file(&format!("{THP}/enabled"), "[always] madvise never\n")
        .file(&format!("{THP}/hpage_pmd_size"), "2097152\n")
        .file(
            "sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages",
            "1024\n",
        )
        .file(
            "sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages",
            "512\n",
        )
        .file(
            "sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages",
            "0\n",
        )
        .file("sys/bus/event_source/devices/cpu/type", "4\n")
        .file("sys/bus/event_source/devices/uncore_imc_0/type", "20\n")
        .file("dev/cpu/0/msr", vec![0u8; 0x200])
        .file("sys/devices/system/node/online", "0-1\n");
    tree = cpus(tree, 8, |cpu| format!("{},{}\n", cpu % 4, cpu % 4 + 4));
    tree = node(tree, 0, "0,2,4,6", 128, "10 21");
    tree = node(tree, 1, "1,3,5,7", 128, "21 10");
    for cpu in 0..8 {
        let core = format!("{},{}", cpu % 4, cpu % 4 + 4);
        tree = cache(tree, cpu, 0, 1, "Data", 48, &core);
        let socket = if cpu % 2 == 0 { "0,2,4,6" } else { "1,3,5,7" };
        tree = cache(tree, cpu, 3, 3, "Unified", 43008, socket);
    }
    tree
}

#[test]
fn a_two_node_intel_server() {
    let tree = intel_server();
    let doctor = examine_with(&tree.root(), timer(), open());
    assert_eq!(doctor.machine.host, "icelake");
    assert_eq!(value(&doctor, "microarchitecture"), "Sunny Cove (Ice Lake)");
    assert_eq!(
        value(&doctor, "reorder_buffer"),
        "352 entries, as published"
    );
    assert_eq!(
        value(&doctor, "smt"),
        "4 cores with siblings: 0,4; 1,5; 2,6; 3,7"
    );
    assert_eq!(
        value(&doctor, "l1d"),
        "48 KiB, lines of 64 bytes, 4 of them, each for 2 CPUs"
    );
    assert_eq!(
        value(&doctor, "l3"),
        "42 MiB, lines of 64 bytes, 2 of them, each for 4 CPUs"
    );
    assert_eq!(
        value(&doctor, "numa_nodes"),
        "2: node 0 128 GiB, cpus 0,2,4,6; node 1 128 GiB, cpus 1,3,5,7"
    );
    assert_eq!(value(&doctor, "turbo"), "on");
    assert_eq!(value(&doctor, "idle_states"), "C1 (2 µs, off)");
    assert_eq!(
        value(&doctor, "timer"),
        "tsc at 2.600 GHz, in steps of 26 ticks (10 ns), 9.4 ns for two readings, invariant"
    );
    assert_eq!(value(&doctor, "msr"), "registers can be read and written");
    assert_eq!(
        value(&doctor, "prefetcher_state"),
        "dcu on, dcu-ip on, l2-adjacent-line on, l2-streamer on"
    );
    assert_eq!(can(&doctor, "numa").state, CapabilityState::Full);
    assert_eq!(can(&doctor, "prefetch").state, CapabilityState::Full);
    assert_eq!(
        can(&doctor, "smt copies").how,
        "copies one a core, or two on 4 cores"
    );
    assert_eq!(
        can(&doctor, "2m pages").how,
        "from the hugetlb pool: up to 1 GiB"
    );
    assert_eq!(can(&doctor, "1g pages").state, CapabilityState::Absent);
    let steady = can(&doctor, "steadiness");
    assert!(
        steady.better.as_ref().unwrap().contains("cpupower"),
        "{steady:?}"
    );
}

#[test]
fn an_amd_machine_with_boost_and_modules_missing() {
    const CPU: &str = "sys/devices/system/cpu";
    let tree = Tree::new()
        .file(
            "proc/cpuinfo",
            "processor : 0\nvendor_id : AuthenticAMD\ncpu family : 25\nmodel : 97\n\
             model name : AMD Ryzen 9 7950X\nstepping : 2\nflags : fpu\n",
        )
        .file("proc/self/status", "Seccomp:\t0\nCpus_allowed_list:\t0-1\n")
        .file(&format!("{CPU}/online"), "0-1\n")
        .file(&format!("{CPU}/cpufreq/boost"), "1\n")
        .file("sys/bus/event_source/devices/ibs_op/type", "11\n");
    let doctor = examine_with(&tree.root(), timer(), open());
    assert_eq!(value(&doctor, "microarchitecture"), "Zen 4");
    assert_eq!(value(&doctor, "turbo"), "on");
    assert_eq!(value(&doctor, "ibs"), "ibs_op");
    assert_eq!(remedy(&doctor, "msr"), Some("as root: modprobe msr"));
    let prefetch = can(&doctor, "prefetch");
    assert_eq!(prefetch.state, CapabilityState::Reduced);
    assert_eq!(prefetch.better.as_deref(), Some("as root: modprobe msr"));
    assert!(value(&doctor, "dimms").contains("sys/firmware/dmi/tables/DMI"));
    assert_eq!(
        can(&doctor, "c2c").how,
        "a line handed to and fro in 1 pair of CPUs"
    );
}

#[test]
fn a_power_machine_with_dscr() {
    let tree = Tree::new()
        .file(
            "proc/cpuinfo",
            "processor : 0\ncpu : POWER9, altivec supported\n",
        )
        .file("proc/self/status", "Cpus_allowed_list:\t0-3\n")
        .file("sys/devices/system/cpu/online", "0-3\n")
        .file("sys/devices/system/cpu/dscr_default", "8\n");
    let tree = cpus(tree, 4, |_| "0-3\n".to_owned());
    let doctor = examine_with(&tree.root(), timer(), open());
    assert_eq!(value(&doctor, "cpu"), "POWER9, altivec supported");
    assert_eq!(
        value(&doctor, "prefetcher_state"),
        "load-stream on, store-stream on, stride-n off"
    );
    assert_eq!(
        value(&doctor, "prefetcher_control"),
        "can switch load-stream, store-stream, stride-n"
    );
    assert_eq!(can(&doctor, "mlp").state, CapabilityState::Absent);
    assert_eq!(can(&doctor, "latency").state, CapabilityState::Reduced);
    // Model-specific registers are x86's.
    assert!(!doctor.findings.iter().any(|finding| finding.key == "msr"));
}

#[test]
fn a_container_with_limits() {
    let denied = NotMeasured {
        reason: "cycles may not be counted".to_owned(),
        remedy: Some("docker: --cap-add PERFMON".to_owned()),
    };
    let probes = Probes {
        hardware_cycles: Err(denied.clone()),
        software_clock: Err(denied.clone()),
        breakpoints: Err(denied.clone()),
        placement: Err(denied),
    };
    let tree = intel_server()
        .file(".dockerenv", "")
        .file("proc/self/cgroup", "0::/\n")
        .file(
            "proc/self/mountinfo",
            "30 23 0:26 / /sys/fs/cgroup ro - cgroup2 cgroup2 rw\n",
        )
        .file("sys/fs/cgroup/cpu.max", "50000 100000\n")
        .file("sys/fs/cgroup/memory.max", "1073741824\n")
        .file("sys/fs/cgroup/memory.current", "268435456\n")
        .file(
            "proc/self/status",
            "Seccomp:\t2\nSeccomp_filters:\t1\nCpus_allowed_list:\t2\n",
        );
    let doctor = examine_with(&tree.root(), timer(), probes);
    assert_eq!(value(&doctor, "container"), "docker");
    assert_eq!(value(&doctor, "seccomp"), "on, 1 filter");
    assert_eq!(
        value(&doctor, "cpu_quota"),
        "this process's cgroup may use 50 % of a CPU's time"
    );
    let steady = can(&doctor, "steadiness").better.as_ref().unwrap();
    assert!(steady.contains("lift the quota"), "{steady}");
    assert_eq!(
        value(&doctor, "cgroup"),
        "this process's cgroup leaves 768 MiB"
    );
    assert_eq!(
        value(&doctor, "memory"),
        "256 GiB, of which this process can have 768 MiB"
    );
    assert_eq!(
        value(&doctor, "cpus"),
        "8 online (0-7), this process may use 2"
    );
    for what in ["c2c", "loaded", "numa", "misses per access", "smt copies"] {
        let capability = can(&doctor, what);
        assert_eq!(capability.state, CapabilityState::Absent, "{what}");
        assert!(capability.better.is_some(), "{what}");
    }
}

#[test]
fn a_host_with_a_machine_that_migrates() {
    let vcpu = |tree: Tree, tid: u32, name: &str| {
        tree.file(&format!("proc/900/task/{tid}/comm"), format!("{name}\n"))
            .file(
                &format!("proc/900/task/{tid}/status"),
                "Cpus_allowed_list:\t0-7\n",
            )
    };
    let tree = intel_server()
        .file("proc/900/comm", "qemu-system-x86\n")
        .link("proc/900/exe", "/usr/bin/qemu-system-x86_64")
        .file("sys/module/kvm_intel/parameters/ept", "Y\n");
    let tree = vcpu(vcpu(tree, 900, "qemu-system-x86"), 903, "CPU 0/KVM");
    let doctor = examine_with(&tree.root(), timer(), open());
    let machine = value(&doctor, "vm_900");
    assert!(
        machine.starts_with("qemu-system-x86, 2 threads: virtual CPUs may migrate"),
        "{machine}"
    );
    assert!(machine.ends_with("(CPU 0/KVM on 0-7)"), "{machine}");
    assert_eq!(
        value(&doctor, "kvm"),
        "this machine can be a host; EPT is on"
    );
    let steady = can(&doctor, "steadiness").better.as_ref().unwrap();
    assert!(
        steady.contains("the virtual CPUs of 1 virtual machine"),
        "{steady}"
    );
}

#[test]
fn offline_cpus_and_a_node_without_memory() {
    let tree = intel_server()
        .file("sys/devices/system/cpu/online", "0-2,4-6\n")
        .file("sys/devices/system/node/online", "0-1,3\n");
    let tree = node(tree, 3, "", 0, "31 31 10");
    let doctor = examine_with(&tree.root(), timer(), open());
    assert_eq!(
        value(&doctor, "smt"),
        "3 cores with siblings: 0,4; 1,5; 2,6"
    );
    assert!(value(&doctor, "numa_nodes").ends_with("node 3 no memory, cpus none"));
    assert!(can(&doctor, "numa").how.ends_with("no memory on 3"));
    let topology = Topology::read(&tree.root());
    assert_eq!(topology.memory_nodes(), [NodeId(0), NodeId(1)]);
}

#[test]
fn an_empty_tree_has_reasons_and_no_panics() {
    let doctor = examine(&Tree::new().root(), Timer::default());
    for finding in &doctor.findings {
        if let Some(missing) = finding.value.why_missing() {
            assert!(!missing.reason.is_empty(), "{}", finding.key);
        }
    }
    assert_eq!(value(&doctor, "timer"), "not calibrated");
    assert_eq!(can(&doctor, "thp pages").state, CapabilityState::Absent);
}

#[test]
fn keys_are_unique_and_the_document_reads_back() {
    for doctor in [
        examine_with(&intel_server().root(), timer(), open()),
        examine(&Root::system(), timer()),
    ] {
        let mut keys: Vec<&str> = doctor
            .findings
            .iter()
            .map(|found| found.key.as_str())
            .collect();
        keys.sort_unstable();
        let number = keys.len();
        keys.dedup();
        assert_eq!(keys.len(), number, "{keys:?}");
        let text = serde_json::to_string(&doctor).unwrap();
        let back: Doctor = serde_json::from_str(&text).unwrap();
        assert_eq!(back, doctor);
    }
}
