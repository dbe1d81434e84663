//! One self-contained HTML page for a machine profile.
//!
//! All charts are drawn here, as inline SVG, so that they stand without JavaScript, on
//! paper and in a mail attachment; the script only adds reading of values, switching of
//! curves and of the colour scheme. Nothing is loaded from anywhere, and the page's own
//! content security policy forbids it.

mod head;
mod json;
mod panels;
mod svg;

use maud::{DOCTYPE, Markup, PreEscaped, html};
use membound_types::MachineProfile;

const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");
/// Nothing from outside: even a mistake in this crate could not make the page call home.
const POLICY: &str =
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:";

/// The page for `profile`: at most 2 MB for a full `--thorough` run.
#[must_use]
pub fn render(profile: &MachineProfile) -> String {
    document(profile).into_string()
}

fn document(profile: &MachineProfile) -> Markup {
    let panels = panels::all(profile);
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta http-equiv="Content-Security-Policy" content=(POLICY);
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                meta name="generator" content=(format!("membound {}", profile.machine.membound_version));
                title { (profile.machine.host) " · memory hierarchy · membound" }
                // An empty icon, so that no browser asks a server for one.
                link rel="icon" href="data:,";
                style { (PreEscaped(STYLE)) }
            }
            body {
                (svg::definitions())
                main {
                    (head::header(profile))
                    (head::answer(profile))
                    nav aria-label="parts" {
                        @for panel in &panels {
                            a href=(format!("#{}", panel.id)) class=[panel.missing.then_some("missing")] { (panel.title) }
                        }
                    }
                    @for panel in &panels { (panel.markup()) }
                    (head::footer(profile))
                }
                div.tip id="tip" role="status" aria-live="polite" hidden {}
                script type="application/json" id="membound-levels" { (PreEscaped(json::levels(profile))) }
                script { (PreEscaped(SCRIPT)) }
            }
        }
    }
}
