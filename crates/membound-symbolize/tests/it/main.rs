//! Programs that are compiled here, and what is found of them.

mod build;
mod damage;
mod emulated;
mod names;
mod step;
mod unwind;
