//! Namespaces and classes around functions, to qualify plain names.

use std::collections::HashMap;

use gimli::{AttributeValue, Dwarf, Reader as _, UnitOffset};

use super::budget::Budget;
use super::sections::R;

/// Scopes shown in one name, at most.
const DEEPEST: usize = 32;

/// Longest name of a scope, in bytes.
const MAX_SCOPE_NAME_BYTES: usize = 4096;

/// The scopes of a unit's functions.
#[derive(Debug, Default)]
pub(super) struct Scopes {
    /// Innermost scope of each function, by the function's entry.
    functions: HashMap<UnitOffset, u32>,
    scopes: Vec<Scope>,
}

#[derive(Debug)]
struct Scope {
    name: String,
    outer: Option<u32>,
}

/// An entry that may contain the next ones.
struct Open {
    depth: isize,
    /// Index of its own scope, if it has one.
    scope: Option<u32>,
    /// Index of the scope that it is in.
    outer: Option<u32>,
    /// Name of a function.
    name: Option<AttributeValue<R>>,
}

#[derive(Clone, Copy)]
enum Kind {
    Namespace,
    /// A class, structure, union or interface.
    Type,
    Function,
    Other,
}

impl Kind {
    fn of(abbreviation: &gimli::Abbreviation) -> Self {
        match abbreviation.tag() {
            gimli::DW_TAG_namespace => Self::Namespace,
            gimli::DW_TAG_class_type
            | gimli::DW_TAG_structure_type
            | gimli::DW_TAG_union_type
            | gimli::DW_TAG_interface_type
                if abbreviation.has_children() =>
            {
                Self::Type
            }
            gimli::DW_TAG_subprogram => Self::Function,
            _ => Self::Other,
        }
    }
}

impl Scopes {
    pub(super) fn read(
        dwarf: &Dwarf<R>,
        unit: &gimli::Unit<R>,
        budget: &mut Budget,
    ) -> Result<Self, gimli::Error> {
        let mut found = Self::default();
        // The entries that contain the next entry.
        let mut open: Vec<Open> = Vec::new();
        let mut entries = unit.entries_raw(None)?;
        while !entries.is_empty() {
            budget.spend(1)?;
            let (depth, entry) = (entries.next_depth(), entries.next_offset());
            let Some(abbreviation) = entries.read_abbreviation()? else {
                continue;
            };
            while open.last().is_some_and(|outer| outer.depth >= depth) {
                open.pop();
            }
            let kind = Kind::of(abbreviation);
            if matches!(kind, Kind::Other) {
                entries.skip_attributes(abbreviation.attributes())?;
                continue;
            }
            let mut name = None;
            for specification in abbreviation.attributes() {
                let attribute = entries.read_attribute(*specification)?;
                if attribute.name() == gimli::DW_AT_name {
                    name = Some(attribute.value());
                }
            }
            let outer = match kind {
                // Most functions contain no types: a function becomes a scope only when it does.
                Kind::Function => open.last().and_then(|outer| outer.scope),
                _ => found.scope_of(dwarf, unit, &mut open),
            };
            let scope = match kind {
                Kind::Function => {
                    if let Some(outer) = outer {
                        found.functions.insert(entry, outer);
                    }
                    None
                }
                Kind::Namespace | Kind::Type | Kind::Other => {
                    let name = name.clone().and_then(|name| text(dwarf, unit, name));
                    let nameless = if matches!(kind, Kind::Namespace) {
                        "(anonymous namespace)"
                    } else {
                        "{unnamed type}"
                    };
                    found.add(name.unwrap_or_else(|| nameless.to_owned()), outer)
                }
            };
            open.push(Open {
                depth,
                scope,
                outer,
                name,
            });
        }
        Ok(found)
    }

    /// The scope for entries inside of the last of `open`; a function becomes a scope by that.
    fn scope_of(
        &mut self,
        dwarf: &Dwarf<R>,
        unit: &gimli::Unit<R>,
        open: &mut [Open],
    ) -> Option<u32> {
        let inside = open.last_mut()?;
        if inside.scope.is_none()
            && let Some(name) = inside.name.take().and_then(|name| text(dwarf, unit, name))
        {
            inside.scope = self.add(name, inside.outer);
        }
        inside.scope.or(inside.outer)
    }

    fn add(&mut self, name: String, outer: Option<u32>) -> Option<u32> {
        let scope = u32::try_from(self.scopes.len()).ok()?;
        self.scopes.push(Scope { name, outer });
        Some(scope)
    }

    /// `name` of the function at `entry`, with its scopes.
    pub(super) fn qualify(&self, entry: UnitOffset, name: &str) -> String {
        let mut parts = vec![name];
        let mut scope = self.functions.get(&entry).copied();
        while let Some(at) = scope
            && parts.len() <= DEEPEST
            && let Some(found) = self.scopes.get(at as usize)
        {
            parts.push(&found.name);
            scope = found.outer;
        }
        parts.reverse();
        parts.join("::")
    }
}

fn text(dwarf: &Dwarf<R>, unit: &gimli::Unit<R>, value: AttributeValue<R>) -> Option<String> {
    let text = dwarf.attr_string(unit, value).ok()?;
    if text.len() > MAX_SCOPE_NAME_BYTES {
        return None;
    }
    Some(text.to_string_lossy().ok()?.into_owned())
}
