//! Unwind tables for agents: one for each file, mapped into every process that has loaded it.
//!
//! A table stays mapped once it is in a process: a thread may be reading it when its module
//! goes, and it serves again when the module comes back.

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
use crate::ledger::ProcessKey;
use crate::live::map_near;
use crate::maps::{self, Mapping};
use crate::memory;
use crate::modules::{Loaded, Module, Plans};
use crate::orders::Part;

const PAGE: u64 = 4096;
/// What the kernel calls its own code in lists of mappings.
const VDSO: &str = "[vdso]";

/// A table's bytes.
type Table = Arc<Vec<u8>>;

/// What the agents' tables are, in every process.
#[derive(Debug, Default)]
pub(crate) struct Unwinding {
    processes: Mutex<FxHashMap<ProcessKey, Process>>,
    /// Made from files, each once.
    tables: Mutex<Vec<(Arc<Module>, Table)>>,
    /// Files of tables one behind the other, the latest last: programs that load the same libraries
    /// map the same one.
    files: Mutex<VecDeque<(Vec<Table>, Arc<File>)>>,
}

/// Files that are kept for programs that come later.
const KEPT_FILES: usize = 16;

/// One process's.
#[derive(Debug, Default)]
struct Process {
    /// Tables that are mapped, and where.
    mapped: Vec<(Source, u64)>,
    /// Texts that the agent knows tables of.
    registered: Vec<(Source, Range<u64>)>,
}

/// Where a table comes from.
#[derive(Clone, Debug)]
enum Source {
    /// The agent itself.
    Agent,
    /// What the kernel maps into every process, the same into all.
    Vdso,
    Module(Arc<Module>),
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

/// A text that is to have a table.
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

    /// A new program: nothing of what its process had is there any more.
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
        self.update(plans, conversation, maps, key, loaded)
    }

    /// Makes the agent know the tables of all that is `loaded`, and no others.
    pub(crate) fn update(
        &self,
        plans: &Plans,
        conversation: &Conversation,
        maps: &mut Vec<Mapping>,
        key: ProcessKey,
        loaded: &[Loaded],
    ) -> Result<(), Failure> {
        let known = self.processes().remove(&key);
        let mut process = match known {
            Some(known) => known,
            // A child has what its parent had when it was forked, which nobody knows.
            None => {
                conversation.forget_unwind(&(0..u64::MAX))?;
                Process::default()
            }
        };
        let texts = self.texts(plans, conversation, maps, loaded);
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

    /// What is to have a table, from what is loaded.
    fn texts(
        &self,
        plans: &Plans,
        conversation: &Conversation,
        maps: &[Mapping],
        loaded: &[Loaded],
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

    /// A file of these tables, each beginning behind the [`padded`] ones before it.
    fn file(&self, tables: Vec<Table>) -> io::Result<Arc<File>> {
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        let is_same = |known: &[Table]| {
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
        let file = Arc::new(memory::with("membound-unwind", &bytes)?);
        files.push_back((tables, Arc::clone(&file)));
        if files.len() > KEPT_FILES {
            files.pop_front();
        }
        Ok(file)
    }

    fn of_module(&self, plans: &Plans, module: &Arc<Module>) -> Table {
        let mut tables = self.tables.lock().unwrap_or_else(PoisonError::into_inner);
        let known = tables.iter().find(|(it, _)| Arc::ptr_eq(it, module));
        if let Some((_, table)) = known {
            return Arc::clone(table);
        }
        let table = Arc::new(plans.unwind_table(module));
        tables.push((Arc::clone(module), Arc::clone(&table)));
        table
    }
}

/// Bytes that a table takes among others.
fn padded(table: &Table) -> usize {
    table.len().next_multiple_of(16)
}

impl Process {
    fn table(&self, source: &Source) -> Option<u64> {
        let found = self.mapped.iter().find(|(known, _)| known == source);
        found.map(|(_, at)| *at)
    }

    /// Maps the tables of `texts` that are not there yet, in one piece.
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
            if self.table(&text.source).is_none() && !twice {
                places.push((text.source.clone(), length));
                length += padded(&text.table) as u64;
                tables.push(Arc::clone(&text.table));
            }
        }
        if tables.is_empty() {
            return Ok(());
        }
        let file = unwinding.file(tables)?;
        let length = length.next_multiple_of(PAGE);
        let inode = file.metadata()?.ino();
        let near = conversation.agent();
        let at = map_near(conversation, maps, &near, length, inode, |range| {
            conversation.map(&Part {
                at: range.clone(),
                memory: file.as_fd(),
                offset: 0,
                protection: Protection::READ,
            })
        })?;
        let placed = places
            .into_iter()
            .map(|(source, offset)| (source, at + offset));
        self.mapped.extend(placed);
        Ok(())
    }
}

/// The table of this process's, which is every process's.
fn of_vdso() -> Table {
    static TABLE: OnceLock<Table> = OnceLock::new();
    let table = TABLE.get_or_init(|| {
        let bytes = own_vdso().unwrap_or_default();
        let image = Image::parse(&bytes);
        Arc::new(image.map_or_else(|_| Vec::new(), |image| image.unwind_table()))
    });
    Arc::clone(table)
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
        Arc::new(image.map_or_else(|_| Vec::new(), |image| image.unwind_table()))
    });
    Arc::clone(table)
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
        assert!(of_agent().len() > 100);
        let maps = maps::of(std::process::id()).unwrap();
        if maps.iter().any(|map| map.name == VDSO) {
            assert!(of_vdso().len() > 100);
        }
    }
}
