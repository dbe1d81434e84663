//! `membound report` on a terminal: the summary, and groupings as tables.

mod calls;
mod hardware;
mod memory;
mod pairs;
mod rows;
mod summary;
mod views;

use membound_types::{Detail, Profile};

use super::Style;
use super::out::Out;
use crate::facts::calls::Direction;
use crate::{By, Grouping};

/// Formats a profile: the summary, or one grouping as a table. `detail` has the samples from which call
/// trees are computed.
#[must_use]
pub fn profile(
    profile: &Profile,
    detail: &Detail,
    grouping: impl Into<Grouping>,
    style: Style,
) -> String {
    let Grouping { by, sort, weight } = grouping.into();
    let mut out = Out::new(style);
    match by {
        By::Summary => summary::write(&mut out, profile),
        By::Function => rows::code(&mut out, profile, rows::Code::Function, sort),
        By::Line => rows::code(&mut out, profile, rows::Code::Line, sort),
        By::Instruction => rows::code(&mut out, profile, rows::Code::Instruction, sort),
        By::Object => rows::objects(&mut out, profile, sort),
        By::FunctionObject => pairs::write(&mut out, profile, pairs::Outer::Function, sort),
        By::ObjectFunction => pairs::write(&mut out, profile, pairs::Outer::Object, sort),
        By::Callers => calls::write(&mut out, profile, detail, Direction::Outwards, weight),
        By::Tree => calls::write(&mut out, profile, detail, Direction::Inwards, weight),
        By::Memory => memory::write(&mut out, profile),
        By::Thread => rows::threads(&mut out, profile, sort),
        By::Level => {
            rows::levels(&mut out, profile);
            hardware::write(&mut out, profile);
        }
        By::Node => views::nodes(&mut out, profile),
        By::BandwidthDomain => views::bandwidth(&mut out, profile),
    }
    out.finish()
}
