//! Every setting in turn on trees with register files and attributes; each is undone again.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use membound_platform::Root;
use membound_platform::prefetcher::Controls;
use membound_platform::prefetcher::guard::GuardCommand;
use membound_types::{Cpu, CpuId, Dscr, Outcome, PrefetchState};

const HELPER: &str = env!("CARGO_BIN_EXE_membound-platform-helper");
const CPUS: [CpuId; 2] = [CpuId(0), CpuId(1)];

fn cpu(architecture: &str, vendor: &str) -> Cpu {
    Cpu {
        architecture: architecture.to_owned(),
        vendor: vendor.to_owned(),
        family: Some(6),
        model: Some(0x6a),
        microarchitecture: (vendor == "AuthenticAMD").then(|| "Zen 4".to_owned()),
        online: CPUS.to_vec(),
        ..Cpu::default()
    }
}

fn guard() -> GuardCommand {
    GuardCommand::new(HELPER, ["guard"])
}

fn controls(tree: &Path, cpu: &Cpu) -> Controls {
    match Controls::detect(&Root::at(tree), cpu) {
        Outcome::Known(controls) => controls,
        Outcome::Missing { not_measured } => panic!("{not_measured:?}"),
    }
}

/// Applies every setting and checks the values of both CPUs during and after each. Returns the
/// settings by their names.
fn check(
    controls: &Controls,
    values: &dyn Fn() -> [u64; 2],
    before: [u64; 2],
    expected: &dyn Fn(&PrefetchState, u64) -> u64,
) -> Vec<String> {
    let settings = controls.settings();
    for setting in &settings {
        let restore = controls.set(setting, &CPUS, &guard()).unwrap();
        let wanted = before.map(|former| expected(setting, former));
        assert_eq!(values(), wanted, "{setting}");
        restore.restore().unwrap();
        assert_eq!(values(), before, "after {setting}");
    }
    // Nothing is written for the machine's own.
    controls
        .set(&PrefetchState::Default, &CPUS, &guard())
        .unwrap();
    assert_eq!(values(), before);
    settings.iter().map(ToString::to_string).collect()
}

/// Register files whose register `number` has these values.
fn registers(tree: &Path, number: u64, values: [u64; 2]) -> impl Fn() -> [u64; 2] {
    let files = CPUS.map(|cpu| tree.join(format!("dev/cpu/{cpu}/msr")));
    for (file, value) in files.iter().zip(values) {
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        let file = File::create(file).unwrap();
        file.write_all_at(&value.to_le_bytes(), number).unwrap();
    }
    move || {
        files.each_ref().map(|file| {
            let mut bytes = [0; 8];
            File::open(file)
                .unwrap()
                .read_exact_at(&mut bytes, number)
                .unwrap();
            u64::from_le_bytes(bytes)
        })
    }
}

/// Attributes with these values, in hexadecimal digits as the kernel writes them.
fn attributes(tree: &Path, values: [u64; 2]) -> impl Fn() -> [u64; 2] {
    let files = CPUS.map(|cpu| tree.join(format!("sys/devices/system/cpu/cpu{cpu}/dscr")));
    for (file, value) in files.iter().zip(values) {
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, format!("{value:x}\n")).unwrap();
    }
    move || {
        files.each_ref().map(|file| {
            // A file that is just being written is empty for a moment, as the kernel's never is.
            loop {
                let text = fs::read_to_string(file).unwrap();
                if let Ok(value) = u64::from_str_radix(text.trim(), 16) {
                    break value;
                }
                std::thread::yield_now();
            }
        })
    }
}

/// Bits that are off by a setting of switches whose set bits are off.
fn off(names: &[(&str, u64)], setting: &PrefetchState, former: u64) -> u64 {
    let all = names.iter().fold(0, |bits, (_, bit)| bits | bit);
    match setting {
        PrefetchState::Off => former | all,
        PrefetchState::Without(name) => {
            let (_, bit) = names.iter().find(|(known, _)| known == name).unwrap();
            former | bit
        }
        other => panic!("{other}"),
    }
}

#[test]
fn each_switch_of_intel_goes_off_alone_and_all_together() {
    let names = [
        ("l2-streamer", 1),
        ("l2-adjacent-line", 2),
        ("dcu", 4),
        ("dcu-ip", 8),
    ];
    let tree = tempfile::tempdir().unwrap();
    // One bit is not membound's, and on one CPU a prefetcher was off before.
    let before = [1 << 5, 1 << 5 | 4];
    let values = registers(tree.path(), 0x1a4, before);
    let controls = controls(tree.path(), &cpu("x86_64", "GenuineIntel"));
    let settings = check(&controls, &values, before, &|setting, former| {
        off(&names, setting, former)
    });
    assert_eq!(settings[0], "off");
    assert_eq!(settings[1..], names.map(|(name, _)| name));
    let seven = PrefetchState::Dscr(Dscr::new(7).unwrap());
    let error = controls.set(&seven, &CPUS, &guard()).unwrap_err();
    assert!(error.to_string().contains("dscr=7"), "{error}");
}

#[test]
fn each_switch_of_amd_goes_off_alone_and_all_together() {
    let names = [
        ("l1-stream", 1),
        ("l1-stride", 2),
        ("l1-region", 4),
        ("l2-stream", 8),
        ("up-down", 32),
    ];
    let tree = tempfile::tempdir().unwrap();
    let before = [1 << 4, 2];
    let values = registers(tree.path(), 0xc000_0108, before);
    let controls = controls(tree.path(), &cpu("x86_64", "AuthenticAMD"));
    let settings = check(&controls, &values, before, &|setting, former| {
        off(&names, setting, former)
    });
    assert_eq!(settings[0], "off");
    assert_eq!(settings[1..], names.map(|(name, _)| name));
}

#[test]
fn the_stream_register_of_power_has_every_depth_and_kind_of_stream() {
    let tree = tempfile::tempdir().unwrap();
    // A bit beyond the known ones stays.
    let before = [0x100, 0x18];
    let values = attributes(tree.path(), before);
    let controls = controls(tree.path(), &cpu("powerpc64", "IBM"));
    let settings = check(
        &controls,
        &values,
        before,
        &|setting, former| match setting {
            PrefetchState::Dscr(dscr) => former & !31 | u64::from(dscr.value()),
            other => panic!("{other}"),
        },
    );
    let values = [0, 1, 2, 3, 4, 5, 6, 7, 15, 16, 31];
    assert_eq!(settings, values.map(|value| format!("dscr={value}")));
}

#[test]
fn a_setting_comes_back_after_kill_9_and_after_a_panic() {
    for (way, kills) in [("wait", true), ("panic", false)] {
        let tree = tempfile::tempdir().unwrap();
        let before = [0x12, 0];
        let values = attributes(tree.path(), before);
        let mut victim = Command::new(HELPER)
            .args([
                "victim",
                tree.path().to_str().unwrap(),
                "powerpc64",
                way,
                "dscr=15",
            ])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut output = String::new();
        BufReader::new(victim.stdout.take().unwrap())
            .read_line(&mut output)
            .unwrap();
        assert_eq!(output, "changed\n");
        if kills {
            assert_eq!(values(), [15, 15]);
            victim.kill().unwrap();
        }
        victim.wait().unwrap();
        // The guard of a killed process writes in its own time.
        for _ in 0..3000 {
            if values() == before {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        assert_eq!(values(), before, "{way}");
    }
}
