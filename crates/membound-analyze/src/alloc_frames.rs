//! Recognises allocator functions and standard-library functions in the call chain of an allocation, so
//! that a heap object is named after the program's own line.

/// True if `function` (demangled) is an allocation function itself.
pub(crate) fn is_allocator(function: &str) -> bool {
    const NAMES: [&str; 24] = [
        "malloc",
        "calloc",
        "realloc",
        "reallocarray",
        "free",
        "memalign",
        "aligned_alloc",
        "posix_memalign",
        "valloc",
        "pvalloc",
        "mmap",
        "mmap64",
        "mremap",
        "brk",
        "sbrk",
        "strdup",
        "strndup",
        "__strdup",
        "__strndup",
        "__libc_malloc",
        "__libc_calloc",
        "__libc_realloc",
        "__libc_memalign",
        "_mid_memalign",
    ];
    let name = function.split('(').next().unwrap_or(function);
    let name = name.split('@').next().unwrap_or(name);
    NAMES.contains(&name)
        || name
            .strip_prefix("__GI_")
            .is_some_and(|rest| NAMES.contains(&rest))
        || ["operator new", "operator new[]"].contains(&name)
        || function.starts_with("__rust_alloc")
        || function.starts_with("__rust_realloc")
        || function.starts_with("__rdl_")
        || function.starts_with("__rustc::__r")
}

/// True if `function` belongs to the C++ or Rust standard library (containers, strings, smart pointers):
/// its source line does not show which part of the program asked for the memory.
pub(crate) fn is_library(function: &str) -> bool {
    // Demangled templates begin with their return type: look at the name behind it.
    let name = match function.split_once('(') {
        Some((head, _)) if !head.is_empty() => last_word(head),
        _ => last_word(function),
    };
    const PREFIXES: [&str; 7] = [
        "std::",
        "__gnu_cxx::",
        "__cxxabi",
        "alloc::",
        "core::",
        "hashbrown::",
        "__rustc::",
    ];
    let inner = name.trim_start_matches(['<', '&']);
    PREFIXES.iter().any(|prefix| inner.starts_with(prefix))
}

/// True if `path` is a source file of the C++ or Rust standard library. Needed because debug information
/// may give the name of an inlined function without its namespace.
pub(crate) fn is_library_file(path: &str) -> bool {
    let rust = path.contains("/rustc/") && path.contains("/library/");
    rust || path.contains("/rustlib/src/rust/library/") || path.contains("/include/c++/")
}

/// Last word of `text` outside angle brackets.
fn last_word(text: &str) -> &str {
    let mut depth = 0_i32;
    let mut start = 0;
    for (at, letter) in text.char_indices() {
        match letter {
            '<' => depth += 1,
            '>' => depth -= 1,
            // `<T as Trait>::method` begins with a bracket; a return type ends at a space.
            ' ' if depth == 0 => start = at + 1,
            _ => {}
        }
    }
    &text[start..]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_allocator_is_known_by_all_its_names() {
        for name in [
            "malloc",
            "__libc_calloc",
            "__GI_malloc",
            "malloc@plt",
            "operator new(unsigned long)",
            "operator new[](unsigned long, std::align_val_t)",
            "__rust_alloc_zeroed",
            "__rustc::__rust_alloc",
        ] {
            assert!(is_allocator(name), "{name}");
        }
        for name in [
            "xmalloc",
            "my_malloc",
            "operator newline()",
            "pool::malloc",
            "operator==(A, B)",
            "",
        ] {
            assert!(!is_allocator(name), "{name}");
        }
    }

    #[test]
    fn library_files_are_recognised_by_their_directory() {
        for path in [
            "/rustc/59807616e1fa2540724bfbac14d7976d7e4a3860/library/alloc/src/alloc.rs",
            "/home/a/.rustup/toolchains/x/lib/rustlib/src/rust/library/core/src/sync/atomic.rs",
            "/usr/include/c++/12/bits/stl_vector.h",
        ] {
            assert!(is_library_file(path), "{path}");
        }
        for path in ["/home/a/library/src/alloc.rs", "src/main.rs", ""] {
            assert!(!is_library_file(path), "{path}");
        }
    }

    #[test]
    fn containers_are_library_and_their_users_are_not() {
        for name in [
            "std::vector<int, std::allocator<int> >::_M_realloc_insert<int const&>(int const&)",
            "std::__new_allocator<Node>::allocate(unsigned long, void const*)",
            "void std::vector<Node, std::allocator<Node> >::resize(unsigned long)",
            "__gnu_cxx::new_allocator<char>::allocate",
            "alloc::raw_vec::RawVec<T,A>::grow_one",
            "<alloc::vec::Vec<T> as core::clone::Clone>::clone",
            "std::collections::hash::map::HashMap<K,V,S>::insert",
        ] {
            assert!(is_library(name), "{name}");
        }
        for name in [
            "main",
            "sim::Stats::Stats(std::vector<int>)",
            "<app::Tree as core::ops::drop::Drop>::drop",
            "std_like::make",
            "",
        ] {
            assert!(!is_library(name), "{name}");
        }
    }
}
