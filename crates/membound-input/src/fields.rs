//! The fields of documents from which curves are made.
//!
//! Other programs write documents of kind `latency` and `window` with fewer fields than
//! membound does. These types require only a point's sizes and its time;
//! any other known field is used if present, and must have the right type.

use serde::Deserialize;

use membound_types::{Access, Cache, CpuId, LatencyPoint, NodePolicy, PageKind, Pattern};
use membound_types::{PrefetchState, Samples, WindowKernel, WindowPoint};

/// The fields of the part `latency` that a curve uses.
#[derive(Deserialize)]
pub(crate) struct Loads {
    pub(crate) points: Vec<Load>,
    #[serde(default)]
    pub(crate) skipped: Vec<String>,
}

/// The fields of the part `window` that a curve uses.
#[derive(Deserialize)]
pub(crate) struct Windows {
    pub(crate) points: Vec<Drawn>,
    #[serde(default)]
    pub(crate) skipped: Vec<String>,
    #[serde(default)]
    pub(crate) machine: Declared,
}

/// The fields of `machine` that say what the machine declares.
#[derive(Default, Deserialize)]
pub(crate) struct Declared {
    #[serde(default)]
    pub(crate) caches: Vec<Cache>,
}

/// A point of a latency curve.
#[derive(Deserialize)]
pub(crate) struct Load {
    pub(crate) size_bytes: u64,
    pub(crate) ns: f64,
    pub(crate) ns_low: Option<f64>,
    pub(crate) ns_high: Option<f64>,
    pub(crate) pattern: Option<Pattern>,
    pub(crate) access: Option<Access>,
    pub(crate) page: Option<PageKind>,
    pub(crate) node: Option<NodePolicy>,
    pub(crate) cpu: Option<CpuId>,
    pub(crate) threads: Option<u32>,
    pub(crate) prefetch: Option<PrefetchState>,
    pub(crate) stride_bytes: Option<u64>,
    #[serde(default)]
    pub(crate) batches: Batches,
    pub(crate) page_share: Option<f64>,
    pub(crate) prefetch_taint: Option<Taint>,
}

/// A point of a window curve.
#[derive(Deserialize)]
pub(crate) struct Drawn {
    pub(crate) window_bytes: u64,
    pub(crate) area_bytes: u64,
    pub(crate) seconds_per_window: f64,
    pub(crate) seconds_low: Option<f64>,
    pub(crate) seconds_high: Option<f64>,
    pub(crate) kernel: Option<WindowKernel>,
    pub(crate) page: Option<PageKind>,
    pub(crate) node: Option<NodePolicy>,
    pub(crate) cpu: Option<CpuId>,
    pub(crate) init_cpu: Option<CpuId>,
    #[serde(default)]
    pub(crate) batches: Batches,
}

/// The fields of a point's batches that a curve's notes use.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(crate) struct Batches {
    disturbed: Disturbed,
}

/// Disturbances that the batches of a point may still contain.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Disturbed {
    kept_batches: u32,
    slow_mode: Option<f64>,
}

/// Present if a prefetcher shortened a point.
#[derive(Deserialize)]
pub(crate) struct Taint {}

impl Batches {
    /// True if the value still contains a disturbance.
    pub(crate) const fn unresolved(&self) -> bool {
        self.disturbed.slow_mode.is_some() || self.disturbed.kept_batches > 0
    }
}

impl From<&Samples> for Batches {
    fn from(samples: &Samples) -> Self {
        Self {
            disturbed: Disturbed {
                kept_batches: samples.disturbed.kept_batches,
                slow_mode: samples.disturbed.slow_mode,
            },
        }
    }
}

impl From<&LatencyPoint> for Load {
    fn from(point: &LatencyPoint) -> Self {
        Self {
            size_bytes: point.size_bytes,
            ns: point.ns,
            ns_low: Some(point.ns_low),
            ns_high: Some(point.ns_high),
            pattern: Some(point.pattern),
            access: Some(point.access),
            page: Some(point.page),
            node: Some(point.node),
            cpu: Some(point.cpu),
            threads: Some(point.threads),
            prefetch: Some(point.prefetch.clone()),
            stride_bytes: Some(point.stride_bytes),
            batches: Batches::from(&point.batches),
            page_share: point.page_share,
            prefetch_taint: point.prefetch_taint.as_ref().map(|_| Taint {}),
        }
    }
}

impl From<&WindowPoint> for Drawn {
    fn from(point: &WindowPoint) -> Self {
        Self {
            window_bytes: point.window_bytes,
            area_bytes: point.area_bytes,
            seconds_per_window: point.seconds_per_window,
            seconds_low: Some(point.seconds_low),
            seconds_high: Some(point.seconds_high),
            kernel: Some(point.kernel),
            page: Some(point.page),
            node: Some(point.node),
            cpu: Some(point.cpu),
            init_cpu: point.init_cpu,
            batches: Batches::from(&point.batches),
        }
    }
}
