//! Which access a sample belongs to, and its address: code whose answers follow from reading it.

use std::path::Path;

use iced_x86::code_asm::{
    CodeAssembler, byte_ptr, dword_ptr, eax, ecx, ptr, qword_ptr, r8, r9, rax, rbx, rcx, rdi, rsi,
    rsp, xmm0, xmm1,
};
use membound_rewrite::code::{ImageFacts, Tables};
use membound_rewrite::image::Image;
use membound_rewrite::stall::{Bases, Code, Effective, SiteKind, Wait};
use membound_testkit::skipped;

const BASE: u64 = 0x1000;

/// Assembled code and where its instructions begin.
struct Piece {
    code: Code,
    at: Vec<u64>,
}

fn piece(emit: impl FnOnce(&mut CodeAssembler)) -> Piece {
    let mut a = CodeAssembler::new(64).unwrap();
    emit(&mut a);
    let bytes = a.assemble(BASE).unwrap();
    let mut decoder = iced_x86::Decoder::with_ip(64, &bytes, BASE, 0);
    let at = decoder.iter().map(|instruction| instruction.ip()).collect();
    Piece {
        code: Code::of_piece(bytes, BASE),
        at,
    }
}

impl Piece {
    fn waits(&self, sampled: usize) -> Vec<Wait> {
        let waits = self.code.waits(self.at[sampled]);
        let total: f64 = waits.iter().map(|wait| wait.share).sum();
        assert!((total - 1.0).abs() < 1e-9, "{waits:?}");
        waits
    }

    /// Index of the site with the largest share.
    fn main(&self, sampled: usize) -> (Option<usize>, Wait) {
        let first = self.waits(sampled)[0];
        let position = first
            .site
            .map(|site| self.at.iter().position(|at| *at == site).unwrap());
        (position, first)
    }

    fn address(
        &self,
        site: usize,
        sampled: usize,
        registers: &[(usize, u64)],
    ) -> Option<Effective> {
        let mut all = [0xdead_0000_0000; 16];
        for (number, value) in registers {
            all[*number] = *value;
        }
        let bases = Bases {
            bias: 0x5000,
            fs: Some(0x7000_0000),
            gs: None,
        };
        self.code
            .effective_address(self.at[site], self.at[sampled], &all, bases)
    }
}

const RAX: usize = 0;
const RCX: usize = 1;
const RBX: usize = 3;
const RSP: usize = 4;
const RSI: usize = 6;
const RDI: usize = 7;

fn exactly(address: u64) -> Option<Effective> {
    Some(Effective {
        address,
        exact: true,
    })
}

fn near(address: u64) -> Option<Effective> {
    Some(Effective {
        address,
        exact: false,
    })
}

#[test]
fn the_access_just_before_was_waited_for() {
    let chase = piece(|a| {
        let mut again = a.create_label();
        a.set_label(&mut again).unwrap();
        a.mov(rdi, qword_ptr(rdi)).unwrap();
        a.dec(rsi).unwrap();
        a.jne(again).unwrap();
        a.ret().unwrap();
    });
    let (site, wait) = chase.main(1);
    assert_eq!(site, Some(0));
    assert!(wait.share > 0.99 && wait.confidence > 0.9);
}

#[test]
fn a_prefetch_waits_for_room_among_lines_on_their_way() {
    let gather = piece(|a| {
        let mut again = a.create_label();
        a.set_label(&mut again).unwrap();
        a.mov(rdi, qword_ptr(rsi)).unwrap();
        a.prefetcht0(byte_ptr(rdi + 64)).unwrap();
        a.add(rsi, 8).unwrap();
        a.dec(rcx).unwrap();
        a.jne(again).unwrap();
        a.ret().unwrap();
    });
    let (site, wait) = gather.main(2);
    assert_eq!(site, Some(1));
    assert!(wait.share > 0.99 && wait.confidence > 0.8);
    let info = gather.code.site(gather.at[1]).expect("it is a site");
    assert_eq!(info.kind, SiteKind::Prefetch);
    assert!(info.text.starts_with("prefetcht0"), "{}", info.text);
    // The line is asked for, not accessed.
    let found = gather.address(1, 2, &[(RDI, 0x9000_0000)]);
    assert_eq!(found, near(0x9000_0040));
}

#[test]
fn arithmetic_waits_for_itself_and_hardly_for_what_feeds_it() {
    let code = piece(|a| {
        a.mov(rax, qword_ptr(rdi)).unwrap();
        a.imul_3(rax, rax, 3).unwrap();
        a.imul_3(rax, rax, 5).unwrap();
        a.imul_3(rax, rax, 5).unwrap();
        a.imul_3(rax, rax, 5).unwrap();
        a.nop().unwrap();
        a.ret().unwrap();
    });
    let mut last = f64::INFINITY;
    for sampled in [2, 3, 4] {
        let waits = code.waits(sampled);
        assert_eq!(waits[0].site, None);
        let fed = waits.iter().find(|wait| wait.site == Some(BASE)).unwrap();
        assert!(fed.share < 0.05 && fed.confidence < last);
        last = fed.confidence;
    }
    assert_eq!(code.waits(5).len(), 1, "too many steps away");
}

#[test]
fn at_the_head_of_a_loop_the_fall_through_load_beats_the_branch() {
    let code = piece(|a| {
        let mut head = a.create_label();
        a.mov(rax, qword_ptr(rdi)).unwrap();
        a.set_label(&mut head).unwrap();
        a.add(rcx, rax).unwrap();
        a.dec(rsi).unwrap();
        a.jne(head).unwrap();
        a.ret().unwrap();
    });
    let waits = code.waits(1);
    assert_eq!(waits[0].site, Some(BASE), "{waits:?}");
    assert!(waits[0].share < 0.9, "the loop goes round: {waits:?}");
    assert!(waits[0].confidence < 0.9, "it is a guess");
}

#[test]
fn a_branch_target_has_the_accesses_of_all_its_predecessors() {
    // Around the loop, a load falls through to an instruction that a store's branch also jumps to.
    let code = piece(|a| {
        let mut head = a.create_label();
        let mut middle = a.create_label();
        a.mov(qword_ptr(rsi), rax).unwrap();
        a.jmp(middle).unwrap();
        a.set_label(&mut head).unwrap();
        a.mov(rbx, qword_ptr(rdi)).unwrap();
        a.set_label(&mut middle).unwrap();
        a.add(rdi, rbx).unwrap();
        a.dec(rcx).unwrap();
        a.jne(head).unwrap();
        a.ret().unwrap();
    });
    let waits = code.waits(3);
    assert_eq!(waits[0].site, Some(code.at[2]), "{waits:?}");
    assert!(
        waits[0].share > 0.98,
        "the loop goes round more often than it is entered"
    );
    assert_eq!(waits[1].site, None);
}

#[test]
fn accesses_of_the_blocks_before_are_known_where_a_block_begins() {
    let code = piece(|a| {
        let mut head = a.create_label();
        let mut middle = a.create_label();
        a.mov(qword_ptr(rsi), rax).unwrap();
        a.jmp(middle).unwrap();
        a.set_label(&mut head).unwrap();
        a.mov(rbx, qword_ptr(rdi)).unwrap();
        a.add(rbx, qword_ptr(rdi + 8)).unwrap();
        a.set_label(&mut middle).unwrap();
        a.add(rdi, rbx).unwrap();
        a.dec(rcx).unwrap();
        a.jne(head).unwrap();
        a.call(qword_ptr(rax + 16)).unwrap();
        a.ret().unwrap();
    });
    let before = |sampled: usize| {
        let accesses = code.code.blocks_before(code.at[sampled])?;
        let position = |it: &u64| code.at.iter().position(|at| at == it).unwrap();
        Some(accesses.iter().map(position).collect::<Vec<_>>())
    };
    assert_eq!(
        before(4),
        Some(vec![0, 2, 3]),
        "by the jump and falling through"
    );
    assert_eq!(
        before(2),
        Some(vec![]),
        "nothing between the target and the branch"
    );
    assert_eq!(before(3), None, "inside a block");
    assert_eq!(before(8), Some(vec![]), "the callee came before");
    assert_eq!(code.code.blocks_before(BASE + 0x1000), None);
}

#[test]
fn a_loop_that_only_reads_has_the_stores_of_the_loop_around_it() {
    let code = piece(|a| {
        let (mut outer, mut inner) = (a.create_label(), a.create_label());
        a.mov(qword_ptr(rsi), rax).unwrap();
        a.set_label(&mut outer).unwrap();
        a.mov(rbx, qword_ptr(rdi)).unwrap();
        a.set_label(&mut inner).unwrap();
        a.cmp(qword_ptr(rdi), rax).unwrap();
        a.jle(inner).unwrap();
        a.lock().inc(qword_ptr(rdi + 16)).unwrap();
        a.add(qword_ptr(rsi), rbx).unwrap();
        a.mov(qword_ptr(rdi + 8), rax).unwrap();
        a.dec(rcx).unwrap();
        a.jne(outer).unwrap();
        a.ret().unwrap();
    });
    let stores = |at: usize| code.code.loop_stores(code.at[at]);
    assert_eq!(stores(2), [code.at[5], code.at[6]]);
    assert_eq!(stores(6), stores(2));
    assert_eq!(stores(0), [0_u64; 0], "in no loop");
}

#[test]
fn a_branch_through_memory_waited_for_its_operand() {
    // The table's jump is not resolved here, so a virtual call represents both.
    let code = piece(|a| {
        a.push(rbx).unwrap();
        a.call(qword_ptr(rax + 16)).unwrap();
        a.mov(rbx, rax).unwrap();
        a.ret().unwrap();
    });
    let (site, wait) = code.main(2);
    assert_eq!(site, None, "the callee's return came before");
    assert!(wait.confidence < 0.8);
    let (site, wait) = code.main(0);
    assert_eq!((site, wait.share), (None, 1.0));
}

#[test]
fn fences_and_repeated_strings() {
    let code = piece(|a| {
        a.mov(qword_ptr(rdi), rax).unwrap();
        a.mfence().unwrap();
        a.rep().movsb().unwrap();
        a.nop().unwrap();
        a.mov(rax, qword_ptr(rsi)).unwrap();
        a.lfence().unwrap();
        a.ret().unwrap();
    });
    assert_eq!(code.main(2).0, Some(2), "interrupted midway");
    assert_eq!(code.main(3).0, Some(2));
    assert_eq!(code.main(6).0, None, "the load is older than the fence");
    let stores = piece(|a| {
        a.mov(qword_ptr(rdi), rax).unwrap();
        a.mfence().unwrap();
        a.nop().unwrap();
        a.ret().unwrap();
    });
    assert_eq!(stores.main(2).0, Some(0));
}

#[test]
fn confidence_differs_between_loads_stores_and_locked_operations() {
    let code = piece(|a| {
        a.mov(rax, qword_ptr(rdi)).unwrap();
        a.mov(qword_ptr(rsi), rcx).unwrap();
        a.lock().inc(qword_ptr(rdi)).unwrap();
        a.add(qword_ptr(rdi), rax).unwrap();
        a.cmp(byte_ptr(rdi), 3).unwrap();
        let mut out = a.create_label();
        a.je(out).unwrap();
        a.nop().unwrap();
        a.set_label(&mut out).unwrap();
        a.ret().unwrap();
    });
    let confidence = |sampled| code.main(sampled).1.confidence;
    assert!(confidence(1) > confidence(2) && confidence(2) > confidence(3));
    let kinds: Vec<_> = (0..5)
        .map(|index| code.code.site(code.at[index]).unwrap().kind)
        .collect();
    use SiteKind::{Both, Load, Locked, Store};
    assert_eq!(kinds, [Load, Store, Locked, Both, Load]);
    let site = code.code.site(code.at[4]).unwrap();
    assert_eq!(site.bytes, 1);
    assert!(site.text.starts_with("cmp"), "{}", site.text);
    assert_eq!(code.code.site(code.at[5]), None);
    // After the branch, which may be fused with the comparison.
    let (site, wait) = code.main(6);
    assert_eq!(site, Some(4));
    assert!(wait.confidence < 0.5);
}

#[test]
fn addresses_from_registers_that_survived() {
    let code = piece(|a| {
        a.mov(rax, qword_ptr(rdi + rcx * 8 + 24)).unwrap();
        a.nop().unwrap();
        a.ret().unwrap();
    });
    assert_eq!(
        code.address(0, 1, &[(RDI, 0x10_0000), (RCX, 3)]),
        exactly(0x10_0030)
    );
}

#[test]
fn a_load_that_overwrites_its_base_leaves_the_pointer_it_loaded() {
    let code = piece(|a| {
        a.mov(rdi, qword_ptr(rdi + 8)).unwrap();
        a.nop().unwrap();
        a.mov(ecx, dword_ptr(rbx + rcx * 4)).unwrap();
        a.nop().unwrap();
        a.add(rsi, qword_ptr(rsi)).unwrap();
        a.nop().unwrap();
        a.ret().unwrap();
    });
    assert_eq!(code.address(0, 1, &[(RDI, 0x20_0000)]), near(0x20_0008));
    assert_eq!(code.address(0, 1, &[(RDI, 0)]), None, "the list's end");
    assert_eq!(
        code.address(2, 3, &[(RBX, 0x30_0000)]),
        near(0x30_0000),
        "the array, at least"
    );
    assert_eq!(code.address(4, 5, &[(RSI, 0x40_0000)]), None);
}

#[test]
fn steps_between_are_undone() {
    let code = piece(|a| {
        a.mov(rax, qword_ptr(rdi)).unwrap();
        a.add(rdi, 8).unwrap();
        a.sub(rdi, 0x1000).unwrap();
        a.inc(rdi).unwrap();
        a.lea(rdi, ptr(rdi + 16)).unwrap();
        a.push(rcx).unwrap();
        a.ret().unwrap();
    });
    let after = 0x50_0000 + 8 - 0x1000 + 1 + 16;
    assert_eq!(code.address(0, 6, &[(RDI, after)]), exactly(0x50_0000));
    let moved = piece(|a| {
        a.mov(rax, qword_ptr(rdi)).unwrap();
        a.mov(rdi, r8).unwrap();
        a.ret().unwrap();
    });
    assert_eq!(moved.address(0, 2, &[(RDI, 0x50_0000)]), None);
    let pushed = piece(|a| {
        a.push(qword_ptr(rsp + 8)).unwrap();
        a.nop().unwrap();
        a.ret().unwrap();
    });
    assert_eq!(pushed.address(0, 1, &[(RSP, 0x7f00)]), exactly(0x7f10));
}

#[test]
fn addresses_relative_to_code_and_segments() {
    let code = piece(|a| {
        a.mov(rax, qword_ptr(0x3000).fs()).unwrap();
        a.nop().unwrap();
        a.mov(rax, qword_ptr(rcx).gs()).unwrap();
        a.nop().unwrap();
        a.db(&[0x48, 0x8b, 0x05, 0x10, 0, 0, 0]).unwrap();
        a.nop().unwrap();
        a.ret().unwrap();
    });
    assert_eq!(code.address(0, 1, &[]), exactly(0x7000_3000));
    assert_eq!(code.address(2, 3, &[(RCX, 8)]), None, "gs is not known");
    let target = code.at[4] + 7 + 0x10 + 0x5000;
    assert_eq!(code.address(4, 5, &[]), exactly(target));
}

#[test]
fn vectors_and_strings() {
    let code = piece(|a| {
        a.vgatherdps(xmm0.k1(), ptr(rbx + xmm1 * 4)).unwrap();
        a.nop().unwrap();
        a.rep().movsb().unwrap();
        a.rep().stosb().unwrap();
        a.lodsb().unwrap();
        a.nop().unwrap();
        a.ret().unwrap();
    });
    assert_eq!(code.address(0, 1, &[(RBX, 0x9000)]), near(0x9000));
    let registers = [(RSI, 0xa000), (RDI, 0xb000)];
    assert_eq!(code.address(2, 2, &registers), exactly(0xa000));
    assert_eq!(code.address(3, 3, &registers), exactly(0xb000));
    assert_eq!(code.address(4, 5, &registers), near(0xa000));
}

#[test]
fn an_access_and_a_sample_that_do_not_follow_each_other() {
    let code = piece(|a| {
        let mut out = a.create_label();
        a.mov(rax, qword_ptr(rdi)).unwrap();
        a.je(out).unwrap();
        a.mov(r9, rax).unwrap();
        a.ret().unwrap();
        a.set_label(&mut out).unwrap();
        a.nop().unwrap();
        a.mov(eax, 1).unwrap();
        a.ret().unwrap();
    });
    assert_eq!(code.address(0, 4, &[(RDI, 0x6000)]), exactly(0x6000));
    assert_eq!(code.address(0, 2, &[(RDI, 0x6000)]), exactly(0x6000));
    let back =
        code.code
            .effective_address(code.at[2], code.at[0], &[RAX as u64; 16], Bases::default());
    assert_eq!(back, None);
    assert!(
        code.code.waits(BASE + 1).is_empty(),
        "inside an instruction"
    );
    assert!(code.code.waits(0).is_empty());
    assert_eq!(code.code.function(BASE + 1), Some(BASE..code.at[6] + 1));
    assert_eq!(code.code.blocks(BASE).len(), 3);
    assert_eq!(code.code.identity(), None);
}

/// Every instruction of every function of a real file may be a sample.
#[test]
fn shares_sum_to_one_in_a_whole_library() {
    let Some(path) = [
        "/lib/x86_64-linux-gnu/libc.so.6",
        "/lib64/libc.so.6",
        "/usr/lib/libc.so.6",
    ]
    .into_iter()
    .map(Path::new)
    .find(|path| path.exists()) else {
        skipped("no libc where it is looked for");
        return;
    };
    let bytes = std::fs::read(path).unwrap();
    let image = Image::parse(&bytes).unwrap();
    let knowledge = ImageFacts::gather(&image, Tables::Resolve);
    let code = Code::of(bytes.clone()).unwrap();
    assert_eq!(code.identity().as_ref(), Some(image.identity()));
    let mut sites = 0;
    for index in (0..image.functions().len()).step_by(16) {
        let function = membound_rewrite::code::Function::decode(&image, &knowledge, index);
        if function.instructions.len() > 3000 {
            continue;
        }
        for instruction in &function.instructions {
            let waits = code.waits(instruction.ip());
            if waits.is_empty() {
                // Decoded differently without knowledge of the rest of the file.
                continue;
            }
            let total: f64 = waits.iter().map(|wait| wait.share).sum();
            assert!((total - 1.0).abs() < 1e-9, "{:#x}", instruction.ip());
            for wait in waits {
                assert!((0.0..=1.0).contains(&wait.confidence), "{wait:?}");
                if let Some(site) = wait.site {
                    sites += 1;
                    assert!(code.site(site).is_some(), "{site:#x} is no access");
                }
            }
        }
    }
    assert!(sites > 1000, "{sites}");
}
