//! Words of known instructions, and all forms against an assembler.

use std::collections::HashSet;
use std::fs;
use std::mem::discriminant;
use std::process::Command;

use super::{Assembler, Barrier, Condition, Instruction as I, V, X};

/// A generator that draws the same operands in every run.
struct Draw(u64);

impl Draw {
    fn below(&mut self, bound: u32) -> u32 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        ((self.0 >> 32) % u64::from(bound)) as u32
    }

    fn x(&mut self) -> X {
        X(self.below(32) as u8)
    }

    /// Neither zero nor the stack pointer.
    fn general(&mut self) -> X {
        X(self.below(31) as u8)
    }

    fn v(&mut self) -> V {
        V(self.below(32) as u8)
    }
}

/// Every form with drawn operands.
fn all_forms(draw: &mut Draw) -> Vec<I> {
    let condition =
        [Condition::Equal, Condition::NotEqual, Condition::Lower][draw.below(3) as usize];
    // Loading a register twice is unpredictable, and the assembler says so.
    let first = draw.general();
    let second = X((first.0 + 1 + draw.below(29) as u8) % 31);
    let v = draw.v();
    let other = V((v.0 + 1 + draw.below(30) as u8) % 32);
    vec![
        I::AddImmediate {
            to: draw.x(),
            from: draw.x(),
            immediate: draw.below(4096),
            shifted: draw.below(2) == 1,
        },
        I::SubtractImmediate {
            to: draw.x(),
            from: draw.x(),
            immediate: draw.below(4096),
        },
        I::SubtractImmediateFlags {
            to: draw.x(),
            from: draw.x(),
            immediate: draw.below(4096),
        },
        I::Add {
            to: draw.general(),
            left: draw.general(),
            right: draw.general(),
            shift: draw.below(64),
        },
        I::Subtract {
            to: draw.general(),
            left: draw.general(),
            right: draw.general(),
        },
        I::Compare {
            left: draw.general(),
            right: draw.x(),
        },
        I::Xor {
            to: draw.x(),
            left: draw.x(),
            right: draw.x(),
        },
        I::Move {
            to: draw.general(),
            from: draw.general(),
        },
        I::MoveZero {
            to: draw.x(),
            bits: draw.below(1 << 16) as u16,
            part: draw.below(4) as u8,
        },
        I::MoveKeep {
            to: draw.x(),
            bits: draw.below(1 << 16) as u16,
            part: draw.below(4) as u8,
        },
        I::MultiplyAdd {
            to: draw.x(),
            left: draw.x(),
            right: draw.x(),
            addend: draw.x(),
        },
        I::MultiplyHigh {
            to: draw.x(),
            left: draw.x(),
            right: draw.x(),
        },
        I::Load {
            to: draw.x(),
            base: draw.x(),
            bytes: 8 * draw.below(4096),
        },
        I::Store {
            from: draw.x(),
            base: draw.x(),
            bytes: 8 * draw.below(4096),
        },
        I::LoadIndexed {
            to: draw.x(),
            base: draw.x(),
            index: draw.x(),
        },
        I::LoadWordIndexed {
            to: draw.x(),
            base: draw.x(),
            index: draw.x(),
        },
        I::PushPair {
            first,
            second,
            bytes: 8 * (1 + draw.below(64)),
        },
        I::PopPair {
            first,
            second,
            bytes: 8 * draw.below(64),
        },
        I::Prefetch {
            base: draw.x(),
            bytes: 8 * draw.below(4096),
        },
        I::LoadVector {
            to: v,
            base: draw.x(),
            bytes: 16 * draw.below(4096),
        },
        I::StoreVector {
            from: v,
            base: draw.x(),
            bytes: 16 * draw.below(4096),
        },
        I::LoadVectors {
            first: v,
            second: other,
            base: draw.x(),
            bytes: 16 * draw.below(64),
        },
        I::StoreVectors {
            first: v,
            second: other,
            base: draw.x(),
            bytes: 16 * draw.below(64),
        },
        I::StoreVectorsPast {
            first: v,
            second: other,
            base: draw.x(),
            bytes: 16 * draw.below(64),
        },
        I::LoadDouble {
            to: v,
            base: draw.x(),
            bytes: 8 * draw.below(4096),
        },
        I::StoreDouble {
            from: v,
            base: draw.x(),
            bytes: 8 * draw.below(4096),
        },
        I::NegateDouble { to: v, from: other },
        I::NegateDoubles { to: v, from: other },
        I::MultiplyAddDoubles {
            to: draw.v(),
            left: v,
            right: other,
        },
        I::AddWords {
            to: draw.v(),
            left: v,
            right: other,
        },
        I::Broadcast {
            to: v,
            from: draw.x(),
        },
        I::ClearVector { to: v },
        I::BranchIf {
            condition,
            words: i64::from(draw.below(1 << 12)) - (1 << 11),
        },
        I::ReadCounter { to: draw.x() },
        I::Synchronise(Barrier::All),
        I::Synchronise(Barrier::Loads),
        I::SynchroniseInstructions,
        I::Nop,
        I::Return,
    ]
}

/// Words as GNU as 2.40 assembles them.
#[test]
fn known_instructions_have_their_words() {
    let (to, base) = (X(0), X(0));
    for (instruction, text, word) in [
        (
            I::Load { to, base, bytes: 0 },
            "ldr x0, [x0, #0]",
            0xf940_0000,
        ),
        (
            I::LoadIndexed {
                to,
                base,
                index: X(2),
            },
            "ldr x0, [x0, x2]",
            0xf862_6800,
        ),
        (
            I::StoreVectorsPast {
                first: V(31),
                second: V(31),
                base: X(6),
                bytes: 32,
            },
            "stnp q31, q31, [x6, #32]",
            0xac01_7cdf,
        ),
        (
            I::PushPair {
                first: X(19),
                second: X(20),
                bytes: 96,
            },
            "stp x19, x20, [sp, #-96]!",
            0xa9ba_53f3,
        ),
        (
            I::BranchIf {
                condition: Condition::NotEqual,
                words: -4,
            },
            "b.ne .-16",
            0x54ff_ff81,
        ),
        (
            I::SubtractImmediateFlags {
                to: X(1),
                from: X(1),
                immediate: 1,
            },
            "subs x1, x1, #1",
            0xf100_0421,
        ),
        (
            I::ReadCounter { to: X(5) },
            "mrs x5, cntvct_el0",
            0xd53b_e045,
        ),
        (I::Synchronise(Barrier::Loads), "dsb ld", 0xd503_3d9f),
        (I::SynchroniseInstructions, "isb", 0xd503_3fdf),
        (I::Nop, "nop", 0xd503_201f),
        (I::Return, "ret", 0xd65f_03c0),
    ] {
        assert_eq!(instruction.to_string(), text);
        assert_eq!(instruction.encode().unwrap(), word, "{text}");
    }
}

#[test]
fn an_assembler_makes_the_same_words_of_the_same_text() {
    const ASSEMBLER: &str = "aarch64-linux-gnu-as";
    let assembler = if cfg!(target_arch = "aarch64") {
        "as"
    } else {
        ASSEMBLER
    };
    if Command::new(assembler).arg("--version").output().is_err() {
        membound_testkit::skipped(format!(
            "no {assembler} (Debian package binutils-aarch64-linux-gnu)"
        ));
        return;
    }
    let mut draw = Draw(7);
    let instructions: Vec<I> = (0..100).flat_map(|_| all_forms(&mut draw)).collect();
    let forms: HashSet<_> = instructions.iter().map(discriminant).collect();
    assert_eq!(forms.len(), 38, "a form is missing in `all_forms`");
    let place = std::env::temp_dir().join(format!("membound-a64-{}", std::process::id()));
    fs::create_dir_all(&place).unwrap();
    let (source, object) = (place.join("all.s"), place.join("all.o"));
    let text: String = instructions.iter().map(|it| format!("{it}\n")).collect();
    fs::write(&source, text).unwrap();
    let output = Command::new(assembler)
        .arg("-o")
        .args([&object, &source])
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let words = text_of(&fs::read(&object).unwrap());
    fs::remove_dir_all(&place).unwrap();
    assert_eq!(words.len(), instructions.len());
    for (instruction, word) in instructions.iter().zip(words) {
        let ours = instruction.encode().unwrap();
        assert_eq!(
            ours, word,
            "`{instruction}`: {ours:#x}, the assembler has {word:#x}"
        );
    }
}

/// The words of the section `.text` of an ELF object, which `as` puts first.
fn text_of(object: &[u8]) -> Vec<u32> {
    let word = |at: usize| u64::from_le_bytes(object[at..at + 8].try_into().unwrap()) as usize;
    let first = word(0x28) + 0x40;
    let (offset, size) = (word(first + 0x18), word(first + 0x20));
    object[offset..offset + size]
        .chunks_exact(4)
        .map(|bytes| u32::from_le_bytes(bytes.try_into().unwrap()))
        .collect()
}

#[test]
fn operands_that_do_not_fit_are_refused() {
    let (to, from, base) = (X(1), X(2), X(3));
    for instruction in [
        I::AddImmediate {
            to,
            from,
            immediate: 4096,
            shifted: false,
        },
        I::Load { to, base, bytes: 4 },
        I::Load {
            to,
            base,
            bytes: 32768,
        },
        I::LoadVectors {
            first: V(0),
            second: V(1),
            base,
            bytes: 1024,
        },
        I::PushPair {
            first: X(0),
            second: X(1),
            bytes: 520,
        },
        I::MoveZero {
            to,
            bits: 1,
            part: 4,
        },
        I::BranchIf {
            condition: Condition::Equal,
            words: 1 << 18,
        },
    ] {
        let error = instruction.encode().unwrap_err().to_string();
        assert!(error.contains(&instruction.to_string()), "{error}");
    }
}

/// What a constant's moves leave in the register.
fn moved(value: u64) -> (u64, usize) {
    let mut assembler = Assembler::new();
    assembler.constant(X(9), value);
    let result = assembler
        .instructions()
        .iter()
        .fold(u64::MAX, |register, it| match *it {
            I::MoveZero { bits, part, .. } => u64::from(bits) << (16 * part),
            I::MoveKeep { bits, part, .. } => {
                register & !(0xffff << (16 * part)) | u64::from(bits) << (16 * part)
            }
            other => panic!("{other}"),
        });
    (result, assembler.instructions().len())
}

#[test]
fn constants_take_as_few_moves_as_they_have_parts() {
    for (value, moves) in [
        (0, 1),
        (5, 1),
        (0x7fff_0000, 1),
        (0x1234_5678, 2),
        (3.0_f64.to_bits(), 1),
        (6_364_136_223_846_793_005, 4),
    ] {
        assert_eq!(moved(value), (value, moves));
    }
}

#[test]
fn sums_are_made_of_what_immediates_hold() {
    for (bytes, additions) in [(0, 1), (64, 1), (4096, 1), (4160, 2), (0xff_ffff, 2)] {
        let mut assembler = Assembler::new();
        assembler.add_bytes(X(1), X(2), bytes);
        let mut registers = [0_u32; 3];
        for instruction in assembler.instructions() {
            let I::AddImmediate {
                to,
                from,
                immediate,
                shifted,
            } = *instruction
            else {
                panic!("{instruction}");
            };
            registers[usize::from(to.0)] =
                registers[usize::from(from.0)] + (immediate << (12 * u32::from(shifted)));
        }
        assert_eq!(registers[1], bytes);
        assert_eq!(assembler.instructions().len(), additions);
    }
}

#[test]
fn branches_lead_back_to_their_labels() {
    let mut assembler = Assembler::new();
    assembler.push(I::Nop);
    let top = assembler.here();
    assembler.push(I::Nop);
    assembler.push(I::Nop);
    assembler.branch_if(Condition::NotEqual, top);
    let bytes = assembler.encode().unwrap();
    assert_eq!(bytes.len(), 16);
    assert_eq!(bytes[12..], 0x54ff_ffc1_u32.to_le_bytes());
}
