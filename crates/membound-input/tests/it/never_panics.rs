//! Any bytes give a result that keeps the invariants, or an error of one line.

use proptest::prelude::*;

use crate::invariants::checked;
use crate::samples::{self, files, latency, some_loads, some_windows, windows};

/// Pieces of every format, and extreme numbers.
const FRAGMENTS: &[&str] = &[
    "size_bytes",
    "ns",
    "window_bytes",
    "area_bytes",
    "seconds_per_window",
    "page",
    "cpu",
    "node",
    "stride_bytes",
    "disturbed",
    "init_cpu",
    ",",
    ";",
    "\t",
    " ",
    "\n",
    "\r\n",
    "\"",
    "#",
    "\u{feff}",
    "µ",
    "\u{2028}",
    "0",
    "1",
    "8",
    "64",
    "4096",
    "4k",
    "1m",
    "-1",
    "0.00049",
    "1.5",
    "1e-7",
    "1e999",
    "nan",
    "inf",
    "18446744073709551615",
    "18446744073709551616",
    "1732101034.123456",
    "\"stride=",
    "\"stride=64\n",
    "multichase",
    " -m ",
    "-m 4k",
    "-s",
    "nr_threads = 1\n",
    "total_memory = ",
    "stride = ",
    "chase = parallel2\n",
    "samples (",
    "avg=",
    "Intel(R) Memory Latency Checker",
    "Command line parameters: ",
    " -b",
    "mlc",
    "Using buffer size of ",
    "MiB",
    "Each iteration took ",
    " clocks (",
    " ns)",
    "Inject",
    "Delay",
    "--loaded_latency -W5\n",
    " 00100\t90.0\t1000.0\n",
    "read_pct_rounded",
    "rd_percentage",
    "bandwidth_mean",
    "latency_mean",
    "\"100\":[[1,90],[2,95]]",
    "Measuring idle latencies",
    "{",
    "}",
    "[",
    "]",
    ":",
    "\"schema_version\":1",
    "\"kind\":",
    "\"latency\"",
    "\"window\"",
    "\"machine\"",
    "\"model\"",
    "\"points\":",
    "\"elapsed_s\":1",
    "null",
    "true",
];

/// Documents that are mutated.
fn seeds() -> Vec<Vec<u8>> {
    let mut seeds = files();
    seeds.push(samples::json(&latency(some_loads())).into_bytes());
    seeds.push(samples::json(&windows(some_windows())).into_bytes());
    seeds
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn on_any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let _ = checked(&bytes);
    }

    #[test]
    fn on_text_made_of_pieces_of_the_formats(
        pieces in prop::collection::vec(prop::sample::select(FRAGMENTS), 0..60)
    ) {
        let _ = checked(pieces.concat().as_bytes());
    }

    #[test]
    fn on_files_with_bytes_changed_and_cut(
        seed in prop::sample::select(seeds()),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..8),
        end in any::<prop::sample::Index>(),
        cut in any::<bool>(),
    ) {
        let mut bytes = seed;
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if cut {
            bytes.truncate(end.index(bytes.len()));
        }
        let _ = checked(&bytes);
    }

    #[test]
    fn on_files_with_pieces_put_in(
        seed in prop::sample::select(seeds()),
        pieces in prop::collection::vec(
            (any::<prop::sample::Index>(), prop::sample::select(FRAGMENTS)), 1..6)
    ) {
        let mut bytes = seed;
        for (at, piece) in pieces {
            let at = at.index(bytes.len());
            bytes.splice(at..at, piece.bytes());
        }
        let _ = checked(&bytes);
    }
}
