//! Which CPU a thread runs on, and may run on.

use std::marker::PhantomData;
use std::sync::OnceLock;

use membound_types::CpuId;

use crate::{Error, Root, list};

/// Maximum number of words to which a mask is enlarged: more bits than any kernel has CPUs.
const MAX_WORDS: usize = 1 << 14;

/// Thread number that the kernel takes as the calling thread.
const CALLING: u32 = 0;

/// Bits in one word of the kernel's mask.
const WORD_BITS: usize = libc::c_ulong::BITS as usize;

/// The calling thread, bound to one CPU until this is dropped.
///
/// The former mask is restored on drop, in the same thread: the value is not `Send`.
#[derive(Debug)]
pub struct Pinned {
    former: Mask,
    cpu: CpuId,
    not_send: PhantomData<*const ()>,
}

impl Pinned {
    /// Binds the calling thread to `cpu`; when this returns it runs there.
    ///
    /// # Errors
    /// [`Error::NoSuchCpu`], [`Error::CpuOffline`], [`Error::CpuNotPermitted`], or
    /// [`Error::Denied`] where a filter forbids the call.
    pub fn to(cpu: CpuId) -> Result<Self, Error> {
        check(&Root::system(), cpu)?;
        let former = Mask::of_this_thread()?;
        Mask::of(&[cpu]).apply(CALLING)?;
        Ok(Self {
            former,
            cpu,
            not_send: PhantomData,
        })
    }

    /// The CPU that the thread is bound to.
    #[must_use]
    pub fn cpu(&self) -> CpuId {
        self.cpu
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // The mask was in force before, so the only way for this to fail is a cpuset that
        // shrank meanwhile; the kernel has then chosen another mask already.
        let _ = self.former.apply(CALLING);
    }
}

/// Binds another thread to these CPUs, until it is bound to others.
///
/// # Errors
/// [`Error::Denied`] or [`Error::Call`] where the kernel refuses: the thread has ended or belongs
/// to another user, or none of the CPUs exists.
pub fn bind(thread: u32, cpus: &[CpuId]) -> Result<(), Error> {
    Mask::of(cpus).apply(thread)
}

/// The CPU that the calling thread runs on at this moment. Costs a few nanoseconds.
#[must_use]
pub fn current_cpu() -> CpuId {
    // SAFETY: sched_getcpu takes no argument and touches no memory of ours.
    let cpu = unsafe { libc::sched_getcpu() };
    CpuId(u32::try_from(cpu).unwrap_or(0))
}

/// The CPUs that this process may run on, ascending, as they were at the first call: pinning a
/// thread afterwards does not narrow them.
///
/// # Errors
/// [`Error::Denied`] or [`Error::Call`] where the kernel does not report them.
pub fn allowed() -> Result<Vec<CpuId>, Error> {
    static FIRST: OnceLock<Vec<CpuId>> = OnceLock::new();
    if let Some(cpus) = FIRST.get() {
        return Ok(cpus.clone());
    }
    let cpus = Mask::of_this_thread()?.cpus();
    Ok(FIRST.get_or_init(|| cpus).clone())
}

/// [`allowed`] for the machine itself; for a test tree, the list in its `/proc/self/status`.
///
/// # Errors
/// As [`allowed`]; [`Error::Read`] or [`Error::Malformed`] for a tree.
pub fn allowed_under(root: &Root) -> Result<Vec<CpuId>, Error> {
    if root.is_system() {
        return allowed();
    }
    let status = root.read("proc/self/status")?;
    let text = status
        .lines()
        .find_map(|line| line.strip_prefix("Cpus_allowed_list:"))
        .unwrap_or("");
    match list::cpus(text) {
        Some(cpus) if !cpus.is_empty() => Ok(cpus),
        _ => Err(Error::Malformed {
            path: root.path("proc/self/status"),
            text: text.trim().to_owned(),
            expected: "list of allowed cpus",
        }),
    }
}

/// The logical CPUs that are online, ascending; CPU 0 where sysfs does not list them.
#[must_use]
pub fn online(root: &Root) -> Vec<CpuId> {
    read_list(root, "online")
        .or_else(|| read_list(root, "present"))
        .unwrap_or_else(|| vec![CpuId(0)])
}

/// Whether a thread of this process can run on `cpu`.
///
/// # Errors
/// [`Error::NoSuchCpu`] with the CPUs that exist, [`Error::CpuOffline`] with the switch,
/// [`Error::CpuNotPermitted`] with the CPUs that are permitted.
pub fn check(root: &Root, cpu: CpuId) -> Result<(), Error> {
    if let Some(present) = read_list(root, "present")
        && present.binary_search(&cpu).is_err()
    {
        return Err(Error::NoSuchCpu {
            cpu,
            present: cpu_range(&present),
        });
    }
    if let Some(online) = read_list(root, "online")
        && online.binary_search(&cpu).is_err()
    {
        return Err(Error::CpuOffline {
            cpu,
            switch: root.path(format!("sys/devices/system/cpu/cpu{cpu}/online")),
        });
    }
    let allowed = allowed_under(root)?;
    if allowed.binary_search(&cpu).is_err() {
        return Err(Error::CpuNotPermitted {
            cpu,
            allowed: cpu_range(&allowed),
        });
    }
    Ok(())
}

fn read_list(root: &Root, name: &str) -> Option<Vec<CpuId>> {
    let text = root.attribute(format!("sys/devices/system/cpu/{name}"))?;
    list::cpus(&text).filter(|cpus| !cpus.is_empty())
}

fn cpu_range(cpus: &[CpuId]) -> String {
    let noun = if cpus.len() == 1 { "cpu" } else { "cpus" };
    format!("{noun} {}", list::show_cpus(cpus))
}

/// The kernel's mask, as long as this kernel needs it, because `cpu_set_t` ends at 1024 CPUs.
#[derive(Clone, Debug)]
struct Mask(Vec<libc::c_ulong>);

impl Mask {
    fn of_this_thread() -> Result<Self, Error> {
        let mut words: Vec<libc::c_ulong> = vec![0; 1024 / WORD_BITS];
        loop {
            // SAFETY: the kernel writes at most the stated number of bytes, which is the
            // length of the vector; thread 0 is the calling one.
            let written = unsafe {
                libc::syscall(
                    libc::SYS_sched_getaffinity,
                    0,
                    size_of_val(words.as_slice()),
                    words.as_mut_ptr(),
                )
            };
            if written >= 0 {
                return Ok(Self(words));
            }
            let error = Error::last_call("sched_getaffinity");
            let too_short = matches!(
                &error,
                Error::Call { source, .. } if source.raw_os_error() == Some(libc::EINVAL)
            );
            if !too_short || words.len() >= MAX_WORDS {
                return Err(error);
            }
            words = vec![0; words.len() * 2];
        }
    }

    fn of(cpus: &[CpuId]) -> Self {
        let highest = cpus.iter().map(|cpu| cpu.0 as usize).max().unwrap_or(0);
        let mut words = vec![0; highest / WORD_BITS + 1];
        for cpu in cpus {
            let bit = cpu.0 as usize;
            words[bit / WORD_BITS] |= 1 << (bit % WORD_BITS);
        }
        Self(words)
    }

    fn apply(&self, thread: u32) -> Result<(), Error> {
        // SAFETY: the kernel reads the stated number of bytes, which is the length of the
        // vector.
        let result = unsafe {
            libc::syscall(
                libc::SYS_sched_setaffinity,
                thread,
                size_of_val(self.0.as_slice()),
                self.0.as_ptr(),
            )
        };
        if result < 0 {
            return Err(Error::last_call("sched_setaffinity"));
        }
        Ok(())
    }

    fn cpus(&self) -> Vec<CpuId> {
        let mut cpus = Vec::new();
        for (index, &word) in self.0.iter().enumerate() {
            for bit in 0..WORD_BITS {
                if word >> bit & 1 == 1 {
                    cpus.push(CpuId((index * WORD_BITS + bit) as u32));
                }
            }
        }
        cpus
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Tree;

    #[test]
    fn pins_and_puts_back() {
        std::thread::spawn(|| {
            let before = Mask::of_this_thread().unwrap().cpus();
            for cpu in allowed().unwrap() {
                let pinned = Pinned::to(cpu).unwrap();
                assert_eq!(pinned.cpu(), cpu);
                assert_eq!(current_cpu(), cpu);
                assert_eq!(Mask::of_this_thread().unwrap().cpus(), [cpu]);
                drop(pinned);
                assert_eq!(Mask::of_this_thread().unwrap().cpus(), before);
            }
        })
        .join()
        .unwrap();
    }

    #[test]
    fn another_thread_is_bound_and_put_back() {
        let all = allowed().unwrap();
        let (tell, told) = std::sync::mpsc::channel();
        let (go_on, goes_on) = std::sync::mpsc::channel::<()>();
        let other = std::thread::spawn(move || {
            // SAFETY: it has no arguments.
            let thread = unsafe { libc::gettid() };
            let mask = || Mask::of_this_thread().unwrap().cpus();
            tell.send(thread.cast_unsigned()).unwrap();
            goes_on.recv().unwrap();
            let bound = mask();
            tell.send(0).unwrap();
            goes_on.recv().unwrap();
            (bound, mask())
        });
        let thread = told.recv().unwrap();
        let only = &all[all.len() - 1..];
        bind(thread, only).unwrap();
        go_on.send(()).unwrap();
        told.recv().unwrap();
        bind(thread, &all).unwrap();
        go_on.send(()).unwrap();
        assert_eq!(other.join().unwrap(), (only.to_vec(), all));
    }

    #[test]
    fn being_pinned_does_not_narrow_the_allowed_cpus() {
        std::thread::spawn(|| {
            let before = allowed().unwrap();
            let _pinned = Pinned::to(before[0]).unwrap();
            assert_eq!(allowed().unwrap(), before);
        })
        .join()
        .unwrap();
    }

    #[test]
    fn a_cpu_that_does_not_exist_is_refused() {
        let error = Pinned::to(CpuId(1_000_000)).unwrap_err();
        assert!(matches!(error, Error::NoSuchCpu { .. }), "{error}");
    }

    #[test]
    fn the_three_refusals_are_distinguished() {
        let tree = Tree::new()
            .file("sys/devices/system/cpu/present", "0-7\n")
            .file("sys/devices/system/cpu/online", "0-5,7\n")
            .file("proc/self/status", "Name:\tx\nCpus_allowed_list:\t0-3\n");
        let root = tree.root();
        check(&root, CpuId(3)).unwrap();
        assert_eq!(
            check(&root, CpuId(8)).unwrap_err().to_string(),
            "cpu 8 does not exist: this machine has cpus 0-7"
        );
        let offline = check(&root, CpuId(6)).unwrap_err();
        assert!(matches!(offline, Error::CpuOffline { .. }));
        assert!(offline.to_string().contains("cpu6/online"), "{offline}");
        assert!(
            check(&root, CpuId(5))
                .unwrap_err()
                .to_string()
                .starts_with("cpu 5 is not permitted: this process may run on cpus 0-3"),
        );
    }

    #[test]
    fn a_tree_without_a_list_of_cpus_is_malformed() {
        let tree = Tree::new().file("proc/self/status", "Name:\tx\n");
        assert!(matches!(
            check(&tree.root(), CpuId(0)),
            Err(Error::Malformed { .. })
        ));
    }
}
