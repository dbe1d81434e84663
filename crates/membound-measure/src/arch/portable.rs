//! Kernels in plain Rust with volatile accesses.
//!
//! They run on every processor. The compiler chooses the instructions, so loops have more
//! overhead than emitted kernels.

use std::hint::black_box;

use membound_types::{Access, BandwidthKernel, TrafficMix, VectorWidth, WindowKernel};

use super::{
    AddChain, Backend, ChainsLoop, ChaseLoop, InjectLoop, Link, MlpLoop, StreamLoop, WindowLoop,
    check_mix,
};
use crate::Error;
use crate::random::Random;

/// Value that injectors write: not zero, because some caches drop zeroes written over zeroes.
const WRITTEN: u64 = 3.0_f64.to_bits();

/// The backend that needs no emission.
#[derive(Clone, Copy, Debug, Default)]
pub struct Portable;

impl Backend for Portable {
    fn name(&self) -> &'static str {
        "portable"
    }

    fn add_chain(&self) -> Result<Box<dyn AddChain>, Error> {
        Ok(Box::new(Adds))
    }

    fn chase(&self, link: Link, access: Access) -> Result<Box<dyn ChaseLoop>, Error> {
        Ok(Box::new(Chase { link, access }))
    }

    fn chains(&self, chains: usize) -> Result<Box<dyn ChainsLoop>, Error> {
        Ok(Box::new(Chains { chains }))
    }

    fn stream(
        &self,
        kernel: BandwidthKernel,
        _vector: VectorWidth,
    ) -> Result<Box<dyn StreamLoop>, Error> {
        if kernel == BandwidthKernel::NtWrite {
            return Err(Error::Invalid(
                "the portable kernels have no non-temporal stores".to_owned(),
            ));
        }
        Ok(Box::new(Stream { kernel }))
    }

    fn inject(&self, mix: TrafficMix, delay_steps: u32) -> Result<Box<dyn InjectLoop>, Error> {
        check_mix(mix)?;
        Ok(Box::new(Inject { mix, delay_steps }))
    }

    fn widest_vector(&self) -> VectorWidth {
        VectorWidth::V128
    }

    fn mlp(&self) -> Result<Box<dyn MlpLoop>, Error> {
        // Every uop inside the window must be known; a compiler would add instructions of its
        // own.
        Err(Error::Architecture(std::env::consts::ARCH))
    }

    fn window(
        &self,
        kernel: WindowKernel,
        window_bytes: u64,
    ) -> Result<Box<dyn WindowLoop>, Error> {
        if kernel != WindowKernel::Scalar {
            return Err(Error::Invalid(
                "the portable kernels have neither vectors nor software prefetch".to_owned(),
            ));
        }
        Ok(Box::new(Window { window_bytes }))
    }
}

struct Adds;

impl AddChain for Adds {
    /// In assembly: the core clock is derived from this chain, and an unoptimised build would
    /// lengthen it.
    #[cfg(target_arch = "powerpc64")]
    fn run(&self, adds: u64) {
        const UNROLLED: u64 = 64;
        for _ in 0..(adds / UNROLLED).max(1) {
            // SAFETY: additions of registers; nothing else is touched.
            unsafe {
                std::arch::asm!(
                    ".rept 64",
                    "add {0}, {0}, {1}",
                    ".endr",
                    inout(reg) 1_u64 => _,
                    in(reg) 3_u64,
                    options(nomem, nostack, preserves_flags)
                );
            }
        }
    }

    #[cfg(not(target_arch = "powerpc64"))]
    fn run(&self, adds: u64) {
        let mut sum = black_box(1_u64);
        let addend = black_box(3_u64);
        for _ in 0..adds {
            // The barrier keeps the compiler from folding the chain into a product.
            sum = black_box(sum.wrapping_add(addend));
        }
        black_box(sum);
    }
}

struct Chase {
    link: Link,
    access: Access,
}

// SAFETY: the loop reads one word an element and writes the word behind it when dirty.
unsafe impl ChaseLoop for Chase {
    fn loads_per_iteration(&self) -> u64 {
        1
    }

    unsafe fn walk(&self, start: *mut u8, iterations: u64, base: *mut u8, key: u64) -> *mut u8 {
        let mut at = start;
        for _ in 0..iterations {
            // SAFETY: the caller promises a closed chain of readable elements.
            let word = unsafe { at.cast::<u64>().read_volatile() };
            at = match self.link {
                Link::Pointer => word as *mut u8,
                Link::ScrambledOffset => base.wrapping_add((word ^ key) as usize),
            };
            if self.access == Access::Dirty {
                // SAFETY: for dirty access the caller promises 16 writable bytes.
                unsafe { at.cast::<u64>().wrapping_add(1).write_volatile(word) };
            }
        }
        at
    }

    fn arithmetic_cycles_per_load(&self) -> f64 {
        match self.link {
            Link::Pointer => 0.0,
            Link::ScrambledOffset => 1.0,
        }
    }
}

struct Chains {
    chains: usize,
}

impl ChainsLoop for Chains {
    fn chains(&self) -> usize {
        self.chains
    }

    unsafe fn walk(&self, heads: &mut [*mut u8], rounds: u64) {
        for _ in 0..rounds {
            for head in heads.iter_mut() {
                // SAFETY: the caller promises closed chains of readable elements.
                *head = unsafe { head.cast::<*mut u8>().read_volatile() };
            }
        }
    }
}

struct Stream {
    kernel: BandwidthKernel,
}

impl StreamLoop for Stream {
    fn bytes_per_iteration(&self) -> usize {
        64
    }

    unsafe fn run(&self, a: *mut u8, b: *mut u8, c: *mut u8, bytes: usize, passes: u64) {
        let (a, b, c) = (a.cast::<f64>(), b.cast::<f64>(), c.cast::<f64>());
        for _ in 0..passes.max(1) {
            for i in 0..bytes / 8 {
                // SAFETY: `i` lies inside the arrays that the caller promises.
                unsafe { self.step(a, b, c, i) };
            }
        }
    }
}

impl Stream {
    /// Processes element `i` of every array that the kernel uses.
    ///
    /// # Safety
    /// Those arrays must have an element `i`.
    unsafe fn step(&self, a: *mut f64, b: *mut f64, c: *mut f64, i: usize) {
        match self.kernel {
            BandwidthKernel::Read => {
                // SAFETY: the caller promises element `i`.
                unsafe { a.wrapping_add(i).read_volatile() };
            }
            BandwidthKernel::Write | BandwidthKernel::NtWrite => {
                // SAFETY: as above.
                unsafe { a.wrapping_add(i).write_volatile(3.0) };
            }
            BandwidthKernel::Copy => {
                // SAFETY: as above, for `b`.
                let value = unsafe { b.wrapping_add(i).read_volatile() };
                // SAFETY: as above.
                unsafe { a.wrapping_add(i).write_volatile(value) };
            }
            BandwidthKernel::Triad => {
                // SAFETY: as above, for `b`.
                let left = unsafe { b.wrapping_add(i).read_volatile() };
                // SAFETY: as above, for `c`.
                let right = unsafe { c.wrapping_add(i).read_volatile() };
                let sum = 3.0_f64.mul_add(right, left);
                // SAFETY: as above.
                unsafe { a.wrapping_add(i).write_volatile(sum) };
            }
        }
    }
}

struct Inject {
    mix: TrafficMix,
    delay_steps: u32,
}

impl InjectLoop for Inject {
    unsafe fn run(&self, read: *mut u8, write: *mut u8, rounds: u64) {
        const WORDS: usize = 8;
        let (reads, writes) = (self.mix.reads as usize, self.mix.writes as usize);
        let (mut read, mut write) = (read.cast::<u64>(), write.cast::<u64>());
        for _ in 0..rounds.max(1) {
            for word in 0..reads * WORDS {
                // SAFETY: the caller promises this round's lines.
                unsafe { read.wrapping_add(word).read_volatile() };
            }
            for word in 0..writes * WORDS {
                // SAFETY: as above.
                unsafe { write.wrapping_add(word).write_volatile(WRITTEN) };
            }
            read = read.wrapping_add(reads * WORDS);
            write = write.wrapping_add(writes * WORDS);
            for step in 0..self.delay_steps {
                black_box(step);
            }
        }
    }
}

struct Window {
    window_bytes: u64,
}

impl WindowLoop for Window {
    unsafe fn run(&self, area: *mut u8, area_windows: u64, windows: u64, seed: u64) -> u64 {
        let mut random = Random::new(seed);
        for _ in 0..windows {
            let offset = random.below(area_windows) * self.window_bytes;
            for i in 0..self.window_bytes / 8 {
                let at = area.wrapping_add((offset + i * 8) as usize).cast::<f64>();
                // SAFETY: `at` lies inside the area that the caller promises.
                let value = unsafe { at.read_volatile() };
                // SAFETY: as above.
                unsafe { at.write_volatile(-value) };
            }
        }
        random.state()
    }
}
