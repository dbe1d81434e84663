//! Executables and libraries as processes load them, and their plans.

mod derived;
mod kept;
mod later;
mod loaded;

use std::collections::VecDeque;
use std::ops::{Deref, Range};
use std::path::PathBuf;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};

use membound_rewrite::image::{self, FunctionBounds, Identity, Image};
use membound_rewrite::patch::{self, Groundwork, Hooks, Outline, Plan};
use memmap2::Mmap;
use rustc_hash::FxHashMap;
use self_cell::self_cell;

pub use self::kept::plan;
pub(crate) use self::later::TextBudget;
pub(crate) use self::loaded::in_order_of_loading;
use crate::allocators::Allocators;
use crate::background::{self, Planning};
use crate::cache::Cache;
use crate::elf::Headers;
use crate::identities::FileKey;
use crate::live::Doorbells;
use crate::marks::{self, RequestsBy};

/// A file with its plan, or why it has none.
#[derive(Debug)]
pub(crate) struct ModulePlan {
    /// Its path, as the first program that used it names it.
    pub(crate) path: PathBuf,
    headers: Headers,
    file: Arc<Bytes>,
    /// Identity of the file; pieces have none.
    identity: Option<Identity>,
    /// The module of the original file and the plan's options, if this plan was chosen.
    chosen: Option<(Arc<ModulePlan>, patch::Options)>,
    /// True if it was planned while programs that use it ran.
    late: bool,
    /// If not empty, only the functions that contain one of these addresses, and their neighbours, are analysed.
    around: Vec<u64>,
    /// The plan, or why the file is not patched.
    pub(crate) plan: Result<Plan, Refused>,
    /// Addresses of the sites by their numbers, computed at the first use.
    numbered: OnceLock<Vec<Option<u64>>>,
    /// The parsed file, from the first use on; `None`: it cannot be parsed.
    image: OnceLock<Option<Parsed>>,
    /// What chosen plans need of other functions.
    outline: OnceLock<Outline>,
    /// The study of all functions, for chosen plans with bodies that switch contexts.
    groundwork: OnceLock<Groundwork>,
    /// Whether a thread could be started that makes `outline` in the background; empty before that is tried.
    preparation: OnceLock<bool>,
    /// See [`Self::reads_exceptions`].
    exceptions: OnceLock<bool>,
}

/// The bytes of a module.
#[derive(Debug)]
enum Bytes {
    /// A whole file.
    File(Mmap),
    /// A piece of text, taken from a process.
    Piece(Vec<u8>),
}

self_cell! {
    /// A file with its parsed form; parsing takes long for large files.
    struct Parsed {
        owner: Arc<Bytes>,
        #[covariant]
        dependent: Image,
    }

    impl {Debug}
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::File(map) => map,
            Self::Piece(bytes) => bytes,
        }
    }
}

/// Why a file has no plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refused {
    pub(crate) reason: String,
    /// True if a program with such code must not be patched at all.
    pub(crate) taints: bool,
}

impl ModulePlan {
    /// A file that was planned before any program ran it, with the session's own options.
    fn new(
        path: PathBuf,
        headers: Headers,
        file: Arc<Bytes>,
        identity: Option<Identity>,
        plan: Result<Plan, Refused>,
    ) -> Self {
        Self {
            path,
            headers,
            file,
            identity,
            chosen: None,
            late: false,
            around: Vec::new(),
            plan,
            numbered: OnceLock::new(),
            image: OnceLock::new(),
            outline: OnceLock::new(),
            groundwork: OnceLock::new(),
            preparation: OnceLock::new(),
            exceptions: OnceLock::new(),
        }
    }

    /// A piece of text at the address `at` of a process, with a plan that is placed without a bias.
    pub(crate) fn piece(path: PathBuf, at: u64, bytes: &[u8], plan: Plan) -> Self {
        let headers = Headers::of_piece(at, bytes.len() as u64);
        let file = Arc::new(Bytes::Piece(bytes.to_vec()));
        Self::new(path, headers, file, None, Ok(plan))
    }

    /// Address in the file of the site with this number.
    pub(crate) fn site(&self, number: u32) -> Option<u64> {
        let numbered = self.numbered.get_or_init(|| {
            let Ok(plan) = &self.plan else {
                return Vec::new();
            };
            let mut numbered = vec![None; plan.numbered_sites() as usize];
            for site in plan.sites() {
                if let Ok(number) = site.number
                    && let Some(place) = numbered.get_mut(number as usize)
                {
                    *place = Some(site.address);
                }
            }
            numbered
        });
        numbered.get(number as usize).copied().flatten()
    }

    /// Identity of the file in caches and choices.
    pub(crate) const fn identity(&self) -> Option<&Identity> {
        self.identity.as_ref()
    }

    /// The module of the original file, if the plan was chosen.
    pub(crate) fn origin(&self) -> Option<&Arc<Self>> {
        self.chosen.as_ref().map(|(origin, _)| origin)
    }

    /// True if its plan was chosen for `file` with `options`.
    pub(crate) fn is_chosen(&self, file: &Identity, options: &patch::Options) -> bool {
        let by = self.chosen.as_ref().map(|(_, options)| options);
        by == Some(options) && self.identity.as_ref() == Some(file)
    }

    /// True if it was planned while programs that use it ran.
    pub(crate) const fn is_late(&self) -> bool {
        self.late
    }

    /// True if this is a piece of text and not a file.
    pub(crate) fn is_piece(&self) -> bool {
        matches!(*self.file, Bytes::Piece(_))
    }

    /// Calls `work` with the parsed file; `None` if it cannot be parsed.
    fn with_image<T>(&self, work: impl FnOnce(&Image<'_>) -> T) -> Option<T> {
        let parsed = self.image.get_or_init(|| self.parse()).as_ref()?;
        Some(work(parsed.borrow_dependent()))
    }

    /// Parses it on a background thread, if it was not parsed before.
    fn parse_in_background(&self) {
        self.image
            .get_or_init(|| background::run_short(|| self.parse()));
    }

    /// A plan that looks at the functions with something to patch only; `None` if the file cannot be read.
    fn plan_locally(&self, options: &patch::Options) -> Option<Plan> {
        self.with_outline(|image, outline| {
            background::run_short(|| Plan::make_locally(image, options, || outline))
        })
    }

    /// Calls `work` with its outline, which is made on a background thread if there is none.
    fn with_outline<T>(&self, work: impl FnOnce(&Image<'_>, &Outline) -> T) -> Option<T> {
        self.parse_in_background();
        self.with_image(|image| {
            let make = || background::run_short(|| Outline::of(image));
            work(image, self.outline.get_or_init(make))
        })
    }

    fn parse(&self) -> Option<Parsed> {
        Parsed::of(Arc::clone(&self.file), &self.around).ok()
    }

    /// True if it may read floating-point exception flags.
    pub(crate) fn reads_exceptions(&self) -> bool {
        let reads = || self.with_image(|it| it.reads_exceptions()).unwrap_or(true);
        *self.exceptions.get_or_init(reads)
    }

    /// The patches that measure requests in it; `None` if it has none of the functions.
    ///
    /// # Errors
    /// In words, if it has a function whose calls cannot be measured.
    pub(crate) fn marked(&self, by: &RequestsBy) -> Result<Option<patch::Options>, String> {
        let marked = self.with_image(|image| {
            let groundwork = || {
                let options = patch::Options::bare(Hooks::LeaveOut);
                self.groundwork
                    .get_or_init(|| Groundwork::of(image, &options))
            };
            marks::marks(image, by, groundwork)
        });
        marked.unwrap_or(Ok(None))
    }

    /// The bytes at the file's address `address`, as they were loaded.
    pub(crate) fn bytes(&self, address: u64, length: u64) -> Option<&[u8]> {
        self.headers.bytes(&self.file, address, length)
    }

    /// Bytes of its text.
    pub(crate) fn text_bytes(&self) -> u64 {
        self.headers.text_bytes()
    }

    /// Its unwind table; empty if the file has no unwind information.
    pub(crate) fn unwind_table(&self) -> Vec<u8> {
        let bytes: &[u8] = &self.file;
        Image::parse_described(bytes)
            .map(|image| image.unwind_table())
            .unwrap_or_default()
    }

    /// Its functions, with names.
    pub(crate) fn functions(&self) -> Vec<FunctionBounds> {
        let functions = |image: &Image<'_>| image.functions().to_vec();
        self.with_image(functions).unwrap_or_default()
    }
}

impl Parsed {
    /// Parses a file; with only the functions around these addresses, if there are any.
    fn of(file: Arc<Bytes>, around: &[u64]) -> Result<Self, image::Error> {
        Self::try_new(file, |bytes| match around {
            [] => Image::parse(bytes),
            around => Image::parse_around(bytes, around),
        })
    }
}

/// A module in a process.
#[derive(Clone, Debug)]
pub(crate) struct Loaded {
    pub(crate) module: Arc<ModulePlan>,
    /// Difference between its addresses in the process and in the file.
    pub(crate) bias: u64,
}

impl Loaded {
    /// Its address range in the process.
    pub(crate) fn span(&self) -> Range<u64> {
        let span = self.module.headers.span();
        span.start.wrapping_add(self.bias)..span.end.wrapping_add(self.bias)
    }
}

type Slot = Arc<OnceLock<Arc<ModulePlan>>>;

/// A file that is planned while its programs run.
#[derive(Debug)]
struct LateFile {
    plans: Arc<Plans>,
    pending: Pending,
    slot: Slot,
    path: PathBuf,
    headers: Headers,
    bytes: Mmap,
    /// Its identity, if that is known without reading all text.
    identity: Option<Identity>,
    planning: Planning,
}

/// A file that counts as being planned until this is dropped, however planning ends.
#[derive(Debug)]
struct Pending {
    later: Arc<Later>,
    key: FileKey,
}

/// Small files that wait for their plans.
#[derive(Debug, Default)]
struct Queue {
    files: VecDeque<LateFile>,
    /// True while a thread plans them.
    has_thread: bool,
}

/// State for planning files while their programs run.
#[derive(Debug)]
struct Later {
    /// Bytes of text that are planned while a program waits, in all its files together.
    text_at_start: u64,
    /// Rung when a file has been planned.
    doorbells: Arc<Doorbells>,
    /// Files that are being planned, with their identities as soon as these are known.
    pending: Mutex<FxHashMap<FileKey, Option<Identity>>>,
    /// Small files that one thread plans one after the other.
    queue: Mutex<Queue>,
    /// Signals that a file has left `pending`, or that its identity is known.
    changed: Condvar,
    /// Number of files that were planned so far.
    done: AtomicUsize,
}

impl Later {
    fn pending(&self) -> MutexGuard<'_, FxHashMap<FileKey, Option<Identity>>> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug)]
struct Derived {
    origin: Arc<ModulePlan>,
    options: patch::Options,
    made: Slot,
}

/// Makes plans, one for each file.
#[derive(Debug)]
pub(crate) struct Plans {
    options: patch::Options,
    /// The functions to wrap, if allocations are followed.
    allocators: Option<Allocators>,
    cache: Option<Cache>,
    revision: String,
    /// Files, each with addresses. Of these files only the functions that contain one of the addresses, and their
    /// neighbours, are analysed.
    around: Vec<(Identity, Vec<u64>)>,
    known: Mutex<FxHashMap<FileKey, Slot>>,
    /// Set if some files are planned while their programs run.
    later: Option<Arc<Later>>,
    /// Files with chosen plans: the original file, the options, and the module.
    derived: Mutex<Vec<Derived>>,
}

impl Plans {
    pub(crate) fn new(options: patch::Options, cache: Option<Cache>, revision: String) -> Self {
        Self {
            options,
            allocators: None,
            cache,
            revision,
            around: Vec::new(),
            known: Mutex::default(),
            later: None,
            derived: Mutex::default(),
        }
    }

    /// Analyses only the functions around these addresses of these files.
    pub(crate) fn around(self, around: Vec<(Identity, Vec<u64>)>) -> Self {
        Self { around, ..self }
    }

    /// Addresses in the only functions of a file that are analysed; empty: all are.
    fn around_in(&self, identity: &Identity) -> &[u64] {
        let found = self.around.iter().find(|(file, _)| file == identity);
        found.map_or(&[], |(_, addresses)| addresses)
    }

    /// Also wraps allocation functions.
    pub(crate) fn wrapping(self, allocators: Allocators) -> Self {
        Self {
            allocators: Some(allocators),
            ..self
        }
    }

    /// True if programs go on while modules that they load are planned and patched.
    pub(crate) const fn is_deferring(&self) -> bool {
        self.later.is_some()
    }
}
