//! The width of a chart, for charts and pages.

/// Width of a chart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::page) enum Extent {
    /// Full width of the page.
    Full,
    /// Half width: two side by side if there is room.
    #[default]
    Half,
}

impl Extent {
    pub(super) const fn class(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Half => "half",
        }
    }

    pub(super) const fn size(self) -> (f64, f64) {
        match self {
            Self::Full => (860.0, 470.0),
            Self::Half => (530.0, 350.0),
        }
    }
}
