//! Orders to one agent, each with its answer.

use std::cell::OnceCell;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use membound_platform::stat;
use membound_wire::{
    Action, CHAINED, Command, GIVEN_UP, Hello, HelloFlags, Refusal, Reply, TextEdit, TextMode,
};
use rustix::io::Errno;

use crate::channel::Channel;
use crate::codec;
use crate::maps;
use crate::memfd;
use crate::orders::{Order, Part};
use crate::process_key::ProcessKey;
use crate::standing::{Spaces, Trampolines};
use crate::stops::StopLog;

/// Why an order was not carried out.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// The program has ended, or its agent gave up.
    #[error("the conversation broke off: {0}")]
    Gone(#[from] io::Error),
    /// The agent could not carry it out.
    #[error("{what}: {errno}{}", because(*refusal))]
    Refused {
        what: &'static str,
        errno: Errno,
        /// The agent's reason.
        refusal: Refusal,
    },
}

impl Failure {
    /// True if an address turned out to be occupied.
    pub(crate) const fn occupied(&self) -> bool {
        matches!(
            self,
            Self::Refused {
                errno: Errno::EXIST,
                ..
            }
        )
    }

    /// The failure of a change with edits that were left out because threads could not be shown to be
    /// elsewhere.
    pub(crate) const fn left_out() -> Self {
        Self::Refused {
            what: "replacing text",
            errno: Errno::BUSY,
            refusal: Refusal::ThreadUnknown,
        }
    }

    /// True if it may be possible a moment later.
    pub(crate) const fn passing(&self) -> bool {
        matches!(
            self,
            Self::Refused {
                refusal: Refusal::Occupied | Refusal::ThreadUnknown | Refusal::TrapBlocked,
                ..
            }
        )
    }
}

/// Text that explains the error number.
fn because(refusal: Refusal) -> &'static str {
    match refusal {
        Refusal::None => "",
        Refusal::Malformed => " (the order was not understood)",
        Refusal::NoDescriptor => " (no descriptor came along)",
        Refusal::Elsewhere => " (the kernel put it elsewhere)",
        Refusal::MemoryClosed => " (/proc/self/mem cannot be opened)",
        Refusal::MemoryRefused => " (/proc/self/mem cannot be read or written there)",
        Refusal::AreasFull => " (no more trampolines can be registered)",
        Refusal::Traced => " (a debugger is attached)",
        Refusal::NoBarrier => " (the kernel offers no membarrier for instructions)",
        Refusal::Occupied => " (text is being changed already)",
        Refusal::ThreadUnknown => " (a thread could not be shown to be elsewhere)",
        Refusal::ThreadsHidden => " (/proc/self/task cannot be read)",
        Refusal::NoThread => " (no thread could be started)",
        Refusal::TrapBlocked => " (a thread blocks SIGTRAP)",
        Refusal::NoBases => " (the kernel keeps FSGSBASE to itself)",
    }
}

/// Times that a change of running text is tried; the agent itself retries for seconds in each.
const ATTEMPTS: u32 = 3;
/// Pause between two of them: threads block signals for short times while they start others.
const PAUSE: Duration = Duration::from_millis(1);

/// Most orders that are sent together.
const AT_ONCE: usize = 16;

/// A conversation in progress.
#[derive(Debug)]
pub(crate) struct Conversation {
    channel: Channel,
    /// Number of the process in this side's namespace.
    pub(crate) pid: u32,
    /// The agent's first message.
    pub(crate) hello: Hello,
    /// The program.
    pub(crate) key: ProcessKey,
    /// Records which trampolines each process has.
    spaces: Arc<Spaces>,
    /// Records how long changes of text stopped threads.
    stops: Arc<StopLog>,
    heap_start: OnceCell<u64>,
}

impl Conversation {
    /// Receives the agent's first message; `None` if its version differs, or if the other side is no program
    /// of this session. An error if the process has ended.
    pub(crate) fn begin(
        channel: Channel,
        spaces: Arc<Spaces>,
        stops: Arc<StopLog>,
    ) -> io::Result<Option<Self>> {
        // Before the greeting: a stranger may never send one.
        let Some(pid) = channel.peer()? else {
            return Ok(None);
        };
        let Some(hello) = channel.greeting()? else {
            return Ok(None);
        };
        Ok(Some(Self {
            channel,
            pid,
            hello,
            key: ProcessKey {
                pid,
                started: stat::started(pid)?,
            },
            spaces,
            stops,
            heap_start: OnceCell::new(),
        }))
    }

    /// Start of the heap that `brk` moves; 0 if it cannot be read.
    pub(crate) fn heap_start(&self) -> u64 {
        *self.heap_start.get_or_init(|| maps::heap_start(self.pid))
    }

    /// The agent's own mapping.
    pub(crate) const fn agent(&self) -> Range<u64> {
        self.hello.agent[0]..self.hello.agent[1]
    }

    /// True if other threads run beside the one that talks.
    pub(crate) const fn threaded(&self) -> bool {
        self.hello.flags & HelloFlags::THREADS != 0
    }

    /// True if the loader has mapped or unmapped objects since the control thread, which talks, last did.
    pub(crate) const fn modules_changed(&self) -> bool {
        self.hello.flags & HelloFlags::MODULES != 0
    }

    fn ask(
        &self,
        what: &'static str,
        command: &Command,
        descriptor: Option<BorrowedFd<'_>>,
    ) -> Result<Reply, Failure> {
        answer(what, self.channel.ask(command, descriptor)?)
    }

    /// Maps `part` at its address, which must be free.
    pub(crate) fn map(&self, part: &Part<'_>) -> Result<(), Failure> {
        let order = part.order();
        self.ask(order.what, &order.command, Some(part.memory))
            .map(drop)
    }

    /// Sends all of these orders before it waits for an answer. The agent carries an order out only if it
    /// carried out the one before.
    fn ask_in_turn(&self, orders: &[(Order, Option<BorrowedFd<'_>>)]) -> io::Result<Vec<Reply>> {
        let commands: Vec<_> = orders
            .iter()
            .enumerate()
            .map(|(at, (order, descriptor))| {
                let mut command = order.command;
                command.action |= match at {
                    0 => 0,
                    _ => CHAINED,
                };
                (command, *descriptor)
            })
            .collect();
        self.channel.ask_all(&commands)
    }

    /// Maps `part` at its address, which must be free, and then gives an order that needs it.
    pub(crate) fn map_and(&self, part: &Part<'_>, order: Order) -> Result<(), Failure> {
        let orders = [(part.order(), Some(part.memory)), (order, None)];
        let replies = self.ask_in_turn(&orders)?;
        for ((order, _), reply) in orders.into_iter().zip(replies) {
            answer(order.what, reply)?;
        }
        Ok(())
    }

    /// Maps each of these parts, as far as possible; returns the result for each.
    pub(crate) fn map_each(&self, parts: &[Part<'_>]) -> Result<Vec<Result<(), Failure>>, Failure> {
        let mut done = Vec::with_capacity(parts.len());
        for parts in parts.chunks(AT_ONCE) {
            let orders: Vec<Order> = parts.iter().map(Part::order).collect();
            let commands: Vec<_> = orders
                .iter()
                .zip(parts)
                .map(|(order, part)| (order.command, Some(part.memory)))
                .collect();
            let replies = self.channel.ask_all(&commands)?;
            let answers = orders.iter().zip(replies);
            done.extend(answers.map(|(order, reply)| answer(order.what, reply).map(drop)));
        }
        Ok(done)
    }

    /// Maps the parts of an area, and then registers its trampolines, whose tables are at `tables`. If any
    /// of that fails, nothing of it is left.
    pub(crate) fn map_area(
        &self,
        parts: &[Part<'_>],
        trampolines: &Arc<Trampolines>,
        tables: u64,
    ) -> Result<(), Failure> {
        let mut orders: Vec<_> = parts
            .iter()
            .map(|part| (part.order(), Some(part.memory)))
            .collect();
        orders.push((Order::registration(trampolines, tables), None));
        let replies = self.ask_in_turn(&orders)?;
        let mut mapped = Vec::new();
        let mut done = Ok(());
        let mut parts = parts.iter();
        for ((order, _), reply) in orders.iter().zip(replies) {
            let part = parts.next();
            match answer(order.what, reply) {
                Ok(_) => mapped.extend(part),
                // Later orders were skipped because of this one; their errors say less.
                Err(failure) => done = done.and(Err(failure)),
            }
        }
        match &done {
            Ok(()) => self.spaces.add(self.pid, trampolines),
            Err(Failure::Gone(_)) => {}
            Err(Failure::Refused { .. }) => {
                for part in mapped {
                    self.unmap(&part.at)?;
                }
            }
        }
        done
    }

    pub(crate) fn unmap(&self, range: &Range<u64>) -> Result<(), Failure> {
        let command = Command {
            action: Action::Unmap as u32,
            address: range.start,
            length: range.end - range.start,
            ..Command::default()
        };
        self.ask("unmapping", &command, None).map(drop)
    }

    /// Replaces text; returns which edits were left out.
    pub(crate) fn text(&self, edits: &[TextEdit], mode: TextMode) -> Result<LeftOut, Failure> {
        if edits.is_empty() {
            return Ok(LeftOut::default());
        }
        let mut bytes = Vec::with_capacity(edits.len() * (codec::EDIT_BYTES + 4));
        for edit in edits {
            codec::push_edit(&mut bytes, edit);
        }
        let refused_at = bytes.len() as u64;
        bytes.resize(bytes.len() + edits.len() * 4, 0);
        let memory = memfd::with("membound-edits", &bytes)?;
        let command = Command {
            action: Action::Text as u32,
            mode: mode as u32,
            count: edits.len() as u64,
            extra: refused_at,
            ..Command::default()
        };
        let mut attempt = 0;
        let reply = loop {
            let reply = self.channel.ask(&command, Some(memory.as_fd()))?;
            if mode == TextMode::Live {
                self.stops.note(reply.stop_ns, reply.changing_ns);
            }
            match answer("replacing text", reply) {
                Err(failure) if failure.passing() && attempt < ATTEMPTS => attempt += 1,
                answer => break answer?,
            }
            std::thread::sleep(PAUSE);
        };
        let left_out = (edits.len() as u64)
            .checked_sub(reply.count)
            .and_then(|left_out| usize::try_from(left_out).ok())
            .ok_or(io::ErrorKind::InvalidData)
            .map_err(io::Error::from)?;
        let mut indices = vec![0; left_out * 4];
        memfd::read(&memory, refused_at, &mut indices)?;
        let (indices, _) = indices.as_chunks::<4>();
        let marked = indices.iter().copied().map(u32::from_ne_bytes);
        let mut left_out = LeftOut::default();
        for marked in marked {
            let index = marked & !GIVEN_UP;
            if index as usize >= edits.len() {
                return Err(io::Error::from(io::ErrorKind::InvalidData).into());
            }
            match marked == index {
                true => left_out.differing.push(index),
                false => left_out.given_up.push(index),
            }
        }
        Ok(left_out)
    }

    /// Makes the agent remove the trampolines whose code begins at `code`.
    pub(crate) fn forget(&self, code: u64) -> Result<(), Failure> {
        self.ask("forgetting tables", &forgetting(code), None)?;
        self.spaces.remove(self.pid, code);
        Ok(())
    }

    /// Registers an unwind table, at an address, for each of these texts; returns for each whether the
    /// agent uses it.
    pub(crate) fn unwind(&self, texts: &[(&Range<u64>, u64)]) -> Result<Vec<bool>, Failure> {
        let mut known = Vec::with_capacity(texts.len());
        for texts in texts.chunks(AT_ONCE) {
            let commands: Vec<_> = texts
                .iter()
                .map(|(text, table)| {
                    let command = Command {
                        action: Action::Unwind as u32,
                        address: text.start,
                        length: text.end - text.start,
                        extra: *table,
                        base: text.start,
                        ..Command::default()
                    };
                    (command, None)
                })
                .collect();
            let what = "registering unwind tables";
            for reply in self.channel.ask_all(&commands)? {
                known.push(match answer(what, reply) {
                    Ok(_) => true,
                    Err(gone @ Failure::Gone(_)) => return Err(gone),
                    Err(Failure::Refused { .. }) => false,
                });
            }
        }
        Ok(known)
    }

    /// Makes the agent remove the unwind tables of texts that overlap `range`.
    pub(crate) fn forget_unwind(&self, range: &Range<u64>) -> Result<(), Failure> {
        let command = Command {
            action: Action::ForgetUnwind as u32,
            address: range.start,
            length: range.end - range.start,
            ..Command::default()
        };
        self.ask("forgetting unwind tables", &command, None)
            .map(drop)
    }

    pub(crate) fn adopt_signals(&self) -> Result<(), Failure> {
        let command = Command {
            action: Action::AdoptSignals as u32,
            ..Command::default()
        };
        self.ask("adopting signal handlers", &command, None)
            .map(drop)
    }

    /// Makes the trial at `address`; returns the number of spans measured.
    pub(crate) fn hold(&self, address: u64) -> Result<u64, Failure> {
        let command = Command {
            action: Action::Hold as u32,
            address,
            ..Command::default()
        };
        let reply = self.ask("holding threads", &command, None)?;
        Ok(reply.count)
    }

    /// Gives the program run queues, with the control page at `address`.
    pub(crate) fn run_queues(&self, address: u64, length: u64) -> Result<(), Failure> {
        let command = Command {
            action: Action::RunQueues as u32,
            address,
            length,
            ..Command::default()
        };
        self.ask("making lanes", &command, None).map(drop)
    }

    /// Makes the program count requests in the memory at `address`.
    pub(crate) fn requests(&self, address: u64, length: u64) -> Result<(), Failure> {
        let command = Command {
            action: Action::Requests as u32,
            address,
            length,
            ..Command::default()
        };
        self.ask("counting requests", &command, None).map(drop)
    }

    /// Starts the scavenger whose request is at `address`.
    pub(crate) fn scavenger(&self, address: u64, length: u64) -> Result<(), Failure> {
        let command = Command {
            action: Action::Scavenger as u32,
            address,
            length,
            ..Command::default()
        };
        self.ask("starting a guest", &command, None).map(drop)
    }

    /// Lets the program go on.
    pub(crate) fn go(self) {
        let command = Command {
            action: Action::Go as u32,
            ..Command::default()
        };
        // If the program has ended, there is no agent to receive it.
        let _ = self.channel.send(&command, None);
    }
}

/// Indices of edits that were not made.
#[derive(Clone, Debug, Default)]
pub(crate) struct LeftOut {
    /// The text was not as planned, or that of edits that they lead through was not.
    pub(crate) differing: Vec<u32>,
    /// They may be possible a moment later.
    pub(crate) given_up: Vec<u32>,
}

impl LeftOut {
    /// True if a retry cannot succeed.
    pub(crate) const fn is_final(&self) -> bool {
        self.given_up.is_empty()
    }

    pub(crate) fn indices(&self) -> impl Iterator<Item = u32> {
        self.differing.iter().chain(&self.given_up).copied()
    }
}

fn answer(what: &'static str, reply: Reply) -> Result<Reply, Failure> {
    match i32::try_from(reply.errno) {
        Ok(0) => Ok(reply),
        Ok(errno) => Err(Failure::Refused {
            what,
            errno: Errno::from_raw_os_error(errno),
            refusal: Refusal::from_number(reply.detail).unwrap_or(Refusal::None),
        }),
        Err(_) => Err(io::Error::from(io::ErrorKind::InvalidData).into()),
    }
}

fn forgetting(code: u64) -> Command {
    Command {
        action: Action::Forget as u32,
        address: code,
        ..Command::default()
    }
}
