//! What a harvest plants in the files of a command and of its guests.

use membound_rewrite::image::Identity;

use crate::choice::Choice;
use crate::modules::{Loaded, Module};

/// The yields of a file.
#[derive(Clone, Debug)]
pub struct Planting {
    /// What is to stand in it.
    pub choice: Choice,
    /// What stands there instead where a yield of the choice that others need has no place.
    pub otherwise: Option<Choice>,
}

impl Planting {
    /// What may stand, the best first.
    pub(crate) fn choices(&self) -> impl Iterator<Item = &Choice> {
        std::iter::once(&self.choice).chain(&self.otherwise)
    }

    /// Whether it is of this file.
    pub(crate) fn is_of(&self, loaded: &Loaded) -> bool {
        loaded.module.identity() == Some(&self.choice.file)
    }

    /// Whether it is what a module was planned for.
    pub(crate) fn is_in(&self, module: &Module) -> bool {
        self.choices()
            .any(|choice| module.is_chosen(&choice.file, &choice.options))
    }
}

/// Yields of the command that were planned while it ran.
#[derive(Debug, Default)]
pub(crate) struct LatePlantings {
    pub(crate) primary: Vec<Planting>,
    /// Files whose yields were planted, or cannot be, with the addresses at which their modules begin.
    settled: Vec<(u64, Identity)>,
}

impl LatePlantings {
    /// The yields of a file whose module begins at `start` were planted, or cannot be.
    pub(crate) fn settle(&mut self, start: u64, file: Identity) {
        self.settled.push((start, file));
    }

    /// Whether nothing is left to do for a file whose module begins at `start`.
    pub(crate) fn is_settled(&self, start: u64, file: &Identity) -> bool {
        let mut settled = self.settled.iter();
        settled.any(|(at, it)| *at == start && it == file)
    }
}
