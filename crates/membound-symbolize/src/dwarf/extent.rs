//! Addresses of the code that an entry describes.

use std::ops::Range;

use gimli::{AttributeValue, Dwarf};

use super::budget::Budget;
use super::sections::R;

/// The value of `DW_AT_high_pc` if it is a length; `None` if it is an address.
fn high(value: &AttributeValue<R>) -> Option<u64> {
    match value {
        AttributeValue::Udata(size) => Some(*size),
        _ => None,
    }
}

/// Attributes of an entry that give its addresses.
#[derive(Default)]
pub(super) struct Extent {
    low: Option<u64>,
    high: Option<u64>,
    size: Option<u64>,
    ranges: Option<gimli::RangeListsOffset>,
}

impl Extent {
    /// Stores an attribute, if it is one of these.
    pub(super) fn see(
        &mut self,
        dwarf: &Dwarf<R>,
        unit: &gimli::Unit<R>,
        attribute: &gimli::Attribute<R>,
    ) -> Result<(), gimli::Error> {
        match attribute.name() {
            gimli::DW_AT_low_pc => self.low = dwarf.attr_address(unit, attribute.value())?,
            gimli::DW_AT_high_pc => {
                let value = attribute.value();
                self.size = high(&value);
                if self.size.is_none() {
                    self.high = dwarf.attr_address(unit, value)?;
                }
            }
            gimli::DW_AT_ranges => {
                self.ranges = dwarf.attr_ranges_offset(unit, attribute.value())?;
            }
            _ => {}
        }
        Ok(())
    }

    /// Passes its address ranges to `visit`, without those of code that the linker discarded.
    pub(super) fn each(
        &self,
        dwarf: &Dwarf<R>,
        unit: &gimli::Unit<R>,
        budget: &mut Budget,
        mut visit: impl FnMut(Range<u64>),
    ) -> Result<(), gimli::Error> {
        let mut real = |begin: u64, end: u64| {
            if begin != 0 && begin < end {
                visit(begin..end);
            }
        };
        if let Some(offset) = self.ranges {
            let mut ranges = dwarf.ranges(unit, offset)?;
            while let Some(range) = ranges.next()? {
                budget.spend(1)?;
                real(range.begin, range.end);
            }
        } else if let Some(low) = self.low {
            let end = self.high.or_else(|| Some(low.wrapping_add(self.size?)));
            real(low, end.unwrap_or(low));
        }
        Ok(())
    }
}
