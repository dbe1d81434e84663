//! Unwind tables for agents: one for each file, mapped into every process that has loaded it.
//!
//! A table stays mapped in a process: a thread may be reading it when its module is unloaded, and it is
//! used again when the module is loaded again.
//!
//! Bringing the tables of two hundred files, or of one large file, into memory takes tens of milliseconds, for
//! which no program is held: its control thread registers them after it has run for a while. Until then call
//! chains end in such files. A large executable gets its table at once from its second run on.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use membound_platform::stat;
use membound_rewrite::image::Image;
use membound_wire::Protection;
use rustc_hash::FxHashMap;

use crate::conversation::{Conversation, Failure};
use crate::live::map_near;
use crate::maps::{self, Mapping};
use crate::memfd;
use crate::modules::{Loaded, ModulePlan, Plans, TextBudget, in_order_of_loading};
use crate::orders::Part;
use crate::process_key::ProcessKey;

const PAGE: u64 = 4096;
/// Name of the kernel's own code in lists of mappings.
const VDSO: &str = "[vdso]";

/// Bytes from which a table gets a file of its own.
const LARGE_BYTES: usize = 256 << 10;
/// Bytes of text for which a program gets tables before it starts, all files together.
const TEXT_AT_START: u64 = 4 << 20;

type Bytes = Arc<Vec<u8>>;

/// A table.
#[derive(Clone, Debug)]
enum Table {
    /// Shares a file with other tables.
    Small(Bytes),
    /// Has a file of its own: that file, and the table's length in bytes.
    Large(Arc<File>, u64),
}

impl Table {
    fn of(bytes: Vec<u8>) -> Self {
        if bytes.len() >= LARGE_BYTES
            && let Ok(file) = memfd::with(FILE_NAME, &bytes)
        {
            return Self::Large(Arc::new(file), bytes.len() as u64);
        }
        Self::Small(Arc::new(bytes))
    }

    fn is_empty(&self) -> bool {
        matches!(self, Self::Small(bytes) if bytes.is_empty())
    }
}

/// A table that is made by the first who needs it.
type TableOnce = Arc<OnceLock<Table>>;

/// Which tables a program gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Which {
    /// Those of [`TEXT_AT_START`], and large ones that are in memory already.
    AtStart,
    All,
}

/// The unwind tables of all processes.
#[derive(Debug, Default)]
pub(crate) struct Unwinding {
    processes: Mutex<FxHashMap<ProcessKey, Process>>,
    /// Tables by module, each made once.
    tables: Mutex<Vec<(Arc<ModulePlan>, TableOnce)>>,
    /// Files of small tables, one table behind the other; the latest file is the last. Programs that load
    /// the same libraries map the same file.
    files: Mutex<VecDeque<(Vec<Bytes>, Arc<File>)>>,
}

/// Name of files of tables in lists of mappings.
const FILE_NAME: &str = "membound-unwind";

/// Files that are kept for later programs.
const KEPT_FILES: usize = 16;

/// The tables of one process.
#[derive(Debug, Default)]
struct Process {
    /// Tables that are mapped, and their addresses.
    mapped: Vec<(Source, u64)>,
    /// Texts for which the agent has tables.
    registered: Vec<(Source, Range<u64>)>,
    /// True if it is to get tables of further texts later.
    is_owed: bool,
}

/// Origin of a table.
#[derive(Clone, Debug)]
enum Source {
    /// The agent itself.
    Agent,
    /// The vDSO, which the kernel maps into every process alike.
    Vdso,
    Module(Arc<ModulePlan>),
}

impl PartialEq for Source {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Agent, Self::Agent) | (Self::Vdso, Self::Vdso) => true,
            (Self::Module(one), Self::Module(other)) => Arc::ptr_eq(one, other),
            _ => false,
        }
    }
}

/// A text that needs a table.
#[derive(Clone, Debug)]
struct Text {
    source: Source,
    range: Range<u64>,
    table: Table,
}

impl Unwinding {
    fn processes(&self) -> MutexGuard<'_, FxHashMap<ProcessKey, Process>> {
        self.processes
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Handles a new program: the process has no tables any more.
    pub(crate) fn begin(
        &self,
        plans: &Plans,
        conversation: &Conversation,
        maps: &mut Vec<Mapping>,
        key: ProcessKey,
        loaded: &[Loaded],
    ) -> Result<(), Failure> {
        self.processes().retain(|other, _| {
            *other != key && stat::started(other.pid).ok() == Some(other.started)
        });
        // Later is possible only with a control thread.
        let which = match plans.is_deferring() {
            true => Which::AtStart,
            false => Which::All,
        };
        self.update(plans, conversation, maps, key, loaded, which)
    }

    /// True if a process is to get more tables.
    pub(crate) fn owes(&self, pid: u32) -> bool {
        let processes = self.processes();
        processes
            .iter()
            .any(|(key, it)| key.pid == pid && it.is_owed)
    }

    /// Makes the tables of the modules of a process.
    pub(crate) fn prepare(&self, plans: &Plans, loaded: &[Loaded]) {
        for loaded in loaded {
            self.of_module(plans, &loaded.module);
        }
    }

    /// Registers the tables of the modules in `loaded` with the agent, and removes all others.
    pub(crate) fn update(
        &self,
        plans: &Plans,
        conversation: &Conversation,
        maps: &mut Vec<Mapping>,
        key: ProcessKey,
        loaded: &[Loaded],
        which: Which,
    ) -> Result<(), Failure> {
        let known = self.processes().remove(&key);
        let mut process = match known {
            Some(known) => known,
            // A child has its parent's tables of the fork, which are not known here.
            None => {
                conversation.forget_unwind(&(0..u64::MAX))?;
                Process::default()
            }
        };
        let given: Vec<&Loaded> = match which {
            Which::All => loaded.iter().collect(),
            Which::AtStart => self.at_start(plans, loaded),
        };
        process.is_owed = given.len() < loaded.len();
        let texts = self.texts(plans, conversation, maps, &given);
        let wanted = |source: &Source, range: &Range<u64>| {
            texts
                .iter()
                .any(|text| text.source == *source && text.range == *range)
        };
        for (source, range) in &process.registered {
            if !wanted(source, range) {
                conversation.forget_unwind(range)?;
            }
        }
        process
            .registered
            .retain(|(source, range)| wanted(source, range));
        let new: Vec<Text> = texts
            .into_iter()
            .filter(|text| {
                let known = (text.source.clone(), text.range.clone());
                !process.registered.contains(&known)
            })
            .collect();
        process.map(conversation, maps, &new, self)?;
        let tables: Vec<(&Range<u64>, u64)> = new
            .iter()
            .filter_map(|text| Some((&text.range, process.table(&text.source)?)))
            .collect();
        let known = conversation.unwind(&tables)?;
        let texts = new.iter().filter(|it| process.table(&it.source).is_some());
        let registered: Vec<_> = texts
            .zip(known)
            .filter(|(_, known)| *known)
            .map(|(text, _)| (text.source.clone(), text.range.clone()))
            .collect();
        process.registered.extend(registered);
        self.processes().insert(key, process);
        Ok(())
    }

    /// The modules whose tables a program gets before it starts: as many as fit into [`TEXT_AT_START`], the
    /// executable first, then libraries in the order in which the loader has mapped them; those whose tables are in
    /// memory already; and the executable if its table is on disk, since most call chains go through it.
    fn at_start<'a>(&self, plans: &Plans, loaded: &'a [Loaded]) -> Vec<&'a Loaded> {
        let budget = TextBudget::of(TEXT_AT_START);
        let executable = loaded.first().map(|it| &it.module);
        let is_given = |loaded: &&Loaded| {
            let module = &loaded.module;
            let is_executable = executable.is_some_and(|it| Arc::ptr_eq(it, module));
            matches!(self.once_of(module).get(), Some(Table::Large(..)))
                || budget.include(module.text_bytes())
                || is_executable && plans.keeps_unwind_table(module)
        };
        in_order_of_loading(loaded).filter(is_given).collect()
    }

    /// The texts that need a table, from the loaded modules.
    fn texts(
        &self,
        plans: &Plans,
        conversation: &Conversation,
        maps: &[Mapping],
        loaded: &[&Loaded],
    ) -> Vec<Text> {
        let first_page = |range: Range<u64>| range.start & !(PAGE - 1)..range.end;
        let agent = Text {
            source: Source::Agent,
            range: first_page(conversation.agent()),
            table: of_agent(),
        };
        let vdso = maps.iter().find(|map| map.name == VDSO).map(|map| Text {
            source: Source::Vdso,
            range: map.range.clone(),
            table: of_vdso(),
        });
        let modules = loaded.iter().map(|loaded| Text {
            source: Source::Module(Arc::clone(&loaded.module)),
            range: first_page(loaded.span()),
            table: self.of_module(plans, &loaded.module),
        });
        std::iter::once(agent)
            .chain(vdso)
            .chain(modules)
            .filter(|text| !text.table.is_empty() && !text.range.is_empty())
            .collect()
    }

    /// A file of these tables, each behind the [`padded`] lengths of those before it.
    fn file(&self, tables: Vec<Bytes>) -> io::Result<Arc<File>> {
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        let is_same = |known: &[Bytes]| {
            let mut both = known.iter().zip(&tables);
            known.len() == tables.len() && both.all(|(one, other)| Arc::ptr_eq(one, other))
        };
        if let Some((_, file)) = files.iter().find(|(known, _)| is_same(known)) {
            return Ok(Arc::clone(file));
        }
        let mut bytes = Vec::new();
        for table in &tables {
            let end = bytes.len() + padded(table);
            bytes.extend_from_slice(table);
            bytes.resize(end, 0);
        }
        let file = Arc::new(memfd::with(FILE_NAME, &bytes)?);
        files.push_back((tables, Arc::clone(&file)));
        if files.len() > KEPT_FILES {
            files.pop_front();
        }
        Ok(file)
    }

    /// The table of a module, which is made if there is none.
    fn of_module(&self, plans: &Plans, module: &Arc<ModulePlan>) -> Table {
        let once = self.once_of(module);
        once.get_or_init(|| Table::of(plans.unwind_table(module)))
            .clone()
    }

    /// The place for the table of a module. Many processes of one program may ask at the same moment: one of
    /// them makes the table, without the lock on the list, so that programs that need others do not wait.
    fn once_of(&self, module: &Arc<ModulePlan>) -> TableOnce {
        let mut tables = self.tables.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, once)) = tables.iter().find(|(it, _)| Arc::ptr_eq(it, module)) {
            return Arc::clone(once);
        }
        let once = TableOnce::default();
        tables.push((Arc::clone(module), Arc::clone(&once)));
        once
    }
}

/// Bytes that a table takes in a shared file.
fn padded(table: &[u8]) -> usize {
    table.len().next_multiple_of(16)
}

impl Process {
    fn table(&self, source: &Source) -> Option<u64> {
        let found = self.mapped.iter().find(|(known, _)| known == source);
        found.map(|(_, at)| *at)
    }

    /// Maps the tables of `texts` that are not mapped yet, small ones together.
    fn map(
        &mut self,
        conversation: &Conversation,
        maps: &mut Vec<Mapping>,
        texts: &[Text],
        unwinding: &Unwinding,
    ) -> Result<(), Failure> {
        let mut length = 0;
        let mut tables = Vec::new();
        let mut places: Vec<(Source, u64)> = Vec::new();
        for text in texts {
            let twice = places.iter().any(|(source, _)| *source == text.source);
            if self.table(&text.source).is_some() || twice {
                continue;
            }
            match &text.table {
                Table::Small(bytes) => {
                    places.push((text.source.clone(), length));
                    length += padded(bytes) as u64;
                    tables.push(Arc::clone(bytes));
                }
                Table::Large(file, length) => {
                    let at = map_file(conversation, maps, file, *length)?;
                    self.mapped.push((text.source.clone(), at));
                }
            }
        }
        if tables.is_empty() {
            return Ok(());
        }
        let file = unwinding.file(tables)?;
        let at = map_file(conversation, maps, &file, length)?;
        let placed = places
            .into_iter()
            .map(|(source, offset)| (source, at + offset));
        self.mapped.extend(placed);
        Ok(())
    }
}

/// Maps a file into the process; returns its address.
fn map_file(
    conversation: &Conversation,
    maps: &mut Vec<Mapping>,
    file: &File,
    length: u64,
) -> Result<u64, Failure> {
    let inode = file.metadata()?.ino();
    let near = conversation.agent();
    let length = length.next_multiple_of(PAGE);
    map_near(conversation, maps, &near, length, inode, |range| {
        conversation.map(&Part {
            at: range.clone(),
            memory: file.as_fd(),
            offset: 0,
            protection: Protection::READ,
        })
    })
}

/// Makes the tables that every program needs, in the background: that takes a millisecond, which the first program
/// needs to load its libraries.
pub(crate) fn prepare_own() {
    let make = || {
        of_agent();
        of_vdso();
    };
    // Without a thread the first program waits for them.
    let thread = std::thread::Builder::new().name("preparing".to_owned());
    let _ = thread.spawn(make);
}

/// The table of this process's vDSO, which every process has.
fn of_vdso() -> Table {
    static TABLE: OnceLock<Table> = OnceLock::new();
    let table = TABLE.get_or_init(|| {
        let bytes = own_vdso().unwrap_or_default();
        let image = Image::parse(&bytes);
        Table::of(image.map_or_else(|_| Vec::new(), |image| image.unwind_table()))
    });
    table.clone()
}

fn own_vdso() -> io::Result<Vec<u8>> {
    let maps = maps::of(std::process::id())?;
    let Some(map) = maps.iter().find(|map| map.name == VDSO) else {
        return Ok(Vec::new());
    };
    let length = usize::try_from(map.range.end - map.range.start).unwrap_or(0);
    let mut bytes = vec![0; length];
    File::open("/proc/self/mem")?.read_exact_at(&mut bytes, map.range.start)?;
    Ok(bytes)
}

fn of_agent() -> Table {
    static TABLE: OnceLock<Table> = OnceLock::new();
    let table = TABLE.get_or_init(|| {
        let image = Image::parse(crate::AGENT);
        Table::of(image.map_or_else(|_| Vec::new(), |image| image.unwind_table()))
    });
    table.clone()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_agent_and_the_kernels_own_code_have_tables() {
        if crate::AGENT.is_empty() {
            membound_testkit::skipped("there is no agent for this machine");
            return;
        }
        assert!(!of_agent().is_empty());
        let maps = maps::of(std::process::id()).unwrap();
        if maps.iter().any(|map| map.name == VDSO) {
            assert!(!of_vdso().is_empty());
        }
    }

    #[test]
    fn a_large_table_has_a_file_of_its_own() {
        let Table::Large(file, length) = Table::of(vec![7; LARGE_BYTES]) else {
            panic!("it is large");
        };
        let mut byte = [0];
        file.read_exact_at(&mut byte, length - 1).unwrap();
        assert_eq!((length, byte), (LARGE_BYTES as u64, [7]));
        assert!(matches!(Table::of(vec![7; 100]), Table::Small(_)));
    }
}
