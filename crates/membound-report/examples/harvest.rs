//! Shows the tests' synthetic harvest, for looking at text and page without running one:
//!
//! ```text
//! cargo run -p membound-report --example harvest -- page > page.html
//! ```
//!
//! The first argument is `page`, `text` or `json`; the second `full`, `bare`, `cut-short` or
//! `no-primary`.

use std::error::Error;
use std::io::Write as _;

use membound_report::page;
use membound_report::text::{self, Style};

#[path = "../tests/it/harvest/fixture.rs"]
mod fixture;

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let what = args.next();
    let run = match args.next().as_deref() {
        None | Some("full") => fixture::full(),
        Some("bare") => fixture::bare(),
        Some("cut-short") => fixture::cut_short(),
        Some("no-primary") => fixture::no_primary(),
        Some(other) => return Err(format!("no harvest `{other}`").into()),
    };
    let shown = match what.as_deref() {
        Some("page") => page::harvest_run(&run),
        Some("json") => serde_json::to_string_pretty(&run)?,
        _ => text::harvest_run(
            &run,
            Style {
                color: true,
                width: 80,
            },
        ),
    };
    std::io::stdout().write_all(shown.as_bytes())?;
    Ok(())
}
