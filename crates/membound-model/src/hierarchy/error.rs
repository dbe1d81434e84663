//! Errors of topologies: each is one line that names the flaw, its position and the remedy.

use crate::declared::bytes;

/// A flaw of a topology; its text is one line.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum TopologyError {
    /// Any other variant, with its position in a file.
    #[error("{file}:{line}:{column}: {what}")]
    InFile {
        /// Name of the file as the caller gave it.
        file: String,
        /// Line, from 1.
        line: usize,
        /// Column in characters, from 1.
        column: usize,
        /// The flaw at this position.
        what: Box<TopologyError>,
    },
    /// The text is not TOML, or has the wrong structure.
    #[error("{0}")]
    Syntax(String),
    /// The topology has no components.
    #[error("no components: describe each piece of hardware in a [[component]]")]
    NoComponents,
    /// The topology has no levels.
    #[error("no levels: describe each in a [[level]], innermost first")]
    NoLevels,
    /// The machine profile has no levels.
    #[error("no levels were found in the latency curve: measure latency over more sizes")]
    NothingFound,
    /// A name is empty, blank or contains a line break.
    #[error("{what} has the name `{name}`: use a word or two in one line")]
    Name {
        /// The part of the topology that has the name.
        what: String,
        /// The name, with line-breaking characters escaped.
        name: String,
    },
    /// A symbol is not of the form `[A-Za-z_][A-Za-z0-9_]*`.
    #[error("{what} has the symbol `{symbol}`: use letters, digits and _, and no digit first")]
    Symbol {
        /// The part of the topology that has the symbol.
        what: String,
        /// The symbol, with line-breaking characters escaped.
        symbol: String,
    },
    /// Two parts have the same symbol.
    #[error("symbol `{symbol}` stands for {first} and for {second}: rename one")]
    SymbolTwice {
        /// The shared symbol.
        symbol: String,
        /// The part that has it first.
        first: String,
        /// The other part that has it.
        second: String,
    },
    /// Two levels have the same name.
    #[error("levels {first} and {second} are both named `{name}`: rename one")]
    LevelTwice {
        /// The shared name.
        name: String,
        /// Number of the first level, from 1.
        first: usize,
        /// Number of the second level, from 1.
        second: usize,
    },
    /// A level has no component on its path.
    #[error("level {level} `{name}` has an empty path: name the components on the way to it")]
    EmptyPath {
        /// Number of the level, from 1.
        level: usize,
        /// Name of the level.
        name: String,
    },
    /// A path names a component that is not described.
    #[error("path of level `{level}` names `{symbol}`, which is no component: there are {known}")]
    UnknownComponent {
        /// Name of the level.
        level: String,
        /// The unknown symbol.
        symbol: String,
        /// Symbols of the described components.
        known: String,
    },
    /// A term of a path is neither a symbol nor a count and a symbol.
    #[error(
        "`{term}` in the path of level `{level}` is no term: \
         write a symbol, or a count before it as in `2 t_r`"
    )]
    PathTerm {
        /// Name of the level.
        level: String,
        /// The invalid term, with line-breaking characters escaped.
        term: String,
    },
    /// A path has two terms for one component.
    #[error("path of level `{level}` names `{symbol}` twice: write a count, as in `2 {symbol}`")]
    PathTwice {
        /// Name of the level.
        level: String,
        /// Symbol of the component.
        symbol: String,
    },
    /// A level holds less than an earlier one.
    #[error("{0}")]
    Smaller(SmallerLevel),
    /// The sizes add up to 2⁶⁴ bytes or more.
    #[error("levels 1 to {level} hold 2^64 bytes or more together: check the size of `{name}`")]
    TooLarge {
        /// Number of the level at which the sum overflows, from 1.
        level: usize,
        /// Name of that level.
        name: String,
    },
    /// A number is out of its range.
    #[error("{what} is {value}: it has to be {need}")]
    Number {
        /// The quantity, with the part that it belongs to.
        what: String,
        /// The number as text.
        value: String,
        /// The valid range as text.
        need: &'static str,
    },
    /// A fixed component has no value.
    #[error(
        "component `{symbol}` is fixed but has no value: give per_line_ns, constant_ns or both"
    )]
    FixedAtNothing {
        /// Symbol of the component.
        symbol: String,
    },
    /// The number of sizes does not fit the levels.
    #[error("{given} given, but topology `{name}` takes {counts}")]
    SizeCount {
        /// The number of sizes given, as text.
        given: String,
        /// Name of the topology.
        name: String,
        /// The accepted numbers, and the levels that each is for.
        counts: String,
    },
    /// Only entries or only a page size are given for a topology without a TLB term.
    #[error("topology `{name}` has no TLB term: give its entries and its page size, not only one")]
    HalfTlb {
        /// Name of the topology.
        name: String,
    },
}

/// A level that holds less than an earlier one, or does not reach further where sizes are
/// a level's [reach](membound_types::SizeMeaning::Reach).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SmallerLevel {
    /// Number of the smaller level, from 1.
    pub level: usize,
    /// Name of the smaller level.
    pub name: String,
    /// Size of the smaller level.
    pub size_bytes: u64,
    /// Number of the earlier level, from 1.
    pub before: usize,
    /// Name of the earlier level.
    pub before_name: String,
    /// Size of the earlier level.
    pub before_bytes: u64,
}

impl std::fmt::Display for SmallerLevel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (mut size, mut before) = (bytes(self.size_bytes), bytes(self.before_bytes));
        if size == before && self.size_bytes != self.before_bytes {
            size = format!("{} bytes", self.size_bytes);
            before = format!("{} bytes", self.before_bytes);
        }
        let relation = if self.size_bytes < self.before_bytes {
            "is smaller than"
        } else {
            "reaches no further than"
        };
        write!(
            f,
            "level {} `{}` ({size}) {relation} level {} `{}` before it ({before})",
            self.level, self.name, self.before, self.before_name
        )
    }
}
