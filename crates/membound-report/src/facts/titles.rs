//! What a person reads where the name in documents is too short or does not exist.

use membound_types::{Mlp, PrefetchPattern, PrefetchState, TrafficMix, VectorWidth};

use crate::units;

pub(crate) fn vector_title(width: VectorWidth) -> String {
    format!("{width}-bit")
}

pub(crate) fn prefetch_state_title(state: &PrefetchState) -> String {
    match state {
        PrefetchState::Default => "as found".to_owned(),
        PrefetchState::Off => "all off".to_owned(),
        PrefetchState::Without(name) => format!("without {name}"),
    }
}

pub(crate) fn prefetch_pattern_title(pattern: PrefetchPattern) -> String {
    match pattern {
        PrefetchPattern::Forward { stride_bytes } => {
            format!("forward, stride {}", units::bytes(stride_bytes))
        }
        PrefetchPattern::Backward { stride_bytes } => {
            format!("backward, stride {}", units::bytes(stride_bytes))
        }
        PrefetchPattern::Interleaved { streams } => format!("{streams} streams in turns"),
        PrefetchPattern::AdjacentLine => "adjacent line".to_owned(),
        PrefetchPattern::PageRandom => "random inside a page".to_owned(),
        PrefetchPattern::PointerArray => "array of pointers".to_owned(),
        PrefetchPattern::NextPage => "into the next page".to_owned(),
        PrefetchPattern::Random => "random (reference)".to_owned(),
    }
}

pub(crate) fn mix_title(mix: TrafficMix) -> String {
    match (mix.reads, mix.writes) {
        (_, 0) => "reads only".to_owned(),
        (0, _) => "writes only".to_owned(),
        (reads, writes) => format!(
            "{} : {}",
            units::plural(reads as usize, "read"),
            units::plural(writes as usize, "write")
        ),
    }
}

/// The conditions of one run of the part `mlp`, to tell it from the others.
pub(crate) fn mlp_title(mlp: &Mlp) -> String {
    format!("{} pages, node {}", mlp.page, mlp.node)
}
