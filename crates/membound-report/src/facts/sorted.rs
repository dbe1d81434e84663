//! Sorts the rows of a grouping.

use membound_types::{CodeRow, FunctionObjectRow, ObjectRow, Share, ThreadRow};

use crate::Sort;

/// Row with the figures that it can be sorted by.
pub(crate) trait Row {
    fn name(&self) -> &str;
    fn share(&self) -> &Share;
    /// Bytes of one block, if the row is an object.
    fn size_bytes(&self) -> Option<u64> {
        None
    }
}

impl Row for CodeRow {
    fn name(&self) -> &str {
        &self.name
    }

    fn share(&self) -> &Share {
        &self.share
    }
}

impl Row for ThreadRow {
    fn name(&self) -> &str {
        &self.name
    }

    fn share(&self) -> &Share {
        &self.share
    }
}

impl Row for ObjectRow {
    fn name(&self) -> &str {
        &self.name
    }

    fn share(&self) -> &Share {
        &self.share
    }

    fn size_bytes(&self) -> Option<u64> {
        Some(self.size_bytes)
    }
}

impl Row for FunctionObjectRow {
    fn name(&self) -> &str {
        &self.object
    }

    fn share(&self) -> &Share {
        &self.share
    }
}

/// Sorts `rows`, which are sorted by stall, by `sort`. Rows with an unknown figure come last; equal rows
/// keep their order.
pub(crate) fn sorted<T: Row>(rows: &[T], sort: Sort) -> Vec<&T> {
    let mut sorted: Vec<&T> = rows.iter().collect();
    if sort == Sort::Name {
        sorted.sort_by(|a, b| a.name().cmp(b.name()));
    } else if sort != Sort::Stall {
        let figure = |row: &T| figure(row, sort).unwrap_or(f64::NEG_INFINITY);
        sorted.sort_by(|a, b| figure(b).total_cmp(&figure(a)));
    }
    sorted
}

/// Figure of `row` that `sort` refers to; `None` if unknown.
pub(crate) fn figure<T: Row + ?Sized>(row: &T, sort: Sort) -> Option<f64> {
    let share = row.share();
    match sort {
        Sort::Stall => Some(share.stall_fraction),
        Sort::Time => Some(share.time_fraction),
        Sort::Latency => share.avg_latency_ns,
        Sort::Loads => share.loads,
        Sort::Stores => share.stores,
        Sort::Misses => share.llc_misses,
        Sort::Size => row.size_bytes().map(|bytes| bytes as f64),
        Sort::Name => None,
    }
}
