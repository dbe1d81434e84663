//! Cache lines that threads contend for: without sharing data (false sharing), or because they write the
//! same data (true sharing).

mod contention;
mod evidence;
mod findings;
mod judge;
mod selected;
mod trials;
mod waiting_loops;

pub(crate) use contention::ContendedLines;
pub(crate) use findings::{Sharing, sharing};
pub(crate) use trials::{Share, contention_cost};
