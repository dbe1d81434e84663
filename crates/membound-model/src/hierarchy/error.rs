//! What can be wrong with a topology, each in one line that says where and what to do.

use crate::declared::bytes;

/// What is wrong with a topology, in one line.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum TopologyError {
    /// Any of the others, with its place in a file.
    #[error("{file}:{line}:{column}: {what}")]
    InFile {
        /// The file, as the caller named it.
        file: String,
        /// Line, from 1.
        line: usize,
        /// Column in characters, from 1.
        column: usize,
        /// What is wrong there.
        what: Box<TopologyError>,
    },
    /// The text is no TOML, or not of this form.
    #[error("{0}")]
    Syntax(String),
    /// Nothing that could take time.
    #[error("no components: describe each piece of hardware in a [[component]]")]
    NoComponents,
    /// Nothing that data could lie in.
    #[error("no levels: describe each in a [[level]], innermost first")]
    NoLevels,
    /// A profile in which no level was found.
    #[error("no levels were found in the latency curve: measure latency over more sizes")]
    NothingFound,
    /// A name without a visible character, or with one that breaks a line.
    #[error("{what} has the name `{name}`: use a word or two in one line")]
    Name {
        /// Which part of the topology.
        what: String,
        /// The name; what would break the line is escaped.
        name: String,
    },
    /// A symbol that could not be told from other text.
    #[error("{what} has the symbol `{symbol}`: use letters, digits and _, and no digit first")]
    Symbol {
        /// Which part of the topology.
        what: String,
        /// The symbol; what would break the line is escaped.
        symbol: String,
    },
    /// Two things with one symbol.
    #[error("symbol `{symbol}` stands for {first} and for {second}: rename one")]
    SymbolTwice {
        /// The symbol.
        symbol: String,
        /// What has it.
        first: String,
        /// What has it, too.
        second: String,
    },
    /// Two levels with one name.
    #[error("levels {first} and {second} are both named `{name}`: rename one")]
    LevelTwice {
        /// The name.
        name: String,
        /// Number of the first, from 1.
        first: usize,
        /// Number of the second.
        second: usize,
    },
    /// A level that costs nothing.
    #[error("level {level} `{name}` has an empty path: name the components on the way to it")]
    EmptyPath {
        /// Number, from 1.
        level: usize,
        /// Name.
        name: String,
    },
    /// A path over something that is not described.
    #[error("path of level `{level}` names `{symbol}`, which is no component: there are {known}")]
    UnknownComponent {
        /// Name of the level.
        level: String,
        /// The unknown symbol.
        symbol: String,
        /// Symbols that there are.
        known: String,
    },
    /// A path's term that is neither a symbol nor a count and a symbol.
    #[error(
        "`{term}` in the path of level `{level}` is no term: \
         write a symbol, or a count before it as in `2 t_r`"
    )]
    PathTerm {
        /// Name of the level.
        level: String,
        /// The term.
        term: String,
    },
    /// A path with two terms for one component.
    #[error("path of level `{level}` names `{symbol}` twice: write a count, as in `2 {symbol}`")]
    PathTwice {
        /// Name of the level.
        level: String,
        /// The symbol.
        symbol: String,
    },
    /// A level that holds less than the one before it.
    #[error("{0}")]
    Smaller(SmallerLevel),
    /// Sizes whose sum no machine can address.
    #[error("levels 1 to {level} hold 2^64 bytes or more together: check the size of `{name}`")]
    TooLarge {
        /// Number of the level with which they do, from 1.
        level: usize,
        /// Its name.
        name: String,
    },
    /// A number outside its range.
    #[error("{what} is {value}: it has to be {need}")]
    Number {
        /// What it is.
        what: String,
        /// The number.
        value: String,
        /// The range.
        need: &'static str,
    },
    /// A component to be held at a value that is not given.
    #[error(
        "component `{symbol}` is fixed but has no value: give per_line_ns, constant_ns or both"
    )]
    FixedAtNothing {
        /// Its symbol.
        symbol: String,
    },
    /// Sizes given, and not as many as there are places for them.
    #[error("{given} given, but topology `{name}` takes {counts}")]
    SizeCount {
        /// How many.
        given: String,
        /// Name of the topology.
        name: String,
        /// Counts that are possible, and which levels they are for.
        counts: String,
    },
    /// Half a TLB given to a topology without one.
    #[error("topology `{name}` has no TLB term: give its entries and its page size, not only one")]
    HalfTlb {
        /// Name of the topology.
        name: String,
    },
}

/// A level that holds less than one before it, or does not reach further where sizes are
/// a level's [reach](membound_types::SizeMeaning::Reach).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SmallerLevel {
    /// Number of the level, from 1.
    pub level: usize,
    /// Its name.
    pub name: String,
    /// Its size.
    pub size_bytes: u64,
    /// Number of the level before.
    pub before: usize,
    /// Its name.
    pub before_name: String,
    /// Its size.
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
