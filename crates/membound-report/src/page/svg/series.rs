//! A curve of a chart: its points and how it looks.

/// Look of a curve. Colour, dash and shape are indices into the style sheet.
#[derive(Clone, Copy, Debug)]
pub(in crate::page) enum Look {
    /// One of several kinds.
    Category {
        /// Index of the colour, 0 to 7.
        color: usize,
        /// Index of the dash; 0 is a solid line.
        dash: usize,
        /// Index of the marker's shape, 0 to 3.
        shape: usize,
    },
    /// One of many ordered curves: its rank from 0 to 1.
    Ordinal(f64),
    /// Markers without a line, in the colour and shape of the `index`-th kind: measured values of a fitted
    /// curve.
    Dots(usize),
    /// Line without markers, in the colour of the `index`-th kind: a fitted curve, whose values are in the
    /// table and beside the measured ones.
    Curve(usize),
    /// Steps in the colour of the `index`-th kind: each value holds from its x to the next point's. The
    /// last point only marks the end.
    Steps(usize),
}

impl Look {
    /// Look of the `index`-th of several kinds.
    pub(in crate::page) const fn category(index: usize) -> Self {
        Self::Category {
            color: index % 8,
            dash: index / 8 % 4,
            shape: index % 4,
        }
    }

    pub(super) fn class(self) -> String {
        match self {
            Self::Category { color, dash, .. } => format!("c{} d{}", color % 8, dash % 4),
            Self::Ordinal(rank) => format!("r{}", (rank.clamp(0.0, 1.0) * 8.0).round() as u8),
            Self::Dots(index) | Self::Curve(index) | Self::Steps(index) => {
                format!("c{}", index % 8)
            }
        }
    }

    pub(super) const fn shape(self) -> usize {
        match self {
            Self::Category { shape, .. } => shape % 4,
            Self::Dots(index) => index % 4,
            Self::Ordinal(_) | Self::Curve(_) | Self::Steps(_) => 0,
        }
    }

    pub(super) const fn has_line(self) -> bool {
        !matches!(self, Self::Dots(_))
    }

    pub(super) const fn has_markers(self) -> bool {
        !matches!(self, Self::Curve(_) | Self::Steps(_))
    }

    pub(super) const fn is_stepped(self) -> bool {
        matches!(self, Self::Steps(_))
    }

    /// Reference to the element with the marker's shape.
    pub(super) fn marker(self, crowded: bool) -> String {
        if crowded && matches!(self, Self::Ordinal(_)) {
            "#ms".to_owned()
        } else {
            format!("#m{}", self.shape())
        }
    }
}

/// A point with its interval and its tooltip.
#[derive(Clone, Debug, Default)]
pub(in crate::page) struct Point {
    pub(in crate::page) x: f64,
    pub(in crate::page) y: f64,
    pub(in crate::page) interval: Option<(f64, f64)>,
    /// Text of the tooltip.
    pub(in crate::page) tip: String,
    /// Drawn hollow: the point was perturbed.
    pub(in crate::page) hollow: bool,
}

/// A curve.
#[derive(Clone, Debug)]
pub(in crate::page) struct Series {
    pub(in crate::page) label: String,
    pub(in crate::page) look: Look,
    /// True if the curve is shown at first.
    pub(in crate::page) shown: bool,
    pub(in crate::page) points: Vec<Point>,
}

impl Series {
    /// CSS classes of the curve's group: kind, colour, and whether it is hidden.
    pub(super) fn class(&self) -> String {
        let off = if self.shown { "" } else { " off" };
        format!("s {}{off}", self.look.class())
    }
}
