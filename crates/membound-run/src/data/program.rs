//! Processes, threads, and the files that their code came from.

use serde::{Deserialize, Serialize};

use crate::record::record;
use crate::value::names;
use crate::{ModuleId, ProcessId};

record! { "processes", Position, missing "processes" =>
    /// A process image: an exec begins another one.
    #[derive(Clone, Debug, Default, PartialEq)]
    pub struct Process {
        /// Number that the kernel gave the process.
        pub pid: u32,
        /// Number of the process that started it.
        pub parent: Option<u32>,
        /// Path of the executable.
        pub path: String,
        /// Time of its start.
        pub start_ns: u64,
        /// Time of its end; `None` if it was still running.
        pub end_ns: Option<u64>,
        /// Why nothing was patched in it.
        pub unpatched: Option<String>,
    }
}

record! { "threads", Position, missing "processes" =>
    /// A thread of one of the processes.
    #[derive(Clone, Debug, PartialEq)]
    pub struct Thread {
        /// Process image that the thread belongs to.
        pub process: ProcessId,
        /// Number that the kernel gave the thread.
        pub tid: u32,
        /// Name of the thread (`comm`), at most 15 bytes.
        pub name: String,
        /// Time of its start.
        pub start_ns: u64,
        /// Time of its end; `None` if it was still running.
        pub end_ns: Option<u64>,
        /// CPU time in nanoseconds, as the kernel counts it, where it could be read.
        pub cpu_ns: Option<u64>,
    }
}

impl Thread {
    /// Names of the agent's threads, in profiled programs and in harvested ones. A new thread has the name of
    /// its program until it is given another, so these are names that no command has.
    const AGENTS: [&'static str; 2] = ["membound-agent", "membound-lanes"];
    /// Name of the thread of a scavenger inside a primary.
    const SCAVENGERS: &'static str = "membound-guest";

    /// True if this is a thread of the agent, in a process with number `pid`. The first thread of a process
    /// is never the agent's, whatever its name.
    #[must_use]
    pub fn is_agents(&self, pid: u32) -> bool {
        self.tid != pid && Self::AGENTS.contains(&self.name.as_str())
    }

    /// True if this is the thread of a scavenger, in a process with number `pid`.
    #[must_use]
    pub fn is_scavengers(&self, pid: u32) -> bool {
        self.tid != pid && self.name == Self::SCAVENGERS
    }
}

record! { "modules", Position, missing "names" =>
    /// A piece of code: a file, or code without a file.
    #[derive(Clone, Debug, PartialEq)]
    pub struct Module {
        /// Path, or `[vdso]`, `[jit]`, `[agent]`, `[kernel]`.
        pub path: String,
        /// Build-id in hexadecimal digits.
        pub build_id: Option<String>,
        /// SHA-256 of its text, where it has no build-id.
        pub text_hash: Option<String>,
        /// Kind of code.
        pub kind: ModuleKind,
    }
}

membound_types::named! {
    /// Kind of a module's code.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
    pub enum ModuleKind {
        /// An executable or a library.
        File = "file",
        /// The vdso, which the kernel maps into each process.
        Vdso = "vdso",
        /// Code made at run time; addresses of its frames are those of the process.
        Jit = "jit",
        /// membound's own code in the program.
        Agent = "agent",
        /// The kernel.
        Kernel = "kernel",
    }
}

names!(ModuleKind);

record! { "mappings", Order, missing "names" =>
    /// Where a module was mapped in a process.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Mapping {
        /// Process with the mapping.
        pub process: ProcessId,
        /// Module that is mapped.
        pub module: ModuleId,
        /// First mapped address.
        pub start: u64,
        /// First address after the mapping.
        pub end: u64,
        /// Address in the process minus address in the file.
        pub bias: u64,
        /// Time of the mapping.
        pub t_ns: u64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_that_have_their_name_from_a_program_are_the_programs() {
        let thread = |tid: u32, name: &str| Thread {
            process: ProcessId(0),
            tid,
            name: name.to_owned(),
            start_ns: 0,
            end_ns: None,
            cpu_ns: None,
        };
        assert!(thread(8, "membound-agent").is_agents(7));
        assert!(!thread(7, "membound-agent").is_agents(7));
        // The command itself may be what is profiled: the tour does it.
        assert!(!thread(8, "membound").is_agents(7));
    }
}
