//! Facts and permissions of a Linux machine, and controls that restore themselves.
//!
//! Everything that is read comes from sysfs, procfs, CPUID or a system call; every reader of a file
//! takes a [`Root`], so that it can be run on a tree made for a test. Changes (affinity, placement,
//! prefetchers) are undone by `Drop` or, where they outlive the process, by a guard process.
//!
//! Nothing is timed here: that is left to `membound-measure`.

pub mod affinity;
pub mod caches;
pub mod cgroup;
pub mod counters;
pub mod cpu;
pub mod cpu_time;
pub mod date;
pub mod dimm;
pub mod disturb;
pub mod doctor;
mod error;
pub mod frequency;
pub mod hypervisor;
pub mod kernel_file;
mod list;
mod machine;
pub mod memory;
pub mod msr;
pub mod numa;
pub mod output_file;
pub mod pages;
pub mod prefetcher;
mod root;
pub mod signal_masks;
pub mod sockets;
pub mod stat;
#[cfg(test)]
mod testing;
pub mod threads;
pub mod vmhost;

pub use error::Error;
pub use machine::machine_info;
pub use root::Root;
