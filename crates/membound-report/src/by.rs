//! Groupings and sort orders of a profile, by their names on the command line.

use std::fmt;
use std::str::FromStr;

use crate::export::Weight;

/// Defines an enumeration whose variants have names on the command line.
macro_rules! choices {
    ($(#[$meta:meta])* $Name:ident { $($(#[$of:meta])* $Variant:ident = $name:literal,)+ }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
        pub enum $Name { $($(#[$of])* $Variant,)+ }

        impl $Name {
            /// All variants, in the order of the help text.
            pub const ALL: &'static [Self] = &[$(Self::$Variant),+];

            /// The name on the command line.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$Variant => $name),+ }
            }
        }

        impl fmt::Display for $Name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.name())
            }
        }

        impl FromStr for $Name {
            type Err = String;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                let mut all = Self::ALL.iter().copied();
                all.find(|it| it.name() == text).ok_or_else(|| {
                    let names: Vec<&str> = Self::ALL.iter().map(|it| it.name()).collect();
                    format!("`{text}` is not one of {}", names.join(" "))
                })
            }
        }
    };
}

choices! {
    /// Grouping of a profile.
    By {
        /// No grouping: a summary of how much stall there is, where, on which objects, and what to do.
        #[default]
        Summary = "summary",
        /// By function.
        Function = "function",
        /// By object; all blocks of one allocating call chain are one object.
        Object = "object",
        /// By function, and within it by accessed object.
        FunctionObject = "function,object",
        /// By object, and within it by accessing function.
        ObjectFunction = "object,function",
        /// By source line.
        Line = "line",
        /// By instruction.
        Instruction = "instruction",
        /// Call chains from the innermost function to its callers.
        Callers = "callers",
        /// Call chains from the outermost function inwards.
        Tree = "tree",
        /// By thread.
        Thread = "thread",
        /// By level of the memory hierarchy.
        Level = "level",
        /// By node of the page and node of the thread.
        Node = "node",
        /// Traffic of memories and interconnects.
        BandwidthDomain = "bandwidth-domain",
        /// Live bytes over time, by object.
        Memory = "memory",
    }
}

choices! {
    /// Figure that the rows of a grouping are sorted by, largest first.
    Sort {
        /// Share of CPU time stalled.
        #[default]
        Stall = "stall",
        /// CPU time of the row, stalled or not.
        Time = "time",
        /// Average latency of accesses, where it was timed.
        Latency = "latency",
        /// Executions of loads, where they were counted.
        Loads = "loads",
        /// Executions of stores, where they were counted.
        Stores = "stores",
        /// Executions that missed the last cache.
        Misses = "misses",
        /// Bytes of one block; for objects only.
        Size = "size",
        /// Name, from A to Z.
        Name = "name",
    }
}

impl By {
    /// True if the grouping is a table whose rows can be sorted.
    #[must_use]
    pub const fn sorts(self) -> bool {
        matches!(
            self,
            Self::Function
                | Self::Object
                | Self::FunctionObject
                | Self::ObjectFunction
                | Self::Line
                | Self::Instruction
                | Self::Thread
        )
    }
}

/// Rows of a profile that are shown, and their order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Grouping {
    /// What each row is.
    pub by: By,
    /// Order of the rows.
    pub sort: Sort,
    /// Time or stall, by which call chains are weighted.
    pub weight: Weight,
}

impl From<By> for Grouping {
    fn from(by: By) -> Self {
        Self {
            by,
            ..Self::default()
        }
    }
}

impl Grouping {
    /// Checks that the grouping can be sorted by the requested figure.
    ///
    /// # Errors
    /// A sentence that says what cannot be sorted, and the remedy.
    pub fn check(self) -> Result<(), String> {
        let (by, sort) = (self.by, self.sort);
        if sort == Sort::Stall {
            return Ok(());
        }
        if !by.sorts() {
            let sorting: Vec<&str> = By::ALL
                .iter()
                .filter(|by| by.sorts())
                .map(|by| by.name())
                .collect();
            return Err(format!(
                "--sort {sort} needs a table: add --by with one of {}",
                sorting.join(" ")
            ));
        }
        if sort == Sort::Size && by != By::Object {
            return Err(format!(
                "only objects have a size: use --by object, or sort {by} by something else"
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for by in By::ALL {
            assert_eq!(by.name().parse(), Ok(*by));
            assert_eq!(by.to_string(), by.name());
        }
        for sort in Sort::ALL {
            assert_eq!(sort.name().parse(), Ok(*sort));
        }
        assert!("nodes".parse::<By>().is_err());
    }

    #[test]
    fn what_cannot_be_sorted_is_refused_with_what_can() {
        let grouping = |by, sort| Grouping {
            by,
            sort,
            ..Grouping::default()
        };
        assert_eq!(grouping(By::Level, Sort::Stall).check(), Ok(()));
        assert_eq!(grouping(By::Object, Sort::Size).check(), Ok(()));
        let level = grouping(By::Level, Sort::Loads).check().unwrap_err();
        assert!(level.contains("function,object"), "{level}");
        let size = grouping(By::Line, Sort::Size).check().unwrap_err();
        assert!(size.contains("--by object"), "{size}");
    }
}
