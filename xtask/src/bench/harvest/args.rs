//! Arguments of `bench harvest`, and the parts that it can measure.

use std::path::PathBuf;

/// Arguments of `bench harvest`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// What to measure; everything without.
    pub(super) parts: Vec<Part>,
    /// Rounds of everything that runs in turn.
    #[arg(long, default_value_t = 5)]
    pub(super) repeat: usize,
    /// The processor that everything runs on.
    #[arg(long, default_value_t = 1)]
    pub(super) cpu: u32,
    /// The other hardware thread of its core [default: what the kernel says].
    #[arg(long)]
    pub(super) sibling: Option<u32>,
    /// What each chase goes through, in bytes: a power of two, with K, M or G.
    #[arg(long, default_value = "512M")]
    pub(super) area: String,
    /// What the store's nodes take, in bytes, with K, M or G.
    #[arg(long, default_value = "1G")]
    pub(super) nodes: String,
    /// Factor on the work of every run; less than 1 is for trying the bench.
    #[arg(long, default_value_t = 1.0)]
    pub(super) scale: f64,
    /// The machine profile, instead of a quick one that is made.
    #[arg(long)]
    pub(super) machine: Option<PathBuf>,
}

/// What can be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Part {
    /// Chases with 1, 3, 7 and 15 copies, against the limit and switches by hand.
    Chase,
    /// The time of a switch where every load hits.
    Switch,
    /// What the parts of a yield are worth.
    Parts,
    /// What yields cost without a scavenger, and a primary that only computes.
    Empty,
    /// A store under load: its requests' times, and what of its stalls becomes work.
    Kv,
    /// How often turns keep to the bound.
    Distance,
    /// The kernel's scheduling of the same two programs.
    Kernel,
    /// Whether plans choose the same loads whatever the period of sampling.
    Stable,
}

impl Part {
    pub(super) const ALL: [Self; 8] = [
        Self::Chase,
        Self::Switch,
        Self::Parts,
        Self::Empty,
        Self::Kv,
        Self::Distance,
        Self::Kernel,
        Self::Stable,
    ];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Chase => "chase",
            Self::Switch => "switch",
            Self::Parts => "parts",
            Self::Empty => "empty",
            Self::Kv => "kv",
            Self::Distance => "distance",
            Self::Kernel => "kernel",
            Self::Stable => "stable",
        }
    }
}
