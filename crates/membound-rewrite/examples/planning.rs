//! Plans the files given, reads the plans back and places them; says how much processor
//! time each part took, how large each section is, and what was refused.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::time::Duration;

use membound_rewrite::code::{Knowledge, Tables};
use membound_rewrite::image::Image;
use membound_rewrite::patch::{Body, Options, Placement, Plan};

/// Processor time of all the process's threads.
fn processor_time() -> Duration {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::uninit();
    // SAFETY: `usage` is writable and as large as the call expects.
    let failed = unsafe { libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr()) };
    assert_eq!(failed, 0, "the calling process can be asked for");
    // SAFETY: the call succeeded and has filled it in.
    let usage = unsafe { usage.assume_init() };
    let time = |time: libc::timeval| {
        Duration::from_secs(time.tv_sec.unsigned_abs())
            + Duration::from_micros(time.tv_usec.unsigned_abs())
    };
    time(usage.ru_utime) + time(usage.ru_stime)
}

fn timed<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let begin = processor_time();
    let result = work();
    (result, processor_time() - begin)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    const PAGE: u64 = 4096;
    const LIBRARIES: u64 = 0x7f00_0000_0000;
    let mut out = std::io::stdout().lock();
    for path in std::env::args().skip(1) {
        let data = std::fs::read(&path)?;
        let (image, parse) = timed(|| Image::parse(&data));
        let image = image?;
        let (_, gather) = timed(|| Knowledge::gather(&image, Tables::Resolve));
        let options = Options::new(Body::Count { exact: false });
        let (plan, make) = timed(|| Plan::make(&image, &options));
        let bytes = plan.as_bytes().to_vec();
        let length = bytes.len();
        let (accepted, accept) = timed(|| Plan::from_bytes(bytes));
        let accepted = accepted?;
        let bias = if image.span().start == 0 {
            LIBRARIES
        } else {
            0
        };
        let placement = Placement {
            bias,
            area: (bias + image.span().end).next_multiple_of(PAGE) + PAGE,
        };
        let (placed, place) = timed(|| accepted.place(&placement));
        let placed = placed?;
        writeln!(
            out,
            "{path}: parse {parse:?}, plan {make:?} (of which gathering {gather:?}), \
             accept {accept:?}, place {place:?}"
        )?;
        writeln!(
            out,
            "  plan of {length} bytes: {:?}; {} edits, {} island pages, {} lost",
            plan.layout(),
            placed.edits.len(),
            placed.islands.len(),
            placed.lost.len(),
        )?;
        let mut refused = BTreeMap::new();
        let mut sites = 0_u32;
        for site in plan.sites() {
            sites += 1;
            if let Err(refusal) = site.number {
                *refused.entry(refusal).or_insert(0_u32) += 1;
            }
        }
        writeln!(out, "  {sites} sites; refused {refused:?}")?;
    }
    Ok(())
}
