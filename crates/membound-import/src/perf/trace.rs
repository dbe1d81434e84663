//! Hardware traces: their kinds, and samples from those of Arm's SPE.

use super::about::About;
use super::sample::{Mode, Sample};
use crate::bytes::{ByteOrder, Cursor};
use crate::spe::{Sources, SpeRecord};

/// Converts times of the generic timer to the recording's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Conversion {
    shift: u32,
    multiplier: u64,
    zero: u64,
}

impl Conversion {
    /// Parses it from a record; `None` if the record is invalid.
    pub(super) fn read(body: &[u8], order: ByteOrder) -> Option<Self> {
        let mut at = Cursor::new(body, order);
        let shift = u32::try_from(at.u64()?).ok().filter(|shift| *shift < 64)?;
        Some(Self {
            shift,
            multiplier: at.u64()?,
            zero: at.u64()?,
        })
    }

    /// Converts a time to nanoseconds; too large numbers wrap, as in the kernel.
    pub(super) const fn t_ns(&self, time: u64) -> u64 {
        let quotient = time >> self.shift;
        let rest = time & ((1 << self.shift) - 1);
        self.zero
            .wrapping_add(quotient.wrapping_mul(self.multiplier))
            .wrapping_add(rest.wrapping_mul(self.multiplier) >> self.shift)
    }
}

/// Kind of a file's hardware traces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TraceKind {
    /// Arm's SPE.
    Spe,
    /// Another kind: control flow, without memory accesses.
    Other,
}

impl TraceKind {
    /// Parses it from the record that announces traces.
    pub(super) fn read(body: &[u8], order: ByteOrder) -> Option<Self> {
        const SPE: u32 = 4;
        let kind = Cursor::new(body, order).u32()?;
        Some(if kind == SPE { Self::Spe } else { Self::Other })
    }
}

/// The thread and CPU of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Trace {
    tid: Option<i32>,
    cpu: Option<u32>,
}

impl Trace {
    /// Parses it from the record before the trace.
    pub(super) fn read(body: &[u8], order: ByteOrder) -> Option<Self> {
        let mut at = Cursor::new(body, order);
        // size, offset, reference, index.
        at.skip(28)?;
        let (tid, cpu) = (at.i32()?, at.u32()?);
        Some(Self {
            tid: (tid >= 0).then_some(tid),
            cpu: (cpu != u32::MAX).then_some(cpu),
        })
    }

    /// Converts an operation into a sample with time `t_ns`.
    pub(super) fn sample(
        self,
        record: &SpeRecord,
        event: Option<usize>,
        period: Option<u64>,
        t_ns: Option<u64>,
    ) -> Sample<'static> {
        let tid = self.tid.or(record.context.map(u32::cast_signed));
        Sample {
            t_ns,
            event,
            pid: None,
            tid,
            cpu: self.cpu,
            mode: match record.exception_level {
                0 => Mode::User,
                1 => Mode::Kernel,
                _ => Mode::Hypervisor,
            },
            ip: record.ip,
            is_exact: true,
            period,
            chain: None,
            registers: None,
            stack: &[],
            access: record.access,
        }
    }
}

/// Part numbers of Arm cores whose technical reference manuals list the common data sources.
const COMMON_SOURCES: [u64; 14] = [
    0xd0c, 0xd40, 0xd49, 0xd4b, 0xd4c, 0xd4d, 0xd4e, 0xd4f, 0xd81, 0xd82, 0xd83, 0xd84, 0xd85,
    0xd87,
];

/// The encoding of data sources of the recorded processor.
pub(super) fn sources(about: &About) -> Sources {
    const ARM: u64 = 0x41;
    let midr = about.cpu_id.as_deref().and_then(|id| {
        let id = id.trim().trim_start_matches("0x");
        u64::from_str_radix(id, 16).ok()
    });
    match midr {
        Some(midr) if midr >> 24 & 0xff == ARM && COMMON_SOURCES.contains(&(midr >> 4 & 0xfff)) => {
            Sources::Common
        }
        _ => Sources::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_converted_as_the_kernel_does() {
        let body: Vec<u8> = [2_u64, 10, 1000]
            .iter()
            .flat_map(|word| word.to_le_bytes())
            .collect();
        let conversion = Conversion::read(&body, ByteOrder::Little).unwrap();
        // 9 = 2 · 4 + 1: 1000 + 2 · 10 + (1 · 10 >> 2).
        assert_eq!(conversion.t_ns(9), 1022);
        let _ = conversion.t_ns(u64::MAX);
        let mut wild = body.clone();
        wild[0] = 64;
        assert_eq!(Conversion::read(&wild, ByteOrder::Little), None);
    }

    #[test]
    fn cores_with_common_sources_are_known_by_their_number() {
        let of = |id: &str| {
            sources(&About {
                cpu_id: Some(id.to_owned()),
                ..About::default()
            })
        };
        assert_eq!(of("0x00000000413fd0c1"), Sources::Common);
        assert_eq!(of("0x00000000c00fac30"), Sources::Unknown);
        assert_eq!(of("GenuineIntel,6,85,7"), Sources::Unknown);
    }
}
