//! When a batch is stopped early: GNU parallel's `--halt`.

use std::fmt;
use std::str::FromStr;

/// Condition for stopping early.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Halt {
    /// When all jobs have ended.
    Never,
    /// When enough jobs have ended in a certain way.
    When {
        /// How the batch is stopped.
        stop: Stop,
        /// Which ends count.
        ends: Ends,
        /// How many of them are needed.
        limit: Limit,
    },
}

/// How a batch is stopped, the milder variant first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stop {
    /// No more jobs are started.
    Soon,
    /// Running jobs are ended as well.
    Now,
}

/// Which ends of jobs count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ends {
    /// Jobs that failed.
    Fail,
    /// Jobs that succeeded.
    Success,
    /// Jobs that ended in any way.
    Done,
}

/// How many ends are needed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Limit {
    /// This number of jobs.
    Jobs(usize),
    /// A share of all jobs of this run; 1 is all of them.
    Share(f64),
}

impl Halt {
    /// How to stop after `failed` and `succeeded` of `jobs` jobs, if at all.
    pub(super) fn after(self, failed: usize, succeeded: usize, jobs: usize) -> Option<Stop> {
        let Self::When { stop, ends, limit } = self else {
            return None;
        };
        let ended = match ends {
            Ends::Fail => failed,
            Ends::Success => succeeded,
            Ends::Done => failed + succeeded,
        };
        let needed = match limit {
            Limit::Jobs(needed) => needed as f64,
            Limit::Share(share) => jobs as f64 * share,
        };
        (ended > 0 && ended as f64 >= needed).then_some(stop)
    }
}

impl FromStr for Halt {
    type Err = String;

    /// `never`, or `soon,fail=1` and the like; GNU parallel's older numbers too: 0, 1, 2, -1, -2, P%.
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!("`{text}` is not a condition: use never, or now|soon,fail|success|done=N or P%")
        };
        let first = |stop, ends| Self::When {
            stop,
            ends,
            limit: Limit::Jobs(1),
        };
        match text {
            "never" | "0" => return Ok(Self::Never),
            "1" => return Ok(first(Stop::Soon, Ends::Fail)),
            "2" => return Ok(first(Stop::Now, Ends::Fail)),
            "-1" => return Ok(first(Stop::Soon, Ends::Success)),
            "-2" => return Ok(first(Stop::Now, Ends::Success)),
            _ => {}
        }
        if text.ends_with('%') && !text.contains(',') {
            return Ok(Self::When {
                stop: Stop::Soon,
                ends: Ends::Fail,
                limit: limit(text).ok_or_else(wrong)?,
            });
        }
        let (stop, rest) = text.split_once(',').ok_or_else(wrong)?;
        let (ends, count) = rest.split_once('=').ok_or_else(wrong)?;
        Ok(Self::When {
            stop: match stop {
                "soon" => Stop::Soon,
                "now" => Stop::Now,
                _ => return Err(wrong()),
            },
            ends: match ends {
                "fail" => Ends::Fail,
                "success" => Ends::Success,
                "done" => Ends::Done,
                _ => return Err(wrong()),
            },
            limit: limit(count).ok_or_else(wrong)?,
        })
    }
}

fn limit(text: &str) -> Option<Limit> {
    if let Some(percent) = text.strip_suffix('%') {
        let percent: f64 = percent.parse().ok()?;
        return (percent > 0.0 && percent <= 100.0).then_some(Limit::Share(percent / 100.0));
    }
    let jobs = text.parse().ok()?;
    (jobs > 0).then_some(Limit::Jobs(jobs))
}

impl fmt::Display for Halt {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self::When { stop, ends, limit } = self else {
            return out.write_str("never");
        };
        let stop = match stop {
            Stop::Soon => "soon",
            Stop::Now => "now",
        };
        let ends = match ends {
            Ends::Fail => "fail",
            Ends::Success => "success",
            Ends::Done => "done",
        };
        match limit {
            Limit::Jobs(jobs) => write!(out, "{stop},{ends}={jobs}"),
            Limit::Share(share) => write!(out, "{stop},{ends}={}%", share * 100.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Halt {
        text.parse().unwrap()
    }

    #[test]
    fn the_grammar_is_gnu_parallels() {
        for (text, same) in [
            ("never", "never"),
            ("0", "never"),
            ("1", "soon,fail=1"),
            ("2", "now,fail=1"),
            ("-1", "soon,success=1"),
            ("-2", "now,success=1"),
            ("20%", "soon,fail=20%"),
            ("now,done=7", "now,done=7"),
            ("soon,success=2.5%", "soon,success=2.5%"),
        ] {
            assert_eq!(parsed(text).to_string(), same, "{text}");
        }
        for text in [
            "",
            "now",
            "now,fail",
            "now,fail=0",
            "now,fail=x",
            "later,fail=1",
            "now,lost=1",
            "3",
            "0%",
            "101%",
            "soon,fail=nan%",
        ] {
            assert!(text.parse::<Halt>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_batch_stops_after_enough_failures_or_successes() {
        let check = |text, failed, succeeded, expected| {
            let found = parsed(text).after(failed, succeeded, 10);
            assert_eq!(found, expected, "{text} {failed} {succeeded}");
        };
        check("never", 10, 0, None);
        check("now,fail=2", 1, 8, None);
        check("now,fail=2", 2, 0, Some(Stop::Now));
        check("soon,success=1", 9, 0, None);
        check("soon,success=1", 0, 1, Some(Stop::Soon));
        check("soon,done=3", 1, 2, Some(Stop::Soon));
        check("soon,fail=20%", 1, 0, None);
        check("soon,fail=20%", 2, 0, Some(Stop::Soon));
        check("now,fail=1%", 0, 5, None);
        check("now,fail=1%", 1, 0, Some(Stop::Now));
    }
}
