//! Names of functions and variables: from symbol tables, linkage stubs and, for the extents of functions
//! without symbols, call frame information.

use std::collections::HashMap;
use std::ops::Range;

use object::elf;

use crate::cfi::Cfi;
use crate::elf::{Elf, Section};
use crate::plt;
use crate::ranges::{Item, Ranges, holding};
use crate::symtab::{self, Class, Symbol, string};

/// Sections that are examined, at most. No program has as many.
const MAX_SECTIONS: usize = 4096;

/// A name, by the place where it is kept.
#[derive(Clone, Debug)]
enum Name {
    /// In a string table: the index of the table, and the offset.
    Symbol { strings: u32, offset: u32 },
    /// The linkage stub of the function with this name.
    Linkage(Box<str>),
    /// No name.
    Nameless,
}

/// All named functions and variables of a file.
#[derive(Debug, Default)]
pub(crate) struct Table {
    strings: Vec<Vec<u8>>,
    functions: Ranges<Name>,
    variables: Ranges<Name>,
    sections: Ranges<String>,
}

/// A function, variable or section that contains an address.
pub(crate) struct FoundSymbol {
    /// Name as it is in the file; `None` where only the extent is known.
    pub(crate) name: Option<String>,
    pub(crate) start: u64,
    pub(crate) end: u64,
}

impl Table {
    /// Reads the tables of a file, and those of its separate debug information file.
    pub(crate) fn read(elf: &Elf<'_>, debug: Option<&Elf<'_>>, cfi: &Cfi) -> Self {
        let mut table = Self::default();
        let mut code = Collected::default();
        let mut data = Collected::default();
        for file in [Some(elf), debug].into_iter().flatten() {
            for name in [".symtab", ".dynsym"] {
                let Some(symbols) = symtab::Symbols::read(file, name) else {
                    continue;
                };
                let Ok(strings) = u32::try_from(table.strings.len()) else {
                    break;
                };
                for symbol in symbols.all() {
                    let place = match symbol.class(file) {
                        Some(Class::Code) => &mut code,
                        Some(Class::Data) => &mut data,
                        None => continue,
                    };
                    place.add(&symbol, strings, &symbols.strings);
                }
                table.strings.push(symbols.strings);
            }
        }
        table.link(elf, &mut code);
        let extents: Vec<Range<u64>> = cfi
            .pieces()
            .iter()
            .map(|piece| piece.start..piece.end)
            .collect();
        table.functions = code.arrange(&extents, &sections(elf, Section::executable));
        data.points
            .retain(|(_, item)| !table.is_linkers(&item.what));
        table.variables = data.arrange(&[], &sections(elf, |section| !section.executable()));
        let named = elf.sections.iter().take(MAX_SECTIONS);
        table.sections = Ranges::new(
            named
                // `.tbss` (zero-initialised thread-local variables) has no addresses of its own.
                .filter(|section| section.loaded() && section.name != ".tbss")
                .map(|section| Item {
                    start: section.range().start,
                    end: section.range().end,
                    what: section.name.clone(),
                })
                .collect(),
        );
        table
    }

    pub(crate) fn function(&self, address: u64) -> Option<FoundSymbol> {
        self.found(&self.functions, address)
    }

    /// The variable at an address, else the section.
    pub(crate) fn variable(&self, address: u64) -> Option<FoundSymbol> {
        self.found(&self.variables, address).or_else(|| {
            let section = self.sections.find(address)?;
            Some(FoundSymbol {
                name: Some(section.what.clone()),
                start: section.start,
                end: section.end,
            })
        })
    }

    fn found(&self, ranges: &Ranges<Name>, address: u64) -> Option<FoundSymbol> {
        let item = ranges.find(address)?;
        Some(FoundSymbol {
            name: self.name(&item.what),
            start: item.start,
            end: item.end,
        })
    }

    fn name(&self, name: &Name) -> Option<String> {
        match name {
            Name::Symbol { .. } => {
                let name = self.symbol_name(name)?;
                Some(String::from_utf8_lossy(name).into_owned())
            }
            Name::Linkage(target) => Some(format!("{}@plt", crate::demangle(target))),
            Name::Nameless => None,
        }
    }

    fn symbol_name(&self, name: &Name) -> Option<&[u8]> {
        match name {
            Name::Symbol { strings, offset } => {
                string(self.strings.get(*strings as usize)?, *offset)
            }
            Name::Linkage(_) | Name::Nameless => None,
        }
    }

    /// True if a name is a mark set by the linker, not a variable.
    fn is_linkers(&self, name: &Name) -> bool {
        const MARKS: [&[u8]; 14] = [
            b"__bss_start",
            b"__data_start",
            b"data_start",
            b"edata",
            b"_edata",
            b"end",
            b"_end",
            b"__dso_handle",
            b"__TMC_END__",
            b"__EH_FRAME_BEGIN__",
            b"__FRAME_END__",
            b"__GNU_EH_FRAME_HDR",
            b"_GLOBAL_OFFSET_TABLE_",
            b"_DYNAMIC",
        ];
        self.symbol_name(name)
            .is_some_and(|name| MARKS.contains(&name))
    }

    /// Adds the linkage stubs of `elf` to its code.
    fn link(&self, elf: &Elf<'_>, code: &mut Collected) {
        let dynamic = symtab::Symbols::read(elf, ".dynsym").unwrap_or_default();
        let tables = [".rela.plt", ".rela.iplt", ".rela.dyn"]
            .map(|name| (name, symtab::relocations(elf, name)));
        let chooses = |relocation: &symtab::Relocation| {
            matches!(
                relocation.kind,
                elf::R_X86_64_IRELATIVE | elf::R_AARCH64_IRELATIVE
            )
        };
        let mut all = tables.iter().flat_map(|(_, relocations)| relocations);
        // Statically linked programs choose implementations through resolver functions.
        let mut resolvers: HashMap<u64, (u32, &Name)> = HashMap::new();
        let names = all
            .any(chooses)
            .then(|| code.sized.iter().chain(&code.points));
        for (rank, item) in names.into_iter().flatten() {
            let best = resolvers.entry(item.start).or_insert((*rank, &item.what));
            if *rank < best.0 {
                *best = (*rank, &item.what);
            }
        }
        let target = |relocation: &symtab::Relocation| match relocation.kind {
            elf::R_X86_64_JUMP_SLOT
            | elf::R_X86_64_GLOB_DAT
            | elf::R_AARCH64_JUMP_SLOT
            | elf::R_AARCH64_GLOB_DAT => dynamic
                .name_at(relocation.symbol)
                .map(|name| String::from_utf8_lossy(name).into_owned()),
            elf::R_X86_64_IRELATIVE | elf::R_AARCH64_IRELATIVE => resolvers
                .get(&relocation.addend)
                .and_then(|(_, name)| self.name(name)),
            _ => None,
        };
        let mut slots = HashMap::new();
        let mut order = Vec::new();
        for (name, relocations) in &tables {
            for relocation in relocations {
                let target = target(relocation);
                if *name == ".rela.plt" {
                    order.push(target.clone());
                }
                if let Some(target) = target {
                    slots.insert(relocation.slot, target);
                }
            }
        }
        for stub in plt::stubs(elf, &slots, &order) {
            let what = stub
                .target
                .map_or(Name::Nameless, |target| Name::Linkage(target.into()));
            code.sized.push((
                0,
                Item {
                    start: stub.start,
                    end: stub.end,
                    what,
                },
            ));
        }
    }
}

/// True for mapping symbols, which only mark where code and data begin: `$x` and `$d` in aarch64 files (ELF
/// for the Arm 64-bit Architecture, section 5.5.4), optionally with a suffix after a dot.
fn is_mapping_symbol(name: &[u8]) -> bool {
    matches!(name, [b'$', b'x' | b'd'] | [b'$', b'x' | b'd', b'.', ..])
}

/// Address ranges of the sections that satisfy `is`, sorted by their starts.
fn sections(elf: &Elf<'_>, is: impl Fn(&Section) -> bool) -> Vec<Range<u64>> {
    let all = elf.sections.iter().take(MAX_SECTIONS);
    let mut ranges: Vec<Range<u64>> = all
        .filter(|section| section.loaded() && is(section))
        .map(Section::range)
        .collect();
    ranges.sort_by_key(|range| range.start);
    ranges
}

/// Symbols of one class, in any order.
#[derive(Debug, Default)]
struct Collected {
    /// With a size. The number is the rank among names at one address: the lowest is shown.
    sized: Vec<(u32, Item<Name>)>,
    /// Without a size; likewise.
    points: Vec<(u32, Item<Name>)>,
}

impl Collected {
    fn add(&mut self, symbol: &Symbol, strings: u32, bytes: &[u8]) {
        let Some(name) = string(bytes, symbol.name).filter(|name| !is_mapping_symbol(name)) else {
            return;
        };
        let start = symbol.value;
        let end = start.saturating_add(symbol.size);
        let what = Name::Symbol {
            strings,
            offset: symbol.name,
        };
        let ranked = (rank(symbol, name), Item { start, end, what });
        if start < end {
            self.sized.push(ranked);
        } else {
            self.points.push(ranked);
        }
    }

    /// Arranges symbols with a size at their ranges; symbols without a size, and `extents`, are placed where
    /// no other symbol is.
    fn arrange(self, extents: &[Range<u64>], sections: &[Range<u64>]) -> Ranges<Name> {
        let sized = Ranges::new(ranked(self.sized));
        let points: Vec<Item<Name>> = Ranges::new(
            ranked(self.points)
                .into_iter()
                .filter(|point| sized.find(point.start).is_none())
                // One byte long until the end is computed, so that `Ranges` keeps it.
                .map(|point| Item {
                    end: point.start.saturating_add(1),
                    ..point
                })
                .collect(),
        )
        .into_items();
        let mut more = Vec::new();
        for (at, point) in points.iter().enumerate() {
            let ends = [
                points.get(at + 1).map(|next| next.start),
                sized.next(point.start),
                holding(extents, point.start).map(|extent| extent.end),
                holding(sections, point.start).map(|section| section.end),
            ];
            // Outside of all sections, it names nothing.
            if ends[3].is_some()
                && let Some(end) = ends.into_iter().flatten().min()
            {
                more.push(Item {
                    end,
                    ..point.clone()
                });
            }
        }
        for extent in extents {
            let named = points.partition_point(|point| point.start < extent.start);
            let has_name = points
                .get(named)
                .is_some_and(|point| point.start == extent.start);
            if !has_name && sized.find(extent.start).is_none() {
                let next = sized.next(extent.start).unwrap_or(u64::MAX);
                more.push(Item {
                    start: extent.start,
                    end: extent.end.min(next),
                    what: Name::Nameless,
                });
            }
        }
        let mut items = sized.into_items();
        items.append(&mut more);
        Ranges::new(items)
    }
}

/// The items, sorted by address, the best name first.
fn ranked(mut items: Vec<(u32, Item<Name>)>) -> Vec<Item<Name>> {
    items.sort_by_key(|(rank, item)| (item.start, *rank));
    items.into_iter().map(|(_, item)| item).collect()
}

/// Rank of a name among those at the same address; the lowest is shown. Typed symbols come first, then names
/// without the implementation's leading underscores, then names with the widest visibility, then short ones.
fn rank(symbol: &Symbol, name: &[u8]) -> u32 {
    let untyped = u32::from(symbol.kind() == elf::STT_NOTYPE);
    let underscores: u32 = match name {
        // Mangled names begin with an underscore.
        [b'_', b'Z' | b'R', ..] => 0,
        [b'_', b'_', ..] => 2,
        [b'_', ..] => 1,
        _ => 0,
    };
    let length = u32::try_from(name.len()).unwrap_or(u32::MAX).min(0xffff);
    untyped << 30 | underscores << 20 | (symbol.binding() as u32) << 16 | length
}
