//! Shapes of the markers of points, for every page.

use maud::{Markup, html};

/// Shapes of markers, once per page; charts refer to them.
pub(in crate::page) fn definitions() -> Markup {
    html! {
        svg.defs width="0" height="0" aria-hidden="true" {
            defs {
                circle id="m0" r="2.6" {}
                circle id="ms" r="1.1" {}
                path id="m1" d="M-2.4-2.4h4.8v4.8h-4.8z" {}
                path id="m2" d="M0-3.3L3 2.2H-3z" {}
                path id="m3" d="M0-3.4L3.4 0 0 3.4-3.4 0z" {}
            }
        }
    }
}
