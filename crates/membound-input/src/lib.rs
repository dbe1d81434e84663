//! Reads measured curves for `model fit`, and for `compare` if a file is not a document of membound;
//! and documents of membound as such ([`document`]).
//!
//! Nothing here opens a file: the caller passes the bytes and the name for messages. Nothing here
//! judges a curve beyond the rules of its format and the limits of plausible values. The format is
//! detected from the content, never from the name: `json`, `csv`,
//! `lat_mem_rd`, `multichase`, `mlc` and `mess` each read one. `docs/formats/input.md` describes
//! what they accept.

#![forbid(unsafe_code)]

mod check;
mod collect;
mod content;
mod csv;
mod decode;
mod document;
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
pub use document::{OtherDocument, parse as document};
pub use error::InputError;
pub use number::parse_size;
pub use points::curves_of_profile;
pub use traffic::{LoadedCurve, LoadedPoint};

use error::Fault;

/// A file format, detected from the content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Json,
    Csv,
    LatMemRd,
    Multichase,
    Mlc,
    Mess,
}

/// Reads the bytes of a file in any known format; `name` is only for messages.
///
/// The curves together have at least two values, every value is positive and finite,
/// and no window is larger than its area.
///
/// # Errors
///
/// [`InputError`] with file, line or field, and the expected form.
pub fn read(name: &str, bytes: &[u8]) -> Result<Content, InputError> {
    let parsed = decode::decode(bytes).and_then(|text| {
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

/// Detects the format of `text`: membound's own by its beginning, other programs' output by lines
/// that only they write, because it is often saved together with prompts and messages.
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
        // Only comments: the reader of tables reports the missing header.
        None => Ok(Format::Csv),
        Some(line) if multichase::recognises_decimal_commas(line) => Ok(Format::Multichase),
        Some(line) if csv::may_be(line) => Ok(Format::Csv),
        Some(line) if multichase::recognises_point(line) => Ok(Format::Multichase),
        Some(_) => Err(Fault::Unknown),
    }
}
