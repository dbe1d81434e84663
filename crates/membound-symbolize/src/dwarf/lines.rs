//! Source lines of instructions, from line programs.

use std::sync::Arc;

use gimli::{AttributeValue, ColumnType, DebugLineOffset, Dwarf, Reader as _};

use super::budget::Budget;
use super::sections::R;

/// Longest path that is shown, in bytes: the kernel opens none as long.
const MAX_PATH_BYTES: usize = 4096;

/// A position in a source file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct FileLine {
    pub(super) file: Option<Arc<str>>,
    pub(super) line: Option<u32>,
    pub(super) column: Option<u32>,
}

#[derive(Clone, Copy, Debug)]
struct Row {
    address: u64,
    file: u32,
    line: u32,
    column: u32,
}

/// A contiguous sequence of instructions.
#[derive(Debug)]
struct Sequence {
    start: u64,
    /// One past the last address.
    end: u64,
    rows: Vec<Row>,
}

/// The line table of a unit.
#[derive(Debug)]
pub(super) struct Lines {
    /// Sorted by first address.
    sequences: Vec<Sequence>,
    header: gimli::LineProgramHeader<R>,
    /// Paths by file number, as a cache.
    paths: std::collections::HashMap<u64, Option<Arc<str>>>,
}

impl Lines {
    pub(super) fn read(
        dwarf: &Dwarf<R>,
        unit: &gimli::Unit<R>,
        offset: DebugLineOffset,
        budget: &mut Budget,
    ) -> Result<Self, gimli::Error> {
        let program = dwarf.debug_line.program(
            offset,
            unit.header.address_size(),
            unit.comp_dir.clone(),
            unit.name.clone(),
        )?;
        // Units may refer to the same program, which is run for each of them.
        budget.spend(program.header().raw_program_buf().len() as u64)?;
        let mut sequences = Vec::new();
        let mut rows: Vec<Row> = Vec::new();
        let mut running = program.rows();
        while let Some((_, row)) = running.next_row()? {
            budget.spend(1)?;
            if row.end_sequence() {
                finish(&mut sequences, std::mem::take(&mut rows), row.address());
                continue;
            }
            let new = Row {
                address: row.address(),
                file: u32::try_from(row.file_index()).unwrap_or(u32::MAX),
                line: row
                    .line()
                    .map_or(0, |line| u32::try_from(line.get()).unwrap_or(0)),
                column: match row.column() {
                    ColumnType::LeftEdge => 0,
                    ColumnType::Column(column) => u32::try_from(column.get()).unwrap_or(0),
                },
            };
            match rows.last_mut() {
                // Of several rows for one address, the last one counts.
                Some(last) if last.address == new.address => *last = new,
                _ => rows.push(new),
            }
        }
        sequences.sort_by_key(|sequence: &Sequence| sequence.start);
        Ok(Self {
            sequences,
            header: running.header().clone(),
            paths: std::collections::HashMap::new(),
        })
    }

    /// Address ranges that have lines.
    pub(super) fn ranges(&self) -> impl Iterator<Item = gimli::Range> {
        self.sequences.iter().map(|sequence| gimli::Range {
            begin: sequence.start,
            end: sequence.end,
        })
    }

    pub(super) fn find(
        &mut self,
        dwarf: &Dwarf<R>,
        unit: &gimli::Unit<R>,
        address: u64,
    ) -> Option<FileLine> {
        let behind = self
            .sequences
            .partition_point(|sequence| sequence.start <= address);
        let sequence = &self.sequences[behind.checked_sub(1)?];
        if address >= sequence.end {
            return None;
        }
        let behind = sequence.rows.partition_point(|row| row.address <= address);
        let row = sequence.rows[behind.checked_sub(1)?];
        Some(FileLine {
            file: self.path(dwarf, unit, u64::from(row.file)),
            line: (row.line > 0).then_some(row.line),
            column: (row.column > 0).then_some(row.column),
        })
    }

    /// The path of the file with this number.
    pub(super) fn path(
        &mut self,
        dwarf: &Dwarf<R>,
        unit: &gimli::Unit<R>,
        file: u64,
    ) -> Option<Arc<str>> {
        let header = &self.header;
        self.paths
            .entry(file)
            .or_insert_with(|| path(dwarf, unit, header, file))
            .clone()
    }
}

fn finish(sequences: &mut Vec<Sequence>, mut rows: Vec<Row>, end: u64) {
    // Addresses increase within a sequence, except in handwritten files.
    if !rows.is_sorted_by_key(|row| row.address) {
        rows.sort_by_key(|row| row.address);
    }
    let Some(start) = rows.first().map(|row| row.address) else {
        return;
    };
    // Code that the linker discarded is said to be at 0.
    if start != 0 && start < end {
        sequences.push(Sequence { start, end, rows });
    }
}

fn path(
    dwarf: &Dwarf<R>,
    unit: &gimli::Unit<R>,
    header: &gimli::LineProgramHeader<R>,
    file: u64,
) -> Option<Arc<str>> {
    let file = header.file(file)?;
    let text = |value: AttributeValue<R>| -> Option<String> {
        let text = dwarf.attr_string(unit, value).ok()?;
        if text.len() > MAX_PATH_BYTES {
            return None;
        }
        Some(text.to_string_lossy().ok()?.into_owned())
    };
    let mut path = match &unit.comp_dir {
        Some(directory) if directory.len() <= MAX_PATH_BYTES => {
            directory.to_string_lossy().ok()?.into_owned()
        }
        _ => String::new(),
    };
    // Directory 0 is the unit's directory: before version 5 by definition, since then by convention.
    if file.directory_index() != 0
        && let Some(directory) = file.directory(header).and_then(text)
    {
        join(&mut path, &directory);
    }
    join(&mut path, &text(file.path_name())?);
    Some(path.into())
}

fn join(path: &mut String, more: &str) {
    if more.starts_with('/') {
        path.clear();
    } else if !path.is_empty() && !path.ends_with('/') {
        path.push('/');
    }
    path.push_str(more);
}
