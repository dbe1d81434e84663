//! Modules: files and other pieces of code, each opened once for all processes.
//!
//! A file stays open from when it is first met, so that it can be read even after it was deleted. Its control
//! flow, call frame information and names are read when they are first requested.

use std::fmt;
use std::fs::File;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use membound_launch::{Headers, Mapping, remembered_identity};
use membound_rewrite::image::Identity;
use membound_rewrite::stall::Code;
use membound_run::{ModuleId, ModuleKind, ProcessId};
use membound_symbolize::{Frames, Symbols};
use memmap2::Mmap;
use rustc_hash::FxHashMap;

/// Files that are kept open, so that their debug information can be found after they were deleted.
const KEPT_OPEN: usize = 256;

/// Size in bytes from which on a file's code and symbols are read in the background: reading takes ten
/// milliseconds or more.
const LARGE: usize = 8 << 20;

/// Where a module's bytes are.
#[derive(Clone)]
enum Bytes {
    File(Arc<Mmap>),
    Memory(Arc<[u8]>),
}

impl AsRef<[u8]> for Bytes {
    fn as_ref(&self) -> &[u8] {
        match self {
            Self::File(map) => map,
            Self::Memory(bytes) => bytes,
        }
    }
}

/// A piece of code: a file, the vdso, the agent, the kernel, or code made at run time.
pub(crate) struct CodeModule {
    /// Its number in the run.
    pub(crate) id: ModuleId,
    /// Path or name that reports show.
    pub(crate) path: String,
    /// Kind of code.
    pub(crate) kind: ModuleKind,
    headers: Option<Headers>,
    bytes: Option<Bytes>,
    file: Option<File>,
    frames: OnceLock<Option<Frames>>,
    /// The decoded code, or why there is none.
    code: OnceLock<Result<Code, String>>,
    symbols: OnceLock<Option<Symbols>>,
    /// A background thread was asked to read code and symbols.
    is_requested: AtomicBool,
    /// It has read them.
    is_read: AtomicBool,
}

impl fmt::Debug for CodeModule {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{:?} {}", self.kind, self.path)
    }
}

impl CodeModule {
    /// Call frame information, if it can be read.
    pub(crate) fn frames(&self) -> Option<&Frames> {
        let read = || Frames::of_bytes(self.bytes.clone()?, &self.path).ok();
        self.frames.get_or_init(read).as_ref()
    }

    /// True if [`Self::code`] and [`Self::symbols`] take no long time. While they would, a background thread
    /// reads what they need.
    pub(crate) fn is_read(self: &Arc<Self>) -> bool {
        let bytes = self.bytes.as_ref();
        if bytes.is_none_or(|bytes| bytes.as_ref().len() < LARGE) {
            return true;
        }
        if !self.is_requested.swap(true, Ordering::Relaxed) {
            let module = Arc::clone(self);
            membound_launch::spawn(move || {
                module.code();
                module.symbols().map(Symbols::read);
                module.is_read.store(true, Ordering::Release);
            });
        }
        self.is_read.load(Ordering::Acquire)
    }

    /// Decoded code; only of files and the vdso.
    pub(crate) fn code(&self) -> Option<&Code> {
        self.read_code().as_ref().ok()
    }

    /// The identity of the file, if its code was decoded.
    pub(crate) fn identity(&self) -> Option<Identity> {
        let code = self.code.get()?.as_ref().ok()?;
        let remembered = self.file.as_ref().and_then(remembered_identity);
        remembered.or_else(|| code.identity())
    }

    /// Why its code could not be decoded; `None` if it could, and if it was never requested.
    pub(crate) fn why_no_code(&self) -> Option<&str> {
        self.code.get()?.as_ref().err().map(String::as_str)
    }

    fn read_code(&self) -> &Result<Code, String> {
        let read = || {
            if !matches!(self.kind, ModuleKind::File | ModuleKind::Vdso) {
                return Err("it is in no file".to_owned());
            }
            let Some(bytes) = self.bytes.clone() else {
                return Err("its file could not be read".to_owned());
            };
            if is_32_bit(bytes.as_ref()) {
                return Err("32-bit code".to_owned());
            }
            Code::of(bytes).map_err(|error| error.to_string())
        };
        self.code.get_or_init(read)
    }

    /// Names and lines. A file is opened by its path as long as the path leads to the same file, since debug
    /// information may be beside it.
    pub(crate) fn symbols(&self) -> Option<&Symbols> {
        let read = || match (self.kind, &self.bytes) {
            (ModuleKind::File, Some(Bytes::File(map))) => {
                let path = self.readable();
                let opened = path.and_then(|path| Symbols::open(&path).ok());
                opened.or_else(|| Symbols::of_bytes(&map[..], &self.path).ok())
            }
            (_, Some(Bytes::Memory(bytes))) => {
                Symbols::of_bytes(Arc::clone(bytes), &self.path).ok()
            }
            _ => None,
        };
        self.symbols.get_or_init(read).as_ref()
    }

    /// A path by which the mapped file can be opened.
    fn readable(&self) -> Option<PathBuf> {
        let file = self.file.as_ref()?;
        let known = file.metadata().ok()?;
        let named = std::fs::metadata(&self.path).ok();
        let same = named.is_some_and(|it| (it.dev(), it.ino()) == (known.dev(), known.ino()));
        Some(if same {
            PathBuf::from(&self.path)
        } else {
            PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()))
        })
    }

    /// Range from its lowest to its highest address when it is loaded with `bias`.
    pub(crate) fn span(&self, bias: u64) -> Option<Range<u64>> {
        let span = self.headers.as_ref()?.span();
        Some(span.start.wrapping_add(bias)..span.end.wrapping_add(bias))
    }

    /// Address in the process minus address in the file, for the mapping `map` of it.
    pub(crate) fn bias(&self, map: &Mapping) -> u64 {
        let headers = self.headers.as_ref();
        let bias = headers.and_then(|headers| headers.bias(map));
        // A mapping that no ELF segment explains is placed by its file offset.
        bias.unwrap_or_else(|| map.range.start.wrapping_sub(map.offset))
    }

    /// Bytes at an address of the file.
    pub(crate) fn bytes_at(&self, address: u64, length: u64) -> Option<&[u8]> {
        let bytes = self.bytes.as_ref()?.as_ref();
        self.headers.as_ref()?.bytes(bytes, address, length)
    }

    /// The row of the module; the identity is filled in only if the code was decoded.
    pub(crate) fn row(&self) -> membound_run::Module {
        let hex = |bytes: &[u8]| {
            bytes
                .iter()
                .map(|byte| format!("{byte:02x}"))
                .collect::<String>()
        };
        let (build_id, text_hash) = match self.identity() {
            Some(Identity::BuildId(id)) => (Some(hex(&id)), None),
            Some(Identity::TextHash(hash)) => (None, Some(hex(&hash))),
            None => (None, None),
        };
        membound_run::Module {
            path: self.path.clone(),
            build_id,
            text_hash,
            kind: self.kind,
        }
    }
}

/// Identity of modules.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Key {
    File {
        device: u64,
        inode: u64,
        changed_ns: i128,
    },
    /// A file that could not be opened, by its name.
    Named(Vec<u8>),
    Vdso,
    Agent,
    Kernel,
    Jit(ProcessId),
}

/// All modules of a run.
#[derive(Debug, Default)]
pub(crate) struct Modules {
    known: FxHashMap<Key, Arc<CodeModule>>,
    /// In the order of their numbers.
    all: Vec<Arc<CodeModule>>,
    /// Path of the agent's file in the programs.
    agent_path: Option<Vec<u8>>,
}

impl Modules {
    /// All modules, in the order of their numbers.
    pub(crate) fn all(&self) -> &[Arc<CodeModule>] {
        &self.all
    }

    /// The process of a module of code made at run time.
    pub(crate) fn process_of(&self, id: ModuleId) -> Option<ProcessId> {
        self.known.iter().find_map(|(key, module)| match key {
            Key::Jit(process) if module.id == id => Some(*process),
            _ => None,
        })
    }

    /// The module that was last added under a path.
    pub(crate) fn by_path(&self, path: &Path) -> Option<&Arc<CodeModule>> {
        let path = path.as_os_str();
        self.all
            .iter()
            .rev()
            .find(|module| module.path.as_str() == path)
    }

    /// The module of an executable mapping of process `pid` (image `process`), and its bias: address in the
    /// process minus address in the file.
    pub(crate) fn of(
        &mut self,
        pid: u32,
        process: ProcessId,
        map: &Mapping,
    ) -> (Arc<CodeModule>, u64) {
        let name = map.name.as_encoded_bytes();
        if name == b"[vdso]" {
            return (self.vdso(), map.range.start);
        }
        if is_ours(name) {
            return self.agent(pid, map);
        }
        if name.starts_with(b"[vsyscall") || name.starts_with(b"[kernel") {
            return (self.special("[kernel]", ModuleKind::Kernel), 0);
        }
        if !name.starts_with(b"/") || name.starts_with(b"//anon") || name.starts_with(b"/memfd:") {
            return (self.plain(Key::Jit(process), "[jit]", ModuleKind::Jit), 0);
        }
        match self.file(pid, map) {
            Some(module) => {
                let bias = module.bias(map);
                (module, bias)
            }
            None => (self.unread(map), map.range.start.wrapping_sub(map.offset)),
        }
    }

    /// The module of a mapping by its name alone; the file is not read.
    pub(crate) fn unread(&mut self, map: &Mapping) -> Arc<CodeModule> {
        self.named(map.name.as_encoded_bytes())
    }

    /// The module with this name; no file is read for it.
    pub(crate) fn named(&mut self, name: &[u8]) -> Arc<CodeModule> {
        let shown = String::from_utf8_lossy(name).into_owned();
        self.plain(Key::Named(name.to_vec()), &shown, ModuleKind::File)
    }

    /// The one module for all code of the agent or of the kernel.
    pub(crate) fn special(&mut self, shown: &str, kind: ModuleKind) -> Arc<CodeModule> {
        let key = if kind == ModuleKind::Agent {
            Key::Agent
        } else {
            Key::Kernel
        };
        self.plain(key, shown, kind)
    }

    fn vdso(&mut self) -> Arc<CodeModule> {
        if let Some(module) = self.known.get(&Key::Vdso) {
            return Arc::clone(module);
        }
        // Every process has the same vdso.
        let bytes = own_vdso();
        self.add(Key::Vdso, |id| CodeModule {
            headers: bytes.as_deref().and_then(Headers::parse),
            bytes: bytes.map(|bytes| Bytes::Memory(bytes.into())),
            ..bare(id, "[vdso]", ModuleKind::Vdso)
        })
    }

    /// The agent's file is needed to unwind through it; trampolines and tables, which have no file, count as
    /// part of it.
    fn agent(&mut self, pid: u32, map: &Mapping) -> (Arc<CodeModule>, u64) {
        if !map.name.as_encoded_bytes().starts_with(b"/memfd:") && self.agent_path.is_none() {
            let opened = open(pid, map);
            let bytes = opened
                .as_ref()
                .and_then(|file| membound_launch::map_open_file(file).ok());
            self.agent_path = Some(map.name.as_encoded_bytes().to_vec());
            self.add(Key::Agent, |id| CodeModule {
                headers: bytes.as_ref().and_then(|map| Headers::parse(map)),
                bytes: bytes.map(|map| Bytes::File(Arc::new(map))),
                ..bare(id, "[agent]", ModuleKind::Agent)
            });
        }
        let module = self.special("[agent]", ModuleKind::Agent);
        let own = !map.name.as_encoded_bytes().starts_with(b"/memfd:");
        let bias = module
            .headers
            .as_ref()
            .filter(|_| own)
            .and_then(|it| it.bias(map));
        (module, bias.unwrap_or(0))
    }

    fn file(&mut self, pid: u32, map: &Mapping) -> Option<Arc<CodeModule>> {
        let file = open(pid, map)?;
        let found = file.metadata().ok()?;
        let key = Key::File {
            device: found.dev(),
            inode: found.ino(),
            changed_ns: i128::from(found.ctime()) * 1_000_000_000 + i128::from(found.ctime_nsec()),
        };
        // Deleting a file changes its `ctime`, so a deleted file is recognised by its inode alone.
        let same_inode = self.known.iter().find(|(known, _)| match known {
            Key::File { device, inode, .. } => {
                (*device, *inode) == (found.dev(), found.ino()) && found.nlink() == 0
            }
            _ => false,
        });
        if let Some((_, module)) = same_inode {
            return Some(Arc::clone(module));
        }
        if let Some(module) = self.known.get(&key) {
            return Some(Arc::clone(module));
        }
        let bytes = membound_launch::map_open_file(&file).ok()?;
        let shown = String::from_utf8_lossy(without_mark(map.name.as_encoded_bytes())).into_owned();
        let kept = (self.all.len() < KEPT_OPEN).then_some(file);
        Some(self.add(key, |id| CodeModule {
            headers: Headers::parse(&bytes),
            bytes: Some(Bytes::File(Arc::new(bytes))),
            file: kept,
            ..bare(id, &shown, ModuleKind::File)
        }))
    }

    fn plain(&mut self, key: Key, shown: &str, kind: ModuleKind) -> Arc<CodeModule> {
        match self.known.get(&key) {
            Some(module) => Arc::clone(module),
            None => self.add(key, |id| bare(id, shown, kind)),
        }
    }

    fn add(&mut self, key: Key, make: impl FnOnce(ModuleId) -> CodeModule) -> Arc<CodeModule> {
        let id = ModuleId(u32::try_from(self.all.len()).unwrap_or(u32::MAX));
        let module = Arc::new(make(id));
        self.known.insert(key, Arc::clone(&module));
        self.all.push(Arc::clone(&module));
        module
    }
}

/// True for an ELF file of 32-bit code.
fn is_32_bit(file: &[u8]) -> bool {
    const CLASS: usize = 4;
    const CLASS_32: u8 = 1;
    file.starts_with(b"\x7fELF") && file.get(CLASS) == Some(&CLASS_32)
}

fn bare(id: ModuleId, path: &str, kind: ModuleKind) -> CodeModule {
    CodeModule {
        id,
        path: path.to_owned(),
        kind,
        headers: None,
        bytes: None,
        file: None,
        frames: OnceLock::new(),
        code: OnceLock::new(),
        symbols: OnceLock::new(),
        is_requested: AtomicBool::new(false),
        is_read: AtomicBool::new(false),
    }
}

/// True if a mapping with this name contains code of membound's own.
pub(crate) fn is_ours(name: &[u8]) -> bool {
    let in_our_directory = || {
        let mut parts = name.rsplit(|byte| *byte == b'/');
        parts.next() == Some(b"agent.so")
            && parts
                .next()
                .is_some_and(|parent| parent.starts_with(b"membound-"))
    };
    name.starts_with(b"/memfd:membound-") || in_our_directory()
}

/// The path in a mapping's name, without the kernel's mark of deleted files.
fn without_mark(name: &[u8]) -> &[u8] {
    name.strip_suffix(b" (deleted)").unwrap_or(name)
}

/// Opens the file behind a mapping of a process, if it is still the mapped one. The executable can be opened
/// even after it was deleted.
fn open(pid: u32, map: &Mapping) -> Option<File> {
    use std::os::unix::ffi::OsStrExt;
    let name = without_mark(map.name.as_encoded_bytes());
    let path = Path::new(std::ffi::OsStr::from_bytes(name));
    let process = Path::new("/proc").join(pid.to_string());
    let seen_by_it = process.join("root").join(path.strip_prefix("/").ok()?);
    let range = format!("{:x}-{:x}", map.range.start, map.range.end);
    let places = [
        seen_by_it,
        path.to_owned(),
        process.join("exe"),
        process.join("map_files").join(range),
    ];
    places.into_iter().enumerate().find_map(|(place, path)| {
        // perf may report no inode. Then the name must do; for the kernel's links to the process's files, the
        // name that the file has or had.
        let named = || place < 2 || had_name(&path, name);
        let same_name = map.inode == 0 && named();
        let file = File::open(path).ok()?;
        let found = file.metadata().ok()?;
        let same = found.ino() == map.inode || same_name;
        (same && found.is_file() && found.len() > 0).then_some(file)
    })
}

/// True if a link under `/proc` leads to a file that is or was called `name`.
fn had_name(link: &Path, name: &[u8]) -> bool {
    let target = std::fs::read_link(link);
    target.is_ok_and(|target| without_mark(target.as_os_str().as_encoded_bytes()) == name)
}

/// The bytes of this process's vdso.
fn own_vdso() -> Option<Vec<u8>> {
    use std::os::unix::fs::FileExt;
    let own = std::process::id();
    let maps = membound_launch::maps_of(own).ok()?;
    let map = maps.iter().find(|map| map.name == "[vdso]")?;
    let mut bytes = vec![0; usize::try_from(map.range.end - map.range.start).ok()?];
    let memory = File::open("/proc/self/mem").ok()?;
    memory.read_exact_at(&mut bytes, map.range.start).ok()?;
    Some(bytes)
}

/// An executable mapping, for tests.
#[cfg(test)]
pub(crate) fn executable(range: Range<u64>, name: &str) -> Mapping {
    Mapping {
        range,
        readable: true,
        writable: false,
        executable: true,
        shared: false,
        offset: 0,
        device: (0, 0),
        inode: 0,
        name: name.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own_maps() -> Vec<Mapping> {
        membound_launch::maps_of(std::process::id()).unwrap()
    }

    #[test]
    fn this_process_s_modules_are_found_with_their_addresses() {
        let mut modules = Modules::default();
        let pid = std::process::id();
        let here = this_process_s_modules_are_found_with_their_addresses as *const () as u64;
        let maps = own_maps();
        let map = maps.iter().find(|map| map.range.contains(&here)).unwrap();
        let (module, bias) = modules.of(pid, ProcessId(0), map);
        assert_eq!(module.kind, ModuleKind::File);
        assert!(module.span(bias).unwrap().contains(&here));
        let code = module.code().unwrap();
        assert!(code.function(here - bias).is_some());
        let (again, _) = modules.of(pid, ProcessId(0), map);
        assert!(Arc::ptr_eq(&module, &again));
        assert!(Arc::ptr_eq(
            modules.by_path(Path::new(&module.path)).unwrap(),
            &module
        ));
        let row = module.row();
        assert!(row.build_id.is_some() || row.text_hash.is_some());
        if let Some(map) = maps.iter().find(|map| map.name == "[vdso]") {
            let (vdso, bias) = modules.of(pid, ProcessId(0), map);
            assert_eq!((vdso.kind, bias), (ModuleKind::Vdso, map.range.start));
            assert!(vdso.bytes.is_some());
        }
    }

    #[test]
    fn only_large_files_are_read_in_the_background() {
        let mut modules = Modules::default();
        let mut of = |path: &Path| {
            let mut map = own_maps()
                .into_iter()
                .find(|map| map.executable && map.file())
                .unwrap();
            map.name = path.as_os_str().to_owned();
            map.inode = std::fs::metadata(path).unwrap().ino();
            modules.of(std::process::id(), ProcessId(0), &map).0
        };
        let home = tempfile::tempdir().unwrap();
        let small = home.path().join("small");
        std::fs::copy("/bin/cat", &small).unwrap();
        let module = of(&small);
        assert!(module.is_read() && module.code.get().is_none());
        // The end of a file that is longer than all its parts stays unread.
        let large = home.path().join("large");
        std::fs::copy("/bin/cat", &large).unwrap();
        let file = File::options().write(true).open(&large).unwrap();
        file.set_len(LARGE as u64).unwrap();
        let module = of(&large);
        while !module.is_read() {
            std::thread::yield_now();
        }
        assert!(module.code.get().is_some() && module.symbols.get().is_some());
        assert!(module.code().is_some());
    }

    #[test]
    fn code_that_is_in_no_file_belongs_to_its_process() {
        let mut modules = Modules::default();
        let map = executable(0x1000..0x2000, "");
        let (one, bias) = modules.of(1, ProcessId(0), &map);
        let (other, _) = modules.of(1, ProcessId(1), &map);
        assert_eq!((one.kind, bias), (ModuleKind::Jit, 0));
        assert!(!Arc::ptr_eq(&one, &other));
        let trampolines = Mapping {
            name: "/memfd:membound-code (deleted)".into(),
            ..map
        };
        assert_eq!(
            modules.of(1, ProcessId(0), &trampolines).0.kind,
            ModuleKind::Agent
        );
        assert!(is_ours(b"/tmp/membound-x1/agent.so"));
        assert!(!is_ours(b"/home/u/agent.so"));
    }

    /// A mapping as perf reports it, of a program that has deleted itself before its file is opened.
    #[test]
    fn a_program_without_a_name_is_found_by_the_name_that_it_had() {
        use std::process::{Command, Stdio};
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("program");
        std::fs::copy("/bin/cat", &path).unwrap();
        let mut child = Command::new(&path)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        std::fs::remove_file(&path).unwrap();
        // A child is reported a moment before its program is mapped.
        let mut map = loop {
            let maps = membound_launch::maps_of(child.id()).unwrap();
            if let Some(map) = maps.into_iter().find(Mapping::deleted) {
                break map;
            }
            std::thread::yield_now();
        };
        map.name = path.clone().into_os_string();
        map.inode = 0;
        let mut modules = Modules::default();
        let (module, _) = modules.of(child.id(), ProcessId(0), &map);
        assert!(module.bytes.is_some());
        map.name = home.path().join("other").into_os_string();
        let (other, _) = modules.of(child.id(), ProcessId(0), &map);
        assert!(other.bytes.is_none());
        drop(child.stdin.take());
        assert!(child.wait().unwrap().success());
    }

    #[test]
    fn a_file_that_lost_its_name_is_the_same_file() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("program");
        std::fs::copy("/proc/self/exe", &path).unwrap();
        let file = File::open(&path).unwrap();
        let mut map = own_maps()
            .into_iter()
            .find(|map| map.executable && map.file())
            .unwrap();
        map.name = path.clone().into_os_string();
        map.inode = file.metadata().unwrap().ino();
        let mut modules = Modules::default();
        let (module, _) = modules.of(std::process::id(), ProcessId(0), &map);
        std::fs::remove_file(&path).unwrap();
        assert!(module.code().is_some());
        assert!(
            module
                .readable()
                .is_some_and(|path| path.starts_with("/proc/self/fd"))
        );
    }
}
