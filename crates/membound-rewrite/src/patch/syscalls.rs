//! The number of the system call that a `syscall` instruction makes, and whether the agent must see it.

use iced_x86::{Code, Decoder, DecoderOptions, Instruction, Mnemonic, OpKind, Register};

use super::Hooks;
use crate::code::{BlockEnd, BlockId, Function};
use crate::flow::Analyst;
use crate::image::Image;
use crate::{Gpr, RegisterSet};

/// System calls that the agent must always see: `mprotect`, `rt_sigaction`, `rt_sigprocmask`, `clone`,
/// `fork`, `vfork`, `execve`, `exit`, `rt_sigtimedwait`, `sigaltstack`, `mlockall`, `prctl`, `newfstatat`, `unshare`, `signalfd4`,
/// `prlimit64`, `setns`, `seccomp`, `execveat`, `pkey_mprotect`, `clone3`.
const ALWAYS_INTERCEPTED: [u32; 21] = [
    10, 13, 14, 56, 57, 58, 59, 60, 128, 131, 151, 157, 262, 272, 289, 302, 308, 317, 322, 329, 435,
];
/// The system call that the agent must see when it has timers as well: `exit_group`.
const EXIT_GROUP: u32 = 231;
/// System calls that fail when a signal handler interrupts them and have had no effect then, so that they can
/// be restarted: `read`, `write`, `poll`, `pread64`, `pwrite64`, `readv`,
/// `writev`, `select`, `pause`, `nanosleep`, `connect`, `accept`, `sendto`, `recvfrom`,
/// `sendmsg`, `recvmsg`, `wait4`, `semop`, `msgsnd`, `msgrcv`, `fcntl`, `flock`, `rt_sigtimedwait`,
/// `rt_sigsuspend`, `futex`, `io_getevents`, `semtimedop`, `clock_nanosleep`, `epoll_wait`,
/// `mq_timedsend`, `mq_timedreceive`, `waitid`, `openat`, `pselect6`, `ppoll`, `epoll_pwait`,
/// `accept4`, `recvmmsg`, `sendmmsg`, `getrandom`, `epoll_pwait2`, `futex_waitv`.
const RESTARTED: [u32; 42] = [
    0, 1, 7, 17, 18, 19, 20, 23, 34, 35, 42, 43, 44, 45, 46, 47, 61, 65, 69, 70, 72, 73, 128, 130,
    202, 208, 220, 230, 232, 242, 243, 247, 257, 270, 271, 281, 288, 299, 307, 318, 441, 449,
];
/// System calls in which a thread may wait: `poll`, `nanosleep`, `futex`, `clock_nanosleep`, `epoll_wait`,
/// `epoll_pwait`.
const MAY_WAIT: [u32; 6] = [7, 35, 202, 230, 232, 281];
/// Number of predecessor blocks that are followed back from the block with the instruction.
const MAX_PREDECESSOR_BLOCKS: usize = 4;

/// Addresses at which functions of `image` may have a `syscall` instruction. Far cheaper than decoding all
/// functions: only functions that contain the two bytes are decoded, and in code that calls a C library these
/// bytes are rarely an instruction.
pub(super) fn candidates<'a>(image: &'a Image<'_>) -> impl Iterator<Item = u64> + 'a {
    const SYSCALL: [u8; 2] = [0x0f, 0x05];
    image.text().iter().flat_map(move |range| {
        let bytes = image.bytes(range.clone()).unwrap_or_default();
        memchr::memmem::find_iter(bytes, &SYSCALL)
            .map(|at| range.start + at as u64)
            .filter(|address| may_be_instruction(image, *address))
    })
}

/// True if an instruction may begin at `address`: decoding its function from the start reaches that address,
/// or meets bytes that are no instruction, such as a table, so that what follows is uncertain.
fn may_be_instruction(image: &Image<'_>, address: u64) -> bool {
    let Some(index) = image.function_at(address) else {
        return false;
    };
    let range = image.functions()[index].range.clone();
    let Some(bytes) = image.bytes(range.clone()) else {
        return true;
    };
    let mut decoder = Decoder::with_ip(64, bytes, range.start, DecoderOptions::NONE);
    let mut instruction = Instruction::default();
    let mut is_uncertain = false;
    while decoder.can_decode() && decoder.ip() < address {
        decoder.decode_out(&mut instruction);
        is_uncertain |= instruction.is_invalid();
    }
    is_uncertain || decoder.ip() == address
}

/// True if the agent must see the system call of this number. If the number is unknown, the agent decides
/// when the call is made.
pub(super) fn is_seen(number: Option<u32>, hooks: Hooks) -> bool {
    let timed = matches!(hooks, Hooks::Timed | Hooks::Waiting);
    number
        .is_none_or(|number| ALWAYS_INTERCEPTED.contains(&number) || timed && number == EXIT_GROUP)
}

/// True if the thread may yield instead of waiting in the system call of this number.
pub(super) fn may_wait(number: Option<u32>, hooks: Hooks) -> bool {
    hooks == Hooks::Waiting && number.is_some_and(|number| MAY_WAIT.contains(&number))
}

/// True if the thread may have unmapped its stack before it makes the system call of this number at `index`,
/// so that a trampoline has nowhere to save registers: musl's detached threads end so.
pub(super) fn may_lack_stack(
    function: &Function,
    index: usize,
    number: Option<u32>,
    analyst: &mut Analyst,
) -> bool {
    const EXIT: u32 = 60;
    const MUNMAP: u32 = 11;
    number == Some(EXIT)
        && (0..index).any(|earlier| {
            function.instructions[earlier].mnemonic() == Mnemonic::Syscall
                && self::number(function, earlier, analyst) == Some(MUNMAP)
        })
}

/// True if the system call can be restarted after a handler has interrupted it.
pub(super) fn is_made_again(number: u32) -> bool {
    RESTARTED.contains(&number)
}

/// The system call number of the `syscall` instruction at `index`, if all paths to it set the same one.
pub(super) fn number(function: &Function, index: usize, analyst: &mut Analyst) -> Option<u32> {
    let block = function
        .blocks
        .partition_point(|block| block.end as usize <= index);
    let block = u32::try_from(block).ok()?;
    before(
        function,
        BlockId(block),
        index,
        MAX_PREDECESSOR_BLOCKS,
        analyst,
    )
}

/// The value of eax before instruction `end` of a block, if it is known.
fn before(
    function: &Function,
    block: BlockId,
    end: usize,
    depth: usize,
    analyst: &mut Analyst,
) -> Option<u32> {
    let own_block = function.blocks.get(block.index())?;
    let mut low = None;
    for index in (own_block.first as usize..end).rev() {
        match setting(&function.instructions[index], analyst) {
            Setting::None => {}
            Setting::Low(value) => low = low.or(Some(value)),
            Setting::Whole(value) => return Some(with_low(value, low)),
            Setting::Unknown => return None,
        }
    }
    if depth == 0 || own_block.entered_from_outside {
        return None;
    }
    let mut found = None;
    for (number, other) in function.blocks.iter().enumerate() {
        let pad = other.landing_pad == Some(block);
        if !pad && !other.successors.contains(&block) {
            continue;
        }
        if pad || matches!(other.leaves_by, BlockEnd::Call { .. }) {
            return None;
        }
        let other_id = BlockId(u32::try_from(number).ok()?);
        let value = before(function, other_id, other.end as usize, depth - 1, analyst)?;
        if found.replace(value).is_some_and(|found| found != value) {
            return None;
        }
    }
    found.map(|value| with_low(value, low))
}

fn with_low(value: u32, low: Option<u8>) -> u32 {
    low.map_or(value, |low| value & !0xff | u32::from(low))
}

/// The effect of an instruction on eax.
enum Setting {
    None,
    Low(u8),
    Whole(u32),
    Unknown,
}

fn setting(instruction: &Instruction, analyst: &mut Analyst) -> Setting {
    let to = instruction.op0_register();
    let immediate = instruction.op_count() == 2
        && instruction.op0_kind() == OpKind::Register
        && instruction.op1_kind() != OpKind::Register
        && instruction.op1_kind() != OpKind::Memory;
    if instruction.mnemonic() == Mnemonic::Mov && immediate {
        match to {
            Register::AL => return Setting::Low(instruction.immediate(1) as u8),
            Register::EAX | Register::RAX => {
                return Setting::Whole(instruction.immediate(1) as u32);
            }
            _ => {}
        }
    }
    let clears = matches!(instruction.mnemonic(), Mnemonic::Xor | Mnemonic::Sub)
        && instruction.op_count() == 2
        && instruction.op1_kind() == OpKind::Register
        && to == instruction.op1_register();
    if clears && matches!(to, Register::EAX | Register::RAX) {
        return Setting::Whole(0);
    }
    let rax = RegisterSet::gpr(Gpr::RAX);
    if instruction.code() == Code::Syscall || analyst.effects(instruction).writes.contains(rax) {
        return Setting::Unknown;
    }
    Setting::None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(bytes: &[u8], expected: Option<u32>) {
        let function = Function::from_code(bytes, 0x1000);
        let index = function
            .instructions
            .iter()
            .position(|instruction| instruction.code() == Code::Syscall)
            .unwrap();
        assert_eq!(number(&function, index, &mut Analyst::new()), expected);
    }

    #[test]
    fn a_number_is_known_if_every_path_sets_it() {
        // mov eax,13; syscall
        check(&[0xb8, 13, 0, 0, 0, 0x0f, 0x05, 0xc3], Some(13));
        // xor eax,eax; mov al,56; syscall
        check(&[0x31, 0xc0, 0xb0, 56, 0x0f, 0x05, 0xc3], Some(56));
        // mov eax,[rdi]; syscall
        check(&[0x8b, 0x07, 0x0f, 0x05, 0xc3], None);
        // mov rax,rdi; syscall
        check(&[0x48, 0x89, 0xf8, 0x0f, 0x05, 0xc3], None);
        // mov eax,13; test edi,edi; jz L; nop; L: syscall
        check(
            &[
                0xb8, 13, 0, 0, 0, 0x85, 0xff, 0x74, 1, 0x90, 0x0f, 0x05, 0xc3,
            ],
            Some(13),
        );
        // mov eax,13; test edi,edi; jz L; mov eax,14; L: syscall
        check(
            &[
                0xb8, 13, 0, 0, 0, 0x85, 0xff, 0x74, 5, 0xb8, 14, 0, 0, 0, 0x0f, 0x05, 0xc3,
            ],
            None,
        );
    }

    #[test]
    fn a_thread_that_has_unmapped_its_stack_ends_without_a_trampoline() {
        let check = |first: u8, number: u32, expected: bool| {
            // mov eax,first; syscall; xor edi,edi; mov eax,60; syscall
            let code = [
                0xb8, first, 0, 0, 0, 0x0f, 0x05, 0x31, 0xff, 0xb8, 60, 0, 0, 0, 0x0f, 0x05,
            ];
            let function = Function::from_code(&code, 0x1000);
            let last = function.instructions.len() - 1;
            assert_eq!(
                may_lack_stack(&function, last, Some(number), &mut Analyst::new()),
                expected
            );
        };
        check(11, 60, true);
        check(28, 60, false);
        check(11, 13, false);
    }
}
