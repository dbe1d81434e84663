//! Call chains of allocations, for the tables that show them and the names of objects.

use membound_run::{RunData, StackId};

use crate::alloc_frames;
use crate::places::Places;

/// Call chain of an allocation, innermost frame first, with inlined functions as frames of their own and
/// without the allocator's frames.
pub(crate) fn allocation_chain<'a>(
    run: &'a RunData,
    places: &Places<'a>,
    stack: StackId,
) -> Vec<membound_types::CallFrame> {
    let mut chain = Vec::new();
    let mut next = Some(stack);
    while let Some(id) = next {
        let stack = run.stacks[id.index()];
        let frame = run.frames[stack.frame.index()];
        let module = places.module_path(frame.module);
        let before = chain.len();
        chain.extend(
            places
                .locations(stack.frame)
                .map(|at| membound_types::CallFrame {
                    function: at.function.clone(),
                    file: at.file.clone(),
                    line: at.line,
                    module: module.to_owned(),
                }),
        );
        if chain.len() == before {
            chain.push(membound_types::CallFrame {
                function: places.bare_name(frame),
                file: None,
                line: None,
                module: module.to_owned(),
            });
        }
        next = stack.parent;
    }
    let own = chain
        .iter()
        .take_while(|frame| alloc_frames::is_allocator(&frame.function))
        .count();
    if own < chain.len() {
        chain.drain(..own);
    }
    chain
}
