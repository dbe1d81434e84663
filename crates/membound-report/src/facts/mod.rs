//! Content shared by the page and the terminal: titles, curves grouped from points, headline figures,
//! perturbed points.

mod calibration;
pub(crate) mod calls;
pub(crate) mod comparison;
mod curves;
mod disturbed;
pub(crate) mod durations;
mod functions;
mod gaps;
pub(crate) mod gate;
pub(crate) mod hardware;
pub(crate) mod harvest_explore;
pub(crate) mod harvest_run;
mod headline;
pub(crate) mod model;
pub(crate) mod nodes;
mod parallel;
pub(crate) mod run;
mod sequence;
pub(crate) mod sorted;
mod titles;
pub(crate) mod windows;

pub(crate) use calibration::{deciles, longest};
pub(crate) use curves::{
    Curve, SettingFamily, StrideFamily, latency_curves, setting_families, stride_families,
};
pub(crate) use disturbed::{Disturbed, disturbed_points, reason, two_modes};
pub(crate) use functions::plain;
pub(crate) use gaps::{gaps, missing_text, none_measured};
pub(crate) use headline::{dram_bandwidth, identity, level_bandwidth, mlp_conditions, timer_steps};
pub(crate) use parallel::{
    PLACEMENTS, cache_size, hits, hits_source, only_level, pair, placement_outlier,
    placement_title, plane_cells, plane_filler, plane_window, reach_rows, reach_text,
    reorder_buffer, reorder_buffer_doubt, reorder_buffer_interval, reorder_evidence, rule,
    rule_between, runs, throughput, walks, walks_at_once, walks_reading, window_filler,
    with_interval,
};
pub(crate) use sequence::{line_verdict, sequence_readings, sequence_rows};
pub(crate) use titles::{
    mix_title, mlp_title, prefetch_pattern_title, prefetch_state_title, vector_title,
};
