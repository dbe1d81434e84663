//! Functions, lines and variables of one module.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use crate::cfi::Cfi;
use crate::debug_files::{self, DebugPaths};
use crate::demangle;
use crate::dwarf::Debug;
use crate::elf::{Elf, hexadecimal};
use crate::error::Error;
use crate::table::{FoundSymbol, Table};

/// A function, or a separate part of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    /// Demangled name; `malloc@plt` for a linkage stub; `function at 0x1234` if there is no name.
    pub name: String,
    /// First address in the file.
    pub start: u64,
    /// Length in bytes.
    pub size: u64,
}

/// A variable, or a section.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Variable {
    /// Demangled name; if there is none, that of the section, like `.bss`.
    pub name: String,
    /// First address in the file.
    pub address: u64,
    /// Size in bytes.
    pub size: u64,
}

/// A place in source code, in one of the functions inlined at an address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SourceLine {
    /// Demangled name; empty if unknown.
    pub function: String,
    /// First address of the outermost function (the same at every depth).
    pub function_start: Option<u64>,
    /// Length of that function in bytes.
    pub function_size: Option<u64>,
    /// Path of the source file.
    pub file: Option<String>,
    /// Line, from 1.
    pub line: Option<u32>,
    /// Column, from 1.
    pub column: Option<u32>,
}

/// Symbols and debug information of one module.
///
/// Symbols are read at the first request for a name, debug information at the first located address. It can
/// be shared between threads.
#[derive(Debug)]
pub struct Symbols {
    elf: Elf<'static>,
    /// Path at which it was opened; `None` for bytes from memory.
    path: Option<PathBuf>,
    places: DebugPaths,
    build_id: Option<String>,
    names: OnceLock<Names>,
    lines: Mutex<Lines>,
    /// Demangled names by symbol name, as a cache: many located addresses are in one function.
    shown: Mutex<HashMap<String, String>>,
}

/// Symbols, and the separate file with debug information.
#[derive(Debug)]
struct Names {
    table: Table,
    debug: Option<Elf<'static>>,
}

/// Debug information, once requested; the inner `Option` is `None` if there is none.
#[derive(Debug, Default)]
struct Lines {
    debug: Option<Option<Debug>>,
    notes: Vec<String>,
}

impl Symbols {
    /// Opens a file. Debug information is searched for in the usual directories.
    ///
    /// # Errors
    /// When the file cannot be read or is not an ELF file.
    pub fn open(path: &Path) -> Result<Self, Error> {
        Self::open_with(path, &DebugPaths::default())
    }

    /// Opens a file. Debug information is searched for in these directories, and next to the file.
    ///
    /// # Errors
    /// When the file cannot be read or is not an ELF file.
    pub fn open_with(path: &Path, debug: &DebugPaths) -> Result<Self, Error> {
        let elf = Elf::open(path)?;
        Ok(Self::of(elf, Some(path.to_owned()), debug.clone()))
    }

    /// Uses a file's bytes, or the vdso's. `name` identifies them in messages. No other files are searched
    /// for.
    ///
    /// # Errors
    /// When the bytes are not an ELF file.
    pub fn of_bytes(bytes: impl Into<Arc<[u8]>>, name: &str) -> Result<Self, Error> {
        let elf = Elf::of_bytes(bytes.into(), name)?;
        Ok(Self::of(elf, None, DebugPaths { roots: Vec::new() }))
    }

    fn of(elf: Elf<'static>, path: Option<PathBuf>, places: DebugPaths) -> Self {
        Self {
            build_id: elf.build_id.as_deref().map(hexadecimal),
            elf,
            path,
            places,
            names: OnceLock::new(),
            lines: Mutex::default(),
            shown: Mutex::default(),
        }
    }

    /// The build-id in hexadecimal digits.
    #[must_use]
    pub fn build_id(&self) -> Option<&str> {
        self.build_id.as_deref()
    }

    /// Reads the symbols now instead of at the first request for a name.
    pub fn read(&self) {
        self.names();
    }

    /// Functions and lines at an address of the file, innermost first: the last is the function that contains
    /// the address, the others are inlined into it. Never empty where [`Self::function`] is `Some`.
    #[must_use]
    pub fn locate(&self, address: u64) -> Vec<SourceLine> {
        let found = self.names().table.function(address);
        let located = self
            .with_debug(|debug| debug.locate(address))
            .unwrap_or_default();
        let extent = match (&found, &located.function) {
            // Symbols include the separate parts of a function.
            (Some(found), _) => Some(found.start..found.end),
            (None, Some(range)) => Some(range.clone()),
            (None, None) => None,
        };
        let function_start = extent.as_ref().map(|extent| extent.start);
        let function_size = extent.as_ref().map(|extent| extent.end - extent.start);
        let symbol = found.map(|found| {
            let named = found.name.is_some();
            (self.shown(found.name, found.start), named)
        });
        let outermost = located.frames.len().saturating_sub(1);
        let mut places: Vec<SourceLine> = Vec::with_capacity(outermost + 1);
        for (depth, frame) in located.frames.into_iter().enumerate() {
            let function = match (frame.name, &symbol) {
                // A symbol includes parameters, which a plain name in debug information lacks.
                (Some(name), Some((symbol, true))) if depth == outermost && !name.full => {
                    symbol.clone()
                }
                (Some(name), _) => name.shown.to_string(),
                (None, Some((symbol, _))) if depth == outermost => symbol.clone(),
                (None, _) => String::new(),
            };
            places.push(SourceLine {
                function,
                function_start,
                function_size,
                file: frame.file.map(|file| file.to_string()),
                line: frame.line,
                column: frame.column,
            });
        }
        if places.is_empty()
            && let Some((function, _)) = symbol
        {
            places.push(SourceLine {
                function,
                function_start,
                function_size,
                ..SourceLine::default()
            });
        }
        places
    }

    /// The function at an address of the file.
    #[must_use]
    pub fn function(&self, address: u64) -> Option<Function> {
        let found = self.names().table.function(address)?;
        Some(Function {
            name: self.shown(found.name, found.start),
            start: found.start,
            size: found.end - found.start,
        })
    }

    /// The variable at an address of the file; the section if there is none.
    #[must_use]
    pub fn variable(&self, address: u64) -> Option<Variable> {
        self.names().table.variable(address).map(variable)
    }

    /// What could not be used, and why: one lower-case fragment each. More are added while addresses
    /// are located.
    #[must_use]
    pub fn notes(&self) -> Vec<String> {
        let mut lines = self.lines();
        if let Some(Some(debug)) = &mut lines.debug {
            let more = debug.take_notes();
            lines.notes.extend(more);
        }
        lines.notes.clone()
    }

    fn names(&self) -> &Names {
        self.names.get_or_init(|| {
            let mut notes = Vec::new();
            // No separate file is needed if this one has everything.
            let whole =
                self.elf.section(".debug_info").is_some() && self.elf.section(".symtab").is_some();
            let debug = match &self.path {
                Some(path) if !whole => {
                    debug_files::find(&self.elf, Some(path), &self.places, &mut notes)
                }
                _ => None,
            };
            let cfi = Cfi::read(&self.elf);
            let table = Table::read(&self.elf, debug.as_ref(), &cfi);
            self.lines().notes.append(&mut notes);
            Names { table, debug }
        })
    }

    /// Calls `action` with the debug information, if there is any.
    fn with_debug<T>(&self, action: impl FnOnce(&mut Debug) -> T) -> Option<T> {
        // Before the lock, since reading names takes it to add notes.
        let names = self.names();
        let lines = &mut *self.lines();
        let debug = lines.debug.get_or_insert_with(|| {
            let file = if self.elf.section(".debug_info").is_some() {
                &self.elf
            } else {
                names.debug.as_ref()?
            };
            let shared = debug_files::find_shared(file, &self.places, &mut lines.notes);
            Debug::read(file, shared.as_ref(), self.path.clone(), &mut lines.notes)
        });
        debug.as_mut().map(action)
    }

    /// A function's demangled name, or one made from its address.
    fn shown(&self, name: Option<String>, start: u64) -> String {
        let Some(name) = name else {
            return format!("function at {start:#x}");
        };
        // A poisoned lock is fine: no entry is ever half written.
        let mut known = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(shown) = known.get(&name) {
            return shown.clone();
        }
        let shown = demangle(&name).into_owned();
        known.insert(name, shown.clone());
        shown
    }

    fn lines(&self) -> MutexGuard<'_, Lines> {
        // A poisoned lock is fine: no thread leaves a partial change.
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn variable(found: FoundSymbol) -> Variable {
    let name = found.name.as_deref().unwrap_or_default();
    Variable {
        name: demangle(name).into_owned(),
        address: found.start,
        size: found.end - found.start,
    }
}
