//! The header of a table: its columns, and error messages about unknown ones.

use membound_types::FitData;

use crate::text::shown;

/// The role of a column.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Use {
    /// Every point needs a value.
    Needed,
    /// Distinguishes curves.
    Condition,
    /// Belongs to a point; may be missing or empty.
    Extra,
}

use Use::{Condition, Extra, Needed};

/// Columns of a latency table; the conditions are in the order of a curve's name.
const LATENCY: [(&str, Use); 15] = [
    ("size_bytes", Needed),
    ("ns", Needed),
    ("ns_low", Extra),
    ("ns_high", Extra),
    ("cycles", Extra),
    ("pattern", Condition),
    ("access", Condition),
    ("page", Condition),
    ("node", Condition),
    ("cpu", Condition),
    ("threads", Condition),
    ("prefetch", Condition),
    ("stride_bytes", Condition),
    ("samples", Extra),
    ("disturbed", Extra),
];

/// Columns of a window table.
const WINDOW: [(&str, Use); 12] = [
    ("window_bytes", Needed),
    ("area_bytes", Needed),
    ("seconds_per_window", Needed),
    ("seconds_low", Extra),
    ("seconds_high", Extra),
    ("kernel", Condition),
    ("page", Condition),
    ("node", Condition),
    ("cpu", Condition),
    ("init_cpu", Condition),
    ("disturbed", Extra),
    ("mflops", Extra),
];

/// True if a table has a column of this name, in any case.
pub(super) fn is_known(name: &str) -> bool {
    of_any_case(name).is_some()
}

/// The column with this name, in any case.
fn of_any_case(name: &str) -> Option<&'static str> {
    LATENCY
        .iter()
        .chain(&WINDOW)
        .map(|(known, _)| *known)
        .find(|known| known.eq_ignore_ascii_case(name))
}

/// The columns of a valid header.
pub(super) struct Columns {
    data: FitData,
    names: Vec<String>,
    conditions: Vec<(&'static str, usize)>,
}

impl Columns {
    /// The columns in the header `line`, already split into `names`.
    ///
    /// # Errors
    /// A fragment of a message that names the first column that cannot be used, or that is
    /// missing, and the expected form.
    pub(super) fn of(line: &str, names: &[String]) -> Result<Self, String> {
        separated(line, names)?;
        if names.iter().all(|name| name.parse::<f64>().is_ok()) {
            return Err(
                "no header; the first line names the columns: `size_bytes,ns` or \
                 `window_bytes,area_bytes,seconds_per_window`"
                    .to_owned(),
            );
        }
        let names: Vec<String> = names
            .iter()
            .map(|name| of_any_case(name).map_or_else(|| name.clone(), str::to_owned))
            .collect();
        let data = data_of(&names);
        let known = known(data);
        for (at, name) in names.iter().enumerate() {
            if !known.iter().any(|(column, _)| column == name) {
                return Err(unknown(name, at, data, &names));
            }
            if names[..at].contains(name) {
                return Err(format!("column {} stands there twice", shown(name)));
            }
        }
        for (column, of_use) in known {
            if *of_use == Needed && !names.iter().any(|name| name == column) {
                return Err(missing(column, &names));
            }
        }
        let position = |column: &str| names.iter().position(|name| name == column);
        let conditions = known
            .iter()
            .filter(|(_, of_use)| *of_use == Condition)
            .filter_map(|(column, _)| Some((*column, position(column)?)))
            .collect();
        Ok(Self {
            data,
            names,
            conditions,
        })
    }

    pub(super) const fn data(&self) -> FitData {
        self.data
    }

    pub(super) fn names(&self) -> &[String] {
        &self.names
    }

    /// The condition columns, with their positions.
    pub(super) fn conditions(&self) -> &[(&'static str, usize)] {
        &self.conditions
    }

    pub(super) fn position(&self, column: &str) -> Option<usize> {
        self.names.iter().position(|name| name == column)
    }
}

const fn known(data: FitData) -> &'static [(&'static str, Use)] {
    match data {
        FitData::Latency => &LATENCY,
        FitData::Window => &WINDOW,
    }
}

/// The table that a header most likely belongs to.
fn data_of(names: &[String]) -> FitData {
    let of_windows = |name: &String| {
        let name = name.to_lowercase();
        name.contains("window") || name.contains("area")
    };
    if names.iter().any(of_windows) {
        FitData::Window
    } else {
        FitData::Latency
    }
}

/// Checks that commas separate the names.
fn separated(line: &str, names: &[String]) -> Result<(), String> {
    if names.len() > 1 || is_known(&names[0]) {
        return Ok(());
    }
    let separator = match line.find([';', '\t', '|']) {
        Some(at) => shown(&line[at..=at]),
        None if line.contains(' ') => "blanks".to_owned(),
        None => return Ok(()),
    };
    Err(format!(
        "columns are separated by {separator}; expected are commas"
    ))
}

fn missing(column: &str, names: &[String]) -> String {
    let what = match column {
        "size_bytes" => "bytes that a chase walks over",
        "ns" => "nanoseconds of one load",
        "window_bytes" => "bytes of a window",
        "area_bytes" => "bytes of the area that windows are drawn from",
        _ => "seconds that one window takes",
    };
    let cycles = if column == "ns" && names.iter().any(|name| name == "cycles") {
        "; `cycles` are core clock cycles: divide them by the core clock in GHz"
    } else {
        ""
    };
    format!("no column `{column}` ({what}){cycles}")
}

/// Message about an unknown column: that it belongs to the other
/// table, that its unit is wrong if the name ends in another unit, else the known columns.
fn unknown(name: &str, at: usize, data: FitData, names: &[String]) -> String {
    if name.is_empty() {
        return format!("column {} has no name", at + 1);
    }
    if name == "size_bytes" {
        return "both `size_bytes` and columns of windows: a table holds loads (`size_bytes,ns`) \
                or windows (`window_bytes,area_bytes,seconds_per_window`); write two files"
            .to_owned();
    }
    if let Some(column) = meant(name, data) {
        if !names.iter().any(|other| other == column) {
            return format!("unknown column {}: did you mean `{column}`?", shown(name));
        }
    } else if let Some((unit, is_time)) = unit_of(name) {
        let right = match (is_time, data) {
            (true, FitData::Latency) => "times as `ns`, in nanoseconds",
            (true, FitData::Window) => "times as `seconds_per_window`, in seconds",
            (false, FitData::Latency) => "sizes as `size_bytes`, in bytes",
            (false, FitData::Window) => "sizes as `window_bytes` and `area_bytes`, in bytes",
        };
        return format!("column {} is in {unit}; expected are {right}", shown(name));
    }
    let known: Vec<&str> = known(data).iter().map(|(column, _)| *column).collect();
    format!(
        "unknown column {}; known are {}",
        shown(name),
        known.join(", ")
    )
}

/// The column that is meant by a name that ends in that column's own unit.
fn meant(name: &str, data: FitData) -> Option<&'static str> {
    Some(match (unit_of(name)?.0, data) {
        ("bytes", FitData::Latency) => "size_bytes",
        ("nanoseconds", FitData::Latency) => "ns",
        ("bytes", FitData::Window) if name.to_lowercase().contains("window") => "window_bytes",
        ("bytes", FitData::Window) => "area_bytes",
        ("seconds", FitData::Window) => "seconds_per_window",
        _ => return None,
    })
}

/// The unit that a column's name ends in, and true if it is a unit of time.
fn unit_of(name: &str) -> Option<(&'static str, bool)> {
    let lower = name.to_lowercase();
    lower
        .split(|c: char| !c.is_alphanumeric())
        .filter(|word| !word.is_empty())
        .rev()
        .find_map(|word| {
            Some(match word {
                "b" | "byte" | "bytes" => ("bytes", false),
                "k" | "kb" | "kib" | "kbytes" => ("KiB", false),
                "m" | "mb" | "mib" | "mbytes" => ("MiB", false),
                "g" | "gb" | "gib" | "gbytes" => ("GiB", false),
                "ps" | "picoseconds" => ("picoseconds", true),
                "ns" | "nsec" | "nanoseconds" => ("nanoseconds", true),
                "us" | "µs" | "μs" | "usec" | "microseconds" => ("microseconds", true),
                "ms" | "msec" | "milliseconds" => ("milliseconds", true),
                "s" | "sec" | "second" | "seconds" => ("seconds", true),
                "cycle" | "cycles" | "clocks" | "clk" => ("clock cycles", true),
                "tick" | "ticks" => ("timer ticks", true),
                _ => return None,
            })
        })
}
