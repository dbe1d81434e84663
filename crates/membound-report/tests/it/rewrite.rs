//! Text of `rewrite check` and `rewrite plan` at 80 columns.

use std::collections::BTreeMap;

use membound_report::text::{self, Style};
use membound_types::{
    AccessKind, CheckedModule, CheckedProcess, CheckedRecords, CheckedSamples, Kind, Outcome,
    PatchBody, PatchCounts, PlannedFunction, PlannedInstruction, RewriteCheck, RewritePlan,
    SCHEMA_VERSION,
};

const STYLE: Style = Style {
    color: false,
    width: 80,
};

fn counts(loads: u64, stores: u64, refused: &[(&str, u64)]) -> PatchCounts {
    let refused: BTreeMap<String, u64> = refused
        .iter()
        .map(|(reason, count)| ((*reason).to_owned(), *count))
        .collect();
    PatchCounts {
        accesses: loads + stores,
        loads,
        stores,
        patched: loads + stores - refused.values().sum::<u64>(),
        refused,
    }
}

fn module(path: &str, counts: PatchCounts, executions: Outcome<u64>) -> CheckedModule {
    CheckedModule {
        path: path.to_owned(),
        counts,
        executions,
        samples: None,
        lines: None,
        unpatched: None,
        placements: 2,
        sites: Vec::new(),
    }
}

fn check() -> RewriteCheck {
    let refused = [("no-room", 402), ("rseq", 12)];
    RewriteCheck {
        schema_version: SCHEMA_VERSION,
        kind: Kind::RewriteCheck,
        incomplete: true,
        missed: vec!["process 4712: mapping code: EPERM".to_owned()],
        membound_version: "0.1.0".to_owned(),
        command: vec!["gcc".to_owned(), "-c".to_owned(), "a.c".to_owned()],
        body: PatchBody::Count,
        exact: false,
        exit_code: Some(0),
        signal: None,
        patched: true,
        reason: None,
        records: None,
        modules: vec![
            module(
                "/usr/libexec/gcc/x86_64-linux-gnu/14/cc1",
                counts(1_060_211, 433_871, &[("no-room", 20_117)]),
                Outcome::Known(8_723_410_001),
            ),
            module(
                "/usr/lib/x86_64-linux-gnu/libc.so.6",
                counts(60_211, 33_871, &refused),
                Outcome::Known(1_734_201),
            ),
            CheckedModule {
                unpatched: Some("not an x86-64 file".to_owned()),
                ..module("/opt/odd.so", counts(0, 0, &[]), Outcome::missing("none"))
            },
        ],
        processes: vec![
            CheckedProcess {
                pid: 4711,
                path: "/usr/bin/gcc".to_owned(),
                patched: true,
                reason: None,
            },
            CheckedProcess {
                pid: 4712,
                path: "/usr/bin/as".to_owned(),
                patched: false,
                reason: Some("rt_sigaction cannot be hooked in libc.so.6".to_owned()),
            },
        ],
        elapsed_s: 1.5,
    }
}

/// The same check with a body that records.
fn recorded(body: PatchBody) -> RewriteCheck {
    let sampling = body == PatchBody::Sample;
    let ticks = |ticks| {
        if sampling {
            Outcome::Known(ticks)
        } else {
            Outcome::missing("no access was timed")
        }
    };
    let samples = CheckedSamples {
        timed: if sampling { 8_723_100 } else { 0 },
        untimed: if sampling { 1_204_400 } else { 97_010 },
        stores: 20_000,
        median_ticks: ticks(78),
        p90_ticks: ticks(442),
    };
    let mut check = check();
    check.body = body;
    check.modules[0].samples = Some(samples);
    check.modules[0].lines = Some(Outcome::Known(41_093));
    check.records = Some(CheckedRecords {
        period: sampling.then_some(1000),
        burst_ms: (!sampling).then_some(10.0),
        burst_every_ms: (!sampling).then_some(100.0),
        recorded: 9_930_000,
        lost: 120_300,
        unattributed: 0,
    });
    check
}

fn instruction(address: u64, text: &str, live: &str, dead: &str) -> PlannedInstruction {
    PlannedInstruction {
        address,
        bytes: String::new(),
        text: text.to_owned(),
        block: 0,
        live: live.to_owned(),
        dead: dead.to_owned(),
        access: None,
        group: None,
        patched: false,
        refused: None,
    }
}

fn plan(instructions: Vec<PlannedInstruction>) -> RewritePlan {
    let counts = counts(6, 3, &[("no-room", 2), ("unresolved-flow", 1)]);
    RewritePlan {
        schema_version: SCHEMA_VERSION,
        kind: Kind::RewritePlan,
        membound_version: "0.1.0".to_owned(),
        path: "/usr/bin/program".to_owned(),
        identity: "build-id:0123456789abcdef0123456789abcdef01234567".to_owned(),
        body: PatchBody::Count,
        tables_resolved: false,
        functions_found: 12,
        blocks: 120,
        unresolved: 1,
        counts: counts.clone(),
        functions: vec![PlannedFunction {
            address: 0x1149,
            name: "std::vector<int>::push_back(int const&)".to_owned(),
            size_bytes: 44,
            blocks: 2,
            counts,
            unresolved: Some("a jump whose table is not known".to_owned()),
            instructions,
        }],
    }
}

fn listing() -> RewritePlan {
    let long = "rax rcx rdx rbx rsp rbp rsi rdi r8 r9 r10 r11 r12 r13 r14 r15 df mxcsr x87 \
                k0 k1 k2 k3 k4 k5 k6 k7 xmm0-31 ymmhi0-31 zmmhi0-31";
    plan(vec![
        PlannedInstruction {
            access: Some(AccessKind::Load),
            patched: true,
            group: Some(0x1149),
            ..instruction(0x1149, "mov rax,[rdi+8]", long, "CF PF AF ZF SF OF")
        },
        PlannedInstruction {
            group: Some(0x1149),
            ..instruction(0x114d, "add rax,rdx", "rax rdx", long)
        },
        PlannedInstruction {
            access: Some(AccessKind::Store),
            refused: Some("no-room".to_owned()),
            block: 1,
            ..instruction(0x1150, "mov [rsp],rax", &format!("{long} CF ZF"), long)
        },
        PlannedInstruction {
            block: 1,
            ..instruction(0x1154, "hlt", "", long)
        },
        PlannedInstruction {
            block: 2,
            ..instruction(0x1155, "jmp rax", long, "")
        },
    ])
}

#[test]
fn rewrite_texts() {
    for (name, text) in [
        ("check", text::rewrite_check(&check(), STYLE)),
        (
            "check-sample",
            text::rewrite_check(&recorded(PatchBody::Sample), STYLE),
        ),
        (
            "check-record",
            text::rewrite_check(&recorded(PatchBody::Record), STYLE),
        ),
        ("plan", text::rewrite_plan(&plan(Vec::new()), STYLE)),
        ("plan-function", text::rewrite_plan(&listing(), STYLE)),
    ] {
        for line in text.lines() {
            assert!(textwrap::core::display_width(line) <= 80, "{name}: {line}");
        }
        insta::assert_snapshot!(format!("rewrite-{name}"), text);
    }
}
