//! Small functions whose facts follow from reading them.

use iced_x86::code_asm::{
    CodeAssembler, al, byte_ptr, eax, ebx, ecx, edi, edx, ptr, qword_ptr, r8, r10, r11, r12, rax,
    rbp, rbx, rdi, rdx, rsi, rsp, xmm0, xmm1, xmm5, ymm5,
};
use membound_rewrite::code::{BlockEnd, BlockId, Function, Successors};
use membound_rewrite::flow::{
    Analyst, Conventions, Definition, Direction, Liveness, Reaching, Summaries, Summary, access,
};
use membound_rewrite::image::Convention;
use membound_rewrite::{Flag, Gpr, RegisterSet, VectorPart};

const BASE: u64 = 0x1000;

fn function(emit: impl FnOnce(&mut CodeAssembler)) -> Function {
    let mut a = CodeAssembler::new(64).unwrap();
    emit(&mut a);
    let code = a.assemble(BASE).unwrap();
    Function::from_code(&code, BASE)
}

/// Liveness in a module that consists of these functions.
fn liveness_among(function: &Function, others: &[&Function]) -> Liveness {
    let mut analyst = Analyst::new();
    let summaries: Summaries = std::iter::once(&function)
        .chain(others)
        .map(|one| (one.bounds.range.start, Summary::of(one, &mut analyst)))
        .collect();
    let conventions = Conventions {
        convention: Convention::SystemV,
        summaries: &summaries,
    };
    Liveness::of(function, &conventions, &mut analyst)
}

fn gpr(number: u8) -> RegisterSet {
    RegisterSet::gpr(Gpr::new(number))
}

const R8: u8 = 8;
const R10: u8 = 10;
const R11: u8 = 11;

#[test]
fn a_return_spares_what_the_function_does_not_write() {
    let writes_r8 = function(|a| {
        a.mov(rax, qword_ptr(rdi)).unwrap();
        a.mov(r8, rax).unwrap();
        a.ret().unwrap();
    });
    let live = liveness_among(&writes_r8, &[]);
    assert!(!live.before(0).intersects(gpr(R8)), "it is overwritten");
    assert!(
        !live.before(2).intersects(gpr(R8)),
        "nothing is returned in it"
    );
    assert!(
        live.before(2).contains(gpr(R10)),
        "a caller may keep a value in it"
    );
    assert!(
        live.before(0).contains(RegisterSet::ARITHMETIC_FLAGS),
        "nothing here writes flags"
    );
    for number in [0, 3, 4, 5, 12, 13, 14, 15] {
        assert!(live.before(2).contains(gpr(number)));
    }
}

#[test]
fn a_register_that_is_put_back_is_alive_at_the_return() {
    let saves = function(|a| {
        a.push(r11).unwrap();
        a.mov(r11, qword_ptr(rdi)).unwrap();
        a.add(rax, r11).unwrap();
        a.pop(r11).unwrap();
        a.mov(rdx, qword_ptr(rdi)).unwrap();
        a.ret().unwrap();
    });
    let live = liveness_among(&saves, &[]);
    assert!(live.before(4).contains(gpr(R11)));
    assert!(!live.before(3).intersects(gpr(R11)));
}

/// Like `mcount`, which may be called while arguments are in their registers.
#[test]
fn a_register_that_is_moved_to_the_frame_and_back_is_alive_at_the_return() {
    let body = |loaded_from: i32| {
        function(move |a| {
            a.sub(rsp, 0x18).unwrap();
            a.mov(qword_ptr(rsp), rdi).unwrap();
            a.mov(qword_ptr(rsp + 8), rsi).unwrap();
            a.mov(rdi, qword_ptr(rsi)).unwrap();
            a.add(rax, rdi).unwrap();
            a.mov(rdi, qword_ptr(rsp + loaded_from)).unwrap();
            a.mov(rdx, qword_ptr(rsi)).unwrap();
            a.add(rsp, 0x18).unwrap();
            a.ret().unwrap();
        })
    };
    const RDI: u8 = 7;
    let saves = liveness_among(&body(0), &[]);
    assert!(saves.before(6).contains(gpr(RDI)));
    assert!(!saves.before(5).intersects(gpr(RDI)));
    let loads_another = liveness_among(&body(8), &[]);
    assert!(!loads_another.before(6).intersects(gpr(RDI)));
}

#[test]
fn a_local_call_overwrites_at_most_what_the_callee_writes() {
    let callee_at = BASE + 0x100;
    let caller = function(|a| {
        a.mov(rdi, rax).unwrap();
        a.call(callee_at).unwrap();
        // Code as compiled with -fipa-ra: a value is kept in r8 over the call.
        a.add(rax, r8).unwrap();
        a.xor(r8, r8).unwrap();
        a.xor(ecx, ecx).unwrap();
        a.xor(r10, r10).unwrap();
        a.ret().unwrap();
    });
    let mut callee = CodeAssembler::new(64).unwrap();
    callee.lea(rax, ptr(rdi + 1)).unwrap();
    callee.mov(r10, rax).unwrap();
    callee.ret().unwrap();
    let callee = Function::from_code(&callee.assemble(callee_at).unwrap(), callee_at);
    let live = liveness_among(&caller, &[&callee]);
    assert!(live.before(1).contains(gpr(R8)), "kept over the call");
    assert!(
        !live.before(1).intersects(gpr(R10)),
        "the callee overwrites it unread"
    );
    assert!(
        !live.before(1).intersects(gpr(0)),
        "so does it the register it returns in"
    );
    assert!(live.before(1).contains(gpr(7)), "its argument");
    assert!(
        !live.before(1).intersects(gpr(1)),
        "no argument of this callee"
    );
    let nobody = liveness_among(&caller, &[]);
    for number in [0, 1, 2, 6, 7, R8, 9, R10, R11] {
        assert!(
            nobody.before(1).contains(gpr(number)),
            "anything may be an argument"
        );
    }
}

#[test]
fn a_callee_without_summary_may_read_what_a_known_one_reads() {
    let callee_at = BASE + 0x100;
    let caller = |returns: bool| {
        function(|a| {
            a.add(rdi, rax).unwrap();
            a.call(callee_at).unwrap();
            if returns {
                a.ret().unwrap();
            } else {
                a.ud2().unwrap();
            }
        })
    };
    let callee = |traps: bool| {
        let mut a = CodeAssembler::new(64).unwrap();
        a.lea(rax, ptr(rdi + 1)).unwrap();
        if traps {
            a.ud2().unwrap();
        } else {
            a.ret().unwrap();
        }
        Function::from_code(&a.assemble(callee_at).unwrap(), callee_at)
    };
    for (returns, traps) in [(true, true), (true, false), (false, true), (false, false)] {
        let caller = caller(returns);
        let known = liveness_among(&caller, &[&callee(traps)]);
        let unknown = liveness_among(&caller, &[]);
        for at in 0..3 {
            let [known, unknown] = [known.before(at), unknown.before(at)];
            assert!(unknown.contains(known), "{returns} {traps} {at}");
        }
    }
}

#[test]
fn calls_of_tls_descriptors_overwrite_nothing() {
    for descriptor in [true, false] {
        let code = function(|a| {
            a.mov(rax, BASE).unwrap();
            if descriptor {
                a.call(qword_ptr(rax)).unwrap();
            } else {
                a.call(qword_ptr(rax + 8)).unwrap();
            }
            a.addsd(xmm0, iced_x86::code_asm::xmm12).unwrap();
            a.xorps(iced_x86::code_asm::xmm12, iced_x86::code_asm::xmm12)
                .unwrap();
            a.ret().unwrap();
        });
        let kept = RegisterSet::vector(12, VectorPart::Xmm);
        let live = liveness_among(&code, &[]);
        assert_eq!(live.before(1).contains(kept), descriptor);
    }
}

#[test]
fn what_an_unwinder_needs_is_alive_where_nothing_returns() {
    let mut code = function(|a| {
        a.mov(edi, 1_u32).unwrap();
        a.call(BASE + 0x100).unwrap();
        a.ret().unwrap();
    });
    code.blocks[0].leaves_by = BlockEnd::Call {
        target: Some(BASE + 0x100),
        returns: false,
    };
    code.blocks[0].successors = Successors::default();
    let live = liveness_among(&code, &[]);
    for number in [3, 5, 12, 13, 14, 15] {
        assert!(live.before(0).contains(gpr(number)));
    }
    assert!(!live.before(0).intersects(gpr(7)));
    assert!(!live.before(0).intersects(RegisterSet::ARITHMETIC_FLAGS));
}

#[test]
fn a_loop_without_end_keeps_the_state_of_its_callers_alive() {
    let code = function(|a| {
        let mut top = a.create_label();
        a.set_label(&mut top).unwrap();
        a.call(BASE + 0x100).unwrap();
        a.jmp(top).unwrap();
    });
    let live = liveness_among(&code, &[]);
    for number in [3, 5, 12, 13, 14, 15] {
        assert!(live.before(0).contains(gpr(number)));
    }
}

#[test]
fn what_a_landing_pad_reads_is_alive_at_the_call() {
    let mut code = function(|a| {
        let mut pad = a.create_label();
        a.test(rdi, rdi).unwrap();
        a.je(pad).unwrap();
        a.call(BASE + 0x100).unwrap();
        a.xor(ebx, ebx).unwrap();
        a.xor(r12, r12).unwrap();
        a.ret().unwrap();
        a.set_label(&mut pad).unwrap();
        a.mov(rax, rbx).unwrap();
        a.ret().unwrap();
    });
    // The `je` only ensures that the landing pad is decoded.
    let pad = BlockId(code.blocks.len() as u32 - 1);
    let call = code
        .blocks
        .iter()
        .position(|block| matches!(block.leaves_by, BlockEnd::Call { .. }))
        .unwrap();
    let mut callee = CodeAssembler::new(64).unwrap();
    callee.mov(rax, qword_ptr(rdi)).unwrap();
    callee.ret().unwrap();
    let callee = callee.assemble(BASE + 0x100).unwrap();
    let callee = Function::from_code(&callee, BASE + 0x100);
    let at_call = code.blocks[call].first as usize;
    let live = liveness_among(&code, &[&callee]);
    assert!(!live.before(at_call).intersects(gpr(3)));
    code.blocks[call].landing_pad = Some(pad);
    let live = liveness_among(&code, &[&callee]);
    assert!(live.before(at_call).contains(gpr(3)));
}

#[test]
fn nothing_is_assumed_of_assembly() {
    let mut code = function(|a| {
        a.mov(eax, ptr(rdi)).unwrap();
        a.call(BASE + 0x100).unwrap();
        a.xor(r8, r8).unwrap();
        a.ret().unwrap();
    });
    code.bounds.assembly = true;
    let live = liveness_among(&code, &[]);
    assert_eq!(live.before(1), RegisterSet::ALL);
    assert_eq!(live.before(3), RegisterSet::ALL);
}

fn red_zone(emit: impl FnOnce(&mut CodeAssembler)) -> bool {
    liveness_among(&function(emit), &[]).red_zone()
}

#[test]
fn the_red_zone_is_detected() {
    assert!(red_zone(|a| {
        a.mov(qword_ptr(rsp - 8), rdi).unwrap();
        a.mov(rax, qword_ptr(rsp - 8)).unwrap();
        a.ret().unwrap();
    }));
    // A frame pointer, without an allocation on the stack.
    assert!(red_zone(|a| {
        a.push(rbp).unwrap();
        a.mov(rbp, rsp).unwrap();
        a.mov(qword_ptr(rbp - 8), rdi).unwrap();
        a.mov(rax, qword_ptr(rbp - 8)).unwrap();
        a.pop(rbp).unwrap();
        a.ret().unwrap();
    }));
    // An array indexed from above.
    assert!(red_zone(|a| {
        a.mov(rax, qword_ptr(rsp + rdi * 8)).unwrap();
        a.ret().unwrap();
    }));
    assert!(red_zone(|a| {
        a.lea(rax, ptr(rsp - 64)).unwrap();
        a.mov(rax, qword_ptr(rax)).unwrap();
        a.ret().unwrap();
    }));
    // It jumps out, so it may be a part of a function whose red zone holds data.
    assert!(red_zone(|a| {
        a.mov(rax, qword_ptr(rdi)).unwrap();
        a.jmp(BASE + 0x4000).unwrap();
    }));
    // Inline assembly that calls, in a function that the compiler takes for a leaf.
    assert!(red_zone(|a| {
        a.push(rbp).unwrap();
        a.mov(rbp, rsp).unwrap();
        a.mov(qword_ptr(rbp - 8), rdi).unwrap();
        a.lea(rsp, ptr(rsp - 128)).unwrap();
        a.call(BASE + 0x4000).unwrap();
        a.lea(rsp, ptr(rsp + 128)).unwrap();
        a.mov(rax, qword_ptr(rbp - 8)).unwrap();
        a.pop(rbp).unwrap();
        a.ret().unwrap();
    }));
    assert!(!red_zone(|a| {
        a.lea(rsp, ptr(rsp - 24)).unwrap();
        a.mov(qword_ptr(rsp + 8), rdi).unwrap();
        a.call(BASE + 0x4000).unwrap();
        a.lea(rsp, ptr(rsp + 24)).unwrap();
        a.ret().unwrap();
    }));
    assert!(!red_zone(|a| {
        a.mov(rax, qword_ptr(rdi)).unwrap();
        a.ret().unwrap();
    }));
    assert!(!red_zone(|a| {
        a.push(rbp).unwrap();
        a.mov(rbp, rsp).unwrap();
        a.sub(rsp, 32).unwrap();
        a.mov(qword_ptr(rbp - 8), rdi).unwrap();
        a.call(BASE + 0x4000).unwrap();
        a.leave().unwrap();
        a.ret().unwrap();
    }));
}

#[test]
fn a_part_that_a_leaf_jumps_to_may_work_in_its_red_zone() {
    let cold_at = BASE + 0x100;
    let leaf = function(|a| {
        a.lea(rax, ptr(rsp - 16)).unwrap();
        a.jmp(cold_at).unwrap();
    });
    let mut cold = CodeAssembler::new(64).unwrap();
    cold.mov(rax, qword_ptr(rax)).unwrap();
    cold.ret().unwrap();
    let cold = Function::from_code(&cold.assemble(cold_at).unwrap(), cold_at);
    assert!(liveness_among(&cold, &[&leaf]).red_zone());
    assert!(!liveness_among(&cold, &[]).red_zone());
}

fn stack_usable(emit: impl FnOnce(&mut CodeAssembler)) -> bool {
    liveness_among(&function(emit), &[]).stack_usable()
}

#[test]
fn stacks_are_distinguished_from_other_uses_of_rsp() {
    assert!(stack_usable(|a| {
        a.push(rbp).unwrap();
        a.mov(rbp, rsp).unwrap();
        a.and(rsp, -32).unwrap();
        a.sub(rsp, rax).unwrap();
        a.lea(rsp, ptr(rbp - 16)).unwrap();
        a.leave().unwrap();
        a.ret().unwrap();
    }));
    // gcc's realigned frame.
    assert!(stack_usable(|a| {
        a.lea(r10, ptr(rsp + 8)).unwrap();
        a.and(rsp, -32).unwrap();
        a.push(qword_ptr(r10 - 8)).unwrap();
        a.call(BASE + 0x4000).unwrap();
        a.lea(rsp, ptr(r10 - 8)).unwrap();
        a.ret().unwrap();
    }));
    // The removal of an array of variable size.
    assert!(stack_usable(|a| {
        a.mov(rbx, rsp).unwrap();
        a.sub(rsp, rdi).unwrap();
        a.mov(rsp, rbx).unwrap();
        a.ret().unwrap();
    }));
    assert!(!stack_usable(|a| {
        a.mov(qword_ptr(rdi), rsp).unwrap();
        a.mov(rsp, qword_ptr(rsi)).unwrap();
        a.ret().unwrap();
    }));
    assert!(!stack_usable(|a| {
        a.xchg(rsp, rdi).unwrap();
        a.ret().unwrap();
    }));
    assert!(!stack_usable(|a| {
        a.lea(rsp, ptr(rdi + 4096)).unwrap();
        a.ret().unwrap();
    }));
    assert!(!stack_usable(|a| {
        a.pop(rsp).unwrap();
        a.ret().unwrap();
    }));
}

#[test]
fn an_abort_out_of_an_rseq_section_may_read_anything() {
    let mut code = function(|a| {
        a.mov(r8, rdi).unwrap();
        a.mov(rax, qword_ptr(rdi)).unwrap();
        a.xor(r8, r8).unwrap();
        a.ret().unwrap();
    });
    assert!(!liveness_among(&code, &[]).before(1).intersects(gpr(R8)));
    let start = code.instructions[1].ip();
    code.untouchable.push(start..start + 1);
    assert!(liveness_among(&code, &[]).before(1).contains(gpr(R8)));
}

/// Effects of instructions that a test cannot execute, or only on some processors.
#[test]
fn effects_are_those_of_the_manuals() {
    let names = |set: RegisterSet| set.to_string();
    let check = |bytes: &[u8], reads: &str, kills: &str| {
        let instruction = iced_x86::Decoder::new(64, bytes, 0).decode();
        let effects = Analyst::new().effects(&instruction);
        assert_eq!(names(effects.reads), reads, "reads of {instruction}");
        assert_eq!(names(effects.kills), kills, "kills of {instruction}");
    };
    // cpuid, rdtsc, rdtscp, syscall
    check(&[0x0f, 0xa2], "rax rcx", "rax rcx rdx rbx");
    check(&[0x0f, 0x31], "", "rax rdx");
    check(&[0x0f, 0x01, 0xf9], "", "rax rcx rdx");
    check(
        &[0x0f, 0x05],
        "rax rdx rsp rsi rdi r8 r9 r10 CF PF AF ZF SF OF df",
        "rax rcx r11",
    );
    // je, jrcxz, call, ret, push rax, leave, endbr64, notrack jmp rax
    check(&[0x74, 0x00], "ZF", "");
    check(&[0xe3, 0x00], "rcx", "");
    check(&[0xe8, 0, 0, 0, 0], "rsp", "rsp");
    check(&[0xc3], "rsp", "rsp");
    check(&[0x50], "rax rsp", "rsp");
    check(&[0xc9], "rbp", "rsp rbp");
    check(&[0xf3, 0x0f, 0x1e, 0xfa], "", "");
    check(&[0x3e, 0xff, 0xe0], "rax", "");
    // rdsspq rax, wrfsbase rax, xrstor [rdi]
    check(&[0xf3, 0x48, 0x0f, 0x1e, 0xc8], "rax", "");
    check(&[0xf3, 0x48, 0x0f, 0xae, 0xd0], "rax", "");
    check(&[0x0f, 0xae, 0x2f], "rax rdx rdi", "");
    // cmovne eax, ecx; cmovne rax, rcx; sbb eax, eax; xor eax, eax; xor al, al
    check(&[0x0f, 0x45, 0xc1], "rax rcx ZF", "rax");
    check(&[0x19, 0xc0], "CF", "rax CF PF AF ZF SF OF");
    check(&[0x31, 0xc0], "", "rax CF PF ZF SF OF");
    check(&[0x30, 0xc0], "", "CF PF ZF SF OF");
    // shl eax, cl; shl eax, 0; mov al, 1; mov eax, 1
    check(&[0xd3, 0xe0], "rax rcx", "rax");
    check(&[0xc1, 0xe0, 0x00], "rax", "rax");
    check(&[0xb0, 0x01], "", "");
    check(&[0xb8, 1, 0, 0, 0], "", "rax");
    // rep movsb, cld, popfq
    check(&[0xf3, 0xa4], "rcx rsi rdi df", "");
    check(&[0xfc], "", "df");
    check(&[0x9d], "rsp", "rsp CF PF AF ZF SF OF df");
    // ud2, int3, hlt
    for bytes in [&[0x0f, 0x0b][..], &[0xcc], &[0xf4]] {
        let instruction = iced_x86::Decoder::new(64, bytes, 0).decode();
        let effects = Analyst::new().effects(&instruction);
        assert_eq!(
            (effects.reads, effects.kills),
            (RegisterSet::ALL, RegisterSet::EMPTY)
        );
    }
}

#[test]
fn uppers_of_vectors_die_with_vex_and_live_with_sse() {
    let high = RegisterSet::vector(5, VectorPart::YmmHigh);
    let low = RegisterSet::vector(5, VectorPart::Xmm);
    let sse = function(|a| {
        a.movups(xmm5, ptr(rdi)).unwrap();
        a.vmovups(ptr(rsi), ymm5).unwrap();
        a.ret().unwrap();
    });
    let live = liveness_among(&sse, &[]);
    assert!(live.before(0).contains(high) && !live.before(0).intersects(low));
    let vex = function(|a| {
        a.vmovups(xmm5, ptr(rdi)).unwrap();
        a.vmovups(ptr(rsi), ymm5).unwrap();
        a.ret().unwrap();
    });
    let live = liveness_among(&vex, &[]);
    assert!(!live.before(0).intersects(high.union(low)));
}

#[test]
fn flags_die_one_by_one() {
    let code = function(|a| {
        let mut end = a.create_label();
        a.mov(rax, qword_ptr(rdi)).unwrap();
        a.inc(rax).unwrap();
        a.jb(end).unwrap();
        a.add(rax, 1).unwrap();
        a.set_label(&mut end).unwrap();
        a.cmp(rax, 2).unwrap();
        a.ret().unwrap();
    });
    let live = liveness_among(&code, &[]);
    assert!(live.before(0).contains(RegisterSet::flag(Flag::Carry)));
    assert!(!live.before(0).intersects(RegisterSet::flag(Flag::Zero)));
}

#[test]
fn definitions_are_found_over_joins_and_loops() {
    let code = function(|a| {
        let mut other = a.create_label();
        let mut join = a.create_label();
        a.test(edi, edi).unwrap(); // 0
        a.je(other).unwrap(); // 1
        a.mov(eax, 1_u32).unwrap(); // 2
        a.jmp(join).unwrap(); // 3
        a.set_label(&mut other).unwrap();
        a.mov(al, 2_u32).unwrap(); // 4: the rest of rax is unchanged
        a.set_label(&mut join).unwrap();
        a.add(edx, eax).unwrap(); // 5
        a.cmp(byte_ptr(rsi), 0).unwrap(); // 6
        a.jne(join).unwrap(); // 7
        a.ret().unwrap(); // 8
    });
    let summaries = Summaries::default();
    let conventions = Conventions {
        convention: Convention::SystemV,
        summaries: &summaries,
    };
    let reaching = Reaching::of(&code, &conventions);
    use Definition::{Instruction, Outside};
    assert_eq!(
        reaching.definitions(5, Gpr::RAX),
        [Outside, Instruction(2), Instruction(4)]
    );
    assert_eq!(reaching.definitions(5, Gpr::RDX), [Outside, Instruction(5)]);
    assert_eq!(reaching.definitions(8, Gpr::RDX), [Instruction(5)]);
    assert_eq!(reaching.definitions(8, Gpr::RSI), [Outside]);
}

#[test]
fn accesses_are_distinguished_from_addresses() {
    let code = function(|a| {
        a.mov(rax, qword_ptr(rdi)).unwrap();
        a.mov(qword_ptr(rdi), rax).unwrap();
        a.add(qword_ptr(rdi), rax).unwrap();
        a.lea(rax, ptr(rdi)).unwrap();
        a.prefetcht0(ptr(rdi)).unwrap();
        a.clflush(ptr(rdi)).unwrap();
        a.push(rax).unwrap();
        a.push(qword_ptr(rdi)).unwrap();
        a.pop(qword_ptr(rdi)).unwrap();
        a.movsb().unwrap();
        a.addps(xmm1, ptr(rdi)).unwrap();
        a.ret().unwrap();
    });
    let found: Vec<Option<Direction>> = code
        .instructions
        .iter()
        .map(|instruction| access(instruction).map(|access| access.direction))
        .collect();
    use Direction::{Both, Load, Store};
    assert_eq!(
        found,
        [
            Some(Load),
            Some(Store),
            Some(Both),
            None,
            None,
            None,
            None,
            Some(Load),
            Some(Store),
            Some(Both),
            Some(Load),
            None
        ]
    );
}
