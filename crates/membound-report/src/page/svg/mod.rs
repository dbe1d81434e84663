//! Charts as inline SVG: axes, curves, grouped bars and heat maps.
//!
//! Everything is drawn in units of a view box, and coloured by classes that the style sheet defines for
//! both colour schemes. A value that is not finite (or not positive on a logarithmic axis) is left out; no
//! coordinate is ever `NaN` or infinite.

mod axis;
mod bars;
mod chart;
mod coordinate;
mod data_table;
mod extent;
mod heat;
mod labels;
mod markers;
mod series;
mod steps;
mod vertical_axis;

pub(super) use axis::{Axis, Scale};
pub(super) use bars::{Bar, BarGroup, Bars};
pub(super) use chart::{Chart, Mark, MarkKind, Rule};
pub(super) use coordinate::coordinate;
pub(super) use data_table::DataTable;
pub(super) use extent::Extent;
pub(super) use heat::{Cell, HeatMap};
pub(super) use markers::definitions;
pub(super) use series::{Look, Point, Series};
