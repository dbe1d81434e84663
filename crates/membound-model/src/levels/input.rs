//! What the search for levels needs: the points of a curve, and limits.

/// One point of a latency curve.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CurvePoint {
    /// Size of the buffer in bytes.
    pub size_bytes: u64,
    /// Time per load in nanoseconds.
    pub ns: f64,
    /// Lower end of the 95 % interval of `ns`.
    pub ns_low: f64,
    /// Upper end of the 95 % interval of `ns`.
    pub ns_high: f64,
}

/// Limits for plateaus and for steps between them. They are properties of caches in general, not
/// of one CPU; the defaults hold for every machine measured so far.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LevelOptions {
    /// Least extent of a plateau, in octaves of size.
    pub least_span_octaves: f64,
    /// Steepest plateau, as change of ln(ns) per octave. A TLB and a shared cache tilt
    /// plateaus.
    pub steepest_plateau: f64,
    /// Least ratio between the latencies of neighbouring levels. A miss that the next TLB level
    /// serves stays below it.
    pub least_ratio: f64,
    /// Least ratio between neighbouring latencies if the whole curve is a sum of steps: there a step
    /// can only be a level.
    pub least_step: f64,
    /// Least steepness that a climb between levels must have over half an octave, as
    /// change of ln(ns) per octave. The reach of a TLB gives a slower climb.
    pub least_climb: f64,
    /// Least distance between the ends of neighbouring caches, in octaves of size. In a
    /// physically indexed cache with pages of random colour, colours that overflow early
    /// give short flat parts of the climb.
    pub least_separation_octaves: f64,
    /// Size in bytes of the pages that the machine places at random; the number of colours of a
    /// physically indexed cache is the number of pages in one way.
    pub page_bytes: u64,
    /// Size beyond which no cache of this machine can hold a buffer: a plateau that extends
    /// beyond it is memory. 512 MiB if `None`.
    pub cache_bound_bytes: Option<u64>,
    /// Number of caches on the way to memory, if known.
    ///
    /// The plateau after the last of them is memory if the curve extends beyond the cache bound, even
    /// if the curve climbs there: page walks whose tables lie in memory look like a cache that ends.
    pub caches: Option<usize>,
}

impl Default for LevelOptions {
    fn default() -> Self {
        Self {
            least_span_octaves: 0.7,
            steepest_plateau: 0.2,
            least_ratio: 1.4,
            least_step: 1.1,
            least_climb: 0.42,
            least_separation_octaves: 1.3,
            page_bytes: 4096,
            cache_bound_bytes: None,
            caches: None,
        }
    }
}
