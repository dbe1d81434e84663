//! What several pages are made of: their tops, sections that stay where they are when there is nothing in
//! them, facts about a run, and a bar of shares.

use maud::{Markup, html};

use crate::units;

/// The top of a page: what kind of page it is, its title, and the switch between light and dark.
pub(super) fn top(kind: &str, title: &str) -> Markup {
    html! {
        div.top {
            div {
                p.eyebrow { "membound · " (kind) }
                h1 { (title) }
            }
            button.scheme id="scheme" type="button" hidden { "light / dark" }
        }
    }
}

/// The banner of what was cut short; `what` says what holds nevertheless.
pub(super) fn incomplete(what: &str) -> Markup {
    html! {
        p.banner role="alert" {
            b { "Incomplete." }
            " " (what)
        }
    }
}

/// A section of a page.
pub(super) struct Panel {
    pub(super) id: &'static str,
    pub(super) title: &'static str,
    /// Whether there is nothing in it but the reason.
    pub(super) missing: bool,
    body: Markup,
}

impl Panel {
    /// A section with something in it.
    pub(super) const fn new(id: &'static str, title: &'static str, body: Markup) -> Self {
        Self {
            id,
            title,
            missing: false,
            body,
        }
    }

    /// A section without anything in it; `body` says why.
    pub(super) const fn gone(id: &'static str, title: &'static str, body: Markup) -> Self {
        Self {
            id,
            title,
            missing: true,
            body,
        }
    }

    /// One without anything in it, and that this is a gap.
    pub(super) fn missing(id: &'static str, title: &'static str, why: &str) -> Self {
        Self::gone(id, title, html! { p.missing { (why) } })
    }

    pub(super) fn markup(&self) -> Markup {
        html! {
            section class=(if self.missing { "card gone" } else { "card" }) id=(self.id) {
                h2 { (self.title) }
                (self.body)
            }
        }
    }
}

/// A fact about what the page is of, in a list of them; nothing where there is no value.
pub(super) fn fact(name: &str, value: &str) -> Markup {
    html! { @if !value.is_empty() { div { dt { (name) } dd { (value) } } } }
}

/// Shares below this would be shown as nothing.
const SMALLEST: f64 = 0.0005;

/// One whole as a bar across the page, with the keys of its parts below.
pub(super) struct ShareBar<'a> {
    /// What the parts are, for screen readers.
    pub(super) label: &'a str,
    /// Name, colour among those of levels, and share of each part.
    pub(super) parts: &'a [(&'a str, usize, f64)],
    /// What the rest is, and its share.
    pub(super) rest: (&'a str, f64),
}

impl ShareBar<'_> {
    pub(super) fn markup(&self) -> Markup {
        let shown = || self.parts.iter().filter(|part| part.2 > SMALLEST);
        let words: Vec<String> = shown()
            .map(|(name, _, share)| format!("{name} {}", units::percent(*share)))
            .collect();
        let width = |share: f64| format!("width:{:.2}%", share.clamp(0.0, 1.0) * 100.0);
        let (rest, share_of_rest) = self.rest;
        html! {
            div.levelbar.large role="img" aria-label=(format!("{}: {}", self.label, words.join(", "))) {
                @for (_, color, share) in shown() {
                    i class=(format!("lv{color}")) style=(width(*share)) {}
                }
            }
            p.levelkeys {
                @for (name, color, share) in shown() {
                    span { i class=(format!("lv{color}")) {} (name) " " b { (units::percent(*share)) } }
                }
                span { i.lv9 {} (rest) " " b { (units::percent(share_of_rest)) } }
            }
        }
    }
}
