//! A file's functions, decoded when they are asked for.

use std::fmt;
use std::ops::Range;
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

use iced_x86::Instruction;
use rustc_hash::FxHashMap;
use self_cell::self_cell;

use super::address::{Bases, Effective};
use super::function::{CodeFunction, SiteInfo};
use super::laps::{CodeLoop, LoopNest};
use super::waits::Wait;
use crate::code::{Function, Knowledge, Tables};
use crate::flow;
use crate::image::{self, Identity, Image};

/// Bytes of a file.
type Bytes = Arc<dyn AsRef<[u8]> + Send + Sync>;

self_cell! {
    struct File {
        owner: Bytes,
        #[not_covariant]
        dependent: Image,
    }
}

/// The code of a file.
pub struct Code {
    source: Source,
    functions: RwLock<FxHashMap<u64, Arc<CodeFunction>>>,
    /// By the function's first address.
    nests: RwLock<FxHashMap<u64, Arc<LoopNest>>>,
}

enum Source {
    File(Box<Images>, Knowledge),
    Piece(Range<u64>, Vec<u8>),
}

/// A file as its symbols and its unwind information describe it, and with the functions that nothing describes: to find
/// those, all of its text is read, and hardly anybody asks for one.
struct Images {
    described: File,
    whole: OnceLock<Option<File>>,
}

impl Images {
    /// Lets `ask` look at the function that holds an address, by its index.
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

/// A basic block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CodeBlock {
    /// Address of its first instruction in the file.
    pub start: u64,
    /// Bytes.
    pub length: u32,
}

impl fmt::Debug for Code {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Code").finish_non_exhaustive()
    }
}

impl Code {
    /// Reads an ELF file: a vector of its bytes, or its mapping.
    ///
    /// # Errors
    /// When it is malformed, or of a kind that is not looked at. What is not patched may be
    /// looked at all the same, as Go's code is.
    pub fn of(file: impl AsRef<[u8]> + Send + Sync + 'static) -> Result<Self, image::Error> {
        let bytes: Bytes = Arc::new(file);
        let described = File::try_new(bytes, |bytes| Image::parse_described((**bytes).as_ref()))?;
        let whole = OnceLock::new();
        let images = Images { described, whole };
        let knowledge = Knowledge::nothing(Tables::Resolve);
        Ok(Self::new(Source::File(Box::new(images), knowledge)))
    }

    /// One function that is in no file, such as one that was made at run time.
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

    /// What the file is called in caches and choices; `None` for a piece.
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

    /// Where the function lies that holds an address of the file.
    #[must_use]
    pub fn function(&self, address: u64) -> Option<Range<u64>> {
        match &self.source {
            Source::File(images, _) => images.function(address, |image, index| {
                image.functions()[index].range.clone()
            }),
            Source::Piece(range, _) => range.contains(&address).then(|| range.clone()),
        }
    }

    /// Blocks of the function that holds an address, ascending.
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

    /// Addresses of all accesses of the function that holds an address, ascending.
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

    /// The loops of its function around the instruction at an address, from the innermost
    /// outward.
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

    /// Where the loops around the instruction at an address begin, from the innermost outward:
    /// [`CodeLoop::start`] of each, without what else would have to be found out about all loops of the function.
    #[must_use]
    pub fn loop_starts(&self, address: u64) -> Vec<u64> {
        let function = self.studied(address);
        function.map_or_else(Vec::new, |function| function.loop_starts(address))
    }

    /// The access of the instruction at an address; `None` where there is none.
    #[must_use]
    pub fn site(&self, address: u64) -> Option<SiteInfo> {
        self.studied(address)?.site(address)
    }

    /// Addresses of all accesses of the blocks that lead to the one that begins at `sampled`,
    /// ascending; `None` where no block begins. Calls and what they lead to are left out.
    ///
    /// An emulator takes interrupts where blocks begin only: what was waited for is then somewhere
    /// in the block before.
    #[must_use]
    pub fn blocks_before(&self, sampled: u64) -> Option<Vec<u64>> {
        super::waits::blocks_before(&*self.decoded(sampled)?, sampled)
    }

    /// What the instruction at `sampled` waited for when a timer interrupted before it; empty
    /// where that is no instruction of a function.
    #[must_use]
    pub fn waits(&self, sampled: u64) -> Vec<Wait> {
        self.studied(sampled)
            .map(|function| function.waits(sampled))
            .unwrap_or_default()
    }

    /// The call that is followed by `return_address`, when it takes its target from memory
    /// (a virtual call): what a sample at a function's first instruction, whose caller is
    /// known from its call chain, most likely waited for.
    #[must_use]
    pub fn call_before(&self, return_address: u64) -> Option<u64> {
        let function = self.decoded(return_address.checked_sub(1)?)?;
        super::waits::call_before(&function, return_address)
    }

    /// The address that `site` accessed, given the registers (by their numbers in
    /// instructions) before the instruction at `sampled`, which came soon after it. `None`
    /// where they do not tell.
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

    /// The function that holds an address, decoded for the caller alone: the code of a whole machine's programs does
    /// not fit into memory decoded.
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
