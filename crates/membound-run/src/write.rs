//! Writes a run while it is recorded.
//!
//! Rows collect in one transaction at a time; [`Writer::flush`] commits it. SQLite's rollback journal makes
//! each transaction atomic; as a second file it exists only during a commit. Nothing is forced to the disk:
//! the file must survive the end of this process, not of the machine, and a program under measurement must
//! not wait for a disk.

use std::borrow::Borrow;
use std::fs::{self, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use membound_types::MachineProfile;
use rusqlite::{Connection, ErrorCode, OpenFlags};
use rustix::process::{Resource, getrlimit};

use crate::check;
use crate::record::{self, Key, Record};
use crate::table;
use crate::{
    APPLICATION, Access, Allocations, Attribution, BlockCount, Burst, Code, Error, Executions,
    Frame, FrameId, Gap, HardwareAccess, Hold, LAYOUT, Laps, LiveBytes, Location, LoopAround,
    Mapping, Meta, Module, ModuleId, Object, ObjectId, PageNode, Process, ProcessId, RunData,
    Sample, Site, SiteId, Stack, StackId, Thread, ThreadId, Traffic, Watched,
};

/// Bytes of a page. Rows are appended to tables and read in order, so larger pages than SQLite's default only
/// mean fewer of them.
const PAGE_BYTES: u64 = 8192;
/// How long a commit waits for readers while the program runs. After a timeout the next flush
/// tries again.
const COMMIT_TIMEOUT: Duration = Duration::from_millis(20);
/// The same for the last commit.
const LAST_COMMIT_TIMEOUT: Duration = Duration::from_secs(10);

/// Writes a run file.
///
/// Rows may be written in any order, as long as the rows that they refer to have been written when
/// [`Self::flush`] is called: from then on readers see them.
///
/// After an error nothing more is written ([`Error::Stopped`]). What was flushed before stays readable, and
/// the recording can go on without the file.
#[derive(Debug)]
pub struct Writer {
    connection: Connection,
    path: PathBuf,
    state: State,
    /// Copies of all rows, after [`Self::keep_rows`].
    kept: Option<Box<RunData>>,
    /// The machine profile that the file has. It is 0.1 MB of JSON: as long as it does not change, it is not
    /// written with every change of the other metadata.
    machine: Option<Box<MachineProfile>>,
}

/// Whether the file is marked as ended properly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    No,
    InOrder,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// A transaction is open.
    Writing,
    /// An error ended it.
    Failed,
    /// All rows are written, and the file is complete.
    Finished,
}

/// Methods for rows with positions.
macro_rules! positioned {
    ($($(#[$meta:meta])* $name:ident, $name_at:ident($Id:ident, $Row:ident);)+) => {$(
        $(#[$meta])*
        ///
        /// `rows[0]` is number `first`. Rows that were written before are replaced.
        ///
        /// # Errors
        /// [`Error::Full`], [`Error::Write`], [`Error::Stopped`].
        pub fn $name(&mut self, first: $Id, rows: &[$Row]) -> Result<(), Error> {
            if let Some(kept) = &mut self.kept {
                let numbered = (first.index()..).zip(rows.iter().cloned());
                numbered.for_each(|(at, row)| put_at(&mut kept.$name, at, row));
            }
            self.put::<$Row, _>(rows.iter().zip(u64::from(first.0)..).map(|(row, id)| (id, row)))
        }

        $(#[$meta])*
        ///
        /// Each with its number, in any order. Rows that were written before are replaced.
        ///
        /// # Errors
        /// [`Error::Full`], [`Error::Write`], [`Error::Stopped`].
        pub fn $name_at(
            &mut self,
            rows: impl IntoIterator<Item = ($Id, $Row)>,
        ) -> Result<(), Error> {
            let mut kept = self.kept.take();
            let rows = rows.into_iter().inspect(|(id, row)| {
                if let Some(kept) = &mut kept {
                    put_at(&mut kept.$name, id.index(), row.clone());
                }
            });
            let written = self.put::<$Row, _>(rows.map(|(id, row)| (u64::from(id.0), row)));
            self.kept = kept;
            written
        }
    )+};
}

/// Methods for rows that are only appended.
macro_rules! appended {
    ($($(#[$meta:meta])* $name:ident($Row:ident);)+) => {$(
        $(#[$meta])*
        ///
        /// # Errors
        /// [`Error::Full`], [`Error::Write`], [`Error::Stopped`].
        pub fn $name(&mut self, rows: &[$Row]) -> Result<(), Error> {
            if let Some(kept) = &mut self.kept {
                kept.$name.extend_from_slice(rows);
            }
            self.put::<$Row, _>(rows.iter().map(|row| (0, row)))
        }
    )+};
}

impl Writer {
    /// Creates a run file; an existing file is replaced.
    ///
    /// # Errors
    /// [`Error::Create`], [`Error::NotAFile`], [`Error::InUse`], [`Error::Full`], [`Error::Write`].
    pub fn create(path: &Path, meta: &Meta) -> Result<Self, Error> {
        let given = path;
        let create = |error| Error::Create {
            path: given.to_owned(),
            error,
        };
        // Absolute, because SQLite gives names such as `:memory:` a meaning.
        let path = std::path::absolute(given).map_err(create)?;
        empty(&path, given)?;
        let connection =
            connect(&path).map_err(|error| create(io::Error::other(error.to_string())))?;
        let mut writer = Self {
            connection,
            path: given.to_owned(),
            state: State::Writing,
            kept: None,
            machine: None,
        };
        let begun = writer.begin_file(meta);
        writer.keep(begun)?;
        writer.flush()?;
        Ok(writer)
    }

    /// From now on also keeps all rows in memory, for [`Self::take_rows`], so that the run need not be read
    /// back from the file.
    pub fn keep_rows(&mut self) {
        self.kept = Some(Box::default());
    }

    /// The rows that were kept, as [`RunData::open`] would read them from the completed file; `None` if
    /// [`Self::keep_rows`] was not called. Ends the keeping.
    pub fn take_rows(&mut self, meta: &Meta) -> Option<RunData> {
        let mut run = *self.kept.take()?;
        run.meta = Meta {
            complete: true,
            ..meta.clone()
        };
        let dangling = check::keep_what_refers(&mut run);
        run.meta.complete = dangling.is_empty();
        run.gaps.extend(dangling);
        Some(run)
    }

    positioned! {
        /// Writes process images.
        processes, processes_at(ProcessId, Process);
        /// Writes threads.
        threads, threads_at(ThreadId, Thread);
        /// Writes modules.
        modules, modules_at(ModuleId, Module);
        /// Writes frames.
        frames, frames_at(FrameId, Frame);
        /// Writes call chains.
        stacks, stacks_at(StackId, Stack);
        /// Writes sites.
        sites, sites_at(SiteId, Site);
        /// Writes objects.
        objects, objects_at(ObjectId, Object);
    }

    appended! {
        /// Adds mappings.
        mappings(Mapping);
        /// Adds timer samples.
        samples(Sample);
        /// Adds attributions.
        attributions(Attribution);
        /// Adds counted executions.
        executions(Executions);
        /// Adds iterations of loops.
        laps(Laps);
        /// Adds loops around frames.
        loops(LoopAround);
        /// Adds accesses.
        accesses(Access);
        /// Adds bursts.
        bursts(Burst);
        /// Adds counts of basic blocks.
        blocks(BlockCount);
        /// Adds allocations by call chain.
        allocations(Allocations);
        /// Adds live bytes by call chain.
        live(LiveBytes);
        /// Adds functions and lines of frames.
        locations(Location);
        /// Adds code.
        code(Code);
        /// Adds nodes of pages.
        pages(PageNode);
        /// Adds traffic.
        traffic(Traffic);
        /// Adds hits of watchpoints.
        watched(Watched);
        /// Adds spans in which threads were held, or not.
        holds(Hold);
        /// Adds accesses that a processor sampled itself.
        hardware_accesses(HardwareAccess);
        /// Adds gaps.
        gaps(Gap);
    }

    /// Replaces the metadata. The file stays marked incomplete whatever `meta` says.
    ///
    /// # Errors
    /// [`Error::Full`], [`Error::Write`], [`Error::Stopped`].
    pub fn meta(&mut self, meta: &Meta) -> Result<(), Error> {
        self.writing()?;
        let written = self.begin().and_then(|()| self.put_meta(meta, Ended::No));
        self.keep(written)
    }

    /// Commits everything written so far. If a reader holds the lock for too long, the next call tries again.
    ///
    /// # Errors
    /// [`Error::Full`], [`Error::Write`], [`Error::Stopped`].
    pub fn flush(&mut self) -> Result<(), Error> {
        self.writing()?;
        let ended = self.commit();
        if ended.as_ref().is_err_and(is_busy) {
            return Ok(());
        }
        self.keep(ended)
    }

    /// Marks the file complete. More may be written afterwards, and [`Self::finish`] adds how the program
    /// ended: a recording can be over long before its program is.
    ///
    /// # Errors
    /// [`Error::Full`], [`Error::Write`], [`Error::Stopped`].
    pub fn complete(&mut self, meta: &Meta) -> Result<(), Error> {
        self.writing()?;
        let ended = self
            .connection
            .busy_timeout(LAST_COMMIT_TIMEOUT)
            .and_then(|()| self.begin())
            .and_then(|()| self.put_meta(meta, Ended::InOrder))
            .and_then(|()| self.connection.execute_batch("COMMIT"));
        self.keep(ended)
    }

    /// Marks the file complete, and ends writing.
    ///
    /// # Errors
    /// [`Error::Full`], [`Error::Write`], [`Error::Stopped`].
    pub fn finish(mut self, meta: &Meta) -> Result<(), Error> {
        self.complete(meta)?;
        self.state = State::Finished;
        Ok(())
    }

    fn writing(&self) -> Result<(), Error> {
        match self.state {
            State::Writing => Ok(()),
            State::Failed | State::Finished => Err(Error::Stopped {
                path: self.path.clone(),
            }),
        }
    }

    fn begin_file(&mut self, meta: &Meta) -> rusqlite::Result<()> {
        self.connection.execute_batch(&format!(
            "BEGIN IMMEDIATE; PRAGMA application_id = {APPLICATION}; PRAGMA user_version = {LAYOUT}"
        ))?;
        for statement in table::create_all() {
            self.connection.execute_batch(&statement)?;
        }
        self.put_meta(meta, Ended::No)
    }

    fn put_meta(&mut self, meta: &Meta, ended: Ended) -> rusqlite::Result<()> {
        insert::<Meta, _>(&self.connection, std::iter::once((0, meta)))?;
        self.connection
            .execute("UPDATE run SET complete = ?1", [ended == Ended::InOrder])?;
        if self.machine != meta.machine {
            self.put_machine(meta.machine.as_deref())?;
            self.machine.clone_from(&meta.machine);
        }
        Ok(())
    }

    fn put_machine(&self, machine: Option<&MachineProfile>) -> rusqlite::Result<()> {
        self.connection.execute_batch("DELETE FROM machine")?;
        if let Some(machine) = machine {
            let text = serde_json::to_string(machine)
                .map_err(|error| rusqlite::Error::ToSqlConversionFailure(Box::new(error)))?;
            self.connection
                .execute("INSERT INTO machine (profile) VALUES (?1)", [text])?;
        }
        Ok(())
    }

    fn put<R: Record, B: Borrow<R>>(
        &mut self,
        rows: impl Iterator<Item = (u64, B)>,
    ) -> Result<(), Error> {
        self.writing()?;
        let mut rows = rows.peekable();
        if rows.peek().is_none() {
            return Ok(());
        }
        let written = self
            .begin()
            .and_then(|()| insert::<R, B>(&self.connection, rows));
        self.keep(written)
    }

    /// Commits the transaction and begins the next one.
    fn commit(&self) -> rusqlite::Result<()> {
        if !self.connection.is_autocommit() {
            self.connection.execute_batch("COMMIT")?;
        }
        self.begin()
    }

    /// Begins a transaction if none is open. It takes the write lock at once, so that a second writer of the
    /// same file is refused at any time.
    fn begin(&self) -> rusqlite::Result<()> {
        if self.connection.is_autocommit() {
            self.connection.execute_batch("BEGIN IMMEDIATE")?;
        }
        Ok(())
    }

    /// On an error, stops writing and rolls back what was not flushed.
    fn keep(&mut self, result: rusqlite::Result<()>) -> Result<(), Error> {
        let Err(error) = result else {
            return Ok(());
        };
        self.state = State::Failed;
        if !self.connection.is_autocommit() {
            // If this fails too, the journal stays and the next reader applies it.
            let _ = self.connection.execute_batch("ROLLBACK");
        }
        let path = self.path.clone();
        Err(if is_full(&error) {
            Error::Full { path }
        } else {
            Error::Write {
                path,
                reason: error.to_string(),
            }
        })
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        if self.state == State::Writing && !self.connection.is_autocommit() {
            // A destructor has no caller to report the error to.
            let _ = self.connection.execute_batch("COMMIT");
        }
    }
}

/// Writes a whole run at once. The file is marked complete if [`Meta::complete`] is set.
///
/// # Errors
/// As [`Writer::create`] and [`Writer::finish`].
pub fn write(path: &Path, run: &RunData) -> Result<(), Error> {
    let mut writer = Writer::create(path, &run.meta)?;
    writer.processes(ProcessId(0), &run.processes)?;
    writer.threads(ThreadId(0), &run.threads)?;
    writer.modules(ModuleId(0), &run.modules)?;
    writer.mappings(&run.mappings)?;
    writer.frames(FrameId(0), &run.frames)?;
    writer.stacks(StackId(0), &run.stacks)?;
    writer.samples(&run.samples)?;
    writer.sites(SiteId(0), &run.sites)?;
    writer.attributions(&run.attributions)?;
    writer.executions(&run.executions)?;
    writer.laps(&run.laps)?;
    writer.loops(&run.loops)?;
    writer.accesses(&run.accesses)?;
    writer.bursts(&run.bursts)?;
    writer.blocks(&run.blocks)?;
    writer.objects(ObjectId(0), &run.objects)?;
    writer.allocations(&run.allocations)?;
    writer.live(&run.live)?;
    writer.locations(&run.locations)?;
    writer.code(&run.code)?;
    writer.pages(&run.pages)?;
    writer.traffic(&run.traffic)?;
    writer.watched(&run.watched)?;
    writer.holds(&run.holds)?;
    writer.hardware_accesses(&run.hardware_accesses)?;
    writer.gaps(&run.gaps)?;
    if run.meta.complete {
        writer.finish(&run.meta)
    } else {
        writer.flush()
    }
}

/// Puts a row at its position. Rows after a position that was never written are dropped, as a reader of the
/// file would.
fn put_at<R>(rows: &mut Vec<R>, at: usize, row: R) {
    if at == rows.len() {
        rows.push(row);
    } else if let Some(there) = rows.get_mut(at) {
        *there = row;
    }
}

/// Writes rows, each with its position where the table has positions.
fn insert<R: Record, B: Borrow<R>>(
    connection: &Connection,
    rows: impl Iterator<Item = (u64, B)>,
) -> rusqlite::Result<()> {
    let mut statement = connection.prepare(&record::insert::<R>())?;
    for (id, row) in rows {
        let from = match R::KEY {
            Key::Position => {
                statement.raw_bind_parameter(1, id.cast_signed())?;
                2
            }
            Key::Order => 1,
        };
        row.borrow().bind(&mut statement, from)?;
        statement.raw_execute()?;
    }
    Ok(())
}

/// Makes `path` an empty file, unless another process is writing it.
fn empty(path: &Path, given: &Path) -> Result<(), Error> {
    let create = |error| Error::Create {
        path: given.to_owned(),
        error,
    };
    if let Ok(there) = fs::metadata(path) {
        if !there.is_file() {
            return Err(Error::NotAFile {
                path: given.to_owned(),
            });
        }
        if there.len() > 0 && is_being_written(path) {
            return Err(Error::InUse {
                path: given.to_owned(),
            });
        }
    }
    OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .open(path)
        .map_err(create)?;
    // SQLite would apply the journals of a previous database to the new one.
    for suffix in ["-journal", "-wal", "-shm"] {
        let mut beside = path.as_os_str().to_owned();
        beside.push(suffix);
        match fs::remove_file(&beside) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(create(error)),
            _ => {}
        }
    }
    Ok(())
}

/// True if another writer has a transaction open in the database at `path`.
fn is_being_written(path: &Path) -> bool {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let Ok(connection) = Connection::open_with_flags(path, flags) else {
        return false;
    };
    let begun = connection
        .busy_timeout(COMMIT_TIMEOUT)
        .and_then(|()| connection.execute_batch("BEGIN IMMEDIATE; ROLLBACK"));
    begun.as_ref().is_err_and(is_busy)
}

fn connect(path: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
        | OpenFlags::SQLITE_OPEN_CREATE
        | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(COMMIT_TIMEOUT)?;
    // With spilling, pages written before a commit would keep the journal on disk for longer.
    connection.execute_batch(&format!(
        "PRAGMA page_size = {PAGE_BYTES}; PRAGMA journal_mode = DELETE; PRAGMA synchronous = OFF;
         PRAGMA cache_spill = OFF; PRAGMA temp_store = MEMORY",
    ))?;
    if let Some(limit) = getrlimit(Resource::Fsize).current {
        // A write beyond this limit would raise a signal, which would end the command.
        let pages = (limit / PAGE_BYTES).max(1);
        connection.execute_batch(&format!("PRAGMA max_page_count = {pages}"))?;
    }
    Ok(connection)
}

fn is_busy(error: &rusqlite::Error) -> bool {
    matches!(
        error.sqlite_error_code(),
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked)
    )
}

/// True if there is no room. SQLite reports a limit on file sizes and a failing disk with the same I/O error;
/// the limit is by far the more likely one, and only it has a message of its own.
fn is_full(error: &rusqlite::Error) -> bool {
    error.sqlite_error_code() == Some(ErrorCode::DiskFull)
        || error
            .sqlite_error()
            .is_some_and(|error| error.extended_code == rusqlite::ffi::SQLITE_IOERR_WRITE)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MACHINE: &str = include_str!("../../membound-input/tests/data/machine.json");

    #[test]
    fn a_machine_profile_is_written_when_it_changes() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("run");
        let mut meta = Meta {
            machine: Some(serde_json::from_str(MACHINE).unwrap()),
            ..Meta::default()
        };
        let mut writer = Writer::create(&path, &meta).unwrap();
        let count = "CREATE TEMP TABLE written (at INTEGER);
                     CREATE TEMP TRIGGER written AFTER INSERT ON main.machine
                     BEGIN INSERT INTO temp.written VALUES (1); END";
        writer.connection.execute_batch(count).unwrap();
        let written = |writer: &Writer| -> u32 {
            let count = "SELECT count(*) FROM temp.written";
            let mut statement = writer.connection.prepare(count).unwrap();
            statement.query_row([], |row| row.get(0)).unwrap()
        };
        for elapsed_ns in 1..20 {
            meta.elapsed_ns = elapsed_ns;
            writer.meta(&meta).unwrap();
            writer.flush().unwrap();
        }
        assert_eq!(written(&writer), 0, "it is the one that it began with");
        let another = MachineProfile::unmeasured(membound_types::MachineInfo::default());
        meta.machine = Some(Box::new(another));
        writer.meta(&meta).unwrap();
        assert_eq!(written(&writer), 1);
        writer.finish(&meta).unwrap();
        let read = RunData::open(&path).unwrap();
        assert_eq!(
            read.meta,
            Meta {
                complete: true,
                ..meta
            }
        );
    }
}
