//! Writes perf.data: recordings of processors that the testing machine does not have.

/// Byte order of numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Endian {
    /// Least significant byte first.
    Little,
    /// Most significant byte first.
    Big,
}

/// A buffer to which numbers are appended in one byte order.
#[derive(Clone, Debug)]
pub struct PerfBytes {
    endian: Endian,
    bytes: Vec<u8>,
}

impl PerfBytes {
    /// An empty buffer.
    #[must_use]
    pub const fn new(endian: Endian) -> Self {
        Self {
            endian,
            bytes: Vec::new(),
        }
    }

    /// Adds a number of 16 bits.
    #[must_use]
    pub fn u16(mut self, value: u16) -> Self {
        self.bytes.extend(match self.endian {
            Endian::Little => value.to_le_bytes(),
            Endian::Big => value.to_be_bytes(),
        });
        self
    }

    /// Adds a number of 32 bits.
    #[must_use]
    pub fn u32(mut self, value: u32) -> Self {
        self.bytes.extend(match self.endian {
            Endian::Little => value.to_le_bytes(),
            Endian::Big => value.to_be_bytes(),
        });
        self
    }

    /// Adds a number of 64 bits.
    #[must_use]
    pub fn u64(mut self, value: u64) -> Self {
        self.bytes.extend(match self.endian {
            Endian::Little => value.to_le_bytes(),
            Endian::Big => value.to_be_bytes(),
        });
        self
    }

    /// Adds numbers of 64 bits.
    #[must_use]
    pub fn words(self, values: &[u64]) -> Self {
        values.iter().fold(self, |bytes, value| bytes.u64(*value))
    }

    /// Adds bytes as they are.
    #[must_use]
    pub fn raw(mut self, bytes: &[u8]) -> Self {
        self.bytes.extend(bytes);
        self
    }

    /// Adds text with a final zero, padded to a multiple of eight bytes.
    #[must_use]
    pub fn text(mut self, text: &str) -> Self {
        let length = (text.len() + 1).next_multiple_of(8);
        self.bytes.extend(text.as_bytes());
        self.bytes.resize(self.bytes.len() + length - text.len(), 0);
        self
    }

    /// Adds text with its padded length before it, as headers have it.
    #[must_use]
    pub fn string(self, text: &str) -> Self {
        let length = (text.len() + 1).next_multiple_of(64);
        let mut padded = text.as_bytes().to_vec();
        padded.resize(length, 0);
        self.u32(u32::try_from(length).unwrap_or(u32::MAX))
            .raw(&padded)
    }

    /// All bytes written so far.
    #[must_use]
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }
}

/// A recorded event.
#[derive(Clone, Debug)]
pub struct PerfEvent {
    /// Name of the event; if empty, the file does not name it.
    pub name: &'static str,
    /// `perf_event_attr.type`.
    pub kind: u32,
    /// `perf_event_attr.config`.
    pub config: u64,
    /// Sampling period: events between two samples.
    pub period: u64,
    /// `perf_event_attr.sample_type`: the fields that samples have.
    pub sample_type: u64,
    /// `perf_event_attr.sample_regs_user`: registers of the program in samples.
    pub user_registers: u64,
    /// `precise_ip`, 0 to 3: how exact the address of the instruction is.
    pub precise: u64,
    /// Bytes by which the attributes are longer than the current `struct perf_event_attr`.
    pub longer_by: usize,
    /// Identifiers of the event in samples.
    pub ids: Vec<u64>,
}

/// Fields that samples have: a few bits of `sample_type`.
pub mod sample_type {
    /// Address of the instruction.
    pub const IP: u64 = 1;
    /// Numbers of process and thread.
    pub const TID: u64 = 1 << 1;
    /// Time of the sample.
    pub const TIME: u64 = 1 << 2;
    /// Address of the data.
    pub const ADDR: u64 = 1 << 3;
    /// Call chain of the sample.
    pub const CALLCHAIN: u64 = 1 << 5;
    /// Number of the CPU.
    pub const CPU: u64 = 1 << 7;
    /// Period of the sample.
    pub const PERIOD: u64 = 1 << 8;
    /// Raw data of the PMU.
    pub const RAW: u64 = 1 << 10;
    /// Latency, as the sample's weight.
    pub const WEIGHT: u64 = 1 << 14;
    /// Cache or memory that served the data.
    pub const DATA_SRC: u64 = 1 << 15;
    /// Identifier at the beginning of the sample.
    pub const IDENTIFIER: u64 = 1 << 16;
    /// Physical address of the data.
    pub const PHYS_ADDR: u64 = 1 << 19;
}

impl Default for PerfEvent {
    /// cpu-clock every millisecond.
    fn default() -> Self {
        use sample_type::{CPU, IDENTIFIER, IP, PERIOD, TID, TIME};
        Self {
            name: "cpu-clock",
            kind: 1,
            config: 0,
            period: 1_000_000,
            sample_type: IDENTIFIER | IP | TID | TIME | CPU | PERIOD,
            user_registers: 0,
            precise: 0,
            longer_by: 0,
            ids: vec![1],
        }
    }
}

/// Bytes of the current `struct perf_event_attr`.
const ATTR: usize = 136;

impl PerfEvent {
    fn attr(&self, endian: Endian) -> Vec<u8> {
        /// `sample_id_all`.
        const SAMPLE_ID_ALL: u32 = 18;
        const PRECISE: u32 = 15;
        let size = ATTR + self.longer_by;
        let flags = match endian {
            Endian::Little => 1 << SAMPLE_ID_ALL | self.precise << PRECISE,
            Endian::Big => 1 << (63 - SAMPLE_ID_ALL) | self.precise << (62 - PRECISE),
        };
        let mut bytes = PerfBytes::new(endian)
            .u32(self.kind)
            .u32(u32::try_from(size).unwrap_or(u32::MAX))
            .words(&[self.config, self.period, self.sample_type, 0, flags])
            .words(&[0, 0, 0, 0, self.user_registers])
            .into_bytes();
        // The additional bytes belong to a future version that sets bits there.
        bytes.resize(ATTR, 0);
        bytes.resize(size, 0xa5);
        bytes
    }
}

/// A recording: events, headers and records.
#[derive(Clone, Debug)]
pub struct PerfDataFile {
    endian: Endian,
    events: Vec<PerfEvent>,
    headers: Vec<(u32, Vec<u8>)>,
    records: Vec<u8>,
}

impl PerfDataFile {
    /// A recording without records.
    #[must_use]
    pub const fn new(endian: Endian) -> Self {
        Self {
            endian,
            events: Vec::new(),
            headers: Vec::new(),
            records: Vec::new(),
        }
    }

    /// Adds an event.
    #[must_use]
    pub fn event(mut self, event: PerfEvent) -> Self {
        self.events.push(event);
        self
    }

    /// Adds a header. They have to come in the order of their numbers.
    #[must_use]
    pub fn header(mut self, number: u32, bytes: Vec<u8>) -> Self {
        self.headers.push((number, bytes));
        self
    }

    /// Adds a header that is text.
    #[must_use]
    pub fn text_header(self, number: u32, text: &str) -> Self {
        let bytes = self.bytes().string(text).into_bytes();
        self.header(number, bytes)
    }

    /// Adds the header that maps the numbers of PMUs to their names.
    #[must_use]
    pub fn units(self, units: &[(u32, &str)]) -> Self {
        let count = u32::try_from(units.len()).unwrap_or(u32::MAX);
        let bytes = units.iter().fold(self.bytes().u32(count), |bytes, unit| {
            bytes.u32(unit.0).string(unit.1)
        });
        self.header(16, bytes.into_bytes())
    }

    /// Bytes in the order of this file.
    #[must_use]
    pub const fn bytes(&self) -> PerfBytes {
        PerfBytes::new(self.endian)
    }

    /// Adds a record, and after it `behind`, which its length does not count.
    #[must_use]
    pub fn record(mut self, number: u32, misc: u16, body: &[u8], behind: &[u8]) -> Self {
        let size = u16::try_from(body.len() + 8).unwrap_or(u16::MAX);
        let record = self.bytes().u32(number).u16(misc).u16(size).raw(body);
        self.records.extend(record.raw(behind).into_bytes());
        self
    }

    /// Adds a sample taken in user mode.
    #[must_use]
    pub fn sample(self, body: PerfBytes) -> Self {
        self.record(9, 2, &body.into_bytes(), &[])
    }

    /// Adds a record of a process at the time `t_ns`, for events with the default's fields.
    #[must_use]
    pub fn told(self, number: u32, misc: u16, body: PerfBytes, t_ns: u64) -> Self {
        let body = body.u64(0).words(&[t_ns, 0, 1]);
        self.record(number, misc, &body.into_bytes(), &[])
    }

    /// The recording as `perf record -o FILE` writes it.
    #[must_use]
    pub fn file(&self) -> Vec<u8> {
        const HEADER: usize = 104;
        let attr_size = self.events.iter().map(|event| ATTR + event.longer_by);
        let attr_size = attr_size.max().unwrap_or(ATTR);
        let mut ids = self.bytes();
        let mut attrs = self.bytes();
        let mut at = HEADER;
        for event in &self.events {
            let mut attr = event.attr(self.endian);
            attr.resize(attr_size, 0);
            attrs = attrs
                .raw(&attr)
                .words(&[at as u64, event.ids.len() as u64 * 8]);
            ids = ids.words(&event.ids);
            at += event.ids.len() * 8;
        }
        let (ids, attrs) = (ids.into_bytes(), attrs.into_bytes());
        let data = at + attrs.len();
        let mut features = [0_u64; 4];
        for (number, _) in &self.headers {
            features[*number as usize / 64] |= 1 << (number % 64);
        }
        let mut behind = data + self.records.len() + 16 * self.headers.len();
        let mut table = self.bytes();
        let mut bodies = Vec::new();
        for (_, body) in &self.headers {
            table = table.words(&[behind as u64, body.len() as u64]);
            behind += body.len();
            bodies.extend(body);
        }
        let magic: &[u8; 8] = match self.endian {
            Endian::Little => b"PERFILE2",
            Endian::Big => b"2ELIFREP",
        };
        self.bytes()
            .raw(magic)
            .words(&[HEADER as u64, attr_size as u64 + 16])
            .words(&[at as u64, attrs.len() as u64])
            .words(&[data as u64, self.records.len() as u64])
            .words(&[0, 0])
            .words(&features)
            .raw(&ids)
            .raw(&attrs)
            .raw(&self.records)
            .raw(&table.into_bytes())
            .raw(&bodies)
            .into_bytes()
    }

    /// The recording as `perf record -o -` writes it.
    #[must_use]
    pub fn pipe(&self) -> Vec<u8> {
        let magic: &[u8; 8] = match self.endian {
            Endian::Little => b"PERFILE2",
            Endian::Big => b"2ELIFREP",
        };
        let mut records = Self::new(self.endian);
        for (number, body) in &self.headers {
            let body = self.bytes().u64(u64::from(*number)).raw(body);
            records = records.record(80, 0, &body.into_bytes(), &[]);
        }
        for event in &self.events {
            let attr = self.bytes().raw(&event.attr(self.endian)).words(&event.ids);
            records = records.record(64, 0, &attr.into_bytes(), &[]);
            if let Some(id) = event.ids.first().filter(|_| !event.name.is_empty()) {
                let name = self.bytes().words(&[2, *id]).text(event.name);
                records = records.record(78, 0, &name.into_bytes(), &[]);
            }
        }
        self.bytes()
            .raw(magic)
            .u64(16)
            .raw(&records.records)
            .raw(&self.records)
            .into_bytes()
    }

    /// Adds the header that describes the events; headers with numbers below 12 come before it.
    #[must_use]
    pub fn named_events(self) -> Self {
        let count = u32::try_from(self.events.len()).unwrap_or(u32::MAX);
        let longest = self.events.iter().map(|event| event.longer_by).max();
        let size = ATTR + longest.unwrap_or(0);
        let mut bytes = self
            .bytes()
            .u32(count)
            .u32(u32::try_from(size).unwrap_or(0));
        for event in &self.events {
            let mut attr = event.attr(self.endian);
            attr.resize(size, 0);
            let ids = u32::try_from(event.ids.len()).unwrap_or(u32::MAX);
            bytes = bytes
                .raw(&attr)
                .u32(ids)
                .string(event.name)
                .words(&event.ids);
        }
        self.header(12, bytes.into_bytes())
    }
}

/// Recordings of memory accesses as processors of three makers make them: names and files.
#[must_use]
pub fn memory_recordings() -> Vec<(&'static str, PerfDataFile)> {
    vec![
        ("pebs", pebs(Endian::Little)),
        ("pebs-big", pebs(Endian::Big)),
        ("ibs", ibs()),
        ("spe", spe()),
    ]
}

/// A process with one mapping of `/opt/memory/program`, code from 0x401000 on.
fn with_program(file: PerfDataFile) -> PerfDataFile {
    let comm = file.bytes().u32(40).u32(41).text("program");
    let map = file
        .bytes()
        .u32(40)
        .u32(41)
        .words(&[0x40_1000, 0x1000, 0x1000]);
    let map = map
        .words(&[0, 0, 0])
        .u32(5)
        .u32(2)
        .text("/opt/memory/program");
    file.told(3, 1 << 13, comm, 1000).told(10, 2, map, 1001)
}

/// Loads and stores by PEBS beside cpu-clock, as `perf mem record` on an Intel processor.
fn pebs(endian: Endian) -> PerfDataFile {
    use sample_type::{ADDR, CPU, DATA_SRC, IDENTIFIER, IP, PERIOD, PHYS_ADDR, TID, TIME, WEIGHT};
    let common = IDENTIFIER | IP | TID | TIME | CPU | PERIOD;
    let memory = |name, config, id| PerfEvent {
        name,
        kind: 4,
        config,
        period: 1000,
        precise: 3,
        sample_type: common | ADDR | WEIGHT | DATA_SRC | PHYS_ADDR,
        ids: vec![id],
        ..PerfEvent::default()
    };
    let file = PerfDataFile::new(endian)
        .event(PerfEvent::default())
        .event(memory("cpu/mem-loads,ldlat=30/P", 0x1cd, 2))
        .event(memory("cpu/mem-stores/P", 0x82d0, 3))
        .text_header(3, "intel-box")
        .text_header(6, "x86_64")
        .text_header(9, "GenuineIntel,6,85,7")
        .named_events()
        .units(&[(4, "cpu"), (1, "software")]);
    let mut file = with_program(file);
    for number in 0..10_u64 {
        let clock = file
            .bytes()
            .words(&[1, 0x40_1010])
            .u32(40)
            .u32(41)
            .u64(2000 + number * 1_000_000)
            .u32(1)
            .u32(0)
            .u64(1_000_000);
        file = file.sample(clock);
    }
    // Local memory, third cache with a changed line in another core, first cache.
    const DRAM: u64 = 2 | 0x82 << 5 | 2 << 19 | 0x24 << 26 | 0xd << 33;
    const CHANGED: u64 = 2 | 0x42 << 5 | 0x10 << 19 | 0x1a << 26 | 3 << 33;
    const STORED: u64 = 4 | 0x0a << 5 | 0x1a << 26 | 1 << 33;
    let accesses = [
        (2, 0x40_1020, 0x7000_0040, DRAM, 350),
        (2, 0x40_1020, 0x7000_0080, DRAM, 250),
        (2, 0x40_1024, 0x7000_1000, CHANGED, 120),
        (3, 0x40_1030, 0x7000_1008, STORED, 0),
    ];
    for (number, (id, ip, address, source, weight)) in accesses.into_iter().enumerate() {
        let sample = file
            .bytes()
            .words(&[id, ip])
            .u32(40)
            .u32(41)
            .words(&[3000 + number as u64, address])
            .u32(1)
            .u32(0)
            .words(&[1000, weight, source, address & 0xffff]);
        file = file.record(9, 2 | 1 << 14, &sample.into_bytes(), &[]);
    }
    file
}

/// Ops by IBS, raw, as `perf record -e ibs_op// -R` on an AMD processor.
fn ibs() -> PerfDataFile {
    use sample_type::{IDENTIFIER, IP, PERIOD, RAW, TID, TIME};
    let file = PerfDataFile::new(Endian::Little)
        .event(PerfEvent {
            name: "ibs_op//",
            kind: 11,
            period: 100_000,
            sample_type: IDENTIFIER | IP | TID | TIME | PERIOD | RAW,
            ..PerfEvent::default()
        })
        .text_header(3, "amd-box")
        .text_header(6, "x86_64")
        .text_header(9, "AuthenticAMD,25,17,1")
        .named_events()
        .units(&[(1, "software"), (11, "ibs_op")]);
    const LOAD: u64 = 1;
    const ADDRESSES: u64 = 3 << 17;
    const FAR: u64 = 1 << 7 | 1 << 20;
    const ZEN_4: u32 = 1 << 11;
    let ops = [
        (3, LOAD | FAR | ADDRESSES | 400 << 32),
        (1, LOAD | FAR | ADDRESSES | 60 << 32),
        (0, LOAD | ADDRESSES),
        // No access.
        (0, 0),
    ];
    let mut file = file;
    for (number, (source, data3)) in ops.into_iter().enumerate() {
        let number = number as u64;
        let sample = file
            .bytes()
            .words(&[1, 0x40_1000 + number])
            .u32(40)
            .u32(41)
            .words(&[5000 + number, 100_000])
            .u32(4 + 7 * 8)
            .u32(ZEN_4)
            .words(&[
                0,
                0x40_2000 + number,
                0,
                source,
                data3,
                0x7000 + number,
                0x8000,
            ]);
        file = file.sample(sample);
    }
    file
}

/// Operations by SPE on a Neoverse N1, as `perf record -e arm_spe//`.
fn spe() -> PerfDataFile {
    use sample_type::{IDENTIFIER, IP, TID, TIME};
    let file = PerfDataFile::new(Endian::Little)
        .event(PerfEvent {
            name: "arm_spe_0/load_filter=1,store_filter=1/",
            kind: 9,
            period: 1024,
            sample_type: IDENTIFIER | IP | TID | TIME,
            ..PerfEvent::default()
        })
        .text_header(3, "arm-box")
        .text_header(6, "aarch64")
        .text_header(9, "0x00000000413fd0c1")
        .named_events()
        .units(&[(1, "software"), (9, "arm_spe_0")]);
    let info = file.bytes().u32(4).u32(0).words(&[9, 0]).into_bytes();
    let conversion = file.bytes().words(&[0, 40, 1000, 0, 0, 0]).into_bytes();
    let operation = |source: u8, latency: u16, store: u8, ticks: u64| {
        let mut packets = vec![0xb0];
        packets.extend(0x40_1100_u64.to_le_bytes());
        packets.extend([0x49, store, 0x52, 0x16, 0x00, 0x98]);
        packets.extend(latency.to_le_bytes());
        packets.push(0xb2);
        packets.extend(0x7000_2000_u64.to_le_bytes());
        packets.extend([0x43, source, 0x71]);
        packets.extend(ticks.to_le_bytes());
        packets
    };
    let (first, second) = (operation(0x0e, 300, 0, 10), operation(0x00, 4, 0, 12));
    // After the address of its instruction, the third operation continues at the next multiple of
    // 16 bytes of the trace.
    let mut aligned = operation(0x0b, 40, 1, 14);
    let padding = 16 - (first.len() + second.len() + 11) % 16;
    aligned.splice(9..9, [0x23, 0x00].into_iter().chain(vec![0xff; padding]));
    let trace = [first, second, aligned, vec![0; 8]].concat();
    let header = file
        .bytes()
        .words(&[trace.len() as u64, 0, 0])
        .u32(0)
        .u32(41)
        .u32(u32::MAX)
        .u32(0)
        .into_bytes();
    file.record(70, 0, &info, &[])
        .record(79, 0, &conversion, &[])
        .record(71, 0, &header, &trace)
}
