//! Share of accesses that a level serves in a chase whose elements are not one line apart.
//!
//! Models are fitted to chases that visit one element of every line, once a cycle. Other strides
//! need two assumptions, and the prediction covers the range of each:
//!
//! - Above the line, with elements `m` lines apart, only one in g sets is used, g the
//!   largest power of two in m, so the elements occupy a cache as g times as many
//!   lines would. Address bits inside a page determine a set with certainty; beyond those, frames
//!   may be random and the slices of a last level hashed.
//! - Below the line, several elements share a line and their visits are at random times in a
//!   cycle. With least recently used replacement a line is still there if fewer lines
//!   than the level holds were visited since; any other policy lies between that and
//!   independent draws.

use super::design::Edges;

/// Smallest page of any supported machine: virtual and physical addresses agree in the bits below.
const BASE_PAGE_BYTES: f64 = 4096.0;

/// Least share of lines outside a level that is used in a derivative, which diverges at 0 for a
/// power below 1.
const MIN_OUTSIDE: f64 = 0.01;

/// Assumption about which lines a cache keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReplacementAssumption {
    /// Sets from the address bits inside a base page; least recently used replacement.
    Likely,
    /// Sets from all address bits, as in a page as large as the buffer; strict least recently used
    /// replacement.
    Least,
    /// All sets used evenly; hits as for independent draws.
    Most,
}

impl ReplacementAssumption {
    /// All assumptions; the likely one comes first and gives the value.
    pub(super) const ALL: [Self; 3] = [Self::Likely, Self::Least, Self::Most];
}

/// Positions of the elements of a chase.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Spread {
    /// Bytes from the first element to the last.
    pub(super) span: f64,
    /// Bytes from one element to the next; 0 if all bytes are used.
    pub(super) spacing: f64,
}

/// Share of the accesses served by the levels up to one, with its derivatives.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct HitShare {
    /// Share of the accesses, 0 to 1.
    pub(super) hits: f64,
    /// Derivative of `hits` by the reach, per byte.
    pub(super) by_reach: f64,
    /// Derivative of `hits` by the exponent γ.
    pub(super) by_steepness: f64,
}

impl HitShare {
    const NOTHING: Self = Self {
        hits: 0.0,
        by_reach: 0.0,
        by_steepness: 0.0,
    };
    const ALL: Self = Self {
        hits: 1.0,
        by_reach: 0.0,
        by_steepness: 0.0,
    };
}

/// Share of the accesses served by the levels up to `level`, which is filled in lines of `line` bytes.
pub(super) fn hit_share(
    edges: &Edges,
    level: usize,
    spread: Spread,
    line: f64,
    assumption: ReplacementAssumption,
) -> HitShare {
    let Spread { span, spacing } = spread;
    if spacing > line {
        let area = crowded(spread, line, assumption);
        return match assumption {
            // Strict least recently used replacement keeps nothing of a cycle that does not fit.
            ReplacementAssumption::Least if area > edges.reach[level] => HitShare::NOTHING,
            _ => cyclic(edges, level, area),
        };
    }
    let as_fitted = cyclic(edges, level, span);
    if spacing <= 0.0 || spacing >= line {
        return as_fitted;
    }
    let ratio = edges.reach[level] / span;
    if ratio >= 1.0 {
        return HitShare::ALL;
    }
    let drawn = HitShare {
        hits: ratio,
        by_reach: 1.0 / span,
        by_steepness: 0.0,
    };
    let shared = match assumption {
        ReplacementAssumption::Most => drawn,
        ReplacementAssumption::Likely | ReplacementAssumption::Least => {
            shared_lines(ratio, span, spacing / line)
        }
    };
    if shared.hits > as_fitted.hits {
        shared
    } else {
        as_fitted
    }
}

/// Share of hits with 1/`alone` elements per line, visited in a random cycle under least recently
/// used replacement.
///
/// A line is away for a share u of the cycle with the density of the smallest of k − 1 uniform
/// draws, and 1 − (1 − u)ᵏ of the lines are visited meanwhile; it is kept if those are fewer than
/// `ratio` of all: 1 − (1 − ratio)^(1 − 1/k).
fn shared_lines(ratio: f64, span: f64, alone: f64) -> HitShare {
    let power = 1.0 - alone;
    let outside = 1.0 - ratio;
    HitShare {
        hits: 1.0 - outside.powf(power),
        by_reach: power * outside.max(MIN_OUTSIDE).powf(power - 1.0) / span,
        by_steepness: 0.0,
    }
}

/// The fitted form: (reach ÷ area)^γ.
fn cyclic(edges: &Edges, level: usize, area: f64) -> HitShare {
    let reach = edges.reach[level];
    if reach >= area {
        return HitShare::ALL;
    }
    let hits = edges.hits(level, area);
    HitShare {
        hits,
        by_reach: edges.steepness[level] * hits / reach,
        by_steepness: hits * (reach / area).ln(),
    }
}

/// Bytes of lines that would fill a cache as much as elements more than a line apart do.
fn crowded(spread: Spread, line: f64, assumption: ReplacementAssumption) -> f64 {
    let elements = (spread.span / spread.spacing).floor().max(1.0);
    let sharing = power_of_two_in(spread.spacing / line);
    let sharing = match assumption {
        ReplacementAssumption::Likely => sharing.min((BASE_PAGE_BYTES / line).max(1.0)),
        ReplacementAssumption::Least => sharing,
        ReplacementAssumption::Most => 1.0,
    };
    elements * line * sharing
}

/// Largest power of two that divides `lines`; 1 if `lines` is not a whole number.
fn power_of_two_in(lines: f64) -> f64 {
    let whole = lines as u64;
    if lines.fract() != 0.0 || whole == 0 {
        return 1.0;
    }
    (whole & whole.wrapping_neg()) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edges(reach: f64, steepness: f64) -> Edges {
        Edges {
            reach: vec![reach],
            steepness: vec![steepness],
        }
    }

    #[test]
    fn strides_above_the_line_crowd_into_sets() {
        let mib = f64::from(1 << 20);
        for (spacing, assumption, expected) in [
            (128.0, ReplacementAssumption::Likely, mib),
            (128.0, ReplacementAssumption::Most, mib / 2.0),
            (4096.0, ReplacementAssumption::Likely, mib),
            (
                192.0,
                ReplacementAssumption::Likely,
                (mib / 192.0).floor() * 64.0,
            ),
            (
                384.0,
                ReplacementAssumption::Least,
                (mib / 384.0).floor() * 128.0,
            ),
            (
                100.0,
                ReplacementAssumption::Likely,
                (mib / 100.0).floor() * 64.0,
            ),
            // Sets further apart than a page do not depend on address bits inside a page.
            (16384.0, ReplacementAssumption::Likely, mib / 4.0),
            (16384.0, ReplacementAssumption::Least, mib),
        ] {
            let spread = Spread { span: mib, spacing };
            let found = crowded(spread, 64.0, assumption);
            assert!((found - expected).abs() < 1e-6, "{spacing} {assumption:?}");
        }
    }

    #[test]
    fn a_line_apart_and_everywhere_are_as_fitted() {
        let edges = edges(3072.0, 5.0);
        for spacing in [0.0, 64.0] {
            let spread = Spread {
                span: 4096.0,
                spacing,
            };
            for assumption in ReplacementAssumption::ALL {
                let found = hit_share(&edges, 0, spread, 64.0, assumption).hits;
                assert!((found - 0.75_f64.powi(5)).abs() < 1e-12);
            }
        }
    }

    /// Share of hits of `lines` lines, each with `elements`, that a cache of `held` lines
    /// with least recently used replacement has in a random cycle.
    fn simulated(lines: usize, elements: usize, held: usize) -> f64 {
        let mut order: Vec<usize> = (0..lines * elements).map(|e| e / elements).collect();
        let mut state = 88_172_645_463_325_252_u64;
        for place in (1..order.len()).rev() {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            order.swap(place, (state % (place as u64 + 1)) as usize);
        }
        let mut recent: Vec<usize> = Vec::new();
        let mut hits = 0;
        for cycle in 0..2 {
            for line in &order {
                let found = recent.iter().position(|kept| kept == line);
                match found {
                    Some(place) => {
                        recent.remove(place);
                        hits += cycle;
                    }
                    None if recent.len() == held => {
                        recent.pop();
                    }
                    None => {}
                }
                recent.insert(0, *line);
            }
        }
        f64::from(hits) / order.len() as f64
    }

    #[test]
    fn shared_lines_are_kept_as_in_a_cache_that_drops_the_least_recent() {
        for (elements, ratio) in [(2, 0.25), (2, 0.75), (4, 0.5), (8, 0.75), (8, 0.1)] {
            let (lines, held) = (800, (800.0 * ratio) as usize);
            let expected = simulated(lines, elements, held);
            let spread = Spread {
                span: lines as f64 * 64.0,
                spacing: 64.0 / elements as f64,
            };
            let edges = edges(held as f64 * 64.0, 100.0);
            let likely = hit_share(&edges, 0, spread, 64.0, ReplacementAssumption::Likely).hits;
            assert!(
                (likely - expected).abs() < 0.03,
                "{elements} {ratio}: {likely} {expected}"
            );
            let most = hit_share(&edges, 0, spread, 64.0, ReplacementAssumption::Most).hits;
            assert!(most >= likely);
        }
    }

    #[test]
    fn derivatives_are_those_of_the_share() {
        for (spacing, assumption) in [
            (0.0, ReplacementAssumption::Likely),
            (16.0, ReplacementAssumption::Likely),
            (16.0, ReplacementAssumption::Most),
            (256.0, ReplacementAssumption::Most),
        ] {
            let spread = Spread {
                span: 262_144.0,
                spacing,
            };
            let at =
                |reach, steepness| hit_share(&edges(reach, steepness), 0, spread, 64.0, assumption);
            let (reach, steepness, step) = (40_000.0, 3.0, 1e-4);
            let found = at(reach, steepness);
            let by_reach =
                (at(reach + 1.0, steepness).hits - at(reach - 1.0, steepness).hits) / 2.0;
            let by_steepness = (at(reach, steepness + step).hits
                - at(reach, steepness - step).hits)
                / (2.0 * step);
            assert!((found.by_reach - by_reach).abs() < 1e-9, "{spacing}");
            assert!(
                (found.by_steepness - by_steepness).abs() < 1e-6,
                "{spacing}"
            );
        }
    }
}
