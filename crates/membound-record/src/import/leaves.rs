//! Finds what sampled instructions waited for, function by function, once the recording has been read.
//!
//! A recording of a whole machine has samples in tens of thousands of functions. Decoding them takes longer
//! than everything else in an import, and together they would take gigabytes: so each is decoded once,
//! answers all questions about it, and is freed.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread;

use membound_launch::Registers;
use membound_rewrite::stall::{Bases, CodeFunction, Effective};
use membound_run::{FrameId, ModuleId};
use rayon::prelude::*;

use crate::modules::CodeModule;
use crate::sites::Studied;

/// A sampled instruction.
#[derive(Debug)]
pub(super) struct Leaf {
    pub(super) frame: FrameId,
    pub(super) module: Arc<CodeModule>,
    /// Address in the module's file.
    pub(super) address: u64,
    /// Samples of it from which the accessed address can be computed.
    pub(super) samples: Vec<LeafSample>,
}

/// A sample with the program's registers.
#[derive(Debug)]
pub(super) struct LeafSample {
    /// Index of the sample.
    pub(super) sample: usize,
    pub(super) registers: Registers,
    /// Address in the process minus address in the file.
    pub(super) bias: u64,
}

/// Results of decoding a sampled function.
#[derive(Debug)]
pub(super) struct OfFunction {
    pub(super) module: Arc<CodeModule>,
    pub(super) range: Range<u64>,
    /// Frame and address of each sampled instruction, with what it waited for.
    pub(super) leaves: Vec<(FrameId, u64, Studied)>,
    /// First addresses of the loops around sampled instructions and their accesses, innermost first.
    pub(super) loops: Vec<(u64, Vec<u64>)>,
    /// Accessed addresses, by index of the sample.
    pub(super) accessed: Vec<(usize, Effective)>,
}

impl OfFunction {
    /// `leaves` are the function's sampled instructions, by address; `None` if there are none.
    fn of(function: &CodeFunction, leaves: &[Leaf]) -> Option<Self> {
        let module = Arc::clone(&leaves.first()?.module);
        let mut accessed = Vec::new();
        let mut studied = Vec::with_capacity(leaves.len());
        for leaf in leaves {
            let found = Studied::of(function, leaf.address);
            if let Some(site) = found.likeliest() {
                accessed.extend(leaf.samples.iter().filter_map(|sample| {
                    let bases = Bases {
                        bias: sample.bias,
                        ..Bases::default()
                    };
                    let registers = sample.registers.x86_64();
                    let it = function.effective_address(site, leaf.address, registers, bases)?;
                    Some((sample.sample, it))
                }));
            }
            studied.push((leaf.frame, leaf.address, found));
        }
        let sites = studied.iter().flat_map(|(_, _, found)| &found.sites);
        let mut met: Vec<u64> = sites.map(|(site, _)| *site).collect();
        met.extend(leaves.iter().map(|leaf| leaf.address));
        met.sort_unstable();
        met.dedup();
        let loops = met.into_iter().map(|at| (at, function.loop_starts(at)));
        Some(Self {
            module,
            range: function.range(),
            loops: loops.filter(|(_, starts)| !starts.is_empty()).collect(),
            leaves: studied,
            accessed,
        })
    }
}

/// Passes the results for the functions that contain `leaves` to `take`, by module and address. Instructions
/// outside of any function are left out.
pub(super) fn study(leaves: Vec<Leaf>, mut take: impl FnMut(OfFunction)) {
    let (sender, found) = channel();
    thread::scope(|scope| {
        scope.spawn(move || study_all(leaves, &sender));
        // Functions are finished out of order, but passed on in order.
        let mut early = BTreeMap::new();
        let mut next = 0;
        for (at, function) in found {
            early.insert(at, function);
            while let Some(function) = early.remove(&next) {
                function.map(&mut take);
                next += 1;
            }
        }
    });
}

/// Decodes on several threads; sends each function with its position in the order.
fn study_all(mut leaves: Vec<Leaf>, found: &Sender<(usize, Option<OfFunction>)>) {
    let place = |leaf: &Leaf| -> (ModuleId, u64) { (leaf.module.id, leaf.address) };
    leaves.par_sort_unstable_by_key(place);
    let same_module = |one: &Leaf, other: &Leaf| one.module.id == other.module.id;
    let of_modules: Vec<&[Leaf]> = leaves.chunk_by(same_module).collect();
    let functions: Vec<&[Leaf]> = of_modules.into_par_iter().flat_map(by_function).collect();
    let functions = functions.into_iter().enumerate().par_bridge();
    functions.for_each(|(at, leaves)| {
        let study = || {
            let first = leaves.first()?;
            OfFunction::of(&first.module.code()?.decode(first.address)?, leaves)
        };
        // The receiver is gone only if its thread has panicked.
        let _ = found.send((at, study()));
    });
}

/// Splits instructions of one module, in ascending order, by the function that contains them.
fn by_function(mut leaves: &[Leaf]) -> Vec<&[Leaf]> {
    let mut functions = Vec::new();
    while let Some(first) = leaves.first() {
        let range = first
            .module
            .code()
            .and_then(|it| it.function(first.address));
        let Some(range) = range else {
            leaves = &leaves[1..];
            continue;
        };
        let inside = leaves.partition_point(|leaf| leaf.address < range.end);
        let (of_function, others) = leaves.split_at(inside.max(1));
        functions.push(of_function);
        leaves = others;
    }
    functions
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use membound_run::ProcessId;

    use super::*;
    use crate::modules::Modules;

    fn leaf(frame: u32, module: &Arc<CodeModule>, address: u64) -> Leaf {
        Leaf {
            frame: FrameId(frame),
            module: Arc::clone(module),
            address,
            samples: Vec::new(),
        }
    }

    fn studied(leaves: Vec<Leaf>) -> Vec<OfFunction> {
        let mut functions = Vec::new();
        study(leaves, |function| functions.push(function));
        functions
    }

    /// This test's own file, and the address of a function in it.
    fn own_code() -> (Arc<CodeModule>, u64) {
        let mut modules = Modules::default();
        let here = own_code as *const () as u64;
        let maps = membound_launch::maps_of(std::process::id()).unwrap();
        let map = maps.iter().find(|map| map.range.contains(&here)).unwrap();
        let (module, bias) = modules.of(std::process::id(), ProcessId(0), map);
        assert!(Path::new(&module.path).is_absolute());
        (module, here - bias)
    }

    #[test]
    fn functions_that_are_studied_once_say_what_their_code_says() {
        let (module, start) = own_code();
        // Backwards, and with samples that tell registers.
        let leaves = (0..16_000).rev().map(|at| {
            let mut leaf = leaf(at, &module, start + u64::from(at));
            leaf.samples.push(LeafSample {
                sample: at as usize,
                registers: Registers::from([0x10_0000; 16]),
                bias: 0x5000,
            });
            leaf
        });
        let functions = studied(leaves.collect());
        let code = module.code().unwrap();
        let starts: Vec<u64> = functions.iter().map(|it| it.range.start).collect();
        assert!(
            starts.len() > 3 && starts.is_sorted_by(|a, b| a < b),
            "{starts:x?}"
        );
        let (mut leaves, mut sites, mut loops, mut accessed) = (0, 0, 0, 0);
        for function in functions {
            for (frame, address, found) in &function.leaves {
                assert_eq!(u64::from(frame.0), address - start);
                assert!(function.range.contains(address));
                assert_eq!(found.waits, code.waits(*address));
                for (site, info) in &found.sites {
                    assert_eq!(code.site(*site).as_ref(), Some(info));
                    sites += 1;
                }
                let attributed = function
                    .accessed
                    .iter()
                    .find(|(sample, _)| *sample == frame.index());
                let site = found.likeliest();
                let bases = Bases {
                    bias: 0x5000,
                    ..Bases::default()
                };
                let expected = site.and_then(|site| {
                    code.effective_address(site, *address, &[0x10_0000; 16], bases)
                });
                assert_eq!(attributed.map(|(_, it)| *it), expected);
                accessed += usize::from(expected.is_some());
                leaves += 1;
            }
            for (address, starts) in &function.loops {
                assert_eq!(*starts, code.loop_starts(*address));
                loops += 1;
            }
        }
        assert!(leaves > 3000 && sites > 100 && loops > 0 && accessed > 100);
    }

    #[test]
    fn what_has_no_code_is_left_out() {
        let module = Modules::default().named(b"/no/such/file");
        assert!(studied(vec![leaf(0, &module, 0x1000)]).is_empty());
        assert!(studied(Vec::new()).is_empty());
    }
}
