//! Readers of measured curves: for `model fit`, and for `compare` where a file is not a document of membound.
//!
//! Nothing here opens a file; bytes and the name to be used in messages come from the
//! caller, and nothing here judges a curve beyond what its format says and what no machine
//! can do. The format is found in the content, never in the name: `json`, `csv`,
//! `lat_mem_rd`, `multichase`, `mlc` and `mess` each read one. What they accept is written
//! down in `docs/formats/input.md`.

#![forbid(unsafe_code)]

mod check;
mod collect;
mod content;
mod csv;
mod error;
mod fields;
mod json;
mod lat_mem_rd;
mod mess;
mod mlc;
mod multichase;
mod number;
mod points;
mod text;
mod traffic;

pub use content::{Content, Curve};
pub use error::InputError;
pub use number::parse_size;
pub use points::curves_of_profile;
pub use traffic::{LoadedCurve, LoadedPoint};

use error::Fault;

/// A format, as far as the content gives it away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Json,
    Csv,
    LatMemRd,
    Multichase,
    Mlc,
    Mess,
}

/// Reads a file's bytes, whatever known format they are in.
///
/// Curves come with at least two values between them, every value is positive and finite,
/// and no window is larger than its area.
///
/// # Errors
///
/// [`InputError`] with file, line or field, and what would be right.
pub fn read(name: &str, bytes: &[u8]) -> Result<Content, InputError> {
    let parsed = text::decode(bytes).and_then(|text| {
        let text = text.as_ref();
        match detect(text)? {
            Format::Json => json::read(text),
            Format::Csv => csv::read(text).map(Content::Curves),
            Format::LatMemRd => lat_mem_rd::read(text).map(Content::Curves),
            Format::Multichase => multichase::read(text).map(Content::Curves),
            Format::Mlc => mlc::read(text),
            Format::Mess => mess::read_csv(text).map(Content::Loaded),
        }
    });
    parsed.map_err(|fault: Fault| fault.of(name))
}

/// The format of `text`: our own by how it begins, other programs' output by lines that
/// only they write, because it is often saved together with prompts and messages.
fn detect(text: &str) -> Result<Format, Fault> {
    let Some(first) = text.lines().map(str::trim).find(|line| !line.is_empty()) else {
        return Err(Fault::Empty);
    };
    if first.starts_with('{') || json::is_list(text) {
        return Ok(Format::Json);
    }
    let content = text
        .lines()
        .map(str::trim)
        .find(|line| !line.is_empty() && !line.starts_with('#'));
    if content.is_some_and(mess::recognises) {
        return Ok(Format::Mess);
    }
    if content.is_some_and(csv::recognises) {
        return Ok(Format::Csv);
    }
    let any = |known: fn(&str) -> bool| text.lines().any(|line| known(line.trim()));
    if any(mlc::recognises) {
        return Ok(Format::Mlc);
    }
    if any(lat_mem_rd::recognises) {
        return Ok(Format::LatMemRd);
    }
    if any(multichase::recognises) {
        return Ok(Format::Multichase);
    }
    match content {
        // Comments alone: a table without even a header.
        None => Ok(Format::Csv),
        Some(line) if multichase::recognises_decimal_commas(line) => Ok(Format::Multichase),
        Some(line) if csv::may_be(line) => Ok(Format::Csv),
        Some(line) if multichase::recognises_point(line) => Ok(Format::Multichase),
        Some(_) => Err(Fault::Unknown),
    }
}
