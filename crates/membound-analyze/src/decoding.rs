//! Decodes the machine code that a run contains, instruction by instruction.

use iced_x86::{
    Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, OpAccess, Register,
};
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

/// Address of a memory operand, as it is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AddressExpression {
    segment: Register,
    base: Register,
    index: Register,
    scale: u32,
    displacement: u64,
}

impl AddressExpression {
    pub(crate) fn of(instruction: &Instruction) -> Self {
        Self {
            segment: instruction.segment_prefix(),
            base: instruction.memory_base(),
            index: instruction.memory_index(),
            scale: instruction.memory_index_scale(),
            displacement: instruction.memory_displacement64(),
        }
    }

    /// True if it has another value once one of these registers has.
    pub(crate) fn depends_on(&self, registers: &[Register]) -> bool {
        let own = [self.base, self.index];
        own.iter().any(|it| registers.contains(&it.full_register()))
    }
}

/// What an instruction changes.
pub(crate) struct Changes {
    /// The registers, at their full width.
    pub(crate) registers: Vec<Register>,
    pub(crate) memory: Option<AddressExpression>,
}

impl Changes {
    pub(crate) fn of(factory: &mut InstructionInfoFactory, instruction: &Instruction) -> Self {
        let changes = |access| {
            matches!(
                access,
                OpAccess::Write
                    | OpAccess::CondWrite
                    | OpAccess::ReadWrite
                    | OpAccess::ReadCondWrite
            )
        };
        let info = factory.info(instruction);
        let registers = info.used_registers().iter();
        let registers = registers.filter(|it| changes(it.access()));
        let mut memory = info.used_memory().iter();
        Self {
            registers: registers.map(|it| it.register().full_register()).collect(),
            memory: memory
                .any(|it| changes(it.access()))
                .then(|| AddressExpression::of(instruction)),
        }
    }
}

/// True if the instruction at `address` loads from where an instruction that always follows it stores:
/// `x = x + 1` in several instructions.
pub(crate) fn is_stored_back(functions: &Functions<'_>, module: ModuleId, address: u64) -> bool {
    let following = functions.from(module, address);
    following.is_some_and(|following| first_is_stored_back(following.into_iter()))
}

fn first_is_stored_back(mut instructions: impl Iterator<Item = Instruction>) -> bool {
    let Some(load) = instructions.next() else {
        return false;
    };
    let loaded = AddressExpression::of(&load);
    let mut factory = InstructionInfoFactory::new();
    let mut before = Changes::of(&mut factory, &load);
    for instruction in instructions {
        if loaded.depends_on(&before.registers) || instruction.flow_control() != FlowControl::Next {
            return false;
        }
        let changes = Changes::of(&mut factory, &instruction);
        if changes.memory.as_ref() == Some(&loaded) {
            return true;
        }
        before = changes;
    }
    false
}

#[cfg(test)]
mod tests {
    use iced_x86::code_asm::*;

    use super::*;

    fn is_stored_back(assemble: impl FnOnce(&mut CodeAssembler) -> Result<(), IcedError>) -> bool {
        let mut assembler = CodeAssembler::new(64).unwrap();
        assemble(&mut assembler).unwrap();
        let bytes = assembler.assemble(0x1000).unwrap();
        first_is_stored_back(decoder(&bytes, 0x1000).into_iter())
    }

    #[test]
    fn a_load_is_stored_back_where_a_store_to_its_address_always_follows() {
        assert!(is_stored_back(|a| {
            a.mov(rax, qword_ptr(rdi + 8))?;
            a.add(rax, 1)?;
            a.mov(qword_ptr(rdi + 8), rax)
        }));
        assert!(!is_stored_back(|a| {
            a.mov(rax, qword_ptr(rdi + 8))?;
            a.mov(qword_ptr(rdi + 16), rax)
        }));
        assert!(!is_stored_back(|a| {
            a.mov(rdi, qword_ptr(rdi + 8))?;
            a.mov(qword_ptr(rdi + 8), rax)
        }));
        assert!(!is_stored_back(|a| {
            let mut behind = a.create_label();
            a.mov(rax, qword_ptr(rdi))?;
            a.test(rax, rax)?;
            a.je(behind)?;
            a.mov(qword_ptr(rdi), rcx)?;
            a.set_label(&mut behind)?;
            a.nop()
        }));
    }
}
