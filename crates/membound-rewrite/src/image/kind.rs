//! The kinds of modules that ELF files make.

/// The kind of module that a file makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// An executable with fixed addresses.
    Executable,
    /// An executable that can be mapped anywhere.
    PositionIndependentExecutable,
    /// A shared object, or the dynamic loader.
    SharedObject,
    /// An executable that needs no dynamic loader, with fixed addresses or not.
    Static,
}
