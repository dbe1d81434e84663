//! The successors of a block: usually one or two, which are stored without an allocation.

use std::fmt;
use std::ops::Deref;

use super::block_id::BlockId;

/// Blocks that may run next; dereferences to a slice.
#[derive(Clone)]
pub struct Successors(Held);

#[derive(Clone)]
enum Held {
    Few([BlockId; 2], u8),
    Many(Box<[BlockId]>),
}

impl Successors {
    /// The given blocks, in the given order.
    #[must_use]
    pub fn of(blocks: &[BlockId]) -> Self {
        let none = BlockId(0);
        Self(match *blocks {
            [] => Held::Few([none, none], 0),
            [only] => Held::Few([only, none], 1),
            [first, second] => Held::Few([first, second], 2),
            _ => Held::Many(blocks.into()),
        })
    }
}

impl Default for Successors {
    fn default() -> Self {
        Self::of(&[])
    }
}

impl Deref for Successors {
    type Target = [BlockId];

    fn deref(&self) -> &[BlockId] {
        match &self.0 {
            Held::Few(blocks, count) => &blocks[..usize::from(*count)],
            Held::Many(blocks) => blocks,
        }
    }
}

impl PartialEq for Successors {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for Successors {}

impl fmt::Debug for Successors {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(out)
    }
}

impl From<Vec<BlockId>> for Successors {
    fn from(blocks: Vec<BlockId>) -> Self {
        if blocks.len() > 2 {
            Self(Held::Many(blocks.into()))
        } else {
            Self::of(&blocks)
        }
    }
}

impl FromIterator<BlockId> for Successors {
    fn from_iter<I: IntoIterator<Item = BlockId>>(blocks: I) -> Self {
        Vec::from_iter(blocks).into()
    }
}

impl<'a> IntoIterator for &'a Successors {
    type Item = &'a BlockId;
    type IntoIter = std::slice::Iter<'a, BlockId>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_number_is_held_in_order() {
        for count in 0..6 {
            let blocks: Vec<BlockId> = (0..count).map(|block| BlockId(7 - block)).collect();
            let successors: Successors = blocks.iter().copied().collect();
            assert_eq!(*successors, *blocks);
            assert_eq!(successors, Successors::of(&blocks));
            assert_eq!(successors, Successors::from(blocks));
        }
        assert_ne!(
            Successors::of(&[BlockId(0)]),
            Successors::of(&[BlockId(0), BlockId(0)])
        );
    }
}
