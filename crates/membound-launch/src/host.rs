//! A program that does nothing but yield: scavengers without a primary take turns with each other.

use std::fs::File;
use std::io;
use std::time::{Duration, Instant};

use memmap2::Mmap;

/// Yields between two looks whether anybody is left.
const YIELDS: u32 = 20_000;
/// What so many yields take at least when somebody takes turns.
const BUSY: Duration = Duration::from_micros(500);
/// How long to leave the processor to others when nobody does.
const PAUSE: Duration = Duration::from_millis(2);
/// How the agent's own thread is called.
const WARDEN: &str = "membound-lanes";
/// How threads are called that yield.
const YIELDER: &str = "membound-host";

#[cfg(target_arch = "x86_64")]
mod load {
    // The first instruction is the load before which it yields.
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

/// Address in this executable's file of the load before which [`host`] yields; `None` where it
/// cannot be told, and where nothing is patched.
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

/// The file of the program that runs, mapped: most of it may be debug information.
///
/// # Errors
/// When it cannot be opened or mapped.
pub fn own_file() -> io::Result<Mmap> {
    let file = File::open(std::env::current_exe()?)?;
    // SAFETY: the kernel refuses to write to the file of a program that runs.
    unsafe { Mmap::map(&file) }
}

/// Nothing is patched on this machine.
#[must_use]
#[cfg(not(target_arch = "x86_64"))]
pub const fn host_load() -> Option<u64> {
    None
}

/// Yields to guests, on `threads` threads (1 at least), until none is left in this process.
pub fn host(threads: usize) {
    for _ in 1..threads {
        let builder = std::thread::Builder::new().name(YIELDER.to_owned());
        // Without it the others yield.
        let _ = builder.spawn(|| {
            loop {
                yield_for_a_while();
            }
        });
    }
    while guests_left() {
        yield_for_a_while();
    }
}

/// Yields many times. Where no guest took a turn meanwhile, sleeps, so that other threads have the processor.
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

/// Reads a word, by the load before which a yield is planted.
fn yielding_read(word: &u64) -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: it reads the word.
    return unsafe { load::membound_host_load(word) };
    #[cfg(not(target_arch = "x86_64"))]
    return *word;
}

fn guests_left() -> bool {
    let own = std::process::id().to_string();
    let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten();
    tasks.flatten().any(|task| {
        let name = std::fs::read_to_string(task.path().join("comm"));
        let is_ours = |name: &str| [WARDEN, YIELDER].contains(&name.trim_end());
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
