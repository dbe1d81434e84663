//! Converts wire structures to bytes and back, field by field: no memory layout is reinterpreted.

use membound_wire::{Command, Hello, Reply, TextEdit};

/// Bytes of a [`Hello`].
pub(crate) const HELLO_BYTES: usize = size_of::<Hello>();
/// Bytes of a [`Reply`].
pub(crate) const REPLY_BYTES: usize = size_of::<Reply>();
/// Bytes of a [`TextEdit`].
pub(crate) const EDIT_BYTES: usize = size_of::<TextEdit>();

/// The bytes of a command.
pub(crate) fn command(command: &Command) -> Vec<u8> {
    let mut out = Vec::with_capacity(size_of::<Command>());
    out.extend(command.action.to_ne_bytes());
    out.extend(command.mode.to_ne_bytes());
    for word in [
        command.address,
        command.length,
        command.offset,
        command.count,
        command.extra,
        command.base,
    ] {
        out.extend(word.to_ne_bytes());
    }
    out
}

/// The greeting in `bytes`.
pub(crate) fn hello(bytes: &[u8; HELLO_BYTES]) -> Hello {
    let mut from = Reader(bytes);
    Hello {
        magic: from.u32(),
        version: from.u32(),
        event: from.u32(),
        flags: from.u32(),
        pid: from.u32(),
        tid: from.u32(),
        loader_hook: from.u64(),
        loader_hook_bytes: from.take(),
        range: std::array::from_fn(|_| from.u64()),
        entries: std::array::from_fn(|_| from.u64()),
        agent: std::array::from_fn(|_| from.u64()),
    }
}

/// The answer in `bytes`.
pub(crate) fn reply(bytes: &[u8; REPLY_BYTES]) -> Reply {
    let mut from = Reader(bytes);
    Reply {
        errno: from.u32(),
        detail: from.u32(),
        count: from.u64(),
        stop_ns: from.u64(),
        changing_ns: from.u64(),
    }
}

/// Appends `edit`.
pub(crate) fn push_edit(out: &mut Vec<u8>, edit: &TextEdit) {
    out.extend(edit.address.to_ne_bytes());
    out.extend(edit.target.to_ne_bytes());
    out.extend(edit.fingerprint.to_ne_bytes());
    out.extend(edit.group.to_ne_bytes());
    out.extend([edit.length, edit.starts]);
    out.extend(edit.old);
    out.extend(edit.new);
}

/// Reads integers from bytes whose length was checked by their type.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let (head, rest) = self
            .0
            .split_first_chunk()
            .expect("the array is as long as its struct");
        self.0 = rest;
        *head
    }

    fn u32(&mut self) -> u32 {
        u32::from_ne_bytes(self.take())
    }

    fn u64(&mut self) -> u64 {
        u64::from_ne_bytes(self.take())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_struct_takes_the_bytes_of_its_layout() {
        assert_eq!(command(&Command::default()).len(), size_of::<Command>());
        let mut edits = Vec::new();
        push_edit(&mut edits, &TextEdit::default());
        assert_eq!(edits.len(), EDIT_BYTES);
        // Reading all of them uses up exactly the bytes: otherwise the reader fails.
        let bytes: [u8; HELLO_BYTES] = std::array::from_fn(|at| at as u8);
        let read = hello(&bytes);
        assert_eq!(read.magic, u32::from_ne_bytes([0, 1, 2, 3]));
        assert_eq!(
            read.agent[1].to_ne_bytes(),
            bytes[HELLO_BYTES - 8..],
            "the last field ends where the struct does"
        );
        let bytes: [u8; REPLY_BYTES] = std::array::from_fn(|at| at as u8);
        assert_eq!(reply(&bytes).changing_ns.to_ne_bytes(), bytes[24..]);
    }

    #[test]
    fn fields_of_a_command_stand_in_their_order() {
        let bytes = command(&Command {
            action: 1,
            mode: 2,
            address: 3,
            length: 4,
            offset: 5,
            count: 6,
            extra: 7,
            base: 8,
        });
        let words: Vec<u8> = bytes[8..].iter().copied().step_by(8).collect();
        assert_eq!(words, [3, 4, 5, 6, 7, 8]);
        assert_eq!((bytes[0], bytes[4]), (1, 2));
    }
}
