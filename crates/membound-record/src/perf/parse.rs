//! Parses records into events. A record begins with its type, flags and size; its fields depend on the
//! requested `sample_type`, in the kernel's fixed order.

use super::attr::{SAMPLE_ADDR, SAMPLE_CPU, SAMPLE_IP, SAMPLE_PERIOD, SAMPLE_TID, SAMPLE_TIME};
use super::registers::RegisterSet;
use super::{Mmap, Mode, Named, PerfEvent, RawSample};

const LOST: u32 = 2;
const COMM: u32 = 3;
const EXIT: u32 = 4;
const FORK: u32 = 7;
const READ: u32 = 8;
pub(crate) const SAMPLE: u32 = 9;
const MMAP2: u32 = 10;
const LOST_SAMPLES: u32 = 13;

const MISC_CPU_MODE: u16 = 7;
const MISC_KERNEL: u16 = 1;
const MISC_COMM_EXEC: u16 = 1 << 13;
const MISC_BUILD_ID: u16 = 1 << 14;

/// `abi` of a 64-bit program's registers.
const ABI_64: u64 = 2;
/// Bytes of a record's header.
const HEAD: usize = 8;

/// Which fields records have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    /// `sample_type` of the event.
    pub(crate) sample_type: u64,
    /// The reported registers.
    pub(crate) registers: &'static RegisterSet,
}

/// A record in a copy of a ring's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Record<'a> {
    pub(crate) kind: u32,
    misc: u16,
    body: &'a [u8],
}

impl<'a> Record<'a> {
    /// Splits off the first record. `None` when there is no complete one.
    pub(crate) fn next(bytes: &mut &'a [u8]) -> Option<Self> {
        let mut head = Cursor(bytes.get(..HEAD)?);
        let (kind, misc, size) = (head.u32()?, head.u16()?, usize::from(head.u16()?));
        let body = bytes.get(HEAD..size)?;
        *bytes = &bytes[size..];
        Some(Self { kind, misc, body })
    }
}

impl Layout {
    /// Time at which a record was written, in nanoseconds of the events' clock.
    pub(crate) fn time(self, record: &Record<'_>) -> Option<u64> {
        if record.kind == SAMPLE {
            let before = u64::from(self.has(SAMPLE_IP)) + u64::from(self.has(SAMPLE_TID));
            let at = before as usize * 8;
            return Cursor(record.body.get(at..)?).u64();
        }
        let behind = 8 * (1 + usize::from(self.has(SAMPLE_CPU)));
        let at = record.body.len().checked_sub(behind)?;
        Cursor(&record.body[at..]).u64()
    }

    /// The event of a record; `None` for a record that is not used, and for one that is shorter than it must
    /// be.
    pub(crate) fn event<'a>(self, record: &Record<'a>) -> Option<PerfEvent<'a>> {
        if record.kind == SAMPLE {
            return self.sample(record).map(PerfEvent::Sample);
        }
        let t_ns = self.time(record)?;
        // Fields that all records but samples end with.
        let trailer = (self.sample_type & (SAMPLE_TID | SAMPLE_TIME | SAMPLE_CPU)).count_ones();
        let body = record.body.len().checked_sub(trailer as usize * 8)?;
        let mut from = Cursor(&record.body[..body]);
        match record.kind {
            LOST => {
                from.u64()?;
                Some(PerfEvent::Lost(from.u64()?))
            }
            LOST_SAMPLES => Some(PerfEvent::Lost(from.u64()?)),
            COMM => Some(PerfEvent::Comm {
                pid: from.u32()?,
                tid: from.u32()?,
                name: from.name(),
                cause: if record.misc & MISC_COMM_EXEC != 0 {
                    Named::Exec
                } else {
                    Named::Set
                },
                t_ns,
            }),
            FORK | EXIT => {
                let (pid, parent_pid) = (from.u32()?, from.u32()?);
                let (tid, parent_tid) = (from.u32()?, from.u32()?);
                Some(if record.kind == FORK {
                    PerfEvent::Fork {
                        pid,
                        tid,
                        parent_pid,
                        parent_tid,
                        t_ns,
                    }
                } else {
                    PerfEvent::Exit { pid, tid, t_ns }
                })
            }
            READ => Some(PerfEvent::Counted {
                pid: from.u32()?,
                tid: from.u32()?,
                cpu_ns: from.u64()?,
                t_ns,
            }),
            MMAP2 => mapping(record.misc, &mut from, t_ns).map(PerfEvent::Mmap),
            _ => None,
        }
    }

    fn sample<'a>(self, record: &Record<'a>) -> Option<RawSample<'a>> {
        let mut from = Cursor(record.body);
        let ip = from.u64()?;
        let (pid, tid) = (from.u32()?, from.u32()?);
        let t_ns = from.u64()?;
        let address = if self.has(SAMPLE_ADDR) {
            from.u64()?
        } else {
            0
        };
        let (cpu, _) = (from.u32()?, from.u32()?);
        let period_ns = if self.has(SAMPLE_PERIOD) {
            from.u64()?
        } else {
            0
        };
        let abi = from.u64()?;
        let registers = if abi == 0 {
            None
        } else {
            let registers = self.registers.read(|| from.u64())?;
            (abi == ABI_64).then_some(registers)
        };
        let size = usize::try_from(from.u64()?).ok()?;
        let stack = if size == 0 {
            &[]
        } else {
            let room = from.bytes(size)?;
            let read = usize::try_from(from.u64()?).ok()?;
            room.get(..read)?
        };
        let mode = if record.misc & MISC_CPU_MODE == MISC_KERNEL {
            Mode::Kernel
        } else {
            Mode::User
        };
        Some(RawSample {
            ip,
            pid,
            tid,
            t_ns,
            cpu,
            period_ns,
            mode,
            address,
            registers,
            stack,
        })
    }

    const fn has(self, field: u64) -> bool {
        self.sample_type & field != 0
    }
}

fn mapping<'a>(misc: u16, from: &mut Cursor<'a>, t_ns: u64) -> Option<Mmap<'a>> {
    let (pid, tid) = (from.u32()?, from.u32()?);
    let (start, length, offset) = (from.u64()?, from.u64()?, from.u64()?);
    // Either a build-id with its length before it, or the file's device and inode.
    let file = from.bytes(24)?;
    let build_id = if misc & MISC_BUILD_ID != 0 {
        Some(file.get(4..4 + usize::from(file[0]))?)
    } else {
        None
    };
    let _protection_and_flags = from.u64()?;
    Some(Mmap {
        pid,
        tid,
        start,
        length,
        offset,
        path: from.name(),
        build_id,
        t_ns,
    })
}

/// Reads fields from the front of a slice.
struct Cursor<'a>(&'a [u8]);

impl<'a> Cursor<'a> {
    fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*taken)
    }

    fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_ne_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_ne_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_ne_bytes)
    }

    /// Text up to a zero byte; the kernel pads it with more zeros.
    fn name(&mut self) -> &'a [u8] {
        let end = self.0.iter().position(|&byte| byte == 0);
        &self.0[..end.unwrap_or(self.0.len())]
    }
}

#[cfg(test)]
mod tests {
    use super::super::attr::Attr;
    use super::super::{Breakpoint, Config};
    use super::*;

    /// Builds records as the kernel writes them.
    #[derive(Default)]
    struct Bytes(Vec<u8>);

    impl Bytes {
        fn u32(mut self, value: u32) -> Self {
            self.0.extend(value.to_ne_bytes());
            self
        }

        fn u64(mut self, value: u64) -> Self {
            self.0.extend(value.to_ne_bytes());
            self
        }

        fn raw(mut self, bytes: &[u8]) -> Self {
            self.0.extend(bytes);
            self
        }

        /// Thread, time and CPU, which end all records but samples.
        fn trailer(self, t_ns: u64) -> Self {
            self.u32(7).u32(8).u64(t_ns).u32(3).u32(0)
        }

        fn record(self, kind: u32, misc: u16) -> Vec<u8> {
            let size = u16::try_from(self.0.len() + HEAD).unwrap();
            let mut record = kind.to_ne_bytes().to_vec();
            record.extend(misc.to_ne_bytes());
            record.extend(size.to_ne_bytes());
            record.extend(self.0);
            record
        }
    }

    fn layout() -> Layout {
        Layout {
            sample_type: Attr::clock(&Config::default()).sample_type,
            registers: RegisterSet::native_or_any(),
        }
    }

    /// This machine's registers, counted from 100.
    fn registers(bytes: Bytes) -> Bytes {
        let count = RegisterSet::native_or_any().mask.count_ones();
        (100..100 + u64::from(count)).fold(bytes, Bytes::u64)
    }

    /// A sample whose registers count from 100 and whose stack counts from 1.
    fn sample(abi: u64, room: u64, read: u64) -> Bytes {
        let mut bytes = Bytes::default()
            .u64(0x1234)
            .u32(7)
            .u32(8)
            .u64(555)
            .u32(3)
            .u32(0)
            .u64(1_000_000)
            .u64(abi);
        if abi != 0 {
            bytes = registers(bytes);
        }
        bytes = bytes.u64(room);
        if room > 0 {
            let stack: Vec<u8> = (1..=room).map(|byte| byte as u8).collect();
            bytes = bytes.raw(&stack).u64(read);
        }
        bytes
    }

    /// The event that a record is.
    fn parse(record: &[u8]) -> Option<PerfEvent<'_>> {
        let mut rest = record;
        let event = layout().event(&Record::next(&mut rest)?);
        assert!(rest.is_empty());
        event
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn a_sample_has_registers_by_their_numbers_in_instructions() {
        let record = sample(2, 16, 8).record(SAMPLE, 2);
        let Some(PerfEvent::Sample(sample)) = parse(&record) else {
            panic!("it is a sample");
        };
        let registers = sample.registers.unwrap();
        // The kernel's order: ax bx cx dx si di bp sp ip r8 …; ours: ax cx dx bx sp bp si di r8 …
        assert_eq!(
            registers.general[..8],
            [100, 102, 103, 101, 107, 106, 104, 105]
        );
        assert_eq!(
            registers.general[8..16],
            [109, 110, 111, 112, 113, 114, 115, 116]
        );
        assert_eq!(registers.ip, 108);
        assert_eq!(
            sample.stack,
            [1, 2, 3, 4, 5, 6, 7, 8],
            "as far as it was read"
        );
        assert_eq!((sample.pid, sample.tid, sample.t_ns), (7, 8, 555));
        assert_eq!((sample.cpu, sample.period_ns), (3, 1_000_000));
        assert_eq!(sample.mode, Mode::User);
    }

    #[test]
    fn samples_of_programs_without_these_registers_have_none() {
        for abi in [0, 1] {
            let record = sample(abi, 0, 0).record(SAMPLE, 1);
            let Some(PerfEvent::Sample(sample)) = parse(&record) else {
                panic!("it is a sample");
            };
            assert_eq!((sample.registers, sample.mode), (None, Mode::Kernel));
            assert!(sample.stack.is_empty());
        }
    }

    #[test]
    fn records_that_lie_about_their_contents_are_left_out() {
        let huge = sample(2, 0, 0);
        let cut = huge.0.len() - 8;
        let huge = Bytes(huge.0[..cut].to_vec());
        assert_eq!(parse(&huge.u64(u64::MAX).record(SAMPLE, 2)), None);
        assert_eq!(
            parse(&sample(2, 8, 9).record(SAMPLE, 2)),
            None,
            "more than its room"
        );
        assert_eq!(parse(&Bytes::default().u64(1).record(SAMPLE, 2)), None);
        assert_eq!(parse(&Bytes::default().u64(1).record(COMM, 0)), None);
        assert_eq!(parse(&Bytes::default().trailer(1).record(FORK, 0)), None);
        let long_id = Bytes::default().u32(1).u32(2).u64(3).u64(4).u64(5);
        let long_id = long_id.raw(&[21; 24]).u64(0).trailer(1);
        assert_eq!(parse(&long_id.record(MMAP2, MISC_BUILD_ID)), None);
    }

    #[test]
    fn cutting_ends_at_what_is_no_whole_record() {
        let whole = Bytes::default().u64(9).record(99, 0);
        for size in [0, 7, 17, u16::MAX] {
            let mut bytes = whole.clone();
            let mut broken = whole.clone();
            broken[6..8].copy_from_slice(&size.to_ne_bytes());
            bytes.extend(broken);
            let mut rest = bytes.as_slice();
            assert!(Record::next(&mut rest).is_some());
            assert_eq!(Record::next(&mut rest), None, "{size}");
        }
        assert_eq!(Record::next(&mut &whole[..7]), None);
    }

    #[test]
    fn what_processes_do_is_told() {
        let fork = Bytes::default().u32(2).u32(1).u32(4).u32(3).u64(0);
        assert_eq!(
            parse(&fork.trailer(9).record(FORK, 0)),
            Some(PerfEvent::Fork {
                pid: 2,
                tid: 4,
                parent_pid: 1,
                parent_tid: 3,
                t_ns: 9
            })
        );
        let exit = Bytes::default().u32(2).u32(1).u32(4).u32(3).u64(0);
        assert_eq!(
            parse(&exit.trailer(9).record(EXIT, 0)),
            Some(PerfEvent::Exit {
                pid: 2,
                tid: 4,
                t_ns: 9
            })
        );
        let comm = Bytes::default().u32(2).u32(4).raw(b"name\0\0\0\0");
        assert_eq!(
            parse(&comm.trailer(9).record(COMM, MISC_COMM_EXEC)),
            Some(PerfEvent::Comm {
                pid: 2,
                tid: 4,
                name: b"name",
                cause: Named::Exec,
                t_ns: 9
            })
        );
        let read = Bytes::default().u32(2).u32(4).u64(77);
        assert_eq!(
            parse(&read.trailer(9).record(READ, 0)),
            Some(PerfEvent::Counted {
                pid: 2,
                tid: 4,
                cpu_ns: 77,
                t_ns: 9
            })
        );
        let lost = Bytes::default().u64(1).u64(5).trailer(9).record(LOST, 0);
        assert_eq!(parse(&lost), Some(PerfEvent::Lost(5)));
        let lost = Bytes::default().u64(6).trailer(9).record(LOST_SAMPLES, 0);
        assert_eq!(parse(&lost), Some(PerfEvent::Lost(6)));
        let unknown = Bytes::default().u64(6).trailer(9).record(77, 0);
        assert_eq!(parse(&unknown), None);
    }

    #[test]
    fn a_mapping_has_its_files_build_id_where_the_kernel_says_so() {
        let mut file = [0; 24];
        file[0] = 3;
        file[4..7].copy_from_slice(&[0xab, 0xcd, 0xef]);
        let body = || {
            let body = Bytes::default()
                .u32(2)
                .u32(4)
                .u64(0x1000)
                .u64(0x2000)
                .u64(0x3000);
            body.raw(&file).u32(5).u32(2).raw(b"/lib/x\0\0").trailer(9)
        };
        for (misc, build_id) in [(MISC_BUILD_ID, Some(&file[4..7])), (0, None)] {
            let record = body().record(MMAP2, misc);
            let Some(PerfEvent::Mmap(map)) = parse(&record) else {
                panic!("it is a mapping");
            };
            assert_eq!(
                (map.start, map.length, map.offset),
                (0x1000, 0x2000, 0x3000)
            );
            assert_eq!((map.path, map.build_id), (b"/lib/x".as_slice(), build_id));
        }
    }

    #[test]
    fn a_breakpoint_says_what_it_watches() {
        let layout = Layout {
            sample_type: Attr::breakpoint(Breakpoint {
                address: 0x40,
                bytes: 8,
            })
            .sample_type,
            ..layout()
        };
        let bytes = Bytes::default().u64(0x1234).u32(7).u32(8).u64(555);
        let bytes = bytes.u64(0x40).u32(3).u32(0).u64(2);
        let bytes = registers(bytes);
        let record = bytes.u64(8).raw(&[1; 8]).u64(4).record(SAMPLE, 2);
        let record = Record::next(&mut record.as_slice()).unwrap();
        let Some(PerfEvent::Sample(sample)) = layout.event(&record) else {
            panic!("it is a sample");
        };
        assert_eq!((sample.pid, sample.tid, sample.t_ns), (7, 8, 555));
        assert_eq!((sample.address, sample.cpu, sample.period_ns), (0x40, 3, 0));
        assert!(sample.registers.is_some());
        assert_eq!(sample.stack, [1; 4]);
    }
}
