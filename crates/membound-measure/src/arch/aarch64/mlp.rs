//! Document 000's kernel: serialise, N−1 loads, K fillers, one load, stop.
//!
//! An A64 load cannot hold a displacement of megabytes. The displacements of the last load and of
//! the first fourteen are in registers before the timed part begins, so that with up to fifteen
//! loads nothing but loads and fillers is inside the window, as on other processors. Each further
//! load has two moves before it that make its displacement. The base moves by a generator step
//! between executions, outside the timed part.
//!
//! `dsb ld` and `isb` serialise: `dsb ld` waits for loads, `isb` keeps later instructions from
//! being fetched. The generic timer's count ticks every 1 to 40 ns, so only sums over many
//! executions are meaningful; the kernel returns such sums.

use membound_jit::CodeBuffer;
use membound_jit::a64::{Assembler, Barrier, Instruction as I, V, X};
use membound_types::{Fence, Filler};

use super::repeat;
use crate::Error;
use crate::arch::{MlpLoop, MlpSpec};
use crate::random::{INCREMENT, MULTIPLIER};

/// Kinds of filler that this backend emits.
const FILLERS: [Filler; 3] = [Filler::Nop, Filler::Integer, Filler::Vector];

/// Registers that hold displacements during the whole function, the last load's first.
const DISPLACEMENTS: [X; 15] = [
    X(15),
    X(16),
    X(17),
    X(19),
    X(20),
    X(21),
    X(22),
    X(23),
    X(24),
    X(25),
    X(26),
    X(27),
    X(28),
    X(29),
    X(30),
];

/// Register pairs that the function saves. x18 is reserved for the platform and not used.
const SAVED: [(X, X); 6] = [
    (X(19), X(20)),
    (X(21), X(22)),
    (X(23), X(24)),
    (X(25), X(26)),
    (X(27), X(28)),
    (X(29), X(30)),
];

/// Address of the frame.
const FRAME: X = X(0);
const BASE_LINES: X = X(1);
/// State, multiplier and increment of the generator.
const GENERATOR: (X, X, X) = (X(2), X(3), X(4));
const LEFT: X = X(5);
/// The first reading of the counter.
const BEGUN: X = X(6);
const SUM: X = X(7);
const BASE: X = X(8);
/// Registers of the integer fillers; each filler adds a register to itself.
const FILLED: [X; 4] = [X(9), X(10), X(13), X(14)];
/// Destination of all loads.
const LOADED: X = X(11);
/// Temporary values, and displacements that have no register of their own.
const SCRATCH: X = X(12);

/// The kernel, loaded into a buffer that is used again for the next one.
#[derive(Debug)]
pub(super) struct MlpKernel {
    buffer: CodeBuffer,
}

/// Parameters and results of the kernel, eight bytes each, which emitted code accesses by offset.
#[repr(C)]
struct KernelArguments {
    /// Lowest base address.
    area: *mut u8,
    /// Number of lines on which the base may lie.
    base_lines: u64,
    /// Generator state, updated by the kernel.
    seed: u64,
    /// Number of executions.
    executions: u64,
    /// Sum of the ticks between the two readings.
    ticks: u64,
}

impl MlpKernel {
    pub(super) fn new() -> Result<Self, Error> {
        Ok(Self {
            buffer: CodeBuffer::new(256 << 10)?,
        })
    }
}

impl MlpLoop for MlpKernel {
    fn own_uops(&self) -> u32 {
        // Windows are searched with two loads, whose displacements are in registers.
        0
    }

    fn fence(&self) -> Fence {
        Fence::Isb
    }

    fn fillers(&self) -> Vec<Filler> {
        FILLERS.to_vec()
    }

    fn counter(&self) -> u64 {
        #[cfg(target_arch = "aarch64")]
        return crate::arch::Counter::Cntvct.read();
        #[cfg(not(target_arch = "aarch64"))]
        0
    }

    fn load(&mut self, spec: &MlpSpec<'_>) -> Result<(), Error> {
        if spec.fence != Fence::Isb {
            return Err(Error::Invalid(format!(
                "{} is no instruction of this processor: leave --fence out, or use {}",
                spec.fence,
                Fence::Isb
            )));
        }
        if let Some(other) = spec.pattern.iter().find(|it| !FILLERS.contains(it)) {
            return Err(Error::Invalid(format!(
                "there is no filler {other} on this processor: use --filler nop, integer or vector"
            )));
        }
        let mut assembler = Assembler::new();
        emit(&mut assembler, spec);
        self.buffer.load(&assembler.encode()?)?;
        Ok(())
    }

    unsafe fn run(
        &mut self,
        area: *mut u8,
        base_lines: u64,
        seed: &mut u64,
        executions: u64,
    ) -> f64 {
        let entry = self.buffer.address() as *const u8;
        // SAFETY: the loaded code is a function of one pointer to a frame.
        let run: unsafe extern "C" fn(*mut KernelArguments) = unsafe { std::mem::transmute(entry) };
        let mut frame = KernelArguments {
            area,
            base_lines,
            seed: *seed,
            executions,
            ticks: 0,
        };
        // SAFETY: the caller promises the area and a loaded kernel; the frame is alive.
        unsafe { run(&raw mut frame) };
        *seed = frame.seed;
        frame.ticks as f64 / executions as f64
    }

    unsafe fn run_each(
        &mut self,
        area: *mut u8,
        base_lines: u64,
        seed: &mut u64,
        ticks: &mut [u32],
    ) {
        for ticks in ticks {
            // SAFETY: the caller promises the same for as many executions.
            *ticks = unsafe { self.run(area, base_lines, seed, 1) } as u32;
        }
    }
}

fn emit(a: &mut Assembler, spec: &MlpSpec<'_>) {
    set_up(a, spec);
    let top = a.here();
    choose_base(a);
    serialise(a);
    a.push(I::ReadCounter { to: BEGUN });
    a.push(I::SynchroniseInstructions);
    loads_and_fillers(a, spec);
    serialise(a);
    a.push(I::ReadCounter { to: SCRATCH });
    a.push(I::Subtract {
        to: SCRATCH,
        left: SCRATCH,
        right: BEGUN,
    });
    super::add(a, SUM, SCRATCH);
    a.push(I::SynchroniseInstructions);
    repeat(a, LEFT, top);
    for (from, field) in [(GENERATOR.0, 2), (SUM, 4)] {
        a.push(I::Store {
            from,
            base: FRAME,
            bytes: 8 * field,
        });
    }
    for (first, second) in SAVED.into_iter().rev() {
        a.push(I::PopPair {
            first,
            second,
            bytes: 16,
        });
    }
    a.push(I::Return);
}

/// Emits the code that saves registers and sets all that the loop uses.
fn set_up(a: &mut Assembler, spec: &MlpSpec<'_>) {
    let (state, multiplier, increment) = GENERATOR;
    for (first, second) in SAVED {
        a.push(I::PushPair {
            first,
            second,
            bytes: 16,
        });
    }
    for (to, field) in [(BASE_LINES, 1), (state, 2), (LEFT, 3)] {
        a.push(I::Load {
            to,
            base: FRAME,
            bytes: 8 * field,
        });
    }
    a.constant(multiplier, MULTIPLIER);
    a.constant(increment, INCREMENT);
    a.constant(SUM, 0);
    for register in FILLED {
        a.constant(register, 1);
    }
    a.push(I::ClearVector { to: V(31) });
    let registers = in_registers(spec.displacements);
    for (register, displacement) in &registers {
        a.constant(*register, u64::from(*displacement));
    }
}

/// Emits the choice of a random line of the area, to which the displacements are added.
fn choose_base(a: &mut Assembler) {
    let (state, multiplier, increment) = GENERATOR;
    a.push(I::MultiplyAdd {
        to: state,
        left: state,
        right: multiplier,
        addend: increment,
    });
    a.push(I::MultiplyHigh {
        to: SCRATCH,
        left: state,
        right: BASE_LINES,
    });
    a.push(I::Load {
        to: BASE,
        base: FRAME,
        bytes: 0,
    });
    a.push(I::Add {
        to: BASE,
        left: BASE,
        right: SCRATCH,
        shift: 6,
    });
}

/// Emits the timed part.
fn loads_and_fillers(a: &mut Assembler, spec: &MlpSpec<'_>) {
    let last = spec.displacements.len().saturating_sub(1);
    for (index, displacement) in spec.displacements.iter().enumerate() {
        if index > 0 && (spec.separate_all || index == last) {
            emit_fillers(a, spec);
        }
        let register = register_of(index, spec.displacements.len());
        if register.is_none() {
            a.constant(SCRATCH, u64::from(*displacement));
        }
        a.push(I::LoadWordIndexed {
            to: LOADED,
            base: BASE,
            index: register.unwrap_or(SCRATCH),
        });
    }
    if last == 0 {
        emit_fillers(a, spec);
    }
}

/// The register that holds the displacement of load `index` of `loads`, if one does.
fn register_of(index: usize, loads: usize) -> Option<X> {
    let place = if index + 1 == loads { 0 } else { index + 1 };
    DISPLACEMENTS.get(place).copied()
}

/// Registers and the displacements that they hold.
fn in_registers(displacements: &[u32]) -> Vec<(X, u32)> {
    let all = displacements.iter().enumerate();
    all.filter_map(|(index, displacement)| {
        Some((register_of(index, displacements.len())?, *displacement))
    })
    .collect()
}

/// Emits barriers that wait for all loads and hold back all later instructions.
fn serialise(a: &mut Assembler) {
    a.push(I::Synchronise(Barrier::Loads));
    a.push(I::SynchroniseInstructions);
}

fn emit_fillers(a: &mut Assembler, spec: &MlpSpec<'_>) {
    let pattern = if spec.pattern.is_empty() {
        &[Filler::Nop]
    } else {
        spec.pattern
    };
    let fillers = pattern.iter().cycle().take(spec.fillers as usize);
    for (index, filler) in fillers.enumerate() {
        match filler {
            // Additions that set no flags, because the flags' own register file would be another
            // limit.
            Filler::Integer => {
                let register = FILLED[index % FILLED.len()];
                super::add(a, register, register);
            }
            Filler::Vector => {
                let register = V((index % 8) as u8);
                a.push(I::AddWords {
                    to: register,
                    left: register,
                    right: V(31),
                });
            }
            _ => a.push(I::Nop),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::text;
    use super::*;

    fn spec(displacements: &[u32], separate_all: bool) -> MlpSpec<'_> {
        MlpSpec {
            displacements,
            fillers: 5,
            pattern: &[],
            separate_all,
            fence: Fence::Isb,
            each: false,
        }
    }

    /// Disassembly of the timed part.
    fn timed(spec: &MlpSpec<'_>) -> Vec<String> {
        let text = text(|a| emit(a, spec));
        let readings: Vec<usize> = (0..text.len())
            .filter(|at| text[*at].starts_with("mrs"))
            .collect();
        let [started, ended] = readings[..] else {
            panic!("two readings");
        };
        assert_eq!(text[started - 2..started], ["dsb ld", "isb"]);
        assert_eq!(text[started + 1], "isb");
        assert_eq!(text[ended - 2..ended], ["dsb ld", "isb"]);
        text[started + 2..ended - 2].to_vec()
    }

    #[test]
    fn the_window_has_only_loads_and_fillers() {
        let window = timed(&spec(&[64, 128 << 20, 192], false));
        let mut expected = vec!["ldr w11, [x8, x16]", "ldr w11, [x8, x17]"];
        expected.extend(["nop"; 5]);
        expected.push("ldr w11, [x8, x15]");
        assert_eq!(window, expected);
        let apart = timed(&spec(&[64, 128, 192], true));
        assert_eq!(apart.iter().filter(|line| *line == "nop").count(), 10);
        assert_eq!(timed(&spec(&[], false)), ["nop"; 5]);
    }

    #[test]
    fn loads_beyond_the_registers_make_their_displacements_themselves() {
        let displacements: Vec<u32> = (0..20).map(|load| 0x12340 + 0x10_0000 * load).collect();
        let window = timed(&spec(&displacements, false));
        let moves = window.iter().filter(|line| line.starts_with("mov"));
        let loads = window.iter().filter(|line| line.starts_with("ldr"));
        assert_eq!(
            (loads.count(), moves.count()),
            (20, 2 * (20 - DISPLACEMENTS.len()))
        );
        assert_eq!(window.last().unwrap(), "ldr w11, [x8, x15]");
        // Every register that is written is saved or caller-saved, and none is used twice.
        let registers = in_registers(&displacements);
        assert_eq!(registers.len(), DISPLACEMENTS.len());
        for (index, (register, displacement)) in registers.iter().enumerate() {
            assert!(
                registers[..index]
                    .iter()
                    .all(|(other, _)| other != register)
            );
            assert!(displacements.contains(displacement));
            let saved = SAVED
                .iter()
                .any(|pair| pair.0 == *register || pair.1 == *register);
            assert!(saved || register.0 < 18, "{register}");
        }
    }

    #[test]
    fn another_processors_fence_is_refused() {
        let mut kernel = MlpKernel::new().unwrap();
        let other = MlpSpec {
            fence: Fence::Lfence,
            ..spec(&[0], false)
        };
        let error = kernel.load(&other).unwrap_err().to_string();
        assert!(error.starts_with("lfence is no instruction"), "{error}");
    }

    #[test]
    fn a_filler_that_is_not_emitted_here_is_refused() {
        let mut kernel = MlpKernel::new().unwrap();
        let masks = MlpSpec {
            pattern: &[Filler::Nop, Filler::Mask],
            ..spec(&[0], false)
        };
        let error = kernel.load(&masks).unwrap_err().to_string();
        assert!(error.starts_with("there is no filler mask"), "{error}");
    }

    #[cfg(target_arch = "aarch64")]
    #[test]
    fn the_kernel_runs_with_every_filler_and_carries_its_generator_on() {
        let mut kernel = MlpKernel::new().unwrap();
        let mut area = vec![0_u8; 1 << 16];
        let many: Vec<u32> = (0..40).map(|load| 64 * load).collect();
        for filler in FILLERS {
            for (displacements, separate_all) in [
                (&[][..], false),
                (&[0, 4096][..], false),
                (&[0, 64, 128][..], true),
                (&many[..], false),
            ] {
                let spec = MlpSpec {
                    pattern: &[filler],
                    ..spec(displacements, separate_all)
                };
                let mut seed = 5;
                kernel.load(&spec).unwrap();
                // SAFETY: 64 lines and 4096 bytes more are well inside the area.
                let ticks = unsafe { kernel.run(area.as_mut_ptr(), 64, &mut seed, 30) };
                assert!(ticks >= 0.0);
                let mut expected = crate::random::Random::new(5);
                for _ in 0..30 {
                    expected.below(64);
                }
                assert_eq!(seed, expected.state(), "{filler:?}");
            }
        }
    }
}
