//! Split debug information: `.dwo` files beside the objects, or one `.dwp` file beside the program.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use gimli::{Dwarf, DwarfFileType, DwarfPackage, LittleEndian, Reader as _, SectionId};

use super::budget::Budget;
use super::error_text::error_text;
use super::sections::{R, Sections, load};
use crate::elf::Elf;

/// Files opened for one program, at most.
const MAX_FILES: usize = 1 << 14;

/// Finds the split parts of units.
#[derive(Debug)]
pub(super) struct Split {
    program: Option<PathBuf>,
    /// Opened at the first request.
    package: Option<Option<Box<DwarfPackage<R>>>>,
    opened: usize,
    /// Number of files that were not found; the first few are named in notes.
    missed: usize,
}

/// The split part of a unit, which has the functions and names.
#[derive(Debug)]
pub(super) struct SplitUnit {
    dwarf: Sections,
    unit: gimli::Unit<R>,
}

impl SplitUnit {
    pub(super) fn dwarf(&self) -> &Dwarf<R> {
        &self.dwarf
    }

    pub(super) const fn unit(&self) -> &gimli::Unit<R> {
        &self.unit
    }
}

impl Split {
    pub(super) const fn new(program: Option<PathBuf>) -> Self {
        Self {
            program,
            package: None,
            opened: 0,
            missed: 0,
        }
    }

    /// The split part of `unit`, if it has one and it is found.
    pub(super) fn half(
        &mut self,
        dwarf: &Dwarf<R>,
        unit: &gimli::Unit<R>,
        budget: &mut Budget,
        notes: &mut Vec<String>,
    ) -> Option<SplitUnit> {
        let id = unit.dwo_id?;
        let name = text(&dwarf.attr_string(unit, unit.dwo_name().ok()??).ok()?)?;
        if let Some(package) = self.package(budget, notes)
            && let Ok(Some(sections)) = package.find_cu(id, dwarf)
            && let Some(half) = matching(sections, unit)
        {
            return Some(half);
        }
        let directory = unit.comp_dir.as_ref().and_then(text).unwrap_or_default();
        let path = Path::new(&directory).join(&name);
        let half = self.open(&path, dwarf, unit, budget, notes);
        if half.is_none() {
            const NAMED: usize = 3;
            self.missed += 1;
            if self.missed <= NAMED {
                notes.push(format!(
                    "inlined functions are missing: {} was not found, or belongs to another build",
                    path.display()
                ));
            }
        }
        half
    }

    fn open(
        &mut self,
        path: &Path,
        parent: &Dwarf<R>,
        unit: &gimli::Unit<R>,
        budget: &mut Budget,
        notes: &mut Vec<String>,
    ) -> Option<SplitUnit> {
        if self.opened == MAX_FILES {
            return None;
        }
        let elf = Elf::open(path).ok()?;
        self.opened += 1;
        let mut bytes = 0;
        let mut sections = load(&elf, SectionId::dwo_name, &mut bytes, notes);
        *budget = Budget(budget.0.saturating_add(Budget::new(bytes).0));
        sections.make_dwo(parent);
        matching(sections, unit)
    }

    fn package(
        &mut self,
        budget: &mut Budget,
        notes: &mut Vec<String>,
    ) -> Option<&DwarfPackage<R>> {
        if self.package.is_none() {
            self.package = Some(self.read_package(budget, notes).map(Box::new));
        }
        self.package.as_ref()?.as_deref()
    }

    fn read_package(
        &self,
        budget: &mut Budget,
        notes: &mut Vec<String>,
    ) -> Option<DwarfPackage<R>> {
        let mut path = self.program.clone()?.into_os_string();
        path.push(".dwp");
        let path = PathBuf::from(path);
        if !path.exists() {
            return None;
        }
        let read = Elf::open(&path)
            .map_err(|error| error.to_string())
            .and_then(|elf| {
                let mut bytes = 0;
                let section = |id: SectionId| -> Result<R, gimli::Error> {
                    let contents = id
                        .dwo_name()
                        .and_then(|name| elf.section(name))
                        .and_then(|section| elf.contents(section).ok())
                        .unwrap_or_default();
                    bytes += contents.len() as u64;
                    Ok(R::new(Arc::from(contents), LittleEndian))
                };
                let empty = R::new(Arc::from(Vec::new()), LittleEndian);
                let package = DwarfPackage::load(section, empty).map_err(error_text)?;
                *budget = Budget(budget.0.saturating_add(Budget::new(bytes).0));
                Ok(package)
            });
        read.map_err(|why| notes.push(format!("{} is not used: {why}", path.display())))
            .ok()
    }
}

/// The unit of `sections` that belongs to `skeleton`.
fn matching(mut sections: Dwarf<R>, skeleton: &gimli::Unit<R>) -> Option<SplitUnit> {
    sections.file_type = DwarfFileType::Dwo;
    let mut headers = sections.units();
    while let Ok(Some(header)) = headers.next() {
        let Ok(mut unit) = sections.unit(header) else {
            continue;
        };
        if unit.dwo_id == skeleton.dwo_id {
            unit.copy_relocated_attributes(skeleton);
            return Some(SplitUnit {
                dwarf: Arc::new(sections),
                unit,
            });
        }
    }
    None
}

fn text(reader: &R) -> Option<String> {
    const MAX_PATH_BYTES: usize = 4096;
    if reader.len() > MAX_PATH_BYTES {
        return None;
    }
    Some(reader.to_string_lossy().ok()?.into_owned())
}
