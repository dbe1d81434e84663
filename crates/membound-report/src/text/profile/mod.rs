//! `membound report` on a terminal: the summary, and groupings as tables.

mod rows;
mod summary;
mod views;

use membound_types::Profile;

use super::Style;
use super::out::Out;
use crate::By;

/// A profile: the summary, or one grouping of it as a table.
#[must_use]
pub fn profile(profile: &Profile, by: By, style: Style) -> String {
    let mut out = Out::new(style);
    match by {
        By::Summary => summary::write(&mut out, profile),
        By::Function => rows::code(&mut out, profile, rows::Code::Function),
        By::Line => rows::code(&mut out, profile, rows::Code::Line),
        By::Instruction => rows::code(&mut out, profile, rows::Code::Instruction),
        By::Object => rows::objects(&mut out, profile),
        By::Thread => rows::threads(&mut out, profile),
        By::Level => rows::levels(&mut out, profile),
        By::Node => views::nodes(&mut out, profile),
        By::BandwidthDomain => views::bandwidth(&mut out, profile),
    }
    out.finish()
}
