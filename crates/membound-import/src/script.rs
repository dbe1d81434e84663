//! Reads the text of `perf script`: samples with their call chains, and names of addresses.
//!
//! Fields are in perf's order; which fields exist depends on the options of the one who printed them. Thread,
//! time and event are required. The text has no mappings, so addresses serve only to tell frames apart.

mod header;

use std::ops::Range;

use self::header::Header;
pub use self::header::ScriptFrame;
use crate::skipped::{Skipped, Tally};
use crate::{Error, EventKind, MemoryAccess, Sampler};

/// A sample as it was printed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScriptSample<'a> {
    /// Time in nanoseconds of the recording's clock.
    pub t_ns: u64,
    /// Name of the thread.
    pub name: &'a str,
    /// Number of the process, if it was printed.
    pub pid: Option<i32>,
    /// Number of the thread.
    pub tid: i32,
    /// Number of the CPU, if it was printed.
    pub cpu: Option<u32>,
    /// Number of events that the sample represents, if it was printed.
    pub period: Option<u64>,
    /// Name of the event.
    pub event: &'a str,
    /// The sampled access, if one was printed.
    pub access: Option<MemoryAccess>,
    frames: Range<usize>,
}

impl ScriptSample<'_> {
    /// Kind of the event, from its name.
    #[must_use]
    pub fn kind(&self) -> EventKind {
        let name = self.event.split(':').next().unwrap_or_default();
        match name {
            "cpu-clock" | "task-clock" => EventKind::CpuTime,
            _ if crate::perf::is_cycles(self.event) => EventKind::Cycles,
            _ => EventKind::Other,
        }
    }

    /// The unit that sampled the access, from the event's name.
    #[must_use]
    pub fn sampler(&self) -> Sampler {
        match self.event {
            event if event.starts_with("ibs_op") => Sampler::Ibs,
            event if event.starts_with("arm_spe") || is_of_spe(event) => Sampler::Spe,
            event if event.contains("mem-loads") || event.contains("mem-stores") => Sampler::Pebs,
            event if event.contains("mem_") => Sampler::Pebs,
            _ => Sampler::Other,
        }
    }
}

/// True for the names that perf gives to events decoded from an SPE trace.
fn is_of_spe(event: &str) -> bool {
    let name = event.split(':').next().unwrap_or_default();
    matches!(
        name,
        "memory"
            | "l1d-access"
            | "l1d-miss"
            | "llc-access"
            | "llc-miss"
            | "tlb-access"
            | "tlb-miss"
            | "remote-access"
            | "branch-miss"
    )
}

/// All samples of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Script<'a> {
    samples: Vec<ScriptSample<'a>>,
    frames: Vec<ScriptFrame<'a>>,
    skipped: Tally,
    host: Option<&'a str>,
}

/// Bytes at the beginning within which the first sample must be.
const LOOKED_AT: usize = 64 << 10;

/// True if `bytes` begin like text of `perf script`.
pub(crate) fn recognises(bytes: &[u8]) -> bool {
    let start = &bytes[..bytes.len().min(LOOKED_AT)];
    let text = match std::str::from_utf8(start) {
        Ok(text) => text,
        // The limit may cut a character in two.
        Err(error) if error.valid_up_to() + 4 > start.len() => {
            std::str::from_utf8(&start[..error.valid_up_to()]).unwrap_or_default()
        }
        Err(_) => return false,
    };
    let mut lines = text.lines().filter(|line| !is_comment(line));
    lines
        .find(|line| !line.trim().is_empty())
        .is_some_and(|line| Header::read(line).is_ok())
}

fn is_comment(line: &str) -> bool {
    line.starts_with('#')
}

impl<'a> Script<'a> {
    /// Reads a whole text.
    ///
    /// # Errors
    /// When a line is not one of `perf script`, or there is no sample.
    pub fn read(bytes: &'a [u8]) -> Result<Self, Error> {
        let text = std::str::from_utf8(bytes).map_err(|error| {
            let before = &bytes[..error.valid_up_to()];
            let lines = before.iter().filter(|byte| **byte == b'\n').count();
            Error::Line {
                line: lines as u64 + 1,
                problem: "is no text in UTF-8",
            }
        })?;
        let mut script = Self {
            samples: Vec::new(),
            frames: Vec::new(),
            skipped: Tally::default(),
            host: None,
        };
        // `Some(true)`: following frames belong to the last sample; `Some(false)`: to a skipped record.
        let mut is_open = None;
        for (number, line) in (1..).zip(text.lines()) {
            let refused = |problem| Error::Line {
                line: number,
                problem,
            };
            if let Some(comment) = line.strip_prefix('#') {
                let host = comment.trim_start().strip_prefix("hostname : ");
                script.host = host.map(str::trim).or(script.host);
            } else if line.trim().is_empty() {
                is_open = None;
            } else if line.starts_with('\t') {
                match is_open {
                    Some(true) => script.frame(line).map_err(refused)?,
                    Some(false) => {}
                    None => return Err(refused("is a frame of no sample")),
                }
            } else {
                let header = Header::read(line).map_err(refused)?;
                is_open = Some(script.sample(&header).map_err(refused)?);
            }
        }
        if script.samples.is_empty() {
            return Err(Error::NoSamples);
        }
        // perf prints in time order, but a file may contain several texts.
        script.samples.sort_by_key(|sample| sample.t_ns);
        Ok(script)
    }

    /// All samples, in time order.
    #[must_use]
    pub fn samples(&self) -> &[ScriptSample<'a>] {
        &self.samples
    }

    /// The call chain of a sample, innermost first.
    #[must_use]
    pub fn frames(&self, sample: &ScriptSample<'a>) -> &[ScriptFrame<'a>] {
        self.frames.get(sample.frames.clone()).unwrap_or_default()
    }

    /// Host name of the recording machine, if the header was printed.
    #[must_use]
    pub const fn host(&self) -> Option<&'a str> {
        self.host
    }

    /// Contents of the text that are not among the samples.
    #[must_use]
    pub fn skipped(&self) -> Vec<Skipped> {
        self.skipped.list()
    }

    /// Adds a sample; returns false for records that are no samples.
    fn sample(&mut self, header: &Header<'a>) -> Result<bool, &'static str> {
        if header.event.starts_with("PERF_RECORD_") {
            let what = "printed records that are no samples";
            self.skipped.add(what, 1);
            return Ok(false);
        }
        let at = self.frames.len();
        let rest = header::rest(header.rest)?;
        self.frames.extend(rest.frame);
        self.samples.push(ScriptSample {
            t_ns: header.t_ns,
            name: header.name,
            pid: header.pid,
            tid: header.tid,
            cpu: header.cpu,
            period: header.period,
            event: header.event,
            access: rest.access,
            frames: at..self.frames.len(),
        });
        Ok(true)
    }

    fn frame(&mut self, line: &'a str) -> Result<(), &'static str> {
        let frame = header::frame(line.trim()).ok_or("is no frame of a call chain")?;
        self.frames.push(frame);
        if let Some(sample) = self.samples.last_mut() {
            sample.frames.end = self.frames.len();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Operation, Served};

    const CHAINS: &str = "# hostname : box\n#\n\
        spin 32507  1103.640469:     250000 cpu-clock: \n\
        \t           1462a handle_amd+0xa (/usr/lib/ld.so)\n\
        \t               0 [unknown] ([unknown])\n\n\
        my prog 12/13 [001]     2.000000001:          1 cycles:P: \n\
        \tffffffff8158e7b7 filemap_map_pages+0x1d7 ([kernel.kallsyms])\n\
        \t            ac50 inner (inlined)\n\
        \t            ac50 std::vector<int, A>::f(int, int)+0x0 (/opt/a b/x)\n\n";

    #[test]
    fn chains_are_read_with_names_and_files() {
        let script = Script::read(CHAINS.as_bytes()).unwrap();
        assert_eq!(script.host(), Some("box"));
        let [second, first] = script.samples() else {
            panic!("two samples");
        };
        assert_eq!((first.name, first.pid, first.tid), ("spin", None, 32507));
        assert_eq!(
            (first.t_ns, first.period),
            (1_103_640_469_000, Some(250_000))
        );
        assert_eq!(first.kind(), EventKind::CpuTime);
        let frames = script.frames(first);
        assert_eq!(frames.len(), 2);
        assert_eq!(frames[0].function, Some("handle_amd"));
        assert_eq!((frames[0].address, frames[0].offset), (0x1462a, Some(10)));
        assert_eq!((frames[1].function, frames[1].file), (None, None));
        assert_eq!(
            (second.name, second.pid, second.tid),
            ("my prog", Some(12), 13)
        );
        assert_eq!((second.cpu, second.t_ns), (Some(1), 2_000_000_001));
        assert_eq!(
            (second.event, second.kind()),
            ("cycles:P", EventKind::Cycles)
        );
        let frames = script.frames(second);
        assert!(frames[0].is_kernel() && frames[1].is_inlined && !frames[2].is_kernel());
        assert_eq!(frames[2].function, Some("std::vector<int, A>::f(int, int)"));
        assert_eq!(frames[2].file, Some("/opt/a b/x"));
    }

    #[test]
    fn samples_in_one_line_are_read() {
        let text = "            spin 32613  1109.305610:     250000 cpu-clock:      \
                    7fca4c003645 handle_amd+0x25 (/usr/lib/ld.so)\n";
        let script = Script::read(text.as_bytes()).unwrap();
        let [sample] = script.samples() else {
            panic!("one sample");
        };
        let [frame] = script.frames(sample) else {
            panic!("one frame");
        };
        assert_eq!(
            (frame.address, frame.function),
            (0x7fca_4c00_3645, Some("handle_amd"))
        );
    }

    #[test]
    fn accesses_are_read_where_they_were_printed() {
        let text = "  a.out 7/8 [002] 1.5:  1 cpu/mem-loads,ldlat=30/P: ffff8c1a2b3c4d50 \
            68100142 |OP LOAD|LVL L1 hit|SNP None|TLB L1 or L2 hit|LCK No|BLK  N/A \
            57 55d0a1b2 main+0x12 (/bin/a.out)\n";
        let script = Script::read(text.as_bytes()).unwrap();
        let [sample] = script.samples() else {
            panic!("one sample");
        };
        let access = sample.access.unwrap();
        assert_eq!(access.operation, Operation::Load);
        assert_eq!(
            (access.served, access.latency_cycles),
            (Served::L1, Some(57))
        );
        assert_eq!(access.address, Some(0xffff_8c1a_2b3c_4d50));
        assert_eq!(script.frames(sample)[0].function, Some("main"));
        assert_eq!(sample.sampler(), Sampler::Pebs);
    }

    #[test]
    fn lines_of_something_else_are_named() {
        let check = |text: &str, line: u64| {
            let error = Script::read(text.as_bytes()).unwrap_err();
            assert!(
                matches!(error, Error::Line { line: found, .. } if found == line),
                "{error}"
            );
        };
        check("nonsense\n", 1);
        check(&format!("{CHAINS}\n\t 12 f (x)\n"), 13);
        check(
            &format!("{CHAINS}spin 1 2.0: 1 cpu-clock:\n\tzz f (x)\n"),
            13,
        );
        check("spin 1 99999999999999999999.0: 1 cpu-clock:\n", 1);
        assert_eq!(Script::read(b"# only a header\n"), Err(Error::NoSamples));
        assert!(matches!(
            Script::read(b"a\n\xff\xff\xff\xff\xff"),
            Err(Error::Line { line: 2, .. })
        ));
    }

    #[test]
    fn such_text_is_recognised() {
        assert!(recognises(CHAINS.as_bytes()));
        assert!(!recognises(b"{\"kind\": \"machine\"}"));
        assert!(!recognises(b"SQLite format 3\0"));
        assert!(!recognises(b""));
    }
}
