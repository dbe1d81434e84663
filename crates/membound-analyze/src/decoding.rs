//! Machine code of a run, instruction by instruction.

use iced_x86::{Decoder, DecoderOptions};

/// Decodes `bytes`, the first of which lies at `address`.
pub(crate) fn decoder(bytes: &[u8], address: u64) -> Decoder<'_> {
    Decoder::with_ip(64, bytes, address, DecoderOptions::NONE)
}
