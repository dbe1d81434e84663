//! The command's request durations in the form of the document. Durations are in nanoseconds.

use membound_control::durations;
use membound_launch::{RequestDurations, Requested, RequestsBy};
use membound_types::{Latencies, LatencySource, Missing, NotMeasured, PrimaryLatency};

/// Why no request of a command without a plan was measured, and what helps.
const ONLY_PROFILED: &str =
    "the command was only profiled in this run, and requests are measured where it follows a plan";
const PLAN_FIRST: &str = "run it again, or make the plan beforehand with --rehearse";

/// What the document says of requests.
#[derive(Debug, Default, PartialEq)]
pub(super) struct RequestReport {
    pub(super) latency: Option<PrimaryLatency>,
    pub(super) missing: Vec<Missing>,
    pub(super) notes: Vec<String>,
}

impl RequestReport {
    /// Builds it from the counters; `by` is how requests are recognised, `None` if that was not requested.
    /// There are no counters where the command was only profiled.
    pub(super) fn of(by: Option<&RequestsBy>, requested: Option<&Requested>) -> Self {
        let mut report = Self::default();
        let Some(by) = by else {
            report.lacks(
                "primary.latency",
                NotMeasured::NOT_ASKED,
                Some("--requests says what a request is"),
            );
            return report;
        };
        let Some(requested) = requested else {
            report.lacks("primary.latency", ONLY_PROFILED, Some(PLAN_FIRST));
            return report;
        };
        let with = latencies(&requested.with);
        let without = latencies(&requested.without);
        if with.is_none() && without.is_none() && requested.spanning == 0 {
            let reason = requested
                .refused
                .clone()
                .unwrap_or_else(|| why_none_observed(by, requested));
            report.lacks("primary.latency", &reason, None);
            return report;
        }
        for (field, phase, there) in [
            ("primary.latency.with", "with scavengers", with.is_some()),
            ("primary.latency.without", "without", without.is_some()),
        ] {
            if !there {
                let reason = format!("no request began and ended within one phase {phase}");
                report.lacks(field, &reason, None);
            }
        }
        report.notes(requested);
        report.latency = Some(PrimaryLatency {
            source: match by {
                RequestsBy::Sockets => LatencySource::Socket,
                RequestsBy::Calls(_) | RequestsBy::Between { .. } => LatencySource::Marker,
            },
            by: by.to_string(),
            with,
            without,
            spanning: requested.spanning,
        });
        report
    }

    fn lacks(&mut self, field: &str, reason: &str, remedy: Option<&str>) {
        self.missing.push(Missing {
            table: field.to_owned(),
            why: NotMeasured {
                reason: reason.to_owned(),
                remedy: remedy.map(str::to_owned),
            },
        });
    }

    fn notes(&mut self, requested: &Requested) {
        if let Some(refused) = &requested.refused {
            self.notes
                .push(format!("not all requests were observed: {refused}"));
        }
        let counts = [
            (
                requested.high,
                "receives on descriptors with high numbers, which are not followed",
            ),
            (
                requested.homeless,
                "marks of more threads than can be followed",
            ),
        ];
        for (count, what) in counts.into_iter().filter(|(count, _)| *count > 0) {
            self.notes
                .push(format!("not all requests were observed: {count} {what}"));
        }
        if requested.left > 0 {
            let left = requested.left;
            self.notes.push(format!(
                "{left} of the requests had not ended when the thread began another one: they are \
                 in no figure"
            ));
        }
    }
}

/// Why no request was observed although nothing prevented it.
fn why_none_observed(by: &RequestsBy, requested: &Requested) -> String {
    match by {
        RequestsBy::Sockets if requested.high > 0 => {
            "sockets were used only with descriptors whose numbers are too high".to_owned()
        }
        RequestsBy::Sockets => "on no socket was something sent after something was received, by \
                                the C library's functions; system calls of a program's own are \
                                not seen"
            .to_owned(),
        RequestsBy::Calls(name) => format!("no call of {name} returned"),
        RequestsBy::Between { begin, end } => {
            format!("no thread called {begin} and then {end}")
        }
    }
}

/// Quantiles of the durations; `None` without any request.
fn latencies(requests: &RequestDurations) -> Option<Latencies> {
    let longest_ns = requests.longest_ns as f64;
    // A quantile is interpolated within its class, but must not exceed the longest duration.
    let at = |share| durations::quantile(&requests.times, share).map(|ns| ns.min(longest_ns));
    Some(Latencies {
        requests: durations::count(&requests.times),
        p50_ns: at(0.5)?,
        p90_ns: at(0.9)?,
        p95_ns: at(0.95)?,
        p99_ns: at(0.99)?,
        max_ns: longest_ns,
        histogram: durations::bins(&requests.times),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn durations() -> RequestDurations {
        RequestDurations {
            times: vec![(10_000, 10_064, 900), (1_998_848, 2_015_232, 100)],
            longest_ns: 2_000_000,
        }
    }

    fn fields(report: &RequestReport) -> Vec<&str> {
        report.missing.iter().map(|it| it.table.as_str()).collect()
    }

    #[test]
    fn requests_of_two_kinds_lie_on_both_sides() {
        let requested = Requested {
            with: durations(),
            spanning: 3,
            ..Requested::default()
        };
        let report = RequestReport::of(Some(&RequestsBy::Sockets), Some(&requested));
        let latency = report.latency.as_ref().unwrap();
        let with = latency.with.as_ref().unwrap();
        assert_eq!((with.requests, latency.spanning), (1000, 3));
        assert!((10_000.0..10_064.0).contains(&with.p50_ns), "{with:?}");
        assert!((with.p90_ns - 10_064.0).abs() < 1e-6, "{with:?}");
        assert!(
            with.p95_ns > 1.99e6 && with.p99_ns <= with.max_ns,
            "{with:?}"
        );
        assert_eq!(fields(&report), ["primary.latency.without"]);
        assert!(report.notes.is_empty());
    }

    #[test]
    fn missing_latency_has_a_reason() {
        let reason = |by: Option<RequestsBy>, requested: Option<Requested>| {
            let report = RequestReport::of(by.as_ref(), requested.as_ref());
            assert_eq!(fields(&report), ["primary.latency"]);
            assert_eq!(report.latency, None);
            report.missing[0].why.reason.clone()
        };
        let calls = || Some(RequestsBy::Calls("serve".to_owned()));
        let nothing = || Some(Requested::default());
        assert_eq!(reason(None, nothing()), NotMeasured::NOT_ASKED);
        assert_eq!(reason(calls(), None), ONLY_PROFILED);
        assert!(reason(calls(), nothing()).contains("no call of serve"));
        let sockets = reason(Some(RequestsBy::Sockets), nothing());
        assert!(sockets.contains("system calls of a program's own"));
        let refused = Requested {
            refused: Some("no memory".to_owned()),
            ..Requested::default()
        };
        assert_eq!(reason(calls(), Some(refused)), "no memory");
    }

    #[test]
    fn requests_outside_the_figures_are_noted() {
        let requested = Requested {
            with: durations(),
            without: durations(),
            high: 5,
            left: 2,
            ..Requested::default()
        };
        let report = RequestReport::of(Some(&RequestsBy::Sockets), Some(&requested));
        assert!(report.missing.is_empty());
        assert!(report.notes[0].contains("5 receives"), "{:?}", report.notes);
        assert!(report.notes[1].starts_with("2 of the requests"));
    }
}
