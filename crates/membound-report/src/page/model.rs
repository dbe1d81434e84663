//! Page of a fitted model.

use maud::{Markup, html};
use membound_types::Model;

use super::panels::model as panel;
use super::parts::{self, fact};
use super::shell::{navigation, shell};

const VERSION: &str = env!("CARGO_PKG_VERSION");
const PARTS: [(&str, &str); 3] = [
    ("fit", "The fit"),
    ("levels", "Levels"),
    ("parameters", "Parameters"),
];

/// Page for a fitted `model`: measured values and fitted curves, residuals, levels and parameters.
#[must_use]
pub fn model(model: &Model) -> String {
    document(model).into_string()
}

fn document(model: &Model) -> Markup {
    let name = model.source.host.as_deref();
    let name = name.unwrap_or(&model.topology.name);
    let body = html! {
        (header(model, name))
        (navigation(PARTS.iter().map(|(id, title)| (*id, *title, false))))
        (card(0, &html! {
            p.reading { (panel::READING) }
            (panel::quality(model))
            (panel::charts(model))
            (panel::remarks(model))
        }))
        (card(1, &panel::levels(model)))
        (card(2, &panel::parameters(model)))
        footer { "fitted by membound " (VERSION) ". Brackets hold the 95 % interval." }
    };
    shell(
        &format!("{name} · hierarchy model · membound"),
        VERSION,
        &body,
        &html! {},
    )
}

fn card(part: usize, body: &Markup) -> Markup {
    let (id, title) = PARTS[part];
    html! { section.card id=(id) { h2 { (title) } (body) } }
}

fn header(model: &Model, name: &str) -> Markup {
    let source = &model.source;
    html! {
        header {
            (parts::top("hierarchy model", name))
            dl.facts {
                (fact("topology", &model.topology.name))
                (fact("curves", &source.series))
                @if !source.files.is_empty() { (fact("files", &source.files.join(", "))) }
            }
        }
    }
}
