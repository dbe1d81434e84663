//! Names of functions: shown demangled, and found by mangled or demangled name or by address.

use membound_rewrite::image::FunctionBounds;
use membound_symbolize::demangle;

/// A function's name for a person, or its address if it has none.
pub(super) fn display_name(function: &FunctionBounds) -> String {
    function.name.as_deref().map_or_else(
        || format!("{:#x}", function.range.start),
        |name| demangle(name).into_owned(),
    )
}

/// A function that the user asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum FunctionPattern {
    /// The function that holds this address.
    Address(u64),
    /// Functions of this name.
    Name(String),
}

impl FunctionPattern {
    /// Parses an address if the text looks like one, else a name.
    pub(super) fn parse(text: &str) -> Self {
        let digits = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X"));
        match digits.map(|digits| u64::from_str_radix(digits, 16)) {
            Some(Ok(address)) => Self::Address(address),
            _ => Self::Name(text.to_owned()),
        }
    }

    /// Whether the function with this range and name is the wanted one.
    pub(super) fn means(&self, range: &std::ops::Range<u64>, name: Option<&str>) -> bool {
        match self {
            Self::Address(address) => range.contains(address),
            Self::Name(wanted) => name.is_some_and(|name| {
                name == wanted || {
                    let shown = demangle(name);
                    shown == *wanted || without_parameters(&shown) == wanted
                }
            }),
        }
    }
}

/// Removes the parameters: `ns::f(int)` gives `ns::f`. Parentheses inside a name, as in `operator()`, stay.
fn without_parameters(name: &str) -> &str {
    let name = name.strip_suffix(" const").unwrap_or(name);
    if !name.ends_with(')') {
        return name;
    }
    let mut depth = 0_usize;
    for (at, byte) in name.bytes().enumerate().rev() {
        match byte {
            b')' => depth += 1,
            b'(' => {
                depth -= 1;
                if depth == 0 {
                    return &name[..at];
                }
            }
            _ => {}
        }
        if depth == 0 {
            break;
        }
    }
    name
}

/// Up to three of `names` that `wanted` may be a misspelling or a part of, nearest first.
pub(super) fn similar_names<'a>(wanted: &str, names: impl Iterator<Item = &'a str>) -> Vec<String> {
    const MAX_SUGGESTIONS: usize = 3;
    let mut found: Vec<(usize, String)> = names
        .filter_map(|name| {
            let shown = demangle(name);
            let short = without_parameters(&shown);
            let distance = if short.contains(wanted) || name.contains(wanted) {
                // A longer name is farther away, but never as far as a different name.
                (short.len().saturating_sub(wanted.len())).min(wanted.len())
            } else {
                let last = short.rsplit("::").next().unwrap_or(short);
                wanted.len() + 4 * distance(wanted, last)?
            };
            Some((distance, shown.into_owned()))
        })
        .collect();
    found.sort();
    found.dedup();
    found
        .into_iter()
        .map(|(_, name)| name)
        .take(MAX_SUGGESTIONS)
        .collect()
}

/// Edit distance of two names; `None` if it exceeds a third of the length of `one`, or 3.
fn distance(one: &str, other: &str) -> Option<usize> {
    const MAX_NAME_CHARS: usize = 64;
    let most = (one.len() / 3).clamp(1, 3);
    let (one, other) = (one.as_bytes(), other.as_bytes());
    if one.len().abs_diff(other.len()) > most || one.len() > MAX_NAME_CHARS {
        return None;
    }
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (at, byte) in one.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = at + 1;
        for (column, against) in other.iter().enumerate() {
            let changed = diagonal + usize::from(byte != against);
            diagonal = row[column + 1];
            row[column + 1] = changed.min(diagonal + 1).min(row[column] + 1);
        }
    }
    let distance = *row.last()?;
    (distance <= most).then_some(distance)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_are_found_by_any_of_their_names() {
        let range = 0x1000..0x1040;
        let cpp = Some("_ZN3foo3barEi");
        for wanted in ["_ZN3foo3barEi", "foo::bar(int)", "foo::bar", "0x1003"] {
            assert!(
                FunctionPattern::parse(wanted).means(&range, cpp),
                "{wanted}"
            );
        }
        for wanted in ["bar", "foo", "0x1040", "foo::bar(long)"] {
            assert!(
                !FunctionPattern::parse(wanted).means(&range, cpp),
                "{wanted}"
            );
        }
        let rust = Some("_ZN4core3fmt5Write9write_fmt17h0123456789abcdefE");
        assert!(FunctionPattern::parse("core::fmt::Write::write_fmt").means(&range, rust));
        assert!(!FunctionPattern::parse("main").means(&range, None));
    }

    #[test]
    fn parameters_go_and_parentheses_in_names_stay() {
        assert_eq!(without_parameters("a::f(int (*)(char))"), "a::f");
        assert_eq!(without_parameters("f(a) const"), "f");
        assert_eq!(without_parameters("a::operator()(int)"), "a::operator()");
        assert_eq!(without_parameters("plain"), "plain");
        assert_eq!(without_parameters("odd)"), "odd)");
    }

    #[test]
    fn near_names_are_offered() {
        let names = ["memcpy", "memmove", "main", "qsort_r", "_ZN3foo3barEi"];
        let near = |wanted| similar_names(wanted, names.into_iter());
        assert_eq!(near("memcopy"), ["memcpy"]);
        assert_eq!(near("qsort"), ["qsort_r"]);
        assert_eq!(near("bar"), ["foo::bar(int)"]);
        assert!(near("zzzzzz").is_empty());
    }
}
