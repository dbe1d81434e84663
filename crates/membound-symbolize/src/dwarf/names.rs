//! Names of functions, which may be in other entries than the function's own.

use std::sync::Arc;

use gimli::{AttributeValue, DebugInfoOffset, Dwarf, Reader as _, UnitOffset};

use super::budget::Budget;
use super::debug::{Debug, File};
use super::located::Name;
use super::scopes::Scopes;
use super::sections::R;
use super::unit::Unit;

/// Entries followed for one name, at most: an inlined call, the function, its declaration, and some reserve.
const MAX_ENTRIES: usize = 16;

/// Longest name, in bytes.
const MAX_NAME_BYTES: usize = 64 << 10;

/// The name in one entry.
enum EntryName {
    /// The linkage name.
    Linkage(String),
    /// The plain name, and the entry that may have more.
    Plain(Option<String>, Option<Reference>),
}

/// A reference to another entry.
#[derive(Clone, Copy)]
enum Reference {
    SameUnit(UnitOffset),
    SameFile(DebugInfoOffset),
    Shared(DebugInfoOffset),
}

impl Debug {
    /// The name of the function that `entry` of this unit describes.
    pub(super) fn name(&mut self, unit: usize, entry: UnitOffset) -> Option<Name> {
        let index = u32::try_from(unit).ok()?;
        let file = match self.units.get(unit)?.half() {
            Some(_) => File::SplitUnit(index),
            None => File::Own(index),
        };
        if let Some(known) = self.names.get(&(file, entry.0)) {
            return known.clone();
        }
        let name = self.follow(file, entry);
        self.names.insert((file, entry.0), name.clone());
        name
    }

    fn follow(&mut self, file: File, entry: UnitOffset) -> Option<Name> {
        let (mut file, mut entry) = (file, entry);
        let mut plain = None;
        // The last entry reached is the declaration, which is inside its scope.
        let mut declared = (file, entry);
        for _ in 0..MAX_ENTRIES {
            self.budget.spend(1).ok()?;
            let (dwarf, unit) = self.sections(file)?;
            let next = match entry_name(dwarf, unit, entry).ok()? {
                EntryName::Linkage(name) => {
                    return Some(Name {
                        shown: crate::demangle(&name).into(),
                        full: true,
                    });
                }
                EntryName::Plain(name, next) => {
                    plain = plain.or(name);
                    next
                }
            };
            declared = (file, entry);
            let Some(next) = next else {
                break;
            };
            (file, entry) = self.resolve(file, next)?;
        }
        let plain = plain?;
        let (file, entry) = declared;
        let (_, unit) = self.sections(file)?;
        if names_are_plain(unit) {
            return Some(Name {
                shown: Arc::from(plain),
                full: true,
            });
        }
        let qualified = self.scopes(file)?.qualify(entry, &plain);
        Some(Name {
            shown: Arc::from(qualified),
            full: false,
        })
    }

    fn scopes(&mut self, file: File) -> Option<&Scopes> {
        if !self.scopes.contains_key(&file) {
            let mut budget = std::mem::replace(&mut self.budget, Budget::new(0));
            let (dwarf, unit) = self.sections(file)?;
            let scopes = Scopes::read(dwarf, unit, &mut budget).unwrap_or_default();
            self.budget = budget;
            self.scopes.insert(file, scopes);
        }
        self.scopes.get(&file)
    }

    fn sections(&self, file: File) -> Option<(&Dwarf<R>, &gimli::Unit<R>)> {
        match file {
            File::Own(unit) => Some((&self.dwarf, self.units.get(unit as usize)?.unit())),
            File::SplitUnit(unit) => {
                let half = self.units.get(unit as usize)?.half()?;
                Some((half.dwarf(), half.unit()))
            }
            File::Shared(unit) => Some((self.dwarf.sup()?, self.shared.get(unit as usize)?.unit())),
        }
    }

    fn resolve(&self, file: File, to: Reference) -> Option<(File, UnitOffset)> {
        let (file, offset) = match (file, to) {
            (file, Reference::SameUnit(offset)) => return Some((file, offset)),
            (File::Own(_), Reference::SameFile(offset)) => {
                let unit = unit_holding(&self.units, offset)?;
                (File::Own(u32::try_from(unit).ok()?), offset)
            }
            (File::Shared(_), Reference::SameFile(offset)) | (_, Reference::Shared(offset)) => {
                let unit = unit_holding(&self.shared, offset)?;
                (File::Shared(u32::try_from(unit).ok()?), offset)
            }
            // A split file has one unit.
            (File::SplitUnit(_), Reference::SameFile(_)) => return None,
        };
        let (_, unit) = self.sections(file)?;
        Some((file, offset.to_unit_offset(&unit.header)?))
    }
}

fn entry_name(
    dwarf: &Dwarf<R>,
    unit: &gimli::Unit<R>,
    entry: UnitOffset,
) -> Result<EntryName, gimli::Error> {
    let mut entries = unit.entries_raw(Some(entry))?;
    let Some(abbreviation) = entries.read_abbreviation()? else {
        return Ok(EntryName::Plain(None, None));
    };
    let text = |value| -> Option<String> {
        let text = dwarf.attr_string(unit, value).ok()?;
        if text.len() > MAX_NAME_BYTES {
            return None;
        }
        Some(text.to_string_lossy().ok()?.into_owned())
    };
    let mut plain = None;
    let mut next = None;
    for specification in abbreviation.attributes() {
        let attribute = entries.read_attribute(*specification)?;
        match attribute.name() {
            gimli::DW_AT_linkage_name | gimli::DW_AT_MIPS_linkage_name => {
                if let Some(name) = text(attribute.value()) {
                    return Ok(EntryName::Linkage(name));
                }
            }
            gimli::DW_AT_name => plain = text(attribute.value()),
            gimli::DW_AT_abstract_origin | gimli::DW_AT_specification => {
                next = match attribute.value() {
                    AttributeValue::UnitRef(offset) => Some(Reference::SameUnit(offset)),
                    AttributeValue::DebugInfoRef(offset) => Some(Reference::SameFile(offset)),
                    AttributeValue::DebugInfoRefSup(offset) => Some(Reference::Shared(offset)),
                    _ => next,
                };
            }
            _ => {}
        }
    }
    Ok(EntryName::Plain(plain, next))
}

/// True if the unit's language has no namespaces, so that a plain name is complete.
fn names_are_plain(unit: &gimli::Unit<R>) -> bool {
    let language = unit.entries_raw(None).ok().and_then(|mut entries| {
        let abbreviation = entries.read_abbreviation().ok()??;
        abbreviation.attributes().iter().find_map(|specification| {
            let attribute = entries.read_attribute(*specification).ok()?;
            match attribute.value() {
                AttributeValue::Language(language) => Some(language),
                _ => None,
            }
        })
    });
    matches!(
        language,
        None | Some(
            gimli::DW_LANG_C
                | gimli::DW_LANG_C89
                | gimli::DW_LANG_C99
                | gimli::DW_LANG_C11
                | gimli::DW_LANG_C17
                | gimli::DW_LANG_Mips_Assembler
        )
    )
}

/// Index of the unit that contains an offset of its file.
fn unit_holding(units: &[Unit], offset: DebugInfoOffset) -> Option<usize> {
    units
        .partition_point(|unit| unit.offset() <= offset.0)
        .checked_sub(1)
}
