//! Page of a machine profile.

use maud::{Markup, PreEscaped, html};
use membound_types::MachineProfile;

use super::shell::{navigation, shell};
use super::{head, json, panels};

/// Page for `profile`: at most 2 MB for a full `--thorough` run.
#[must_use]
pub fn render(profile: &MachineProfile) -> String {
    document(profile).into_string()
}

fn document(profile: &MachineProfile) -> Markup {
    let panels = panels::all(profile);
    let host = &profile.machine.host;
    let body = html! {
        (head::header(profile))
        (head::answer(profile))
        (navigation(panels.iter().map(|panel| (panel.id, panel.title, panel.missing))))
        @for panel in &panels { (panel.markup()) }
        (head::footer(profile))
    };
    let data = html! {
        script type="application/json" id="membound-levels" { (PreEscaped(json::levels(profile))) }
    };
    let title = format!("{host} · memory hierarchy · membound");
    shell(&title, &profile.machine.membound_version, &body, &data)
}
