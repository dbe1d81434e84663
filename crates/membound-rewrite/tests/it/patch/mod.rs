//! Patched code runs as the original does, and every place of a trampoline leads back.

mod bodies;
mod bytes;
mod lab;
mod loop_saves;
mod stepping;
mod yields;
