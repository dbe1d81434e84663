//! The command line.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{Parser, Subcommand};

use crate::args::{DoctorArgs, MeasureArgs, TourArgs};
use crate::compare::CompareArgs;
use crate::completions::CompletionsArgs;
use crate::harvest::HarvestCommand;
use crate::import::args::ImportArgs;
use crate::lat_mem_rd::LatMemRdArgs;
use crate::manual::ManArgs;
use crate::measure::calibration::{ChaseArgs, PROGRAM};
use crate::model::args::ModelCommand;
use crate::profile::args::ProfileArgs;
use crate::report::ReportArgs;
use crate::rewrite::args::RewriteCommand;
use crate::tour::contention::Layout;
use crate::version;

/// Measures a machine's memory hierarchy, and shows where programs wait for memory: without a
/// PMU, without root, without recompiling.
#[derive(Debug, Parser)]
#[command(name = "membound", version, long_version = version::BUILD, propagate_version = true)]
#[command(after_help = "Exit codes: 0 success, 1 failure, 2 wrong usage.")]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Show what this machine allows, how each measurement will be made, and what to switch on.
    Doctor(DoctorArgs),
    /// Measure the memory hierarchy: all parts, or the named ones.
    Measure(Box<MeasureArgs>),
    /// Load latency over sizes and strides, as lmbench's lat_mem_rd measures and prints it.
    #[command(name = "lat_mem_rd")]
    LatMemRd(LatMemRdArgs),
    /// Fit, show and query a model of the memory hierarchy.
    #[command(subcommand)]
    Model(Box<ModelCommand>),
    /// Record where a program waits for memory, and for which data.
    Profile(Box<ProfileArgs>),
    /// Make a run from a perf recording: perf.data, or the text of perf script.
    Import(ImportArgs),
    /// Show a recorded run.
    Report(Box<ReportArgs>),
    /// Compare profiles or runs, or find the outliers in a directory of profiles.
    Compare(CompareArgs),
    /// Show what can be patched in a binary, or run a program with every load and store patched.
    #[command(subcommand)]
    Rewrite(Box<RewriteCommand>),
    /// Run other programs while a program waits for memory.
    #[command(subcommand)]
    Harvest(Box<HarvestCommand>),
    /// Show what membound does, in about a minute: measure this machine quickly, profile a program
    /// before and after a repair, and write the page.
    Tour(TourArgs),
    /// Print a completion script for a shell.
    Completions(CompletionsArgs),
    /// Print the manual page of membound or of a subcommand, in roff.
    Man(ManArgs),
    /// Put back what a killed membound had changed (started by membound itself).
    #[command(name = "__restore", hide = true)]
    Restore,
    /// Load from each level in turn (started by membound itself).
    #[command(name = PROGRAM, hide = true)]
    Chase(ChaseArgs),
    /// Run a shared object with `main` or `entry` (started by membound itself).
    #[command(name = "__run-object", hide = true)]
    RunObject {
        /// The object, and what it is called with.
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
        words: Vec<OsString>,
    },
    /// Yield to scavengers until none is left (started by membound itself).
    #[command(name = "__harvest-host", hide = true)]
    HarvestHost {
        /// Threads that yield.
        threads: usize,
    },
    /// The program that the tour profiles (started by membound itself).
    #[command(name = "__contend", hide = true)]
    Contend {
        /// Where its records lie.
        #[arg(value_enum)]
        layout: Layout,
    },
}
/// Parses the command line. Help and version go to stdout, also where a subcommand is missing; a usage error
/// becomes one line and exit code 2.
pub(crate) fn parse(args: impl Iterator<Item = OsString>) -> Result<Cli, ExitCode> {
    Cli::try_parse_from(args).map_err(|error| {
        let is_help = error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand;
        if error.use_stderr() && !is_help {
            let line = one_line(&error.render().to_string());
            crate::output::complain(&format!("{line} (see `membound --help`)"));
            ExitCode::from(2)
        } else {
            crate::output::print(&error.render().to_string());
            ExitCode::SUCCESS
        }
    })
}

/// The first paragraph of clap's error text as one line, without its indentation.
fn one_line(text: &str) -> String {
    let words: Vec<&str> = text
        .lines()
        .take_while(|line| !line.is_empty())
        .flat_map(str::split_whitespace)
        .collect();
    let line = words.join(" ");
    line.strip_prefix("error: ").unwrap_or(&line).to_owned()
}

#[cfg(test)]
mod tests {
    use std::fmt;

    use clap::{CommandFactory, ValueEnum};
    use membound_types::{
        Access, BandwidthKernel, Filler, Kind, NodeId, NodePolicy, PageKind, Pattern, WindowKernel,
    };

    use super::*;
    use crate::args::Part;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_usage_error_is_one_line_without_runs_of_blanks() {
        for (line, expected) in [
            (
                "membound measure tbl",
                "invalid value 'tbl' for '[PART]...' [possible values: latency, mlp, window, bandwidth, loaded, \
                 tlb, prefetch, numa, c2c, calibration]",
            ),
            (
                "membound profile --pid 1 --repeat 2 --until x",
                "invalid value 'x' for '--until <±Ppt>'",
            ),
            (
                "membound lat_mem_rd",
                "the following required arguments were not provided: <SIZE_MB>",
            ),
        ] {
            let error = Cli::try_parse_from(line.split(' ')).unwrap_err();
            let told = one_line(&error.render().to_string());
            assert!(told.starts_with(expected), "{told}");
            assert!(!told.contains("  ") && !told.contains('\n'), "{told}");
        }
    }

    /// The option's help names `all` values, and the option understands every one.
    fn check<T: fmt::Display>(option: &str, all: &[T]) {
        let names: Vec<String> = all.iter().map(ToString::to_string).collect();
        let command = Cli::command();
        let measure = command.find_subcommand("measure").unwrap();
        let mut options = measure.get_arguments();
        let found = options.find(|arg| arg.get_long() == Some(option)).unwrap();
        let help = found.get_help().unwrap().to_string();
        assert!(help.contains(&names.join(", ")), "{option}: {help}");
        for name in &names {
            Cli::try_parse_from(["membound", "measure", &format!("--{option}"), name]).unwrap();
        }
    }

    #[test]
    fn names_of_values_are_helped_with_and_understood() {
        check("page", &PageKind::ALL);
        check("pattern", &Pattern::ALL);
        check("access", &Access::ALL);
        check("filler", &Filler::ALL);
        check("window-kernel", &WindowKernel::ALL);
        check("kernel", &BandwidthKernel::ALL);
        for part in Part::value_variants() {
            let name = part.to_possible_value().unwrap().get_name().to_owned();
            assert!(name.parse::<Kind>().is_ok(), "{name}");
        }
    }

    #[test]
    fn every_command_of_the_page_about_the_documents_is_understood() {
        let page = include_str!("../../../docs/documents.md");
        let commands: Vec<&str> = page
            .split('`')
            .skip(1)
            .step_by(2)
            .filter(|code| code.starts_with("membound "))
            .collect();
        assert!(commands.len() >= 15, "{commands:?}");
        for command in commands {
            if let Err(error) = Cli::try_parse_from(command.split_whitespace()) {
                let kind = error.kind();
                assert_eq!(kind, clap::error::ErrorKind::DisplayHelp, "{command}");
            }
        }
    }

    #[test]
    fn lists_and_sizes_of_the_contract_are_understood() {
        let line = "membound measure latency mlp --sizes 16K,1M --strides 64,128 --pattern \
                    random,page-random --access clean,dirty --page 4k,thp --node local,1,interleave \
                    --threads 1,2 --cpu 0 --loads 1,2 --fillers 0,100 --filler nop --fence lfence \
                    --quick --cond thp=off --cond host=a=b";
        let Ok(Cli {
            command: Command::Measure(args),
        }) = parse(line.split_whitespace().map(OsString::from))
        else {
            panic!("not understood")
        };
        assert_eq!(args.parts, [Part::Latency, Part::Mlp]);
        assert_eq!(args.sizes, [16 << 10, 1 << 20]);
        assert_eq!(
            args.node,
            [
                NodePolicy::LOCAL,
                NodePolicy::Node(NodeId(1)),
                NodePolicy::INTERLEAVE
            ]
        );
        assert_eq!(args.cond[1], ("host".to_owned(), "a=b".to_owned()));
        assert_eq!(args.used().len(), 11);
    }
}
