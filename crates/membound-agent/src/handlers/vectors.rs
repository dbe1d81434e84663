//! The `xmm` registers in a signal frame.
//!
//! Behind the general registers a frame has the address of the area of `fxsave`. Where the processor has
//! more registers, the kernel extends this area in the layout of `xsave`.

use crate::memory;
use crate::signal_frame::REGISTERS_OFFSET;

/// Offset in a `ucontext` of the area's address: behind 23 registers of eight bytes each.
pub(crate) const AREA_OFFSET: usize = REGISTERS_OFFSET + 23 * 8;
/// Offset of `xmm0` in the area.
const XMM_OFFSET: usize = 160;
const XMM_BYTES: usize = 16;
/// Offset of the magic number of an extended area; `FILLED_OFFSET` is the offset of the bits that
/// say which parts are filled in.
pub(crate) const MAGIC_OFFSET: usize = 464;
pub(crate) const MAGIC: u32 = 0x4650_5853;
const FILLED_OFFSET: usize = 512;
/// The bit of the `xmm` registers among these.
const XMM_FILLED: u64 = 2;

/// Puts the 16 bytes at each address into the register of this number, in the frame whose `ucontext` is at
/// `context`.
///
/// # Safety
///
/// The kernel made the frame, for a handler that has not returned, and the bytes can be read.
pub(crate) unsafe fn put(context: usize, values: impl Iterator<Item = (u8, u64)>) {
    // SAFETY: every frame has this field.
    let area: usize = unsafe { memory::get(context + AREA_OFFSET) };
    if area == 0 {
        return;
    }
    let mut values = values.peekable();
    if values.peek().is_some() {
        // SAFETY: the frame names its area.
        unsafe { fill_in(area) };
    }
    for (number, from) in values {
        let place = area + XMM_OFFSET + XMM_BYTES * usize::from(number & 15);
        // SAFETY: the caller vouches for it.
        let value: [u64; 2] = unsafe { memory::get(from as usize) };
        // SAFETY: the area has sixteen of them, and it is the handler's to change.
        unsafe { memory::put(place, value) };
    }
}

/// Zeroes registers that are in their initial state, which the kernel has not written to the frame, and
/// marks them filled in.
///
/// # Safety
///
/// A signal frame's area is at `area`.
unsafe fn fill_in(area: usize) {
    // SAFETY: these bytes are in every area, for the kernel's use.
    let magic: u32 = unsafe { memory::get(area + MAGIC_OFFSET) };
    if magic != MAGIC {
        return;
    }
    // SAFETY: it is extended.
    let filled: u64 = unsafe { memory::get(area + FILLED_OFFSET) };
    if filled & XMM_FILLED == 0 {
        // SAFETY: the area has sixteen registers.
        unsafe { memory::put(area + XMM_OFFSET, [0_u64; 2 * XMM_BYTES]) };
        // SAFETY: as above.
        unsafe { memory::put(area + FILLED_OFFSET, filled | XMM_FILLED) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORDS: usize = 72;

    /// An area whose registers have bytes of ones, extended if `filled` gives the filled parts; returns it
    /// after `xmm3` has got a value.
    fn with_third(filled: Option<u64>) -> [u64; WORDS] {
        let mut area = [u64::MAX; WORDS];
        area[MAGIC_OFFSET / 8] = filled.map_or(0, |_| u64::from(MAGIC));
        area[FILLED_OFFSET / 8] = filled.unwrap_or(7);
        let mut context = [0_u64; 32];
        context[AREA_OFFSET / 8] = (&raw mut area) as u64;
        let value = [3_u64, 4];
        let values = core::iter::once((3, (&raw const value) as u64));
        // SAFETY: it is laid out as a frame is.
        unsafe { put((&raw const context) as usize, values) };
        area
    }

    fn register(area: &[u64; WORDS], number: usize) -> [u64; 2] {
        let at = (XMM_OFFSET + XMM_BYTES * number) / 8;
        [area[at], area[at + 1]]
    }

    #[test]
    fn only_the_named_register_is_restored() {
        for filled in [None, Some(2), Some(7)] {
            let area = with_third(filled);
            assert_eq!(register(&area, 3), [3, 4]);
            assert_eq!(register(&area, 2), [u64::MAX; 2]);
            assert_eq!(register(&area, 4), [u64::MAX; 2]);
            assert_eq!(area[FILLED_OFFSET / 8], filled.unwrap_or(7));
        }
    }

    #[test]
    fn registers_in_their_first_state_are_filled_in() {
        let area = with_third(Some(5));
        assert_eq!(area[FILLED_OFFSET / 8], 7);
        assert_eq!(register(&area, 3), [3, 4]);
        assert_eq!(register(&area, 0), [0; 2]);
        assert_eq!(register(&area, 15), [0; 2]);
        assert_eq!(area[XMM_OFFSET / 8 - 1], u64::MAX);
        assert_eq!(area[(XMM_OFFSET + 256) / 8], u64::MAX);
    }
}
