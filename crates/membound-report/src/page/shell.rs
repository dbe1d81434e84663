//! What every page has around its body: policy, style, script and links to its parts.

use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::svg::definitions;

const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");
/// Forbids all external resources, so that even a mistake in this crate could not make the page contact a
/// server.
const POLICY: &str =
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:";

/// Links to the parts of a page: id, title, and true if the part is missing.
pub(super) fn navigation<'a>(parts: impl Iterator<Item = (&'a str, &'a str, bool)>) -> Markup {
    html! {
        nav aria-label="parts" {
            @for (id, title, missing) in parts {
                a href=(format!("#{id}")) class=[missing.then_some("missing")] { (title) }
            }
        }
    }
}

/// Style and script that a page has in addition to the common ones.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Extra {
    pub(super) style: &'static str,
    pub(super) script: &'static str,
}

/// Wraps `body` with what every page has: policy, style, shapes of markers, tooltip and script.
///
/// `version` is the membound version that wrote the document; `data` follows the body and is not displayed.
/// The body must contain the button `#scheme`.
pub(super) fn shell(title: &str, version: &str, body: &Markup, data: &Markup) -> Markup {
    shell_with(Extra::default(), title, version, body, data)
}

/// Like [`shell`], with the page's own style and script after the common ones.
pub(super) fn shell_with(
    extra: Extra,
    title: &str,
    version: &str,
    body: &Markup,
    data: &Markup,
) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta http-equiv="Content-Security-Policy" content=(POLICY);
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                meta name="generator" content=(format!("membound {version}"));
                title { (title) }
                // An empty icon, so that browsers do not request one from a server.
                link rel="icon" href="data:,";
                style { (PreEscaped(STYLE)) (PreEscaped(extra.style)) }
            }
            body {
                (definitions())
                main { (body) }
                div.tip id="tip" role="status" aria-live="polite" hidden {}
                (data)
                script { (PreEscaped(SCRIPT)) (PreEscaped(extra.script)) }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// Custom properties of every block that sets the card's colour: light, dark by choice, dark by
    /// preference, paper.
    fn schemes() -> Vec<BTreeMap<&'static str, &'static str>> {
        STYLE
            .split('{')
            .filter_map(|block| block.split('}').next())
            .filter(|block| block.contains("--card:"))
            .map(|block| {
                block
                    .split(';')
                    .filter_map(|declaration| declaration.split_once(':'))
                    .map(|(name, value)| (name.trim(), value.trim()))
                    .collect()
            })
            .collect()
    }

    /// Relative luminance as WCAG 2 defines it.
    fn luminance(color: &str) -> f64 {
        let digits = color.strip_prefix('#').expect("a colour in hexadecimal");
        let long: String = if digits.len() == 3 {
            digits.chars().flat_map(|c| [c, c]).collect()
        } else {
            digits.to_owned()
        };
        let channel = |index: usize| {
            let value =
                u8::from_str_radix(&long[2 * index..2 * index + 2], 16).expect("two digits");
            let share = f64::from(value) / 255.0;
            if share <= 0.040_45 {
                share / 12.92
            } else {
                ((share + 0.055) / 1.055).powf(2.4)
            }
        };
        0.2126 * channel(0) + 0.7152 * channel(1) + 0.0722 * channel(2)
    }

    fn contrast(a: &str, b: &str) -> f64 {
        let (a, b) = (luminance(a), luminance(b));
        (a.max(b) + 0.05) / (a.min(b) + 0.05)
    }

    #[test]
    fn curves_and_words_stand_out_in_every_scheme() {
        let schemes = schemes();
        assert_eq!(schemes.len(), 4);
        for scheme in &schemes {
            let card = scheme["--card"];
            for (name, color) in scheme {
                let least = match *name {
                    "--ink" | "--dim" | "--link" | "--warn" | "--rule" => 4.5,
                    name if name.starts_with("--k") || name.starts_with("--o") => 3.0,
                    "--axis" | "--mark" => 3.0,
                    _ => continue,
                };
                let found = contrast(color, card);
                assert!(found >= least, "{name} {color} on {card}: {found:.2}");
            }
            assert!(contrast(scheme["--dim"], scheme["--page"]) >= 4.5);
        }
    }

    #[test]
    fn the_dark_scheme_is_the_same_by_choice_and_by_preference() {
        let schemes = schemes();
        assert_eq!(schemes[1], schemes[2]);
        for (name, color) in &schemes[0] {
            if name.starts_with("--k") || name.starts_with("--o") {
                assert_eq!(schemes[3][name], *color, "paper has the light curves");
            }
        }
    }
}
