//! The points and options of a fit, and a fit before it is reported.

use membound_types::{FitData, Observation, Topology};

use super::design::{Design, Edges};
use super::identify::Identified;
use super::linear::{Linear, Solved};
use super::options::{FitError, FitOptions, given_values};

/// The points and the options of a fit; `windows`, `areas` and `measured` have one entry per point.
pub(super) struct Problem<'a> {
    pub(super) design: Design<'a>,
    pub(super) data: FitData,
    pub(super) windows: Vec<Option<f64>>,
    pub(super) areas: Vec<f64>,
    pub(super) measured: Vec<f64>,
    /// For each term its given value in nanoseconds; `None` if the term is fitted.
    pub(super) given: Vec<Option<f64>>,
    /// Indices of the fitted terms.
    pub(super) fitted: Vec<usize>,
    pub(super) options: &'a FitOptions,
}

impl<'a> Problem<'a> {
    pub(super) fn new(
        topology: &'a Topology,
        data: FitData,
        observations: &[Observation],
        options: &'a FitOptions,
    ) -> Result<Self, FitError> {
        let design = Design::new(topology, data);
        let given = given_values(topology, &design.terms, &options.fixed)?;
        let fitted = (0..given.len())
            .filter(|&term| given[term].is_none())
            .collect();
        let bytes = |bytes: u64| bytes as f64;
        Ok(Self {
            design,
            data,
            windows: observations
                .iter()
                .map(|point| point.window_bytes.map(bytes))
                .collect(),
            areas: observations
                .iter()
                .map(|point| bytes(point.area_bytes))
                .collect(),
            measured: observations.iter().map(|point| point.ns).collect(),
            given,
            fitted,
            options,
        })
    }

    /// The linear problem at the sizes and exponents in `edges`.
    pub(super) fn linear(&self, edges: &Edges) -> Linear {
        let count = self.measured.len();
        let mut columns = vec![Vec::with_capacity(count); self.fitted.len()];
        let mut offset = Vec::with_capacity(count);
        for (&window, &area) in self.windows.iter().zip(&self.areas) {
            let row = self.design.row(edges, window, area);
            for (column, &term) in columns.iter_mut().zip(&self.fitted) {
                column.push(row[term]);
            }
            offset.push(
                row.iter()
                    .zip(&self.given)
                    .map(|(entry, given)| entry * given.unwrap_or(0.0))
                    .sum(),
            );
        }
        Linear::new(columns, offset, self.measured.clone())
    }

    /// Indices of all points.
    pub(super) fn all_rows(&self) -> Vec<usize> {
        (0..self.measured.len()).collect()
    }
}

/// A fit before it is reported.
pub(super) struct Fitted {
    pub(super) edges: Edges,
    pub(super) linear: Linear,
    pub(super) solved: Solved,
    /// Which columns the data determine: fitted terms, then fitted sizes and exponents.
    pub(super) identified: Identified,
    pub(super) iterations: usize,
}
