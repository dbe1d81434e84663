//! Links between Markdown files: checks that the file exists, and the heading in it.
//!
//! Anchors are those that GitHub and mdBook both make of a heading: lower case, letters, digits,
//! `-` and `_` kept, spaces as `-`, everything else left out, `-1`, `-2` behind repeated ones.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

use anyhow::Result;
use pulldown_cmark::{BrokenLink, Event, LinkType, Options, Parser, Tag, TagEnd};

use crate::run::read;

/// Result of checking some Markdown files.
#[derive(Debug, Default)]
pub(super) struct Checked {
    /// One line for each broken link: file, line, and what is missing.
    pub(super) problems: Vec<String>,
    /// Files that are linked to, relative to the root.
    pub(super) targets: BTreeSet<PathBuf>,
}

/// One Markdown file.
#[derive(Debug, Default)]
struct Page {
    anchors: BTreeSet<String>,
    /// Byte offset and destination of each link and image.
    links: Vec<(usize, String)>,
    /// Byte offset and label of references without a definition.
    undefined: Vec<(usize, String)>,
}

/// Checks the links of `files`, which are relative to `root`.
///
/// # Errors
/// When a file cannot be read.
pub(super) fn check(root: &Path, files: &[PathBuf]) -> Result<Checked> {
    let mut pages = BTreeMap::new();
    let mut checked = Checked::default();
    for file in files {
        let source = read(&root.join(file))?;
        let page = Page::of(&source);
        let line = |at: usize| 1 + source[..at].matches('\n').count();
        for (at, label) in &page.undefined {
            let place = format!("{}:{}", file.display(), line(*at));
            checked
                .problems
                .push(format!("{place}: nothing defines [{label}]"));
        }
        for (at, link) in &page.links {
            if let Some(missing) = broken(root, file, link, &mut pages, &mut checked.targets)? {
                let place = format!("{}:{}", file.display(), line(*at));
                checked.problems.push(format!("{place}: {missing}"));
            }
        }
    }
    Ok(checked)
}

/// Markdown files below `source` that its table of contents lacks.
///
/// # Errors
/// When a file or a directory cannot be read.
pub(super) fn left_out(root: &Path, source: &str) -> Result<Vec<String>> {
    let summary = Path::new(source).join("SUMMARY.md");
    let listed = check(root, std::slice::from_ref(&summary))?.targets;
    let mut missing = Vec::new();
    let mut open = vec![PathBuf::from(source)];
    while let Some(directory) = open.pop() {
        for entry in std::fs::read_dir(root.join(&directory))? {
            let path = directory.join(entry?.file_name());
            if root.join(&path).is_dir() {
                open.push(path);
            } else if is_markdown(&path) && path != summary && !listed.contains(&path) {
                missing.push(format!("{}: not in SUMMARY.md", path.display()));
            }
        }
    }
    missing.sort();
    Ok(missing)
}

/// What a link of `file` lacks; `None` if its target exists.
fn broken(
    root: &Path,
    file: &Path,
    link: &str,
    pages: &mut BTreeMap<PathBuf, Page>,
    targets: &mut BTreeSet<PathBuf>,
) -> Result<Option<String>> {
    if link.contains("://") || link.starts_with("mailto:") {
        return Ok(None);
    }
    let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
    let beside = file.parent().unwrap_or(Path::new(""));
    let target = match path {
        "" => Some(file.to_owned()),
        path => normal(&beside.join(path)),
    };
    let Some(target) = target.filter(|target| root.join(target).exists()) else {
        return Ok(Some(format!("no file {path}")));
    };
    targets.insert(target.clone());
    if anchor.is_empty() {
        return Ok(None);
    }
    if !is_markdown(&target) {
        return Ok(Some(format!("{path} has no headings: #{anchor}")));
    }
    if !pages.contains_key(&target) {
        let page = Page::of(&read(&root.join(&target))?);
        pages.insert(target.clone(), page);
    }
    let known = pages[&target].anchors.contains(anchor);
    Ok((!known).then(|| format!("no heading #{anchor} in {}", target.display())))
}

/// `path` without `.` and `..`; `None` when it leaves the root.
fn normal(path: &Path) -> Option<PathBuf> {
    let mut normal = PathBuf::new();
    for part in path.components() {
        match part {
            Component::Normal(name) => normal.push(name),
            Component::CurDir => {}
            Component::ParentDir if normal.pop() => {}
            _ => return None,
        }
    }
    Some(normal)
}

fn is_markdown(path: &Path) -> bool {
    path.extension().is_some_and(|ending| ending == "md")
}

impl Page {
    fn of(source: &str) -> Self {
        let undefined = RefCell::new(Vec::new());
        // Figures such as [68, 72] are text; only an explicit reference must be defined.
        let meant = [LinkType::Reference, LinkType::Collapsed];
        let note = |link: BrokenLink<'_>| {
            if meant.contains(&link.link_type) {
                let label = link.reference.to_string();
                undefined.borrow_mut().push((link.span.start, label));
            }
            None
        };
        let options = Options::ENABLE_TABLES | Options::ENABLE_FOOTNOTES;
        let parser = Parser::new_with_broken_link_callback(source, options, Some(note));
        let mut page = Self::default();
        let mut heading: Option<String> = None;
        for (event, span) in parser.into_offset_iter() {
            match event {
                Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                    page.links.push((span.start, dest_url.to_string()));
                }
                Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
                Event::End(TagEnd::Heading(_)) => {
                    page.add_anchor(&anchor(&heading.take().unwrap_or_default()));
                }
                Event::Text(words) | Event::Code(words) => {
                    if let Some(heading) = &mut heading {
                        heading.push_str(&words);
                    }
                }
                _ => {}
            }
        }
        page.undefined = undefined.into_inner();
        page
    }

    fn add_anchor(&mut self, name: &str) {
        let mut unique = name.to_owned();
        let mut count = 0;
        while !self.anchors.insert(unique.clone()) {
            count += 1;
            unique = format!("{name}-{count}");
        }
    }
}

/// The anchor of a heading.
fn anchor(heading: &str) -> String {
    let kept = heading.trim().chars().filter_map(|letter| match letter {
        ' ' => Some('-'),
        '-' | '_' => Some(letter),
        letter if letter.is_alphanumeric() => Some(letter),
        _ => None,
    });
    kept.flat_map(char::to_lowercase).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Problems of `a.md` with this text, beside a `b.md` and a file that is no Markdown.
    #[track_caller]
    fn check_text(source: &str, expected: &[&str]) {
        let place = tempfile::tempdir().unwrap();
        let root = place.path();
        std::fs::create_dir(root.join("docs")).unwrap();
        std::fs::write(root.join("docs/a.md"), source).unwrap();
        std::fs::write(root.join("b.md"), "# One `two`\n\n# Same\n\n# Same\n").unwrap();
        std::fs::write(root.join("c.json"), "{}").unwrap();
        let found = check(root, &[PathBuf::from("docs/a.md")]).unwrap();
        assert_eq!(found.problems, expected);
    }

    #[test]
    fn links_to_files_and_headings_that_are_there_are_good() {
        check_text(
            "# Here\n[a](../b.md) [b](../b.md#one-two) [c](../b.md#same-1) [d](#here)\n\
             ![e](../c.json) [f](https://example.org/#x) [g][r] [68, 72]\n\n[r]: ../c.json\n",
            &[],
        );
    }

    #[test]
    fn a_missing_file_is_named_with_its_line() {
        check_text("\n[a](../gone.md)\n", &["docs/a.md:2: no file ../gone.md"]);
        check_text("![a](gone.png)\n", &["docs/a.md:1: no file gone.png"]);
        check_text(
            "[a](../../etc/passwd)\n",
            &["docs/a.md:1: no file ../../etc/passwd"],
        );
    }

    #[test]
    fn a_missing_heading_is_named_with_its_page() {
        check_text(
            "[a](../b.md#three)\n",
            &["docs/a.md:1: no heading #three in b.md"],
        );
        check_text(
            "[a](#gone)\n",
            &["docs/a.md:1: no heading #gone in docs/a.md"],
        );
        check_text(
            "[a](../c.json#x)\n",
            &["docs/a.md:1: ../c.json has no headings: #x"],
        );
    }

    #[test]
    fn a_reference_that_nothing_defines_is_named() {
        check_text("x\n\n[2 %][run]\n", &["docs/a.md:3: nothing defines [run]"]);
    }

    #[test]
    fn links_in_code_are_text() {
        check_text("`[a](gone.md)`\n\n```\n[a](gone.md)\n```\n", &[]);
    }

    #[test]
    fn a_page_that_the_table_of_contents_lacks_is_named() {
        let place = tempfile::tempdir().unwrap();
        let root = place.path();
        std::fs::create_dir_all(root.join("docs/deep")).unwrap();
        std::fs::write(root.join("docs/SUMMARY.md"), "- [a](a.md)\n").unwrap();
        std::fs::write(root.join("docs/a.md"), "").unwrap();
        std::fs::write(root.join("docs/deep/b.md"), "").unwrap();
        let missing = left_out(root, "docs").unwrap();
        assert_eq!(missing, ["docs/deep/b.md: not in SUMMARY.md"]);
    }

    #[test]
    fn the_links_of_this_workspace_hold() {
        crate::book::check_links().unwrap();
    }
}
