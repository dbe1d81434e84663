//! Plans and files for tests.

use membound_types::{HarvestFunction, HarvestPlan, HarvestRole, HarvestSite, YieldKind};

use crate::by_hand;

/// A primary's plan of a file, without any site.
pub(crate) fn plan_for(path: &str, identity: String) -> HarvestPlan {
    HarvestPlan {
        command: vec!["./store".to_owned(), "a b".to_owned()],
        ..by_hand::without_sites(path, identity, HarvestRole::Primary)
    }
}

/// A chosen site.
pub(crate) fn site(path: &str, offset: u64, kind: YieldKind, every: u32) -> HarvestSite {
    HarvestSite {
        executions: Some(1e6),
        executions_low: None,
        executions_high: None,
        ..HarvestSite::chosen(path.to_owned(), offset, kind, every)
    }
}

/// A function with this share of the time and this longest distance between yields.
pub(crate) fn function(
    path: &str,
    offset: u64,
    time_fraction: f64,
    distance_ns: Option<f64>,
) -> HarvestFunction {
    HarvestFunction {
        module: path.to_owned(),
        offset,
        symbol: String::new(),
        time_fraction,
        distance_ns,
        profiled: true,
        gaps: Vec::new(),
    }
}

/// Address of the code of [`elf`].
pub(crate) const TEXT: u64 = 0x1000;

/// A shared object of nothing but `text` at [`TEXT`], with functions of these names, addresses and lengths.
pub(crate) fn elf(text: &[u8], functions: &[(&str, u64, u64)]) -> Vec<u8> {
    const HEADER: usize = 64;
    const SECTION_NAMES: &[u8] = b"\0.text\0.symtab\0.strtab\0.shstrtab\0";
    let mut names = vec![0_u8];
    let mut symbols = vec![0_u8; 24];
    for (name, at, length) in functions {
        symbols.extend_from_slice(&(names.len() as u32).to_le_bytes());
        // A global function of the first section.
        symbols.extend_from_slice(&[0x12, 0, 1, 0]);
        symbols.extend_from_slice(&at.to_le_bytes());
        symbols.extend_from_slice(&length.to_le_bytes());
        names.extend_from_slice(name.as_bytes());
        names.push(0);
    }
    let mut file = vec![0_u8; TEXT as usize];
    file.extend_from_slice(text);
    let loaded = file.len() as u64;
    let mut place = |bytes: &[u8]| {
        file.resize(file.len().next_multiple_of(8), 0);
        let at = file.len() as u64;
        file.extend_from_slice(bytes);
        (at, bytes.len() as u64)
    };
    let symbols = place(&symbols);
    let names = place(&names);
    let section_names = place(SECTION_NAMES);
    let mut sections = vec![0_u8; HEADER];
    // Name, type, flags, address, (offset, size), link, info, entry size.
    let table = [
        (1, 1, 6, TEXT, (TEXT, text.len() as u64), 0, 0, 0),
        (7, 2, 0, 0, symbols, 3, 1, 24),
        (15, 3, 0, 0, names, 0, 0, 0),
        (23, 3, 0, 0, section_names, 0, 0, 0),
    ];
    for (name, kind, flags, address, (at, length), link, info, entry) in table {
        let fields: [u32; 2] = [name, kind];
        sections.extend_from_slice(fields.map(u32::to_le_bytes).as_flattened());
        let fields: [u64; 4] = [flags, address, at, length];
        sections.extend_from_slice(fields.map(u64::to_le_bytes).as_flattened());
        let fields: [u32; 2] = [link, info];
        sections.extend_from_slice(fields.map(u32::to_le_bytes).as_flattened());
        let fields: [u64; 2] = [8, entry];
        sections.extend_from_slice(fields.map(u64::to_le_bytes).as_flattened());
    }
    let (at_sections, _) = place(&sections);
    let mut header = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
    header.extend_from_slice(&[3, 0, 62, 0, 1, 0, 0, 0]);
    header.extend_from_slice(
        &[0, HEADER as u64, at_sections]
            .map(u64::to_le_bytes)
            .concat(),
    );
    header.extend_from_slice(&0_u32.to_le_bytes());
    header.extend_from_slice(&[64, 56, 1, 64, 5, 4].map(u16::to_le_bytes).concat());
    // One segment that holds everything, readable and executable.
    header.extend_from_slice(&[1, 5].map(u32::to_le_bytes).concat());
    let segment = [0, 0, 0, loaded, loaded, 0x1000];
    header.extend_from_slice(&segment.map(u64::to_le_bytes).concat());
    file[..header.len()].copy_from_slice(&header);
    file
}
