//! Shortens function names for readers.

/// `name` without template arguments and parameters, which are usually the longest part.
///
/// `std::map<int, int>::find(int const&) const` becomes `std::map::find`.
pub(crate) fn plain(name: &str) -> String {
    let mut out = String::new();
    let mut skipped = 0_usize;
    let mut rest = name;
    while let Some(c) = rest.chars().next() {
        let behind = &rest[c.len_utf8()..];
        if skipped == 0
            && let Some(operator) = operator(&out, rest)
        {
            out.push_str(operator);
            rest = &rest[operator.len()..];
            continue;
        }
        match c {
            // A bracket that does not follow a name encloses a type, as in `<Vec<T> as Drop>::drop`.
            '<' if skipped > 0 || belongs(&out) => skipped += 1,
            '>' if skipped > 0 && !rest_is_arrow(name, rest) => skipped -= 1,
            '(' if skipped == 0 && rest.starts_with(ANONYMOUS) => {
                out.push_str(ANONYMOUS);
                rest = &rest[ANONYMOUS.len()..];
                continue;
            }
            '(' if skipped == 0 && belongs(&out) => return finished(&out, name),
            _ if skipped == 0 => out.push(c),
            _ => {}
        }
        rest = behind;
    }
    finished(&out, name)
}

const ANONYMOUS: &str = "(anonymous namespace)";

/// Signs of the operator that `rest` begins with, if `before` ends in the word `operator`.
fn operator<'a>(before: &str, rest: &'a str) -> Option<&'a str> {
    const SIGNS: [&str; 9] = ["<=>", "<<=", ">>=", "<<", ">>", "<=", ">=", "()", "->"];
    let word = before.strip_suffix("operator")?;
    if word.ends_with(|c: char| c.is_alphanumeric() || c == '_') {
        return None;
    }
    let signs = SIGNS.iter().find(|signs| rest.starts_with(**signs));
    match signs {
        Some(signs) => Some(&rest[..signs.len()]),
        None => rest.starts_with(['<', '>']).then(|| &rest[..1]),
    }
}

/// True if a bracket after `before` opens the arguments of a name.
fn belongs(before: &str) -> bool {
    /// Length of the longest operator's name, with a space behind it.
    const MAX_OPERATOR_CHARS: usize = 4;
    if before.ends_with(|c: char| c.is_alphanumeric() || "_:}>)]".contains(c)) {
        return true;
    }
    let mut word = before;
    for _ in 0..MAX_OPERATOR_CHARS {
        let is_sign = |c: char| c == ' ' || (c.is_ascii_punctuation() && c != '_');
        word = word.strip_suffix(is_sign).unwrap_or(word);
    }
    word.ends_with("operator")
}

/// True if the `>` that `rest` begins with is the end of `->`.
fn rest_is_arrow(name: &str, rest: &str) -> bool {
    name[..name.len() - rest.len()].ends_with('-')
}

/// Cleans up the shortened name: removes the colons of a turbofish; returns the whole name if nothing is
/// left.
fn finished(out: &str, name: &str) -> String {
    let out = out.trim().replace("::::", "::");
    let out = out.strip_suffix("::").unwrap_or(&out);
    // The return type precedes the name.
    if out.is_empty() {
        name.to_owned()
    } else {
        out.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_names_take_no_time() {
        // With quadratic time this would not end.
        for piece in ["(", "<", ">", "a<", "->", "operator", "(a", "::"] {
            let name = piece.repeat(400_000);
            assert!(plain(&name).len() <= name.len());
        }
    }

    #[test]
    fn names_lose_arguments_and_stay_names() {
        for (name, expected) in [
            ("main", "main"),
            (
                "std::map<int, int>::find(int const&) const",
                "std::map::find",
            ),
            (
                "std::_Hashtable<long, std::pair<long const, Order> >::_M_find(unsigned long)",
                "std::_Hashtable::_M_find",
            ),
            (
                "std::equal_to<long>::operator()(long) const",
                "std::equal_to::operator()",
            ),
            ("operator<< <char>(std::ostream&)", "operator<<"),
            ("bool operator< <int>(X<int> const&)", "bool operator<"),
            ("Ptr<T>::operator->() const", "Ptr::operator->"),
            (
                "std::vector<int>::operator[](unsigned long)",
                "std::vector::operator[]",
            ),
            ("std::operator+ <char>(char const*)", "std::operator+"),
            (
                "(anonymous namespace)::run(int)",
                "(anonymous namespace)::run",
            ),
            ("core::ptr::read::<u64>", "core::ptr::read"),
            (
                "<alloc::vec::Vec<u8> as core::ops::Drop>::drop",
                "<alloc::vec::Vec as core::ops::Drop>::drop",
            ),
            ("call<fn(i32) -> u8>::{closure#0}", "call::{closure#0}"),
            ("<", "<"),
            ("((", "(("),
            ("a<b", "a"),
            ("", ""),
        ] {
            assert_eq!(plain(name), expected, "{name}");
        }
    }
}
