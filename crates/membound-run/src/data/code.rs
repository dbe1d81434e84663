//! Places in code: call chains, loops, source lines and the code itself.

use crate::record::record;
use crate::{FrameId, ModuleId, StackId};

record! { "frames", Position, missing "samples" =>
    /// An instruction that was sampled, made a call, or was examined as a site.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct Frame {
        /// The module, when it is known.
        pub module: Option<ModuleId>,
        /// Address in the file: of the sampled instruction (innermost frame) or of the call (return address minus
        /// 1). Without a module, the address in the process.
        pub address: u64,
    }
}

record! { "stacks", Position, missing "samples" =>
    /// A call chain: its innermost frame on top of the chain of its caller.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct Stack {
        /// The chain of the caller; `None` for the outermost known frame.
        pub parent: Option<StackId>,
        /// Innermost frame of the chain.
        pub frame: FrameId,
    }
}

record! { "loops", Order, missing "latencies" =>
    /// A loop around an instruction that was sampled or is a site.
    #[derive(Clone, Copy, Debug, PartialEq)]
    pub struct LoopAround {
        /// Instruction inside the loop.
        pub frame: FrameId,
        /// 0 for the innermost loop around it, 1 for the one around that, and so on.
        pub level: u32,
        /// Address of the loop's first block in the frame's module.
        pub start: u64,
        /// Time in nanoseconds of an iteration whose data are in the first cache, if it was measured.
        pub cached_ns: Option<f64>,
        /// The shortest of the measurements of `cached_ns`, without what another hardware thread took from the core.
        pub cached_least_ns: Option<f64>,
        /// The longest of them.
        pub cached_most_ns: Option<f64>,
    }
}

record! { "locations", Order, missing "names" =>
    /// Function and source line of a frame.
    #[derive(Clone, Debug, PartialEq)]
    pub struct Location {
        /// Frame that this location names.
        pub frame: FrameId,
        /// 0 for the innermost function, 1 for the function it is inlined into, and so on.
        pub depth: u32,
        /// Demangled name; empty if unknown.
        pub function: String,
        /// Address in the file of the function that contains the code, after inlining.
        pub function_start: Option<u64>,
        /// Length of that function in bytes.
        pub function_size: Option<u64>,
        /// Source file, as the debug information names it.
        pub file: Option<String>,
        /// Line, from 1.
        pub line: Option<u32>,
        /// Column, from 1.
        pub column: Option<u32>,
    }
}

record! { "code", Order, missing "names" =>
    /// Code of a function.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Code {
        /// Module that holds the function.
        pub module: ModuleId,
        /// Address of the function in the file.
        pub address: u64,
        /// Machine code of the function.
        pub bytes: Vec<u8>,
    }
}
