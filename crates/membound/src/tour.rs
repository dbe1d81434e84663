//! `membound tour`: the newcomer's minute.

use std::process::ExitCode;

use crate::args::{MeasureArgs, TourArgs};
use crate::output::Target;
use crate::{measure, output};

/// Measures everything quickly and writes the page.
pub(crate) fn run(args: &TourArgs) -> anyhow::Result<ExitCode> {
    let measure = MeasureArgs {
        quick: true,
        html: Some(args.html.clone()),
        json: args.json.clone(),
        ..MeasureArgs::default()
    };
    // Found out before the minute, not after it.
    Target::open(&args.html)?;
    output::complain("measuring this machine's memory hierarchy; this takes about a minute");
    let code = measure::run(&measure)?;
    let page = std::path::absolute(&args.html).unwrap_or_else(|_| args.html.clone());
    output::complain(&format!(
        "the page is {} (open it in a browser)",
        page.display()
    ));
    Ok(code)
}
