//! Address translation and prefetchers.

use membound_types::{PrefetchPattern, PrefetchState, Worse};

use super::{Figures, Label, around, relative_error};
use crate::compare::noise::Noise;
use crate::compare::view::ProfileView;

pub(super) fn tlb(profile: &ProfileView, out: &mut Figures) {
    for level in &profile.tlb.levels {
        let (page, number) = (level.page, level.level);
        let label = |what: &str, title: &str, unit, worse, noise| Label {
            name: format!("tlb.{page}.L{number}.{what}"),
            part: "tlb",
            title: format!("L{number} TLB {title}, {page}"),
            unit,
            worse,
            noise,
        };
        out.add(
            label("entries", "entries", "", Worse::Lower, Noise::TlbEntries),
            level.entries.value,
            Some((level.entries.low, level.entries.high)),
        );
        out.add(
            label(
                "miss_cycles",
                "miss",
                "cycles",
                Worse::Higher,
                Noise::TlbCost,
            ),
            level.miss_cycles.value,
            Some((level.miss_cycles.low, level.miss_cycles.high)),
        );
    }
    if let Some(walks) = profile.tlb.parallel_walks.known() {
        out.add(
            Label {
                name: "tlb.parallel_walks".to_owned(),
                part: "tlb",
                title: "page walks at once".to_owned(),
                unit: "",
                worse: Worse::Lower,
                noise: Noise::Parallelism,
            },
            *walks,
            None,
        );
    }
}

pub(super) fn prefetch(profile: &ProfileView, out: &mut Figures) {
    for point in &profile.prefetch.points {
        let (name, title) = match point.pattern {
            PrefetchPattern::Forward { stride_bytes } => (
                format!("forward-{stride_bytes}"),
                format!("forward, stride {stride_bytes} B"),
            ),
            PrefetchPattern::Backward { stride_bytes } => (
                format!("backward-{stride_bytes}"),
                format!("backward, stride {stride_bytes} B"),
            ),
            PrefetchPattern::Interleaved { streams } => (
                format!("streams-{streams}"),
                format!("{streams} streams in turns"),
            ),
            PrefetchPattern::AdjacentLine => ("adjacent-line".into(), "adjacent line".into()),
            PrefetchPattern::PageRandom => ("page-random".into(), "random inside a page".into()),
            PrefetchPattern::PointerArray => ("pointer-array".into(), "array of pointers".into()),
            PrefetchPattern::NextPage => ("next-page".into(), "into the next page".into()),
            // Divided by itself.
            PrefetchPattern::Random => continue,
        };
        let (state, remark) = match &point.prefetch {
            PrefetchState::Default => (String::new(), String::new()),
            other => (format!(".{other}"), format!(", prefetchers {other}")),
        };
        out.add(
            Label {
                name: format!("prefetch.{name}{state}.ratio"),
                part: "prefetch",
                title: format!("{title}{remark}"),
                unit: "",
                worse: Worse::Higher,
                noise: Noise::PrefetchRatio,
            },
            point.ratio,
            relative_error(&point.batches.raw).map(|error| around(point.ratio, error)),
        );
    }
}
