//! Assembly functions that return values in unusual registers: their callers show it, and a patch must not
//! treat these registers as dead.

use std::path::Path;
use std::process::Command;

use membound_rewrite::code::{Function, ImageFacts, Tables};
use membound_rewrite::flow::{Analyst, Conventions, Liveness, Summaries, Summary};
use membound_rewrite::image::{Convention, Image};
use membound_rewrite::{Flag, Gpr, RegisterSet};

/// `odd` returns in r11, rcx and the carry, some of the time through `odd_part`. `plain`, `kept` and what
/// calls them are as gcc makes them.
const SOURCE: &str = r#"
__asm__(".text\n"
        ".type odd_part,@function\nodd_part:\n .cfi_startproc\n"
        "  mov (%r10), %r9\n  ret\n .cfi_endproc\n.size odd_part,.-odd_part\n"
        ".type odd,@function\nodd:\n .cfi_startproc\n"
        "  mov (%r10), %r11\n  mov 8(%r10), %rcx\n  add %rcx, %r11\n"
        "  mov %r11, 16(%r10)\n  jnc odd_part\n  ret\n .cfi_endproc\n.size odd,.-odd\n"
        ".globl uses_odd\n.type uses_odd,@function\nuses_odd:\n .cfi_startproc\n"
        "  mov %rdi, %r10\n  call odd\n  adc %r11, %rax\n  mov %rax, (%r10)\n  ret\n"
        " .cfi_endproc\n.size uses_odd,.-uses_odd\n"
        ".type odd_if,@function\nodd_if:\n .cfi_startproc\n"
        "  test %rdi, %rdi\n  jz 1f\n  mov (%rdi), %r11\n1: ret\n"
        " .cfi_endproc\n.size odd_if,.-odd_if\n"
        ".globl uses_odd_if\n.type uses_odd_if,@function\nuses_odd_if:\n .cfi_startproc\n"
        "  mov %rsi, %r11\n  mov (%rdx), %rax\n  call odd_if\n  mov %r11, (%rdx)\n  ret\n"
        " .cfi_endproc\n.size uses_odd_if,.-uses_odd_if\n");

static __attribute__((noinline, noclone)) long plain(long *p, long n)
{
    long sum = 0;
    for (long i = 0; i < n; i++)
        sum += p[i] * (i + 3);
    return sum;
}

static __attribute__((noinline, noclone)) long kept(long *p)
{
    return p[0] + 1;
}

long uses_plain(long *p, long *q, long n)
{
    long sum = plain(p, n);
    for (long i = 0; i < n; i++)
        sum += kept(q) * p[i] + plain(q, i);
    return sum;
}
"#;

/// The functions of an object and their summaries.
fn summarised(object: &Path) -> (Vec<Function>, Summaries) {
    let data = std::fs::read(object).unwrap();
    let image = Image::parse(&data).unwrap();
    let knowledge = ImageFacts::gather(&image, Tables::Resolve);
    let mut analyst = Analyst::new();
    let functions: Vec<Function> = (0..image.functions().len())
        .map(|index| Function::decode(&image, &knowledge, index))
        .collect();
    let summaries = functions
        .iter()
        .map(|function| {
            let start = function.bounds.range.start;
            (start, Summary::of(function, &mut analyst))
        })
        .collect();
    (functions, summaries)
}

#[test]
fn assembly_with_its_own_convention_is_detected_by_its_callers() {
    let directory = tempfile::tempdir().unwrap();
    let source = directory.path().join("odd.c");
    let object = directory.path().join("libodd.so");
    std::fs::write(&source, SOURCE).unwrap();
    let built = Command::new("gcc")
        .args(["-O2", "-fipa-ra", "-fPIC", "-shared", "-o"])
        .arg(&object)
        .arg(&source)
        .status();
    if !built.is_ok_and(|status| status.success()) {
        membound_testkit::skipped("no gcc that builds a shared object");
        return;
    }
    let (functions, summaries) = summarised(&object);
    let named = |name: &str| {
        functions
            .iter()
            .find(|function| function.bounds.name.as_deref() == Some(name))
            .unwrap()
    };
    let r11 = RegisterSet::gpr(Gpr::new(11));
    let carry = RegisterSet::flag(Flag::Carry);
    for (name, expected) in [
        ("odd", r11.union(carry)),
        ("uses_odd", RegisterSet::EMPTY),
        ("odd_if", r11),
        ("plain", RegisterSet::EMPTY),
        ("kept", RegisterSet::EMPTY),
        ("uses_plain", RegisterSet::EMPTY),
    ] {
        let start = named(name).bounds.range.start;
        let found = summaries.returned_unconventionally(start);
        assert_eq!(found, expected, "{name}: {found}");
    }
    // This function overwrites neither register, but its caller receives the value through it.
    let part = named("odd_part").bounds.range.start;
    assert_eq!(
        summaries.returned_unconventionally(part),
        RegisterSet::EMPTY
    );
    let conventions = Conventions {
        convention: Convention::SystemV,
        summaries: &summaries,
    };
    let odd = named("odd");
    let alive = Liveness::of(odd, &conventions, &mut Analyst::new());
    let at_return = alive.before(odd.instructions.len() - 1);
    assert!(at_return.contains(r11) && at_return.contains(carry));
    // A function that returns in r11 only sometimes leaves its caller's value there at other times.
    let caller = named("uses_odd_if");
    let alive = Liveness::of(caller, &conventions, &mut Analyst::new());
    assert!(alive.before(1).contains(r11), "{}", alive.before(1));
    assert!(alive.before(2).contains(r11), "{}", alive.before(2));
}

/// Compiled code follows the ABI: no function of a C library is taken to return a value in flags, because
/// counting bodies rely on dead flags. (General registers may be alive: -fipa-ra keeps values in them over
/// calls.)
#[test]
fn compiled_code_is_conventional() {
    let library = Path::new("/lib/x86_64-linux-gnu/libc.so.6");
    if !library.exists() {
        membound_testkit::skipped("no libc.so.6 where Debian has it");
        return;
    }
    let (functions, summaries) = summarised(library);
    let odd: Vec<String> = functions
        .iter()
        .filter_map(|function| {
            let start = function.bounds.range.start;
            let found = summaries.returned_unconventionally(start);
            let name = function.bounds.name.as_deref().unwrap_or("?");
            let flags = found.intersection(RegisterSet::ARITHMETIC_FLAGS);
            (flags != RegisterSet::EMPTY).then(|| format!("{name} {start:#x}: {found}"))
        })
        .collect();
    assert!(odd.is_empty(), "{odd:?}");
}
