//! Everything that needs a machine, a compiler or a whole file.

mod flow;
mod generate;
mod machine;
