//! Arguments of `profile`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use membound_input::parse_size;

use crate::option_values::seconds;

/// Default path of a run, for writing and for reading.
pub(crate) const USUAL_RUN: &str = "membound.run";

/// What takes timer samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum SamplerArg {
    /// perf events if they are permitted, else timers inside the program.
    #[default]
    Auto,
    /// perf events; an error if they are not permitted.
    Perf,
    /// Timers inside the program, as in a container.
    Agent,
}

/// Arguments of `profile`.
#[derive(Args, Debug)]
#[command(
    after_help = "The program keeps stdin, stdout, its exit code and the signal that ends it; \
                  `membound report RUN` shows the run. --repeat and --until stop after a run in \
                  which the program fails. Exit codes of membound itself: 127 if the command does \
                  not exist, 126 if it cannot be run."
)]
pub(crate) struct ProfileArgs {
    /// Run file to write; an existing one is replaced.
    #[arg(short, long, value_name = "RUN", default_value = USUAL_RUN)]
    pub(crate) output: PathBuf,
    /// Attach to a running process (samples only: no objects, no latencies).
    #[arg(long, value_name = "PID", conflicts_with = "command")]
    pub(crate) pid: Option<u32>,
    /// Stop recording after S seconds; a program that membound started runs on.
    #[arg(long, value_name = "S", value_parser = seconds)]
    pub(crate) duration: Option<Duration>,
    /// Run the command N times, each time into a file of its own: NAME-1.run, NAME-2.run, ….
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000), conflicts_with = "pid")]
    pub(crate) repeat: Option<u32>,
    /// Repeat the command until the interval of the stalled share over all runs is within ±P percentage
    /// points of CPU time: at least three times, at most --repeat times [default: 20].
    #[arg(long, value_name = "±Ppt", value_parser = points, conflicts_with = "pid", allow_hyphen_values = true)]
    pub(crate) until: Option<f64>,
    /// Machine profile [default: the one that `membound measure` keeps, else a quick one is measured
    /// first].
    #[arg(long, value_name = "FILE")]
    pub(crate) machine: Option<PathBuf>,
    /// Print no summary at the end.
    #[arg(short, long)]
    pub(crate) quiet: bool,
    /// Do not finish plans of files after the program has ended. Harvest profiles a program once, and its own
    /// plan needs none of them.
    #[arg(long, hide = true)]
    pub(crate) leave_plans: bool,

    /// Source of the timer samples: auto, perf, agent.
    #[arg(
        long,
        value_enum,
        default_value_t,
        hide_possible_values = true,
        help_heading = "How"
    )]
    pub(crate) sampler: SamplerArg,
    /// CPU time of a thread between two timer samples, in milliseconds [default: 1.27 to 4.91,
    /// the longer the more a sample costs here].
    #[arg(long, value_name = "MS", value_parser = milliseconds, help_heading = "How")]
    pub(crate) period: Option<Duration>,
    /// Do not patch the program's code: no executions, addresses and latencies.
    #[arg(long, help_heading = "How")]
    pub(crate) no_latencies: bool,
    /// Do not record allocations.
    #[arg(long, help_heading = "How")]
    pub(crate) no_objects: bool,
    /// Record every heap block of at least SIZE bytes, unless there are too many; smaller blocks are
    /// sampled where there are very many.
    #[arg(long, value_name = "SIZE", value_parser = parse_size, conflicts_with = "no_objects", help_heading = "How")]
    pub(crate) object_size: Option<u64>,
    /// Further functions that allocate and free memory as malloc and free do. May be repeated.
    #[arg(long, value_name = "ALLOCATE:FREE", value_parser = pair, conflicts_with = "no_objects", help_heading = "How")]
    pub(crate) allocator: Vec<(String, String)>,
    /// Confirm shared lines with hardware watchpoints.
    #[arg(long, help_heading = "How")]
    pub(crate) watch: bool,
    /// Maximum cost of recording, all together, as a share of the program's CPU time [default: 5%].
    #[arg(long, value_name = "P%", value_parser = percent, help_heading = "How")]
    pub(crate) max_overhead: Option<f64>,

    /// The command and its arguments.
    #[arg(
        required_unless_present = "pid",
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "CMD"
    )]
    pub(crate) command: Vec<OsString>,
}

fn milliseconds(text: &str) -> Result<Duration, String> {
    const MIN_DURATION: Duration = Duration::from_micros(50);
    const MAX_DURATION: Duration = Duration::from_secs(10);
    let parsed = text.parse::<f64>().ok();
    parsed
        .and_then(|number| Duration::try_from_secs_f64(number / 1000.0).ok())
        .filter(|period| (MIN_DURATION..=MAX_DURATION).contains(period))
        .ok_or_else(|| format!("`{text}` is no period: use 0.05 to 10000 milliseconds"))
}

/// Parses `±3pt`, also without the sign or the unit, into a share.
fn points(text: &str) -> Result<f64, String> {
    let signed = text.trim();
    let unsigned = ["±", "+-", "+/-"]
        .into_iter()
        .find_map(|sign| signed.strip_prefix(sign))
        .unwrap_or(signed);
    let number = unsigned.strip_suffix("pt").unwrap_or(unsigned).trim();
    match number.parse::<f64>() {
        Ok(points) if points > 0.0 && points < 100.0 => Ok(points / 100.0),
        _ => Err(format!("`{text}` is no interval: use ±3pt")),
    }
}

fn percent(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('%').unwrap_or(text);
    match number.parse::<f64>() {
        Ok(percent) if percent > 0.0 && percent <= 100.0 => Ok(percent / 100.0),
        _ => Err(format!("`{text}` is no share: use 0.1% to 100%")),
    }
}

fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once(':') {
        Some((allocate, free)) if !allocate.is_empty() && !free.is_empty() => {
            Ok((allocate.to_owned(), free.to_owned()))
        }
        _ => Err(format!("`{text}` is no pair: use ALLOCATE:FREE")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_outside_of_reason_are_refused() {
        assert_eq!(milliseconds("0.1"), Ok(Duration::from_micros(100)));
        for text in ["0", "0.001", "-3", "99999", "NaN", ""] {
            assert!(milliseconds(text).is_err(), "{text}");
        }
        assert_eq!(percent("5%"), Ok(0.05));
        assert_eq!(percent("100"), Ok(1.0));
        for text in ["0", "101", "-5%", "%", "NaN"] {
            assert!(percent(text).is_err(), "{text}");
        }
        for text in ["±3pt", "3pt", "+-3 pt", "+/-3"] {
            assert_eq!(points(text), Ok(0.03), "{text}");
        }
        for text in ["", "±", "±0pt", "-3pt", "±100pt", "NaN", "±3%"] {
            assert!(points(text).is_err(), "{text}");
        }
        assert_eq!(pair("a:b"), Ok(("a".to_owned(), "b".to_owned())));
        for text in ["", "a", ":b", "a:"] {
            assert!(pair(text).is_err(), "{text}");
        }
    }
}
