//! Shows the tests' synthetic run, for looking at text and page without recording one:
//!
//! ```text
//! cargo run -p membound-report --example profile -- page > page.html
//! ```
//!
//! The first argument is `page`, `listing`, `comparison`, `comparison-page`, `gates`, `gates-page`, `pprof`,
//! `firefox`, `folded`, `speedscope`, `perfetto`, `otlp`, `arrow`, `parquet`, or what `report --by` takes; the second `simulation`, `nodes`, `nothing` or a
//! number of samples.

use std::error::Error;
use std::io::Write as _;

use membound_report::text::{self, Style};
use membound_report::{By, export, page};

#[path = "../tests/it/run/fixture/mod.rs"]
mod fixture;

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let what = args.next().unwrap_or_else(|| By::Summary.to_string());
    let (profile, detail) = match args.next().as_deref() {
        None | Some("simulation") => fixture::simulation(),
        Some("nodes") => fixture::two_nodes(),
        Some("nothing") => fixture::nothing(),
        Some(samples) => fixture::large(samples.parse()?),
    };
    let style = Style {
        color: true,
        width: 80,
    };
    let shown = match what.as_str() {
        "page" => page::profile(&profile, &detail).into_bytes(),
        "listing" => text::listing(&detail, None, style)
            .unwrap_or_default()
            .into_bytes(),
        "comparison" => text::run_comparison(&fixture::comparison(), style).into_bytes(),
        "comparison-page" => page::run_comparison(&fixture::comparison()).into_bytes(),
        "gates" => text::run_comparison(&fixture::gated(), style).into_bytes(),
        "gates-page" => page::run_comparison(&fixture::gated()).into_bytes(),
        "pprof" => export::pprof(&profile, &detail),
        "firefox" => export::firefox(&profile, &detail).into_bytes(),
        "folded" => export::folded(&detail, export::Weight::Stall).into_bytes(),
        "speedscope" => export::speedscope(&profile, &detail).into_bytes(),
        "perfetto" => export::perfetto(&profile, &detail),
        "otlp" => export::otlp(&profile, &detail),
        "arrow" => export::arrow(&profile, &detail)?,
        "parquet" => export::parquet(&profile, &detail)?,
        by => text::profile(&profile, &detail, by.parse::<By>()?, style).into_bytes(),
    };
    std::io::stdout().write_all(&shown)?;
    Ok(())
}
