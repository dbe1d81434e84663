//! One self-contained HTML page for a machine profile.
//!
//! All charts are drawn here, as inline SVG, so that they stand without JavaScript, on
//! paper and in a mail attachment; the script only adds reading of values, switching of
//! curves and of the colour scheme. Nothing is loaded from anywhere, and the page's own
//! content security policy forbids it.

mod head;

use maud::{DOCTYPE, Markup, html};
use membound_types::MachineProfile;

/// The page for `profile`.
#[must_use]
pub fn render(profile: &MachineProfile) -> String {
    document(profile).into_string()
}

fn document(profile: &MachineProfile) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { "membound: " (profile.machine.host) }
            }
            body {
                main {
                    (head::header(profile))
                    (head::levels(profile))
                }
            }
        }
    }
}
