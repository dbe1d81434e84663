//! Collects what is missing from a run, and why: each reason once, with a count.

use membound_run::Gap;

/// Gaps of a run.
#[derive(Debug, Default)]
pub(crate) struct Gaps {
    all: Vec<Gap>,
}

impl Gaps {
    /// Adds a reason, unless it is known already.
    pub(crate) fn note(&mut self, about: &str, reason: impl Into<String>, remedy: Option<&str>) {
        let reason = reason.into();
        let known = self
            .all
            .iter()
            .any(|gap| gap.about == about && gap.reason == reason);
        if !known {
            self.all.push(Gap {
                about: about.to_owned(),
                reason,
                remedy: remedy.map(str::to_owned),
                count: None,
            });
        }
    }

    /// Adds `count` to the missing items of a reason; adds the reason if it is new and `count` is not 0.
    pub(crate) fn count(&mut self, about: &str, reason: &str, remedy: Option<&str>, count: u64) {
        if count == 0 {
            return;
        }
        self.note(about, reason, remedy);
        let known = self
            .all
            .iter_mut()
            .find(|gap| gap.about == about && gap.reason == reason);
        if let Some(gap) = known {
            gap.count = Some(gap.count.unwrap_or(0).saturating_add(count));
        }
    }

    /// Adds all reasons and counts of another collection.
    pub(crate) fn add(&mut self, others: Self) {
        for gap in others.all {
            let remedy = gap.remedy.as_deref();
            self.note(&gap.about, gap.reason.as_str(), remedy);
            self.count(&gap.about, &gap.reason, remedy, gap.count.unwrap_or(0));
        }
    }

    /// All gaps, in the order in which they were first noted.
    pub(crate) fn all(&self) -> &[Gap] {
        &self.all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_told_once_and_what_it_counts_is_summed() {
        let mut gaps = Gaps::default();
        gaps.note("objects", "no agent", None);
        gaps.note("objects", "no agent", None);
        gaps.count("samples", "lost", Some("do less"), 3);
        gaps.count("samples", "lost", Some("do less"), 4);
        gaps.count("samples", "never", None, 0);
        let counts: Vec<_> = gaps
            .all()
            .iter()
            .map(|gap| (gap.about.as_str(), gap.count))
            .collect();
        assert_eq!(counts, [("objects", None), ("samples", Some(7))]);
    }
}
