//! Topologies: the included ones with the paper's Table 2, every rejection with its one-line message,
//! sizes and terms from the caller, levels from a profile, and text that is no topology.

mod adjust;
mod derive;
mod file;
mod fuzz;
mod rates;
mod refusals;

use membound_model::hierarchy::{bundled, parse_topology};
use membound_types::Topology;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// A valid topology in which every key occurs.
const SOUND: &str = r#"name = "bench"
description = "for tests"
sizes = "own"
bytes_per_operation = 8
[[component]]
symbol = "t_o"
name = "program"
line = 8
application = true
[[component]]
symbol = "t_s"
name = "cache"
line = "64"
per_line_ns = 4.5
constant_ns = 0
fixed = true
[[component]]
symbol = "t_m"
name = "memory"
line = 64
[[level]]
name = "L1"
kind = "cache"
size = "32K"
path = ["t_o"]
steepness = 1.5
[[level]]
name = "L2"
kind = "cache"
size = 4194304
path = ["t_o", "t_s"]
[[level]]
name = "DRAM"
kind = "memory"
size = "1.5G"
path = ["t_o", "2 t_s", "t_m"]
[[level]]
name = "remote"
kind = "memory"
path = ["t_o", "2 t_s", "3 t_m"]
[[tlb]]
symbol = "t_tlb"
entries = 64
page = "16K"
miss_ns = 1005
[page_table]
symbol = "t_pt"
start = "256M"
reference = "64M"
factor_ns = 8356
"#;

fn sound() -> Topology {
    parse_topology("bench.toml", SOUND).expect("a sound topology")
}

fn origin() -> Topology {
    bundled("origin2000").expect("a bundled topology")
}
