//! Reads tables with a header: `size_bytes,ns`, `window_bytes,area_bytes,seconds_per_window`, and
//! the output of `measure --format csv`.
//!
//! Each line is a record: no field of these tables contains a line break, so an unclosed
//! quotation mark spoils only its own line, which the error names.

mod columns;

use std::str::FromStr;

use membound_types::{Access, FitData, NodePolicy, Observation, PageKind, Pattern, WindowKernel};

use crate::check;
use crate::collect::{Collector, Conditions, Mark};
use crate::content::Curve;
use crate::error::Fault;
use crate::number;
use crate::points::larger;
use crate::text::{plural, shown};

use columns::Columns;

/// Most characters of a field in a line that may belong to a table.
const MAX_COLUMN_NAME_CHARS: usize = 32;

/// Most words of such a field, including a unit.
const MAX_WORDS: usize = 3;

/// True if `line`, already trimmed, is a header: it contains a column name that is not a common
/// word, with any separators.
pub(crate) fn recognises(line: &str) -> bool {
    let names_one = columns::is_known(line.trim_matches('"'));
    let mut words = line.split([',', ';', '\t', '|', ' ']);
    names_one
        || words.any(|word| {
            let word = word.trim_matches([' ', '"']);
            word.contains('_') && columns::is_known(word)
        })
}

/// True if `line`, already trimmed, could be the header or a row of a table: short fields between
/// commas, unlike prose.
pub(crate) fn may_be(line: &str) -> bool {
    let short = |field: &str| {
        field.chars().count() <= MAX_COLUMN_NAME_CHARS
            && field.split_whitespace().count() <= MAX_WORDS
    };
    line.contains(',') && line.split(',').all(short)
}

/// Reads a table.
///
/// # Errors
/// A fault with line, column and value, and the expected form.
pub(crate) fn read(text: &str) -> Result<Vec<Curve>, Fault> {
    let mut rows = rows(text);
    let Some((line, header)) = rows.next() else {
        return Err(Fault::File("holds comments only, no table".to_owned()));
    };
    let columns = split(header)
        .and_then(|names| Columns::of(header, &names))
        .map_err(|what| Fault::line(line, what))?;
    let mut collector = Collector::new(columns.data());
    for (line, row) in rows {
        fields(row, columns.names().len())
            .and_then(|fields| push(&mut collector, &columns, &fields))
            .map_err(|what| Fault::line(line, what))?;
    }
    collector.finish(&[])
}

/// The lines of a table with their numbers from 1, without empty lines and comments.
pub(crate) fn rows(text: &str) -> impl Iterator<Item = (usize, &str)> {
    (1..)
        .zip(text.lines().map(str::trim))
        .filter(|(_, row)| !row.is_empty() && !row.starts_with('#'))
}

/// The fields of a row below a header with `columns` columns.
///
/// # Errors
/// A fragment of a message about the row.
pub(crate) fn fields(row: &str, columns: usize) -> Result<Vec<String>, String> {
    let fields = split(row)?;
    if fields.len() == columns {
        return Ok(fields);
    }
    let commas = if fields.len() > columns {
        " (decimal commas? Numbers take points)"
    } else {
        ""
    };
    Err(format!(
        "{}, but the header has {columns}{commas}",
        plural(fields.len(), "field")
    ))
}

/// The fields of a line, without quotation marks and surrounding blanks.
pub(crate) fn split(line: &str) -> Result<Vec<String>, String> {
    let mut fields = Vec::new();
    let mut rest = line;
    loop {
        rest = rest.trim_start_matches([' ', '\t']);
        let (field, after) = match rest.strip_prefix('"') {
            Some(quoted) => closed(quoted)?,
            None => {
                let end = rest.find(',').unwrap_or(rest.len());
                (rest[..end].trim().to_owned(), &rest[end..])
            }
        };
        fields.push(field);
        match after.strip_prefix(',') {
            Some(next) => rest = next,
            None => return Ok(fields),
        }
    }
}

/// The rest of a quoted field, and the text after it, which is empty or begins with a comma.
fn closed(quoted: &str) -> Result<(String, &str), String> {
    let mut field = String::new();
    let mut rest = quoted;
    loop {
        let Some((before, after)) = rest.split_once('"') else {
            return Err(format!(
                "the quotation mark before {} is not closed",
                shown(quoted)
            ));
        };
        field.push_str(before);
        if let Some(doubled) = after.strip_prefix('"') {
            field.push('"');
            rest = doubled;
            continue;
        }
        let after = after.trim_start();
        if !after.is_empty() && !after.starts_with(',') {
            return Err(format!(
                "expected a comma after {}, not {}",
                shown(&field),
                shown(after)
            ));
        }
        return Ok((field.trim().to_owned(), after));
    }
}

fn push(collector: &mut Collector, columns: &Columns, fields: &[String]) -> Result<(), String> {
    let row = Row { columns, fields };
    let mut conditions = Conditions::default();
    let mut stride_bytes = None;
    for (column, field) in columns.conditions() {
        let value = fields[*field].as_str();
        if value.is_empty() {
            if *column == "init_cpu" {
                continue;
            }
            return Err(empty(column));
        }
        condition(column, value).map_err(|what| format!("{column}: {what}"))?;
        if *column == "stride_bytes" {
            stride_bytes = number::count(value).ok();
        }
        conditions.add(column, value);
    }
    let observation = match columns.data() {
        FitData::Latency => row.load()?,
        FitData::Window => row.window()?,
    };
    let marks = row.marks()?;
    collector.push(&conditions, stride_bytes, observation, &marks);
    Ok(())
}

/// Checks that the value of a condition is valid.
fn condition(column: &str, value: &str) -> Result<(), String> {
    match column {
        "pattern" => Pattern::from_str(value).map(drop),
        "access" => Access::from_str(value).map(drop),
        "page" => PageKind::from_str(value).map(drop),
        "kernel" => WindowKernel::from_str(value).map(drop),
        "node" => NodePolicy::from_str(value).map(drop),
        "cpu" | "init_cpu" => number::count(value).map(drop),
        "threads" | "stride_bytes" => match number::count(value)? {
            0 => Err("0 is too few; expected is a number above 0".to_owned()),
            _ => Ok(()),
        },
        _ => Ok(()),
    }
    .map_err(|what| crate::text::shortened(&what, 200))
}

fn empty(column: &str) -> String {
    format!("{column}: is empty; leave the line out where nothing was measured")
}

/// One line of the table.
struct Row<'a> {
    columns: &'a Columns,
    fields: &'a [String],
}

impl Row<'_> {
    /// The text of a required column; an error if it is empty.
    fn required(&self, column: &str) -> Result<&str, String> {
        match self.optional(column) {
            Some(value) => Ok(value),
            None => Err(empty(column)),
        }
    }

    /// The text of a column, if the table has it and it is not empty.
    fn optional(&self, column: &str) -> Option<&str> {
        let value = self.fields[self.columns.position(column)?].as_str();
        (!value.is_empty()).then_some(value)
    }

    fn bytes(&self, column: &str) -> Result<u64, String> {
        number::bytes(self.required(column)?).map_err(|what| format!("{column}: {what}"))
    }

    fn time(&self, column: &str, check: impl Fn(f64) -> Result<(), String>) -> Result<f64, String> {
        number::number(self.required(column)?)
            .and_then(|value| check(value).map(|()| value))
            .map_err(|what| format!("{column}: {what}"))
    }

    /// The interval around `value`, if the row has both ends of it.
    fn interval(&self, value: f64, low: &str, high: &str) -> Result<Option<(f64, f64)>, String> {
        let end = |column: &str| {
            self.optional(column)
                .map(|text| number::number(text).map_err(|what| format!("{column}: {what}")))
                .transpose()
        };
        check::interval(value, end(low)?, end(high)?)
            .map_err(|what| format!("{low}, {high}: {what}"))
    }

    fn load(&self) -> Result<Observation, String> {
        let ns = self.time("ns", check::load)?;
        let interval = self.interval(ns, "ns_low", "ns_high")?;
        Ok(Observation {
            window_bytes: None,
            area_bytes: self.bytes("size_bytes")?,
            ns,
            ns_low: interval.map(|(low, _)| low),
            ns_high: interval.map(|(_, high)| high),
        })
    }

    fn window(&self) -> Result<Observation, String> {
        let window_bytes = self.bytes("window_bytes")?;
        let area_bytes = self.bytes("area_bytes")?;
        if window_bytes > area_bytes {
            return Err(format!(
                "window_bytes: {}",
                larger(window_bytes, area_bytes)
            ));
        }
        let seconds = self.time("seconds_per_window", |seconds| {
            check::window(window_bytes, seconds)
        })?;
        let interval = self.interval(seconds, "seconds_low", "seconds_high")?;
        Ok(Observation {
            window_bytes: Some(window_bytes),
            area_bytes,
            ns: seconds * 1e9,
            ns_low: interval.map(|(low, _)| low * 1e9),
            ns_high: interval.map(|(_, high)| high * 1e9),
        })
    }

    fn marks(&self) -> Result<Vec<Mark>, String> {
        match self.optional("disturbed") {
            None | Some("false") => Ok(Vec::new()),
            Some("true") => Ok(vec![Mark::Disturbed]),
            Some(other) => Err(format!(
                "disturbed: {} is neither `true` nor `false`",
                shown(other)
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_split_at_commas_outside_quotation_marks() {
        for (line, fields) in [
            ("a,b", vec!["a", "b"]),
            (" a , b ", vec!["a", "b"]),
            ("a,", vec!["a", ""]),
            (",", vec!["", ""]),
            (r#""a,b",c"#, vec!["a,b", "c"]),
            (r#" "a ""b""" , c"#, vec![r#"a "b""#, "c"]),
            (r#""""#, vec![""]),
        ] {
            assert_eq!(split(line).unwrap(), fields, "{line}");
        }
        assert!(split(r#"a,"b"#).unwrap_err().contains("not closed"));
        assert!(split(r#""a"b,c"#).unwrap_err().contains("expected a comma"));
    }
}
