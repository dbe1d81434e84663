//! The yields that a harvest installs in the files of a command and of its scavengers.

use membound_rewrite::image::Identity;

use crate::choice::Choice;
use crate::modules::{Loaded, ModulePlan};

/// The yields of a file.
#[derive(Clone, Debug)]
pub struct Planting {
    /// The yields to install.
    pub choice: Choice,
    /// The choice that is installed instead if a yield that others need has no place.
    pub otherwise: Option<Choice>,
    /// True if nothing else of the file is patched, and no other code enters the functions with yields but at
    /// their starts: the rest of the file is not analysed.
    pub is_alone: bool,
}

impl Planting {
    /// The choices, the best first.
    pub(crate) fn choices(&self) -> impl Iterator<Item = &Choice> {
        std::iter::once(&self.choice).chain(&self.otherwise)
    }

    /// True if these yields are for this file.
    pub(crate) fn is_of(&self, loaded: &Loaded) -> bool {
        loaded.module.identity() == Some(&self.choice.file)
    }

    /// True if a module was planned for one of these choices.
    pub(crate) fn is_in(&self, module: &ModulePlan) -> bool {
        self.choices()
            .any(|choice| module.is_chosen(&choice.file, &choice.options))
    }
}

/// Yields of the command that were planned while it ran.
#[derive(Debug, Default)]
pub(crate) struct LatePlantings {
    pub(crate) primary: Vec<Planting>,
    /// Files whose yields were installed, or cannot be, with the start addresses of their modules.
    settled: Vec<(u64, Identity)>,
}

impl LatePlantings {
    /// Records that the yields of a file whose module begins at `start` were installed, or cannot be.
    pub(crate) fn settle(&mut self, start: u64, file: Identity) {
        self.settled.push((start, file));
    }

    /// True if nothing is left to do for a file whose module begins at `start`.
    pub(crate) fn is_settled(&self, start: u64, file: &Identity) -> bool {
        let mut settled = self.settled.iter();
        settled.any(|(at, it)| *at == start && it == file)
    }
}
