//! Control flow: against execution, against the compilers' forms, and against bad files.

mod executed;
mod forms;
mod hostile;
