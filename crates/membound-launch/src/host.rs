//! A program that does nothing but yield, so that scavengers without a primary have time slices with each
//! other.

use std::fs::File;
use std::io;
use std::time::{Duration, Instant};

use memmap2::Mmap;

/// Yields between two checks whether any scavenger is left.
const YIELDS: u32 = 20_000;
/// Least duration of this many yields if scavengers run in them.
const BUSY: Duration = Duration::from_micros(500);
/// Sleep after yields in which no scavenger ran, so that other threads get the processor.
const PAUSE: Duration = Duration::from_millis(2);
/// Name of the agent's monitor thread.
const MONITOR_THREAD: &str = "membound-lanes";
/// Name of the threads that yield.
const YIELDER: &str = "membound-host";

#[cfg(target_arch = "x86_64")]
mod load {
    // The first instruction is the load at which the yield is installed.
    std::arch::global_asm!(
        ".pushsection .text.membound_host_load, \"ax\", @progbits",
        ".p2align 4",
        ".globl membound_host_load",
        ".type membound_host_load, @function",
        "membound_host_load:",
        ".cfi_startproc",
        "mov rax, [rdi]",
        "nop dword ptr [rax + rax]",
        "ret",
        ".cfi_endproc",
        ".size membound_host_load, . - membound_host_load",
        ".popsection",
    );

    unsafe extern "C" {
        pub(super) fn membound_host_load(word: *const u64) -> u64;
    }
}

/// Address in this executable's file of the load before which [`host`] yields; `None` if it cannot be
/// computed, and on machines without patches.
#[must_use]
#[cfg(target_arch = "x86_64")]
pub fn host_load() -> Option<u64> {
    let address = load::membound_host_load as *const () as u64;
    let path = std::env::current_exe().ok()?;
    let maps = crate::maps::of(std::process::id()).ok()?;
    let own = maps
        .iter()
        .find(|map| map.name == path.as_os_str() && map.range.contains(&address))?;
    let bytes = own_file().ok()?;
    let bias = crate::elf::Headers::parse(&bytes)?.bias(own)?;
    Some(address.wrapping_sub(bias))
}

/// Maps the file of the running program: most of it may be debug information.
///
/// # Errors
/// When it cannot be opened or mapped.
pub fn own_file() -> io::Result<Mmap> {
    let file = File::open(std::env::current_exe()?)?;
    // SAFETY: the kernel refuses to write to the file of a program that runs.
    unsafe { Mmap::map(&file) }
}

/// On this machine programs are not patched.
#[must_use]
#[cfg(not(target_arch = "x86_64"))]
pub const fn host_load() -> Option<u64> {
    None
}

/// Yields to scavengers, on `threads` threads (at least 1), until none is left in this process.
pub fn host(threads: usize) {
    for _ in 1..threads {
        let builder = std::thread::Builder::new().name(YIELDER.to_owned());
        // If a thread cannot be started, the others yield.
        let _ = builder.spawn(|| {
            loop {
                yield_for_a_while();
            }
        });
    }
    while scavengers_left() {
        yield_for_a_while();
    }
}

/// Yields many times. If no scavenger ran meanwhile, sleeps, so that other threads get the processor.
fn yield_for_a_while() {
    let word = 0_u64;
    let begun = Instant::now();
    for _ in 0..YIELDS {
        std::hint::black_box(yielding_read(&word));
    }
    if begun.elapsed() < BUSY {
        std::thread::sleep(PAUSE);
    }
}

/// Reads a word with the load at which a yield is installed.
fn yielding_read(word: &u64) -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: it reads the word.
    return unsafe { load::membound_host_load(word) };
    #[cfg(not(target_arch = "x86_64"))]
    return *word;
}

fn scavengers_left() -> bool {
    let own = std::process::id().to_string();
    let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten();
    tasks.flatten().any(|task| {
        let name = std::fs::read_to_string(task.path().join("comm"));
        let is_ours = |name: &str| [MONITOR_THREAD, YIELDER].contains(&name.trim_end());
        task.file_name() != own.as_str() && name.is_ok_and(|name| !is_ours(&name))
    })
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    #[test]
    fn the_load_is_where_the_file_says() {
        let address = host_load().unwrap();
        let bytes = std::fs::read("/proc/self/exe").unwrap();
        let image = membound_rewrite::image::Image::parse(&bytes).unwrap();
        let code = image.bytes(address..address + 3).unwrap();
        assert_eq!(code, [0x48, 0x8b, 0x07]);
    }
}
