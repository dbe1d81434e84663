//! Titles for readers, where the name in documents is too short or missing.

use membound_types::{Dscr, Mlp, PrefetchPattern, PrefetchState, TrafficMix, VectorWidth};

use crate::units;

pub(crate) fn vector_title(width: VectorWidth) -> String {
    format!("{width}-bit")
}

pub(crate) fn prefetch_state_title(state: &PrefetchState) -> String {
    match state {
        PrefetchState::Default => "as found".to_owned(),
        PrefetchState::Off => "all off".to_owned(),
        PrefetchState::Dscr(dscr) => dscr_title(*dscr),
        PrefetchState::Without(name) => format!("without {name}"),
    }
}

/// Name of the depth in the Power ISA, and the kinds of streams that are on.
fn dscr_title(dscr: Dscr) -> String {
    const DEPTHS: [&str; 8] = [
        "usual depth",
        "none",
        "shallowest",
        "shallow",
        "medium",
        "deep",
        "deeper",
        "deepest",
    ];
    let mut words = vec![format!("{dscr} {}", DEPTHS[usize::from(dscr.value() & 7)])];
    if dscr.value() & 8 != 0 {
        words.push("store streams".to_owned());
    }
    if dscr.value() & 16 != 0 {
        words.push("stride-N".to_owned());
    }
    words.join(", ")
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

/// Conditions of one run of the part `mlp`, which tell it from the others.
pub(crate) fn mlp_title(mlp: &Mlp) -> String {
    format!("{} pages, node {}", mlp.page, mlp.node)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_the_stream_register_are_described() {
        let title = |name| prefetch_state_title(&PrefetchState::of_name(name));
        assert_eq!(title("dscr=1"), "dscr=1 none");
        assert_eq!(title("dscr=15"), "dscr=15 deepest, store streams");
        assert_eq!(title("dscr=16"), "dscr=16 usual depth, stride-N");
        assert_eq!(title("dcu"), "without dcu");
    }
}
