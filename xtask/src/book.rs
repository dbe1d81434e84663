//! `cargo xtask book`: every link of every Markdown file is checked, and the book is built.
//!
//! The book's source is `docs/`, with its chapters in `docs/book/`. mdBook writes HTML to
//! `target/book/docs`; files outside `docs/` to which chapters link are put beside that, so that
//! links work in the built book as well. Each link of the built pages is then checked too.

mod links;
mod pages;
mod pictures;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Result, bail};

use crate::run::{program, read, root, say, stdout_of, succeed};
use crate::tools::Tool;

/// Takes a minute to build on two cores.
const MDBOOK: Tool = Tool {
    name: "mdbook",
    version: "0.5.4",
    options: &["--no-default-features", "--features", "search"],
};
/// Directory in which the site is built, with the book in it.
const SITE: &str = "target/book";
const SOURCE: &str = "docs";
/// Maximum size of README.md in bytes. People in a hurry read it: longer text belongs into the
/// book.
const README_BYTES: usize = 10_000;
/// Page that redirects to the first chapter.
const FIRST_PAGE: &str =
    "<!DOCTYPE html><meta http-equiv=\"refresh\" content=\"0; url=book/introduction.html\">\n";

/// Arguments of `book`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Only check the links of the Markdown files.
    #[arg(long)]
    links: bool,
    /// First make the pictures again, from real runs on this machine.
    #[arg(long)]
    pictures: bool,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    if args.pictures {
        pictures::make()?;
    }
    check_links()?;
    if !args.links {
        build()?;
        say(root()
            .join(SITE)
            .join("docs/book/introduction.html")
            .display());
    }
    Ok(ExitCode::SUCCESS)
}

/// Step of `cargo xtask ci`.
pub(crate) fn check() -> Result<()> {
    check_links()?;
    build()
}

/// Checks the links of all Markdown files, the book's table of contents and the size of README.md.
///
/// # Errors
/// When a link leads nowhere, or a page is not in the book; all of them are named.
fn check_links() -> Result<()> {
    let mut problems = links::check(root(), &markdown()?)?.problems;
    problems.extend(links::left_out(root(), SOURCE)?);
    let bytes = read(&root().join("README.md"))?.len();
    if bytes > README_BYTES {
        problems.push(format!(
            "README.md: {bytes} bytes; {README_BYTES} are the limit"
        ));
    }
    if !problems.is_empty() {
        bail!("documents:\n{}", problems.join("\n"));
    }
    Ok(())
}

/// The Markdown files of the checkout, ignored ones left out.
fn markdown() -> Result<Vec<PathBuf>> {
    let mut list = program("git");
    list.args(["ls-files", "--cached", "--others", "--exclude-standard"]);
    let names = stdout_of(list.args(["--", "*.md"]))?;
    let paths = names.lines().map(PathBuf::from);
    Ok(paths.filter(|path| root().join(path).is_file()).collect())
}

fn build() -> Result<()> {
    let site = root().join(SITE);
    drop(std::fs::remove_dir_all(&site));
    succeed(program(MDBOOK.path()?).args(["build", "docs/book"]))?;
    let mut chapters = markdown()?;
    chapters.retain(|path| path.starts_with(SOURCE));
    for target in links::check(root(), &chapters)?.targets {
        if !target.starts_with(SOURCE) && root().join(&target).is_file() {
            pages::put_beside(&root().join(&target), &site.join(&target))?;
        }
    }
    // mdBook's own index is a copy of the first chapter, with links that work only in the chapter's
    // directory.
    std::fs::write(site.join("docs/index.html"), FIRST_PAGE)?;
    let dead = pages::dead_links(&site.join(SOURCE))?;
    if !dead.is_empty() {
        bail!("dead links in the built book:\n{}", dead.join("\n"));
    }
    Ok(())
}
