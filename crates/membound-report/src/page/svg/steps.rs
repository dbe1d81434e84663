//! Draws a histogram as a stepped curve of a chart.

use maud::{Markup, html};

use super::axis::Ruler;
use super::coordinate::coordinate;
use super::series::Series;

/// Outline of `series`, and an area under each step with its tooltip. `index` is the curve's position in
/// the chart.
pub(super) fn markup(series: &Series, index: usize, x: &Ruler, y: &Ruler) -> Markup {
    let ground = y.inside(0.0).unwrap_or_default();
    let cells: Vec<(f64, f64, f64, &str)> = series
        .points
        .windows(2)
        .filter_map(|pair| {
            let (from, to) = (x.at(pair[0].x)?, x.at(pair[1].x)?);
            Some((from, to, y.at(pair[0].y)?, pair[0].tip.as_str()))
        })
        .collect();
    let mut line = String::new();
    if let Some(first) = cells.first() {
        line = format!("M{} {}", coordinate(first.0), coordinate(ground));
        for (_, to, top, _) in &cells {
            line.push_str(&format!("V{}H{}", coordinate(*top), coordinate(*to)));
        }
        line.push_str(&format!("V{}", coordinate(ground)));
    }
    html! {
        g class=(series.class()) data-k=(index) data-n=(series.label) {
            g.p.under {
                @for (from, to, top, tip) in &cells {
                    rect x=(coordinate(*from)) y=(coordinate(*top))
                        width=(coordinate(to - from)) height=(coordinate((ground - top).max(0.0))) { title { (tip) } }
                }
            }
            path.l d=(line) {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Axis, Look, Point, Scale};
    use super::*;

    #[test]
    fn a_value_holds_until_the_next_and_the_last_point_is_an_end() {
        let point = |x: f64, y: f64| Point {
            x,
            y,
            tip: format!("{y} from {x}"),
            ..Point::default()
        };
        let series = Series {
            label: "turns".to_owned(),
            look: Look::Steps(1),
            shown: true,
            points: vec![point(0.0, 10.0), point(50.0, 95.0), point(95.0, 0.0)],
        };
        let axis = Axis {
            title: String::new(),
            scale: Scale::Linear,
            format: |value| value.to_string(),
        };
        // An axis from 0 extends a twentieth of its length beyond its highest value.
        let x = axis.ruler([0.0, 95.0], 0.0, 99.75).unwrap();
        let y = axis.ruler([0.0, 95.0], 99.75, 0.0).unwrap();
        let text = markup(&series, 3, &x, &y).into_string();
        assert!(text.contains("M0 99.8V89.8H50V4.8H95V99.8"), "{text}");
        assert_eq!(text.matches("<rect").count(), 2);
        assert!(text.contains("<title>95 from 50</title>"), "{text}");
        assert!(text.contains("class=\"s c1\" data-k=\"3\""), "{text}");
    }
}
