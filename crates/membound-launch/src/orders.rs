//! Orders to an agent, in the form in which they are sent.

use std::ops::Range;
use std::os::fd::BorrowedFd;

use membound_wire::{Action, Command, Protection};

use crate::standing::Trampolines;

/// A command, with a name for error messages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Order {
    pub(crate) what: &'static str,
    pub(crate) command: Command,
}

/// A piece of memory to be mapped at a free address range.
#[derive(Clone, Debug)]
pub(crate) struct Part<'a> {
    pub(crate) at: Range<u64>,
    pub(crate) memory: BorrowedFd<'a>,
    pub(crate) offset: u64,
    pub(crate) protection: u32,
}

/// What the program does after the loader has mapped objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NewModules {
    /// It waits until they are patched.
    HoldProgram = 0,
    /// It goes on, and the control thread reports them.
    Later = 1,
}

impl<'a> Part<'a> {
    /// Maps all of `memory`, up to the length of `at`, readable and writable for the program and this
    /// process.
    pub(crate) fn shared(at: &Range<u64>, memory: BorrowedFd<'a>) -> Self {
        Self {
            at: at.clone(),
            memory,
            offset: 0,
            protection: Protection::READ_WRITE | Protection::SHARED,
        }
    }

    /// The order to map it.
    pub(crate) fn order(&self) -> Order {
        Order {
            what: match self.protection & !Protection::FILLED {
                Protection::READ_EXECUTE => "mapping code",
                Protection::READ => "mapping tables",
                _ => "mapping data",
            },
            command: Command {
                action: Action::Map as u32,
                mode: self.protection,
                address: self.at.start,
                length: self.at.end - self.at.start,
                offset: self.offset,
                ..Command::default()
            },
        }
    }
}

impl Order {
    const fn at(what: &'static str, action: Action, address: u64) -> Self {
        Self {
            what,
            command: Command {
                action: action as u32,
                mode: 0,
                address,
                length: 0,
                offset: 0,
                count: 0,
                extra: 0,
                base: 0,
            },
        }
    }

    /// Registers trampolines whose tables are at `tables`.
    pub(crate) const fn registration(trampolines: &Trampolines, tables: u64) -> Self {
        let code = &trampolines.code;
        let mut order = Self::at("registering tables", Action::Register, code.start);
        order.command.length = code.end - code.start;
        order.command.extra = tables;
        order.command.base = trampolines.base;
        order
    }

    /// Makes the program record into the rings at `address`.
    pub(crate) const fn rings(address: u64) -> Self {
        Self::at("registering rings", Action::Rings, address)
    }

    /// Makes the program report allocations in the memory at `address`.
    pub(crate) const fn allocations(address: u64) -> Self {
        let what = "registering memory for allocations";
        Self::at(what, Action::Allocations, address)
    }

    /// Makes the program sample its threads every `period_ns` of their CPU time into the rings at
    /// `address`.
    pub(crate) const fn timers(address: u64, period_ns: u64) -> Self {
        let mut order = Self::at("making timers", Action::Timers, address);
        order.command.count = period_ns;
        order
    }

    /// Starts the control thread with its doorbell at `doorbell`.
    pub(crate) const fn listen(doorbell: u64, modules: NewModules) -> Self {
        let mut order = Self::at("starting the control thread", Action::Listen, doorbell);
        order.command.mode = modules as u32;
        order
    }
}
