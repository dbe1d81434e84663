//! Latency under traffic, one curve per mix of reads and writes.
//!
//! membound names a mix by what its injectors do, and counts the lines that they read and write.
//! Other programs count the traffic at memory: a store reads its line before it writes it
//! (write-allocate), so that a round that reads `r` lines and writes `w` lines moves `r + w` lines
//! from memory and `w` lines to memory. This module converts mixes and bandwidths to membound's.

use membound_types::TrafficMix;

use crate::check;
use crate::error::Fault;
use crate::text::plural;

/// Most reads and writes of a mix to which a measured share of reads is rounded.
const MAX_READS: u32 = 8;
const MAX_WRITES: u32 = 4;

/// Largest rounding error in percentage points of a share of reads: files state whole percent.
const ROUNDING: f64 = 0.5;

/// Most traffic of one machine in 10⁹ bytes per second, far beyond any.
const MAX_GB_S: f64 = 1e5;

const CONVERTED: &str = "the file counts the bytes at memory; membound subtracts the bytes that \
                         stores read before they write (write-allocate)";

/// Latency under traffic of one mix.
#[derive(Clone, Debug, PartialEq)]
pub struct LoadedCurve {
    /// The mix, such as `2:1` if membound's injectors can produce it, else in words.
    pub mix: String,
    /// Points in the order of the file.
    pub points: Vec<LoadedPoint>,
    /// Notes on conversion, assumptions and omissions, one sentence each.
    pub notes: Vec<String>,
}

/// Latency under one amount of traffic.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LoadedPoint {
    /// Traffic in 10⁹ bytes per second, counted as in [`membound_types::LoadedPoint::gb_s`].
    pub gb_s: f64,
    /// Latency in nanoseconds.
    pub ns: f64,
}

/// A mix, and the share of its bytes at memory that membound counts.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Traffic {
    pub(crate) mix: String,
    counted: f64,
}

impl Traffic {
    /// Traffic of loads alone.
    pub(crate) fn reads() -> Self {
        Self::counted_whole("1:0".to_owned())
    }

    /// Traffic whose bandwidth is used as the file states it.
    pub(crate) fn counted_whole(mix: String) -> Self {
        Self { mix, counted: 1.0 }
    }

    /// Loads and non-temporal stores, which read nothing. `mix` is their ratio, reads to writes.
    pub(crate) fn non_temporal(mix: &str) -> Self {
        Self::counted_whole(format!("{mix} non-temporal"))
    }

    /// Traffic that reads `reads` lines from memory for each `writes` lines that it writes to memory.
    /// With write-allocate `reads` is at least `writes`.
    pub(crate) fn at_memory(reads: u32, writes: u32) -> Self {
        let mix = TrafficMix {
            reads: reads.saturating_sub(writes),
            writes,
        };
        Self {
            mix: mix.to_string(),
            counted: share(reads, writes),
        }
    }

    /// Traffic with `percent` reads at memory. With write-allocate the share is at least 50.
    pub(crate) fn of_reads_at_memory(percent: f64) -> Self {
        let counted = percent / 100.0;
        let of = |mix: &TrafficMix| share(mix.reads + mix.writes, mix.writes);
        Self {
            mix: nearest(percent, of).unwrap_or_else(|| format!("{percent}% reads at memory")),
            counted,
        }
    }

    /// Traffic of a program with `percent` loads among its loads and stores.
    pub(crate) fn of_loads(percent: f64) -> Self {
        let of = |mix: &TrafficMix| share(mix.reads, mix.writes);
        Self {
            mix: nearest(percent, of).unwrap_or_else(|| format!("{percent}% loads")),
            counted: 100.0 / (200.0 - percent),
        }
    }
}

/// The share of `reads` in reads and writes together, 0 to 1.
fn share(reads: u32, writes: u32) -> f64 {
    f64::from(reads) / f64::from(reads + writes)
}

/// The mix with the fewest lines whose share of reads (by `share_of`) rounds to `percent`.
fn nearest(percent: f64, share_of: impl Fn(&TrafficMix) -> f64) -> Option<String> {
    (0..=MAX_WRITES)
        .flat_map(|writes| (0..=MAX_READS).map(move |reads| TrafficMix { reads, writes }))
        .filter(|mix| mix.reads + mix.writes > 0)
        .filter(|mix| (share_of(mix) * 100.0 - percent).abs() <= ROUNDING)
        .min_by_key(|mix| mix.reads + mix.writes)
        .map(|mix| mix.to_string())
}

/// Curves under construction, in the order of their first points.
#[derive(Default)]
pub(crate) struct LoadedCurves(Vec<LoadedCurve>);

impl LoadedCurves {
    /// Adds a point with `gb_s` (10⁹ bytes per second at memory) and `ns`.
    ///
    /// # Errors
    /// A fragment of a message that names the implausible value.
    pub(crate) fn push(&mut self, traffic: &Traffic, gb_s: f64, ns: f64) -> Result<(), String> {
        bandwidth(gb_s).map_err(|what| format!("bandwidth: {what}"))?;
        check::load(ns).map_err(|what| format!("latency: {what}"))?;
        let known = self.0.iter().position(|curve| curve.mix == traffic.mix);
        let at = known.unwrap_or_else(|| {
            self.0.push(LoadedCurve {
                mix: traffic.mix.clone(),
                points: Vec::new(),
                notes: (traffic.counted < 1.0)
                    .then(|| CONVERTED.to_owned())
                    .into_iter()
                    .collect(),
            });
            self.0.len() - 1
        });
        let gb_s = gb_s * traffic.counted;
        self.0[at].points.push(LoadedPoint { gb_s, ns });
        Ok(())
    }

    /// The curves, with `notes` added to each.
    ///
    /// # Errors
    /// A fault with the number of points if there are fewer than two.
    pub(crate) fn finish(mut self, notes: &[String]) -> Result<Vec<LoadedCurve>, Fault> {
        let points: usize = self.0.iter().map(|curve| curve.points.len()).sum();
        if points < 2 {
            return Err(Fault::File(format!(
                "holds {} of latency beside traffic; a curve needs at least 2",
                plural(points, "point")
            )));
        }
        for curve in &mut self.0 {
            curve.notes.extend_from_slice(notes);
        }
        Ok(self.0)
    }
}

/// Checks a bandwidth in 10⁹ bytes per second. Zero is valid: it means no traffic.
fn bandwidth(gb_s: f64) -> Result<(), String> {
    if !(gb_s.is_finite() && gb_s >= 0.0) {
        return Err(format!("{gb_s} is no bandwidth"));
    }
    if gb_s > MAX_GB_S {
        return Err(format!(
            "{gb_s} GB/s is more than any machine moves: are these MB/s? Expected are GB/s"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_at_memory_are_the_mix_that_makes_them() {
        for (reads, writes, mix, counted) in [
            (1, 1, "0:1", 0.5),
            (2, 1, "1:1", 2.0 / 3.0),
            (3, 1, "2:1", 0.75),
            (3, 2, "1:2", 0.6),
        ] {
            let traffic = Traffic::at_memory(reads, writes);
            assert_eq!((traffic.mix.as_str(), traffic.counted), (mix, counted));
        }
    }

    #[test]
    fn rounded_shares_are_the_mix_of_fewest_lines() {
        for (percent, mix) in [
            (100.0, "1:0"),
            (50.0, "0:1"),
            (67.0, "1:1"),
            (75.0, "2:1"),
            (80.0, "3:1"),
            (70.0, "4:3"),
            (52.0, "52% reads at memory"),
        ] {
            assert_eq!(Traffic::of_reads_at_memory(percent).mix, mix);
        }
        for (percent, mix) in [
            (100.0, "1:0"),
            (0.0, "0:1"),
            (50.0, "1:1"),
            (67.0, "2:1"),
            (12.0, "12% loads"),
        ] {
            assert_eq!(Traffic::of_loads(percent).mix, mix);
        }
        // One load and one store move two lines from memory and one line to memory.
        assert!((Traffic::of_loads(50.0).counted - 2.0 / 3.0).abs() < 1e-12);
        assert!((Traffic::of_loads(100.0).counted - 1.0).abs() < 1e-12);
    }

    #[test]
    fn traffic_that_no_machine_has_is_refused() {
        let mut curves = LoadedCurves::default();
        let traffic = Traffic::reads();
        for (gb_s, ns, part) in [
            (f64::NAN, 90.0, "bandwidth: NaN"),
            (-1.0, 90.0, "bandwidth: -1"),
            (225_000.0, 90.0, "are these MB/s"),
            (10.0, 0.0, "latency: 0"),
        ] {
            let error = curves.push(&traffic, gb_s, ns).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
        assert!(curves.0.is_empty());
        curves.push(&traffic, 0.0, 90.0).unwrap();
        assert!(curves.finish(&[]).is_err());
    }
}
