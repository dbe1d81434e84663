//! Arguments of `harvest`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use membound_types::{DistanceRule, HarvestRole};

/// What to do about stall time.
#[derive(Debug, Subcommand)]
pub(crate) enum HarvestCommand {
    /// Say where a profiled program would yield, what that gives, and why it would not elsewhere.
    Plan(PlanArgs),
}

/// Arguments of `harvest plan`.
#[derive(Args, Debug)]
pub(crate) struct PlanArgs {
    /// The run file that `membound profile` recorded.
    #[arg(value_name = "RUN")]
    pub(crate) run: PathBuf,
    /// primary (its stall time is harvested), scavenger (it runs in that of others).
    #[arg(
        long,
        value_name = "ROLE",
        default_value_t,
        hide_default_value = true,
        help = "primary (its stall time is harvested), scavenger (it runs in that of others) \
                [default: primary]"
    )]
    pub(crate) role: HarvestRole,
    /// Machine profile to take levels and latencies from [default: the run's own].
    #[arg(long, value_name = "FILE")]
    pub(crate) machine: Option<PathBuf>,
    /// Share of the CPU time that yields may cost where loads hit.
    #[arg(long, value_name = "P%", default_value = "5%", value_parser = percent)]
    pub(crate) max_overhead: f64,
    /// Longest time between two yields of a scavenger, in nanoseconds [default: 200].
    #[arg(long, value_name = "D", value_parser = bound)]
    pub(crate) bound_ns: Option<f64>,
    /// What that time is: max (over all paths), expected (their average) [default: max].
    #[arg(long, value_name = "RULE")]
    pub(crate) distance: Option<DistanceRule>,
    /// An earlier plan, whose decisions hold where the figures permit both.
    #[arg(long, value_name = "FILE")]
    pub(crate) previous: Option<PathBuf>,
    /// Write the document to FILE (`-` or nothing: stdout, instead of text).
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    pub(crate) json: Option<PathBuf>,
}

fn percent(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('%').unwrap_or(text).trim();
    match number.parse::<f64>() {
        Ok(percent) if (0.0..=100.0).contains(&percent) => Ok(percent / 100.0),
        _ => Err(format!("`{text}` is no share of 0% to 100%")),
    }
}

fn bound(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(ns) if ns.is_finite() && ns > 0.0 => Ok(ns),
        _ => Err(format!("`{text}` is no number of nanoseconds")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_written_with_a_sign_or_without() {
        for (text, share) in [("5%", 0.05), ("0.5", 0.005), ("100 %", 1.0), ("0%", 0.0)] {
            assert!((percent(text).unwrap() - share).abs() < 1e-12, "{text}");
        }
        for text in ["", "%", "-1%", "101", "nan", "a few"] {
            assert!(percent(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_bound_is_a_positive_time() {
        assert_eq!(bound("200"), Ok(200.0));
        for text in ["", "0", "-3", "inf", "nan", "200ns"] {
            assert!(bound(text).is_err(), "{text}");
        }
    }
}
