//! What must hold of decoded functions and of plans, whatever the bytes were.

use membound_rewrite::code::{BlockEnd, Function};

/// The promises of `membound_rewrite::code::Function`.
pub fn check_function(function: &Function) {
    let range = &function.bounds.range;
    let instructions = &function.instructions;
    for pair in instructions.windows(2) {
        assert!(
            pair[0].next_ip() <= pair[1].ip(),
            "overlapping instructions"
        );
    }
    for instruction in instructions {
        assert!(!instruction.is_invalid(), "an invalid instruction");
        assert!(range.contains(&instruction.ip()), "an instruction outside");
        assert!(
            instruction.next_ip() <= range.end,
            "an instruction across the end"
        );
    }
    let mut held = 0;
    for block in &function.blocks {
        assert!(block.first < block.end, "an empty block");
        assert_eq!(
            block.first, held,
            "blocks hold each instruction once, in order"
        );
        held = block.end;
        let inside = function.block_instructions(block);
        for pair in inside.windows(2) {
            assert_eq!(pair[0].next_ip(), pair[1].ip(), "a gap in a block");
            assert!(
                !is_jump(&pair[0]),
                "{:#x} leaves from the middle of a block",
                pair[0].ip()
            );
        }
        let targets = block.successors.iter().chain(&block.landing_pad);
        for target in targets {
            assert!(target.index() < function.blocks.len(), "no such block");
        }
        check_end(function, block);
    }
    assert_eq!(
        held as usize,
        instructions.len(),
        "an instruction in no block"
    );
}

/// How a block ends says where control goes on.
fn check_end(function: &Function, block: &membound_rewrite::code::BasicBlock) {
    let range = &function.bounds.range;
    let last = function
        .block_instructions(block)
        .last()
        .expect("blocks are not empty");
    let starts = |address: u64| {
        block.successors.iter().any(|id| {
            let first = function.blocks[id.index()].first;
            function.instructions[first as usize].ip() == address
        })
    };
    match block.leaves_by {
        BlockEnd::Jump => {
            let target = last.near_branch_target();
            assert!(range.contains(&target), "a jump inside leads outside");
            assert!(
                starts(target) || function.unresolved.is_some(),
                "no edge from {:#x} to its target {target:#x}",
                last.ip()
            );
        }
        BlockEnd::Leaves { target, .. } => {
            // A function may run on into the next, and a jump table may lead outside.
            assert!(
                last.flow_control() == iced_x86::FlowControl::IndirectBranch
                    || [last.near_branch_target(), last.next_ip()].contains(&target),
                "another target"
            );
        }
        BlockEnd::FallsThrough => {
            assert!(
                starts(last.next_ip()) || function.unresolved.is_some(),
                "no edge from {:#x} to what follows",
                last.ip()
            );
        }
        BlockEnd::Table => assert!(!block.successors.is_empty(), "an empty jump table"),
        _ => {}
    }
}

/// Whether control leaves here for another place of the same program, certainly or perhaps.
fn is_jump(instruction: &iced_x86::Instruction) -> bool {
    use iced_x86::FlowControl;
    !matches!(
        instruction.flow_control(),
        FlowControl::Next
            | FlowControl::Exception
            | FlowControl::Interrupt
            | FlowControl::XbeginXabortXend
    )
}
