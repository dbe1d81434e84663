//! The built book: files copied beside it, and dead links.

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use anyhow::{Context as _, Result};
use pulldown_cmark::{Options, Parser, html};
use regex::Regex;

use crate::run::read;

/// Destinations in HTML without their anchors.
static DESTINATION: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r##"(?:href|src)="([^"#?]+)"##).expect("the expression is constant")
});

/// Copies a file to where the built book links to it. Markdown becomes a page of HTML, because
/// mdBook writes `.html` for `.md` in every relative link.
pub(super) fn put_beside(from: &Path, to: &Path) -> Result<()> {
    let directory = to.parent().context("a file lies in a directory")?;
    std::fs::create_dir_all(directory)?;
    if from.extension().is_some_and(|ending| ending == "md") {
        let source = read(from)?;
        let mut page = "<!DOCTYPE html><meta charset=\"utf-8\">\n".to_owned();
        html::push_html(&mut page, Parser::new_ext(&source, Options::ENABLE_TABLES));
        std::fs::write(to.with_extension("html"), page)?;
    } else {
        std::fs::copy(from, to)?;
    }
    Ok(())
}

/// Relative links of the pages below `directory` that lead nowhere: page and destination.
pub(super) fn dead_links(directory: &Path) -> Result<Vec<String>> {
    let mut dead = Vec::new();
    let mut open: Vec<PathBuf> = vec![directory.to_owned()];
    while let Some(place) = open.pop() {
        for entry in std::fs::read_dir(&place)? {
            let path = entry?.path();
            if path.is_dir() {
                open.push(path);
            } else if path.extension().is_some_and(|ending| ending == "html") {
                let page = read(&path)?;
                let links = DESTINATION.captures_iter(&page);
                let missing = links
                    .map(|link| link[1].to_owned())
                    .filter(|link| is_relative(link) && !place.join(link).exists());
                let name = path.display().to_string();
                dead.extend(missing.map(|link| format!("{name}: {link}")));
            }
        }
    }
    dead.sort();
    dead.dedup();
    Ok(dead)
}

fn is_relative(link: &str) -> bool {
    !link.contains(':') && !link.starts_with('/')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_of_a_built_page_that_leads_nowhere_is_named() {
        let place = tempfile::tempdir().unwrap();
        let page =
            "<a href=\"b.html#x\">b</a> <img src=\"gone.png\"> <a href=\"https://x.org\">x</a>";
        std::fs::write(place.path().join("a.html"), page).unwrap();
        std::fs::write(place.path().join("b.html"), "").unwrap();
        let dead = dead_links(place.path()).unwrap();
        assert_eq!(dead.len(), 1, "{dead:?}");
        assert!(dead[0].ends_with("a.html: gone.png"), "{dead:?}");
    }

    #[test]
    fn markdown_beside_the_book_becomes_a_page() {
        let place = tempfile::tempdir().unwrap();
        let [from, to] = ["x.md", "site/x.md"].map(|name| place.path().join(name));
        std::fs::write(&from, "| a |\n|---|\n| b |\n").unwrap();
        put_beside(&from, &to).unwrap();
        let page = std::fs::read_to_string(place.path().join("site/x.html")).unwrap();
        assert!(page.contains("<td>b</td>"), "{page}");
    }
}
