//! Sorts the points of a file into curves: points measured under the same conditions.

use std::collections::{BTreeMap, HashMap};

use membound_types::{FitData, Observation, PageKind};

use crate::content::Curve;
use crate::error::Fault;
use crate::text::{plural, shortened};

/// A peculiarity of a point that the notes of its curve count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Mark {
    /// A comparison with another pattern shows that a prefetcher shortened it.
    Tainted,
    /// Its value still contains a disturbance.
    Unresolved,
    /// A disturbance was observed while it was measured.
    Disturbed,
    /// Only part of the buffer is on pages of the stated kind.
    PartlyPaged,
    /// Its interval does not contain its value and was removed.
    NoInterval,
}

impl Mark {
    /// A note on `points`, a text such as `3 of 40 values`.
    fn note(self, points: &str) -> String {
        match self {
            Self::Tainted => format!("{points} were shortened by a prefetcher, and are kept"),
            Self::Unresolved => {
                format!("{points} have a disturbance left in them, and are kept")
            }
            Self::Disturbed => {
                format!("{points} saw a disturbance while they were measured, and are kept")
            }
            Self::PartlyPaged => {
                format!("{points} lie on the page kind in part only, and are kept")
            }
            Self::NoInterval => {
                format!("{points} lie outside their own interval, which was left out")
            }
        }
    }
}

/// The common conditions of a curve's points, in words.
#[derive(Clone, Debug, Default)]
pub(crate) struct Conditions {
    words: Vec<String>,
    page: Option<PageKind>,
}

impl Conditions {
    /// Adds the value of a condition, whose name is that of a column in membound's own CSV.
    pub(crate) fn add(&mut self, column: &str, value: &str) {
        if column == "page" {
            self.page = value.parse().ok();
        }
        let value = shortened(value, 40);
        self.words.push(match column {
            "node" => format!("node {value}"),
            "cpu" => format!("cpu {value}"),
            "init_cpu" => format!("initialised by cpu {value}"),
            "threads" if value == "1" => "1 thread".to_owned(),
            "threads" => format!("{value} threads"),
            "prefetch" => format!("prefetch {value}"),
            "stride_bytes" => format!("stride {value}"),
            _ => value,
        });
    }

    fn label(&self) -> String {
        self.words.join(", ")
    }
}

/// Curves under construction, in the order of their first points.
pub(crate) struct Collector {
    data: FitData,
    curves: Vec<Curve>,
    marks: Vec<BTreeMap<Mark, usize>>,
    by_label: HashMap<(String, Option<u64>), usize>,
}

impl Collector {
    pub(crate) fn new(data: FitData) -> Self {
        Self {
            data,
            curves: Vec::new(),
            marks: Vec::new(),
            by_label: HashMap::new(),
        }
    }

    /// Adds a point to the curve of its conditions. The caller has checked its values.
    pub(crate) fn push(
        &mut self,
        conditions: &Conditions,
        stride_bytes: Option<u64>,
        observation: Observation,
        marks: &[Mark],
    ) {
        let key = (conditions.label(), stride_bytes);
        let at = match self.by_label.get(&key) {
            Some(&at) => at,
            None => {
                let at = self.curves.len();
                self.curves.push(Curve {
                    series: key.0.clone(),
                    data: self.data,
                    stride_bytes,
                    page: conditions.page,
                    caches: Vec::new(),
                    observations: Vec::new(),
                    notes: Vec::new(),
                });
                self.marks.push(BTreeMap::new());
                self.by_label.insert(key, at);
                at
            }
        };
        self.curves[at].observations.push(observation);
        for mark in marks {
            *self.marks[at].entry(*mark).or_default() += 1;
        }
    }

    /// The curves, sorted, with notes on their points, then `notes`.
    pub(crate) fn curves(self, notes: &[String]) -> Vec<Curve> {
        let mut curves = self.curves;
        for (curve, marks) in curves.iter_mut().zip(self.marks) {
            // A stable sort keeps repeated measurements in the order of the file.
            curve.observations.sort_by_key(place);
            let points = curve.observations.len();
            let of_all = |count| format!("{count} of {}", plural(points, "value"));
            for (mark, count) in marks {
                curve.notes.push(mark.note(&of_all(count)));
            }
            let repeated = curve
                .observations
                .windows(2)
                .filter(|pair| place(&pair[0]) == place(&pair[1]))
                .count();
            if repeated > 0 {
                let what = match curve.data {
                    FitData::Window => "a window and an area",
                    FitData::Latency => "a size",
                };
                curve.notes.push(format!(
                    "{} repeat {what} that came before; each is kept as a measurement of its own",
                    of_all(repeated)
                ));
            }
            curve.notes.extend_from_slice(notes);
        }
        curves
    }

    /// The curves as from [`Self::curves`]; fewer than two points are an error.
    ///
    /// # Errors
    /// A fault with the number of points.
    pub(crate) fn finish(self, notes: &[String]) -> Result<Vec<Curve>, Fault> {
        let points: usize = self
            .curves
            .iter()
            .map(|curve| curve.observations.len())
            .sum();
        match points {
            0 => Err(Fault::File("holds no points".to_owned())),
            1 => Err(Fault::File(
                "holds one point; a curve needs more, at other sizes".to_owned(),
            )),
            _ => Ok(self.curves(notes)),
        }
    }
}

/// Sort key of an observation: area, then window.
fn place(observation: &Observation) -> (u64, Option<u64>) {
    (observation.area_bytes, observation.window_bytes)
}
