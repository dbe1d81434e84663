//! Compact unwind tables: how to find the caller's frame from a frame, for every instruction of a module.
//!
//! A table is an [`UnwindHeader`], then `count` start addresses (`u32`, ascending, relative to the module's
//! first page), then `count` [`UnwindRule`]s. A rule is valid from its start up to the next one's; the last
//! one stops the unwinding. Frames that the few forms of a rule cannot describe stop it too: a chain that
//! ends early is short, but one that goes on by guessing is wrong.

/// Head of a table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct UnwindHeader {
    /// Number of rows.
    pub count: u32,
    /// Reserved, 0.
    pub reserved: u32,
}

/// How to compute the canonical frame address (the caller's stack pointer behind the call).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum UnwindKind {
    /// It is unknown, or there is no caller.
    Stop = 0,
    /// `rsp + offset`.
    Stack = 1,
    /// `rbp + offset`.
    Frame = 2,
    /// The word at `rbp + offset`: for functions that align their stack.
    Kept = 3,
    /// The kernel's return from a signal handler: the interrupted registers are at `rsp`.
    Signal = 4,
}

/// Where the caller's rbp is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallersFrame {
    /// In rbp.
    Same,
    /// This many bytes below the canonical frame address.
    Below(u32),
    /// In the word that rbp points to.
    AtFrame,
}

/// One row's rule. The return address is always in the word below the canonical frame
/// address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct UnwindRule(pub u32);

const KIND_BITS: u32 = 3;
const SLOT_BITS: u32 = 9;
const OFFSET_SHIFT: u32 = KIND_BITS + SLOT_BITS;
const SLOT_MASK: u32 = (1 << SLOT_BITS) - 1;

impl UnwindRule {
    /// There is no caller, or no known one.
    pub const STOP: Self = Self(UnwindKind::Stop as u32);
    /// See [`UnwindKind::Signal`].
    pub const SIGNAL: Self = Self(UnwindKind::Signal as u32);

    /// The rule with these parts; [`Self::STOP`] if they do not fit. `offset` is in bytes.
    #[must_use]
    pub const fn new(kind: UnwindKind, offset: i64, frame: CallersFrame) -> Self {
        const LIMIT: i64 = 8 << (31 - OFFSET_SHIFT);
        let slot = match frame {
            CallersFrame::Same => 0,
            CallersFrame::Below(bytes) if bytes > 0 && bytes % 8 == 0 && bytes / 8 < SLOT_MASK => {
                bytes / 8
            }
            CallersFrame::Below(_) => return Self::STOP,
            CallersFrame::AtFrame => SLOT_MASK,
        };
        if offset % 8 != 0 || offset < -LIMIT || offset >= LIMIT {
            return Self::STOP;
        }
        let offset = (offset / 8) as i32 as u32;
        Self(kind as u32 | slot << KIND_BITS | offset << OFFSET_SHIFT)
    }

    /// An [`UnwindKind`] as its number.
    #[must_use]
    pub const fn kind(self) -> u32 {
        self.0 & ((1 << KIND_BITS) - 1)
    }

    /// Offset in bytes: the value to add to `rsp` or `rbp`.
    #[must_use]
    pub const fn offset(self) -> i64 {
        (self.0.cast_signed() >> OFFSET_SHIFT) as i64 * 8
    }

    /// Where the caller's rbp is stored.
    #[must_use]
    pub const fn frame(self) -> CallersFrame {
        match self.0 >> KIND_BITS & SLOT_MASK {
            0 => CallersFrame::Same,
            SLOT_MASK => CallersFrame::AtFrame,
            slot => CallersFrame::Below(slot * 8),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_gives_back_what_was_put_in() {
        for kind in [UnwindKind::Stack, UnwindKind::Frame, UnwindKind::Kept] {
            for offset in [-4_194_304, -16, -8, 0, 8, 176, 65_544, 4_194_296] {
                for frame in [
                    CallersFrame::Same,
                    CallersFrame::Below(16),
                    CallersFrame::Below(4080),
                    CallersFrame::AtFrame,
                ] {
                    let rule = UnwindRule::new(kind, offset, frame);
                    assert_eq!(rule.kind(), kind as u32);
                    assert_eq!((rule.offset(), rule.frame()), (offset, frame));
                }
            }
        }
    }

    #[test]
    fn what_has_no_room_stops() {
        let stops = |offset, frame| {
            assert_eq!(
                UnwindRule::new(UnwindKind::Stack, offset, frame),
                UnwindRule::STOP
            );
        };
        stops(12, CallersFrame::Same);
        stops(4_194_304, CallersFrame::Same);
        stops(-4_194_312, CallersFrame::Same);
        stops(16, CallersFrame::Below(4088));
        stops(16, CallersFrame::Below(12));
        stops(16, CallersFrame::Below(0));
    }
}
