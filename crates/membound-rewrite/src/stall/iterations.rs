//! Loops whose iterations can be counted from a register.
//!
//! Many loops add a constant to a register in every iteration: to an index, a pointer, or a counter that runs
//! down. From that register alone, two samples of such a loop show how many iterations lie between them,
//! without any code added to the loop. This matters for loops of few instructions, where a counting patch
//! takes longer than the iteration that it counts.

use std::sync::Arc;

use iced_x86::Instruction;

use super::function::{CodeFunction, SiteKind, index_of, kind};
use super::loop_body::LoopBody;
use crate::code::{BlockEnd, BlockId, Function};
use crate::flow::{self, Analyst, Dominators, Loop, LoopId, Loops};
use crate::{Gpr, RegisterSet};

/// Loops around an instruction, from the innermost outward, in which [`super::Code::loop_stores`] looks for stores.
const STORING_LOOPS: usize = 2;

/// A register that counts the iterations of a loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IterationRegister {
    /// The register's number in the instruction set.
    pub register: u8,
    /// The constant that one iteration adds to it.
    pub step: i64,
    /// Number of its low bits that count: 32 or 64.
    pub bits: u32,
}

impl IterationRegister {
    /// Iterations between two values of the register; negative if the register moved against `step`.
    #[must_use]
    pub fn iterations_between(&self, from: u64, to: u64) -> f64 {
        let moved = to.wrapping_sub(from);
        let moved = if self.bits == 32 {
            i64::from((moved as u32).cast_signed())
        } else {
            moved.cast_signed()
        };
        moved as f64 / self.step as f64
    }
}

/// A loop that contains an instruction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CodeLoop {
    /// Address of its first block, which identifies the loop in its function.
    pub start: u64,
    /// The register that counts its iterations, if there is one.
    pub iterations: Option<IterationRegister>,
    /// Addresses of the accesses that run exactly once in each iteration, ascending.
    pub sites: Vec<u64>,
}

/// All loops of a function.
#[derive(Debug)]
pub(super) struct LoopNest {
    loops: Loops,
    /// The loops as reported, indexed by their numbers in `loops`.
    described: Vec<Arc<CodeLoop>>,
}

impl LoopNest {
    /// Finds and describes the loops of `function`.
    pub(super) fn of(function: &Function) -> Self {
        let loops = Loops::of(function);
        let dominators = Dominators::of(function);
        let nest = Nest {
            function,
            loops: &loops,
            dominators: &dominators,
        };
        let numbers = (0..loops.all().len()).filter_map(|number| u32::try_from(number).ok());
        let described = numbers.map(|number| Arc::new(nest.describe(LoopId(number))));
        Self {
            described: described.collect(),
            loops,
        }
    }

    /// The loops that contain the instruction at `address`, from the innermost outward.
    pub(super) fn around(&self, function: &Function, address: u64) -> Vec<Arc<CodeLoop>> {
        let block = index_of(function, address).and_then(|index| function.block_of(index));
        let around = block.into_iter().flat_map(|block| self.loops.around(block));
        around
            .map(|id| Arc::clone(&self.described[id.index()]))
            .collect()
    }
}

/// True if one execution may access memory any number of times.
fn repeats(instruction: &Instruction) -> bool {
    instruction.has_rep_prefix() || instruction.has_repne_prefix()
}

impl CodeFunction {
    /// See [`super::Code::loop_starts`].
    #[must_use]
    pub fn loop_starts(&self, address: u64) -> Vec<u64> {
        let around = self.loops_around(address);
        around.map(|it| start(self.function(), it)).collect()
    }

    /// See [`super::Code::loop_stores`].
    #[must_use]
    pub fn loop_stores(&self, address: u64) -> Vec<u64> {
        let stores = |around: &Loop| -> Vec<u64> {
            let function = self.function();
            let blocks = around.blocks.iter().map(|it| &function.blocks[it.index()]);
            let instructions = blocks.flat_map(|block| function.block_instructions(block));
            let stores = instructions.filter(|it| {
                let kind = flow::access(it).map(|access| kind(it, access.direction));
                matches!(kind, Some(SiteKind::Store | SiteKind::Both))
            });
            stores.map(Instruction::ip).collect()
        };
        let around = self.loops_around(address).take(STORING_LOOPS);
        let found = around.map(stores).find(|stores| !stores.is_empty());
        found.unwrap_or_default()
    }

    /// The loops that contain the instruction at `address`, from the innermost outward.
    fn loops_around(&self, address: u64) -> impl Iterator<Item = &Loop> {
        let block = self
            .index_of(address)
            .and_then(|index| self.function().block_of(index));
        let loops = self.loops();
        let around = block.into_iter().flat_map(|block| loops.around(block));
        around.map(|id| loops.get(id))
    }

    /// See [`super::Code::loop_body`].
    #[must_use]
    pub fn loop_body(&self, entry: u64) -> Option<LoopBody> {
        LoopBody::of(self.function(), entry)
    }
}

/// The address of a loop's first entry block.
fn start(function: &Function, it: &Loop) -> u64 {
    let first = it
        .entries
        .first()
        .map(|block| &function.blocks[block.index()]);
    let first = first.and_then(|block| function.block_instructions(block).first());
    first.map_or(0, Instruction::ip)
}

struct Nest<'a> {
    function: &'a Function,
    loops: &'a Loops,
    dominators: &'a Dominators,
}

impl Nest<'_> {
    fn describe(&self, id: LoopId) -> CodeLoop {
        let it = self.loops.get(id);
        let instructions = |block: &BlockId| {
            self.function
                .block_instructions(&self.function.blocks[block.index()])
        };
        let every_iteration = self.every_iteration(id);
        let sites = every_iteration
            .iter()
            .flat_map(instructions)
            .filter(|instruction| flow::access(instruction).is_some() && !repeats(instruction))
            .map(Instruction::ip);
        let mut sites: Vec<u64> = sites.collect();
        sites.sort_unstable();
        CodeLoop {
            start: start(self.function, it),
            iterations: self.iteration_register(it, &every_iteration),
            sites,
        }
    }

    /// The blocks that run exactly once in each iteration of a loop: they are in no inner loop, and every
    /// path back to the header passes through them. Empty for a loop with several entries.
    fn every_iteration(&self, id: LoopId) -> Vec<BlockId> {
        let it = self.loops.get(id);
        let Some(header) = it.header() else {
            return Vec::new();
        };
        let leads_back = |block: &&BlockId| {
            let successors = &self.function.blocks[block.index()].successors;
            successors.contains(&header)
        };
        let latches: Vec<BlockId> = it.blocks.iter().filter(leads_back).copied().collect();
        let runs_once = |block: &BlockId| {
            self.loops.innermost(*block) == Some(id)
                && latches
                    .iter()
                    .all(|latch| self.dominators.dominates(*block, *latch))
        };
        it.blocks.iter().copied().filter(runs_once).collect()
    }

    /// A register to which each iteration adds the same constant.
    fn iteration_register(
        &self,
        it: &Loop,
        every_iteration: &[BlockId],
    ) -> Option<IterationRegister> {
        let mut analyst = Analyst::new();
        let mut candidates: Vec<Candidate> = Gpr::all()
            .filter(|register| *register != Gpr::RSP)
            .map(|register| Candidate {
                register,
                step: 0,
                bits: 64,
                ruled_out: false,
            })
            .collect();
        for &block in &it.blocks {
            let once = every_iteration.contains(&block);
            let of_block = &self.function.blocks[block.index()];
            let calls = matches!(of_block.leaves_by, BlockEnd::Call { .. });
            for instruction in self.function.block_instructions(of_block) {
                let writes = analyst.effects(instruction).writes;
                for candidate in &mut candidates {
                    if writes.contains(RegisterSet::gpr(candidate.register)) {
                        candidate.written(instruction, once);
                    }
                }
            }
            if calls {
                for candidate in &mut candidates {
                    candidate.ruled_out |= !flow::is_kept_by_calls(candidate.register);
                }
            }
        }
        let is_usable = |it: &&Candidate| !it.ruled_out && it.step != 0;
        // With a small step, 32 bits last for the most iterations.
        let best = candidates
            .iter()
            .filter(is_usable)
            .min_by_key(|it| (64 - it.bits, it.step.unsigned_abs()))?;
        Some(IterationRegister {
            register: best.register.number(),
            step: best.step,
            bits: best.bits,
        })
    }
}

struct Candidate {
    register: Gpr,
    step: i64,
    bits: u32,
    ruled_out: bool,
}

impl Candidate {
    /// Takes account of a write to the register by `instruction`; `once` is true if that runs exactly once in
    /// each iteration.
    fn written(&mut self, instruction: &Instruction, once: bool) {
        match flow::addition(instruction) {
            Some(added) if once && added.register == self.register => {
                self.step = self.step.wrapping_add(added.by);
                self.bits = self.bits.min(added.bits);
            }
            _ => self.ruled_out = true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(code: &[u8], address: u64) -> Vec<Arc<CodeLoop>> {
        let function = Function::from_code(code, 0x1000);
        LoopNest::of(&function).around(&function, address)
    }

    /// xor eax, eax; then a loop at 0x1002.
    fn looped(body: &[u8]) -> Vec<u8> {
        let mut code = vec![0x31, 0xc0];
        code.extend(body);
        // jne back to 0x1002, ret
        let back = i8::try_from(body.len() + 2).unwrap().wrapping_neg();
        code.extend([0x75, back.cast_unsigned(), 0xc3]);
        code
    }

    #[test]
    fn an_index_with_one_addition_per_iteration_counts_iterations() {
        // mov rcx, [rsi+8*rax]; add rax, 1; cmp rax, rdi
        let code = looped(&[
            0x48, 0x8b, 0x0c, 0xc6, 0x48, 0x83, 0xc0, 0x01, 0x48, 0x39, 0xf8,
        ]);
        let found = of(&code, 0x1006);
        assert_eq!(found.len(), 1);
        assert_eq!(
            (found[0].start, &found[0].sites[..]),
            (0x1002, &[0x1002][..])
        );
        let iterations = found[0].iterations.unwrap();
        assert_eq!(
            (iterations.register, iterations.step, iterations.bits),
            (0, 1, 64)
        );
        assert_eq!(iterations.iterations_between(1000, 5000), 4000.0);
        assert_eq!(iterations.iterations_between(5000, 1000), -4000.0);
        // Outside of it there is none.
        assert!(of(&code, 0x1000).is_empty());
    }

    #[test]
    fn steps_add_up_and_other_writes_rule_a_register_out() {
        // add ecx, 3; sub ecx, 5; add rax, 8; mov rax, [rax]
        let found = of(
            &looped(&[
                0x83, 0xc1, 0x03, 0x83, 0xe9, 0x05, 0x48, 0x83, 0xc0, 0x08, 0x48, 0x8b, 0x00,
            ]),
            0x1002,
        );
        let iterations = found[0].iterations.unwrap();
        assert_eq!(
            (iterations.register, iterations.step, iterations.bits),
            (1, -2, 32)
        );
        assert_eq!(iterations.iterations_between(4, 0xffff_fffe), 3.0);
        // A chase has no register that counts iterations: mov rax, [rax]; test rax, rax.
        let found = of(&looped(&[0x48, 0x8b, 0x00, 0x48, 0x85, 0xc0]), 0x1002);
        assert_eq!(found[0].iterations, None);
        assert_eq!(found[0].sites, [0x1002]);
    }

    #[test]
    fn conditional_additions_do_not_count_iterations() {
        // test dl, 1; je +4; add rax, 1; mov [rsi], rax before the end of the iteration.
        let code = looped(&[
            0xf6, 0xc2, 0x01, 0x74, 0x04, 0x48, 0x83, 0xc0, 0x01, 0x48, 0x89, 0x06,
        ]);
        let found = of(&code, 0x1002);
        assert_eq!(found[0].iterations, None);
        assert_eq!(found[0].sites, [0x100b]);
    }

    #[test]
    fn loops_begin_where_they_are_described_to() {
        // An inner loop at 0x1004 in one at 0x1002: xor ecx, ecx; inc ecx; cmp ecx, edi; jne; inc eax; cmp
        // eax, esi.
        let code = looped(&[
            0x31, 0xc9, 0xff, 0xc1, 0x39, 0xf9, 0x75, 0xfa, 0xff, 0xc0, 0x39, 0xf0,
        ]);
        let studied = CodeFunction::new(Function::from_code(&code, 0x1000));
        assert_eq!(studied.loop_starts(0x1006), [0x1004, 0x1002]);
        assert_eq!(studied.loop_starts(0x100a), [0x1002]);
        assert!(studied.loop_starts(0x1000).is_empty());
        assert!(
            studied.loop_starts(0x1005).is_empty(),
            "no instruction begins there"
        );
        for address in [0x1000, 0x1002, 0x1004, 0x1006, 0x100a, 0x1010] {
            let described: Vec<u64> = of(&code, address).iter().map(|it| it.start).collect();
            assert_eq!(studied.loop_starts(address), described, "{address:#x}");
        }
    }

    #[test]
    fn a_call_leaves_only_what_it_keeps() {
        // add rbx, 1; add rcx, 1; call 0x2000; test eax, eax
        let code = looped(&[
            0x48, 0x83, 0xc3, 0x01, 0x48, 0x83, 0xc1, 0x01, 0xe8, 0xf1, 0x0f, 0x00, 0x00, 0x85,
            0xc0,
        ]);
        let iterations = of(&code, 0x1002)[0].iterations.unwrap();
        assert_eq!((iterations.register, iterations.step), (3, 1));
    }
}
