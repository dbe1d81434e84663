use std::time::Duration;

use iced_x86::code_asm::{
    CodeAssembler, CodeLabel, byte_ptr, eax, edx, qword_ptr, r8, rax, rbp, rcx, rdi, rdx, rsi, rsp,
    xmm0, xmm1, ymm0, ymm1,
};
use iced_x86::{Code, IcedError, Instruction, MemoryOperand, Register};

use membound_rewrite::stall::{Code as Functions, LoopBody};

use super::{IterationTime, iteration_time};
use crate::random::Random;

/// Time of the loop that `emit` writes, in cycles of a chain of dependent adds.
fn cycles(emit: impl FnOnce(&mut CodeAssembler) -> Result<(), IcedError>) -> Option<f64> {
    // Eight dependent additions take eight cycles on every processor.
    let clock = of_loop(|a| {
        for _ in 0..8 {
            a.add(rax, rcx)?;
        }
        a.mov(rdx, qword_ptr(rsi))
    })?;
    Some(of_loop(emit)? / clock * 8.0)
}

/// The loop that is entered at `entry` in a function at `address`.
fn body(code: &[u8], address: u64, entry: u64) -> Option<LoopBody> {
    Functions::of_piece(code.to_vec(), address).loop_body(entry)
}

fn of_loop(emit: impl FnOnce(&mut CodeAssembler) -> Result<(), IcedError>) -> Option<f64> {
    let assembled = || {
        let mut a = CodeAssembler::new(64)?;
        let mut top = a.create_label();
        a.set_label(&mut top)?;
        emit(&mut a)?;
        a.cmp(r8, rdi)?;
        a.jne(top)?;
        a.assemble(0x40_1000)
    };
    let code = assembled().expect("it can be encoded");
    timed(&body(&code, 0x40_1000, 0x40_1000)?)
}

fn timed(body: &LoopBody) -> Option<f64> {
    let IterationTime {
        ns,
        least_ns,
        most_ns,
    } = iteration_time(body, Duration::ZERO)?;
    assert!(0.0 < ns && 0.0 <= least_ns && least_ns <= ns && ns <= most_ns);
    Some(ns)
}

#[test]
fn loops_take_the_time_of_their_instructions() {
    // Each load needs the address that the one before has brought: 3 to 6 cycles.
    let chase =
        cycles(|a| a.mov(rax, qword_ptr(rax + 0x1234_5678_i32))).expect("it can be replayed");
    assert!((2.0..20.0).contains(&chase), "{chase}");
    // Through memory: the store is forwarded to the load of the next iteration.
    let forwarded = cycles(|a| a.add(qword_ptr(rbp - 8), 1)).expect("it can be replayed");
    assert!(forwarded < 40.0, "{forwarded}");
    // Independent loads and stores that advance: a few cycles at most.
    let copy = cycles(|a| {
        a.mov(rcx, qword_ptr(rsi + rax))?;
        a.mov(qword_ptr(rdi + rax), rcx)?;
        a.add(rax, 8)
    })
    .expect("it can be replayed");
    assert!((0.2..9.0).contains(&copy), "{copy}");
    // A chain of four dependent multiplications of 3 to 5 cycles each.
    let multiplied = cycles(|a| {
        for _ in 0..4 {
            a.mulsd(xmm0, xmm1)?;
        }
        a.movsd_2(qword_ptr(rdi + rax * 8), xmm0)?;
        a.inc(rax)
    })
    .expect("it can be replayed");
    assert!((8.0..60.0).contains(&multiplied), "{multiplied}");
}

#[test]
fn a_loop_may_be_entered_at_its_condition() {
    let assembled = || {
        let mut a = CodeAssembler::new(64)?;
        let (mut condition, mut top) = (a.create_label(), a.create_label());
        a.jmp(condition)?;
        a.set_label(&mut top)?;
        a.add(qword_ptr(rbp - 16), 3)?;
        a.add(qword_ptr(rbp - 8), 1)?;
        a.set_label(&mut condition)?;
        a.cmp(qword_ptr(rbp - 8), 100)?;
        a.jl(top)?;
        a.assemble(0)
    };
    let code: Vec<u8> = assembled().expect("it can be encoded");
    let entries = (0..code.len() as u64).filter(|entry| body(&code, 0, *entry).is_some());
    let entries: Vec<u64> = entries.collect();
    // At each of its instructions, and not at the jump before it.
    assert_eq!(entries, [2, 7, 12, 17]);
}

#[test]
fn operands_of_all_kinds_are_moved() {
    let constant = of_loop(|a| {
        let constant = MemoryOperand::with_base_displ(Register::RIP, 0x40_5000);
        a.add_instruction(Instruction::with2(
            Code::Mulsd_xmm_xmmm64,
            Register::XMM0,
            constant,
        )?)?;
        a.addsd(xmm0, qword_ptr(rsp + 16))?;
        a.addsd(xmm0, qword_ptr(0x0060_0000))?;
        a.mov(eax, eax)
    });
    assert!(constant.is_some());
    if std::arch::is_x86_feature_detected!("avx") {
        let wide = of_loop(|a| {
            a.vmovupd(ymm0, iced_x86::code_asm::ymmword_ptr(rsi + rax))?;
            a.vaddpd(ymm1, ymm0, ymm1)?;
            a.add(rax, 32)
        });
        assert!(wide.is_some());
    }
}

#[test]
fn what_could_do_anything_else_is_refused() {
    type Emit = fn(&mut CodeAssembler) -> Result<(), IcedError>;
    let refused: [(&str, Emit); 10] = [
        ("a system call", |a| a.syscall()),
        ("a call", |a| a.call(rax)),
        ("a push", |a| a.push(rax)),
        ("a change of the stack", |a| a.sub(rsp, 8)),
        ("a string", |a| a.rep().movsb()),
        ("a trap", |a| a.int3()),
        ("a division", |a| a.div(rcx)),
        ("a locked access", |a| a.lock().add(qword_ptr(rsi), 1)),
        ("an access of a segment", |a| {
            a.mov(rax, qword_ptr(rax).fs())
        }),
        ("a time", |a| a.rdtsc()),
    ];
    for (what, emit) in refused {
        let time = of_loop(|a| {
            a.mov(rcx, qword_ptr(rsi))?;
            emit(a)
        });
        assert_eq!(time, None, "{what}");
    }
    let far = of_loop(|a| {
        a.mov(rcx, qword_ptr(rsi))?;
        a.add(rsi, 4096)
    });
    assert_eq!(far, None, "it leaves the first cache");
    assert!(body(&[0x90; 16], 0, 0).is_none(), "no loop");
    assert!(body(&[], 0, 0).is_none());
}

#[test]
fn an_address_outside_of_the_buffers_ends_only_the_child() {
    let time = of_loop(|a| {
        a.mov(rcx, qword_ptr(rsi))?;
        a.not(rcx)?;
        a.shr(rcx, 8)?;
        a.mov(byte_ptr(rcx), 1)
    });
    assert_eq!(time, None);
}

#[test]
fn any_code_is_refused_or_executed_without_harm() {
    let mut random = Random::new(20_181_109);
    let mut executed = 0;
    for _ in 0..20_000 {
        let mut code: Vec<u8> = (0..12).map(|_| random.below(256) as u8).collect();
        code.extend([0x75, 0xf2]);
        let Some(body) = body(&code, 0, 0) else {
            continue;
        };
        executed += 1;
        if executed <= 50 {
            timed(&body);
        }
    }
    assert!(executed > 20, "{executed}");
}

#[test]
fn loops_end_as_in_the_program_where_a_register_says_when() {
    // The register that begins with another value than zero, for loops of a hundred iterations; `None` if they are written
    // out.
    let looping = |emit: &dyn Fn(&mut CodeAssembler, CodeLabel) -> Result<(), IcedError>| {
        let assembled = || {
            let mut a = CodeAssembler::new(64)?;
            let mut top = a.create_label();
            a.set_label(&mut top)?;
            a.addsd(xmm0, qword_ptr(rdi + rax * 8))?;
            emit(&mut a, top)?;
            a.assemble(0x40_1000)
        };
        let code = assembled().expect("it can be encoded");
        let body = body(&code, 0x40_1000, 0x40_1000).expect("it only computes");
        assert!(timed(&body).is_some(), "it ends");
        let all = body.looping(&[0x10_0000], 5, 100)?;
        let [first, .., condition, jump] = &all[..] else {
            return None;
        };
        let begins = first.code() == iced_x86::Code::Mov_rm64_imm32;
        let body_at = 5 + u64::from(begins);
        assert_eq!(
            jump.near_branch_target(),
            body_at,
            "back to the first instruction of the body"
        );
        Some(match begins {
            true => (first.op0_register(), first.immediate(1) as i32),
            false => (Register::None, condition.immediate(1) as i32),
        })
    };
    let to_register = looping(&|a, top| {
        a.inc(rax)?;
        a.cmp(rdx, rax)?;
        a.jne(top)
    });
    assert_eq!(to_register, Some((Register::RDX, 100)));
    let to_lower = looping(&|a, top| {
        a.sub(rax, 4)?;
        a.cmp(eax, edx)?;
        a.jg(top)
    });
    assert_eq!(to_lower, Some((Register::RDX, -400)));
    let to_constant = looping(&|a, top| {
        a.add(rax, 2)?;
        a.cmp(rax, 12)?;
        a.jb(top)
    });
    assert_eq!(to_constant, Some((Register::None, 200)));
    let to_zero = looping(&|a, top| {
        a.inc(rax)?;
        a.dec(rcx)?;
        a.jne(top)
    });
    assert_eq!(to_zero, Some((Register::RCX, 100)));
    // With other values these would access other memory, or nothing known advances.
    assert_eq!(
        looping(&|a, top| {
            a.add(rax, 1)?;
            a.jne(top)
        }),
        None
    );
    assert_eq!(
        looping(&|a, top| {
            a.add(rax, 1)?;
            a.cmp(rdi, rax)?;
            a.jne(top)
        }),
        None
    );
    assert_eq!(
        looping(&|a, top| {
            a.add(rax, 1)?;
            a.cmp(rcx, rdx)?;
            a.jne(top)
        }),
        None
    );
    // It would end at once, or never.
    assert_eq!(
        looping(&|a, top| {
            a.add(rax, 1)?;
            a.cmp(rax, rdx)?;
            a.jg(top)
        }),
        None
    );
}

#[test]
fn the_copy_of_a_loop_lies_across_lines_as_the_loop_does() {
    for (entry, starts) in [(0x40_1000, 0), (0x40_1036, 54)] {
        let assembled = || {
            let mut a = CodeAssembler::new(64)?;
            let mut top = a.create_label();
            a.set_label(&mut top)?;
            a.mov(rcx, qword_ptr(rsi + rax * 8))?;
            a.inc(rax)?;
            a.cmp(rdx, rax)?;
            a.jne(top)?;
            a.assemble(entry)
        };
        let code = assembled().expect("it can be encoded");
        let body = body(&code, entry, entry).expect("it is a loop");
        assert_eq!(super::run::copied_to(&body) % 64, starts);
    }
}
