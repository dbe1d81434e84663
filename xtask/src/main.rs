//! Chores of the workspace: `cargo xtask ci|test|machines|schema|book|fuzz|model-check|miri|bench|campaign|field|readers|python|dist`.
//!
//! `ci` runs all checks of continuous integration, locally as well. `test` also installs what the
//! tests need. `machines` builds and tries the command for other processors. `schema` writes the
//! JSON Schemas under `docs/formats/` from the types. `book` checks the links of all documents and
//! builds the book. `fuzz` fuzzes the parsers. `bench` compares the finished command with its
//! targets and keeps raw results; no other command judges times. `model-check` tries every order of
//! the steps of lock-free protocols, and `miri` runs tests under Miri. `campaign` runs large programs
//! with all their accesses patched. `field` runs foreign programs under membound and compares cost
//! and findings with the truth. `readers` reads exports with the programs for which they are meant.
//! `python` tests the Python package with each supported Python. `dist` makes packages for machines
//! without a toolchain.

mod architecture;
mod bench;
mod book;
mod campaign;
mod ci;
mod circles;
mod deny;
mod dist;
mod field;
mod fuzz;
mod machines;
mod miri;
mod model_check;
mod needs;
mod package;
mod python;
mod readers;
mod results;
mod run;
mod schema;
mod tests;
mod tools;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Chores of the membound workspace.
#[derive(Parser)]
#[command(bin_name = "cargo xtask")]
struct Args {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Subcommand)]
enum Chore {
    /// Everything that continuous integration runs: checks, then tests.
    Ci(ci::Args),
    /// Install what the tests need, where that is permitted, and run them all.
    Test(tests::Args),
    /// Build the command for aarch64 and powerpc64le, and try it under qemu.
    Machines(machines::Args),
    /// Write the JSON Schemas of all documents to docs/formats/.
    Schema(schema::Args),
    /// Check every link of the documents, and build the book.
    Book(book::Args),
    /// Find files that import each other in a circle.
    Circles(circles::Args),
    /// Fuzz what reads files, guided by coverage.
    Fuzz(fuzz::Args),
    /// Check every order of steps of the lock-free protocols.
    ModelCheck(model_check::Args),
    /// Run what Miri can run under it.
    Miri(miri::Args),
    /// Compare membound with its targets, on a quiet machine.
    Bench(bench::Args),
    /// Run large programs with every load and store patched, and compare.
    Campaign(campaign::Args),
    /// Run foreign programs under membound: what it costs them, and whether what it says is true.
    Field(field::Args),
    /// Have exports read by the programs that they are for.
    Readers(readers::Args),
    /// Test the Python package with each Python, and execute its notebook.
    Python(python::Args),
    /// Make what is installed without a toolchain, for x86-64 and aarch64, and try it.
    Dist(dist::Args),
}

fn main() -> ExitCode {
    let done = match Args::parse().chore {
        Chore::Ci(args) => ci::run(&args),
        Chore::Test(args) => tests::run(&args),
        Chore::Machines(args) => machines::run(&args),
        Chore::Schema(args) => schema::run(&args),
        Chore::Book(args) => book::run(&args),
        Chore::Circles(args) => circles::run(&args),
        Chore::Fuzz(args) => fuzz::run(&args),
        Chore::ModelCheck(args) => model_check::run(&args),
        Chore::Miri(args) => miri::run(&args),
        Chore::Bench(args) => bench::run(&args),
        Chore::Campaign(args) => campaign::run(&args),
        Chore::Field(args) => field::run(&args),
        Chore::Readers(args) => readers::run(&args),
        Chore::Python(args) => python::run(&args),
        Chore::Dist(args) => dist::run(&args),
    };
    match done {
        Ok(code) => code,
        Err(error) => {
            run::note(format_args!("xtask: {error:#}"));
            ExitCode::FAILURE
        }
    }
}
