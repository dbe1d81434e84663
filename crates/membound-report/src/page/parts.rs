//! Building blocks that several pages share: the top, sections with or without content, facts about a run,
//! and a bar of shares.

use maud::{Markup, html};

use crate::units;

/// Top of a page: its kind, its title, and the switch between light and dark.
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

/// Banner of an incomplete document; `what` says what is still valid.
pub(super) fn incomplete(what: &str) -> Markup {
    html! {
        p.banner role="alert" {
            b { "Incomplete." }
            " " (what)
        }
    }
}

/// Section of a page.
pub(super) struct Panel {
    pub(super) id: &'static str,
    pub(super) title: &'static str,
    /// True if it contains only the reason why there is no content.
    pub(super) missing: bool,
    body: Markup,
}

impl Panel {
    /// Section with content.
    pub(super) const fn new(id: &'static str, title: &'static str, body: Markup) -> Self {
        Self {
            id,
            title,
            missing: false,
            body,
        }
    }

    /// Section without content; `body` says why.
    pub(super) const fn empty(id: &'static str, title: &'static str, body: Markup) -> Self {
        Self {
            id,
            title,
            missing: true,
            body,
        }
    }

    /// Section without content that is marked as a gap; `why` is the reason.
    pub(super) fn missing(id: &'static str, title: &'static str, why: &str) -> Self {
        Self::empty(id, title, html! { p.missing { (why) } })
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

/// An entry in a list of facts; empty if there is no value.
pub(super) fn fact(name: &str, value: &str) -> Markup {
    html! { @if !value.is_empty() { div { dt { (name) } dd { (value) } } } }
}

/// Smallest share that is shown.
const MIN_SHOWN_SHARE: f64 = 0.0005;

/// A whole divided into shares: a bar across the page, with a legend below.
pub(super) struct ShareBar<'a> {
    /// Description of the bar for screen readers.
    pub(super) label: &'a str,
    /// Name, index among the colours of levels, and share of each part.
    pub(super) parts: &'a [(&'a str, usize, f64)],
    /// Name and share of the rest.
    pub(super) rest: (&'a str, f64),
}

impl ShareBar<'_> {
    pub(super) fn markup(&self) -> Markup {
        let shown = || self.parts.iter().filter(|part| part.2 > MIN_SHOWN_SHARE);
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
