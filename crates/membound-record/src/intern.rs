//! Frames and call chains, each kept once.

use std::hash::Hash;

use membound_run::{Frame, FrameId, Stack, StackId};
use rustc_hash::FxHashMap;

/// Entries of the table of call chains at most: of later chains, only the innermost frame is kept.
const MAX_STACKS: usize = 4 << 20;
/// Frames of one chain that are kept, from the innermost.
const DEEPEST: usize = 256;

/// Numbers items in the order in which they were first met.
#[derive(Debug)]
struct Table<T> {
    numbers: FxHashMap<T, u32>,
    /// New items, until [`Self::take`] returns them.
    fresh: Vec<T>,
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self {
            numbers: FxHashMap::default(),
            fresh: Vec::new(),
        }
    }
}

impl<T: Copy + Eq + Hash> Table<T> {
    fn number(&mut self, item: T) -> u32 {
        let next = u32::try_from(self.numbers.len()).unwrap_or(u32::MAX);
        *self.numbers.entry(item).or_insert_with(|| {
            self.fresh.push(item);
            next
        })
    }

    /// The items since the last call, and the number of the first.
    fn take(&mut self) -> (u32, Vec<T>) {
        let fresh = std::mem::take(&mut self.fresh);
        let first = self.numbers.len() - fresh.len();
        (u32::try_from(first).unwrap_or(u32::MAX), fresh)
    }
}

/// Frames and call chains of a run.
#[derive(Debug, Default)]
pub(crate) struct Interner {
    frames: Table<Frame>,
    stacks: Table<Stack>,
    /// Chains that were cut to their innermost frame because there were too many.
    pub(crate) shortened: u64,
}

impl Interner {
    /// The number of a frame.
    pub(crate) fn frame(&mut self, frame: Frame) -> FrameId {
        FrameId(self.frames.number(frame))
    }

    /// The number of a chain, whose frames are given innermost first; `None` for an empty chain.
    pub(crate) fn stack(&mut self, frames: &[FrameId]) -> Option<StackId> {
        let full = self.stacks.numbers.len() >= MAX_STACKS;
        let kept = if full {
            frames.len().min(1)
        } else {
            frames.len().min(DEEPEST)
        };
        self.shortened += u64::from(full && frames.len() > 1);
        let outermost_first = frames[..kept].iter().rev();
        outermost_first.fold(None, |parent, frame| {
            Some(StackId(self.stacks.number(Stack {
                parent,
                frame: *frame,
            })))
        })
    }

    /// All frames with their numbers.
    pub(crate) fn frames(&self) -> Vec<(FrameId, Frame)> {
        let mut all: Vec<(FrameId, Frame)> = self
            .frames
            .numbers
            .iter()
            .map(|(frame, number)| (FrameId(*number), *frame))
            .collect();
        all.sort_unstable_by_key(|(number, _)| *number);
        all
    }

    /// Frames that are new since the last call, and the first one's number.
    pub(crate) fn take_frames(&mut self) -> (FrameId, Vec<Frame>) {
        let (first, frames) = self.frames.take();
        (FrameId(first), frames)
    }

    /// The same for call chains.
    pub(crate) fn take_stacks(&mut self) -> (StackId, Vec<Stack>) {
        let (first, stacks) = self.stacks.take();
        (StackId(first), stacks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chains_share_what_they_have_in_common_and_parents_come_first() {
        let mut interner = Interner::default();
        let frame = |interner: &mut Interner, address| {
            interner.frame(Frame {
                module: None,
                address,
            })
        };
        let [main, work, leaf] = [1, 2, 3].map(|address| frame(&mut interner, address));
        assert_eq!(frame(&mut interner, 2), work);
        assert_eq!(interner.stack(&[]), None);
        let deep = interner.stack(&[leaf, work, main]).unwrap();
        let shallow = interner.stack(&[work, main]).unwrap();
        assert_eq!(interner.stack(&[leaf, work, main]), Some(deep));
        let (first, stacks) = interner.take_stacks();
        assert_eq!((first, stacks.len()), (StackId(0), 3));
        assert_eq!(stacks[deep.index()].parent, Some(shallow));
        assert_eq!(stacks[shallow.index()].frame, work);
        for (index, stack) in stacks.iter().enumerate() {
            assert!(stack.parent.is_none_or(|parent| parent.index() < index));
        }
        assert_eq!(interner.take_frames().1.len(), 3);
        interner.stack(&[leaf, main]).unwrap();
        let (first, stacks) = interner.take_stacks();
        assert_eq!((first, stacks.len()), (StackId(3), 1));
    }

    #[test]
    fn a_chain_without_end_is_cut() {
        let mut interner = Interner::default();
        let frame = interner.frame(Frame {
            module: None,
            address: 1,
        });
        interner.stack(&vec![frame; 10_000]).unwrap();
        assert_eq!(interner.take_stacks().1.len(), DEEPEST);
    }
}
