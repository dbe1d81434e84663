//! What every backend's kernels must do to memory, executed with each backend of this machine.

use super::*;

/// The backends whose code this machine executes.
fn backends() -> Vec<Box<dyn Backend>> {
    vec![
        Box::new(Portable),
        #[cfg(target_arch = "x86_64")]
        Box::new(x86_64::Emitted),
        #[cfg(target_arch = "aarch64")]
        Box::new(aarch64::Emitted),
    ]
}

/// Elements of 64 bytes in a ring of `count`, each linked to the third after it.
fn ring(count: usize, link: Link, key: u64) -> Vec<[u64; 8]> {
    let mut elements = vec![[0_u64; 8]; count];
    let base = elements.as_ptr() as u64;
    for (index, element) in elements.iter_mut().enumerate() {
        let offset = ((index + 3) % count * 64) as u64;
        element[0] = match link {
            Link::Pointer => base + offset,
            Link::ScrambledOffset => offset ^ key,
        };
    }
    elements
}

#[test]
fn every_kind_of_chase_ends_where_the_chain_predicts() {
    const KEY: u64 = 0x5555_0000_1234;
    for backend in backends() {
        for link in [Link::Pointer, Link::ScrambledOffset] {
            for access in Access::ALL {
                let chase = backend.chase(link, access).unwrap();
                let rounds = 224 / chase.loads_per_iteration();
                let mut elements = ring(101, link, KEY);
                let base = elements.as_mut_ptr().cast::<u8>();
                // SAFETY: the ring is closed, alive and only ours.
                let end = unsafe { chase.walk(base, rounds, base, KEY) };
                let hops = (rounds * chase.loads_per_iteration()) as usize;
                let name = backend.name();
                assert_eq!(
                    (end as usize - base as usize) / 64,
                    hops * 3 % 101,
                    "{name}: {link:?} {access:?}"
                );
                let written = elements.iter().filter(|element| element[1] != 0).count();
                match access {
                    Access::Clean => assert_eq!(written, 0, "{name}: {link:?}"),
                    Access::Dirty => assert_eq!(written, 101, "{name}: {link:?}"),
                }
            }
        }
    }
}

#[test]
fn chains_in_registers_and_in_slots_all_advance() {
    for backend in backends() {
        let mut elements = ring(101, Link::Pointer, 0);
        let base = elements.as_mut_ptr().cast::<u8>();
        for count in [1, 2, 7, 8, 13, 16, 17, 64] {
            let chains = backend.chains(count).unwrap();
            assert_eq!(chains.chains(), count);
            let mut heads: Vec<*mut u8> = (0..count)
                .map(|chain| base.wrapping_add(chain * 64))
                .collect();
            // SAFETY: every head lies in the closed ring.
            unsafe { chains.walk(&mut heads, 5) };
            for (chain, head) in heads.iter().enumerate() {
                let at = (*head as usize - base as usize) / 64;
                assert_eq!(at, (chain + 15) % 101, "{}: {count}", backend.name());
            }
        }
    }
}

#[repr(align(64))]
struct Array([f64; 1024]);

/// Runs a bandwidth kernel over the first half of three arrays and checks all of them.
pub(in crate::arch) fn check_stream(stream: &dyn StreamLoop, kernel: BandwidthKernel, what: &str) {
    let value = match kernel {
        BandwidthKernel::Read => 1.0,
        BandwidthKernel::Write | BandwidthKernel::NtWrite => 3.0,
        BandwidthKernel::Copy => 5.0,
        BandwidthKernel::Triad => 5.0 + 3.0 * 7.0,
    };
    let mut a = Array([1.0; 1024]);
    let mut b = Array([5.0; 1024]);
    let mut c = Array([7.0; 1024]);
    assert_eq!(512 * 8 % stream.bytes_per_iteration(), 0);
    // SAFETY: each array is longer than the 4096 bytes asked for.
    unsafe {
        stream.run(
            a.0.as_mut_ptr().cast(),
            b.0.as_mut_ptr().cast(),
            c.0.as_mut_ptr().cast(),
            512 * 8,
            3,
        );
    }
    assert!(a.0[..512].iter().all(|x| *x == value), "{what} {kernel:?}");
    assert!(
        a.0[512..].iter().all(|x| *x == 1.0),
        "{what} {kernel:?} ran over"
    );
    assert!(b.0.iter().all(|x| *x == 5.0) && c.0.iter().all(|x| *x == 7.0));
}

#[test]
fn every_bandwidth_kernel_writes_the_expected_values() {
    for backend in backends() {
        for kernel in BandwidthKernel::ALL {
            match backend.stream(kernel, backend.widest_vector()) {
                Ok(stream) => check_stream(&*stream, kernel, backend.name()),
                Err(error) => assert!(
                    kernel == BandwidthKernel::NtWrite && backend.name() == "portable",
                    "{}: {error}",
                    backend.name()
                ),
            }
        }
    }
}

#[repr(align(64))]
struct Lines([[f64; 8]; 64]);

/// Makes `rounds` rounds and checks every line.
pub(in crate::arch) fn check_inject(
    inject: &dyn InjectLoop,
    mix: TrafficMix,
    rounds: usize,
    what: &str,
) {
    let mut lines = Lines([[1.0; 8]; 64]);
    // SAFETY: the mixes of the tests fit: reads in the first 32 lines, writes in the others.
    let half = unsafe { lines.0.as_mut_ptr().add(32) };
    let start = lines.0.as_mut_ptr().cast();
    // SAFETY: as above.
    unsafe { inject.run(start, half.cast(), rounds as u64) };
    let written = rounds * mix.writes as usize;
    for (index, line) in lines.0.iter().enumerate() {
        let expected = if (32..32 + written).contains(&index) {
            3.0
        } else {
            1.0
        };
        assert_eq!(*line, [expected; 8], "{what} {mix:?} line {index}");
    }
}

#[test]
fn exactly_the_lines_of_the_mix_are_written() {
    for backend in backends() {
        for (reads, writes) in [(1, 0), (2, 1), (1, 1), (0, 1), (3, 4)] {
            let mix = TrafficMix { reads, writes };
            for delay_steps in [0, 5, 256, 600] {
                let inject = backend.inject(mix, delay_steps).unwrap();
                check_inject(&*inject, mix, 7, backend.name());
            }
        }
    }
}

#[test]
fn a_mix_of_nothing_or_too_much_is_refused() {
    for backend in backends() {
        for (reads, writes) in [(0, 0), (60, 5), (u32::MAX, u32::MAX)] {
            let mix = TrafficMix { reads, writes };
            let error = backend.inject(mix, 0).err().unwrap();
            assert!(error.to_string().contains("lines a round"), "{error}");
        }
    }
}

#[repr(align(64))]
struct Area([f64; 256]);

#[test]
fn every_window_kernel_agrees_with_the_portable_one() {
    let portable = Portable.window(WindowKernel::Scalar, 256).unwrap();
    let mut expected = Area(std::array::from_fn(|i| i as f64));
    // SAFETY: eight windows of 256 bytes are the whole area.
    let state = unsafe { portable.run(expected.0.as_mut_ptr().cast(), 8, 101, 42) };
    assert!(expected.0.iter().any(|x| *x < 0.0));
    for backend in backends() {
        for kernel in WindowKernel::ALL {
            let Ok(window) = backend.window(kernel, 256) else {
                assert_eq!(backend.name(), "portable", "{kernel:?}");
                continue;
            };
            let mut area = Area(std::array::from_fn(|i| i as f64));
            // SAFETY: as above.
            let end = unsafe { window.run(area.0.as_mut_ptr().cast(), 8, 101, 42) };
            assert_eq!(area.0, expected.0, "{}: {kernel:?}", backend.name());
            assert_eq!(end, state);
        }
    }
}

#[test]
fn adds_are_made_as_many_as_are_asked_for_or_more() {
    for backend in backends() {
        // An endless chain would hang here.
        backend.add_chain().unwrap().run(65_536);
    }
}

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
#[test]
fn this_machines_kernels_are_emitted() {
    let (backend, why) = native_or_why_not();
    assert_eq!(why, None);
    assert!(backend.name().ends_with("emitted"), "{}", backend.name());
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
#[test]
fn this_machines_kernels_are_portable_with_a_reason() {
    let (backend, why) = native_or_why_not();
    assert_eq!(backend.name(), "portable");
    let why = why.unwrap();
    assert!(why.contains(std::env::consts::ARCH), "{why}");
}
