//! Functions that never return.
//!
//! They are known by name if they are imported or named by the ABI. Others are derived: a function without a
//! return whose exits all lead to such functions. In doubt, a function is assumed to return.

/// Names that standards and language runtimes reserve for functions that do not return. Names that a program
/// may use for its own functions are not included.
const NAMES: [&str; 36] = [
    "exit",
    "_exit",
    "_Exit",
    "quick_exit",
    "abort",
    "longjmp",
    "_longjmp",
    "siglongjmp",
    "__longjmp_chk",
    "pthread_exit",
    "thrd_exit",
    "__assert",
    "__assert_fail",
    "__assert_perror_fail",
    "__stack_chk_fail",
    "__stack_chk_fail_local",
    "__fortify_fail",
    "__chk_fail",
    "__libc_fatal",
    "__libc_start_main",
    "__cxa_throw",
    "__cxa_rethrow",
    "__cxa_bad_cast",
    "__cxa_bad_typeid",
    "__cxa_throw_bad_array_new_length",
    "__cxa_throw_bad_array_length",
    "__cxa_call_unexpected",
    "__cxa_call_terminate",
    "__clang_call_terminate",
    "__cxa_pure_virtual",
    "__cxa_deleted_virtual",
    "_Unwind_Resume",
    "_ZSt9terminatev",
    "_ZSt10unexpectedv",
    "_ZSt17rethrow_exceptionNSt15__exception_ptr13exception_ptrE",
    "rust_begin_unwind",
];

/// True if a function with this name never returns.
pub(super) fn by_name(name: &[u8]) -> bool {
    let Ok(name) = std::str::from_utf8(name) else {
        return false;
    };
    // `std::__throw_bad_alloc()` and similar.
    let throws = name.strip_prefix("_ZSt").is_some_and(|rest| {
        rest.trim_start_matches(|c: char| c.is_ascii_digit())
            .starts_with("__throw_")
    });
    throws || NAMES.contains(&name)
}

/// How control can leave a function, from the pass over its instructions.
#[derive(Clone, Debug, Default)]
pub(super) struct Exits {
    /// True if it contains a return, an indirect jump, or bytes that cannot be decoded.
    pub(super) may_return: bool,
    /// Targets of direct jumps out of the function.
    pub(super) jumps: Vec<u64>,
    /// The callee of the call that the function ends with, if it does.
    pub(super) last_call: Option<Callee>,
}

impl Exits {
    /// Addresses to which control leaves directly.
    pub(super) fn targets(&self) -> impl Iterator<Item = u64> {
        let called = match self.last_call {
            Some(Callee::Direct(target)) => Some(target),
            _ => None,
        };
        self.jumps.iter().copied().chain(called)
    }
}

/// The target of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Callee {
    /// The function at this address.
    Direct(u64),
    /// The function whose address is in the word at this address.
    Slot(u64),
}

/// Finds the functions that never return, as the least fixpoint. `never_returns` marks
/// those known at the outset.
/// `leads_to` returns the index of the callee's function if it has one, or `Err` if the callee is known never
/// to return.
pub(super) fn derive(
    exits: &[Exits],
    never_returns: &mut [bool],
    leads_to: impl Fn(Callee) -> Result<Option<usize>, NeverReturns>,
) {
    // For each function, the functions to examine again when it turns out not to return.
    let mut dependants: Vec<Vec<u32>> = vec![Vec::new(); exits.len()];
    let callees = |exits: &Exits| {
        exits
            .jumps
            .iter()
            .map(|&target| Callee::Direct(target))
            .chain(exits.last_call)
            .collect::<Vec<_>>()
    };
    for (index, exits) in exits.iter().enumerate() {
        if exits.may_return {
            continue;
        }
        for callee in callees(exits) {
            if let Ok(Some(function)) = leads_to(callee) {
                dependants[function]
                    .push(u32::try_from(index).expect("functions are counted in fewer than 2^32"));
            }
        }
    }
    let mut work: Vec<u32> = (0..u32::try_from(exits.len()).unwrap_or(0)).collect();
    while let Some(index) = work.pop() {
        let index = index as usize;
        if exits[index].may_return || never_returns[index] {
            continue;
        }
        let never = callees(&exits[index])
            .into_iter()
            .all(|callee| match leads_to(callee) {
                Err(NeverReturns) => true,
                Ok(Some(function)) => never_returns[function],
                Ok(None) => false,
            });
        if never {
            never_returns[index] = true;
            work.extend(&dependants[index]);
        }
    }
}

/// The callee is known never to return.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NeverReturns;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserved_names_and_nothing_else() {
        for name in ["exit", "_ZSt20__throw_length_errorPKc", "__stack_chk_fail"] {
            assert!(by_name(name.as_bytes()), "{name}");
        }
        for name in [
            "exit_group_leader",
            "error",
            "err",
            "_Unwind_RaiseException",
        ] {
            assert!(!by_name(name.as_bytes()), "{name}");
        }
    }

    #[test]
    fn only_what_cannot_return_is_derived() {
        let function = |may_return, jumps: &[u64], last_call: Option<u64>| Exits {
            may_return,
            jumps: jumps.to_vec(),
            last_call: last_call.map(Callee::Direct),
        };
        let exits = [
            function(false, &[], Some(900)), // 0: ends by calling exit
            function(false, &[0], None),     // 1: jumps to 0
            function(true, &[1], None),      // 2: jumps to 1 or returns
            function(false, &[1, 2], None),  // 3: jumps to 1 or 2
            function(false, &[5], None),     // 4 and 5 jump to each other
            function(false, &[4], None),
            function(false, &[], None),      // 6: loops for ever
            function(false, &[], Some(800)), // 7: falls off its end after an unknown call
        ];
        let mut never_returns = vec![false; exits.len()];
        derive(&exits, &mut never_returns, |callee| match callee {
            Callee::Direct(900) => Err(NeverReturns),
            Callee::Direct(target) if target < 8 => Ok(Some(usize::try_from(target).unwrap())),
            _ => Ok(None),
        });
        assert_eq!(
            never_returns,
            [true, true, false, false, false, false, true, false]
        );
    }
}
