//! A module's call frame information and its code, for the unwinders of all processes.

use std::fmt;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use gimli::UnwindContext;

use super::walk::Gaps;
use crate::cfi::{Cfi, Kind, Row, Rules, SearchTable};
use crate::elf::Elf;
use crate::error::Error;
use crate::machine::Machine;

/// A module's call frame information, and its code where that has none. Cheap to clone; one value
/// serves all processes.
#[derive(Clone, Debug)]
pub struct Frames(Arc<UnwindModule>);

struct UnwindModule {
    machine: Machine,
    /// Finds most rules. `None` within if the file has none.
    search: OnceLock<Option<SearchTable>>,
    /// Read when [`Self::search`] does not find a rule.
    tables: OnceLock<Tables>,
    /// What both are read from.
    source: Option<Box<dyn AsRef<[u8]> + Send + Sync>>,
}

#[derive(Debug)]
pub(super) struct Tables {
    pub(super) cfi: Cfi,
    pub(super) gaps: Gaps,
}

impl fmt::Debug for UnwindModule {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = out.debug_struct("Module");
        shown.field("machine", &self.machine);
        shown.field("tables", &self.tables).finish_non_exhaustive()
    }
}

impl Tables {
    fn of(elf: &Elf<'_>) -> Self {
        let cfi = Cfi::read(elf);
        let gaps = Gaps::read(elf, &cfi);
        Self { cfi, gaps }
    }

    pub(super) fn empty(machine: Machine) -> Self {
        let gaps = Gaps::none(machine);
        let cfi = Cfi::default();
        Self { cfi, gaps }
    }
}

impl Frames {
    /// Uses a file's bytes, or the vdso's. The tables are read when the first address in the module is
    /// unwound: a program may have hundreds of libraries, and most call chains pass through a few. `name`
    /// identifies the bytes in messages.
    ///
    /// # Errors
    /// When the bytes are not an ELF file.
    pub fn of_bytes(
        bytes: impl AsRef<[u8]> + Send + Sync + 'static,
        name: &str,
    ) -> Result<Self, Error> {
        let machine = Elf::of_borrowed(bytes.as_ref(), name)?.machine;
        Ok(Self(Arc::new(UnwindModule {
            machine,
            search: OnceLock::new(),
            tables: OnceLock::new(),
            source: Some(Box::new(bytes)),
        })))
    }

    /// Reads what unwinding needs from a file.
    ///
    /// # Errors
    /// When the file cannot be read or is not an ELF file.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let elf = Elf::open(path)?;
        Ok(Self::with_tables(elf.machine, Tables::of(&elf)))
    }

    pub(super) fn with_tables(machine: Machine, tables: Tables) -> Self {
        Self(Arc::new(UnwindModule {
            machine,
            search: OnceLock::from(None),
            tables: tables.into(),
            source: None,
        }))
    }

    pub(super) fn machine(&self) -> Machine {
        self.0.machine
    }

    fn bytes(&self) -> &[u8] {
        let bytes = self.0.source.as_ref().map(|source| (**source).as_ref());
        bytes.unwrap_or_default()
    }

    fn search(&self) -> Option<&SearchTable> {
        let read = || SearchTable::of(&Elf::of_borrowed(self.bytes(), "").ok()?);
        self.0.search.get_or_init(read).as_ref()
    }

    pub(super) fn tables(&self) -> &Tables {
        self.0.tables.get_or_init(|| {
            let elf = Elf::of_borrowed(self.bytes(), "");
            elf.map_or_else(|_| Tables::empty(self.0.machine), |elf| Tables::of(&elf))
        })
    }

    /// The rule at an address of the file.
    pub(super) fn row(&self, address: u64, context: &mut UnwindContext<usize>) -> Option<Row> {
        let found = self
            .search()
            .and_then(|table| table.row(self.bytes(), address, context));
        found.or_else(|| self.cfi().row(address, context))
    }

    /// The section of a rule that [`Self::row`] found.
    pub(super) fn rules(&self, kind: Kind) -> Option<Rules<'_>> {
        let searched = self.search().filter(|_| kind == Kind::Eh);
        searched
            .and_then(|table| table.rules(self.bytes()))
            .or_else(|| Some(self.cfi().section(kind)?.rules()))
    }

    fn cfi(&self) -> &Cfi {
        &self.tables().cfi
    }
}
