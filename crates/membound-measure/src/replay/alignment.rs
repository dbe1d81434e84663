//! Where the copy of a loop lies.

use std::ops::Range;

/// Bytes of a line of code: processors fetch, decode and cache instructions line by line. A short loop that lies across two
/// lines may take twice as long as one that lies in a single line: on Zen 3 an iteration of a triad took 0.6 ns and 0.3.
const LINE: usize = 64;

/// Number of bytes to put before code that has a loop at the offsets `copy`, at an address that is a multiple of a line.
/// The loop then begins at the same offset in a line as at `program`. Its copy may be longer; if it would
/// lie across one more line than its length needs, and the program's does not, or the other way round, it begins at the
/// nearest offset where that is alike.
pub(super) fn lead(program: &Range<u64>, copy: Range<usize>) -> usize {
    let start = (program.start % LINE as u64) as usize;
    let length = (program.end - program.start) as usize;
    let is_crossing = crosses_one_more(start, length);
    let starts = (0..LINE).flat_map(|distance| [start + distance, start + LINE - distance]);
    let mut alike =
        starts.filter(|start| crosses_one_more(start % LINE, copy.len()) == is_crossing);
    (alike.next().unwrap_or(start) + LINE - copy.start % LINE) % LINE
}

/// True if code of `length` bytes that begins at offset `start` of a line touches one line more than it would if it
/// began at offset 0.
const fn crosses_one_more(start: usize, length: usize) -> bool {
    (start + length).div_ceil(LINE) > length.div_ceil(LINE)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Offset in a line at which a copy of this length begins.
    fn copied(program: Range<u64>, length: usize) -> usize {
        let begun = 39;
        (lead(&program, begun..begun + length) + begun) % LINE
    }

    #[test]
    fn a_copy_lies_across_lines_as_in_the_program() {
        assert_eq!(copied(0x1000..0x1020, 32), 0);
        assert_eq!(copied(0x1010..0x1030, 32), 16);
        // Longer: at 32 it would lie across two lines.
        assert_eq!(copied(0x13a0..0x13bc, 40), 24);
        // Across two lines in the program, where a copy at the same offset would not be.
        assert_eq!(copied(0x1030..0x1050, 32), 48);
        assert_eq!(copied(0x103c..0x1044, 3), 62);
        // One of a line's length lies in one line at one offset only, and one of a byte nowhere in two.
        assert_eq!(copied(0x1008..0x1028, 64), 0);
        assert_eq!(copied(0x103c..0x1044, 1), 60);
    }
}
