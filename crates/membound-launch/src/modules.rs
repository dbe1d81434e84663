//! Executables and libraries as they lie in a process, and their plans.

mod derived;
mod kept;
mod later;
mod loaded;

use std::fs::Metadata;
use std::ops::{Deref, Range};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;

use membound_rewrite::image::{FunctionBounds, Identity, Image};
use membound_rewrite::patch::{self, Groundwork, Hooks, Plan};
use memmap2::Mmap;
use rustc_hash::FxHashMap;
use self_cell::self_cell;

pub use self::kept::plan;
use crate::allocators::Allocators;
use crate::cache::Cache;
use crate::elf::Headers;
use crate::live::Doorbells;
use crate::marks::{self, RequestsBy};

/// A file with its plan, or why it has none.
#[derive(Debug)]
pub(crate) struct Module {
    /// As the program that first used it calls it.
    pub(crate) path: PathBuf,
    headers: Headers,
    file: Arc<Bytes>,
    /// What the file is called; pieces have no name.
    identity: Option<Identity>,
    /// The module whose file this is, where the plan was chosen, and what it was made with.
    chosen: Option<(Arc<Module>, patch::Options)>,
    /// Whether it was planned while programs that use it ran.
    late: bool,
    /// The plan, or why the file is left alone.
    pub(crate) plan: Result<Plan, Refused>,
    /// Addresses of the sites by their numbers, when they were asked for.
    numbered: OnceLock<Vec<Option<u64>>>,
    /// The file, read, when that was first asked for; `None`: it cannot be.
    image: OnceLock<Option<Parsed>>,
    /// What plans by choice have in common, when one was made.
    groundwork: OnceLock<Groundwork>,
    /// The thread that makes `groundwork` in the background, once it was started; `None`: it could not be started.
    preparation: OnceLock<Option<JoinHandle<()>>>,
    /// See [`Self::reads_exceptions`].
    exceptions: OnceLock<bool>,
}

/// What is looked at.
#[derive(Debug)]
enum Bytes {
    /// A whole file.
    File(Mmap),
    /// A piece of text, taken from a process.
    Piece(Vec<u8>),
}

self_cell! {
    /// A file with what was read out of it, which takes long for large files.
    struct Parsed {
        owner: Arc<Bytes>,
        #[not_covariant]
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
    /// No program with such code in it is to be patched at all.
    pub(crate) taints: bool,
}

impl Module {
    /// A file that was planned before any program ran it, by the session's own options.
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
            plan,
            numbered: OnceLock::new(),
            image: OnceLock::new(),
            groundwork: OnceLock::new(),
            preparation: OnceLock::new(),
            exceptions: OnceLock::new(),
        }
    }

    /// A piece of text at the address `at` of a process, with a plan that is placed without
    /// a bias.
    pub(crate) fn piece(path: PathBuf, at: u64, bytes: &[u8], plan: Plan) -> Self {
        let headers = Headers::of_piece(at, bytes.len() as u64);
        let file = Arc::new(Bytes::Piece(bytes.to_vec()));
        Self::new(path, headers, file, None, Ok(plan))
    }

    /// The address in the file of the site with this number.
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

    /// What the file is called in caches and choices.
    pub(crate) const fn identity(&self) -> Option<&Identity> {
        self.identity.as_ref()
    }

    /// The module whose file this is, where the plan was chosen.
    pub(crate) fn origin(&self) -> Option<&Arc<Self>> {
        self.chosen.as_ref().map(|(origin, _)| origin)
    }

    /// Whether its plan was chosen for `file` with `options`.
    pub(crate) fn is_chosen(&self, file: &Identity, options: &patch::Options) -> bool {
        let by = self.chosen.as_ref().map(|(_, options)| options);
        by == Some(options) && self.identity.as_ref() == Some(file)
    }

    /// Whether it was planned while programs that use it ran.
    pub(crate) const fn is_late(&self) -> bool {
        self.late
    }

    /// Whether this is no file.
    pub(crate) fn is_piece(&self) -> bool {
        matches!(*self.file, Bytes::Piece(_))
    }

    /// Works with the file as it was read; `None` where it cannot be.
    fn with_image<T>(&self, work: impl FnOnce(&Image<'_>) -> T) -> Option<T> {
        let parsed = self.image.get_or_init(|| self.parse()).as_ref()?;
        Some(parsed.with_dependent(|_, image| work(image)))
    }

    fn parse(&self) -> Option<Parsed> {
        Parsed::try_new(Arc::clone(&self.file), |bytes| Image::parse(bytes)).ok()
    }

    /// Whether it may read which floating-point exceptions there were.
    pub(crate) fn reads_exceptions(&self) -> bool {
        let reads = || self.with_image(|it| it.reads_exceptions()).unwrap_or(true);
        *self.exceptions.get_or_init(reads)
    }

    /// What is to be patched in it to tell requests, if it has any of the functions that tell them.
    ///
    /// # Errors
    /// In words, when it has one whose calls cannot be told.
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

    /// How callers are found from its code; empty where nothing says.
    pub(crate) fn unwind_table(&self) -> Vec<u8> {
        let bytes: &[u8] = &self.file;
        Image::parse_described(bytes)
            .map(|image| image.unwind_table())
            .unwrap_or_default()
    }

    /// Its functions with their names.
    pub(crate) fn functions(&self) -> Vec<FunctionBounds> {
        let functions = |image: &Image<'_>| image.functions().to_vec();
        self.with_image(functions).unwrap_or_default()
    }
}

/// A module in a process.
#[derive(Clone, Debug)]
pub(crate) struct Loaded {
    pub(crate) module: Arc<Module>,
    /// What is added to the file's addresses.
    pub(crate) bias: u64,
}

impl Loaded {
    /// All its addresses in the process.
    pub(crate) fn span(&self) -> Range<u64> {
        let span = self.module.headers.span();
        span.start.wrapping_add(self.bias)..span.end.wrapping_add(self.bias)
    }
}

/// Tells files apart, and one file before and after it was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct FileKey {
    device: u64,
    inode: u64,
    length: u64,
    changed_ns: i128,
}

impl FileKey {
    fn of(found: &Metadata) -> Self {
        Self {
            device: found.dev(),
            inode: found.ino(),
            length: found.len(),
            changed_ns: i128::from(found.ctime()) * 1_000_000_000 + i128::from(found.ctime_nsec()),
        }
    }
}

type Slot = Arc<OnceLock<Arc<Module>>>;

/// How files are planned while their programs run.
#[derive(Debug)]
struct Later {
    /// Bytes of text beyond which a file is.
    large_text_bytes: u64,
    /// Are rung when one is done.
    doorbells: Arc<Doorbells>,
    /// Files that are being planned, with what they are called as soon as that is known.
    pending: Mutex<FxHashMap<FileKey, Option<Identity>>>,
    /// Tells that something has left `pending`, or that a file's identity is known.
    changed: Condvar,
    /// Files that were planned so far.
    done: AtomicUsize,
}

impl Later {
    fn pending(&self) -> MutexGuard<'_, FxHashMap<FileKey, Option<Identity>>> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug)]
struct Derived {
    origin: Arc<Module>,
    options: patch::Options,
    made: Slot,
}

/// Makes plans, each file's once.
#[derive(Debug)]
pub(crate) struct Plans {
    options: patch::Options,
    /// What is wrapped, if allocations are followed.
    allocators: Option<Allocators>,
    cache: Option<Cache>,
    revision: String,
    known: Mutex<FxHashMap<FileKey, Slot>>,
    /// Large files are planned while their programs run, where there is something here.
    later: Option<Later>,
    /// Files with plans that were chosen: whose, what they are made with, and they.
    derived: Mutex<Vec<Derived>>,
}

impl Plans {
    pub(crate) fn new(options: patch::Options, cache: Option<Cache>, revision: String) -> Self {
        Self {
            options,
            allocators: None,
            cache,
            revision,
            known: Mutex::default(),
            later: None,
            derived: Mutex::default(),
        }
    }

    /// Also wraps functions that allocate.
    pub(crate) fn wrapping(self, allocators: Allocators) -> Self {
        Self {
            allocators: Some(allocators),
            ..self
        }
    }

    /// Whether programs go on while what they load is planned and patched.
    pub(crate) const fn is_deferring(&self) -> bool {
        self.later.is_some()
    }

    /// Whether a file has so much text that no program waits for what is found out about it.
    pub(crate) fn is_large(&self, module: &Module) -> bool {
        let later = self.later.as_ref();
        later.is_some_and(|later| module.headers.text_bytes() > later.large_text_bytes)
    }
}
