//! `membound lat_mem_rd`: lmbench's program of that name, with its arguments and its output.
//!
//! Document 004 runs it under `taskset` and `numactl`, and both are respected: the chase runs on the
//! permitted CPUs, and its memory lies where `numactl` placed it. The help lists the differences from the
//! original.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use membound_input::parse_size;
use membound_measure::latency::{self, LatencyConfig};
use membound_measure::{Effort, Error, Session};
use membound_platform::pages::Thp;
use membound_platform::{Root, numa};
use membound_types::{CpuId, NodePolicy, PageKind, Pattern, ThpState};

use crate::measure::interruptible;
use crate::output::{self, Usage};
use crate::progress::Bar;

/// The original's default stride, in bytes.
const USUAL_STRIDE: u64 = 64;
/// The original's smallest size, in bytes.
const SMALLEST_BYTES: u64 = 512;

/// Arguments of `lat_mem_rd`.
#[derive(Args, Debug)]
#[command(
    about = "Load latency over sizes and strides, as lmbench's lat_mem_rd measures and prints it",
    after_help = "Prints `\"stride=N`, then a size in MiB and nanoseconds a load on each line, and \
                  an empty line after each stride, on stdout (the original: stderr). The load's \
                  first clock cycle is left out, as in the original. taskset and numactl are \
                  followed. `membound measure latency` gives intervals, cycles and more orders."
)]
pub(crate) struct LatMemRdArgs {
    /// Number of copies that run at the same time, each on a CPU of its own.
    #[arg(short = 'P', value_name = "COPIES", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    copies: u32,
    /// Keep the processor busy for so many microseconds before each stride.
    #[arg(short = 'W', value_name = "MICROSECONDS", default_value_t = 0)]
    warm_up: u64,
    /// Measure each size so many times [default: until its interval is within 1 %, or time is up].
    #[arg(short = 'N', value_name = "REPETITIONS", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    repetitions: Option<u32>,
    /// Visit the lines in a random order, which no prefetcher follows.
    #[arg(short = 't')]
    thrash: bool,
    /// CPU of the first copy [default: the last permitted CPU].
    #[arg(long, value_name = "N", value_parser = crate::args::cpu)]
    cpu: Option<CpuId>,
    /// Memory node: local, interleave or a node's number [default: as numactl sets it].
    #[arg(long, value_name = "POLICY")]
    node: Option<NodePolicy>,
    /// Kind of pages: 4k, thp, 2m, 1g [default: those that malloc would get].
    #[arg(long, value_name = "KIND")]
    page: Option<PageKind>,
    /// Largest size in MB (2^20 bytes).
    #[arg(value_name = "SIZE_MB", value_parser = clap::value_parser!(u64).range(1..=1 << 24))]
    size_mb: u64,
    /// Distances between accessed elements in bytes, with k, m or g [default: 64].
    #[arg(value_name = "STRIDE", value_parser = parse_size)]
    strides: Vec<u64>,
}

/// Measures and prints stride by stride.
pub(crate) fn run(args: &LatMemRdArgs) -> anyhow::Result<ExitCode> {
    let cancel = interruptible()?;
    let root = Root::system();
    let bar = Bar::new();
    let session = Session::new(&root, args.cpu, Effort::Normal, &cancel, &bar)?;
    let strides = if args.strides.is_empty() {
        vec![USUAL_STRIDE]
    } else {
        args.strides.clone()
    };
    let configs: Vec<LatencyConfig> = strides
        .iter()
        .map(|stride| config(&root, args, *stride))
        .collect();
    for config in &configs {
        latency::check(&session, config).map_err(|error| match error {
            Error::Invalid(why) => Usage(why).into(),
            other => anyhow::Error::from(other),
        })?;
    }
    let timer = session.clock.describe(session.core_hz);
    let parts = configs.len() as f64;
    for (index, config) in configs.iter().enumerate() {
        bar.part(index as f64 / parts, 1.0 / parts);
        let measured = latency::measure(&session, config, &|_, _| Vec::new())?;
        let text = membound_report::lat_mem_rd::render(&measured, &timer)?;
        output::print(if args.strides.is_empty() {
            // Without strides the original writes no empty line.
            text.trim_end_matches('\n')
        } else {
            &text
        });
        if args.strides.is_empty() {
            output::print("\n");
        }
        if session.cancelled() {
            output::complain("interrupted: only the sizes above were measured");
            return Ok(ExitCode::FAILURE);
        }
    }
    bar.finish();
    Ok(ExitCode::SUCCESS)
}

/// The configuration of one stride over the original's sizes.
fn config(root: &Root, args: &LatMemRdArgs, stride: u64) -> LatencyConfig {
    let page = args.page.unwrap_or_else(|| page_of_malloc(root));
    let largest = args.size_mb << 20;
    let mut config = LatencyConfig::new(Effort::Normal, page);
    // The original's loop ends at once where an array has no second element.
    config.sizes = Some(sizes(largest).filter(|size| *size >= stride).collect());
    config.strides = vec![stride];
    config.patterns = vec![if args.thrash {
        Pattern::Random
    } else {
        Pattern::Stride
    }];
    config.threads = vec![args.copies];
    let node = args.node.or_else(numa::inherited);
    config.nodes = vec![node.unwrap_or(NodePolicy::LOCAL)];
    config.repetitions = args.repetitions;
    config.warm_up = Duration::from_micros(args.warm_up);
    config
}

/// The page kind that a large `malloc` gets: huge pages only if the system gives them without a request.
fn page_of_malloc(root: &Root) -> PageKind {
    match Thp::read(root).enabled.known() {
        Some(ThpState::Always) => PageKind::Thp,
        _ => PageKind::Base,
    }
}

/// The original's sizes up to `largest`: doubled up to 1 KiB, then in steps of 1 KiB, from 4 KiB on four per
/// octave.
fn sizes(largest: u64) -> impl Iterator<Item = u64> {
    std::iter::successors(Some(SMALLEST_BYTES), |&size| {
        Some(match size {
            0..1024 => size * 2,
            1024..4096 => size + 1024,
            _ => size + (1 << size.ilog2()) / 4,
        })
    })
    .take_while(move |size| *size <= largest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_the_originals() {
        let found: Vec<u64> = sizes(16 << 10).collect();
        let kib = [1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16].map(|kib| kib << 10);
        assert_eq!(found[0], 512);
        assert_eq!(found[1..], kib);
        // As its output for 2000 MB ends.
        assert_eq!(sizes(2000 << 20).last(), Some(1792 << 20));
    }
}
