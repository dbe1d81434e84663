//! Executables and libraries as they lie in a process, and their plans.

use std::cell::OnceCell;
use std::convert::Infallible;
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::fs::{self, File, Metadata};
use std::io;
use std::ops::{Deref, Range};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};

use membound_rewrite::image::{self, FunctionBounds, Identity, Image, Unsupported};
use membound_rewrite::patch::{self, Groundwork, Hooks, Plan, Wrapped};
use memmap2::Mmap;
use rustc_hash::FxHashMap;
use self_cell::self_cell;

use crate::allocators::{self, Allocators};
use crate::background;
use crate::cache::{Cache, Cached};
use crate::elf::Headers;
use crate::live::Doorbells;
use crate::maps::Mapping;
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
    /// A piece of text at the address `at` of a process, with a plan that is placed without
    /// a bias.
    pub(crate) fn piece(path: PathBuf, at: u64, bytes: &[u8], plan: Plan) -> Self {
        Self {
            path,
            headers: Headers::of_piece(at, bytes.len() as u64),
            file: Arc::new(Bytes::Piece(bytes.to_vec())),
            identity: None,
            chosen: None,
            late: false,
            plan: Ok(plan),
            numbered: OnceLock::new(),
            image: OnceLock::new(),
            groundwork: OnceLock::new(),
            exceptions: OnceLock::new(),
        }
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
        let parse = || Parsed::try_new(Arc::clone(&self.file), |bytes| Image::parse(bytes)).ok();
        let parsed = self.image.get_or_init(parse).as_ref()?;
        Some(parsed.with_dependent(|_, image| work(image)))
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

/// Says when it is dropped that a file is not being planned any more, however that ended.
struct Ended<'a> {
    later: &'a Later,
    key: FileKey,
}

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.later.pending().remove(&self.key);
        self.later.changed.notify_all();
        self.later.doorbells.ring();
    }
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

    /// Files with more text than this that were never planned before are planned while their programs run,
    /// and `doorbells` rung when they are.
    pub(crate) fn deferring(self, large_text_bytes: u64, doorbells: Arc<Doorbells>) -> Self {
        let later = Later {
            large_text_bytes,
            doorbells,
            pending: Mutex::default(),
            changed: Condvar::new(),
            done: AtomicUsize::new(0),
        };
        Self {
            later: Some(later),
            ..self
        }
    }

    /// Whether a file has so much text that no program waits for what is found out about it.
    pub(crate) fn is_large(&self, module: &Module) -> bool {
        let later = self.later.as_ref();
        later.is_some_and(|later| module.headers.text_bytes() > later.large_text_bytes)
    }

    /// The file with its plan; waits for a plan that is being made.
    /// `None` for what is no ELF file, and for a file that is planned later.
    fn of(self: &Arc<Self>, path: &Path, file: &File) -> io::Result<Option<Arc<Module>>> {
        let found = file.metadata()?;
        let key = FileKey::of(&found);
        if found.len() == 0 || !found.is_file() {
            return Ok(None);
        }
        // SAFETY: whoever truncates a library in use kills every program that uses it;
        // this one is no exception.
        let bytes = unsafe { Mmap::map(file) }?;
        let Some(headers) = Headers::parse(&bytes) else {
            return Ok(None);
        };
        let slot = {
            let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(known.entry(key).or_default())
        };
        if let Some(module) = slot.get() {
            return Ok(Some(Arc::clone(module)));
        }
        if self.is_for_later(path, &headers, &bytes) {
            self.plan_later(key, slot, path.to_owned(), headers, bytes);
            return Ok(None);
        }
        let module = slot.get_or_init(|| {
            let identity = Image::identify(&bytes);
            self.module(path, headers, bytes, identity, false)
        });
        Ok(Some(Arc::clone(module)))
    }

    fn module(
        &self,
        path: &Path,
        headers: Headers,
        bytes: Mmap,
        identity: Result<Identity, image::Error>,
        late: bool,
    ) -> Arc<Module> {
        let (identity, plan) = self.plan(path, &bytes, identity);
        Arc::new(Module {
            path: path.to_owned(),
            headers,
            file: Arc::new(Bytes::File(bytes)),
            identity,
            chosen: None,
            late,
            plan,
            numbered: OnceLock::new(),
            image: OnceLock::new(),
            groundwork: OnceLock::new(),
            exceptions: OnceLock::new(),
        })
    }

    /// Whether programs would wait too long for the file: it is large, and what is needed of it is not kept.
    fn is_for_later(&self, path: &Path, headers: &Headers, bytes: &[u8]) -> bool {
        let Some(later) = &self.later else {
            return false;
        };
        if headers.text_bytes() <= later.large_text_bytes {
            return false;
        }
        match Image::build_id(bytes) {
            Ok(Some(identity)) => !self.keeps(path, &identity),
            // Hashing its text takes long as well.
            Ok(None) => true,
            // It will not be patched.
            Err(_) => false,
        }
    }

    /// Whether everything is on disk that a program has to wait for.
    fn keeps(&self, path: &Path, identity: &Identity) -> bool {
        let Some(cache) = &self.cache else {
            return false;
        };
        let mut options = self.options.clone();
        if let Some(allocators) = &self.allocators {
            let kept = cache.get(&self.wrapped_key(allocators, path, identity));
            let Some(wrapped) = kept.and_then(|bytes| allocators::from_bytes(bytes.as_ref()))
            else {
                return false;
            };
            options.wrapped.extend(wrapped);
        }
        cache.holds(&self.key_of(identity, "unwind"))
            && cache.holds(&key(identity, &options, &self.revision))
    }

    /// Plans a file in the background.
    fn plan_later(
        self: &Arc<Self>,
        key: FileKey,
        slot: Slot,
        path: PathBuf,
        headers: Headers,
        bytes: Mmap,
    ) {
        let Some(later) = &self.later else { return };
        {
            let mut pending = later.pending();
            if pending.contains_key(&key) {
                return;
            }
            // Who waits for other files need not wait for this one.
            pending.insert(key, Image::build_id(&bytes).ok().flatten());
        }
        let plans = Arc::clone(self);
        let work = move || {
            background::wait(headers.text_bytes());
            let Some(later) = &plans.later else { return };
            let _ended = Ended { later, key };
            let identity = Image::identify(&bytes);
            later.pending().insert(key, identity.as_ref().ok().cloned());
            later.changed.notify_all();
            background::run(|| {
                let module =
                    slot.get_or_init(|| plans.module(&path, headers, bytes, identity, true));
                // It will be asked for at once, and is kept on disk.
                plans.unwind_table(module);
            });
            later.done.fetch_add(1, Ordering::Release);
        };
        let thread = std::thread::Builder::new().name("preparing".to_owned());
        if let (Err(_), Some(later)) = (thread.spawn(work), &self.later) {
            // The file stays as it is.
            later.pending().remove(&key);
        }
    }

    /// Whether any file was planned while its programs ran.
    pub(crate) fn has_late(&self) -> bool {
        let later = self.later.as_ref();
        later.is_some_and(|later| later.done.load(Ordering::Acquire) > 0)
    }

    /// Waits until none of `files` is being planned.
    pub(crate) fn await_late(&self, files: &[&Identity]) {
        let Some(later) = &self.later else { return };
        let is_awaited = |identity: &Option<Identity>| {
            identity
                .as_ref()
                .is_none_or(|identity| files.contains(&identity))
        };
        let mut pending = later.pending();
        while pending.values().any(is_awaited) {
            pending = later
                .changed
                .wait(pending)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn plan(
        &self,
        path: &Path,
        bytes: &[u8],
        identity: Result<Identity, image::Error>,
    ) -> (Option<Identity>, Result<Plan, Refused>) {
        let refused = |error: image::Error| Refused {
            taints: matches!(error, image::Error::Unsupported(Unsupported::Go)),
            reason: error.to_string(),
        };
        let identity = match identity {
            Ok(identity) => identity,
            Err(error) => return (None, Err(refused(error))),
        };
        let parsed = OnceCell::new();
        let image = || parsed.get_or_init(|| Image::parse(bytes)).as_ref();
        let wrapped = match &self.allocators {
            Some(allocators) => self.wrapped(allocators, path, &identity, image),
            None => Ok(Vec::new()),
        };
        let plan = wrapped.and_then(|wrapped| {
            let mut options = self.options.clone();
            options.wrapped.extend(wrapped);
            let make = || image().map(|it| Plan::make(it, &options));
            kept_plan(
                &identity,
                &options,
                self.cache.as_ref(),
                &self.revision,
                make,
            )
        });
        match plan.map_err(ToString::to_string) {
            Ok(plan) => (Some(identity), Ok(plan)),
            Err(reason) => {
                let taints = false;
                (None, Err(Refused { reason, taints }))
            }
        }
    }

    /// Finds the functions of a file that are to be wrapped. The list is kept on disk, because parsing a
    /// large file takes long.
    fn wrapped<'image, E>(
        &self,
        allocators: &Allocators,
        path: &Path,
        identity: &Identity,
        image: impl FnOnce() -> Result<&'image Image<'image>, E>,
    ) -> Result<Vec<Wrapped>, E> {
        let make = || image().map(|image| allocators.of(image, path));
        let Some(cache) = &self.cache else {
            return make();
        };
        let key = self.wrapped_key(allocators, path, identity);
        let read = |bytes: Cached| allocators::from_bytes(bytes.as_ref());
        cache.get_or_make(&key, read, make, |it| allocators::to_bytes(it))
    }

    fn wrapped_key(&self, allocators: &Allocators, path: &Path, identity: &Identity) -> String {
        let own = crc32fast::hash(allocators.key(path).as_bytes());
        self.key_of(identity, &format!("wrapped {own:08x}"))
    }

    /// How callers are found from the code of `module`; kept on disk like plans.
    pub(crate) fn unwind_table(&self, module: &Module) -> Vec<u8> {
        let (Some(cache), Some(identity)) = (&self.cache, module.identity()) else {
            return module.unwind_table();
        };
        let key = self.key_of(identity, "unwind");
        let read = |bytes: Cached| Some(bytes.as_ref().to_vec());
        let make = || Ok(module.unwind_table());
        let Ok(table) = cache.get_or_make::<_, Infallible>(&key, read, make, Vec::clone);
        table
    }

    /// What all plans of a file have in common: kept on disk, since it takes 0.1 µs a byte of text.
    fn groundwork(&self, image: &Image<'_>, options: &patch::Options) -> Groundwork {
        let make = || Ok(Groundwork::of(image, options));
        let made = match &self.cache {
            Some(cache) => {
                let what = format!("groundwork {:?}", options.tables);
                let key = self.key_of(image.identity(), &what);
                let read = |bytes: Cached| Groundwork::from_bytes(bytes.as_ref());
                cache.get_or_make::<_, Infallible>(&key, read, make, Groundwork::to_bytes)
            }
            None => make(),
        };
        let Ok(groundwork) = made;
        groundwork
    }

    /// The key in the cache of `what` was found out about a file.
    fn key_of(&self, identity: &Identity, what: &str) -> String {
        key(
            identity,
            &self.options,
            &format!("{} {what}", self.revision),
        )
    }

    /// The file of `module` with a plan by `options`; whoever asks for one that is being made
    /// waits for it. Plans by choice are not kept on disk: there are too many of them. They are
    /// made in the background, since nothing but a window waits for them.
    pub(crate) fn derived(&self, module: &Arc<Module>, options: &patch::Options) -> Arc<Module> {
        let slot = self.slot(module, options);
        let make = || {
            let plan = background::run(|| {
                module.with_image(|image| {
                    let groundwork = || self.groundwork(image, options);
                    let groundwork = module.groundwork.get_or_init(groundwork);
                    groundwork.plan(image, options)
                })
            });
            let plan = plan.ok_or_else(|| Refused {
                reason: "its file cannot be read".to_owned(),
                taints: false,
            });
            Arc::new(Module {
                path: module.path.clone(),
                headers: module.headers.clone(),
                file: Arc::clone(&module.file),
                identity: module.identity.clone(),
                chosen: Some((Arc::clone(module), options.clone())),
                late: false,
                plan,
                numbered: OnceLock::new(),
                image: OnceLock::new(),
                groundwork: OnceLock::new(),
                exceptions: OnceLock::new(),
            })
        };
        Arc::clone(slot.get_or_init(make))
    }

    /// What [`Self::derived`] gives, where that was made before.
    pub(crate) fn derived_before(
        &self,
        module: &Arc<Module>,
        options: &patch::Options,
    ) -> Option<Arc<Module>> {
        self.slot(module, options).get().cloned()
    }

    fn slot(&self, module: &Arc<Module>, options: &patch::Options) -> Slot {
        let mut derived = self.derived.lock().unwrap_or_else(PoisonError::into_inner);
        let is_it = |it: &&Derived| Arc::ptr_eq(&it.origin, module) && it.options == *options;
        if let Some(known) = derived.iter().find(is_it) {
            return Arc::clone(&known.made);
        }
        let made = Slot::default();
        derived.push(Derived {
            origin: Arc::clone(module),
            options: options.clone(),
            made: Arc::clone(&made),
        });
        made
    }

    /// What is loaded in a process and can be looked at, in the order of addresses;
    /// `pid` is used to reach files that only it can name. Files are planned in parallel.
    pub(crate) fn loaded(
        self: &Arc<Self>,
        pid: u32,
        maps: &[Mapping],
        agent: &Range<u64>,
    ) -> Vec<Loaded> {
        let mut files: Vec<(&OsStr, u64, Vec<&Mapping>)> = Vec::new();
        for map in maps {
            if !map.executable || !map.file() || agent.contains(&map.range.start) {
                continue;
            }
            match files
                .iter_mut()
                .find(|(name, inode, _)| *name == map.name.as_os_str() && *inode == map.inode)
            {
                Some((_, _, of_file)) => of_file.push(map),
                None => files.push((&map.name, map.inode, vec![map])),
            }
        }
        // A program that opens and closes objects all the time is asked every time: threads are
        // only for what is new. Some programs load two hundred files, and a thread takes as long to start as a
        // kept plan to read.
        let modules: Vec<OnceLock<Arc<Module>>> = files
            .iter()
            .map(|(name, _, of_file)| {
                let known = self.known(pid, name, of_file[0]);
                known.map_or_else(OnceLock::new, OnceLock::from)
            })
            .collect();
        let is_new = |index: &usize| modules[*index].get().is_none();
        let new: Vec<usize> = (0..files.len()).filter(is_new).collect();
        let next = AtomicUsize::new(0);
        let open = || {
            while let Some(&index) = new.get(next.fetch_add(1, Ordering::Relaxed)) {
                let (name, _, of_file) = &files[index];
                if let Some(module) = self.open(pid, name, of_file[0]) {
                    let _ = modules[index].set(module);
                }
            }
        };
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        std::thread::scope(|scope| {
            for _ in 1..cpus.min(new.len()) {
                scope.spawn(open);
            }
            open();
        });
        let mut loaded: Vec<Loaded> = Vec::new();
        for (module, (_, _, of_file)) in modules.into_iter().zip(files) {
            let Some(module) = module.into_inner() else {
                continue;
            };
            for map in of_file {
                let Some(bias) = module.headers.bias(map) else {
                    continue;
                };
                let here = Loaded {
                    module: Arc::clone(&module),
                    bias,
                };
                let known = loaded
                    .iter()
                    .any(|other| Arc::ptr_eq(&other.module, &module) && other.bias == bias);
                if !known && !exposed(maps, &here.span()) {
                    loaded.push(here);
                }
            }
        }
        loaded
    }

    /// The file behind `map`, if its plan was made before.
    fn known(&self, pid: u32, name: &OsStr, map: &Mapping) -> Option<Arc<Module>> {
        places(pid, name)?.into_iter().find_map(|place| {
            let found = fs::metadata(place).ok()?;
            if found.ino() != map.inode {
                return None;
            }
            let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
            known.get(&FileKey::of(&found))?.get().cloned()
        })
    }

    /// The file behind `map`, if it is still the one that was mapped.
    fn open(self: &Arc<Self>, pid: u32, name: &OsStr, map: &Mapping) -> Option<Arc<Module>> {
        places(pid, name)?.into_iter().find_map(|place| {
            let file = File::open(place).ok()?;
            // Some file systems show another device number here than there.
            if file.metadata().ok()?.ino() != map.inode {
                return None;
            }
            self.of(Path::new(name), &file).ok().flatten()
        })
    }
}

/// Where a file is looked for that a process calls `name`: as it sees it, and as we do.
fn places(pid: u32, name: &OsStr) -> Option<[PathBuf; 2]> {
    let path = Path::new(name);
    let inside = Path::new("/proc").join(pid.to_string()).join("root");
    Some([inside.join(path.strip_prefix("/").ok()?), path.to_owned()])
}

/// Whether text in `span` can be written, or is shared so that writing to it would reach
/// others.
fn exposed(maps: &[Mapping], span: &Range<u64>) -> bool {
    maps.iter().any(|map| {
        map.executable
            && (map.writable || map.shared)
            && map.range.start < span.end
            && span.start < map.range.end
    })
}

/// The plan for `image`: from `cache` when it has been made before, by the same `revision` of
/// the planner.
#[must_use]
pub fn plan(
    image: &Image<'_>,
    options: &patch::Options,
    cache: Option<&Cache>,
    revision: &str,
) -> Plan {
    let make = || Ok(Plan::make(image, options));
    let Ok(plan) = kept_plan::<Infallible>(image.identity(), options, cache, revision, make);
    plan
}

/// The plan of a file that the cache has, else what `make` makes.
fn kept_plan<E>(
    identity: &Identity,
    options: &patch::Options,
    cache: Option<&Cache>,
    revision: &str,
    make: impl FnOnce() -> Result<Plan, E>,
) -> Result<Plan, E> {
    let Some(cache) = cache else {
        return make();
    };
    let read = |bytes: Cached| {
        let plan = Plan::from_bytes(bytes).ok()?;
        plan.is_for(identity, options).then_some(plan)
    };
    let key = key(identity, options, revision);
    cache.get_or_make(&key, read, make, |plan| plan.as_bytes().to_vec())
}

/// A file name from everything that a plan depends on.
fn key(identity: &Identity, options: &patch::Options, revision: &str) -> String {
    let (kind, bytes): (_, &[u8]) = match identity {
        Identity::BuildId(id) => ("b", id),
        Identity::TextHash(hash) => ("t", hash),
    };
    let mut key = String::from(kind);
    for byte in bytes.iter().take(64) {
        let _ = write!(key, "{byte:02x}");
    }
    // Identity and options are in the plan as well and compared there; only the revision
    // is told by this alone.
    let options = options.key();
    let _ = write!(key, "-{:08x}", crc32fast::hash(&options));
    let _ = write!(key, "-{:08x}", crc32fast::hash(revision.as_bytes()));
    key
}
