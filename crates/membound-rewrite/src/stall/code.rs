//! The functions of a file, decoded on demand.

use std::fmt;
use std::ops::Range;
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

use iced_x86::Instruction;
use rustc_hash::FxHashMap;
use self_cell::self_cell;

use super::address::{Bases, Effective};
use super::function::{CodeFunction, SiteInfo};
use super::iterations::{CodeLoop, LoopNest};
use super::loop_body::LoopBody;
use super::waits::Wait;
use crate::code::{Function, ImageFacts, Tables};
use crate::flow;
use crate::image::{self, Identity, Image};

/// The bytes of a file, shared.
type Bytes = Arc<dyn AsRef<[u8]> + Send + Sync>;

self_cell! {
    struct File {
        owner: Bytes,
        #[not_covariant]
        dependent: Image,
    }
}

/// The code of one file, or of one function that is in no file.
pub struct Code {
    source: Source,
    functions: RwLock<FxHashMap<u64, Arc<CodeFunction>>>,
    /// Loops of functions, by the function's first address.
    nests: RwLock<FxHashMap<u64, Arc<LoopNest>>>,
}

enum Source {
    File(Box<Images>, ImageFacts),
    Piece(Range<u64>, Vec<u8>),
}

/// A file with the functions that its symbols and unwind information describe and, computed only when needed,
/// with the functions that nothing describes: finding those requires reading all of the text, and few queries
/// ask for one.
struct Images {
    described: File,
    whole: OnceLock<Option<File>>,
}

impl Images {
    /// Calls `ask` with the index of the function that contains an address.
    fn function<T>(&self, address: u64, ask: impl Fn(&Image<'_>, usize) -> T) -> Option<T> {
        let of = |file: &File| {
            file.with_dependent(|_, image| Some(ask(image, image.function_at(address)?)))
        };
        let whole = || {
            let bytes = Arc::clone(self.described.borrow_owner());
            File::try_new(bytes, |bytes| Image::parse_unpatched((**bytes).as_ref())).ok()
        };
        let is_text = |file: &File| file.with_dependent(|_, image| image.is_text(address));
        of(&self.described).or_else(|| {
            is_text(&self.described).then_some(())?;
            of(self.whole.get_or_init(whole).as_ref()?)
        })
    }
}

/// A basic block of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CodeBlock {
    /// Address of the block's first instruction in the file.
    pub start: u64,
    /// Length in bytes.
    pub length: u32,
}

impl fmt::Debug for Code {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Code").finish_non_exhaustive()
    }
}

impl Code {
    /// Reads an ELF file from its bytes or its mapping.
    ///
    /// # Errors
    /// If the file is malformed or of an unsupported kind. Some files that are never patched, such as Go
    /// programs, are supported here.
    pub fn of(file: impl AsRef<[u8]> + Send + Sync + 'static) -> Result<Self, image::Error> {
        let bytes: Bytes = Arc::new(file);
        let described = File::try_new(bytes, |bytes| Image::parse_described((**bytes).as_ref()))?;
        let whole = OnceLock::new();
        let images = Images { described, whole };
        let knowledge = ImageFacts::nothing(Tables::Resolve);
        Ok(Self::new(Source::File(Box::new(images), knowledge)))
    }

    /// A single function that is in no file, for example one generated at run time.
    #[must_use]
    pub fn of_piece(bytes: Vec<u8>, address: u64) -> Self {
        let range = address..address.saturating_add(bytes.len() as u64);
        Self::new(Source::Piece(range, bytes))
    }

    fn new(source: Source) -> Self {
        Self {
            source,
            functions: RwLock::default(),
            nests: RwLock::default(),
        }
    }

    /// The file's identity, for caches and stored choices; `None` for a function that is in no file.
    #[must_use]
    pub fn identity(&self) -> Option<Identity> {
        match &self.source {
            Source::File(images, _) => {
                let identity = |_: &_, image: &Image<'_>| image.identity().clone();
                Some(images.described.with_dependent(identity))
            }
            Source::Piece(..) => None,
        }
    }

    /// The range of the function that contains an address of the file.
    #[must_use]
    pub fn function(&self, address: u64) -> Option<Range<u64>> {
        match &self.source {
            Source::File(images, _) => images.function(address, |image, index| {
                image.functions()[index].range.clone()
            }),
            Source::Piece(range, _) => range.contains(&address).then(|| range.clone()),
        }
    }

    /// The blocks of the function that contains an address, ascending.
    #[must_use]
    pub fn blocks(&self, address: u64) -> Vec<CodeBlock> {
        let Some(function) = self.decoded(address) else {
            return Vec::new();
        };
        let extent = |block| {
            let instructions = function.block_instructions(block);
            let (first, last) = (instructions.first()?, instructions.last()?);
            Some(CodeBlock {
                start: first.ip(),
                length: u32::try_from(last.next_ip() - first.ip()).ok()?,
            })
        };
        function.blocks.iter().filter_map(extent).collect()
    }

    /// Addresses of all accesses in the function that contains an address, ascending.
    #[must_use]
    pub fn accesses(&self, address: u64) -> Vec<u64> {
        let Some(function) = self.decoded(address) else {
            return Vec::new();
        };
        let accesses = function
            .instructions
            .iter()
            .filter(|it| flow::access(it).is_some());
        accesses.map(Instruction::ip).collect()
    }

    /// The loops that contain the instruction at an address, from the innermost outward.
    #[must_use]
    pub fn loops(&self, address: u64) -> Vec<Arc<CodeLoop>> {
        let Some(function) = self.decoded(address) else {
            return Vec::new();
        };
        let start = function.bounds.range.start;
        let known = self
            .nests
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .get(&start)
            .cloned();
        let nest = known.unwrap_or_else(|| {
            let nest = Arc::new(LoopNest::of(&function));
            let mut nests = self.nests.write().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(nests.entry(start).or_insert(nest))
        });
        nest.around(&function, address)
    }

    /// The start addresses of the loops that contain the instruction at an address, from the innermost
    /// outward: [`CodeLoop::start`] of each, without the other facts, which would require an analysis of all
    /// loops of the function.
    #[must_use]
    pub fn loop_starts(&self, address: u64) -> Vec<u64> {
        let function = self.studied(address);
        function.map_or_else(Vec::new, |function| function.loop_starts(address))
    }

    /// Addresses of the stores in the innermost loop around the instruction at an address, or in the loop around that
    /// one if the innermost has none. Atomic operations are left out.
    #[must_use]
    pub fn loop_stores(&self, address: u64) -> Vec<u64> {
        let function = self.studied(address);
        function.map_or_else(Vec::new, |function| function.loop_stores(address))
    }

    /// The body of the loop that is entered at `entry`, to be executed apart from its program; `None` if the loop is
    /// not one stretch of code that ends with the jump back, or if its instructions could do anything but compute.
    #[must_use]
    pub fn loop_body(&self, entry: u64) -> Option<LoopBody> {
        self.studied(entry)?.loop_body(entry)
    }

    /// The access of the instruction at an address; `None` if it has none.
    #[must_use]
    pub fn site(&self, address: u64) -> Option<SiteInfo> {
        self.studied(address)?.site(address)
    }

    /// Addresses of all accesses in the blocks that lead to the block at `sampled`, ascending; `None` if no
    /// block begins there. Calls and the code they lead to are left out.
    ///
    /// An emulator takes interrupts only at the beginning of a block, so the access that was waited for is
    /// somewhere in the block before.
    #[must_use]
    pub fn blocks_before(&self, sampled: u64) -> Option<Vec<u64>> {
        super::waits::blocks_before(&*self.decoded(sampled)?, sampled)
    }

    /// The accesses that the instruction at `sampled` may have waited for, when a timer interrupted before
    /// it; empty if there is no instruction of a function at that address.
    #[must_use]
    pub fn waits(&self, sampled: u64) -> Vec<Wait> {
        self.studied(sampled)
            .map(|function| function.waits(sampled))
            .unwrap_or_default()
    }

    /// The address that `site` accessed, reconstructed from `registers` (indexed by their numbers in the
    /// instruction set) as they were before the instruction at `sampled`, which came soon after it. `None` if
    /// they do not show it.
    #[must_use]
    pub fn effective_address(
        &self,
        site: u64,
        sampled: u64,
        registers: &[u64; 16],
        bases: Bases,
    ) -> Option<Effective> {
        let function = self.studied(site)?;
        function.effective_address(site, sampled, registers, bases)
    }

    /// Decodes the function that contains an address for the caller alone, without keeping it: the decoded
    /// code of all programs of a machine would not fit into memory.
    #[must_use]
    pub fn decode(&self, address: u64) -> Option<CodeFunction> {
        let function = match &self.source {
            Source::File(images, knowledge) => images.function(address, |image, index| {
                Function::decode(image, knowledge, index)
            })?,
            Source::Piece(range, bytes) => {
                range.contains(&address).then_some(())?;
                Function::from_code(bytes, range.start)
            }
        };
        Some(CodeFunction::new(function))
    }

    fn decoded(&self, address: u64) -> Option<Arc<Function>> {
        self.studied(address).map(|it| Arc::clone(it.function()))
    }

    fn studied(&self, address: u64) -> Option<Arc<CodeFunction>> {
        let range = self.function(address)?;
        let known = self
            .functions
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .get(&range.start)
            .cloned();
        if known.is_some() {
            return known;
        }
        let function = Arc::new(self.decode(address)?);
        let mut functions = self
            .functions
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        Some(Arc::clone(functions.entry(range.start).or_insert(function)))
    }
}
