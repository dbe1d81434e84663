//! Errors of reading and changing a machine.

use std::io;
use std::path::PathBuf;

use membound_types::{CpuId, NodeId, NotMeasured};

/// Why the machine could not be read or changed as requested.
///
/// The text names the path and the value; [`Error::remedy`] is what the user can do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file could not be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// A file could not be written.
    #[error("cannot write `{value}` to {}: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The value to be written.
        value: String,
        /// The kernel's error.
        source: io::Error,
    },
    /// A file for output cannot be written.
    #[error("cannot write {}: {reason}", path.display())]
    Output {
        /// The file.
        path: PathBuf,
        /// The kernel's error, or what the path is instead of a file.
        reason: io::Error,
    },
    /// A file did not hold what it is documented to hold.
    #[error("{} holds `{text}`, which is no {expected}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Its content, or the part that could not be parsed.
        text: String,
        /// What was expected there.
        expected: &'static str,
    },
    /// A system call failed for a reason that has no variant of its own.
    #[error("{call} failed: {source}")]
    Call {
        /// The call, with its purpose.
        call: String,
        /// The kernel's error.
        source: io::Error,
    },
    /// The CPU is not part of this machine.
    #[error("cpu {cpu} does not exist: this machine has {present}")]
    NoSuchCpu {
        /// The requested CPU.
        cpu: CpuId,
        /// The CPUs that exist, as a list.
        present: String,
    },
    /// The CPU is switched off.
    #[error("cpu {cpu} is offline{}", semicolon(self.remedy()))]
    CpuOffline {
        /// The requested CPU.
        cpu: CpuId,
        /// The file that switches it on.
        switch: PathBuf,
    },
    /// The CPU is not in the affinity mask or the cpuset.
    #[error("cpu {cpu} is not permitted: this process may run on {allowed}{}", semicolon(self.remedy()))]
    CpuNotPermitted {
        /// The requested CPU.
        cpu: CpuId,
        /// The CPUs that are permitted, as a list.
        allowed: String,
    },
    /// The node is not part of this machine.
    #[error("node {node} does not exist: this machine has {present}")]
    NoSuchNode {
        /// The requested node.
        node: NodeId,
        /// The nodes that exist, as a list.
        present: String,
    },
    /// The node has no memory.
    #[error("node {node} has no memory: nodes with memory are {with_memory}")]
    NodeWithoutMemory {
        /// The requested node.
        node: NodeId,
        /// The nodes with memory, as a list.
        with_memory: String,
    },
    /// The cpuset does not let this process take memory from the node.
    #[error("memory of node {node} is not permitted: the cpuset permits {allowed}{}", semicolon(self.remedy()))]
    NodeNotPermitted {
        /// The requested node or nodes, as a list.
        node: String,
        /// The nodes that are permitted, as a list.
        allowed: String,
    },
    /// The kernel or a seccomp filter refuses the call altogether.
    #[error("{call} is denied: {source}{}", semicolon(self.remedy()))]
    Denied {
        /// Name of the system call.
        call: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
    /// No prefetcher of this machine has that name.
    #[error("unknown prefetcher `{name}` (known: {known})")]
    NoSuchPrefetcher {
        /// The requested prefetcher.
        name: String,
        /// The names of this machine's prefetchers, as a list.
        known: String,
    },
    /// The guard process, which would restore the changes, did not start; nothing was changed.
    #[error("cannot start the guard process {}: {source}", program.display())]
    Guard {
        /// The guard's program.
        program: PathBuf,
        /// Why it did not start.
        source: io::Error,
    },
    /// A register does not hold the value that was written, as in a guest whose hypervisor ignores
    /// the write.
    #[error("{} does not keep {written:#x}: it reads {found:#x}{}", path.display(), semicolon(self.remedy()))]
    NotKept {
        /// The register file.
        path: PathBuf,
        /// What was written, in the bits that membound changes.
        written: u64,
        /// What was read back, in the bits that membound changes.
        found: u64,
    },
    /// None of the examined pages is in memory.
    #[error("none of the {pages} pages that were looked at has been touched")]
    NotResident {
        /// Number of examined pages.
        pages: usize,
    },
    /// The range is not mapped.
    #[error("addresses {start:#x} to {end:#x} are not mapped")]
    NotMapped {
        /// Address of the first byte.
        start: usize,
        /// One past the last byte.
        end: usize,
    },
}

fn semicolon(remedy: Option<String>) -> String {
    remedy.map(|text| format!("; {text}")).unwrap_or_default()
}

impl Error {
    /// What the user can do about the error; `None` if there is nothing.
    #[must_use]
    pub fn remedy(&self) -> Option<String> {
        match self {
            Self::CpuOffline { switch, .. } => {
                Some(format!("as root: echo 1 > {}", switch.display()))
            }
            Self::CpuNotPermitted { .. } => Some(
                "start membound with a wider affinity (taskset) or cpuset (docker --cpuset-cpus)"
                    .to_owned(),
            ),
            Self::NodeNotPermitted { .. } => {
                Some("start membound with a wider cpuset.mems (docker --cpuset-mems)".to_owned())
            }
            Self::NotKept { .. } => {
                Some("a hypervisor ignores the write: use a bare-metal machine".to_owned())
            }
            Self::Denied { .. } => Some(
                "permit it in the container's seccomp profile (docker: --cap-add SYS_NICE)"
                    .to_owned(),
            ),
            _ => None,
        }
    }

    /// This error as the reason for a missing figure.
    #[must_use]
    pub fn not_measured(&self) -> NotMeasured {
        let remedy = self.remedy();
        let text = self.to_string();
        let reason = text
            .strip_suffix(&semicolon(remedy.clone()))
            .unwrap_or(&text)
            .to_owned();
        NotMeasured { reason, remedy }
    }

    /// The error that `call` left in `errno`; refusals become [`Error::Denied`].
    pub(crate) fn last_call(call: &'static str) -> Self {
        let source = io::Error::last_os_error();
        match source.raw_os_error() {
            Some(libc::EPERM | libc::ENOSYS | libc::EACCES) => Self::Denied { call, source },
            _ => Self::Call {
                call: call.to_owned(),
                source,
            },
        }
    }
}

impl From<Error> for NotMeasured {
    fn from(error: Error) -> Self {
        error.not_measured()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_remedy_is_in_the_text_and_apart_in_the_reason() {
        let error = Error::CpuOffline {
            cpu: CpuId(3),
            switch: PathBuf::from("/sys/devices/system/cpu/cpu3/online"),
        };
        assert_eq!(
            error.to_string(),
            "cpu 3 is offline; as root: echo 1 > /sys/devices/system/cpu/cpu3/online"
        );
        let missing = error.not_measured();
        assert_eq!(missing.reason, "cpu 3 is offline");
        assert_eq!(
            missing.remedy.as_deref(),
            Some("as root: echo 1 > /sys/devices/system/cpu/cpu3/online")
        );
    }
}
