//! Levels as the model has them: time of a line, attainable rate, and what the TLB covers.

use std::collections::BTreeMap;

use membound_types::{Figure, FitData, ModelLevel, Outcome, Parameter, Topology};

/// Parameters and levels from the values that a topology itself knows, without a fit.
#[must_use]
pub fn published(_topology: &Topology) -> (Vec<Parameter>, Vec<ModelLevel>) {
    (Vec::new(), Vec::new())
}

/// Levels with time and attainable rate; `estimate` gives the value of a linear
/// combination of parameters, symbol → factor.
#[must_use]
pub fn model_levels(
    _topology: &Topology,
    _data: FitData,
    _estimate: &dyn Fn(&BTreeMap<String, f64>) -> Outcome<Figure>,
) -> Vec<ModelLevel> {
    Vec::new()
}
