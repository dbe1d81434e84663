//! Places in code: call chains, loops, source lines and the code itself.

use crate::{FrameId, ModuleId, StackId};

/// A place in code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Frame {
    /// The module, when it is known.
    pub module: Option<ModuleId>,
    /// Address in the file: of the sampled instruction (innermost) or of the call
    /// (return address minus 1). The process's own address without a module.
    pub address: u64,
}

/// A call chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Stack {
    /// The caller's chain.
    pub parent: Option<StackId>,
    /// The innermost frame.
    pub frame: FrameId,
}

/// A loop around an instruction that was sampled or is a site.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoopAround {
    /// The instruction.
    pub frame: FrameId,
    /// 0 for the innermost loop around it, 1 for the one around that, and so on.
    pub level: u32,
    /// Address of the loop's first block in the frame's module.
    pub start: u64,
}

/// What a frame is in source code.
#[derive(Clone, Debug, PartialEq)]
pub struct Location {
    /// The frame.
    pub frame: FrameId,
    /// 0 is the innermost function, those above have it inlined.
    pub depth: u32,
    /// Demangled name; empty if unknown.
    pub function: String,
    /// Address in the file at which the function that is not inlined begins.
    pub function_start: Option<u64>,
    /// Bytes of that function.
    pub function_size: Option<u64>,
    /// Source file.
    pub file: Option<String>,
    /// Line, from 1.
    pub line: Option<u32>,
    /// Column, from 1.
    pub column: Option<u32>,
}

/// Code of a function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Code {
    /// Its module.
    pub module: ModuleId,
    /// Address in the file.
    pub address: u64,
    /// The bytes.
    pub bytes: Vec<u8>,
}
