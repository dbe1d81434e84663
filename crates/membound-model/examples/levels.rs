//! Measures how well levels are found in curves of random hierarchies with known levels.
//!
//! `cargo run --release -p membound-model --example levels -- [HIERARCHIES [WAY [SHOWN]]]` prints, for
//! every way in which accesses can leave a level and with or without outliers, the share
//! of curves with the right number of levels, the errors of sizes and latencies, and how
//! often the stated intervals contain the truth, and at most SHOWN wrong curves per row. The tests
//! use the same generator.

#![expect(dead_code, reason = "the tests use more of the generator")]
#![expect(clippy::print_stdout, reason = "what the example is for")]

#[path = "../tests/model/hierarchies.rs"]
mod hierarchies;
#[path = "../tests/model/scores.rs"]
mod scores;

use hierarchies::{ASKED, Disturbance, MissShape};
use scores::Score;

fn main() {
    let count = std::env::args()
        .nth(1)
        .and_then(|text| text.parse().ok())
        .unwrap_or(1000);
    let shown = std::env::args()
        .nth(3)
        .and_then(|text| text.parse().ok())
        .unwrap_or(0);
    println!(
        "{:<12} {:<9} {:>6}  {:>13}  {:>13}  {:>11}  {:>6}",
        "leaving", "outliers", "right", "size 50/90 %", "ns 50/90 %", "coverage", "ms"
    );
    let quiet = Disturbance {
        outliers: 0.0,
        ..ASKED
    };
    let both = Disturbance {
        both_ways: true,
        ..ASKED
    };
    for shape in [
        MissShape::Windows,
        MissShape::Step,
        MissShape::Cyclic,
        MissShape::Replaced,
        MissShape::Power,
        MissShape::Blurred,
        MissShape::LogBlurred,
        MissShape::Mixed,
    ] {
        let one = std::env::args().nth(2);
        if one.is_some_and(|one| one != format!("{shape:?}")) {
            continue;
        }
        for (name, disturbance) in [("2 % up", ASKED), ("none", quiet), ("2 % both", both)] {
            let started = std::time::Instant::now();
            let score = Score::of(shape, disturbance, count);
            let elapsed = started.elapsed().as_secs_f64() * 1e3 / f64::from(count);
            println!(
                "{:<12} {:<9} {:>5.1}%  {:>5.1}% {:>5.1}%  {:>5.2}% {:>5.2}%  {:>4.0}% {:>4.0}%  {:>6.2}",
                format!("{shape:?}"),
                name,
                100.0 * score.right_share(),
                100.0 * score.size_error(0.5),
                100.0 * score.size_error(0.9),
                100.0 * score.latency_error(0.5),
                100.0 * score.latency_error(0.9),
                100.0 * score.size_coverage(),
                100.0 * score.latency_coverage(),
                elapsed
            );
            for line in score.wrong.iter().take(shown) {
                println!("    {line}");
            }
        }
    }
}
