//! Axes: domain, position of a value, and ticks at round values.

use crate::units;

/// Scale of an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::page) enum Scale {
    /// Equal differences; starts at zero if no value is negative.
    Linear,
    /// Equal ratios, with ticks at powers of two.
    Log2,
    /// Equal ratios, with ticks at 1, 2 and 5 times powers of ten.
    Log10,
}

/// An axis and its title.
#[derive(Clone, Debug)]
pub(in crate::page) struct Axis {
    /// Quantity with its unit.
    pub(in crate::page) title: String,
    pub(in crate::page) scale: Scale,
    /// Formats a value on the axis.
    pub(in crate::page) format: fn(f64) -> String,
}

/// An axis with its domain, mapped to coordinates.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ruler {
    scale: Scale,
    low: f64,
    high: f64,
    from: f64,
    to: f64,
}

/// Tick of an axis.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Tick {
    pub(super) at: f64,
    pub(super) value: f64,
    /// True if the label remains when there is room only for every second one.
    pub(super) sparse: bool,
}

impl Default for Axis {
    fn default() -> Self {
        Self::linear("")
    }
}

impl Axis {
    /// A linear axis of plain numbers.
    pub(in crate::page) fn linear(title: &str) -> Self {
        Self {
            title: title.to_owned(),
            scale: Scale::Linear,
            format: units::compact,
        }
    }

    /// Ruler over all finite `values`, between the coordinates `from` and `to`; `None` if there is no value
    /// to show.
    pub(super) fn ruler(
        &self,
        values: impl IntoIterator<Item = f64>,
        from: f64,
        to: f64,
    ) -> Option<Ruler> {
        let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
        for value in values {
            if let Some(place) = self.scale.place(value) {
                low = low.min(place);
                high = high.max(place);
            }
        }
        if low > high {
            return None;
        }
        match self.scale {
            Scale::Linear => {
                if low >= 0.0 {
                    low = 0.0;
                }
                // A single value gets padding in proportion to its magnitude, so that it is not lost in
                // rounding.
                let pad = if high > low {
                    (high - low) * 0.05
                } else {
                    high.abs().max(1.0) * 0.05
                };
                high += pad;
                if low < 0.0 {
                    low -= pad;
                }
            }
            Scale::Log2 => {
                if high - low < 1.0 {
                    (low, high) = (low - 0.5, high + 0.5);
                }
            }
            Scale::Log10 => {
                let pad = ((high - low) * 0.06).max(0.05);
                (low, high) = (low - pad, high + pad);
            }
        }
        Some(Ruler {
            scale: self.scale,
            low,
            high,
            from,
            to,
        })
    }
}

impl Scale {
    /// Position of a value before mapping to coordinates; `None` if the scale cannot show it.
    fn place(self, value: f64) -> Option<f64> {
        let place = match self {
            Self::Linear => value,
            Self::Log2 if value > 0.0 => value.log2(),
            Self::Log10 if value > 0.0 => value.log10(),
            Self::Log2 | Self::Log10 => return None,
        };
        // Beyond this, coordinates are meaningless and arithmetic may overflow.
        (place.is_finite() && place.abs() < 1e100).then_some(place)
    }
}

impl Ruler {
    /// Coordinate of a value; `None` if the scale cannot show it.
    pub(super) fn at(&self, value: f64) -> Option<f64> {
        self.scale.place(value).map(|place| self.stretch(place))
    }

    /// Coordinate of a value, clamped to the axis.
    pub(super) fn inside(&self, value: f64) -> Option<f64> {
        self.scale
            .place(value)
            .map(|place| self.stretch(place.clamp(self.low, self.high)))
    }

    /// True if a value lies within the axis.
    pub(super) fn holds(&self, value: f64) -> bool {
        self.scale
            .place(value)
            .is_some_and(|place| (self.low..=self.high).contains(&place))
    }

    fn stretch(&self, place: f64) -> f64 {
        self.from + (place - self.low) / (self.high - self.low) * (self.to - self.from)
    }

    /// Ticks at least `apart` units from each other.
    pub(super) fn ticks(&self, apart: f64) -> Vec<Tick> {
        let length = (self.to - self.from).abs();
        let most = (length / apart).floor().max(2.0);
        match self.scale {
            Scale::Linear => self.linear_ticks(most),
            Scale::Log2 => self.power_ticks(most),
            Scale::Log10 => self.decade_ticks(most),
        }
    }

    fn linear_ticks(&self, most: f64) -> Vec<Tick> {
        round_values(self.low, self.high, most)
            .into_iter()
            .map(|(value, sparse)| Tick {
                at: self.stretch(value),
                value,
                sparse,
            })
            .collect()
    }

    fn power_ticks(&self, most: f64) -> Vec<Tick> {
        let octaves = self.high - self.low;
        let step = [1, 2, 4, 8, 16]
            .into_iter()
            .find(|step| octaves / f64::from(*step) <= most)
            .unwrap_or(32);
        let first = (self.low / f64::from(step)).ceil() as i32;
        let last = (self.high / f64::from(step)).floor() as i32;
        (first..=last)
            .map(|index| {
                let exponent = f64::from(index * step);
                Tick {
                    at: self.stretch(exponent),
                    value: exponent.exp2(),
                    sparse: index % 2 == 0,
                }
            })
            .collect()
    }

    fn decade_ticks(&self, most: f64) -> Vec<Tick> {
        let factors: &[f64] = if (self.high - self.low) * 3.0 <= most {
            &[1.0, 2.0, 5.0]
        } else {
            &[1.0]
        };
        let decades = (self.low.floor() as i32)..=(self.high.ceil() as i32);
        let few = self.high - self.low < 2.0;
        let ticks: Vec<Tick> = decades
            .flat_map(|decade| factors.iter().map(move |factor| (decade, *factor)))
            .filter_map(|(decade, factor)| {
                let value = factor * 10_f64.powi(decade);
                let place = value.log10();
                (self.low..=self.high).contains(&place).then(|| Tick {
                    at: self.stretch(place),
                    value,
                    sparse: few || factor < 1.5,
                })
            })
            .collect();
        if ticks.len() >= 2 {
            return ticks;
        }
        // For a range below a factor of about two, use round steps at their positions on this scale.
        let (low, high) = (10_f64.powf(self.low), 10_f64.powf(self.high));
        round_values(low, high, most)
            .into_iter()
            .map(|(value, sparse)| Tick {
                at: self.stretch(value.log10()),
                value,
                sparse,
            })
            .collect()
    }
}

/// At most about `most` multiples of 1, 2 or 5 times a power of ten between two values, each with a flag
/// for even multiples.
fn round_values(low: f64, high: f64, most: f64) -> Vec<(f64, bool)> {
    let raw = (high - low) / most;
    let decade = 10_f64.powf(raw.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0]
        .into_iter()
        .map(|factor| factor * decade)
        .find(|step| *step >= raw)
        .unwrap_or(10.0 * decade);
    let (first, last) = ((low / step).ceil(), (high / step).floor());
    if !(first.is_finite() && last.is_finite() && last - first <= 4.0 * most) {
        return Vec::new();
    }
    let count = (last - first) as u32;
    (0..=count)
        .map(|index| first + f64::from(index))
        .filter(|multiple| *multiple <= last)
        .map(|multiple| (multiple * step, multiple % 2.0 == 0.0))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn axis(scale: Scale) -> Axis {
        Axis {
            title: String::new(),
            scale,
            format: crate::units::number,
        }
    }

    #[test]
    fn values_go_where_they_belong() {
        let ruler = axis(Scale::Log2).ruler([1024.0, 4096.0], 0.0, 100.0);
        let ruler = ruler.expect("there are values");
        assert_eq!(ruler.at(2048.0), Some(50.0));
        assert_eq!(ruler.at(0.0), None);
        assert_eq!(ruler.at(-1.0), None);
        assert_eq!(ruler.at(f64::NAN), None);
        assert_eq!(ruler.inside(1e12), Some(100.0));
        assert!(!ruler.holds(1e12));
    }

    #[test]
    fn linear_axes_start_at_zero_and_tick_at_round_values() {
        let ruler = axis(Scale::Linear).ruler([650.0, 1320.0], 0.0, 400.0);
        let values: Vec<f64> = ruler
            .expect("there are values")
            .ticks(60.0)
            .into_iter()
            .map(|tick| tick.value)
            .collect();
        assert_eq!(values, [0.0, 500.0, 1000.0]);
    }

    #[test]
    fn a_narrow_range_of_a_logarithmic_axis_has_ticks() {
        let ruler = axis(Scale::Log10).ruler([156.0, 164.0], 300.0, 0.0);
        let values: Vec<f64> = ruler
            .expect("there are values")
            .ticks(30.0)
            .into_iter()
            .map(|tick| tick.value)
            .collect();
        assert_eq!(
            values,
            [
                140.0, 145.0, 150.0, 155.0, 160.0, 165.0, 170.0, 175.0, 180.0
            ]
        );
    }

    #[test]
    fn octaves_are_thinned_to_what_fits() {
        let ruler = axis(Scale::Log2).ruler([1024.0, 1_073_741_824.0], 0.0, 660.0);
        let ticks = ruler.expect("there are values").ticks(60.0);
        let values: Vec<f64> = ticks.iter().map(|tick| tick.value.log2()).collect();
        assert_eq!(
            values,
            (5..=15).map(|k| f64::from(k * 2)).collect::<Vec<_>>()
        );
        assert!(ticks.iter().filter(|tick| tick.sparse).count() >= 5);
    }

    #[test]
    fn no_values_no_ruler() {
        for scale in [Scale::Linear, Scale::Log2, Scale::Log10] {
            assert!(axis(scale).ruler([], 0.0, 1.0).is_none());
            assert!(
                axis(scale)
                    .ruler([f64::NAN, f64::INFINITY], 0.0, 1.0)
                    .is_none()
            );
            let one = axis(scale).ruler([5.0], 0.0, 100.0).expect("one value");
            assert!(one.at(5.0).is_some_and(f64::is_finite));
            assert!(!one.ticks(20.0).is_empty() || scale != Scale::Linear);
        }
    }

    #[test]
    fn one_value_of_any_magnitude_has_a_place() {
        for value in [-4.1e16, 4.1e16, -1e99, 1e99, -5e-324, 0.0] {
            let ruler = axis(Scale::Linear).ruler([value], 0.0, 100.0);
            let at = ruler.expect("one value").at(value);
            assert!(at.is_some_and(|at| (0.0..=100.0).contains(&at)), "{value}");
        }
    }
}
