//! Where calls of a function begin and end, for marks.
//!
//! A call begins at the function's first instruction that may be moved. It ends at each return and at each
//! jump that leaves the function for good, where the stack pointer has the value it had at the beginning. The
//! part that a compiler has moved out of the function (`name.cold`) belongs to it. A function is refused if
//! not all of its ends are known: a call whose end is missed would seem to continue forever.

use std::fmt;
use std::ops::Range;

use super::{Groundwork, wraps};
use crate::code::{BlockEnd, Function, Unresolved};
use crate::image::Image;

/// Where calls of the functions with a given name begin and end, as addresses of the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Calls {
    /// Addresses where calls begin: sorted, one for each function.
    pub begins: Vec<u64>,
    /// Addresses where calls end: sorted.
    pub ends: Vec<u64>,
}

/// Why the beginning or the ends of a function's calls are not known, with an address of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CallsRefusal {
    /// The first instruction is not known, or no instruction at the entry may be moved.
    NoEntry(u64),
    /// A jump inside the function leads back to its first instruction.
    ComesBack(u64),
    /// The function returns at its first instruction, so beginning and end would coincide.
    AtOnce(u64),
    /// The function is left by a conditional jump, or by a table jump that may also stay in it.
    Conditional(u64),
    /// The function is left by a jump with unknown target, or part of it could not be decoded.
    Unknown(u64),
}

impl fmt::Display for CallsRefusal {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoEntry(at) => write!(out, "no instruction to patch is known at {at:#x}"),
            Self::ComesBack(at) => write!(out, "control comes back to its entry at {at:#x}"),
            Self::AtOnce(at) => write!(out, "it returns at once at {at:#x}"),
            Self::Conditional(at) => {
                write!(
                    out,
                    "it is left by a jump at {at:#x} that may also stay in it"
                )
            }
            Self::Unknown(at) => write!(out, "where control goes at {at:#x} is not known"),
        }
    }
}

impl Groundwork {
    /// Addresses where calls of the functions named `name` begin.
    ///
    /// # Errors
    /// If a function of that name has no instruction at its entry that could be patched.
    pub fn entries(&self, image: &Image<'_>, name: &str) -> Result<Vec<u64>, CallsRefusal> {
        let mut entries = Vec::new();
        for address in addresses(image, |found| found == name) {
            let (function, entry) = self.entry(image, address)?;
            entries.push(function.instructions[entry].ip());
        }
        Ok(entries)
    }

    /// Addresses where calls of the functions named `name` begin and end; empty if the image has none.
    ///
    /// # Errors
    /// If not every end of one of them is known, or its entry cannot be patched.
    pub fn calls(&self, image: &Image<'_>, name: &str) -> Result<Calls, CallsRefusal> {
        let mut calls = Calls::default();
        let mut parts = Vec::new();
        for address in addresses(image, |found| found == name) {
            let (function, entry) = self.entry(image, address)?;
            if comes_back(&function, entry) {
                return Err(CallsRefusal::ComesBack(address));
            }
            calls.begins.push(function.instructions[entry].ip());
            parts.push(function);
        }
        let aside = addresses(image, |found| is_aside(found, name));
        let aside = aside.into_iter().filter_map(|at| image.function_at(at));
        parts.extend(aside.map(|index| self.function(image, index)));
        let ranges: Vec<Range<u64>> = parts
            .iter()
            .map(|function| function.bounds.range.clone())
            .collect();
        for function in &parts {
            ends(function, &ranges, &mut calls.ends)?;
        }
        calls.ends.sort_unstable();
        calls.ends.dedup();
        let at_once = |at: &&u64| calls.ends.binary_search(at).is_ok();
        match calls.begins.iter().find(at_once) {
            Some(at) => Err(CallsRefusal::AtOnce(*at)),
            None => Ok(calls),
        }
    }

    /// The function at an address, and the index of its first instruction that may be moved.
    fn entry(&self, image: &Image<'_>, address: u64) -> Result<(Function, usize), CallsRefusal> {
        let refused = CallsRefusal::NoEntry(address);
        let index = image.function_at(address).ok_or(refused)?;
        let function = self.function(image, index);
        if function.bounds.range.start != address {
            return Err(refused);
        }
        let entry = wraps::entry(&function, address).ok_or(refused)?;
        Ok((function, entry))
    }
}

/// Addresses of the functions whose name is `wanted`, sorted.
fn addresses(image: &Image<'_>, wanted: impl Fn(&str) -> bool) -> Vec<u64> {
    let is_wanted = |name: &[u8]| std::str::from_utf8(name).is_ok_and(&wanted);
    let named = image.functions_named(is_wanted);
    let mut addresses: Vec<u64> = named.into_iter().map(|(address, _)| address).collect();
    addresses.sort_unstable();
    addresses.dedup();
    addresses
}

/// True if `found` is a compiler's name for a part that was moved out of the function `name`.
fn is_aside(found: &str, name: &str) -> bool {
    let rest = found.strip_prefix(name);
    let rest = rest.and_then(|rest| rest.strip_prefix(".cold"));
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// True if a jump inside the function leads to the instruction `entry`.
fn comes_back(function: &Function, entry: usize) -> bool {
    let contains_entry = |block: &crate::code::BasicBlock| {
        (block.first as usize..block.end as usize).contains(&entry)
    };
    let Some(first) = function.blocks.iter().position(contains_entry) else {
        return true;
    };
    let mut blocks = function.blocks.iter().enumerate();
    blocks.any(|(index, block)| {
        let runs_in = index + 1 == first && block.leaves_by == BlockEnd::FallsThrough;
        !runs_in && block.successors.iter().any(|next| next.0 as usize == first)
    })
}

/// Adds the addresses where `function` is left; jumps between the ranges in `parts` do not leave it.
fn ends(
    function: &Function,
    parts: &[Range<u64>],
    ends: &mut Vec<u64>,
) -> Result<(), CallsRefusal> {
    if let Some(Unresolved::Undecodable(at)) = function.unresolved {
        return Err(CallsRefusal::Unknown(at));
    }
    for block in &function.blocks {
        let Some(last) = function.block_instructions(block).last() else {
            continue;
        };
        match block.leaves_by {
            BlockEnd::Return | BlockEnd::TailCall => ends.push(last.ip()),
            BlockEnd::Leaves { target, .. } if parts.iter().any(|part| part.contains(&target)) => {
                // A jump table: `target` is one of its destinations, others may be outside.
                if !last.is_jmp_short_or_near() && !last.is_jcc_short_or_near() {
                    return Err(CallsRefusal::Conditional(last.ip()));
                }
            }
            BlockEnd::Leaves { conditional, .. } => {
                if conditional {
                    return Err(CallsRefusal::Conditional(last.ip()));
                }
                if !last.is_jmp_short_or_near() {
                    return Err(CallsRefusal::Unknown(last.ip()));
                }
                ends.push(last.ip());
            }
            BlockEnd::Unresolved => return Err(CallsRefusal::Unknown(last.ip())),
            BlockEnd::FallsThrough
            | BlockEnd::Jump
            | BlockEnd::Call { .. }
            | BlockEnd::Table
            | BlockEnd::Stops => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: u64 = 0x1000;

    #[track_caller]
    fn check(code: &[u8], parts: &[Range<u64>], expected: Result<&[u64], CallsRefusal>) {
        let function = Function::from_code(code, AT);
        let mut found = Vec::new();
        let whole = function.bounds.range.clone();
        let parts: Vec<Range<u64>> = parts.iter().cloned().chain([whole]).collect();
        let result = ends(&function, &parts, &mut found);
        assert_eq!(result.map(|()| found.as_slice()), expected);
    }

    #[test]
    fn returns_and_jumps_away_are_ends() {
        // test edi, edi; jz 2f; mov eax, 1; ret; 2: jmp +0x100
        let code = [
            0x85, 0xff, 0x74, 0x06, 0xb8, 1, 0, 0, 0, 0xc3, 0xe9, 0, 1, 0, 0,
        ];
        check(&code, &[], Ok(&[AT + 9, AT + 10]));
        // If the second jump leads to the part that was moved out, it does not end the call.
        let aside = AT + 0x100..AT + 0x200;
        check(&code, &[aside], Ok(&[AT + 9]));
    }

    #[test]
    fn a_conditional_jump_away_is_refused() {
        // test edi, edi; jz +0x100; ret
        let code = [0x85, 0xff, 0x0f, 0x84, 0, 1, 0, 0, 0xc3];
        check(&code, &[], Err(CallsRefusal::Conditional(AT + 2)));
        let aside = AT + 0x100..AT + 0x200;
        check(&code, &[aside], Ok(&[AT + 8]));
    }

    #[test]
    fn a_loop_to_the_entry_comes_back() {
        // 1: dec edi; jnz 1b; ret
        let function = Function::from_code(&[0xff, 0xcf, 0x75, 0xfc, 0xc3], AT);
        assert!(comes_back(&function, 0));
        // xor eax, eax; 1: dec edi; jnz 1b; ret
        let function = Function::from_code(&[0x31, 0xc0, 0xff, 0xcf, 0x75, 0xfc, 0xc3], AT);
        assert!(!comes_back(&function, 0));
        // endbr64; 1: dec edi; jnz 1b; ret
        let code = [0xf3, 0x0f, 0x1e, 0xfa, 0xff, 0xcf, 0x75, 0xfc, 0xc3];
        let function = Function::from_code(&code, AT);
        assert!(comes_back(&function, 1));
    }

    #[test]
    fn cold_parts_are_recognised_by_their_names() {
        for name in ["serve.cold", "serve.cold.12"] {
            assert!(is_aside(name, "serve"), "{name}");
        }
        for name in ["serve", "serve.colder", "serve.part.0", "server.cold"] {
            assert!(!is_aside(name, "serve"), "{name}");
        }
    }

    #[test]
    fn calls_of_a_function_of_this_program_are_found() {
        let bytes = std::fs::read("/proc/self/exe").unwrap();
        let image = Image::parse(&bytes).unwrap();
        let options = crate::patch::Options::new(crate::patch::Body::Displace);
        let groundwork = Groundwork::of(&image, &options);
        let calls = groundwork.calls(&image, "main").unwrap();
        assert_eq!(calls.begins.len(), 1);
        assert!(!calls.ends.is_empty());
        assert_eq!(groundwork.entries(&image, "main"), Ok(calls.begins));
        assert_eq!(groundwork.calls(&image, "no such"), Ok(Calls::default()));
    }
}
