//! Figures of address translation.

use super::figure::{Figures, Label};
use crate::compare::noise::Noise;
use crate::compare::view::ProfileView;

pub(super) fn tlb(profile: &ProfileView, out: &mut Figures) {
    for level in &profile.tlb.levels {
        let (page, number) = (level.page, level.level);
        let label = |what: &str, title: &str, unit, noise| Label {
            name: format!("tlb.{page}.L{number}.{what}"),
            part: "tlb",
            title: format!("L{number} TLB {title}, {page}"),
            unit,
            noise,
        };
        out.add(
            label("entries", "entries", "", Noise::TlbEntries),
            level.entries.value,
            Some((level.entries.low, level.entries.high)),
        );
        out.add(
            label("miss_cycles", "miss", "cycles", Noise::TlbCost),
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
                noise: Noise::Parallelism,
            },
            *walks,
            None,
        );
    }
}
