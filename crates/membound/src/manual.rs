//! `membound man`: prints a manual page, made from the clap definition of the command line.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Command};
use clap_mangen::Man;

use crate::output::{self, Target, Usage};
use crate::version;

/// Arguments of `man`.
#[derive(Args, Debug)]
#[command(after_help = "Use it as: membound man harvest run | man -l -")]
pub(crate) struct ManArgs {
    /// Subcommand, as in `membound man harvest run` [default: membound as a whole].
    #[arg(value_name = "SUBCOMMAND")]
    names: Vec<String>,
    /// Write the pages of all subcommands into DIR instead.
    #[arg(long, value_name = "DIR", conflicts_with = "names")]
    all: Option<PathBuf>,
}

/// Prints a page in roff, or writes all of them, for the command line that `root` defines.
pub(crate) fn run(args: &ManArgs, root: Command) -> anyhow::Result<ExitCode> {
    let command = find_command(root, &args.names)?;
    match &args.all {
        Some(directory) => write_all(command, directory)?,
        None => output::print(&page(command)?.1),
    }
    Ok(ExitCode::SUCCESS)
}

/// The file name of the command's page, and the page.
fn page(command: Command) -> anyhow::Result<(String, String)> {
    let page = Man::new(command)
        .date(version::DATE)
        .source(concat!("membound ", env!("CARGO_PKG_VERSION")))
        .manual("Manual of membound");
    let mut text = Vec::new();
    page.render(&mut text)?;
    Ok((page.get_filename(), ascii(&String::from_utf8(text)?)))
}

/// Replaces characters that are not ASCII by their roff names: `man` recodes a page before it formats it, but
/// other programs do not.
fn ascii(text: &str) -> String {
    let mut plain = String::new();
    for letter in text.chars() {
        if letter.is_ascii() {
            plain.push(letter);
        } else {
            plain += &format!("\\[u{:04X}]", u32::from(letter));
        }
    }
    plain
}

/// Writes the page of a command and those of all its visible subcommands.
fn write_all(command: Command, directory: &Path) -> anyhow::Result<()> {
    for inner in command.get_subcommands().filter(|it| !it.is_hide_set()) {
        write_all(inner.clone(), directory)?;
    }
    let (name, text) = page(command)?;
    Target::open(&directory.join(name))?.write(&text)
}

/// The visible subcommand under these names, with its full name.
fn find_command(root: Command, names: &[String]) -> Result<Command, Usage> {
    // Every build of a version gives the same page, so the long version is left out; `help` has no page.
    let mut root = root.long_version(None).disable_help_subcommand(true);
    root.build();
    let mut found = &root;
    for name in names {
        let inner = found.find_subcommand(name);
        found = inner.filter(|it| !it.is_hide_set()).ok_or_else(|| {
            let of = found.get_bin_name().unwrap_or("membound");
            Usage(format!("`{of}` has no subcommand `{name}`"))
        })?;
    }
    Ok(found.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_that_are_not_ascii_go_by_their_numbers() {
        assert_eq!(ascii("an address (0x…)"), "an address (0x\\[u2026])");
        assert_eq!(ascii("\\-o"), "\\-o");
    }
}
