//! Membound on machines with several nodes. Tests check placement, never time.

use membound_testkit::skipped;

use super::{Command, Machine, run};

#[test]
fn the_guest_is_the_machine_that_the_tests_take_it_for() {
    let commands = [
        Command::read("/sys/devices/system/node/online"),
        Command::read("/sys/devices/system/node/has_memory"),
        Command::read("/sys/devices/system/node/node0/distance"),
        Command::read("/sys/devices/system/node/node1/cpulist"),
        Command::read("/nowhere"),
        Command::membound(&["--version"]),
    ];
    let outputs = match run(Machine::TwoNodes, &commands) {
        Ok(outputs) => outputs,
        Err(reason) => return skipped(reason),
    };
    let stdout: Vec<&str> = outputs.iter().map(|output| output.stdout.trim()).collect();
    assert_eq!(&stdout[..4], ["0-1", "0-1", "10 21", "2"]);
    assert_eq!(outputs[4].status, 1);
    assert_eq!(outputs[4].stderr, "/nowhere: No such file or directory\n");
    assert_eq!(outputs[5].status, 0, "{}", outputs[5].stderr);
}

#[test]
fn a_third_node_has_a_cpu_and_no_memory_and_a_cpu_can_be_switched_off() {
    let commands = [
        Command::read("/sys/devices/system/node/online"),
        Command::read("/sys/devices/system/node/has_memory"),
        Command::read("/sys/devices/system/node/node2/cpulist"),
        Command::write("/sys/devices/system/cpu/cpu1/online", "0"),
        Command::read("/sys/devices/system/cpu/online"),
    ];
    let outputs = match run(Machine::MemorylessThird, &commands) {
        Ok(outputs) => outputs,
        Err(reason) => return skipped(reason),
    };
    let stdout: Vec<&str> = outputs.iter().map(|output| output.stdout.trim()).collect();
    assert_eq!(stdout, ["0-2", "0-1", "3", "", "0,2-3"]);
}

#[test]
fn a_command_that_hangs_is_ended_and_the_next_one_runs() {
    let commands = [
        // No program writes to the guest's console, so the read never ends by itself.
        Command::read("/dev/ttyS0").within(1),
        Command::read("/sys/devices/system/node/online"),
    ];
    let outputs = match run(Machine::TwoNodes, &commands) {
        Ok(outputs) => outputs,
        Err(reason) => return skipped(reason),
    };
    assert_eq!(outputs[0].status, 128 + 14);
    assert_eq!(outputs[1].stdout, "0-1\n");
}
