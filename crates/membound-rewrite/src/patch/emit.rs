//! The few instructions that trampolines are made of, written as bytes.
//!
//! Code is emitted as if it began at the module's **origin** (the page of its lowest address). Fields that
//! refer to the module are listed, so that placing only has to add the distance between origin and code.
//! Fields that refer to the data pages behind the code stay open until the size of code and tables is known.

use membound_wire::{COUNT_APART, COUNT_WORDS, LINE_BYTES};

use crate::Gpr;

/// A 4-byte field that refers to the data pages and is filled in when their position is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DataField {
    /// Offset of the field in the emitted code.
    pub at: u32,
    /// Bytes of the instruction after the field.
    pub trailing: u8,
    /// What the field refers to.
    pub what: DataTarget,
}

/// What a [`DataField`] refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DataTarget {
    /// A byte offset into the slots at the start of the data pages.
    Slots(u32),
    /// A byte of a site's words.
    Site {
        /// The site, counted from the emitter's first.
        site: u32,
        /// Byte offset within the site's words.
        byte: u32,
    },
    /// No address: the number of this site itself, combined with these bits.
    Number(u32, u32),
    /// The pattern bytes at the start of the code area.
    Pattern,
}

/// Condition of a jump, as the low four bits of its opcode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Condition(pub u8);

impl Condition {
    /// The condition that holds exactly when this one does not.
    pub(super) const fn opposite(self) -> Self {
        Self(self.0 ^ 1)
    }

    /// Carry set.
    pub(super) const CARRY: Self = Self(2);
    /// Carry clear.
    pub(super) const NOT_CARRY: Self = Self(3);
    /// Zero.
    pub(super) const ZERO: Self = Self(4);
    /// Not zero.
    pub(super) const NOT_ZERO: Self = Self(5);
    /// Signed less or equal.
    pub(super) const LESS_OR_EQUAL: Self = Self(14);
    /// Signed greater.
    pub(super) const GREATER: Self = Self(15);
}

/// An x86-64 memory operand in its parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Address {
    /// `[base + index * scale + displacement]`, any part of which may be missing.
    Registers {
        /// Base register.
        base: Option<Gpr>,
        /// Index register and the logarithm of its scale.
        index: Option<(Gpr, u8)>,
        /// Displacement.
        displacement: i32,
    },
    /// An address in the module, as in the file.
    Module(u64),
}

/// Base, index with the logarithm of its scale, and displacement.
type Parts = (Option<Gpr>, Option<(Gpr, u8)>, i64);

impl Address {
    /// `None` for an address of the module.
    pub(super) fn parts(self) -> Option<Parts> {
        match self {
            Self::Registers {
                base,
                index,
                displacement,
            } => Some((base, index, i64::from(displacement))),
            Self::Module(_) => None,
        }
    }
}

/// Emitted bytes and the fields in them that are not final.
#[derive(Debug, Default)]
pub(super) struct Emitter {
    /// The module's origin, as an address of the file.
    pub origin: u64,
    /// The code emitted so far.
    pub bytes: Vec<u8>,
    /// Offsets of fields that refer to the module.
    pub relocations: Vec<u32>,
    /// Fields that refer to the data pages.
    pub data: Vec<DataField>,
    /// True if a field's value did not fit; the code must then not be used.
    pub overflowed: bool,
    /// True if the code must begin at the start of a cache line.
    pub has_lines: bool,
}

impl Emitter {
    pub(super) fn at(&self) -> u32 {
        u32::try_from(self.bytes.len()).expect("a chunk of code is below 4 GiB")
    }

    /// Continues at the start of the next cache line; the bytes in between are never executed.
    pub(super) fn begin_line(&mut self) {
        const INT3: u8 = 0xcc;
        let length = self.bytes.len().next_multiple_of(LINE_BYTES);
        self.bytes.resize(length, INT3);
        self.has_lines = true;
    }

    pub(super) fn raw(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Emits a field that refers to the module; the next instruction begins `trailing` bytes after the field.
    pub(super) fn module_field(&mut self, target: u64, trailing: u8) {
        let at = self.at();
        let end = i64::from(at) + 4 + i64::from(trailing);
        let distance = target.wrapping_sub(self.origin).cast_signed();
        let value = distance
            .checked_sub(end)
            .and_then(|value| i32::try_from(value).ok());
        self.overflowed |= value.is_none();
        self.relocations.push(at);
        self.raw(&value.unwrap_or_default().to_le_bytes());
    }

    fn data_field(&mut self, what: DataTarget, trailing: u8) {
        let at = self.at();
        self.data.push(DataField { at, trailing, what });
        self.raw(&[0; 4]);
    }

    /// `jmp` to an address in the module.
    pub(super) fn jump(&mut self, target: u64) {
        self.raw(&[0xe9]);
        self.module_field(target, 0);
    }

    /// `jmp register`.
    pub(super) fn jump_to(&mut self, register: Gpr) {
        let number = register.number();
        if number >= 8 {
            self.raw(&[0x41]);
        }
        self.raw(&[0xff, 0xe0 | number & 7]);
    }

    /// A conditional jump to an address in the module.
    pub(super) fn jump_if(&mut self, condition: Condition, target: u64) {
        self.raw(&[0x0f, 0x80 | condition.0]);
        self.module_field(target, 0);
    }

    /// A conditional jump to an earlier offset of this code.
    pub(super) fn jump_if_back(&mut self, condition: Condition, to: u32) {
        self.raw(&[0x0f, 0x80 | condition.0]);
        self.field_back(to);
    }

    /// `jmp` to an earlier offset of this code.
    pub(super) fn jump_back(&mut self, to: u32) {
        self.raw(&[0xe9]);
        self.field_back(to);
    }

    /// Emits the last field of an instruction, 4 bytes, that refers to an earlier offset of this code.
    fn field_back(&mut self, to: u32) {
        let end = self.at() + 4;
        self.raw(&to.wrapping_sub(end).to_le_bytes());
    }

    /// `test register, mask` of 32 bits.
    pub(super) fn test_bits(&mut self, register: Gpr, mask: u32) {
        let number = register.number();
        if number >= 8 {
            self.raw(&[0x41]);
        }
        self.raw(&[0xf7, 0xc0 | number & 7]);
        self.raw(&mask.to_le_bytes());
    }

    /// `jmp` to a later offset of this code; pass the returned field to [`Self::land`].
    pub(super) fn jump_ahead(&mut self) -> u32 {
        self.raw(&[0xe9, 0, 0, 0, 0]);
        self.at() - 4
    }

    /// A conditional jump to a later offset of this code; pass the returned field to [`Self::land`].
    pub(super) fn jump_if_ahead(&mut self, condition: Condition) -> u32 {
        self.raw(&[0x0f, 0x80 | condition.0, 0, 0, 0, 0]);
        self.at() - 4
    }

    /// `lea register, [rip + …]` with a later offset of this code; pass the returned field to [`Self::land`].
    pub(super) fn address_ahead(&mut self, register: Gpr) -> u32 {
        self.place_in(register);
        self.raw(&[0; 4]);
        self.at() - 4
    }

    /// `lea register, [rip + …]` with an earlier offset of this code.
    pub(super) fn address_back(&mut self, register: Gpr, to: u32) {
        self.place_in(register);
        self.field_back(to);
    }

    /// `lea register, [rip + …]` without its field.
    fn place_in(&mut self, register: Gpr) {
        let number = register.number();
        self.raw(&[0x48 | number >> 3 << 2, 0x8d, (number & 7) << 3 | 5]);
    }

    /// `test register, register`, 64 bits.
    pub(super) fn test(&mut self, register: Gpr) {
        let number = register.number();
        let high = number >> 3;
        self.raw(&[
            0x48 | high << 2 | high,
            0x85,
            0xc0 | (number & 7) << 3 | number & 7,
        ]);
    }

    /// Makes the field of an instruction such as [`Self::jump_ahead`] refer to the current offset.
    pub(super) fn land(&mut self, field: u32) {
        let distance = self.at() - (field + 4);
        let field = field as usize;
        self.bytes[field..field + 4].copy_from_slice(&distance.to_le_bytes());
    }

    /// A short conditional jump over the `bytes` bytes that follow.
    pub(super) fn skip_if(&mut self, condition: Condition, bytes: u8) {
        self.raw(&[0x70 | condition.0, bytes]);
    }

    /// `call [slot]` of an entry point of the agent.
    pub(super) fn call_entry(&mut self, entry: membound_wire::Entry) {
        self.raw(&[0xff, 0x15]);
        self.data_field(DataTarget::Slots(entry as u32 * 8), 0);
    }

    /// `jmp [slot]` of an entry point of the agent.
    pub(super) fn jump_entry(&mut self, entry: membound_wire::Entry) {
        self.raw(&[0xff, 0x25]);
        self.data_field(DataTarget::Slots(entry as u32 * 8), 0);
    }

    pub(super) fn push(&mut self, register: Gpr) {
        self.short_form(0x50, register);
    }

    pub(super) fn pop(&mut self, register: Gpr) {
        self.short_form(0x58, register);
    }

    fn short_form(&mut self, opcode: u8, register: Gpr) {
        let number = register.number();
        if number >= 8 {
            self.raw(&[0x41]);
        }
        self.raw(&[opcode | number & 7]);
    }

    /// `push imm32` with the number of `site` and the bits of `mark`.
    pub(super) fn push_site_number(&mut self, site: u32, mark: u32) {
        self.raw(&[0x68]);
        self.data_field(DataTarget::Number(site, mark), 0);
    }

    /// `push imm32`.
    pub(super) fn push_constant(&mut self, value: u32) {
        self.raw(&[0x68]);
        self.raw(&value.to_le_bytes());
    }

    /// `lea rsp, [rsp + bytes]`: moves the stack pointer and leaves the flags alone.
    pub(super) fn move_stack(&mut self, bytes: i32) {
        self.raw(&[0x48, 0x8d]);
        match i8::try_from(bytes) {
            Ok(short) => self.raw(&[0x64, 0x24, short.cast_unsigned()]),
            Err(_) => {
                self.raw(&[0xa4, 0x24]);
                self.raw(&bytes.to_le_bytes());
            }
        }
    }

    /// `lahf`; with [`Self::seto_al`] after it, ah and al hold the arithmetic flags. They are separate so
    /// that the boundary between them can be marked.
    pub(super) fn lahf(&mut self) {
        self.raw(&[0x9f]);
    }

    pub(super) fn seto_al(&mut self) {
        self.raw(&[0x0f, 0x90, 0xc0]);
    }

    /// `cmp al, 0x81`: overflows exactly when al is 1, and leaves al as it is.
    pub(super) fn overflow_from_al(&mut self) {
        self.raw(&[0x3c, 0x81]);
    }

    pub(super) fn sahf(&mut self) {
        self.raw(&[0x9e]);
    }

    /// `mov to, from`, 64 bits.
    pub(super) fn copy(&mut self, to: Gpr, from: Gpr) {
        let (to, from) = (to.number(), from.number());
        self.raw(&[
            0x48 | from >> 3 << 2 | to >> 3,
            0x89,
            0xc0 | (from & 7) << 3 | to & 7,
        ]);
    }

    /// `mov to, from`, 32 bits.
    pub(super) fn copy_low(&mut self, to: Gpr, from: Gpr) {
        let (to, from) = (to.number(), from.number());
        self.raw(&[
            0x40 | from >> 3 << 2 | to >> 3,
            0x89,
            0xc0 | (from & 7) << 3 | to & 7,
        ]);
    }

    /// `sub to, from`, 32 bits.
    pub(super) fn subtract_low(&mut self, to: Gpr, from: Gpr) {
        let (to, from) = (to.number(), from.number());
        self.raw(&[
            0x40 | from >> 3 << 2 | to >> 3,
            0x29,
            0xc0 | (from & 7) << 3 | to & 7,
        ]);
    }

    /// `mov register, imm64`.
    pub(super) fn constant(&mut self, register: Gpr, value: u64) {
        let number = register.number();
        self.raw(&[0x48 | number >> 3, 0xb8 | number & 7]);
        self.raw(&value.to_le_bytes());
    }

    /// `inc qword [site's word]`, with `lock` if `form` asks for it.
    pub(super) fn increment(&mut self, site: u32, form: Increment) {
        if form == Increment::Locked {
            self.raw(&[0xf0]);
        }
        self.raw(&[0x48, 0xff, 0x05]);
        self.data_field(DataTarget::Site { site, byte: 0 }, 0);
    }

    /// Leaves in `address` the site's first word and in `scratch` the offset of the word for this stack. The
    /// stacks of two threads are some megabytes apart, so bits of the stack pointer choose the word. Changes
    /// flags.
    pub(super) fn word_of_stack(&mut self, address: Gpr, scratch: Gpr, site: u32) {
        const STACK_BITS: u32 = 21;
        const APART_BITS: u32 = COUNT_APART.ilog2();
        const MASK: u32 = ((COUNT_WORDS - 1) * COUNT_APART) as u32;
        self.word(0x8d, address, site);
        self.copy(scratch, Gpr::RSP);
        let number = scratch.number();
        let shift = (STACK_BITS - APART_BITS) as u8;
        self.raw(&[0x48 | number >> 3, 0xc1, 0xe8 | number & 7, shift]);
        self.raw(&[0x40 | number >> 3, 0x81, 0xe0 | number & 7]);
        self.raw(&MASK.to_le_bytes());
    }

    /// `mov register, [site's word]`.
    pub(super) fn load_word(&mut self, register: Gpr, site: u32) {
        self.word(0x8b, register, site);
    }

    /// `mov [site's word], register`.
    pub(super) fn store_word(&mut self, register: Gpr, site: u32) {
        self.word(0x89, register, site);
    }

    fn word(&mut self, opcode: u8, register: Gpr, site: u32) {
        let number = register.number();
        self.raw(&[0x48 | number >> 3 << 2, opcode, (number & 7) << 3 | 5]);
        self.data_field(DataTarget::Site { site, byte: 0 }, 0);
    }

    /// `sub dword [site's countdown], 1`.
    pub(super) fn count_down(&mut self, site: u32) {
        self.raw(&[0x83, 0x2d]);
        self.data_field(DataTarget::Site { site, byte: 0 }, 1);
        self.raw(&[1]);
    }

    /// `cmp dword [site's countdown], value`.
    pub(super) fn compare_countdown(&mut self, site: u32, value: i32) {
        self.raw(&[0x83, 0x3d]);
        self.data_field(DataTarget::Site { site, byte: 0 }, 1);
        self.raw(&[value as u8]);
    }

    /// `cmp dword [slots + offset], 0`.
    pub(super) fn test_slot(&mut self, offset: u32) {
        self.raw(&[0x83, 0x3d]);
        self.data_field(DataTarget::Slots(offset), 1);
        self.raw(&[0]);
    }

    /// `shr register, bits`.
    pub(super) fn shift_right(&mut self, width: Width, register: Gpr, bits: u32) {
        let number = register.number();
        let rex = match width {
            Width::Quad => 0x48,
            Width::Default => 0x40,
        } | number >> 3;
        if rex != 0x40 {
            self.raw(&[rex]);
        }
        self.raw(&[0xc1, 0xe8 | number & 7, bits as u8]);
    }

    /// `imul to, from, factor` of 32 bits.
    pub(super) fn multiply(&mut self, to: Gpr, from: Gpr, factor: u32) {
        let (to, from) = (to.number(), from.number());
        let rex = 0x40 | to >> 3 << 2 | from >> 3;
        if rex != 0x40 {
            self.raw(&[rex]);
        }
        self.raw(&[0x69, 0xc0 | (to & 7) << 3 | from & 7]);
        self.raw(&factor.to_le_bytes());
    }

    /// `lea register, address`.
    pub(super) fn address(&mut self, register: Gpr, address: Address) {
        self.with_operand(&[], Width::Quad, &[0x8d], register.number(), address);
    }

    /// An instruction with a memory operand: `prefixes`, REX as needed, `opcode`, ModRM
    /// with `reg` and the operand. No immediate may follow.
    pub(super) fn with_operand(
        &mut self,
        prefixes: &[u8],
        width: Width,
        opcode: &[u8],
        reg: u8,
        address: Address,
    ) {
        self.raw(prefixes);
        let mut rex = match width {
            Width::Quad => 0x48,
            Width::Default => 0x40,
        } | reg >> 3 << 2;
        let low = (reg & 7) << 3;
        match address {
            Address::Module(target) => {
                if rex != 0x40 {
                    self.raw(&[rex]);
                }
                self.raw(opcode);
                self.raw(&[low | 5]);
                self.module_field(target, 0);
            }
            Address::Registers {
                base,
                index,
                displacement,
            } => {
                rex |= base.map_or(0, |base| base.number() >> 3);
                rex |= index.map_or(0, |(index, _)| index.number() >> 3 << 1);
                if rex != 0x40 {
                    self.raw(&[rex]);
                }
                self.raw(opcode);
                let sib = match index {
                    Some((index, scale)) => scale << 6 | (index.number() & 7) << 3,
                    None => 4 << 3,
                };
                let Some(base) = base else {
                    self.raw(&[low | 4, sib | 5]);
                    self.raw(&displacement.to_le_bytes());
                    return;
                };
                let number = base.number() & 7;
                // The shortest encoding: yields stand on fast paths, and a core's instruction window holds
                // few of them.
                let (mode, bytes) = match i8::try_from(displacement) {
                    Ok(0) if number != 5 => (0, 0),
                    Ok(_) => (0x40, 1),
                    Err(_) => (0x80, 4),
                };
                if index.is_some() || number == 4 {
                    self.raw(&[mode | low | 4, sib | number]);
                } else {
                    self.raw(&[mode | low | number]);
                }
                self.raw(&displacement.to_le_bytes()[..bytes]);
            }
        }
    }

    /// `lea register, [register + 1]`.
    pub(super) fn add_one(&mut self, register: Gpr) {
        let number = register.number();
        let high = number >> 3;
        self.raw(&[
            0x48 | high << 2 | high,
            0x8d,
            0x40 | (number & 7) << 3 | number & 7,
        ]);
        if number & 7 == 4 {
            self.raw(&[0x24]);
        }
        self.raw(&[1]);
    }

    /// An instruction whose operand is the pattern at the start of the code area.
    pub(super) fn with_pattern(&mut self, before_field: &[u8], after_field: &[u8]) {
        self.raw(before_field);
        let trailing = u8::try_from(after_field.len()).expect("at most an immediate");
        self.data_field(DataTarget::Pattern, trailing);
        self.raw(after_field);
    }
}

/// How a counter is incremented.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Increment {
    /// Without a lock prefix: racing threads may lose an increment.
    Plain,
    /// With a lock prefix.
    Locked,
}

/// Operand size, by REX.W.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Width {
    /// 64-bit operation.
    Quad,
    /// The size the instruction has without REX.W.
    Default,
}

#[cfg(test)]
mod tests {
    use iced_x86::{Decoder, DecoderOptions, Formatter, IntelFormatter};

    use super::*;

    /// The emitted code, disassembled.
    fn read(emit: impl FnOnce(&mut Emitter)) -> String {
        let mut out = Emitter::default();
        emit(&mut out);
        let mut decoder = Decoder::with_ip(64, &out.bytes, 0, DecoderOptions::NONE);
        let mut formatter = IntelFormatter::new();
        let mut text = String::new();
        while decoder.can_decode() {
            let instruction = decoder.decode();
            if !text.is_empty() {
                text.push('\n');
            }
            formatter.format(&instruction, &mut text);
        }
        text
    }

    fn check(emit: impl FnOnce(&mut Emitter), expected: &str) {
        assert_eq!(read(emit), expected);
    }

    #[test]
    fn every_form_reads_as_what_it_is_called() {
        let r12 = Gpr::new(12);
        let r9 = Gpr::new(9);
        check(|out| out.push(r9), "push r9");
        check(|out| out.pop(Gpr::RDI), "pop rdi");
        check(|out| out.move_stack(-128), "lea rsp,[rsp-80h]");
        check(|out| out.move_stack(128), "lea rsp,[rsp+80h]");
        check(|out| out.copy(r9, Gpr::RAX), "mov r9,rax");
        check(|out| out.copy(Gpr::RAX, r12), "mov rax,r12");
        check(|out| out.copy_low(Gpr::RSI, Gpr::RAX), "mov esi,eax");
        check(|out| out.subtract_low(Gpr::RAX, r9), "sub eax,r9d");
        check(|out| out.constant(r9, 0x1122), "mov r9,1122h");
        check(|out| out.add_one(r12), "lea r12,[r12+1]");
        check(|out| out.add_one(Gpr::RDX), "lea rdx,[rdx+1]");
        check(Emitter::lahf, "lahf");
        check(Emitter::seto_al, "seto al");
        check(Emitter::overflow_from_al, "cmp al,81h");
        check(Emitter::sahf, "sahf");
        check(
            |out| out.increment(0, Increment::Locked),
            "lock inc qword ptr [8]",
        );
        check(
            |out| out.increment(0, Increment::Plain),
            "inc qword ptr [7]",
        );
        check(
            |out| out.word_of_stack(r9, Gpr::RDX, 0),
            "lea r9,[7]\nmov rdx,rsp\nshr rdx,0Fh\nand edx,1C0h",
        );
        check(|out| out.load_word(r9, 0), "mov r9,[7]");
        check(|out| out.store_word(Gpr::RCX, 0), "mov [7],rcx");
        check(|out| out.count_down(0), "sub dword ptr [7],1");
        check(|out| out.test_slot(0), "cmp dword ptr [7],0");
        check(
            |out| out.call_entry(membound_wire::Entry::Yield),
            "call qword ptr [6]",
        );
        check(
            |out| out.jump_entry(membound_wire::Entry::Wrap),
            "jmp qword ptr [6]",
        );
        check(|out| out.jump_if_back(Condition::LESS_OR_EQUAL, 0), "jle 0");
        check(|out| out.jump_to(Gpr::RCX), "jmp rcx");
        check(|out| out.jump_to(r9), "jmp r9");
        check(|out| out.skip_if(Condition::CARRY, 2), "jb short 4");
    }

    #[test]
    fn operands_have_every_base_and_index() {
        for base in Gpr::all() {
            for index in Gpr::all().filter(|index| *index != Gpr::RSP) {
                let expected = format!("lea r10,[{base}+{index}*4-7]");
                check(
                    |out| {
                        out.address(
                            Gpr::new(10),
                            Address::Registers {
                                base: Some(base),
                                index: Some((index, 2)),
                                displacement: -7,
                            },
                        );
                    },
                    &expected,
                );
            }
            let operand = Address::Registers {
                base: Some(base),
                index: None,
                displacement: 16,
            };
            check(
                |out| out.with_operand(&[], Width::Default, &[0x0f, 0x18], 1, operand),
                &format!("prefetcht0 [{base}+10h]"),
            );
        }
        let absolute = Address::Registers {
            base: None,
            index: None,
            displacement: 0x1234,
        };
        check(|out| out.address(Gpr::RAX, absolute), "lea rax,[1234h]");
        check(
            |out| out.address(Gpr::RAX, Address::Module(0x40)),
            "lea rax,[40h]",
        );
    }

    #[test]
    fn jumps_out_of_reach_are_refused() {
        let mut out = Emitter::default();
        out.jump(1 << 33);
        assert!(out.overflowed);
    }

    #[test]
    fn a_jump_ahead_leads_to_where_it_lands() {
        check(
            |out| {
                let field = out.jump_ahead();
                out.sahf();
                out.land(field);
                out.lahf();
            },
            "jmp 6\nsahf\nlahf",
        );
    }
}
