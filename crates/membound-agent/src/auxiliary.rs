//! The auxiliary vector, in which the kernel passes a process data about itself and the machine.

use crate::memory;
use crate::sys::{self, Errno};

/// Most entries of the vector, the last one not counted.
pub(crate) const MAX_AUXILIARY_ENTRIES: usize = 48;

/// Calls `each` with the type and the value of every entry of this process's vector.
pub(crate) fn each(mut each: impl FnMut(u64, u64)) -> Result<(), Errno> {
    let file = sys::open(c"/proc/self/auxv", sys::Open::Read)?;
    let mut bytes = [0; 16 * (MAX_AUXILIARY_ENTRIES + 1)];
    let length = sys::read(&file, &mut bytes)?;
    let mut rest = bytes.get(..length).unwrap_or_default();
    while let Some((entry, behind)) = rest.split_first_chunk::<16>() {
        rest = behind;
        // SAFETY: the chunk has sixteen bytes.
        let [kind, value]: [u64; 2] = unsafe { memory::get(entry.as_ptr() as usize) };
        if kind == 0 {
            break;
        }
        each(kind, value);
    }
    Ok(())
}
