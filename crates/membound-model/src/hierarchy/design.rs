//! The row of the linear model for a window in an area or a load in a buffer: one entry for each
//! parameter, the expected number of times that the parameter counts.
//!
//! Equation numbers are those of document 002. The integral of equation 5 over the step
//! function of equation 2 is the sum of the levels' times, each weighted with the share of
//! the area that lies in the level; [`shares`] computes these shares. Sizes are in bytes, times
//! in nanoseconds.

use membound_types::{FitData, ParameterRole, SizeMeaning, Topology};

use super::topology::constant_symbol;

/// The term that a column of the design belongs to, with its index in the topology.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Column {
    /// Constant part of a component, or its cost of one load.
    Once(usize),
    /// Per-line part of a component.
    Line(usize),
    /// A TLB term.
    Tlb(usize),
    /// The page-table term.
    PageTable,
}

/// A parameter that the time depends on linearly.
#[derive(Clone, Debug)]
pub(super) struct Term {
    pub(super) symbol: String,
    pub(super) name: String,
    pub(super) role: ParameterRole,
    pub(super) related_to: String,
    pub(super) column: Column,
    /// Value that the topology fixes, in nanoseconds.
    pub(super) given: Option<f64>,
}

/// The parameters of `topology` for this kind of data, in the order of reports: constant
/// and per-line part of every component, TLB terms, page-table term.
pub(super) fn terms(topology: &Topology, data: FitData) -> Vec<Term> {
    let mut terms = Vec::new();
    for (index, component) in topology.components.iter().enumerate() {
        let term = |symbol: String, role, related_to, column, known: Option<f64>| Term {
            symbol,
            name: component.name.clone(),
            role,
            related_to,
            column,
            given: known.filter(|_| component.fixed),
        };
        match data {
            FitData::Window => {
                terms.push(term(
                    constant_symbol(&component.symbol),
                    ParameterRole::Constant,
                    "1 window".to_owned(),
                    Column::Once(index),
                    component.constant_ns,
                ));
                terms.push(term(
                    component.symbol.clone(),
                    ParameterRole::PerLine,
                    format!("{} Bytes", component.line_bytes),
                    Column::Line(index),
                    component.per_line_ns,
                ));
            }
            FitData::Latency => terms.push(term(
                component.symbol.clone(),
                ParameterRole::PerLoad,
                "1 load".to_owned(),
                Column::Once(index),
                component.per_line_ns,
            )),
        }
    }
    for (index, term) in topology.tlb.iter().enumerate() {
        terms.push(Term {
            symbol: term.symbol.clone(),
            name: "TLB miss handling".to_owned(),
            role: ParameterRole::TlbMiss,
            related_to: "1 TLB miss".to_owned(),
            column: Column::Tlb(index),
            given: None,
        });
    }
    if let Some(term) = &topology.page_table {
        terms.push(Term {
            symbol: term.symbol.clone(),
            name: "page-table correction".to_owned(),
            role: ParameterRole::PageTable,
            related_to: match data {
                FitData::Window => "1 window".to_owned(),
                FitData::Latency => "1 load".to_owned(),
            },
            column: Column::PageTable,
            given: None,
        });
    }
    terms
}

/// Reach in bytes and exponent γ of all levels but the last.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Edges {
    pub(super) reach: Vec<f64>,
    pub(super) steepness: Vec<f64>,
}

impl Edges {
    /// The edges of `topology`; `None` without levels or when the size of an inner level is missing.
    pub(super) fn of(topology: &Topology) -> Option<Self> {
        let inner = &topology.levels[..topology.levels.len().checked_sub(1)?];
        let mut inside = 0.0;
        let mut reach = Vec::with_capacity(inner.len());
        for level in inner {
            let size = level.size_bytes? as f64;
            inside = match topology.sizes {
                SizeMeaning::Own => inside + size,
                SizeMeaning::Reach => size,
            };
            reach.push(inside);
        }
        Some(Self {
            reach,
            steepness: inner.iter().map(|level| level.steepness).collect(),
        })
    }

    /// Share of the accesses to an area of `area` bytes that hit in `level` or further inside:
    /// (S/a)^γ, and 1 if the area fits.
    pub(super) fn hits(&self, level: usize, area: f64) -> f64 {
        let ratio = self.reach[level] / area;
        if ratio >= 1.0 {
            1.0
        } else {
            let steepness = self.steepness[level];
            // Avoids the logarithm in the common case γ = 1.
            if (steepness - 1.0).abs() < f64::EPSILON {
                ratio
            } else {
                ratio.powf(steepness)
            }
        }
    }
}

/// Share of the accesses that each level serves, from the cumulative `hits` of all levels but the
/// last. The last level has no end and serves the rest.
///
/// With different exponents the cumulative hits of an outer level can be below those of an inner
/// one; the outer level then serves nothing.
pub(super) fn shares(hits: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut inside = 0.0;
    let mut shares = Vec::new();
    for hits in hits {
        let hits = hits.max(inside);
        shares.push(hits - inside);
        inside = hits;
    }
    shares.push(1.0 - inside);
    shares
}

/// Bytes of the units (lines, pages) of `unit` bytes that contain at least one of the elements
/// `spacing` bytes apart over `span` bytes; `span` if every unit contains one.
pub(super) fn touched(span: f64, spacing: f64, unit: f64) -> f64 {
    if spacing <= unit {
        span
    } else {
        (span / spacing).floor().max(1.0) * unit
    }
}

/// The terms of a topology and the data for computing their rows.
#[derive(Clone, Debug)]
pub(super) struct Design<'a> {
    topology: &'a Topology,
    pub(super) terms: Vec<Term>,
    /// Number of times that the path to a level passes a component, indexed by component, then level.
    passes: Vec<Vec<f64>>,
}

/// The part of memory that the accesses of one row cover.
#[derive(Clone, Copy, Debug)]
pub(super) struct AccessPosition<'a> {
    /// Window size in bytes; `None` for a load.
    pub(super) window: Option<f64>,
    /// Share of the accesses that each level serves.
    pub(super) shares: &'a [f64],
    /// Bytes from the first accessed byte to the last.
    pub(super) span: f64,
    /// Bytes between neighbouring elements that may be accessed; 0 if all bytes may be.
    pub(super) spacing: f64,
}

impl<'a> Design<'a> {
    pub(super) fn new(topology: &'a Topology, data: FitData) -> Self {
        let passes = topology
            .components
            .iter()
            .map(|component| {
                topology
                    .levels
                    .iter()
                    .map(|level| f64::from(*level.path.get(&component.symbol).unwrap_or(&0)))
                    .collect()
            })
            .collect();
        Self {
            topology,
            terms: terms(topology, data),
            passes,
        }
    }

    /// The topology from which the design was made.
    pub(super) fn topology(&self) -> &'a Topology {
        self.topology
    }

    /// Factor of the parameter `term` in the row of `place`.
    pub(super) fn entry(&self, term: &Term, place: &AccessPosition<'_>) -> f64 {
        match term.column {
            Column::Once(component) => self.expected_passes(component, place.shares),
            Column::Line(component) => {
                let line = f64::from(self.topology.components[component].line_bytes);
                self.expected_passes(component, place.shares) * place.window.unwrap_or(0.0) / line
            }
            Column::Tlb(index) => {
                let tlb = &self.topology.tlb[index];
                let reach = tlb.entries as f64 * tlb.page_bytes as f64;
                let page = tlb.page_bytes as f64;
                let paged = touched(place.span, place.spacing, page);
                (1.0 - reach / paged).max(0.0)
            }
            Column::PageTable => {
                let Some(term) = &self.topology.page_table else {
                    return 0.0;
                };
                let reference = (term.reference_bytes as f64).log2();
                if place.span >= term.start_bytes as f64 {
                    (place.span.log2() - reference) / reference
                } else {
                    0.0
                }
            }
        }
    }

    /// The whole row for windows or loads spread evenly over an area.
    pub(super) fn row(&self, edges: &Edges, window: Option<f64>, area: f64) -> Vec<f64> {
        let shares = shares((0..edges.reach.len()).map(|level| edges.hits(level, area)));
        let place = AccessPosition {
            window,
            shares: &shares,
            span: area,
            spacing: 0.0,
        };
        self.terms
            .iter()
            .map(|term| self.entry(term, &place))
            .collect()
    }

    /// Factor of each parameter in t₍level+1₎(w) − t₍level₎(w), the extra time of the next outer level.
    pub(super) fn step(&self, level: usize, window: Option<f64>) -> Vec<f64> {
        let mut shares = vec![0.0; self.topology.levels.len()];
        shares[level] = -1.0;
        shares[level + 1] = 1.0;
        self.terms
            .iter()
            .map(|term| match term.column {
                Column::Once(_) | Column::Line(_) => {
                    let place = AccessPosition {
                        window,
                        shares: &shares,
                        span: 1.0,
                        spacing: 0.0,
                    };
                    self.entry(term, &place)
                }
                Column::Tlb(_) | Column::PageTable => 0.0,
            })
            .collect()
    }

    fn expected_passes(&self, component: usize, shares: &[f64]) -> f64 {
        self.passes[component]
            .iter()
            .zip(shares)
            .map(|(passes, share)| passes * share)
            .sum()
    }
}
