//! What a profile is grouped and sorted by.

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
            /// All of them, in the order in which they are offered.
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
    /// A grouping of a profile, by the name that the command line knows it under.
    By {
        /// No grouping: how much, where, on what, and what to do.
        #[default]
        Summary = "summary",
        /// Functions.
        Function = "function",
        /// Objects, or all blocks of one allocating call chain.
        Object = "object",
        /// Functions, each with the objects that it accesses.
        FunctionObject = "function,object",
        /// Objects, each with the functions that access them.
        ObjectFunction = "object,function",
        /// Source lines.
        Line = "line",
        /// Instructions.
        Instruction = "instruction",
        /// Call chains from the innermost function to its callers.
        Callers = "callers",
        /// Call chains from the outermost function inwards.
        Tree = "tree",
        /// Threads.
        Thread = "thread",
        /// Levels of the memory hierarchy.
        Level = "level",
        /// Nodes of pages against nodes of threads.
        Node = "node",
        /// Memories and interconnects with their traffic.
        BandwidthDomain = "bandwidth-domain",
        /// Live bytes over time, by object.
        Memory = "memory",
    }
}

choices! {
    /// What the rows of a grouping are sorted by, largest first.
    Sort {
        /// Share of CPU time stalled.
        #[default]
        Stall = "stall",
        /// CPU time.
        Time = "time",
        /// Average latency.
        Latency = "latency",
        /// Executions of loads.
        Loads = "loads",
        /// Executions of stores.
        Stores = "stores",
        /// Executions that missed the last cache.
        Misses = "misses",
        /// Bytes of one block (objects).
        Size = "size",
        /// Name, from A to Z.
        Name = "name",
    }
}

impl By {
    /// Whether it is a table whose rows can be sorted.
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

/// What of a profile is shown, and in which order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Grouping {
    /// What rows stand for.
    pub by: By,
    /// Their order.
    pub sort: Sort,
    /// What call chains are weighed by.
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
    /// Says why the grouping cannot be had: there is nothing to sort, or not by this.
    ///
    /// # Errors
    /// A sentence that names the remedy.
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
