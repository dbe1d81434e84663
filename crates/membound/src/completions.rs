//! `membound completions`: prints scripts with which shells complete the command line.
//!
//! The scripts are generated from the clap definition of the command line. Two things are added that parsing
//! and help do not need: the values of options whose types parse names themselves, and the kind of file that
//! an argument takes, derived from the name of its value in help.

use std::any::TypeId;
use std::fmt::Display;
use std::process::ExitCode;

use clap::builder::PossibleValuesParser;
use clap::{Arg, Args, Command, ValueHint};
use clap_complete::Shell;
use membound_report::{By, Sort};
use membound_types::{
    Access, BandwidthKernel, BatchHarvest, DistanceRule, ExploreSweep, Fence, Filler, FitData,
    HarvestRole, IdlePolicy, PageKind, PatchBody, Pattern, SmtPolicy, Weights, WindowKernel,
};

use crate::output;

/// Arguments of `completions`.
#[derive(Args, Debug)]
#[command(
    after_help = "Where the script goes: bash ~/.local/share/bash-completion/completions/membound; \
                  zsh _membound in a directory of $fpath; fish \
                  ~/.config/fish/completions/membound.fish; elvish ~/.config/elvish/rc.elv; \
                  powershell $PROFILE."
)]
pub(crate) struct CompletionsArgs {
    /// Shell to print the script for.
    #[arg(value_enum, value_name = "SHELL")]
    shell: Shell,
}

/// Prints the script for the command line that `command` defines.
pub(crate) fn run(args: &CompletionsArgs, command: &Command) -> anyhow::Result<ExitCode> {
    let mut script = Vec::new();
    let mut command = visible(command, &values());
    clap_complete::generate(args.shell, &mut command, "membound", &mut script);
    output::print(&String::from_utf8(script)?);
    Ok(ExitCode::SUCCESS)
}

/// The command without what help hides, which the scripts of some shells would offer.
fn visible(command: &Command, values: &[Values]) -> Command {
    let arguments = command.get_arguments().filter(|it| !it.is_hide_set());
    let inner = command.get_subcommands().filter(|it| !it.is_hide_set());
    let mut shown = Command::new(command.get_name().to_owned())
        .args(arguments.cloned().map(|arg| completed(arg, values)))
        .subcommands(inner.map(|it| visible(it, values)));
    if let Some(about) = command.get_about() {
        shown = shown.about(about.clone());
    }
    if let Some(version) = command.get_version() {
        shown = shown.version(version.to_owned());
    }
    shown
}

/// The argument with its possible values or the kind of file that it takes.
fn completed(arg: Arg, values: &[Values]) -> Arg {
    let kind = arg.get_value_parser().type_id();
    let names = values.iter().find(|(of, _)| kind == *of);
    let hint = hint(&arg);
    match names {
        Some((_, names)) => arg.value_parser(PossibleValuesParser::new(names.clone())),
        None => arg.value_hint(hint),
    }
}

/// The kind of value that an argument takes, from the name of its value in help.
fn hint(arg: &Arg) -> ValueHint {
    let names = arg.get_value_names().unwrap_or_default();
    match names.first().map(|name| name.as_str()) {
        Some("FILE" | "RUN" | "BINARY" | "PROFILE" | "NAME|FILE") => ValueHint::FilePath,
        Some("DIR") => ValueHint::DirPath,
        Some("FILE|DIR") => ValueHint::AnyPath,
        Some("CMD") if arg.is_trailing_var_arg_set() => ValueHint::CommandWithArguments,
        Some("CMD") => ValueHint::CommandString,
        _ => ValueHint::Unknown,
    }
}

/// A type that parses option values, and the names of the values.
type Values = (TypeId, Vec<String>);

/// Names of values that clap does not know, with the type that parses them.
fn values() -> [Values; 18] {
    [
        value_names(&Access::ALL),
        value_names(&BandwidthKernel::ALL),
        value_names(&BatchHarvest::ALL),
        value_names(By::ALL),
        value_names(&DistanceRule::ALL),
        value_names(&ExploreSweep::ALL),
        value_names(&Fence::ALL),
        value_names(&Filler::ALL),
        value_names(&FitData::ALL),
        value_names(&HarvestRole::ALL),
        value_names(&IdlePolicy::ALL),
        value_names(&PageKind::ALL),
        value_names(&PatchBody::ALL),
        value_names(&Pattern::ALL),
        value_names(&SmtPolicy::ALL),
        value_names(Sort::ALL),
        value_names(&Weights::ALL),
        value_names(&WindowKernel::ALL),
    ]
}

fn value_names<T: Display + 'static>(all: &[T]) -> Values {
    let names = all.iter().map(ToString::to_string);
    (TypeId::of::<T>(), names.collect())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::command_line::Cli;

    /// Checks that every argument that is a path has a hint, derived from the name of its value: without one,
    /// shells would offer any path.
    fn check_paths(command: &Command, paths: &mut usize) {
        for arg in command.get_arguments().filter(|it| !it.is_hide_set()) {
            if arg.get_value_parser().type_id() == TypeId::of::<std::path::PathBuf>() {
                let (of, id) = (command.get_name(), arg.get_id());
                assert_ne!(hint(arg), ValueHint::Unknown, "{of}: {id}");
                *paths += 1;
            }
        }
        for inner in command.get_subcommands().filter(|it| !it.is_hide_set()) {
            check_paths(inner, paths);
        }
    }

    #[test]
    fn every_path_has_a_hint() {
        let mut paths = 0;
        check_paths(&Cli::command(), &mut paths);
        assert!(paths > 20, "{paths} paths");
    }

    #[test]
    fn the_visible_command_is_consistent() {
        visible(&Cli::command(), &values()).debug_assert();
    }
}
