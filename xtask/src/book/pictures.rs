//! The book's pictures, made from real runs: the plots of the Python notebook, and pages in a browser.
//!
//! The notebook measures this machine and records its program; a cell whose identifier is `plot-NAME` becomes
//! `docs/images/python-NAME.png`. Chromium shows the page of that run and the page of a quick measurement of everything.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::Value;

use crate::needs::install_packages;
use crate::python::{self, Notebook};
use crate::run::{on_path, program, read, root, say, stdout_of, succeed};

/// Directory of the pictures.
const IMAGES: &str = "docs/images";
/// Maximum size of all pictures together, so that checkouts and pages stay small.
const MAX_BYTES: u64 = 300_000;
/// Prefix of the identifiers of the notebook's cells that draw a picture.
const PLOT: &str = "plot-";
/// Python program that reduces the colours: a picture then has a third of the size and looks the
/// same.
const SHRINK: &str = "import sys\nfrom PIL import Image\n\
    for path in sys.argv[1:]:\n    \
    Image.open(path).convert('RGB').quantize(128).save(path, optimize=True)\n";

/// A picture of a page: its file, and its width and height in pixels.
struct Shot {
    name: &'static str,
    width: u32,
    height: u32,
}

const RUN_PAGE: Shot = Shot {
    name: "run-page.png",
    width: 1180,
    height: 905,
};
const MACHINE_PAGE: Shot = Shot {
    name: "page.png",
    width: 1180,
    height: 1330,
};

/// Makes all pictures again.
///
/// # Errors
/// When a needed tool is not available, or the pictures are too large together.
pub(super) fn make() -> Result<()> {
    let notebook = python::execute_notebook()?;
    let mut pictures = plots(&notebook.path)?;
    let place = tempfile::tempdir().context("there is no room for a directory")?;
    let page = place.path().join("page.html");

    let mut report = program(&notebook.command);
    report
        .arg("report")
        .arg(notebook.path.with_file_name("orders.run"));
    succeed(report.arg("--by=summary").arg("--html").arg(&page))?;
    pictures.push(RUN_PAGE.take(&page)?);
    let mut measure = program(&notebook.command);
    measure.args(["measure", "--quick", "--format=text", "--html"]);
    succeed(measure.arg(&page))?;
    pictures.push(MACHINE_PAGE.take(&page)?);

    shrink(&notebook, &pictures)?;
    let mut bytes = 0;
    for path in &pictures {
        bytes += fs::metadata(path)
            .with_context(|| format!("cannot read {}", path.display()))?
            .len();
        say(path.display());
    }
    ensure!(
        bytes <= MAX_BYTES,
        "the pictures have {bytes} bytes; {MAX_BYTES} are the limit"
    );
    Ok(())
}

/// Writes the pictures that the cells of an executed notebook drew.
fn plots(notebook: &Path) -> Result<Vec<PathBuf>> {
    let document: Value = serde_json::from_str(&read(notebook)?)
        .with_context(|| format!("{} is no notebook", notebook.display()))?;
    let mut pictures = Vec::new();
    for cell in document["cells"].as_array().into_iter().flatten() {
        let Some(name) = cell["id"].as_str().and_then(|id| id.strip_prefix(PLOT)) else {
            continue;
        };
        let mut outputs = cell["outputs"].as_array().into_iter().flatten();
        let picture = outputs.find_map(|output| output["data"]["image/png"].as_str());
        let picture = picture.with_context(|| format!("the cell {PLOT}{name} draws nothing"))?;
        let bytes = BASE64_STANDARD
            .decode(picture.split_whitespace().collect::<String>())
            .ok()
            .with_context(|| format!("the picture of {PLOT}{name} is no base64"))?;
        let path = root().join(IMAGES).join(format!("python-{name}.png"));
        fs::write(&path, bytes).with_context(|| format!("cannot write {}", path.display()))?;
        pictures.push(path);
    }
    if pictures.is_empty() {
        bail!("no cell of {} draws a picture", notebook.display());
    }
    Ok(pictures)
}

impl Shot {
    /// Takes a screenshot of a page in a browser without a window.
    fn take(&self, page: &Path) -> Result<PathBuf> {
        if on_path("chromium").is_none() {
            install_packages(&["chromium"])?;
        }
        let path = root().join(IMAGES).join(self.name);
        let mut browser = program("chromium");
        browser.args("--headless --no-sandbox --disable-gpu --hide-scrollbars".split(' '));
        // Time for the page's script, in the page's own clock.
        browser.arg("--virtual-time-budget=3000");
        browser.arg(format!("--window-size={},{}", self.width, self.height));
        browser.arg(format!("--screenshot={}", path.display()));
        // Its complaints about buses that a container lacks are ignored.
        stdout_of(browser.arg(format!("file://{}", page.display())))?;
        Ok(path)
    }
}

/// Reduces the colours with the notebook's Python, which has Pillow because matplotlib needs it.
fn shrink(notebook: &Notebook, pictures: &[PathBuf]) -> Result<()> {
    succeed(
        program(&notebook.python)
            .args(["-c", SHRINK])
            .args(pictures),
    )
}
