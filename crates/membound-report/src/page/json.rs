//! Summary of the page as embedded JSON, for programs that have only the page.

use membound_types::{Level, MachineProfile};
use serde::Serialize;

#[derive(Serialize)]
struct Head<'a> {
    schema_version: u32,
    host: &'a str,
    date: &'a str,
    cpu: &'a str,
    labels: &'a std::collections::BTreeMap<String, String>,
    levels: &'a [Level],
}

/// Host, date, labels and levels as JSON that is safe inside a `script` element.
pub(super) fn levels(profile: &MachineProfile) -> String {
    let head = Head {
        schema_version: profile.schema_version,
        host: &profile.machine.host,
        date: &profile.machine.date,
        cpu: &profile.machine.cpu.model_name,
        labels: &profile.machine.conditions.labels,
        levels: &profile.levels,
    };
    // Strings, numbers and maps with string keys always serialise.
    escaped(&serde_json::to_string(&head).unwrap_or_default())
}

/// Escapes JSON so that no character can end the element, open a comment, or end a line of JavaScript.
/// These characters occur only inside strings, where an escape has the same meaning.
pub(super) fn escaped(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    for c in json.chars() {
        match c {
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => {
                out.push_str(&format!("\\u{:04x}", u32::from(c)));
            }
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_character_can_leave_the_element() {
        let text = "</script><!-- \u{2028}\u{2029}&\"'";
        let json = serde_json::to_string(text).expect("a string is JSON");
        let safe = escaped(&json);
        for bad in ["<", ">", "&", "\u{2028}", "\u{2029}"] {
            assert!(!safe.contains(bad), "{safe}");
        }
        let back: String = serde_json::from_str(&safe).expect("still JSON");
        assert_eq!(back, text);
    }
}
