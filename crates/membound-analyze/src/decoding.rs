//! Decodes the machine code that a run contains, instruction by instruction.

use iced_x86::{Decoder, DecoderOptions};
use membound_run::{Code, ModuleId, RunData};

/// Functions whose machine code the run contains, sorted by module and address.
pub(crate) struct Functions<'a>(Vec<&'a Code>);

impl<'a> Functions<'a> {
    pub(crate) fn new(run: &'a RunData) -> Self {
        let mut sorted: Vec<&Code> = run.code.iter().collect();
        sorted.sort_by_key(|code| (code.module, code.address));
        Self(sorted)
    }

    /// Function whose machine code contains `address`.
    pub(crate) fn containing(&self, module: ModuleId, address: u64) -> Option<&'a Code> {
        let behind = self
            .0
            .partition_point(|code| (code.module, code.address) <= (module, address));
        let code = *self.0.get(behind.checked_sub(1)?)?;
        let length = code.bytes.len() as u64;
        (code.module == module && address - code.address < length).then_some(code)
    }

    /// Decoder for the function that contains `address`, starting at `address`.
    pub(crate) fn from(&self, module: ModuleId, address: u64) -> Option<Decoder<'a>> {
        let code = self.containing(module, address)?;
        let from = usize::try_from(address - code.address).ok()?;
        Some(decoder(code.bytes.get(from..)?, address))
    }
}

/// Decodes `bytes`, whose first byte has the address `address`.
pub(crate) fn decoder(bytes: &[u8], address: u64) -> Decoder<'_> {
    Decoder::with_ip(64, bytes, address, DecoderOptions::NONE)
}
