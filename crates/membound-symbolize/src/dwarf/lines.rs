//! The line of each instruction.

use std::sync::Arc;

use gimli::{AttributeValue, ColumnType, DebugLineOffset, Dwarf, Reader as _};

use super::{Budget, R};

/// Longest path that is shown, in bytes: the kernel opens none as long.
const LONGEST_PATH: usize = 4096;

/// A place in a source file.
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

/// Instructions that lie behind each other.
#[derive(Debug)]
struct Sequence {
    start: u64,
    /// One past the last address.
    end: u64,
    rows: Vec<Row>,
}

/// All lines of a unit.
#[derive(Debug)]
pub(super) struct Lines {
    /// By first address.
    sequences: Vec<Sequence>,
    header: gimli::LineProgramHeader<R>,
    /// Paths that were asked for, by the file's number.
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
        // Units may name the same program, which is run for each.
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
                // Of several rows for an instruction the last is what it does.
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

    /// Addresses that have lines.
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

    /// The path of a file by its number.
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
    // Addresses only grow in a sequence, unless somebody made it by hand.
    if !rows.is_sorted_by_key(|row| row.address) {
        rows.sort_by_key(|row| row.address);
    }
    let Some(start) = rows.first().map(|row| row.address) else {
        return;
    };
    // What the linker threw away is said to lie at 0.
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
        if text.len() > LONGEST_PATH {
            return None;
        }
        Some(text.to_string_lossy().ok()?.into_owned())
    };
    let mut path = match &unit.comp_dir {
        Some(directory) if directory.len() <= LONGEST_PATH => {
            directory.to_string_lossy().ok()?.into_owned()
        }
        _ => String::new(),
    };
    // Before version 5, and by what compilers write since, number 0 is the unit's directory.
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
