//! Readable names of functions and variables.

use std::borrow::Cow;
use std::fmt::{self, Write as _};

/// Longest mangled name that is parsed, in bytes. The longest that compilers write have a tenth of that.
const MAX_MANGLED_BYTES: usize = 64 << 10;

/// Bytes of a demangled name, at most: with substitutions, a short mangled name can stand for one too long
/// for any memory.
const MAX_SHOWN_BYTES: usize = 64 << 10;

/// Demangles a symbol's name: Rust's (both manglings, without hashes) and C++'s (Itanium); others are
/// returned as they are. A suffix that a compiler or linker appended, like `.cold` or `.constprop.0`, is
/// kept; versions of dynamic symbols (`@@GLIBC_2.34`) are removed.
///
/// ```
/// assert_eq!(membound_symbolize::demangle("_ZN3foo3barEi"), "foo::bar(int)");
/// assert_eq!(membound_symbolize::demangle("memcpy@@GLIBC_2.14"), "memcpy");
/// ```
#[must_use]
pub fn demangle(name: &str) -> Cow<'_, str> {
    let name = without_version(name);
    if name.len() > MAX_MANGLED_BYTES || !name.starts_with('_') {
        return Cow::Borrowed(name);
    }
    if let Ok(rust) = rustc_demangle::try_demangle(name)
        && let Some(shown) = bounded(|out| write!(out, "{rust:#}"))
    {
        return Cow::Owned(shown);
    }
    cpp(name).map_or(Cow::Borrowed(name), Cow::Owned)
}

/// Removes a version: `memcpy@@GLIBC_2.14` becomes `memcpy`. `@plt` is no version.
fn without_version(name: &str) -> &str {
    match name.split_once('@') {
        Some((plain, version)) if !plain.is_empty() && version != "plt" => plain,
        _ => name,
    }
}

fn cpp(name: &str) -> Option<String> {
    if !(name.starts_with("_Z") || name.starts_with("__Z")) {
        return None;
    }
    // The library's default recursion limit is meant to fit a thread's stack.
    let parsing = cpp_demangle::ParseOptions::default();
    let showing = cpp_demangle::DemangleOptions::default();
    let (symbol, tail) =
        cpp_demangle::BorrowedSymbol::with_tail_and_options(name.as_bytes(), &parsing).ok()?;
    // A compiler's suffix begins with a dot; with anything else it was no mangled name.
    let tail = std::str::from_utf8(tail).ok()?;
    if !(tail.is_empty() || tail.starts_with('.')) {
        return None;
    }
    bounded(|out| {
        symbol.structured_demangle(&mut Pieces(out), &showing)?;
        if !tail.is_empty() {
            write!(out, " [clone {tail}]")?;
        }
        Ok(())
    })
}

/// The text that `write` writes; `None` if it fails, is empty or becomes too long.
fn bounded(write: impl FnOnce(&mut Bounded) -> fmt::Result) -> Option<String> {
    let mut out = Bounded(String::new());
    write(&mut out).ok()?;
    (!out.0.is_empty()).then_some(out.0)
}

struct Bounded(String);

impl fmt::Write for Bounded {
    fn write_str(&mut self, piece: &str) -> fmt::Result {
        if self.0.len() + piece.len() > MAX_SHOWN_BYTES {
            return Err(fmt::Error);
        }
        self.0.push_str(piece);
        Ok(())
    }
}

/// Adapts the demangler's output to `fmt::Write`.
struct Pieces<'a>(&'a mut Bounded);

impl cpp_demangle::DemangleWrite for Pieces<'_> {
    fn write_string(&mut self, piece: &str) -> fmt::Result {
        self.0.write_str(piece)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mangling_is_known() {
        for (mangled, shown) in [
            ("_ZN3foo3barEi", "foo::bar(int)"),
            ("_ZN3foo3barEi.cold", "foo::bar(int) [clone .cold]"),
            (
                "_ZNSt6vectorIiSaIiEE9push_backERKi",
                "std::vector<int, std::allocator<int> >::push_back(int const&)",
            ),
            (
                "_ZN4core3fmt5Write9write_fmt17h0123456789abcdefE",
                "core::fmt::Write::write_fmt",
            ),
            ("_RNvCs1234_7mycrate4main", "mycrate::main"),
            ("_RINvNtC3std3mem8align_ofjE", "std::mem::align_of::<usize>"),
            ("main", "main"),
            ("", ""),
            ("_", "_"),
            ("_Zzzz", "_Zzzz"),
            ("memcpy@@GLIBC_2.14", "memcpy"),
            ("malloc@GLIBC_2.2.5", "malloc"),
            ("malloc@plt", "malloc@plt"),
            ("@odd", "@odd"),
            ("Überlauf", "Überlauf"),
        ] {
            assert_eq!(demangle(mangled), shown, "{mangled}");
        }
    }

    #[test]
    fn names_made_to_explode_are_left_as_they_are() {
        // Every template parameter is the pair of the one before: 2^40 leaves.
        let mut name = "_Z1fI1AIiiE".to_owned();
        for step in 0..40 {
            let back = if step == 0 {
                "S0_".to_owned()
            } else {
                format!("S{}_", base36(step))
            };
            write!(name, "1AI{back}{back}E").expect("strings grow");
        }
        name.push_str("Evv");
        assert!(demangle(&name).len() <= MAX_SHOWN_BYTES + name.len());
        let deep = format!("_Z1f{}i", "P".repeat(60_000));
        assert!(demangle(&deep).len() <= MAX_SHOWN_BYTES + deep.len());
        let nested = format!("_RNvC1a{}", "N".repeat(60_000));
        assert!(!demangle(&nested).is_empty());
        let long = format!("_Z{}", "a".repeat(1 << 20));
        assert_eq!(demangle(&long), long);
    }

    fn base36(value: usize) -> String {
        let digits = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ";
        let mut text = String::new();
        let mut rest = value;
        loop {
            text.insert(0, char::from(digits[rest % 36]));
            rest /= 36;
            if rest == 0 {
                return text;
            }
        }
    }
}
