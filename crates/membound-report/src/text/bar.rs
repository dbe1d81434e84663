//! A bar divided into shares, with a legend below.

use super::out::Out;
use crate::units;

/// Width of the bar in columns.
const BAR: usize = 50;
/// Characters that distinguish the parts without colour, and the one for the rest.
const FILLS: [char; 6] = ['█', '▓', '▒', '▚', '◆', '?'];
const REST: char = '·';

/// Writes a bar of `parts` (name, share), the name and share of the rest, and a remark after the legend.
pub(super) fn write(out: &mut Out, parts: &[(&str, f64)], rest: (&str, f64), remark: &str) {
    let width = BAR.min(out.width().saturating_sub(4));
    out.verbatim(&[format!("  {}", bar(parts, width))]);
    let mut words: Vec<String> = parts
        .iter()
        .enumerate()
        .map(|(index, (name, share))| {
            format!(
                "{} {name} {}",
                FILLS[index % FILLS.len()],
                units::percent(*share)
            )
        })
        .collect();
    words.push(format!("{REST} {} {}", rest.0, units::percent(rest.1)));
    if !remark.is_empty() {
        words.push(remark.to_owned());
    }
    // Do not break a line within an entry of the legend.
    let words: Vec<String> = words.iter().map(|it| it.replace(' ', "\u{a0}")).collect();
    out.note(&words.join("  "));
}

/// Draws a bar of `width` columns: each part's share of them, the rest as dots.
fn bar(parts: &[(&str, f64)], width: usize) -> String {
    let mut out = String::new();
    let (mut drawn, mut sum) = (0, 0.0);
    for (index, (_, share)) in parts.iter().enumerate() {
        sum += share.clamp(0.0, 1.0);
        let until = ((sum * width as f64).round() as usize).min(width);
        let fill = FILLS[index % FILLS.len()];
        out.extend(std::iter::repeat_n(fill, until.saturating_sub(drawn)));
        drawn = drawn.max(until);
    }
    out.extend(std::iter::repeat_n(REST, width - drawn));
    out
}

/// Bar of at most `width` columns for a value, relative to the largest value `most`.
pub(super) fn single(value: f64, most: f64, width: usize) -> String {
    let length = if most > 0.0 {
        ((value / most).clamp(0.0, 1.0) * width as f64).round() as usize
    } else {
        0
    };
    FILLS[0].to_string().repeat(length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_is_as_wide_as_asked_and_in_proportion() {
        assert_eq!(bar(&[("L3", 0.1), ("DRAM", 0.4)], 10), "█▓▓▓▓·····");
        assert_eq!(bar(&[("L3", 0.7), ("DRAM", 0.7)], 10), "███████▓▓▓");
        assert_eq!(bar(&[], 4), "····");
        assert_eq!(
            bar(&[("L3", f64::NAN), ("DRAM", 0.5)], 4).chars().count(),
            4
        );
        assert_eq!(single(5.0, 10.0, 8), "████");
        assert_eq!(single(1.0, 0.0, 8), "");
    }
}
