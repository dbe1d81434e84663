//! Renders the profile in a JSON file as a page, or with `--text` for a terminal:
//!
//! ```text
//! cargo run -p membound-report --example page -- profile.json > page.html
//! ```

use std::error::Error;
use std::io::Write as _;

use membound_report::text::Style;
use membound_types::MachineProfile;

fn main() -> Result<(), Box<dyn Error>> {
    let mut args: Vec<_> = std::env::args_os().skip(1).collect();
    let text = args.iter().position(|arg| arg == "--text");
    if let Some(index) = text {
        args.remove(index);
    }
    let path = args.first().ok_or("usage: page PROFILE.json [--text]")?;
    let profile: MachineProfile = serde_json::from_slice(&std::fs::read(path)?)?;
    let shown = if text.is_some() {
        membound_report::text::profile(&profile, Style::default())
    } else {
        membound_report::page::render(&profile)
    };
    std::io::stdout().write_all(shown.as_bytes())?;
    Ok(())
}
