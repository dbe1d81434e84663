//! Measurement kernels of each processor architecture, behind traits.
//!
//! A backend makes kernels ([`Backend`]); a sweep calls them without knowing the instruction set.
//! The portable backend (plain Rust with volatile accesses) compiles and is tested everywhere; it
//! is the fallback where no code can be emitted.

// Tests emit and check this code on every architecture; only aarch64 executes it.
#[cfg(any(target_arch = "aarch64", test))]
mod aarch64;
mod counter;
mod native;
mod portable;
#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
pub(crate) mod x86_64;

pub(crate) use counter::Counter;
pub use native::{native, native_or_why_not};
pub use portable::Portable;

use membound_types::{
    Access, BandwidthKernel, Fence, Filler, TrafficMix, VectorWidth, WindowKernel,
};

use crate::Error;

/// How a chase finds its next element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Link {
    /// The element holds the next one's address.
    Pointer,
    /// The element holds the next one's offset from the base, exclusive-ored with a key.
    ScrambledOffset,
}

/// A loop of dependent loads.
///
/// # Safety
/// `start` must point to an element of a closed chain of the loop's [`Link`] whose elements are
/// readable (and writable 16 bytes long for dirty access), alive and not accessed by other code
/// during the call.
pub unsafe trait ChaseLoop: Send + Sync {
    /// Loads that one iteration makes.
    fn loads_per_iteration(&self) -> u64;

    /// Follows the chain for `iterations` iterations and returns the element that it reached.
    ///
    /// # Safety
    /// As for [`ChaseLoop`].
    unsafe fn walk(&self, start: *mut u8, iterations: u64, base: *mut u8, key: u64) -> *mut u8;

    /// Core cycles per load that arithmetic adds to the load's own latency.
    fn arithmetic_cycles_per_load(&self) -> f64;
}

/// Many chains at once: every round makes one load of each.
pub trait ChainsLoop: Send + Sync {
    /// Number of chains.
    fn chains(&self) -> usize;

    /// Follows every chain for `rounds` rounds. `heads` holds one element of each chain, and on
    /// return the elements that were reached.
    ///
    /// # Safety
    /// `heads` must hold [`ChainsLoop::chains`] pointers into closed chains of plain
    /// pointers that are readable and alive.
    unsafe fn walk(&self, heads: &mut [*mut u8], rounds: u64);
}

/// A loop over memory that moves bytes.
pub trait StreamLoop: Send + Sync {
    /// Bytes of one array that one iteration covers.
    fn bytes_per_iteration(&self) -> usize;

    /// Runs `passes` times (at least once) over `bytes` (a multiple of
    /// [`StreamLoop::bytes_per_iteration`], not 0) of each array. The passes are inside the
    /// kernel, because a call costs a good part of one pass over a small array.
    ///
    /// # Safety
    /// Every array that the kernel uses (`a` always; `b` for copy and triad; `c` for triad) must
    /// be `bytes` long, 64-byte aligned and not accessed by other code.
    unsafe fn run(&self, a: *mut u8, b: *mut u8, c: *mut u8, bytes: usize, passes: u64);
}

/// Traffic at a chosen rate: each round reads some lines, writes some lines, and then waits some
/// steps without using memory.
pub trait InjectLoop: Send + Sync {
    /// Makes `rounds` rounds (at least one). Lines are read one after the other from `read`
    /// on and written from `write` on.
    ///
    /// # Safety
    /// `read` must be followed by `rounds` times the mix's reads of readable lines of 64 bytes,
    /// `write` by `rounds` times its writes of writable ones; both 64-byte aligned and not
    /// accessed by other code.
    unsafe fn run(&self, read: *mut u8, write: *mut u8, rounds: u64);
}

/// Maximum number of lines, reads and writes together, in one round of an [`InjectLoop`].
pub const MAX_LINES_PER_ROUND: u32 = 64;

/// Refuses a mix that injects nothing or has too many lines in a round.
pub(crate) fn check_mix(mix: TrafficMix) -> Result<(), Error> {
    let lines = u64::from(mix.reads) + u64::from(mix.writes);
    if (1..=u64::from(MAX_LINES_PER_ROUND)).contains(&lines) {
        return Ok(());
    }
    Err(Error::Invalid(format!(
        "a traffic mix of {mix} has {lines} lines a round: use 1 to {MAX_LINES_PER_ROUND}"
    )))
}

/// Refuses a window that is not made of whole lines or exceeds the 32-bit operands of emitted
/// code.
#[cfg(any(target_arch = "aarch64", target_arch = "x86_64", test))]
fn check_window(window_bytes: u64) -> Result<(), Error> {
    if window_bytes > 0 && window_bytes.is_multiple_of(64) && i32::try_from(window_bytes).is_ok() {
        return Ok(());
    }
    Err(Error::Invalid(format!(
        "a window of {window_bytes} bytes is not a multiple of 64 below 2 GiB"
    )))
}

/// Seidl's loop: draws random aligned windows of an area and changes the sign of every double.
pub trait WindowLoop: Send + Sync {
    /// Handles `windows` windows drawn with the generator state `seed`; returns the state.
    ///
    /// # Safety
    /// `area` must be `area_windows` windows long, 64-byte aligned, and not accessed by other
    /// code.
    unsafe fn run(&self, area: *mut u8, area_windows: u64, windows: u64, seed: u64) -> u64;
}

/// Code between the two counter readings of document 000's kernel.
#[derive(Clone, Copy, Debug)]
pub struct MlpSpec<'a> {
    /// Displacement of each load from the base, in bytes, below 2 GiB.
    pub displacements: &'a [u32],
    /// Number of fillers before the last load; with `separate_all`, before every load but the
    /// first.
    pub fillers: u32,
    /// Kinds of the fillers, used in rotation; `nop` where it is empty. `mixed` names no
    /// instruction and must not be among them.
    pub pattern: &'a [Filler],
    /// Whether fillers stand between all loads instead of before the last load only.
    pub separate_all: bool,
    /// How the kernel is serialised.
    pub fence: Fence,
    /// Whether the ticks of each execution are kept, as [`MlpLoop::run_each`] needs them.
    pub each: bool,
}

/// Document 000's kernel: serialise, N−1 loads, K fillers, one load, stop.
pub trait MlpLoop: Send {
    /// Uops that the kernel itself adds between the first load and the last.
    fn own_uops(&self) -> u32;

    /// Default method of serialisation on this processor.
    fn fence(&self) -> Fence;

    /// Kinds of filler that the kernel can be emitted with on this processor.
    fn fillers(&self) -> Vec<Filler>;

    /// Current value of the counter that the kernel reads.
    fn counter(&self) -> u64;

    /// Emits the kernel that `spec` describes; it replaces the one emitted before.
    ///
    /// # Errors
    /// When the kernel cannot be emitted; [`Error::Invalid`] for another processor's fence or
    /// filler.
    fn load(&mut self, spec: &MlpSpec<'_>) -> Result<(), Error>;

    /// Executes the loaded kernel `executions` times, each time with another base among the
    /// first `base_lines` lines of `area`, and returns the mean ticks of an execution, by
    /// [`MlpLoop::counter`].
    ///
    /// # Safety
    /// A kernel must have been loaded, and `area` must be readable for `base_lines` lines
    /// plus the largest displacement plus eight bytes.
    unsafe fn run(
        &mut self,
        area: *mut u8,
        base_lines: u64,
        seed: &mut u64,
        executions: u64,
    ) -> f64;

    /// Executes the loaded kernel `ticks.len()` times and stores the ticks of each execution in
    /// `ticks`.
    ///
    /// # Safety
    /// As for [`MlpLoop::run`]; the kernel must have been loaded with [`MlpSpec::each`].
    unsafe fn run_each(
        &mut self,
        area: *mut u8,
        base_lines: u64,
        seed: &mut u64,
        ticks: &mut [u32],
    );
}

/// A chain of dependent additions, one core cycle each.
pub trait AddChain: Send + Sync {
    /// Makes `adds` additions (a multiple of 64).
    fn run(&self, adds: u64);
}

/// Makes kernels for one processor architecture.
pub trait Backend: Send + Sync {
    /// Human-readable name of the backend.
    fn name(&self) -> &'static str;
    /// Makes a chain of dependent additions.
    ///
    /// # Errors
    /// When code cannot be emitted.
    fn add_chain(&self) -> Result<Box<dyn AddChain>, Error>;
    /// Makes a loop of dependent loads.
    ///
    /// # Errors
    /// When code cannot be emitted.
    fn chase(&self, link: Link, access: Access) -> Result<Box<dyn ChaseLoop>, Error>;
    /// Makes a loop that follows `chains` chains at once.
    ///
    /// # Errors
    /// When code cannot be emitted.
    fn chains(&self, chains: usize) -> Result<Box<dyn ChainsLoop>, Error>;
    /// Makes a bandwidth kernel.
    ///
    /// # Errors
    /// When code cannot be emitted; [`Error::Invalid`] where the backend lacks the kernel or the
    /// vectors.
    fn stream(
        &self,
        kernel: BandwidthKernel,
        vector: VectorWidth,
    ) -> Result<Box<dyn StreamLoop>, Error>;
    /// Makes an injector of traffic that waits `delay_steps` steps, about a core cycle each,
    /// after every round.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a mix of no lines or more than [`MAX_LINES_PER_ROUND`], or
    /// when code cannot be emitted.
    fn inject(&self, mix: TrafficMix, delay_steps: u32) -> Result<Box<dyn InjectLoop>, Error>;
    /// Widest vectors that both the processor and the operating system's kernel support.
    fn widest_vector(&self) -> VectorWidth;
    /// Makes document 000's kernel.
    ///
    /// # Errors
    /// [`Error::Architecture`] where there is none for this processor.
    fn mlp(&self) -> Result<Box<dyn MlpLoop>, Error>;
    /// Makes a window kernel for windows of `window_bytes` (a multiple of 64).
    ///
    /// # Errors
    /// When code cannot be emitted.
    fn window(&self, kernel: WindowKernel, window_bytes: u64)
    -> Result<Box<dyn WindowLoop>, Error>;
}
