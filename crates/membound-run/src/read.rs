//! Reads a run, or the part of a damaged one that is intact.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::time::Duration;

use rusqlite::{Connection, ErrorCode, OpenFlags, OptionalExtension};

use crate::record::{self, Key, Record};
use crate::table;
use crate::{APPLICATION, Error, Gap, LAYOUT, Meta, RunData, Thread, check};

/// How long a read waits for the lock of a recording in progress.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
/// First bytes of every SQLite database.
const MAGIC: &[u8; 16] = b"SQLite format 3\0";

/// True if the file at `path` is a run whose recording is over, even if its program goes on.
#[must_use]
pub fn is_complete(path: &Path) -> bool {
    let complete = || -> Result<bool, Error> {
        sniff(path)?;
        let connection = connect(path)?;
        identify(&connection, path)?;
        let complete = connection.query_row("SELECT complete FROM run", [], |row| row.get(0));
        Ok(complete.unwrap_or(false))
    };
    complete().unwrap_or(false)
}

impl RunData {
    /// Threads of the programs, without the agent's threads.
    pub fn own_threads(&self) -> impl Iterator<Item = &Thread> {
        self.threads.iter().filter(|thread| !self.is_agents(thread))
    }

    /// True if `thread`, one of this run, is the agent's.
    #[must_use]
    pub fn is_agents(&self, thread: &Thread) -> bool {
        thread.is_agents(self.processes[thread.process.index()].pid)
    }

    /// Reads a run.
    ///
    /// Of a damaged run, all rows are returned that can be read and refer to no missing row. The run is then
    /// marked incomplete, and [`RunData::gaps`] says what was lost. Every identifier in the result is a valid
    /// position.
    ///
    /// # Errors
    /// When the file is no run of this layout, or not even its table `run` can be read.
    pub fn open(path: &Path) -> Result<Self, Error> {
        sniff(path)?;
        let connection = connect(path)?;
        identify(&connection, path)?;
        let mut reader = Reader {
            connection: &connection,
            gaps: Vec::new(),
        };
        let meta = meta(&mut reader, path)?;
        let (beside, mut run) = std::thread::scope(|scope| {
            let second = second(&connection, path);
            let beside = second.map(|it| scope.spawn(move || (whole(&it), whole(&it))));
            let run = reader.all_but_largest(meta);
            (beside.and_then(|it| it.join().ok()), run)
        });
        let (samples, locations) = beside.unwrap_or_default();
        run.samples = samples.unwrap_or_else(|| reader.rows());
        run.locations = locations.unwrap_or_else(|| reader.rows());
        let lost = reader.gaps;
        let dangling = check::keep_what_refers(&mut run);
        if !lost.is_empty() || !dangling.is_empty() {
            run.meta.complete = false;
        }
        run.gaps.extend(lost);
        run.gaps.extend(dangling);
        Ok(run)
    }
}

/// A second connection to the file of `first`, so that two threads can read. Both connections are in a
/// transaction with the same contents from here on. `None` where the lock is not free at once.
fn second(first: &Connection, path: &Path) -> Option<Connection> {
    let begin = |connection: &Connection| {
        connection.execute_batch("BEGIN")?;
        touch(connection)
    };
    begin(first).ok()?;
    let second = open(path, OpenFlags::SQLITE_OPEN_READ_ONLY).ok()?;
    second.busy_timeout(Duration::ZERO).ok()?;
    begin(&second).ok()?;
    Some(second)
}

/// Reads a table; `None` if any row cannot be read.
fn whole<R: Record>(connection: &Connection) -> Option<Vec<R>> {
    let reader = Reader {
        connection,
        gaps: Vec::new(),
    };
    let (mut rows, mut strange) = (Vec::new(), 0);
    reader.read_into(&mut rows, &mut strange).ok()?;
    (strange == 0).then_some(rows)
}

/// Reads tables as far as they are intact, and collects gaps.
struct Reader<'a> {
    connection: &'a Connection,
    gaps: Vec<Gap>,
}

impl Reader<'_> {
    /// Reads all tables but samples and locations, which take about as long as the rest and are read on
    /// another thread.
    fn all_but_largest(&mut self, meta: Meta) -> RunData {
        let reader = self;
        RunData {
            meta,
            processes: reader.rows(),
            threads: reader.rows(),
            modules: reader.rows(),
            mappings: reader.rows(),
            frames: reader.rows(),
            stacks: reader.rows(),
            samples: Vec::new(),
            sites: reader.rows(),
            attributions: reader.rows(),
            executions: reader.rows(),
            laps: reader.rows(),
            loops: reader.rows(),
            accesses: reader.rows(),
            bursts: reader.rows(),
            blocks: reader.rows(),
            objects: reader.rows(),
            allocations: reader.rows(),
            live: reader.rows(),
            locations: Vec::new(),
            code: reader.rows(),
            pages: reader.rows(),
            traffic: reader.rows(),
            watched: reader.rows(),
            holds: reader.rows_if_any(),
            hardware_accesses: reader.rows(),
            gaps: reader.rows(),
        }
    }

    /// All rows of a table, or the rows before the damage.
    fn rows<R: Record>(&mut self) -> Vec<R> {
        let mut rows = Vec::new();
        let mut strange = 0;
        match self.read_into(&mut rows, &mut strange) {
            Ok(()) if strange == 0 => {}
            Ok(()) => self.lost::<R>(
                format!("rows of table {} hold what no membound writes", R::TABLE),
                Some(strange),
            ),
            Err(error) => self.lost::<R>(
                format!(
                    "the file is damaged: table {} can be read up to row {} only ({error})",
                    R::TABLE,
                    rows.len()
                ),
                None,
            ),
        }
        rows
    }

    /// The same for a table that files of earlier versions may lack.
    fn rows_if_any<R: Record>(&mut self) -> Vec<R> {
        let there = self.connection.query_row(
            "SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = ?1",
            [R::TABLE],
            |_| Ok(()),
        );
        match there {
            Err(rusqlite::Error::QueryReturnedNoRows) => Vec::new(),
            _ => self.rows(),
        }
    }

    fn read_into<R: Record>(&self, rows: &mut Vec<R>, strange: &mut u64) -> rusqlite::Result<()> {
        let mut columns = self
            .connection
            .prepare("SELECT name FROM pragma_table_info(?1)")?;
        let columns: Vec<String> = columns
            .query_map([R::TABLE], |row| row.get(0))?
            .collect::<rusqlite::Result<_>>()?;
        if columns.is_empty() && table::LATER_TABLES.contains(&R::TABLE) {
            return Ok(());
        }
        let mut statement = self.connection.prepare(&record::select::<R>(&columns))?;
        let mut found = statement.query([])?;
        while let Some(row) = found.next()? {
            match R::KEY {
                Key::Order => match R::take(row, 0) {
                    Ok(taken) => rows.push(taken),
                    Err(_) => *strange += 1,
                },
                // Rows after a missing one would get wrong positions.
                Key::Position => {
                    let id: i64 = row.get(0)?;
                    if usize::try_from(id) != Ok(rows.len()) {
                        *strange += 1;
                        break;
                    }
                    rows.push(R::take(row, 1)?);
                }
            }
        }
        Ok(())
    }

    fn lost<R: Record>(&mut self, reason: String, count: Option<u64>) {
        self.gaps.push(Gap {
            about: R::ABOUT.to_owned(),
            reason,
            remedy: None,
            count,
        });
    }
}

/// Checks the file's first bytes, and says what it is if it is no database.
fn sniff(path: &Path) -> Result<(), Error> {
    let open = |error| Error::Open {
        path: path.to_owned(),
        error,
    };
    let mut file = File::open(path).map_err(open)?;
    let mut start = Vec::new();
    file.by_ref()
        .take(MAGIC.len() as u64)
        .read_to_end(&mut start)
        .map_err(open)?;
    if start.is_empty() {
        return Err(Error::Empty {
            path: path.to_owned(),
        });
    }
    if start == MAGIC {
        return Ok(());
    }
    if start.trim_ascii_start().starts_with(b"{") {
        file.read_to_end(&mut start).map_err(open)?;
        if let Ok(document) = serde_json::from_slice::<serde_json::Value>(&start) {
            let kind = document.get("kind").and_then(|kind| kind.as_str());
            return Err(Error::Document {
                path: path.to_owned(),
                kind: kind.unwrap_or("of no known kind").to_owned(),
            });
        }
    }
    Err(Error::NotARun {
        path: path.to_owned(),
    })
}

/// Opens the database. If a writer was killed while it committed, the journal is rolled back first.
fn connect(path: &Path) -> Result<Connection, Error> {
    let damaged = |error: rusqlite::Error| Error::Damaged {
        path: path.to_owned(),
        reason: error.to_string(),
    };
    let connection = open(path, OpenFlags::SQLITE_OPEN_READ_ONLY).map_err(damaged)?;
    let Err(error) = touch(&connection) else {
        return Ok(connection);
    };
    match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => Err(Error::Busy {
            path: path.to_owned(),
        }),
        Some(ErrorCode::ReadOnly | ErrorCode::CannotOpen | ErrorCode::SystemIoFailure) => {
            let unfinished = |error: rusqlite::Error| Error::Unfinished {
                path: path.to_owned(),
                reason: error.to_string(),
            };
            let connection = open(path, OpenFlags::SQLITE_OPEN_READ_WRITE).map_err(unfinished)?;
            touch(&connection).map_err(unfinished)?;
            Ok(connection)
        }
        Some(ErrorCode::DatabaseCorrupt) => {
            // With this setting SQLite reads a truncated file.
            connection
                .execute_batch("PRAGMA writable_schema = ON")
                .map_err(damaged)?;
            touch(&connection).map_err(damaged)?;
            Ok(connection)
        }
        Some(ErrorCode::NotADatabase) => Err(Error::NotARun {
            path: path.to_owned(),
        }),
        _ => Err(damaged(error)),
    }
}

fn open(path: &Path, access: OpenFlags) -> rusqlite::Result<Connection> {
    // Absolute, because SQLite treats names such as `:memory:` specially.
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let connection =
        Connection::open_with_flags(absolute, access | OpenFlags::SQLITE_OPEN_NO_MUTEX)?;
    connection.busy_timeout(BUSY_TIMEOUT)?;
    Ok(connection)
}

/// The first query, which makes SQLite read the file and its journal.
fn touch(connection: &Connection) -> rusqlite::Result<i64> {
    connection.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))
}

fn identify(connection: &Connection, path: &Path) -> Result<(), Error> {
    let pragma = |name: &str| {
        connection
            .pragma_query_value(None, name, |row| row.get::<_, i64>(0))
            .map_err(|error| Error::Damaged {
                path: path.to_owned(),
                reason: error.to_string(),
            })
    };
    if pragma("application_id")? != i64::from(APPLICATION) {
        return Err(Error::OtherDatabase {
            path: path.to_owned(),
        });
    }
    let found = pragma("user_version")?;
    if found != LAYOUT {
        return Err(Error::OtherLayout {
            path: path.to_owned(),
            found,
        });
    }
    Ok(())
}

fn meta(reader: &mut Reader<'_>, path: &Path) -> Result<Meta, Error> {
    let mut rows = Vec::new();
    let damaged = |reason: String| Error::Damaged {
        path: path.to_owned(),
        reason,
    };
    reader
        .read_into::<Meta>(&mut rows, &mut 0)
        .map_err(|error| damaged(error.to_string()))?;
    let mut meta: Meta = rows
        .pop()
        .ok_or_else(|| damaged("its table run is empty".to_owned()))?;
    let profile: rusqlite::Result<Option<String>> = reader
        .connection
        .query_row("SELECT profile FROM machine", [], |row| row.get(0))
        .optional();
    let machine = match profile {
        Ok(None) => Ok(None),
        Ok(Some(text)) => serde_json::from_str(&text)
            .map(Some)
            .map_err(|error| error.to_string()),
        Err(error) => Err(error.to_string()),
    };
    match machine {
        Ok(machine) => meta.machine = machine.map(Box::new),
        Err(reason) => reader.gaps.push(Gap {
            about: "latencies".to_owned(),
            reason: format!("the machine profile in the run cannot be read: {reason}"),
            remedy: Some("give one with --machine".to_owned()),
            count: None,
        }),
    }
    Ok(meta)
}
