//! The used part of `struct perf_event_attr` of perf_event_open(2).

use super::registers::RegisterSet;

/// Bytes of [`Attr`], from which the kernel knows which fields exist.
const SIZE: u32 = size_of::<Attr>() as u32;

const TYPE_SOFTWARE: u32 = 1;
const TYPE_BREAKPOINT: u32 = 5;
const COUNT_SW_CPU_CLOCK: u64 = 0;
const COUNT_SW_DUMMY: u64 = 9;

pub(crate) const SAMPLE_IP: u64 = 1 << 0;
pub(crate) const SAMPLE_TID: u64 = 1 << 1;
pub(crate) const SAMPLE_TIME: u64 = 1 << 2;
pub(crate) const SAMPLE_ADDR: u64 = 1 << 3;
pub(crate) const SAMPLE_CPU: u64 = 1 << 7;
pub(crate) const SAMPLE_PERIOD: u64 = 1 << 8;
pub(crate) const SAMPLE_REGS_USER: u64 = 1 << 12;
pub(crate) const SAMPLE_STACK_USER: u64 = 1 << 13;

const DISABLED: u64 = 1 << 0;
const INHERIT: u64 = 1 << 1;
const EXCLUDE_KERNEL: u64 = 1 << 5;
const EXCLUDE_HV: u64 = 1 << 6;
const EXCLUDE_IDLE: u64 = 1 << 7;
const MMAP: u64 = 1 << 8;
const COMM: u64 = 1 << 9;
const INHERIT_STAT: u64 = 1 << 11;
const ENABLE_ON_EXEC: u64 = 1 << 12;
const TASK: u64 = 1 << 13;
const WATERMARK: u64 = 1 << 14;
const SAMPLE_ID_ALL: u64 = 1 << 18;
const MMAP2: u64 = 1 << 23;
const COMM_EXEC: u64 = 1 << 24;
const USE_CLOCKID: u64 = 1 << 25;
const BUILD_ID: u64 = 1 << 34;

/// Breakpoint on reads and writes.
const BREAKPOINT_RW: u32 = 3;

/// Bytes of stack copied with a hit: enough to unwind out of a trampoline.
const WATCHED_STACK_BYTES: u32 = 512;

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Attr {
    kind: u32,
    size: u32,
    config: u64,
    pub(crate) sample_period: u64,
    pub(crate) sample_type: u64,
    read_format: u64,
    flags: u64,
    /// With `WATERMARK`: bytes in the ring after which a reader is woken.
    wakeup: u32,
    bp_type: u32,
    bp_addr: u64,
    bp_len: u64,
    branch_sample_type: u64,
    sample_regs_user: u64,
    sample_stack_user: u32,
    clockid: i32,
    sample_regs_intr: u64,
    aux_watermark: u32,
    sample_max_stack: u16,
    reserved: u16,
}

/// The bytes that a breakpoint event watches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Breakpoint {
    pub(crate) address: u64,
    pub(crate) bytes: u64,
}

impl Attr {
    /// Events of a thread and all threads it starts: names, ends, mappings, CPU time, and rare samples.
    pub(crate) fn news(config: &super::Config) -> Self {
        let clock = Self::clock(config);
        Self {
            sample_period: config.rare_period_ns(),
            flags: clock.flags | INHERIT_STAT | MMAP | MMAP2 | BUILD_ID | COMM | COMM_EXEC | TASK,
            ..clock
        }
    }

    /// Samples of the CPU clock of a thread and all threads it starts.
    pub(crate) fn clock(config: &super::Config) -> Self {
        Self {
            kind: TYPE_SOFTWARE,
            size: SIZE,
            config: COUNT_SW_CPU_CLOCK,
            sample_period: config.period_ns.max(1),
            sample_type: SAMPLE_IP
                | SAMPLE_TID
                | SAMPLE_TIME
                | SAMPLE_CPU
                | SAMPLE_PERIOD
                | SAMPLE_REGS_USER
                | SAMPLE_STACK_USER,
            flags: INHERIT | EXCLUDE_HV | WATERMARK | SAMPLE_ID_ALL | USE_CLOCKID,
            // The kernel then wakes the reader at half of the ring. A number would have to follow the ring, which is
            // smaller than configured where little memory may be locked.
            wakeup: 0,
            sample_regs_user: RegisterSet::native_or_any().mask,
            sample_stack_user: config.stack_bytes,
            clockid: libc::CLOCK_MONOTONIC_RAW,
            ..Self::default()
        }
    }

    /// The samples of [`Self::clock`], but of whatever runs on a CPU. Begins disabled.
    pub(crate) const fn on_cpu(mut self, period_ns: u64) -> Self {
        self.sample_period = period_ns;
        self.flags &= !(INHERIT | ENABLE_ON_EXEC);
        self.flags |= DISABLED | EXCLUDE_IDLE;
        self
    }

    /// Counts an event of a PMU that a whole package shares.
    pub(crate) fn counter(kind: u32, config: u64) -> Self {
        Self {
            kind,
            size: SIZE,
            config,
            ..Self::default()
        }
    }

    /// An event without records, whose ring other events write into.
    pub(crate) fn nothing() -> Self {
        Self {
            kind: TYPE_SOFTWARE,
            size: SIZE,
            config: COUNT_SW_DUMMY,
            flags: DISABLED | EXCLUDE_KERNEL | EXCLUDE_HV | USE_CLOCKID,
            clockid: libc::CLOCK_MONOTONIC_RAW,
            ..Self::default()
        }
    }

    /// Reads and writes of `point` by one thread. Begins disabled.
    pub(crate) fn breakpoint(point: Breakpoint) -> Self {
        Self {
            kind: TYPE_BREAKPOINT,
            size: SIZE,
            sample_period: 1,
            sample_type: SAMPLE_IP
                | SAMPLE_TID
                | SAMPLE_TIME
                | SAMPLE_ADDR
                | SAMPLE_CPU
                | SAMPLE_REGS_USER
                | SAMPLE_STACK_USER,
            sample_regs_user: RegisterSet::native_or_any().mask,
            sample_stack_user: WATCHED_STACK_BYTES,
            flags: DISABLED | EXCLUDE_KERNEL | EXCLUDE_HV | SAMPLE_ID_ALL | USE_CLOCKID,
            bp_type: BREAKPOINT_RW,
            bp_addr: point.address,
            bp_len: point.bytes,
            clockid: libc::CLOCK_MONOTONIC_RAW,
            ..Self::default()
        }
    }

    /// Without events and time in the kernel.
    pub(crate) const fn without_kernel(mut self) -> Self {
        self.flags |= EXCLUDE_KERNEL;
        self
    }

    /// Without the files' build-ids, which older kernels do not support.
    pub(crate) const fn without_build_ids(mut self) -> Self {
        self.flags &= !BUILD_ID;
        self
    }

    /// Disabled until the thread, or a thread that inherited the event, executes a program.
    pub(crate) const fn after_exec(mut self) -> Self {
        self.flags |= DISABLED | ENABLE_ON_EXEC;
        self
    }

    /// For testing whether the event is permitted: of one thread, and disabled.
    pub(crate) const fn probe(mut self) -> Self {
        self.flags &= !(INHERIT | INHERIT_STAT);
        self.flags |= DISABLED;
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_lie_where_the_kernel_has_them() {
        // PERF_ATTR_SIZE_VER5, whose last field is sample_max_stack.
        assert_eq!(size_of::<Attr>(), 112);
        assert_eq!(std::mem::offset_of!(Attr, flags), 40);
        assert_eq!(std::mem::offset_of!(Attr, bp_addr), 56);
        assert_eq!(std::mem::offset_of!(Attr, sample_regs_user), 80);
        assert_eq!(std::mem::offset_of!(Attr, clockid), 92);
    }
}
