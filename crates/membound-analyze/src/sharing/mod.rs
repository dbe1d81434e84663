//! Cache lines that threads contend for: without sharing data (false sharing), or because they write the
//! same data (true sharing).

mod evidence;
mod fights;
mod findings;
mod held;
mod judge;
mod selected;

pub(crate) use fights::ContendedLines;
pub(crate) use findings::{Sharing, sharing};
pub(crate) use held::{Share, contention_cost};
