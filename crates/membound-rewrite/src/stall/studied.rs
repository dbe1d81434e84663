//! A decoded function with what is derived from it.
//!
//! A recording of a large program samples thousands of instructions of one function. Its loops and its
//! edges are therefore found once, and not again for each of them.

use std::sync::{Arc, LazyLock, OnceLock};

use self_cell::self_cell;

use crate::code::Function;
use crate::flow::{Conventions, Loops, Reaching, Summaries};
use crate::image::Convention;

/// Nothing is known of what calls do.
static CONVENTIONS: LazyLock<Conventions<'static>> = LazyLock::new(|| {
    static SUMMARIES: LazyLock<Summaries> = LazyLock::new(Summaries::default);
    Conventions {
        convention: Convention::Unknown,
        summaries: &SUMMARIES,
    }
});

self_cell! {
    struct Origins {
        owner: Arc<Function>,
        #[covariant]
        dependent: Reaching,
    }
}

/// A function of a file.
pub(super) struct Studied {
    function: Arc<Function>,
    loops: OnceLock<Loops>,
    origins: OnceLock<Origins>,
}

impl Studied {
    pub(super) fn new(function: Function) -> Self {
        Self {
            function: Arc::new(function),
            loops: OnceLock::new(),
            origins: OnceLock::new(),
        }
    }

    pub(super) const fn function(&self) -> &Arc<Function> {
        &self.function
    }

    pub(super) fn loops(&self) -> &Loops {
        self.loops.get_or_init(|| Loops::of(&self.function))
    }

    /// Where values come from, when calls may do anything.
    pub(super) fn origins(&self) -> &Reaching<'_> {
        let new = || {
            let function = Arc::clone(&self.function);
            Origins::new(function, |function| Reaching::of(function, &CONVENTIONS))
        };
        self.origins.get_or_init(new).borrow_dependent()
    }
}
