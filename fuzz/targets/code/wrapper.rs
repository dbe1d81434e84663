//! A small executable around any code: unwind information, symbols and a compiler's note,
//! so that what is in question is the code and not its file.

const HEADER: u64 = 64;
const PROGRAM_HEADER: u64 = 56;
const PAGE: u64 = 4096;

/// Whether the file has a place of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A shared object: lies anywhere.
    Shared,
    /// An executable for a fixed address.
    Fixed,
}

/// An ELF file whose text is `functions`, one after the other.
pub fn wrap(kind: Kind, functions: &[&[u8]]) -> Vec<u8> {
    let base = match kind {
        Kind::Shared => 0,
        Kind::Fixed => 0x40_0000,
    };
    let text_offset = HEADER + 2 * PROGRAM_HEADER;
    let mut text = Vec::new();
    let mut extents = Vec::new();
    for code in functions {
        extents.push((base + text_offset + text.len() as u64, code.len() as u64));
        text.extend_from_slice(code);
    }
    let frames_offset = (text_offset + text.len() as u64).next_multiple_of(8);
    let frames = frames(base + frames_offset, &extents);
    let symbols_offset = (frames_offset + frames.len() as u64).next_multiple_of(8);
    let (symbols, names) = symbols(&extents);
    let names_offset = symbols_offset + symbols.len() as u64;
    let comment = b"GCC: (GNU) 14.2.0\0";
    let comment_offset = names_offset + names.len() as u64;
    let titles: &[u8] = b"\0.text\0.eh_frame\0.symtab\0.strtab\0.comment\0.shstrtab\0";
    let titles_offset = comment_offset + comment.len() as u64;
    let sections_offset = (titles_offset + titles.len() as u64).next_multiple_of(8);
    let loaded = symbols_offset;

    let mut file = Vec::new();
    file.extend_from_slice(b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0");
    file.extend_from_slice(&(if kind == Kind::Fixed { 2_u16 } else { 3 }).to_le_bytes());
    file.extend_from_slice(&62_u16.to_le_bytes());
    file.extend_from_slice(&1_u32.to_le_bytes());
    words(&mut file, &[base + text_offset, HEADER, sections_offset]);
    file.extend_from_slice(&0_u32.to_le_bytes());
    for half in [64_u16, 56, 2, 64, 7, 6] {
        file.extend_from_slice(&half.to_le_bytes());
    }
    // Text with everything before it, and a page that is written to.
    let data = (base + loaded).next_multiple_of(PAGE) + PAGE;
    for (flags, offset, address, in_file, in_memory) in
        [(5_u32, 0, base, loaded, loaded), (6, 0, data, 0, PAGE)]
    {
        file.extend_from_slice(&1_u32.to_le_bytes());
        file.extend_from_slice(&flags.to_le_bytes());
        words(
            &mut file,
            &[offset, address, address, in_file, in_memory, PAGE],
        );
    }
    for (offset, bytes) in [
        (text_offset, &text[..]),
        (frames_offset, &frames),
        (symbols_offset, &symbols),
        (names_offset, &names),
        (comment_offset, comment),
        (titles_offset, titles),
    ] {
        file.resize(offset as usize, 0);
        file.extend_from_slice(bytes);
    }
    file.resize(sections_offset as usize, 0);
    let text_bytes = text.len() as u64;
    // Name, type, flags, address, offset, size, link, info, alignment, size of an entry.
    let sections: [[u64; 10]; 7] = [
        [0; 10],
        [
            1,
            1,
            6,
            base + text_offset,
            text_offset,
            text_bytes,
            0,
            0,
            16,
            0,
        ],
        [
            7,
            1,
            2,
            base + frames_offset,
            frames_offset,
            frames.len() as u64,
            0,
            0,
            8,
            0,
        ],
        [
            17,
            2,
            0,
            0,
            symbols_offset,
            symbols.len() as u64,
            4,
            1,
            8,
            24,
        ],
        [25, 3, 0, 0, names_offset, names.len() as u64, 0, 0, 1, 0],
        [
            33,
            1,
            0x30,
            0,
            comment_offset,
            comment.len() as u64,
            0,
            0,
            1,
            1,
        ],
        [42, 3, 0, 0, titles_offset, titles.len() as u64, 0, 0, 1, 0],
    ];
    for [
        name,
        kind,
        flags,
        address,
        offset,
        size,
        link,
        info,
        align,
        entry,
    ] in sections
    {
        file.extend_from_slice(&(name as u32).to_le_bytes());
        file.extend_from_slice(&(kind as u32).to_le_bytes());
        words(&mut file, &[flags, address, offset, size]);
        file.extend_from_slice(&(link as u32).to_le_bytes());
        file.extend_from_slice(&(info as u32).to_le_bytes());
        words(&mut file, &[align, entry]);
    }
    file
}

fn words(file: &mut Vec<u8>, values: &[u64]) {
    for value in values {
        file.extend_from_slice(&value.to_le_bytes());
    }
}

/// `.eh_frame` at `address`: one description a function.
fn frames(address: u64, extents: &[(u64, u64)]) -> Vec<u8> {
    let mut out = Vec::new();
    // Version 1, augmentation "zR", alignments 1 and -8, return address in 16, one byte
    // of augmentation: addresses are 32-bit and relative. CFA = rsp + 8.
    let common: [u8; 20] = [
        0, 0, 0, 0, 1, b'z', b'R', 0, 1, 0x78, 16, 1, 0x1b, 0x0c, 7, 8, 0x90, 1, 0, 0,
    ];
    out.extend_from_slice(&20_u32.to_le_bytes());
    out.extend_from_slice(&common);
    for (start, bytes) in extents {
        out.extend_from_slice(&16_u32.to_le_bytes());
        let back = out.len() as u32;
        out.extend_from_slice(&back.to_le_bytes());
        let relative = start.wrapping_sub(address + out.len() as u64) as u32;
        out.extend_from_slice(&relative.to_le_bytes());
        out.extend_from_slice(&(*bytes as u32).to_le_bytes());
        out.extend_from_slice(&[0; 4]);
    }
    out.extend_from_slice(&[0; 4]);
    out
}

/// `.symtab` and `.strtab`: functions `f0`, `f1`, ….
fn symbols(extents: &[(u64, u64)]) -> (Vec<u8>, Vec<u8>) {
    let mut table = vec![0; 24];
    let mut names = vec![0];
    for (number, (start, bytes)) in extents.iter().enumerate() {
        table.extend_from_slice(&(names.len() as u32).to_le_bytes());
        // A global function in the first section.
        table.extend_from_slice(&[0x12, 0, 1, 0]);
        words(&mut table, &[*start, *bytes]);
        names.extend_from_slice(format!("f{number}\0").as_bytes());
    }
    (table, names)
}
