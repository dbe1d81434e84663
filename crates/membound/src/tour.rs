//! `membound tour`: a first look for new users, in about a minute.

pub(crate) mod contention;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::ValueEnum;
use membound_analyze::Views;
use membound_report::{By, page, text};

use crate::args::{MeasureArgs, TourArgs};
use crate::output::{self, Target};
use crate::{measure, profile, report};
use contention::Layout;

/// Measures everything quickly, profiles a program before and after its repair, and writes the pages.
pub(crate) fn run(args: &TourArgs) -> anyhow::Result<ExitCode> {
    let measure = MeasureArgs {
        quick: true,
        html: Some(args.html.clone()),
        json: args.json.clone(),
        ..MeasureArgs::default()
    };
    // Checked before the minute of measuring, not after it.
    Target::page(&args.html)?;
    let second = profile_page(&args.html);
    let mut second = (Target::open(&second)?, second);
    output::complain("measuring this machine's memory hierarchy; this takes about a minute");
    let code = measure::run(&measure)?;
    if code != ExitCode::SUCCESS {
        return Ok(code);
    }
    output::complain("profiling a program whose two threads fight over a line, then mended");
    let scratch = tempfile::tempdir().context("there is no room for the runs")?;
    let before = recorded(Layout::Together, scratch.path(), Some(&mut second.0))?;
    let after = recorded(Layout::Apart, scratch.path(), None)?;
    let style = output::style();
    output::print(&text::profile(
        &before.profile,
        &before.detail,
        By::Summary,
        style,
    ));
    let both = [("before", &before.profile), ("after", &after.profile)];
    let comparison = membound_analyze::compare(&both);
    output::print(&text::run_comparison(&comparison, style));
    for path in [&args.html, &second.1] {
        let path = std::path::absolute(path).unwrap_or_else(|_| path.clone());
        output::complain(&format!(
            "a page is {} (open it in a browser)",
            path.display()
        ));
    }
    Ok(ExitCode::SUCCESS)
}

/// Path of the profile page next to the page of the machine: `tour.html` gives `tour-profile.html`.
fn profile_page(page: &Path) -> PathBuf {
    let stem = page.file_stem().unwrap_or_default().to_string_lossy();
    page.with_file_name(format!("{stem}-profile.html"))
}

/// Profiles the bundled program, and writes its page if `target` is given.
fn recorded(layout: Layout, scratch: &Path, target: Option<&mut Target>) -> anyhow::Result<Views> {
    let name = layout
        .to_possible_value()
        .context("every layout has a name")?;
    let path = scratch.join(format!("{}.run", name.get_name()));
    let own = std::env::current_exe().context("cannot find membound's own file")?;
    profile::quietly(
        &own,
        &["__contend".into(), name.get_name().into()],
        path.clone(),
    )?;
    let views = match target {
        Some(_) => report::page_views(&path)?,
        None => report::views(&path, &[])?,
    };
    if let Some(target) = target {
        target.write(&page::profile(&views.profile, &views.detail))?;
    }
    Ok(views)
}
