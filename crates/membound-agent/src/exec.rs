//! `execve` and `execveat`: the new image gets the agent too, although the program that starts it does not
//! have the agent in its environment.
//!
//! A child of `vfork` shares its parent's memory and never returns from a successful call, so no resource
//! may be taken that must be released: the new environment is on the stack, and only an unusually large one
//! in a mapping.

use membound_wire::{CONTROL_VARIABLE, PADDING_VARIABLE, Runtime};

use crate::masks::BlockedForExec;
use crate::memory;
use crate::saved_registers::SavedRegisters;
use crate::settings::{Settings, settings, value_of};
use crate::sys::{self, Descriptor, Scratch, call, number};
use crate::{memory_limits, trial};

const LD_PRELOAD: &[u8] = b"LD_PRELOAD=";
/// Pointers and bytes of the largest environment that is built on the stack. The stack may be small: musl
/// gives the children of `posix_spawn` 5 KiB, and the child has already used a part of it at its `execve`.
const POINTERS: usize = 160;
const STRING_BYTES: usize = 640;

/// Makes the call. `None`: the trampoline is to make it itself.
pub(crate) fn execute(frame: &SavedRegisters) -> Option<isize> {
    trial::before_exec();
    memory_limits::before_exec();
    let failed = with_agent(frame);
    if failed.is_some() {
        memory_limits::after_failed_exec();
    }
    failed
}

/// Makes the call with the agent in the new environment. Returns what [`execute`] does.
fn with_agent(frame: &SavedRegisters) -> Option<isize> {
    let settings = settings()?;
    let at = frame.rax as usize == number::EXECVEAT;
    let (directory, path, environment, flags) = if at {
        (frame.rdi, frame.rsi, frame.r10, frame.r8)
    } else {
        (AT_FDCWD, frame.rdi, frame.rdx, 0)
    };
    if !reachable(settings) {
        return None;
    }
    let file = sys::open_at(directory as usize, path as usize, flags as usize).ok();
    if file.as_ref().is_some_and(foreign) {
        return None;
    }
    let plan = Plan::new(environment as usize, settings, file.as_ref());
    if plan.pointers() <= POINTERS && plan.string_bytes() <= STRING_BYTES {
        on_stack(frame, &plan)
    } else {
        in_mapping(frame, &plan)
    }
}

const AT_FDCWD: u64 = (-100_i64).cast_unsigned();

/// True if the new image can load the agent. A loader that cannot open it, because it is out of reach or no
/// descriptor is left, would print an error to the program's standard error.
fn reachable(settings: &Settings) -> bool {
    settings
        .own_path
        .as_c_str()
        .is_some_and(|path| sys::open(path, sys::Open::Read).is_ok())
}

/// True if the file is an ELF file that cannot load this agent (other class or machine).
fn foreign(file: &Descriptor) -> bool {
    let mut head = [0_u8; 20];
    if sys::read_all_at(file, &mut head, 0).is_err() {
        return false;
    }
    const CLASS_64: u8 = 2;
    const X86_64: u8 = 62;
    head.starts_with(b"\x7fELF") && (head[4] != CLASS_64 || head[18] != X86_64)
}

/// The parts of the new environment.
struct Plan<'a> {
    environment: usize,
    count: usize,
    /// Slot and value of the program's own `LD_PRELOAD`: of several the last one, which loaders use.
    preload: Option<(usize, &'a [u8])>,
    /// A runtime library that must precede the agent.
    runtime: Option<Runtime>,
    settings: &'static Settings,
}

impl Plan<'_> {
    fn new(environment: usize, settings: &'static Settings, file: Option<&Descriptor>) -> Self {
        let mut plan = Self {
            environment,
            count: 0,
            preload: None,
            runtime: None,
            settings,
        };
        if environment != 0 {
            plan.read();
        }
        plan.runtime = Runtime::of(plan.users(), |offset, room| {
            sys::read_all_at(file?, room, offset).ok()
        });
        plan
    }

    /// Counts the variables, and finds the one that the agent is added to.
    fn read(&mut self) {
        loop {
            let pointer = self.pointer(self.count);
            if pointer == 0 {
                return;
            }
            // SAFETY: the program passes C strings, as the kernel wants them.
            let text: &[u8] = unsafe { memory::c_string(pointer) };
            if let Some(value) = text.strip_prefix(LD_PRELOAD) {
                self.preload = Some((self.count, value));
            }
            self.count += 1;
        }
    }

    /// The value of the program's own `LD_PRELOAD`.
    fn users(&self) -> Option<&[u8]> {
        self.preload.map(|(_, value)| value)
    }

    /// The runtime that must precede the agent, and the separator.
    fn before(&self) -> [&[u8]; 2] {
        match &self.runtime {
            Some(runtime) => [runtime.name(), b":"],
            None => [b"", b""],
        }
    }

    fn pointer(&self, slot: usize) -> usize {
        // SAFETY: slots up to the null pointer belong to the program's array.
        unsafe { memory::get(self.environment + slot * 8) }
    }

    /// Upper limit of the pointers: the program's, one LD_PRELOAD, the control and padding variables, the
    /// null pointer.
    fn pointers(&self) -> usize {
        self.count + 4
    }

    /// Upper limit of the bytes of new strings.
    fn string_bytes(&self) -> usize {
        let users = self.users().map_or(0, <[u8]>::len);
        let before = self.before().map(<[u8]>::len);
        LD_PRELOAD.len()
            + before[0]
            + before[1]
            + self.settings.own_path.as_bytes().len()
            + 1
            + users
            + 1
    }

    /// Writes the strings at `strings` and the array of pointers at `array`.
    ///
    /// # Safety
    ///
    /// There must be room for [`Plan::pointers`] and [`Plan::string_bytes`].
    unsafe fn write(&self, array: usize, strings: usize) {
        let users = self.users();
        let [before, colon] = self.before();
        // The separator distinguishes an empty value of the program from none.
        let separator: &[u8] = if users.is_some() { b":" } else { b"" };
        let mut at = strings;
        let parts = [
            LD_PRELOAD,
            before,
            colon,
            self.settings.own_path.as_bytes(),
            separator,
            users.unwrap_or_default(),
            b"\0",
        ];
        for part in parts {
            for &byte in part {
                // SAFETY: the caller made room for all parts.
                unsafe { memory::put(at, byte) };
                at += 1;
            }
        }
        let mut next = array;
        let mut put = |pointer: usize| {
            // SAFETY: the caller made room for all pointers.
            unsafe { memory::put(next, pointer) };
            next += 8;
        };
        for slot in 0..self.count {
            let pointer = self.pointer(slot);
            // SAFETY: as when they were counted.
            let text: &[u8] = unsafe { memory::c_string(pointer) };
            let merged = self.preload.is_some_and(|(own, _)| own == slot);
            let stale = value_of(text, CONTROL_VARIABLE).is_some()
                || value_of(text, PADDING_VARIABLE).is_some();
            if merged {
                put(strings);
            } else if !stale {
                put(pointer);
            }
        }
        put(self.settings.control.address());
        put(if users.is_some() {
            // The new image removes an even number of variables (see `start`).
            PADDING.as_ptr() as usize
        } else {
            strings
        });
        put(0);
    }
}

/// The padding variable, empty.
static PADDING: [u8; PADDING_VARIABLE.len() + 2] = padding();

const fn padding() -> [u8; PADDING_VARIABLE.len() + 2] {
    let name = PADDING_VARIABLE.as_bytes();
    let mut text = [0; PADDING_VARIABLE.len() + 2];
    let mut at = 0;
    while at < name.len() {
        text[at] = name[at];
        at += 1;
    }
    text[at] = b'=';
    text
}

/// Makes the call with another environment.
fn with_environment(frame: &SavedRegisters, environment: usize) -> isize {
    let mut arguments = frame.call_arguments();
    if frame.rax as usize == number::EXECVEAT {
        arguments[3] = environment;
    } else {
        arguments[2] = environment;
    }
    // The signal mask outlives the program image.
    let _blocked = BlockedForExec::new();
    // SAFETY: the program asked for this call; the environment is a copy of its own.
    unsafe { call(frame.rax as usize, arguments) }
}

#[inline(never)]
fn on_stack(frame: &SavedRegisters, plan: &Plan<'_>) -> Option<isize> {
    let mut array = [0_usize; POINTERS];
    let mut strings = [0_u8; STRING_BYTES];
    let array = array.as_mut_ptr() as usize;
    // SAFETY: the caller compared both needs with this room.
    unsafe { plan.write(array, strings.as_mut_ptr() as usize) };
    Some(with_environment(frame, array))
}

fn in_mapping(frame: &SavedRegisters, plan: &Plan<'_>) -> Option<isize> {
    let pointers = plan.pointers() * 8;
    let room = Scratch::new(pointers + plan.string_bytes()).ok()?;
    // SAFETY: the mapping was made this large.
    unsafe { plan.write(room.address(), room.address() + pointers) };
    Some(with_environment(frame, room.address()))
}
