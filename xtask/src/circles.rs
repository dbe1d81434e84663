//! `cargo xtask circles`: files of a crate that import each other in a circle.
//!
//! A layer can be read alone only if nothing below it imports it. `xtask/import-circles.toml` lists
//! the existing circles with the date on which each was listed; that list may only shrink.

mod imports;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use serde::{Deserialize, Serialize};

use self::imports::Imports;
use crate::run::{read, root, say};

const LIST: &str = "xtask/import-circles.toml";

/// Arguments of `circles`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Write the list again, where every circle has become smaller or gone.
    #[arg(long)]
    write: bool,
    /// Show the imports that make up each circle.
    #[arg(long)]
    imports: bool,
}

/// The list of known circles.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Known {
    #[serde(default)]
    circle: Vec<Circle>,
}

/// Files that all import each other, directly or indirectly.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Circle {
    /// Day on which it was listed.
    since: String,
    /// Paths from the root of the workspace.
    files: BTreeSet<String>,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let imports = of_workspace(root())?;
    let found = circles(&imports);
    for circle in &found {
        say(format_args!("{} files:", circle.len()));
        for file in circle {
            say(format_args!("  {file}"));
            if args.imports {
                let inside = imports[file].iter().filter(|other| circle.contains(*other));
                inside.for_each(|other| say(format_args!("    imports {other}")));
            }
        }
    }
    let known = known(root())?;
    let differences = problems(&known, &found).into_iter();
    // A circle that has become smaller is about to be written, so it is no problem.
    let problems = differences.filter(|problem| problem.is_new || !args.write);
    fail_for(&problems.map(|problem| problem.text).collect::<Vec<_>>())?;
    if args.write {
        let smaller = Known {
            circle: shrunk(&known, &found),
        };
        let text = toml::to_string_pretty(&smaller)?;
        std::fs::write(root().join(LIST), HEAD.to_owned() + &text)
            .with_context(|| format!("cannot write {LIST}"))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Head of the list's file.
const HEAD: &str = "# Files of a crate that import each other in a circle, as `cargo xtask circles` finds them.\n\
                    # `cargo xtask ci` fails where one is new or has grown. When one has become smaller,\n\
                    # `cargo xtask circles --write` writes this list again.\n\n";

/// Step of `cargo xtask ci`.
pub(crate) fn check() -> Result<()> {
    let found = circles(&of_workspace(root())?);
    let known = known(root())?;
    for circle in &known.circle {
        let (count, first) = (circle.files.len(), circle.files.first());
        let first = first.map_or("", String::as_str);
        say(format_args!(
            "known since {}: circle of {count} files, {first} …",
            circle.since
        ));
    }
    let problems = problems(&known, &found).into_iter();
    fail_for(&problems.map(|problem| problem.text).collect::<Vec<_>>())
}

fn fail_for(problems: &[String]) -> Result<()> {
    if !problems.is_empty() {
        bail!("{}", problems.join("\n"));
    }
    Ok(())
}

fn known(root: &Path) -> Result<Known> {
    toml::from_str(&read(&root.join(LIST))?).with_context(|| LIST.to_owned())
}

/// A difference between the list and the code.
struct Problem {
    text: String,
    /// A circle is new, or has grown.
    is_new: bool,
}

fn problems(known: &Known, found: &[BTreeSet<String>]) -> Vec<Problem> {
    let mut problems = Vec::new();
    for circle in found {
        let listed = known.circle.iter().find(|it| circle.is_subset(&it.files));
        let text = match listed {
            Some(listed) if listed.files == *circle => continue,
            Some(_) => format!(
                "a circle of imports has become smaller; `cargo xtask circles --write` notes that: {}",
                names(circle)
            ),
            None => format!("new circle of imports: {}", names(circle)),
        };
        problems.push(Problem {
            text,
            is_new: listed.is_none(),
        });
    }
    for listed in &known.circle {
        if !found.iter().any(|circle| circle.is_subset(&listed.files)) {
            problems.push(Problem {
                text: format!(
                    "a circle of imports is gone; `cargo xtask circles --write` notes that: {}",
                    names(&listed.files)
                ),
                is_new: false,
            });
        }
    }
    problems
}

/// The found circles, each with the date of the listed circle that contains it.
fn shrunk(known: &Known, found: &[BTreeSet<String>]) -> Vec<Circle> {
    let mut circles = Vec::new();
    for files in found {
        let listed = known.circle.iter().find(|it| files.is_subset(&it.files));
        circles.extend(listed.map(|listed| Circle {
            since: listed.since.clone(),
            files: files.clone(),
        }));
    }
    circles
}

fn names(files: &BTreeSet<String>) -> String {
    const SHOWN: usize = 6;
    let mut text = String::new();
    for file in files.iter().take(SHOWN) {
        let _ = write!(text, " {file}");
    }
    if files.len() > SHOWN {
        let _ = write!(text, " and {} more", files.len() - SHOWN);
    }
    text.trim_start().to_owned()
}

/// Imports between files of all crates below `crates/`, and of xtask.
fn of_workspace(root: &Path) -> Result<Imports> {
    let mut places: Vec<PathBuf> = vec![root.join("xtask")];
    for entry in std::fs::read_dir(root.join("crates"))? {
        places.push(entry?.path());
    }
    let mut all = Imports::new();
    for place in places {
        for name in ["src/lib.rs", "src/main.rs"] {
            let file = place.join(name);
            if file.is_file() {
                all.extend(imports::of_crate(root, &file)?);
            }
        }
    }
    Ok(all)
}

/// Groups of two and more files that import each other, in the order of their first files.
// petgraph's components would bring a second hashbrown and another licence for these lines.
fn circles(imports: &Imports) -> Vec<BTreeSet<String>> {
    let reached: BTreeMap<&str, BTreeSet<&str>> = imports
        .keys()
        .map(|file| (file.as_str(), reached(imports, file)))
        .collect();
    let mut found = BTreeSet::new();
    for (file, others) in &reached {
        // A file is in its own set only if it lies on a circle.
        let circle = others.iter().filter(|other| {
            let back = reached.get(*other);
            back.is_some_and(|back| back.contains(file))
        });
        let circle: BTreeSet<String> = circle.map(|other| (*other).to_owned()).collect();
        if circle.len() > 1 {
            found.insert(circle);
        }
    }
    found.into_iter().collect()
}

/// Files that a file imports, directly or indirectly.
fn reached<'a>(imports: &'a Imports, file: &str) -> BTreeSet<&'a str> {
    let mut reached = BTreeSet::new();
    let mut open: Vec<&str> = vec![file];
    while let Some(next) = open.pop() {
        for other in imports.get(next).into_iter().flatten() {
            if reached.insert(other.as_str()) {
                open.push(other);
            }
        }
    }
    reached
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(files: &[&str]) -> BTreeSet<String> {
        files.iter().map(|file| (*file).to_owned()).collect()
    }

    fn list(files: &[&str]) -> Known {
        Known {
            circle: vec![Circle {
                since: "2026-01-02".to_owned(),
                files: set(files),
            }],
        }
    }

    #[test]
    fn files_that_import_each_other_are_a_circle() {
        let imports = Imports::from([
            ("a".to_owned(), set(&["b"])),
            ("b".to_owned(), set(&["c", "d"])),
            ("c".to_owned(), set(&["a"])),
            ("d".to_owned(), set(&["e"])),
        ]);
        assert_eq!(circles(&imports), [set(&["a", "b", "c"])]);
    }

    #[test]
    fn a_new_circle_and_a_grown_one_fail() {
        let said = |known: &Known, found: &[&str]| {
            let problems = problems(known, &[set(found)]);
            problems
                .into_iter()
                .map(|it| (it.is_new, it.text))
                .collect::<Vec<_>>()
        };
        assert_eq!(said(&list(&["a", "b"]), &["a", "b"]), []);
        let new = said(&Known::default(), &["a", "b"]);
        assert_eq!(new, [(true, "new circle of imports: a b".to_owned())]);
        let grown = said(&list(&["a", "b"]), &["a", "b", "c"]);
        assert!(grown[0].0, "{grown:?}");
    }

    #[test]
    fn a_smaller_circle_must_be_noted_and_keeps_its_day() {
        let known = list(&["a", "b", "c"]);
        let found = [set(&["a", "b"])];
        let problems = problems(&known, &found);
        assert!(!problems[0].is_new && problems.len() == 1);
        assert_eq!(shrunk(&known, &found)[0].since, "2026-01-02");
        assert_eq!(shrunk(&known, &[]), []);
    }

    #[test]
    fn a_circle_that_is_gone_must_be_noted() {
        let problems = problems(&list(&["a", "b"]), &[]);
        assert!(problems[0].text.contains("is gone"), "{}", problems[0].text);
    }

    #[test]
    fn the_list_of_this_workspace_is_true() {
        check().unwrap();
    }
}
