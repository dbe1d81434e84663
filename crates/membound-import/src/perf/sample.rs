//! Parses samples: fields in the order of `PERF_RECORD_SAMPLE` in `linux/perf_event.h`.

use super::attr::{Attr, read_format, sample_type};
use super::event::Event;
use crate::bytes::{ByteOrder, Cursor, Words};
use crate::{MemoryAccess, Operation, Sampler, data_src, ibs};

/// What a CPU was executing when it was sampled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Not known.
    Unknown,
    /// The kernel.
    Kernel,
    /// The program.
    User,
    /// A hypervisor.
    Hypervisor,
    /// A virtual machine's kernel.
    GuestKernel,
    /// A program in a virtual machine.
    GuestUser,
}

impl Mode {
    pub(super) const fn of(misc: u16) -> Self {
        match misc & 7 {
            1 => Self::Kernel,
            2 => Self::User,
            3 => Self::Hypervisor,
            4 => Self::GuestKernel,
            5 => Self::GuestUser,
            _ => Self::Unknown,
        }
    }

    /// True if the program itself was running.
    #[must_use]
    pub const fn is_user(self) -> bool {
        matches!(self, Self::User | Self::GuestUser)
    }
}

/// Recorded registers of the program.
#[derive(Clone, Copy, Debug)]
pub struct Registers<'a> {
    /// True if the program was a 64-bit one.
    pub is_64_bit: bool,
    /// Set of recorded registers, by perf's register numbers.
    pub mask: u64,
    values: Words<'a>,
}

impl Registers<'_> {
    /// The value of the register with this number in perf; `None` if it was not recorded.
    #[must_use]
    pub fn get(&self, number: u32) -> Option<u64> {
        let bit = 1_u64.checked_shl(number)?;
        if self.mask & bit == 0 {
            return None;
        }
        let before = (self.mask & (bit - 1)).count_ones();
        self.values.get(before as usize)
    }
}

/// A sample.
#[derive(Clone, Copy, Debug)]
pub struct Sample<'a> {
    /// Time in nanoseconds of the recording's clock.
    pub t_ns: Option<u64>,
    /// Index of its event; `None` if the file does not say.
    pub event: Option<usize>,
    /// Number of the process.
    pub pid: Option<i32>,
    /// Number of the thread.
    pub tid: Option<i32>,
    /// Number of the CPU.
    pub cpu: Option<u32>,
    /// What the CPU was executing.
    pub mode: Mode,
    /// Address of the instruction.
    pub ip: Option<u64>,
    /// True if `ip` is the instruction that caused the event, not a later one.
    pub is_exact: bool,
    /// Number of events that the sample represents.
    pub period: Option<u64>,
    /// Call chain with context marks: see [`chain`].
    pub chain: Option<Words<'a>>,
    /// Registers of the program.
    pub registers: Option<Registers<'a>>,
    /// Bytes of the program's stack, from the stack pointer on.
    pub stack: &'a [u8],
    /// The sampled access.
    pub access: Option<MemoryAccess>,
}

/// Where the following addresses of a call chain belong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Context {
    /// The kernel.
    Kernel,
    /// The program.
    User,
    /// A hypervisor or a virtual machine.
    Other,
}

/// An element of a call chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The following addresses are in this context.
    Enter(Context),
    /// An address.
    Address(u64),
}

/// The elements of a call chain, innermost first.
pub fn chain<'a>(words: &'a Words<'a>) -> impl Iterator<Item = Step> + 'a {
    /// Numbers from here on are context marks.
    const FIRST_MARK: u64 = -4095_i64 as u64;
    const KERNEL: u64 = -128_i64 as u64;
    const USER: u64 = -512_i64 as u64;
    words.iter().map(|word| match word {
        KERNEL => Step::Enter(Context::Kernel),
        USER => Step::Enter(Context::User),
        word if word >= FIRST_MARK => Step::Enter(Context::Other),
        word => Step::Address(word),
    })
}

/// Reads the body of a sample; `None` where it is too short for its fields.
pub(super) fn read<'a>(
    body: &'a [u8],
    misc: u16,
    order: ByteOrder,
    attr: &Attr,
    event: &Event,
) -> Option<Sample<'a>> {
    /// Flag: `ip` is exact.
    const EXACT_IP: u16 = 1 << 14;
    let mut at = Cursor::new(body, order);
    let mut sample = Sample {
        t_ns: None,
        event: None,
        pid: None,
        tid: None,
        cpu: None,
        mode: Mode::of(misc),
        ip: None,
        is_exact: misc & EXACT_IP != 0,
        period: event.period,
        chain: None,
        registers: None,
        stack: &[],
        access: None,
    };
    let address = identity(&mut at, attr, &mut sample)?;
    if attr.has(sample_type::READ) {
        skip_read(&mut at, attr)?;
    }
    if attr.has(sample_type::CALLCHAIN) {
        let count = at.u64()?;
        sample.chain = Some(at.words(count)?);
    }
    let mut raw: &[u8] = &[];
    if attr.has(sample_type::RAW) {
        let length = at.u32()?;
        raw = at.take(u64::from(length))?;
    }
    if attr.has(sample_type::BRANCH_STACK) {
        skip_branches(&mut at, attr)?;
    }
    if attr.has(sample_type::REGS_USER) {
        sample.registers = registers(&mut at, attr.user_registers)?;
    }
    if attr.has(sample_type::STACK_USER) {
        sample.stack = stack(&mut at)?;
    }
    // `perf record -d` requests the data source of any event; for other events it is empty.
    let data_source =
        access(&mut at, attr)?.filter(|data_source| data_source.operation != Operation::Unknown);
    sample.access = match event.sampler {
        None => None,
        Some(Sampler::Ibs) if data_source.is_none() => op(raw, order, &mut sample),
        Some(_) => data_source,
    };
    if let Some(access) = &mut sample.access {
        // perf writes 0 for an unknown address.
        access.address = access.address.or(address.filter(|address| *address != 0));
    }
    Some(sample)
}

/// Decodes IBS registers: returns the access, and stores the exact instruction.
fn op(raw: &[u8], order: ByteOrder, sample: &mut Sample<'_>) -> Option<MemoryAccess> {
    let op = ibs::decode(raw, order)?;
    if let Some(ip) = op.ip.filter(|ip| *ip != 0) {
        sample.ip = Some(ip);
        sample.is_exact = true;
    }
    op.access
}

/// Parses the fields from the identifier to the period; returns the data address.
fn identity(at: &mut Cursor<'_>, attr: &Attr, sample: &mut Sample<'_>) -> Option<Option<u64>> {
    if attr.has(sample_type::IDENTIFIER) {
        at.skip(8)?;
    }
    if attr.has(sample_type::IP) {
        sample.ip = Some(at.u64()?);
    }
    if attr.has(sample_type::TID) {
        (sample.pid, sample.tid) = (Some(at.i32()?), Some(at.i32()?));
    }
    if attr.has(sample_type::TIME) {
        sample.t_ns = Some(at.u64()?);
    }
    let mut address = None;
    if attr.has(sample_type::ADDR) {
        address = Some(at.u64()?);
    }
    if attr.has(sample_type::ID) {
        at.skip(8)?;
    }
    if attr.has(sample_type::STREAM_ID) {
        at.skip(8)?;
    }
    if attr.has(sample_type::CPU) {
        sample.cpu = Some(at.u32()?);
        at.skip(4)?;
    }
    if attr.has(sample_type::PERIOD) {
        sample.period = Some(at.u64()?);
    }
    Some(address)
}

fn skip_read(at: &mut Cursor<'_>, attr: &Attr) -> Option<()> {
    let has = |bit: u64| u64::from(attr.read_format & bit != 0);
    let times = has(read_format::TIME_ENABLED) + has(read_format::TIME_RUNNING);
    let each = 1 + has(read_format::ID) + has(read_format::LOST);
    if has(read_format::GROUP) == 0 {
        return at.skip((times + each) * 8);
    }
    let count = at.u64()?;
    at.skip(times * 8)?;
    at.skip(count.checked_mul(each * 8)?)
}

fn skip_branches(at: &mut Cursor<'_>, attr: &Attr) -> Option<()> {
    /// Flag: an index precedes the branches.
    const HARDWARE_INDEX: u64 = 1 << 17;
    /// Flag: counters follow the branches.
    const COUNTERS: u64 = 1 << 19;
    let count = at.u64()?;
    if attr.branch_sample_type & HARDWARE_INDEX != 0 {
        at.skip(8)?;
    }
    at.skip(count.checked_mul(24)?)?;
    if attr.branch_sample_type & COUNTERS != 0 {
        at.skip(count.checked_mul(8)?)?;
    }
    Some(())
}

fn registers<'a>(at: &mut Cursor<'a>, mask: u64) -> Option<Option<Registers<'a>>> {
    /// `abi` of a 64-bit program; 0 means no registers.
    const ABI_64: u64 = 2;
    let abi = at.u64()?;
    if abi == 0 {
        return Some(None);
    }
    let values = at.words(u64::from(mask.count_ones()))?;
    Some(Some(Registers {
        is_64_bit: abi == ABI_64,
        mask,
        values,
    }))
}

fn stack<'a>(at: &mut Cursor<'a>) -> Option<&'a [u8]> {
    let size = at.u64()?;
    if size == 0 {
        return Some(&[]);
    }
    let bytes = at.take(size)?;
    let used = usize::try_from(at.u64()?).ok()?;
    Some(&bytes[..used.min(bytes.len())])
}

/// Parses weight, data source and physical address; the inner `None` means that the sample has neither weight
/// nor data source.
fn access(at: &mut Cursor<'_>, attr: &Attr) -> Option<Option<MemoryAccess>> {
    let mut weight = None;
    if attr.has(sample_type::WEIGHT) {
        weight = Some(u32::try_from(at.u64()?).unwrap_or(u32::MAX));
    } else if attr.has(sample_type::WEIGHT_STRUCT) {
        // Of the three numbers in the structure, the lower half is the latency.
        weight = Some(at.u64()? as u32);
    }
    let mut access = weight.map(|_| MemoryAccess::default());
    if attr.has(sample_type::DATA_SRC) {
        access = Some(data_src::decode(at.u64()?));
    }
    if attr.has(sample_type::TRANSACTION) {
        at.skip(8)?;
    }
    if attr.has(sample_type::REGS_INTR) {
        registers(at, attr.interrupt_registers)?;
    }
    let mut physical = None;
    if attr.has(sample_type::PHYS_ADDR) {
        physical = Some(at.u64()?).filter(|address| *address != 0);
    }
    Some(access.map(|access| MemoryAccess {
        // 0 means that the processor measures no latency.
        latency_cycles: weight.filter(|cycles| *cycles > 0),
        physical_address: physical,
        ..access
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{EventKind, Served};

    fn event(sampler: Option<Sampler>) -> Event {
        Event {
            name: "e".to_owned(),
            kind: EventKind::Other,
            period: Some(7),
            sampler,
        }
    }

    fn words(words: &[u64]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    fn sample<'a>(attr: &Attr, body: &'a [u8], sampler: Option<Sampler>) -> Option<Sample<'a>> {
        read(body, 2, ByteOrder::Little, attr, &event(sampler))
    }

    #[test]
    fn fields_that_are_not_used_are_stepped_over() {
        use sample_type::{BRANCH_STACK, DATA_SRC, IP, PHYS_ADDR, RAW, READ, REGS_INTR, WEIGHT};
        let attr = Attr {
            sample_type: IP | READ | RAW | BRANCH_STACK | WEIGHT | DATA_SRC | REGS_INTR | PHYS_ADDR,
            read_format: read_format::GROUP | read_format::ID | read_format::TIME_ENABLED,
            branch_sample_type: 1 << 17 | 1 << 19,
            interrupt_registers: 0b101,
            ..Attr::default()
        };
        let mut body = words(&[0x1234, 2, 99, 1, 2, 3, 4]);
        body.extend([4, 0, 0, 0, 9, 9, 9, 9]);
        body.extend(words(&[1, 0, 5, 5, 5, 6]));
        body.extend(words(&[321, 0x6810_0142, 2, 8, 9, 0x7000]));
        let found = sample(&attr, &body, Some(Sampler::Pebs)).unwrap();
        assert_eq!((found.ip, found.period), (Some(0x1234), Some(7)));
        assert_eq!(found.mode, Mode::User);
        let access = found.access.unwrap();
        assert_eq!(access.operation, Operation::Load);
        assert_eq!(access.served, Served::L1);
        assert_eq!(access.latency_cycles, Some(321));
        assert_eq!(access.physical_address, Some(0x7000));
        for length in 0..body.len() {
            assert!(
                sample(&attr, &body[..length], Some(Sampler::Pebs)).is_none(),
                "{length}"
            );
        }
    }

    #[test]
    fn latencies_of_a_weight_with_parts_are_the_lower_half() {
        let attr = Attr {
            sample_type: sample_type::WEIGHT_STRUCT | sample_type::DATA_SRC | sample_type::ADDR,
            ..Attr::default()
        };
        let body = words(&[0x7fff_0000, 0x0003_0002_0000_0064, 0x0000_001a_0000_0002]);
        let access = sample(&attr, &body, Some(Sampler::Pebs))
            .unwrap()
            .access
            .unwrap();
        assert_eq!(access.latency_cycles, Some(100));
        assert_eq!(access.address, Some(0x7fff_0000));
        assert_eq!(access.served, Served::Dram);
        assert_eq!(sample(&attr, &body, None).unwrap().access, None);
    }

    #[test]
    fn registers_and_stack_are_found_by_their_numbers() {
        let attr = Attr {
            sample_type: sample_type::REGS_USER | sample_type::STACK_USER,
            user_registers: 1 << 7 | 1 << 8 | 1 << 63,
            ..Attr::default()
        };
        let body = words(&[2, 70, 80, 63, 16, 1, 2, 8]);
        let found = sample(&attr, &body, None).unwrap();
        let registers = found.registers.unwrap();
        assert!(registers.is_64_bit);
        let values = [0, 7, 8, 63, 64].map(|number| registers.get(number));
        assert_eq!(values, [None, Some(70), Some(80), Some(63), None]);
        assert_eq!(found.stack.len(), 8);
        // Without registers, there is no stack.
        let found = sample(&attr, &body[56..], None);
        assert!(found.is_none());
        let none = words(&[0, 0]);
        assert!(sample(&attr, &none, None).unwrap().registers.is_none());
    }

    #[test]
    fn counts_without_end_are_refused() {
        for bits in [
            sample_type::CALLCHAIN,
            sample_type::BRANCH_STACK,
            sample_type::READ,
        ] {
            let attr = Attr {
                sample_type: bits,
                read_format: read_format::GROUP,
                ..Attr::default()
            };
            for count in [u64::MAX, u64::MAX / 8 + 2, 1 << 61] {
                assert!(sample(&attr, &words(&[count, 0, 0]), None).is_none());
            }
        }
    }

    #[test]
    fn marks_in_chains_give_the_mode_of_the_next_frames() {
        let attr = Attr {
            sample_type: sample_type::CALLCHAIN,
            ..Attr::default()
        };
        let marks = [-128_i64, 1, -512, 2, 3, -2048].map(|word| word as u64);
        let body = words(&[&[6], &marks[..]].concat());
        let found = sample(&attr, &body, None).unwrap().chain.unwrap();
        let steps: Vec<Step> = chain(&found).collect();
        assert_eq!(
            steps,
            [
                Step::Enter(Context::Kernel),
                Step::Address(1),
                Step::Enter(Context::User),
                Step::Address(2),
                Step::Address(3),
                Step::Enter(Context::Other),
            ]
        );
    }
}
