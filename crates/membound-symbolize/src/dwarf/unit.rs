//! A compilation unit.

use std::ops::Range;

use gimli::{DebugLineOffset, Dwarf, Reader as _};

use super::budget::Budget;
use super::function::{Call, CallSite, Function, Functions};
use super::lines::{FileLine, Lines};
use super::sections::R;
use super::split::{Split, SplitUnit};

#[derive(Debug)]
pub(super) struct Unit {
    offset: usize,
    unit: gimli::Unit<R>,
    line_program: Option<DebugLineOffset>,
    lines: Option<Result<Lines, gimli::Error>>,
    loaded: Option<Result<Loaded, gimli::Error>>,
    /// True once a note said that it is damaged.
    pub(super) noted: bool,
}

/// Data that are read when the first address is located.
#[derive(Debug)]
struct Loaded {
    /// The split part with the functions, if they are in another file.
    half: Option<SplitUnit>,
    functions: Functions,
}

/// The functions at an address.
#[derive(Debug)]
pub(super) struct Chain {
    /// Outermost first.
    pub(super) calls: Vec<Call>,
    /// The part of the outermost function that contains the address.
    pub(super) range: Range<u64>,
}

impl Unit {
    pub(super) fn new(
        offset: usize,
        mut unit: gimli::Unit<R>,
        budget: &mut Budget,
    ) -> Result<Self, gimli::Error> {
        // File names would fill the memory if they were kept for every unit.
        let line_program = unit.line_program.take();
        if let Some(program) = &line_program {
            let header = program.header();
            let names = header.file_names().len() + header.include_directories().len();
            budget.spend(names as u64)?;
        }
        Ok(Self {
            offset,
            unit,
            line_program: line_program.map(|program| program.header().offset()),
            lines: None,
            loaded: None,
            noted: false,
        })
    }

    /// Offset of its header in the section.
    pub(super) const fn offset(&self) -> usize {
        self.offset
    }

    pub(super) const fn unit(&self) -> &gimli::Unit<R> {
        &self.unit
    }

    /// Its split part with the functions, if it has one and that was loaded.
    pub(super) fn half(&self) -> Option<&SplitUnit> {
        self.loaded.as_ref()?.as_ref().ok()?.half.as_ref()
    }

    /// Path of its source file, or its offset if unknown.
    pub(super) fn name(&self) -> String {
        let name = self.unit.name.as_ref();
        let name = name.and_then(|name| Some(name.to_string_lossy().ok()?.into_owned()));
        name.unwrap_or_else(|| format!("the unit at {:#x}", self.offset))
            .replace(['\n', '\r'], " ")
    }

    /// Passes its address ranges to `visit`.
    pub(super) fn ranges(
        &self,
        dwarf: &Dwarf<R>,
        budget: &mut Budget,
        mut visit: impl FnMut(gimli::Range),
    ) -> Result<(), gimli::Error> {
        if matches!(self.unit.header.type_(), gimli::UnitType::Partial) {
            return Ok(());
        }
        let mut any = false;
        let Ok(mut ranges) = dwarf.unit_ranges(&self.unit) else {
            return Ok(());
        };
        while let Ok(Some(range)) = ranges.next() {
            budget.spend(1)?;
            any |= range.begin < range.end;
            visit(range);
        }
        // Assemblers and old compilers write only lines.
        if !any
            && let Some(program) = self.line_program
            && let Ok(lines) = Lines::read(dwarf, &self.unit, program, budget)
        {
            lines.ranges().for_each(visit);
        }
        Ok(())
    }

    /// The line at an address.
    pub(super) fn line(
        &mut self,
        dwarf: &Dwarf<R>,
        address: u64,
        budget: &mut Budget,
    ) -> Result<Option<FileLine>, gimli::Error> {
        let Some(program) = self.line_program else {
            return Ok(None);
        };
        let lines = self
            .lines
            .get_or_insert_with(|| Lines::read(dwarf, &self.unit, program, budget));
        match lines {
            Ok(lines) => Ok(lines.find(dwarf, &self.unit, address)),
            // Functions may be intact where lines are damaged.
            Err(_) => Ok(None),
        }
    }

    /// The line of a call.
    pub(super) fn call_line(&mut self, dwarf: &Dwarf<R>, from: CallSite) -> Option<FileLine> {
        let Some(Ok(lines)) = &mut self.lines else {
            return None;
        };
        Some(FileLine {
            file: from
                .file
                .and_then(|file| lines.path(dwarf, &self.unit, file)),
            line: (from.line > 0).then_some(from.line),
            column: (from.column > 0).then_some(from.column),
        })
    }

    /// Lists its functions, if that was not done before.
    pub(super) fn load(
        &mut self,
        dwarf: &Dwarf<R>,
        split: &mut Split,
        budget: &mut Budget,
        notes: &mut Vec<String>,
    ) -> Result<(), gimli::Error> {
        if self.loaded.is_none() {
            let half = split.half(dwarf, &self.unit, budget, notes);
            let functions = match &half {
                Some(half) => Functions::read(half.dwarf(), half.unit(), budget),
                None => Functions::read(dwarf, &self.unit, budget),
            };
            self.loaded = Some(functions.map(|functions| Loaded { half, functions }));
        }
        match &self.loaded {
            Some(Err(error)) => Err(*error),
            _ => Ok(()),
        }
    }

    /// The functions at an address; `None` if there are none.
    pub(super) fn chain(
        &mut self,
        dwarf: &Dwarf<R>,
        address: u64,
        budget: &mut Budget,
    ) -> Result<Option<Chain>, gimli::Error> {
        let Some(Ok(Loaded { half, functions })) = &mut self.loaded else {
            return Ok(None);
        };
        let Some((range, function)) = functions.find(address) else {
            return Ok(None);
        };
        let (dwarf, unit) = match half {
            Some(half) => (half.dwarf(), half.unit()),
            None => (dwarf, &self.unit),
        };
        let function: &mut Function = function;
        let calls = function.calls(dwarf, unit, address, budget)?;
        Ok(Some(Chain { calls, range }))
    }
}
