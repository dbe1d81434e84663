//! The other process of the tests: writes a run until it is killed or the disk is full, or reads one as
//! another user.
//!
//! `helper write PATH` prints a number for each flush. `helper read PATH` prints the number of samples and
//! whether the run is complete, or the error. `helper time PATH SAMPLES` prints how long it takes to write
//! and to read a run with this many samples, and its size.

use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use membound_run::{
    Access, Burst, Error, Frame, FrameId, Meta, Process, ProcessId, RunData, Sample, Site, SiteId,
    SiteKind, Stack, StackId, Thread, ThreadId, Writer,
};

/// Rows that come with each flush.
const ROWS: u32 = 300;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let result = match *args.as_slice() {
        ["write", path] => write(Path::new(path)),
        ["read", path] => read(Path::new(path)),
        ["time", path, samples] => time(Path::new(path), samples.parse().unwrap_or(1_000_000)),
        _ => return ExitCode::from(2),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(&error.to_string());
            ExitCode::from(3)
        }
    }
}

fn say(line: &str) {
    // The reader is gone if the test has failed.
    let _ = writeln!(std::io::stdout().lock(), "{line}");
}

fn write(path: &Path) -> Result<(), Error> {
    let mut writer = Writer::create(path, &Meta::default())?;
    writer.processes(ProcessId(0), &[Process::default()])?;
    for flush in 0.. {
        append(&mut writer, flush * ROWS)?;
        writer.flush()?;
        say(&flush.to_string());
    }
    Ok(())
}

/// Rows of every kind that grows, each referring to the last of the others.
fn append(writer: &mut Writer, first: u32) -> Result<(), Error> {
    let numbers = first..first + ROWS;
    let thread = ThreadId(first / ROWS);
    writer.threads(thread, &[some_thread(u64::from(first))])?;
    let frames: Vec<Frame> = numbers.clone().map(frame).collect();
    writer.frames(FrameId(first), &frames)?;
    let stacks: Vec<Stack> = numbers.clone().map(stack).collect();
    writer.stacks(StackId(first), &stacks)?;
    let sites: Vec<Site> = numbers.clone().map(site).collect();
    writer.sites(SiteId(first), &sites)?;
    let samples: Vec<Sample> = numbers.clone().map(|n| sample(n, thread, n)).collect();
    writer.samples(&samples)?;
    let accesses: Vec<Access> = numbers.clone().map(|n| access(n, thread, n)).collect();
    writer.accesses(&accesses)?;
    writer.bursts(&[Burst {
        from_ns: u64::from(first),
        to_ns: u64::from(first) + 1,
        thread,
        sites: numbers.map(SiteId).collect(),
        accesses: (0..ROWS as u16)
            .map(|site| (site, u64::from(site) * 64, site % 2 == 0))
            .collect(),
    }])
}

fn some_thread(start_ns: u64) -> Thread {
    Thread {
        process: ProcessId(0),
        tid: 1,
        name: "thread".to_owned(),
        start_ns,
        end_ns: None,
        cpu_ns: Some(start_ns),
    }
}

fn frame(number: u32) -> Frame {
    Frame {
        module: None,
        address: 0x5555_5555_0000 + u64::from(number) * 4,
    }
}

fn stack(number: u32) -> Stack {
    Stack {
        parent: number.checked_sub(1).map(StackId),
        frame: FrameId(number),
    }
}

fn site(number: u32) -> Site {
    Site {
        frame: FrameId(number),
        kind: SiteKind::Load,
        bytes: 8,
        text: "mov rax,[rax]".to_owned(),
        refused: None,
    }
}

fn sample(number: u32, thread: ThreadId, stack: u32) -> Sample {
    Sample {
        t_ns: u64::from(number) * 1_000_003,
        thread,
        cpu: Some((number % 2) as u16),
        stack: StackId(stack),
        weight_ns: 1_000_000,
        address: (!number.is_multiple_of(3)).then_some(0x7f00_0000_0000 + u64::from(number) * 4096),
        exact: number.is_multiple_of(2),
        object: None,
    }
}

fn access(number: u32, thread: ThreadId, site: u32) -> Access {
    Access {
        t_ns: u64::from(number) * 1_000_003,
        thread,
        site: SiteId(site),
        address: 0x7f00_0000_0000 + u64::from(number) * 64,
        ticks: Some(52 + number % 700),
        hit: Some(52),
        drain: None,
        store: false,
        object: None,
        cpu: Some(1),
        node: None,
    }
}

fn read(path: &Path) -> Result<(), Error> {
    let run = RunData::open(path)?;
    say(&format!(
        "{} samples, {}",
        run.samples.len(),
        if run.meta.complete {
            "complete"
        } else {
            "incomplete"
        }
    ));
    Ok(())
}

/// As a run of some minutes would be: few places, many samples, a flush now and then.
fn time(path: &Path, samples: u32) -> Result<(), Error> {
    const PLACES: u32 = 5000;
    let begun = Instant::now();
    let mut writer = Writer::create(path, &Meta::default())?;
    writer.processes(ProcessId(0), &[Process::default()])?;
    let threads: Vec<Thread> = (0..4).map(some_thread).collect();
    writer.threads(ThreadId(0), &threads)?;
    writer.frames(FrameId(0), &(0..PLACES).map(frame).collect::<Vec<_>>())?;
    writer.stacks(StackId(0), &(0..PLACES).map(stack).collect::<Vec<_>>())?;
    writer.sites(SiteId(0), &(0..PLACES).map(site).collect::<Vec<_>>())?;
    for first in (0..samples).step_by(1000) {
        let numbers = first..(first + 1000).min(samples);
        let place = |n: u32| n.wrapping_mul(2_654_435_761) % PLACES;
        let rows: Vec<Sample> = numbers
            .clone()
            .map(|n| sample(n, ThreadId(n % 4), place(n)))
            .collect();
        writer.samples(&rows)?;
        // The latency sampler sees about as much.
        let rows: Vec<Access> = numbers
            .map(|n| access(n, ThreadId(n % 4), place(n)))
            .collect();
        writer.accesses(&rows)?;
        writer.flush()?;
    }
    writer.finish(&Meta::default())?;
    let written = begun.elapsed();
    let begun = Instant::now();
    let run = RunData::open(path)?;
    let bytes = std::fs::metadata(path).map_or(0, |there| there.len());
    say(&format!(
        "{} samples and {} accesses: written in {written:.2?}, read in {:.2?}, {} MB",
        run.samples.len(),
        run.accesses.len(),
        begun.elapsed(),
        bytes / 1_000_000
    ));
    Ok(())
}
