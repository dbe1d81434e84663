//! Patched code computes what the original does, and the state can be restored at every place of a
//! trampoline.

mod bodies;
mod bytes;
mod lab;
mod loop_saves;
mod stepping;
mod yields;
