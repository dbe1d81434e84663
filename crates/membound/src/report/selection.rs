//! The part of a run that `report` shows: `--span` and `--thread`.

use std::str::FromStr;

use anyhow::bail;
use membound_analyze::Selection;
use membound_run::{RunData, ThreadId};

/// A span of time since the run began, as in `1.2s..3.4s`; either end may be left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    from_ns: u64,
    to_ns: Option<u64>,
}

impl FromStr for Span {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (from, to) = text
            .split_once("..")
            .ok_or("a span is BEGIN..END, as in 1.2s..3.4s; either may be left out")?;
        let end = |text: &str| (!text.is_empty()).then(|| nanoseconds(text)).transpose();
        let span = Self {
            from_ns: end(from.trim())?.unwrap_or(0),
            to_ns: end(to.trim())?,
        };
        match span.to_ns {
            Some(to_ns) if to_ns <= span.from_ns => {
                Err("the end is not behind the beginning".to_owned())
            }
            _ => Ok(span),
        }
    }
}

/// A time such as `1.2s`, `350ms`, `2m`; seconds without a unit.
fn nanoseconds(text: &str) -> Result<u64, String> {
    const UNITS: [(&str, f64); 5] = [
        ("ns", 1.0),
        ("us", 1e3),
        ("ms", 1e6),
        ("s", 1e9),
        ("m", 6e10),
    ];
    let (number, unit_ns) = UNITS
        .iter()
        .find_map(|(unit, unit_ns)| Some((text.strip_suffix(unit)?, *unit_ns)))
        .unwrap_or((text, 1e9));
    let value: f64 = number
        .trim()
        .parse()
        .map_err(|_| format!("`{text}` is no time: write 1.2s, 350ms or 2m"))?;
    let ns = value * unit_ns;
    // Times of a run are 64-bit nanoseconds, of which SQLite stores 63 bits.
    if !(0.0..9e18).contains(&ns) {
        return Err(format!("`{text}` is no time in a run"));
    }
    Ok(ns.round() as u64)
}

/// The selected part of `run`; `None`: all of it.
pub(crate) fn selection(
    run: &RunData,
    span: Option<Span>,
    threads: &[String],
) -> anyhow::Result<Option<Selection>> {
    if span.is_none() && threads.is_empty() {
        return Ok(None);
    }
    let end_ns = run.meta.elapsed_ns;
    let span_ns = match span {
        Some(span) if span.from_ns >= end_ns => bail!(
            "--span begins at {:.3} s, and the run ended at {:.3} s",
            span.from_ns as f64 * 1e-9,
            end_ns as f64 * 1e-9
        ),
        Some(span) => Some((span.from_ns, span.to_ns.unwrap_or(end_ns).min(end_ns))),
        None => None,
    };
    let threads = match threads {
        [] => None,
        wanted => Some(threads_by_name(run, wanted)?),
    };
    Ok(Some(Selection { span_ns, threads }))
}

/// The threads with a number or a name in `wanted`.
fn threads_by_name(run: &RunData, wanted: &[String]) -> anyhow::Result<Vec<ThreadId>> {
    /// Maximum number of threads that the error lists.
    const NAMED: usize = 8;
    let mut found: Vec<ThreadId> = Vec::new();
    for wanted in wanted {
        let number = wanted.parse::<u32>().ok();
        let before = found.len();
        let threads = (0..).map(ThreadId).zip(&run.threads);
        found.extend(
            threads
                .filter(|(_, thread)| !run.is_agents(thread))
                .filter(|(_, thread)| thread.name == *wanted || Some(thread.tid) == number)
                .map(|(id, _)| id),
        );
        if found.len() == before {
            let mut there: Vec<String> = run
                .threads
                .iter()
                .filter(|thread| !run.is_agents(thread))
                .map(|thread| format!("{} ({})", thread.tid, thread.name))
                .collect();
            let more = there.len().saturating_sub(NAMED);
            there.truncate(NAMED);
            let more = if more > 0 {
                format!(" and {more} more")
            } else {
                String::new()
            };
            bail!(
                "no thread has the number or name `{wanted}`; there are {}{more}",
                there.join(", ")
            );
        }
    }
    found.sort_unstable();
    found.dedup();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use membound_run::{Meta, Process, ProcessId, Thread};

    use super::*;

    #[test]
    fn spans_are_read() {
        let span = |from_ns, to_ns| Ok(Span { from_ns, to_ns });
        assert_eq!(
            "1.2s..3.4s".parse(),
            span(1_200_000_000, Some(3_400_000_000))
        );
        assert_eq!("350ms..".parse(), span(350_000_000, None));
        assert_eq!("..2".parse(), span(0, Some(2_000_000_000)));
        assert_eq!("5us..1m".parse(), span(5_000, Some(60_000_000_000)));
        for bad in [
            "", "1.2s", "3s..1s", "1s..1s", "a..b", "-1s..2s", "nans..", "1e30s..",
        ] {
            assert!(bad.parse::<Span>().is_err(), "{bad}");
        }
    }

    fn run() -> RunData {
        let thread = |tid, name: &str| Thread {
            process: ProcessId(0),
            tid,
            name: name.to_owned(),
            start_ns: 0,
            end_ns: None,
            cpu_ns: None,
        };
        RunData {
            meta: Meta {
                elapsed_ns: 2_000_000_000,
                ..Meta::default()
            },
            processes: vec![Process {
                pid: 7,
                ..Process::default()
            }],
            threads: vec![
                thread(7, "main"),
                thread(8, "worker"),
                thread(9, "worker"),
                thread(10, "membound-agent"),
            ],
            ..RunData::default()
        }
    }

    #[test]
    fn threads_are_found_by_number_and_by_name() {
        let of = |wanted: &[&str]| {
            let wanted: Vec<String> = wanted.iter().map(|&it| it.to_owned()).collect();
            selection(&run(), None, &wanted)
                .map(|selection| selection.and_then(|it| it.threads).unwrap_or_default())
        };
        assert_eq!(of(&["worker"]).unwrap(), [ThreadId(1), ThreadId(2)]);
        assert_eq!(
            of(&["9", "main", "worker"]).unwrap(),
            [0, 1, 2].map(ThreadId)
        );
        let error = of(&["nobody"]).unwrap_err().to_string();
        assert!(error.contains("7 (main), 8 (worker)"), "{error}");
        assert!(of(&["membound-agent"]).is_err());
    }

    #[test]
    fn a_span_behind_the_end_is_refused() {
        let error = selection(&run(), Some("5s..".parse().unwrap()), &[]);
        let error = error.unwrap_err().to_string();
        assert_eq!(
            error,
            "--span begins at 5.000 s, and the run ended at 2.000 s"
        );
        let cut = selection(&run(), Some("1s..9s".parse().unwrap()), &[]).unwrap();
        assert_eq!(cut.unwrap().span_ns, Some((1_000_000_000, 2_000_000_000)));
    }
}
