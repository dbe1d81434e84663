//! Symbolic values: expressions over the registers and memory at the start of a path.
//!
//! Every value is a 64-bit word. Equal expressions have equal numbers, so a bound that was checked on one
//! copy of an index also applies to another copy.

use rustc_hash::FxHashMap;

/// A value, as its index in [`Values`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Value(u32);

/// The expression of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Node {
    /// A constant.
    Constant(u64),
    /// The value of this register before the first instruction of the path.
    Initial(u8),
    /// The word at an address. The epoch separates loads before a call from loads after it.
    Load { address: Value, epoch: u32 },
    /// The sum of two values; a constant is always the second.
    Add(Value, Value),
    /// A value multiplied by a constant.
    Multiple(Value, u64),
    /// The bitwise AND of a value and a mask.
    Masked(Value, u64),
    /// The low bits of a value, sign-extended from this width.
    Signed(Value, u8),
    /// A value whose low bits are replaced by those of another.
    Inserted { old: Value, low: Value, bits: u8 },
    /// An unknown value that is at most this; the number distinguishes it from others.
    AtMost(u64, u32),
    /// An unknown value; the number distinguishes it from others.
    Unknown(u32),
}

/// Number of general registers; their initial values have the lowest indices.
const REGISTERS: u8 = 16;

/// The values on one path.
pub(super) struct Values {
    /// Expressions by index, beginning with the registers' initial values.
    nodes: Vec<Node>,
    /// Index of each expression, except the registers' initial values.
    numbers: FxHashMap<Node, Value>,
    /// Upper bounds that conditional jumps have established.
    bounds: FxHashMap<Value, u64>,
    fresh: u32,
}

/// A mask of the lowest `bits` bits.
pub(super) const fn low_mask(bits: u8) -> u64 {
    if bits >= 64 {
        u64::MAX
    } else {
        (1 << bits) - 1
    }
}

impl Default for Values {
    fn default() -> Self {
        Self {
            nodes: (0..REGISTERS).map(Node::Initial).collect(),
            numbers: FxHashMap::default(),
            bounds: FxHashMap::default(),
            fresh: 0,
        }
    }
}

impl Values {
    /// Removes all expressions and keeps the allocations.
    pub(super) fn clear(&mut self) {
        self.nodes.truncate(REGISTERS.into());
        self.numbers.clear();
        self.bounds.clear();
        self.fresh = 0;
    }

    pub(super) fn node(&self, value: Value) -> Node {
        self.nodes[value.0 as usize]
    }

    fn intern(&mut self, node: Node) -> Value {
        let next = Value(u32::try_from(self.nodes.len()).expect("paths are short"));
        *self.numbers.entry(node).or_insert_with(|| {
            self.nodes.push(node);
            next
        })
    }

    pub(super) fn constant(&mut self, value: u64) -> Value {
        self.intern(Node::Constant(value))
    }

    /// The initial value of the register with this number, 0 to 15.
    pub(super) const fn initial(register: u8) -> Value {
        assert!(register < REGISTERS, "there are sixteen");
        Value(register as u32)
    }

    pub(super) fn load(&mut self, address: Value, epoch: u32) -> Value {
        self.intern(Node::Load { address, epoch })
    }

    pub(super) fn unknown(&mut self) -> Value {
        self.fresh += 1;
        self.intern(Node::Unknown(self.fresh))
    }

    pub(super) fn at_most(&mut self, bound: u64) -> Value {
        self.fresh += 1;
        self.intern(Node::AtMost(bound, self.fresh))
    }

    pub(super) fn as_constant(&self, value: Value) -> Option<u64> {
        match self.node(value) {
            Node::Constant(value) => Some(value),
            _ => None,
        }
    }

    pub(super) fn add(&mut self, a: Value, b: Value) -> Value {
        match (self.node(a), self.node(b)) {
            (Node::Constant(a), Node::Constant(b)) => self.constant(a.wrapping_add(b)),
            (_, Node::Constant(0)) => a,
            (Node::Constant(_), _) => self.add(b, a),
            (Node::Add(base, offset), Node::Constant(more)) => match self.node(offset) {
                Node::Constant(offset) => {
                    let sum = self.constant(offset.wrapping_add(more));
                    self.add(base, sum)
                }
                _ => self.intern(Node::Add(a, b)),
            },
            (_, Node::Constant(_)) => self.intern(Node::Add(a, b)),
            _ => self.intern(Node::Add(a.min(b), a.max(b))),
        }
    }

    pub(super) fn multiple(&mut self, value: Value, factor: u64) -> Value {
        match self.node(value) {
            _ if factor == 1 => value,
            Node::Constant(value) => self.constant(value.wrapping_mul(factor)),
            Node::Multiple(value, more) => self.multiple(value, factor.wrapping_mul(more)),
            _ => self.intern(Node::Multiple(value, factor)),
        }
    }

    pub(super) fn masked(&mut self, value: Value, mask: u64) -> Value {
        if mask == u64::MAX {
            return value;
        }
        match self.node(value) {
            Node::Constant(value) => self.constant(value & mask),
            Node::Masked(inner, other) => self.masked(inner, mask & other),
            Node::Signed(inner, bits) if mask <= low_mask(bits) => self.masked(inner, mask),
            Node::Inserted { low, bits, .. } if mask <= low_mask(bits) => self.masked(low, mask),
            _ => {
                let keeps_all = mask & mask.wrapping_add(1) == 0
                    && self.certain(value).is_some_and(|bound| bound <= mask);
                if keeps_all {
                    value
                } else {
                    self.intern(Node::Masked(value, mask))
                }
            }
        }
    }

    pub(super) fn signed(&mut self, value: Value, bits: u8) -> Value {
        let half = low_mask(bits - 1);
        match self.node(value) {
            Node::Constant(value) => {
                let shift = 64 - u32::from(bits);
                self.constant((value.cast_signed() << shift >> shift).cast_unsigned())
            }
            _ if self.bound(value).is_some_and(|bound| bound <= half) => value,
            Node::Masked(inner, mask) if mask & low_mask(bits) == low_mask(bits) => {
                self.signed(inner, bits)
            }
            Node::Inserted {
                low, bits: have, ..
            } if bits <= have => self.signed(low, bits),
            _ => self.intern(Node::Signed(value, bits)),
        }
    }

    pub(super) fn inserted(&mut self, old: Value, low: Value, bits: u8) -> Value {
        self.intern(Node::Inserted { old, low, bits })
    }

    /// The value shifted right logically, as a value of `bits` bits.
    pub(super) fn shifted_right(&mut self, value: Value, by: u8, bits: u8) -> Value {
        match self.node(value) {
            Node::Constant(value) => self.constant((value & low_mask(bits)) >> by),
            _ => {
                let bound = self.bound(value).unwrap_or(u64::MAX).min(low_mask(bits));
                self.at_most(bound >> by)
            }
        }
    }

    /// Records that a value is at most `bound` on this path.
    pub(super) fn narrow(&mut self, value: Value, bound: u64) {
        let present = self.bounds.entry(value).or_insert(bound);
        *present = bound.min(*present);
    }

    /// The least upper bound that a check has established for a value.
    pub(super) fn checked(&self, value: Value) -> Option<u64> {
        let here = self.bounds.get(&value).copied();
        let narrower = match self.node(value) {
            // A check of the low half also counts for the whole index: the compiler knows that the upper half
            // is zero.
            Node::Masked(inner, _) => self.bounds.get(&inner).copied(),
            _ => [32, 16, 8].into_iter().find_map(|bits| {
                let masked = self.find(Node::Masked(self.unsigned_of(value), low_mask(bits)))?;
                let bound = self.bounds.get(&masked).copied()?;
                (bound <= low_mask(bits - 1)).then_some(bound)
            }),
        };
        match (here, narrower) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    fn unsigned_of(&self, value: Value) -> Value {
        match self.node(value) {
            Node::Signed(inner, _) => inner,
            _ => value,
        }
    }

    fn find(&self, node: Node) -> Option<Value> {
        self.numbers.get(&node).copied()
    }

    /// An upper bound from checks (possibly only of the low part that matters) or from the expression.
    pub(super) fn bound(&self, value: Value) -> Option<u64> {
        match (self.certain(value), self.checked(value)) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// An upper bound that holds for all 64 bits.
    fn certain(&self, value: Value) -> Option<u64> {
        let from_expression = match self.node(value) {
            Node::Constant(value) => Some(value),
            Node::Masked(inner, mask) => Some(self.certain(inner).map_or(mask, |b| b.min(mask))),
            Node::AtMost(bound, _) => Some(bound),
            Node::Multiple(inner, factor) => self
                .certain(inner)
                .and_then(|bound| bound.checked_mul(factor)),
            Node::Add(a, b) => match (self.certain(a), self.certain(b)) {
                (Some(a), Some(b)) => a.checked_add(b),
                _ => None,
            },
            _ => None,
        };
        match (from_expression, self.bounds.get(&value).copied()) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// The value as a constant plus multiples of values that are not sums.
    pub(super) fn linear(&self, value: Value) -> Linear {
        let mut linear = Linear::default();
        self.collect(value, 1, &mut linear, 0);
        linear
    }

    fn collect(&self, value: Value, factor: u64, linear: &mut Linear, depth: usize) {
        match self.node(value) {
            Node::Constant(value) => {
                linear.constant = linear.constant.wrapping_add(value.wrapping_mul(factor));
            }
            // A sum that was compared is an index itself, so it is not split.
            Node::Add(a, b) if depth < 32 && self.checked(value).is_none() => {
                self.collect(a, factor, linear, depth + 1);
                self.collect(b, factor, linear, depth + 1);
            }
            Node::Multiple(inner, more) if depth < 32 => {
                self.collect(inner, factor.wrapping_mul(more), linear, depth + 1);
            }
            _ => match linear.terms.iter_mut().find(|(term, _)| *term == value) {
                Some((_, have)) => *have = have.wrapping_add(factor),
                None => linear.terms.push((value, factor)),
            },
        }
    }
}

/// `constant + Σ factor × value`, modulo 2⁶⁴.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Linear {
    pub(super) constant: u64,
    pub(super) terms: Vec<(Value, u64)>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_of_an_index_share_its_bound() {
        let mut values = Values::default();
        let register = Values::initial(0);
        let three = values.constant(3_u64.wrapping_neg());
        let index = values.add(register, three);
        let index = values.masked(index, low_mask(32));
        values.narrow(index, 5);
        let widened = values.signed(index, 32);
        assert_eq!(values.bound(widened), Some(5));
        let scaled = values.multiple(widened, 4);
        let scaled = values.masked(scaled, low_mask(32));
        assert_eq!(values.linear(scaled).terms, [(index, 4)]);
    }

    #[test]
    fn a_byte_put_into_a_register_is_read_back() {
        let mut values = Values::default();
        let old = Values::initial(0);
        let byte = Values::initial(1);
        let byte = values.masked(byte, 0xff);
        let merged = values.inserted(old, byte, 8);
        assert_eq!(values.masked(merged, 0xff), byte);
        assert_ne!(values.masked(merged, 0xffff), byte);
    }

    #[test]
    fn the_check_of_a_low_half_counts_for_the_whole() {
        let mut values = Values::default();
        let register = Values::initial(0);
        let low = values.masked(register, low_mask(32));
        values.narrow(low, 9);
        assert_eq!(values.checked(register), Some(9));
        // Unless it might be negative.
        let other = Values::initial(1);
        let low = values.masked(other, low_mask(32));
        values.narrow(low, 0x9000_0000);
        assert_eq!(values.checked(other), None);
    }
}
