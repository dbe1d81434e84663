//! A panel of a machine profile's page, and the panel of a part that may be missing.

use maud::{Markup, html};
use membound_types::{NotMeasured, Outcome};

use crate::facts;

/// A section of the page.
pub(in crate::page) struct Panel {
    pub(in crate::page) id: &'static str,
    pub(in crate::page) title: &'static str,
    /// True if its part was not measured.
    pub(in crate::page) missing: bool,
    pub(super) reading: &'static str,
    pub(super) body: Markup,
}

impl Panel {
    pub(in crate::page) fn markup(&self) -> Markup {
        html! {
            section class=(if self.missing { "card gone" } else { "card" }) id=(self.id) {
                h2 { (self.title) }
                @if !self.missing { p.reading { (self.reading) } }
                (self.body)
            }
        }
    }
}

pub(super) fn panel<T>(
    id: &'static str,
    title: &'static str,
    reading: &'static str,
    outcome: &Outcome<T>,
    body: impl FnOnce(&T) -> Markup,
) -> Panel {
    let (body, missing) = match outcome {
        Outcome::Known(part) => (body(part), false),
        Outcome::Missing { not_measured } => (missing(not_measured), true),
    };
    Panel {
        id,
        title,
        missing,
        reading,
        body,
    }
}

fn missing(why: &NotMeasured) -> Markup {
    html! { p.missing { (facts::missing_text(why)) } }
}
