//! The tables: one for each vector of [`RunData`](crate::RunData), with one row for each element and one
//! column for each field, under the same names. [`Meta`] is the only row of `run`, except for its machine
//! profile, which is the only row of `machine`.

use rusqlite::{Row, Statement};

use crate::value::Value;
use crate::{
    Access, Allocations, Attribution, BlockCount, Burst, Code, Executions, Frame, Gap,
    HardwareAccess, Hold, Laps, LiveBytes, Location, LoopAround, Mapping, Meta, Module, Object,
    PageNode, Process, Sample, Site, Stack, Thread, Traffic, Watched, burst,
};

/// Distinguishes runs from other databases: SQLite's `application_id`.
pub const APPLICATION: i32 = i32::from_be_bytes(*b"mbnd");

/// Version of the layout: SQLite's `user_version`. It is raised when readers of the previous version
/// could not read what is written.
pub const LAYOUT: i64 = 1;

/// The machine profile has its own table, because it is large and rarely written.
pub(crate) const MACHINE: &str = "CREATE TABLE machine (profile TEXT NOT NULL)";

/// Name and SQL type of a column.
pub(crate) type Column = (&'static str, &'static str);

/// How rows are identified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Key {
    /// By their position, in a column `id`. They may be replaced.
    Position,
    /// Not at all: rows stay in the order in which they were written.
    Order,
}

/// A type whose values are the rows of a table.
pub(crate) trait Record: Sized {
    /// Name of the table.
    const TABLE: &'static str;
    /// How its rows are identified.
    const KEY: Key;
    /// Its columns, without `id`.
    const COLUMNS: &'static [Column];
    /// [`Gap::about`] for missing rows.
    const ABOUT: &'static str;

    /// Binds the fields to parameters, beginning with parameter `from`.
    fn bind(&self, statement: &mut Statement<'_>, from: usize) -> rusqlite::Result<()>;

    /// Reads the fields from columns, beginning with column `from`.
    fn take(row: &Row<'_>, from: usize) -> rusqlite::Result<Self>;
}

/// Implements [`Record`] with a column for each field, under the same name.
macro_rules! record {
    ($Type:ident, $table:literal, $Key:ident, $about:literal, {
        $($field:ident: $Value:ty),+ $(,)?
    } $(without { $($left_out:ident),+ })?) => {
        impl Record for $Type {
            const TABLE: &'static str = $table;
            const KEY: Key = Key::$Key;
            const COLUMNS: &'static [Column] =
                &[$((stringify!($field), <$Value as Value>::SQL)),+];
            const ABOUT: &'static str = $about;

            fn bind(&self, statement: &mut Statement<'_>, from: usize) -> rusqlite::Result<()> {
                let Self { $($field,)+ $($($left_out: _,)+)? } = self;
                let mut at = from;
                $(
                    <$Value as Value>::bind($field, statement, at)?;
                    at += 1;
                )+
                debug_assert_eq!(at, from + Self::COLUMNS.len(), "a parameter for each column");
                Ok(())
            }

            fn take(row: &Row<'_>, from: usize) -> rusqlite::Result<Self> {
                let mut columns = from..;
                let mut next = || columns.next().expect("there is always another number");
                Ok(Self {
                    $($field: <$Value as Value>::take(row, next())?,)+
                    $($($left_out: Default::default(),)+)?
                })
            }
        }
    };
}

record!(Meta, "run", Position, "processes", {
    membound_version: String,
    command: Vec<String>,
    attached: Option<u32>,
    host: String,
    date: String,
    complete: bool,
    elapsed_ns: u64,
    exit_code: Option<i32>,
    signal: Option<i32>,
    timer: crate::TimerKind,
    imported: Option<String>,
    period_ns: u64,
    site_period: u32,
    latencies: bool,
    patch: String,
    objects_from_bytes: Option<u64>,
    tsc_hz: f64,
    cpus: u32,
    nodes: u32,
    cpu_nodes: Vec<u16>,
    own_cpu_ns: u64,
    stops: Vec<u64>,
    longest_stop_ns: Option<u64>,
    lost_cpu_ns: u64,
    held_ns: u64,
} without { machine });

record!(Process, "processes", Position, "processes", {
    pid: u32,
    parent: Option<u32>,
    path: String,
    start_ns: u64,
    end_ns: Option<u64>,
    unpatched: Option<String>,
});

record!(Thread, "threads", Position, "processes", {
    process: crate::ProcessId,
    tid: u32,
    name: String,
    start_ns: u64,
    end_ns: Option<u64>,
    cpu_ns: Option<u64>,
});

record!(Module, "modules", Position, "names", {
    path: String,
    build_id: Option<String>,
    text_hash: Option<String>,
    kind: crate::ModuleKind,
});

record!(Mapping, "mappings", Order, "names", {
    process: crate::ProcessId,
    module: crate::ModuleId,
    start: u64,
    end: u64,
    bias: u64,
    t_ns: u64,
});

record!(Frame, "frames", Position, "samples", {
    module: Option<crate::ModuleId>,
    address: u64,
});

record!(Stack, "stacks", Position, "samples", {
    parent: Option<crate::StackId>,
    frame: crate::FrameId,
});

record!(Sample, "samples", Order, "samples", {
    t_ns: u64,
    thread: crate::ThreadId,
    cpu: Option<u16>,
    stack: crate::StackId,
    weight_ns: u64,
    address: Option<u64>,
    exact: bool,
    object: Option<crate::ObjectId>,
});

record!(Site, "sites", Position, "latencies", {
    frame: crate::FrameId,
    kind: crate::SiteKind,
    bytes: u32,
    text: String,
    refused: Option<String>,
});

record!(Attribution, "attributions", Order, "samples", {
    frame: crate::FrameId,
    site: Option<crate::SiteId>,
    share: f64,
    confidence: f64,
});

record!(Executions, "executions", Order, "latencies", {
    site: crate::SiteId,
    from_ns: u64,
    to_ns: u64,
    count: u64,
    cpu_ns: u64,
    least_cpu_ns: Option<u64>,
    most_cpu_ns: Option<u64>,
});

record!(Laps, "laps", Order, "latencies", {
    site: crate::SiteId,
    thread: crate::ThreadId,
    from_ns: u64,
    to_ns: u64,
    count: u64,
    cpu_ns: u64,
});

record!(LoopAround, "loops", Order, "latencies", {
    frame: crate::FrameId,
    level: u32,
    start: u64,
});

record!(Access, "accesses", Order, "latencies", {
    t_ns: u64,
    thread: crate::ThreadId,
    site: crate::SiteId,
    address: u64,
    ticks: Option<u32>,
    hit: Option<u32>,
    drain: Option<u32>,
    store: bool,
    object: Option<crate::ObjectId>,
    cpu: Option<u16>,
    node: Option<u16>,
});

record!(BlockCount, "blocks", Order, "blocks", {
    frame: crate::FrameId,
    length: u32,
    from_ns: u64,
    to_ns: u64,
    count: u64,
});

record!(Object, "objects", Position, "objects", {
    kind: crate::ObjectKind,
    process: crate::ProcessId,
    address: u64,
    size_bytes: u64,
    name: String,
    stack: Option<crate::StackId>,
    thread: Option<crate::ThreadId>,
    allocated_ns: Option<u64>,
    freed_ns: Option<u64>,
    weight: f64,
});

record!(Allocations, "allocations", Order, "objects", {
    stack: crate::StackId,
    process: crate::ProcessId,
    function: String,
    blocks: u64,
    blocks_variance: Option<f64>,
    bytes: u64,
    freed: u64,
    lifetime_ns: u64,
    peak_bytes: u64,
});

record!(LiveBytes, "live", Order, "objects", {
    stack: crate::StackId,
    process: crate::ProcessId,
    function: String,
    from_ns: u64,
    to_ns: u64,
    bytes: u64,
    peak_bytes: u64,
});

record!(Location, "locations", Order, "names", {
    frame: crate::FrameId,
    depth: u32,
    function: String,
    function_start: Option<u64>,
    function_size: Option<u64>,
    file: Option<String>,
    line: Option<u32>,
    column: Option<u32>,
});

record!(Code, "code", Order, "names", {
    module: crate::ModuleId,
    address: u64,
    bytes: Vec<u8>,
});

record!(PageNode, "pages", Order, "nodes", {
    process: crate::ProcessId,
    address: u64,
    t_ns: u64,
    node: u16,
});

record!(Traffic, "traffic", Order, "bandwidth", {
    domain: String,
    from_ns: u64,
    to_ns: u64,
    read_bytes: u64,
    write_bytes: u64,
});

record!(Watched, "watched", Order, "watchpoints", {
    t_ns: u64,
    thread: crate::ThreadId,
    address: u64,
    bytes: u8,
    frame: crate::FrameId,
});

record!(Hold, "holds", Order, "holds", {
    t_ns: u64,
    trial: u32,
    thread: crate::ThreadId,
    line: u64,
    alone: bool,
    wall_ns: u64,
    cpu_ns: u64,
    progress: u64,
});

record!(HardwareAccess, "hardware_accesses", Order, "hardware", {
    t_ns: u64,
    thread: crate::ThreadId,
    cpu: Option<u16>,
    stack: crate::StackId,
    sampler: crate::AccessSampler,
    operation: Option<crate::Operation>,
    served: Option<crate::ServedBy>,
    missed: Option<crate::ServedBy>,
    snoop: Option<crate::Snoop>,
    translation: Option<crate::Translation>,
    locked: Option<bool>,
    latency_cycles: Option<u32>,
    address: Option<u64>,
    physical_address: Option<u64>,
    period: u64,
});

record!(Gap, "gaps", Order, "samples", {
    about: String,
    reason: String,
    remedy: Option<String>,
    count: Option<u64>,
});

impl Record for Burst {
    const TABLE: &'static str = "bursts";
    const KEY: Key = Key::Order;
    const COLUMNS: &'static [Column] = &[
        ("from_ns", u64::SQL),
        ("to_ns", u64::SQL),
        ("thread", crate::ThreadId::SQL),
        ("count", u64::SQL),
        ("sites", Vec::<u8>::SQL),
        ("accesses", Vec::<u8>::SQL),
    ];
    const ABOUT: &'static str = "bursts";

    fn bind(&self, statement: &mut Statement<'_>, from: usize) -> rusqlite::Result<()> {
        self.from_ns.bind(statement, from)?;
        self.to_ns.bind(statement, from + 1)?;
        self.thread.bind(statement, from + 2)?;
        (self.accesses.len() as u64).bind(statement, from + 3)?;
        burst::pack_sites(&self.sites).bind(statement, from + 4)?;
        burst::pack(&self.accesses).bind(statement, from + 5)
    }

    fn take(row: &Row<'_>, from: usize) -> rusqlite::Result<Self> {
        let packed_sites = row.get_ref(from + 4)?.as_blob()?;
        let packed = row.get_ref(from + 5)?.as_blob()?;
        let sites = burst::unpack_sites(packed_sites);
        let accesses = burst::unpack(packed);
        let (Some(sites), Some(accesses)) = (sites, accesses) else {
            return Err(rusqlite::types::FromSqlError::InvalidType.into());
        };
        Ok(Self {
            from_ns: u64::take(row, from)?,
            to_ns: u64::take(row, from + 1)?,
            thread: crate::ThreadId::take(row, from + 2)?,
            sites,
            accesses,
        })
    }
}

/// The statement that creates the table of `R`. Names are quoted, since some are SQL keywords.
pub(crate) fn create<R: Record>() -> String {
    let id = match R::KEY {
        Key::Position => vec!["\"id\" INTEGER PRIMARY KEY".to_owned()],
        Key::Order => Vec::new(),
    };
    let fields = R::COLUMNS
        .iter()
        .map(|(name, sql)| format!("\"{name}\" {sql}"));
    let columns: Vec<String> = id.into_iter().chain(fields).collect();
    format!("CREATE TABLE \"{}\" ({})", R::TABLE, columns.join(", "))
}

/// The statement that writes a row of `R`, replacing a row with the same `id`.
pub(crate) fn insert<R: Record>() -> String {
    let (id, first) = match R::KEY {
        Key::Position => (Some("\"id\"".to_owned()), 1),
        Key::Order => (None, 0),
    };
    let names = R::COLUMNS.iter().map(|(name, _)| format!("\"{name}\""));
    let names: Vec<String> = id.into_iter().chain(names).collect();
    let marks: Vec<String> = (1..=R::COLUMNS.len() + first)
        .map(|at| format!("?{at}"))
        .collect();
    format!(
        "INSERT OR REPLACE INTO \"{}\" ({}) VALUES ({})",
        R::TABLE,
        names.join(", "),
        marks.join(", ")
    )
}

/// The statement that reads all rows of `R` in order, from a table that has only the columns `present`.
/// Columns that files of earlier versions lack are read as NULL.
pub(crate) fn select<R: Record>(present: &[String]) -> String {
    let id = match R::KEY {
        Key::Position => Some("\"id\"".to_owned()),
        Key::Order => None,
    };
    let names = R::COLUMNS.iter().map(|(name, _)| {
        if present.is_empty() || present.iter().any(|present| present == name) {
            format!("\"{name}\"")
        } else {
            "NULL".to_owned()
        }
    });
    let names: Vec<String> = id.into_iter().chain(names).collect();
    format!(
        "SELECT {} FROM \"{}\" ORDER BY rowid",
        names.join(", "),
        R::TABLE
    )
}

/// Invokes `$what!` with the types of all tables.
macro_rules! each_table {
    ($what:ident) => {
        $what!(
            Meta,
            Process,
            Thread,
            Module,
            Mapping,
            Frame,
            Stack,
            Sample,
            Site,
            Attribution,
            Executions,
            Laps,
            LoopAround,
            Access,
            Burst,
            BlockCount,
            Object,
            Allocations,
            LiveBytes,
            Location,
            Code,
            PageNode,
            Traffic,
            Watched,
            Hold,
            HardwareAccess,
            Gap
        )
    };
}

/// Tables that files of this layout may lack, since earlier versions had no such tables.
pub(crate) const LATER_TABLES: [&str; 4] = [
    Laps::TABLE,
    LoopAround::TABLE,
    LiveBytes::TABLE,
    HardwareAccess::TABLE,
];

/// The statements that create all tables.
pub(crate) fn create_all() -> Vec<String> {
    macro_rules! made {
        ($($Type:ident),+) => { vec![$(create::<$Type>()),+] };
    }
    let mut statements = each_table!(made);
    statements.push(MACHINE.to_owned());
    statements
}
