//! gcc keeps values in caller-saved registers over calls of functions that it has compiled
//! (`-fipa-ra`); a patch in such a function must not take them for dead.

use std::process::Command;

use membound_rewrite::code::{BlockEnd, Function, ImageFacts, Tables};
use membound_rewrite::flow::{Analyst, Conventions, Liveness, Summaries, Summary};
use membound_rewrite::image::{Convention, Image};
use membound_rewrite::{Gpr, RegisterSet};

const SOURCE: &str = "
static __attribute__((noinline, noclone)) long look(long *p, long at)
{
    return p[at] > 7 ? p[at + 1] : p[at + 2] * 3;
}

long keeps(long *p, long *q, long n)
{
    long sum = 0;
    for (long i = 0; i < n; i++)
        sum += look(p, i) * q[i];
    return sum;
}
";

/// rcx, rdx, rsi, rdi, r8–r11: not returned in, not preserved.
const SCRATCH: [u8; 8] = [1, 2, 6, 7, 8, 9, 10, 11];

#[test]
fn registers_that_gcc_keeps_over_a_local_call_are_alive_in_the_callee() {
    let directory = tempfile::tempdir().unwrap();
    let source = directory.path().join("ipa.c");
    let object = directory.path().join("libipa.so");
    std::fs::write(&source, SOURCE).unwrap();
    let built = Command::new("gcc")
        .args(["-O2", "-fipa-ra", "-fPIC", "-shared", "-o"])
        .arg(&object)
        .arg(&source)
        .status();
    match built {
        Ok(status) if status.success() => {}
        _ => {
            membound_testkit::skipped("no gcc that builds a shared object");
            return;
        }
    }
    let data = std::fs::read(&object).unwrap();
    let image = Image::parse(&data).unwrap();
    let knowledge = ImageFacts::gather(&image, Tables::Resolve);
    let functions: Vec<Function> = (0..image.functions().len())
        .map(|index| Function::decode(&image, &knowledge, index))
        .collect();
    let mut analyst = Analyst::new();
    let summaries: Summaries = functions
        .iter()
        .map(|function| {
            (
                function.bounds.range.start,
                Summary::of(function, &mut analyst),
            )
        })
        .collect();
    let conventions = Conventions {
        convention: Convention::SystemV,
        summaries: &summaries,
    };
    let named = |name: &str| {
        functions
            .iter()
            .find(|function| {
                let found = function.bounds.name.as_deref();
                found.is_some_and(|found| found.split('.').next() == Some(name))
            })
            .unwrap()
    };
    let (look, keeps) = (named("look"), named("keeps"));
    let call = keeps
        .blocks
        .iter()
        .find(|block| {
            matches!(block.leaves_by, BlockEnd::Call { target: Some(target), .. }
                if target == look.bounds.range.start)
        })
        .unwrap();

    // From the bytes alone: the register is read after the call before this function writes it.
    let mut written = RegisterSet::EMPTY;
    let mut preserved = Vec::new();
    for instruction in &keeps.instructions[call.end as usize..] {
        let effects = analyst.effects(instruction);
        for number in SCRATCH {
            let register = RegisterSet::gpr(Gpr::new(number));
            if effects.reads.without(written).contains(register) {
                preserved.push(register);
            }
        }
        written = written.union(effects.writes);
        if instruction.flow_control() != iced_x86::FlowControl::Next {
            break;
        }
    }
    if preserved.is_empty() {
        membound_testkit::skipped("this gcc keeps nothing over a local call");
        return;
    }
    let before_call = Liveness::of(keeps, &conventions, &mut analyst).before(call.end as usize - 1);
    let inside = Liveness::of(look, &conventions, &mut analyst);
    for register in preserved {
        assert!(before_call.contains(register), "{register} at the call");
        for index in 0..look.instructions.len() {
            let alive = inside.before(index);
            assert!(
                alive.contains(register),
                "{register} in the callee, at {index}"
            );
        }
    }
    // The result is not trivial: not everything is alive.
    let last = look.instructions.len() - 1;
    assert!(!inside.before(last).contains(RegisterSet::ARITHMETIC_FLAGS));
}
