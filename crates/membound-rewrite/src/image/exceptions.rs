//! Determines whether code may read the sticky floating-point exception bits of MXCSR.

use std::ops::Range;

use iced_x86::{Decoder, DecoderOptions, Instruction, Mnemonic, OpKind};

use super::Image;
use super::symbols::DynamicSymbols;

/// Functions of the C library that return the bits, or save them for a later query.
const TELLING: [&[u8]; 6] = [
    b"fetestexcept",
    b"fegetexceptflag",
    b"fegetenv",
    b"feholdexcept",
    b"feupdateenv",
    b"fetestexceptflag",
];
/// Symbols that only the C library, the loader, the mathematical library and the compiler's runtime library
/// define. These libraries read MXCSR for its rounding mode, or return the bits through one of the functions
/// above.
const RUNTIME: [&[u8]; 4] = [
    b"__libc_start_main",
    b"__tls_get_addr",
    b"fetestexcept",
    b"_Unwind_RaiseException",
];

impl Image<'_> {
    /// True if the image's code may read floating-point exception bits. Errs only towards true: if bytes
    /// cannot be decoded reliably, the answer is true.
    #[must_use]
    pub fn reads_exceptions(&self) -> bool {
        let dynamic = DynamicSymbols::read(&self.layout);
        if dynamic.defined().any(|name| RUNTIME.contains(&name)) {
            return false;
        }
        let calls = dynamic.undefined().any(|name| TELLING.contains(&name));
        calls || self.text.iter().any(|text| self.stores_them(text))
    }

    fn stores_them(&self, text: &Range<u64>) -> bool {
        let Some(bytes) = self.bytes(text.clone()) else {
            return true;
        };
        let candidates = bytes
            .windows(3)
            .enumerate()
            .filter(|(_, window)| may_store([window[0], window[1], window[2]]));
        let mut function_range = 0..0;
        for (at, _) in candidates {
            let address = text.start + at as u64;
            if function_range.contains(&address) {
                continue;
            }
            let Some(function) = self.function_at(address) else {
                return true;
            };
            function_range = self.functions[function].range.clone();
            if self.function_stores_them(&function_range) {
                return true;
            }
        }
        false
    }

    fn function_stores_them(&self, range: &Range<u64>) -> bool {
        let Some(bytes) = self.bytes(range.clone()) else {
            return true;
        };
        let mut decoder = Decoder::with_ip(64, bytes, range.start, DecoderOptions::NONE);
        let mut before: Option<Instruction> = None;
        while decoder.can_decode() {
            let instruction = decoder.decode();
            if before.is_some_and(|before| !sets_bits_of(&before, &instruction)) {
                return true;
            }
            before = stores(&instruction).then_some(instruction);
        }
        before.is_some()
    }
}

/// True if these bytes may contain the end of the opcode and the operand of an instruction that [`stores`]
/// matches.
const fn may_store([before, opcode, operand]: [u8; 3]) -> bool {
    // After `0f` or the part of a VEX prefix that replaces it: `ae` with 0 (fxsave), 3 (stmxcsr), 4 (xsave),
    // 6 (xsaveopt), and `c7` with 4 (xsavec), 5 (xsaves), all with a memory operand.
    let register = operand >> 3 & 7;
    operand < 0xc0
        && match opcode {
            0xae => matches!(before, 0x0f | 0xf8 | 0x78) && matches!(register, 0 | 3 | 4 | 6),
            0xc7 => before == 0x0f && matches!(register, 4 | 5),
            _ => false,
        }
}

/// True if an instruction writes MXCSR to memory.
fn stores(instruction: &Instruction) -> bool {
    matches!(
        instruction.mnemonic(),
        Mnemonic::Stmxcsr
            | Mnemonic::Vstmxcsr
            | Mnemonic::Fxsave
            | Mnemonic::Fxsave64
            | Mnemonic::Xsave
            | Mnemonic::Xsave64
            | Mnemonic::Xsavec
            | Mnemonic::Xsavec64
            | Mnemonic::Xsaveopt
            | Mnemonic::Xsaveopt64
            | Mnemonic::Xsaves
            | Mnemonic::Xsaves64
    )
}

/// True if `next` only sets bits in the stored MXCSR, as in the startup code that compilers emit for programs
/// that may flush denormals to zero.
fn sets_bits_of(store: &Instruction, next: &Instruction) -> bool {
    matches!(store.mnemonic(), Mnemonic::Stmxcsr | Mnemonic::Vstmxcsr)
        && next.mnemonic() == Mnemonic::Or
        && next.op0_kind() == OpKind::Memory
        && next.op1_kind() != OpKind::Register
        && next.memory_base() == store.memory_base()
        && next.memory_index() == store.memory_index()
        && next.memory_displacement64() == store.memory_displacement64()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `store`, `or dword ptr [rsp-4], 0x8040`, both decoded.
    fn pair(store: &[u8], next: &[u8]) -> [Instruction; 2] {
        [store, next].map(|bytes| Decoder::new(64, bytes, DecoderOptions::NONE).decode())
    }

    #[test]
    fn setting_how_denormals_are_treated_reads_no_exceptions() {
        let store = [0x0f, 0xae, 0x5c, 0x24, 0xfc];
        let sets = [0x81, 0x4c, 0x24, 0xfc, 0x40, 0x80, 0x00, 0x00];
        let [store, next] = pair(&store, &sets);
        assert!(stores(&store) && sets_bits_of(&store, &next));
        // test byte ptr [rsp-4], 0x20; or dword ptr [rsp-8], 0x8040; or [rsp-4], eax
        for other in [
            &[0xf6, 0x44, 0x24, 0xfc, 0x20][..],
            &[0x81, 0x4c, 0x24, 0xf8, 0x40, 0x80, 0x00, 0x00],
            &[0x09, 0x44, 0x24, 0xfc],
        ] {
            let [_, other] = pair(&[0x90], other);
            assert!(!sets_bits_of(&store, &other), "{other}");
        }
    }

    #[test]
    fn instructions_that_may_store_exceptions_are_found_in_the_bytes() {
        for (bytes, may) in [
            ([0x0f, 0xae, 0x5c], true),
            ([0xf8, 0xae, 0x18], true),
            ([0x0f, 0xae, 0x20], true),
            ([0x0f, 0xc7, 0x20], true),
            // ldmxcsr, sfence, cmpxchg16b
            ([0x0f, 0xae, 0x54], false),
            ([0x0f, 0xae, 0xf8], false),
            ([0x0f, 0xc7, 0x0c], false),
        ] {
            assert_eq!(may_store(bytes), may, "{bytes:x?}");
        }
    }
}
