//! Renders the profile or model in a JSON file as a page, or with `--text` for a terminal:
//!
//! ```text
//! cargo run -p membound-report --example page -- profile.json > page.html
//! ```

use std::error::Error;
use std::io::Write as _;

use membound_report::text::Style;
use membound_types::{MachineProfile, Model};

fn main() -> Result<(), Box<dyn Error>> {
    let mut args: Vec<_> = std::env::args_os().skip(1).collect();
    let text = args.iter().position(|arg| arg == "--text");
    if let Some(index) = text {
        args.remove(index);
    }
    let path = args.first().ok_or("usage: page PROFILE.json [--text]")?;
    let document: serde_json::Value = serde_json::from_slice(&std::fs::read(path)?)?;
    let style = text.map(|_| Style::default());
    let shown = if document["kind"] == "model" {
        let model: Model = serde_json::from_value(document)?;
        match style {
            Some(style) => membound_report::text::model(&model, style),
            None => membound_report::page::model(&model),
        }
    } else {
        let profile: MachineProfile = serde_json::from_value(document)?;
        match style {
            Some(style) => membound_report::text::machine(&profile, style),
            None => membound_report::page::render(&profile),
        }
    };
    std::io::stdout().write_all(shown.as_bytes())?;
    Ok(())
}
