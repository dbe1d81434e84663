//! Source lines and inlined functions, from DWARF.
//!
//! Units are listed once. A unit is read when its first address is located, and a function of it when the
//! first address in that is. Compilers' output may nest and share as much as it likes, so nothing here
//! recurses, and every repeated reading is charged to a [`budget::Budget`] that real files do not come near.

mod budget;
mod debug;
mod error_text;
mod extent;
mod function;
mod lines;
mod located;
mod names;
mod scopes;
mod sections;
mod split;
mod unit;

pub(crate) use self::debug::Debug;
use self::error_text::error_text;
use self::lines::FileLine;
use self::located::{InlineFrame, Located, Name};

/// Units examined for one address, at most: units of one file overlap only by mistake.
const MAX_OVERLAPPING: usize = 16;

/// Ranges before an address that are searched for one that reaches over it, at most.
const MAX_COVERED: usize = 4096;

impl Debug {
    /// Functions and lines at an address.
    pub(crate) fn locate(&mut self, address: u64) -> Located {
        let units = self.units_at(address);
        for unit in &units {
            match self.locate_in(*unit, address) {
                Ok(located) if !located.frames.is_empty() => return located,
                Ok(_) => {}
                Err(error) => self.note(*unit, error),
            }
        }
        Located::default()
    }

    /// What could not be used since the last call.
    pub(crate) fn take_notes(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notes)
    }

    fn note(&mut self, unit: usize, error: gimli::Error) {
        let unit = &mut self.units[unit];
        if !std::mem::replace(&mut unit.noted, true) {
            let name = unit.name();
            self.notes.push(format!(
                "debug information of {name} is damaged: {}",
                error_text(error)
            ));
        }
    }

    fn locate_in(&mut self, unit: usize, address: u64) -> Result<Located, gimli::Error> {
        let dwarf = self.dwarf.clone();
        let index = unit;
        let unit = &mut self.units[index];
        let line = unit.line(&dwarf, address, &mut self.budget)?;
        let split = &mut self.split;
        unit.load(&dwarf, split, &mut self.budget, &mut self.notes)?;
        let Some(chain) = unit.chain(&dwarf, address, &mut self.budget)? else {
            let frames = line.map(|line| frame(None, Some(line)));
            return Ok(Located {
                frames: frames.into_iter().collect(),
                function: None,
            });
        };
        let mut located = Located {
            frames: Vec::with_capacity(chain.calls.len()),
            function: Some(chain.range),
        };
        let mut at = line;
        for call in chain.calls.into_iter().rev() {
            let name = self.name(index, call.entry);
            located.frames.push(frame(name, at));
            let unit = &mut self.units[index];
            at = call.from.and_then(|from| unit.call_line(&dwarf, from));
        }
        Ok(located)
    }

    fn units_at(&self, address: u64) -> Vec<usize> {
        let mut at = self
            .ranges
            .partition_point(|(start, _, _)| *start <= address);
        let mut found = Vec::new();
        // Units that begin nearest to the address come first.
        let last = at.saturating_sub(MAX_COVERED);
        while at > last && self.farthest[at - 1] > address && found.len() < MAX_OVERLAPPING {
            at -= 1;
            let (_, end, unit) = self.ranges[at];
            let unit = unit as usize;
            if address < end && !found.contains(&unit) {
                found.push(unit);
            }
        }
        found
    }
}

fn frame(name: Option<Name>, at: Option<FileLine>) -> InlineFrame {
    let at = at.unwrap_or_default();
    InlineFrame {
        name,
        file: at.file,
        line: at.line,
        column: at.column,
    }
}
