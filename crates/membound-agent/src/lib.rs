//! The agent: executes, inside a program, what the launcher decided.
