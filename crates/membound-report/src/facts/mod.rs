//! What the page and the terminal both need to know about a document: the names of
//! things, curves grouped out of points, the headline figures, and what disturbed a run.

mod curves;
mod disturbed;
mod gaps;
mod headline;
mod names;

pub(crate) use curves::{Curve, StrideFamily, latency_curves, stride_families};
pub(crate) use disturbed::{Disturbed, disturbed_points, reason, two_modes};
pub(crate) use gaps::{gaps, missing_text, none_measured};
pub(crate) use headline::{
    dram_bandwidth, identity, level_bandwidth, mlp_conditions, sequential_fit,
};
pub(crate) use names::{
    access_name, bandwidth_kernel_name, basis_name, fence_name, filler_name, mix_name, mlp_label,
    pattern_name, prefetch_pattern_name, prefetch_state_name, thp_name, vector_name,
    window_kernel_name,
};
