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

/// Whose yields these are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Yielding {
    /// The command's.
    Command,
    /// Those of guests.
    Guest,
}

/// What became of the yields of a file that were planned while it ran.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Planted {
    /// The file.
    pub file: Identity,
    /// Whose copy of it.
    pub whose: Yielding,
    /// Why none of them stands; `None`: those that have room do.
    pub lost: Option<String>,
}

/// Yields that were planned while the program ran.
#[derive(Debug, Default)]
pub(crate) struct LatePlantings {
    pub(crate) primary: Vec<Planting>,
    pub(crate) scavengers: Vec<Planting>,
    /// By where its module begins in the process.
    planted: Vec<(u64, Planted)>,
}

impl LatePlantings {
    /// What has been planted, or could not be, so far.
    pub(crate) fn planted(&self) -> Vec<Planted> {
        self.planted.iter().map(|(_, it)| it.clone()).collect()
    }

    /// Adds what has become of the yields of a file whose module begins at `start`.
    pub(crate) fn note(&mut self, start: u64, planted: Planted) {
        self.planted.push((start, planted));
    }

    /// Whether that is known.
    pub(crate) fn knows(&self, start: u64, file: &Identity) -> bool {
        let mut planted = self.planted.iter();
        planted.any(|(at, it)| *at == start && it.file == *file)
    }
}
