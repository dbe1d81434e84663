//! Reads saved output of multichase, which prints one number per run.
//!
//! The size of each run can be given in three ways: by `size ns` lines or
//! a size line before each result, as a shell loop prints them; by the command line of each
//! run, as a terminal or `set -x` shows it; or by the settings that `-v` prints.

use membound_types::{FitData, Observation};

use crate::check;
use crate::collect::{Collector, Conditions};
use crate::content::Curve;
use crate::error::Fault;
use crate::number;
use crate::text::{plural, shown};

/// Buffer size of multichase without `-m`, in bytes.
const DEFAULT_BYTES: u64 = 256 << 20;

/// Stride of multichase without `-s`, in bytes.
const DEFAULT_STRIDE: u64 = 256;

/// If the first of two numbers exceeds this, it is the time of day in seconds that `-y` prints.
const TIMESTAMP_S: f64 = 1e9;

const LOOP: &str = "print the size before each run: `for k in $(seq 0 17); do for q in 4 5 6 7; do \
                    s=$((q << k))k; echo -n \"$s \"; multichase -s 64 -T 1g -m $s; done; done`";

/// True if `line`, already trimmed, is a command line or a setting of this program.
pub(crate) fn recognises(line: &str) -> bool {
    is_command(line)
        || (line.starts_with("nr_threads") && line.contains('='))
        || (line.starts_with("total_memory") && line.contains('='))
}

/// True if `line` looks like a result, with or without its size.
pub(crate) fn recognises_point(line: &str) -> bool {
    let fields: Vec<&str> = line.split_whitespace().collect();
    matches!(fields.len(), 1 | 2) && is_number_like(fields[0])
}

/// True if `line` is a result with its size, but with decimal commas.
pub(crate) fn recognises_decimal_commas(line: &str) -> bool {
    let mut words = line.split_whitespace();
    let (Some(size), Some(ns), None) = (words.next(), words.next(), words.next()) else {
        return false;
    };
    let has_comma = number::has_decimal_comma;
    // A comma at the end of the first word would separate fields of a table.
    !size.ends_with(',') && is_number_like(size) && (has_comma(size) || has_comma(ns))
}

fn is_command(line: &str) -> bool {
    line.split_whitespace().any(is_program)
}

fn is_program(word: &str) -> bool {
    word.rsplit('/').next() == Some("multichase")
}

fn is_number_like(word: &str) -> bool {
    let word = size_word(word);
    number::parse_size(word).is_ok()
        || number::number(word).is_ok()
        || number::has_decimal_comma(word)
}

/// A size without the separators that loops print after it, as in `4k:` or `4k=`.
fn size_word(word: &str) -> &str {
    word.trim_end_matches([':', '=', ','])
}

/// A run whose result has not been read yet.
#[derive(Default)]
struct Run {
    size_bytes: Option<u64>,
    stride_bytes: Option<u64>,
    threads: Option<String>,
    chase: Option<String>,
    /// Line of the size, if a result must follow. After a command line none must: it may
    /// have printed only the help.
    promised: Option<usize>,
}

impl Run {
    /// The run that a command line starts. If the size is a variable, it stays unknown.
    fn of_command(command: &str) -> Self {
        // Commands before the program, such as numactl, have options of the same names.
        let words: Vec<&str> = command
            .split_whitespace()
            .skip_while(|word| !is_program(word))
            .collect();
        let option = |flag: &str| {
            words.iter().enumerate().find_map(|(at, word)| {
                let value = word.strip_prefix(flag)?;
                if value.is_empty() {
                    words.get(at + 1).copied()
                } else {
                    Some(value)
                }
            })
        };
        let size = |flag: &str, default: u64| match option(flag) {
            Some(value) => number::parse_size(value).ok(),
            None => Some(default),
        };
        Self {
            size_bytes: size("-m", DEFAULT_BYTES),
            stride_bytes: size("-s", DEFAULT_STRIDE),
            threads: option("-t").map(str::to_owned),
            chase: option("-c").map(str::to_owned),
            promised: None,
        }
    }

    /// Parses a setting that `-v` prints: `total_memory = 268435456 (256.0 MiB)`.
    fn setting(&mut self, key: &str, value: &str, line: usize) -> Result<(), String> {
        let first = value.split_whitespace().next().unwrap_or_default();
        match key {
            // This is the first setting of a run.
            "nr_threads" => {
                *self = Self {
                    threads: Some(first.to_owned()),
                    ..Self::default()
                };
            }
            "total_memory" => {
                let bytes = number::bytes(first).map_err(|what| format!("{key}: {what}"))?;
                self.size_bytes = Some(bytes);
                self.promised = Some(line);
            }
            "stride" => {
                let stride = number::stride(first).map_err(|what| format!("{key}: {what}"))?;
                self.stride_bytes = Some(stride);
            }
            "chase" => self.chase = Some(value.trim().to_owned()),
            _ => {}
        }
        Ok(())
    }
}

/// The points read so far, and the current run.
struct Reader {
    collector: Collector,
    run: Run,
    passed_over: usize,
    overlapping: bool,
    without_stride: bool,
}

/// Reads the output of several runs.
///
/// # Errors
/// A fault with the line and the value that cannot be used, or with advice on saving the sizes.
pub(crate) fn read(text: &str) -> Result<Vec<Curve>, Fault> {
    let mut reader = Reader {
        collector: Collector::new(FitData::Latency),
        run: Run::default(),
        passed_over: 0,
        overlapping: false,
        without_stride: false,
    };
    for (line, content) in (1..).zip(text.lines().map(str::trim)) {
        reader
            .line(content, line)
            .map_err(|what| Fault::line(line, what))?;
    }
    reader.finish()
}

impl Reader {
    fn line(&mut self, content: &str, line: usize) -> Result<(), String> {
        if is_command(content) {
            self.run = Run::of_command(content);
            return Ok(());
        }
        // Skip comments, and the output of -v for single samples.
        if content.starts_with('#') || content.contains("avg=") {
            return Ok(());
        }
        if let Some((key, value)) = content.split_once(" = ") {
            return self.run.setting(key.trim(), value, line);
        }
        let fields: Vec<&str> = content.split_whitespace().collect();
        let Some(&first) = fields.first() else {
            return Ok(());
        };
        if !is_number_like(first) {
            self.passed_over += usize::from(!content.starts_with("samples ("));
            return Ok(());
        }
        match fields[..] {
            [result] => match self.run.size_bytes {
                Some(_) => self.result(result),
                None => self.size_alone(result, line),
            },
            [time, result]
                if self.run.size_bytes.is_some()
                    && number::number(time).is_ok_and(|time_s| time_s > TIMESTAMP_S) =>
            {
                self.result(result)
            }
            [size, result] => {
                let bytes = size_before(size)?;
                self.run.size_bytes = Some(bytes);
                self.result(result)
            }
            _ => Err(format!(
                "{} in {}; expected are a size and nanoseconds, as in `64k 4.2`",
                plural(fields.len(), "field"),
                shown(content)
            )),
        }
    }

    /// Reads a size on a line of its own, before its result. Without a unit it could also be
    /// the result of a run whose size was not saved.
    fn size_alone(&mut self, word: &str, line: usize) -> Result<(), String> {
        let word = size_word(word);
        let has_unit = word.ends_with(|c: char| c.is_ascii_alphabetic());
        match number::parse_size(word) {
            Ok(bytes) if has_unit => {
                check::size(bytes).map_err(|what| format!("size: {what}"))?;
                self.run.size_bytes = Some(bytes);
                self.run.promised = Some(line);
                Ok(())
            }
            _ if number::has_decimal_comma(word) => number::number(word).map(drop),
            _ => Err(format!("{} stands without a size; {LOOP}", shown(word))),
        }
    }

    fn result(&mut self, word: &str) -> Result<(), String> {
        let ns = number::number(word)
            .and_then(|ns| check::load(ns).map(|()| ns))
            .map_err(|what| format!("latency: {what}"))?;
        let Some(area_bytes) = self.run.size_bytes.take() else {
            return Err(format!("{} stands without a size; {LOOP}", shown(word)));
        };
        let mut conditions = Conditions::default();
        if let Some(chase) = &self.run.chase {
            conditions.add("chase", chase);
            self.overlapping |= chase.starts_with("parallel") || chase.starts_with("critword2");
        }
        if let Some(threads) = &self.run.threads {
            conditions.add("threads", threads);
        }
        if let Some(stride) = self.run.stride_bytes {
            conditions.add("stride_bytes", &stride.to_string());
        }
        self.without_stride |= self.run.stride_bytes.is_none();
        let observation = Observation {
            window_bytes: None,
            area_bytes,
            ns,
            ns_low: None,
            ns_high: None,
        };
        self.collector
            .push(&conditions, self.run.stride_bytes, observation, &[]);
        self.run = Run::default();
        Ok(())
    }

    fn finish(self) -> Result<Vec<Curve>, Fault> {
        if let Some(line) = self.run.promised {
            return Err(Fault::line(
                line,
                "the run that begins here has no result: the file looks cut off",
            ));
        }
        let mut notes = Vec::new();
        if self.without_stride {
            notes.push(format!(
                "the file does not say the stride; multichase's own is {DEFAULT_STRIDE} bytes"
            ));
        }
        if self.overlapping {
            notes.push(
                "several chases ran at once in a thread: these times are no latencies".to_owned(),
            );
        }
        if self.passed_over > 0 {
            notes.push(format!(
                "{} that do not belong to multichase's output were passed over",
                plural(self.passed_over, "line")
            ));
        }
        self.collector.finish(&notes)
    }
}

fn size_before(word: &str) -> Result<u64, String> {
    let size = size_word(word);
    let bytes = match number::parse_size(size) {
        Ok(bytes) => bytes,
        // A number that is not a size: report what is wrong with it as a number of bytes.
        Err(what) if number::number(size).is_err() => return Err(format!("size: {what}")),
        Err(_) => {
            return number::bytes(size).map_err(|what| {
                format!("size: {what}; lat_mem_rd's output needs its `\"stride=N` line")
            });
        }
    };
    check::size(bytes).map_err(|what| format!("size: {what}"))?;
    Ok(bytes)
}
