//! Decides which functions of a module are allocation functions.

use std::collections::BTreeSet;
use std::path::Path;

use membound_rewrite::image::Image;
use membound_rewrite::patch::Wrapped;
use membound_wire::WrapKind;

use crate::allocations::AllocationFunction;

/// First number of a function that the user named.
const FIRST_OTHER: u16 = 16;
/// Most functions that the user may name: numbers have eight bits.
pub(crate) const MAX_OTHERS: usize = 240;

/// Functions of C libraries, and of libraries that replace their allocators.
const USUAL: &[(&str, WrapKind, AllocationFunction)] = {
    use AllocationFunction as Function;
    &[
        ("malloc", WrapKind::Sized, Function::Malloc),
        ("calloc", WrapKind::Counted, Function::Calloc),
        ("realloc", WrapKind::Resized, Function::Realloc),
        ("reallocarray", WrapKind::ResizedCounted, Function::Realloc),
        ("reallocf", WrapKind::Resized, Function::Realloc),
        ("aligned_alloc", WrapKind::Aligned, Function::Aligned),
        ("memalign", WrapKind::Aligned, Function::Aligned),
        ("posix_memalign", WrapKind::AlignedInto, Function::Aligned),
        ("valloc", WrapKind::Sized, Function::Aligned),
        ("pvalloc", WrapKind::Sized, Function::Aligned),
        ("free", WrapKind::Free, Function::Free),
        ("cfree", WrapKind::Free, Function::Free),
        ("free_sized", WrapKind::Free, Function::Free),
        ("free_aligned_sized", WrapKind::Free, Function::Free),
        ("mmap", WrapKind::Map, Function::Mmap),
        ("mmap64", WrapKind::Map, Function::Mmap),
        ("munmap", WrapKind::Unmap, Function::Munmap),
        ("mremap", WrapKind::Remap, Function::Mmap),
        // jemalloc, also with the prefix of Rust's crates.
        ("je_malloc", WrapKind::Sized, Function::Malloc),
        ("je_calloc", WrapKind::Counted, Function::Calloc),
        ("je_realloc", WrapKind::Resized, Function::Realloc),
        ("je_aligned_alloc", WrapKind::Aligned, Function::Aligned),
        ("je_memalign", WrapKind::Aligned, Function::Aligned),
        (
            "je_posix_memalign",
            WrapKind::AlignedInto,
            Function::Aligned,
        ),
        ("je_valloc", WrapKind::Sized, Function::Aligned),
        ("je_mallocx", WrapKind::Sized, Function::Malloc),
        ("je_rallocx", WrapKind::Resized, Function::Realloc),
        ("je_free", WrapKind::Free, Function::Free),
        ("je_dallocx", WrapKind::Free, Function::Free),
        ("je_sdallocx", WrapKind::Free, Function::Free),
        ("mallocx", WrapKind::Sized, Function::Malloc),
        ("rallocx", WrapKind::Resized, Function::Realloc),
        ("dallocx", WrapKind::Free, Function::Free),
        ("sdallocx", WrapKind::Free, Function::Free),
        ("_rjem_malloc", WrapKind::Sized, Function::Malloc),
        ("_rjem_calloc", WrapKind::Counted, Function::Calloc),
        ("_rjem_realloc", WrapKind::Resized, Function::Realloc),
        ("_rjem_aligned_alloc", WrapKind::Aligned, Function::Aligned),
        (
            "_rjem_posix_memalign",
            WrapKind::AlignedInto,
            Function::Aligned,
        ),
        ("_rjem_mallocx", WrapKind::Sized, Function::Malloc),
        ("_rjem_rallocx", WrapKind::Resized, Function::Realloc),
        ("_rjem_free", WrapKind::Free, Function::Free),
        ("_rjem_dallocx", WrapKind::Free, Function::Free),
        ("_rjem_sdallocx", WrapKind::Free, Function::Free),
        // mimalloc.
        ("mi_malloc", WrapKind::Sized, Function::Malloc),
        ("mi_zalloc", WrapKind::Sized, Function::Calloc),
        ("mi_calloc", WrapKind::Counted, Function::Calloc),
        ("mi_mallocn", WrapKind::Counted, Function::Malloc),
        ("mi_realloc", WrapKind::Resized, Function::Realloc),
        ("mi_reallocf", WrapKind::Resized, Function::Realloc),
        ("mi_reallocn", WrapKind::ResizedCounted, Function::Realloc),
        (
            "mi_reallocarray",
            WrapKind::ResizedCounted,
            Function::Realloc,
        ),
        ("mi_rezalloc", WrapKind::Resized, Function::Realloc),
        ("mi_malloc_aligned", WrapKind::Sized, Function::Aligned),
        ("mi_zalloc_aligned", WrapKind::Sized, Function::Aligned),
        ("mi_calloc_aligned", WrapKind::Counted, Function::Aligned),
        ("mi_realloc_aligned", WrapKind::Resized, Function::Realloc),
        ("mi_rezalloc_aligned", WrapKind::Resized, Function::Realloc),
        ("mi_memalign", WrapKind::Aligned, Function::Aligned),
        ("mi_aligned_alloc", WrapKind::Aligned, Function::Aligned),
        (
            "mi_posix_memalign",
            WrapKind::AlignedInto,
            Function::Aligned,
        ),
        ("mi_valloc", WrapKind::Sized, Function::Aligned),
        ("mi_pvalloc", WrapKind::Sized, Function::Aligned),
        ("mi_free", WrapKind::Free, Function::Free),
        ("mi_cfree", WrapKind::Free, Function::Free),
        ("mi_free_size", WrapKind::Free, Function::Free),
        ("mi_free_aligned", WrapKind::Free, Function::Free),
        ("mi_free_size_aligned", WrapKind::Free, Function::Free),
        // tcmalloc.
        ("tc_malloc", WrapKind::Sized, Function::Malloc),
        ("tc_calloc", WrapKind::Counted, Function::Calloc),
        ("tc_realloc", WrapKind::Resized, Function::Realloc),
        ("tc_memalign", WrapKind::Aligned, Function::Aligned),
        (
            "tc_posix_memalign",
            WrapKind::AlignedInto,
            Function::Aligned,
        ),
        ("tc_valloc", WrapKind::Sized, Function::Aligned),
        ("tc_pvalloc", WrapKind::Sized, Function::Aligned),
        ("tc_free", WrapKind::Free, Function::Free),
        ("tc_free_sized", WrapKind::Free, Function::Free),
        ("tc_cfree", WrapKind::Free, Function::Free),
    ]
};

/// C++ operators, by their names in the Itanium ABI.
const OPERATORS: &[(&str, WrapKind, AllocationFunction)] = {
    use AllocationFunction as Function;
    &[
        ("_Znwm", WrapKind::Sized, Function::Malloc),
        ("_Znam", WrapKind::Sized, Function::Malloc),
        ("_ZnwmRKSt9nothrow_t", WrapKind::Sized, Function::Malloc),
        ("_ZnamRKSt9nothrow_t", WrapKind::Sized, Function::Malloc),
        ("_ZnwmSt11align_val_t", WrapKind::Sized, Function::Aligned),
        ("_ZnamSt11align_val_t", WrapKind::Sized, Function::Aligned),
        (
            "_ZnwmSt11align_val_tRKSt9nothrow_t",
            WrapKind::Sized,
            Function::Aligned,
        ),
        (
            "_ZnamSt11align_val_tRKSt9nothrow_t",
            WrapKind::Sized,
            Function::Aligned,
        ),
        ("_ZdlPv", WrapKind::Free, Function::Free),
        ("_ZdaPv", WrapKind::Free, Function::Free),
        ("_ZdlPvm", WrapKind::Free, Function::Free),
        ("_ZdaPvm", WrapKind::Free, Function::Free),
        ("_ZdlPvRKSt9nothrow_t", WrapKind::Free, Function::Free),
        ("_ZdaPvRKSt9nothrow_t", WrapKind::Free, Function::Free),
        ("_ZdlPvSt11align_val_t", WrapKind::Free, Function::Free),
        ("_ZdaPvSt11align_val_t", WrapKind::Free, Function::Free),
        ("_ZdlPvmSt11align_val_t", WrapKind::Free, Function::Free),
        ("_ZdaPvmSt11align_val_t", WrapKind::Free, Function::Free),
    ]
};

/// Libraries whose operators only call `malloc` and `free`.
const PLAIN_OPERATORS: [&str; 3] = ["libstdc++.so", "libc++.so", "libc++abi.so"];
/// The loader of glibc: its own allocations, before it uses `malloc`, are not the program's.
const LOADER: &str = "ld-linux";

/// Functions of sanitizers' runtimes. These follow frame pointers from the allocation functions, and print the
/// callers in the program's own output.
const SANITIZERS: [&str; 5] = [
    "__asan_init",
    "__hwasan_init",
    "__lsan_do_leak_check",
    "__msan_init",
    "__tsan_init",
];

/// The allocation functions that are wrapped.
#[derive(Clone, Debug, Default)]
pub(crate) struct Allocators {
    /// The user's pairs of allocating and freeing functions.
    others: Vec<(String, String)>,
}

impl Allocators {
    pub(crate) fn new(others: &[(String, String)]) -> Self {
        let others = others.iter().take(MAX_OTHERS).cloned().collect();
        Self { others }
    }

    /// Everything that [`Self::of`] depends on, except the file itself.
    pub(crate) fn key(&self, path: &Path) -> String {
        format!("{:?} {:?}", path.file_name(), self.others)
    }

    /// The functions to wrap in a module that its processes call `path`.
    pub(crate) fn of(&self, image: &Image<'_>, path: &Path) -> Vec<Wrapped> {
        let name = path.file_name().and_then(|name| name.to_str());
        let is = |prefix: &str| name.is_some_and(|name| name.starts_with(prefix));
        let is_sanitizer = |name: &[u8]| SANITIZERS.iter().any(|it| it.as_bytes() == name);
        if is(LOADER) || !image.functions_named(is_sanitizer).is_empty() {
            return Vec::new();
        }
        let mut wanted: Vec<(&str, WrapKind, u16)> = Vec::new();
        for (index, (allocates, frees)) in self.others.iter().enumerate() {
            let number = FIRST_OTHER + u16::try_from(index).expect("others are cut to fit");
            wanted.push((allocates, WrapKind::Sized, number));
            wanted.push((frees, WrapKind::Free, number));
        }
        let usual = USUAL.iter();
        let operators = OPERATORS
            .iter()
            .filter(|_| !PLAIN_OPERATORS.iter().any(|plain| is(plain)));
        wanted.extend(
            usual
                .chain(operators)
                .map(|(name, kind, function)| (*name, *kind, number_of(*function))),
        );
        let present: Vec<(u64, &[u8])> = image
            .functions_named(|name| wanted.iter().any(|(wanted, ..)| wanted.as_bytes() == name));
        let is_free = |name: &[u8]| {
            wanted
                .iter()
                .any(|(wanted, kind, _)| wanted.as_bytes() == name && *kind == WrapKind::Free)
        };
        // A single one cannot call another, so nested calls need not be detected.
        let freeing: BTreeSet<u64> = present
            .iter()
            .filter(|(_, name)| is_free(name))
            .map(|(address, _)| *address)
            .collect();
        let wrapped = wanted
            .iter()
            .filter(|(wanted, ..)| present.iter().any(|(_, name)| *name == wanted.as_bytes()))
            .map(|(name, kind, number)| {
                let kind = match kind {
                    WrapKind::Free if freeing.len() > 1 => WrapKind::FreeOuter,
                    other => *other,
                };
                Wrapped {
                    name: (*name).to_owned(),
                    number: kind as u32 | u32::from(*number) << 16,
                }
            });
        wrapped.collect()
    }
}

/// Writes functions to wrap as text: a line for each, with number and name.
pub(crate) fn to_bytes(wrapped: &[Wrapped]) -> Vec<u8> {
    let lines = wrapped
        .iter()
        .map(|it| format!("{} {}\n", it.number, it.name));
    lines.collect::<String>().into_bytes()
}

/// The reverse of [`to_bytes`]; `None` for anything else.
pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Vec<Wrapped>> {
    let lines = std::str::from_utf8(bytes).ok()?.lines();
    let wrapped = lines.map(|line| {
        let (number, name) = line.split_once(' ')?;
        Some(Wrapped {
            name: name.to_owned(),
            number: number.parse().ok()?,
        })
    });
    wrapped.collect()
}

/// The number of a function in records.
const fn number_of(function: AllocationFunction) -> u16 {
    match function {
        AllocationFunction::Malloc => 0,
        AllocationFunction::Calloc => 1,
        AllocationFunction::Realloc => 2,
        AllocationFunction::Aligned => 3,
        AllocationFunction::Mmap => 4,
        AllocationFunction::Free => 5,
        AllocationFunction::Munmap => 6,
        AllocationFunction::Other(index) => FIRST_OTHER + index,
    }
}

/// The function with this number in records.
pub(crate) fn function_of(number: u8) -> Option<AllocationFunction> {
    Some(match number {
        0 => AllocationFunction::Malloc,
        1 => AllocationFunction::Calloc,
        2 => AllocationFunction::Realloc,
        3 => AllocationFunction::Aligned,
        4 => AllocationFunction::Mmap,
        5 => AllocationFunction::Free,
        6 => AllocationFunction::Munmap,
        number => AllocationFunction::Other(u16::from(number).checked_sub(FIRST_OTHER)?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stand_for_functions() {
        for (_, _, function) in USUAL.iter().chain(OPERATORS) {
            let number = u8::try_from(number_of(*function)).unwrap();
            assert_eq!(function_of(number), Some(*function));
        }
        let last = AllocationFunction::Other(u16::try_from(MAX_OTHERS).unwrap() - 1);
        assert_eq!(function_of(255), Some(last));
        assert_eq!(function_of(9), None);
    }

    #[test]
    fn what_is_wrapped_is_read_as_it_was_written() {
        let wrapped = ["malloc", "_ZdlPv"].map(|name| Wrapped {
            name: name.to_owned(),
            number: 7 << 16 | 3,
        });
        assert_eq!(
            from_bytes(&to_bytes(&wrapped)).as_deref(),
            Some(&wrapped[..])
        );
        assert_eq!(from_bytes(b""), Some(Vec::new()));
        assert_eq!(from_bytes(b"x malloc\n"), None);
    }

    #[test]
    fn a_name_stands_once() {
        let names: BTreeSet<&str> = USUAL.iter().chain(OPERATORS).map(|it| it.0).collect();
        assert_eq!(names.len(), USUAL.len() + OPERATORS.len());
    }
}
