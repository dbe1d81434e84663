//! Recognizes the padding that linkers and assemblers put between pieces of code.

use iced_x86::{Code, Decoder, DecoderOptions, Mnemonic, Register};

/// Length of the padding at the start of `bytes`: no-operations, `int3` and zeros.
pub(crate) fn leading_padding(bytes: &[u8]) -> usize {
    let mut at = 0;
    while at < bytes.len() {
        let rest = &bytes[at..];
        if rest[0] == 0 || rest[0] == 0xcc {
            at += 1;
            continue;
        }
        // Every other kind of padding begins with one of these bytes.
        if !matches!(rest[0], 0x90 | 0x66 | 0x2e | 0x0f | 0x8d | 0x48 | 0x87) {
            break;
        }
        let instruction = Decoder::new(64, rest, DecoderOptions::NONE).decode();
        let no_operation = match instruction.mnemonic() {
            Mnemonic::Nop => true,
            Mnemonic::Xchg => {
                instruction.code() == Code::Xchg_rm16_r16
                    && instruction.op0_register() == instruction.op1_register()
            }
            // lea rsi,[rsi+0] and the like.
            Mnemonic::Lea => {
                instruction.op0_register() == instruction.memory_base()
                    && instruction.memory_displacement64() == 0
                    && instruction.memory_index() == Register::None
                    && instruction.op0_register().is_gpr64()
            }
            _ => false,
        };
        if !no_operation {
            break;
        }
        at += instruction.len();
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(bytes: &[u8], padding: usize) {
        assert_eq!(leading_padding(bytes), padding, "{bytes:02x?}");
    }

    #[test]
    fn padding_ends_where_code_begins() {
        check(&[], 0);
        check(&[0x90, 0x90, 0xc3], 2);
        check(&[0x66, 0x90, 0xcc, 0x00, 0x55], 4);
        // cs nopw 0x0(%rax,%rax,1), then endbr64.
        check(
            &[
                0x66, 0x2e, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0, 0xf3, 0x0f, 0x1e, 0xfa,
            ],
            10,
        );
        // lea 0x0(%rsi),%rsi is padding, lea 0x8(%rsi),%rsi is not.
        check(&[0x48, 0x8d, 0x76, 0x00, 0xc3], 4);
        check(&[0x48, 0x8d, 0x76, 0x08, 0xc3], 0);
    }
}
