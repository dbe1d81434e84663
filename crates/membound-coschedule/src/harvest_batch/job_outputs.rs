//! What jobs print: each job writes to files of its own, so that outputs do not mix. They are printed when
//! the job has ended, or kept in a directory of the user's choice.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::statvfs;
use rustix::process::geteuid;
use tempfile::TempDir;

use super::batch_display::{BatchDisplay, JobStream};

/// A disk with less free space counts as full: output of jobs may be lost.
const MIN_ROOM_BYTES: u64 = 4096;

/// Files and print order of all outputs.
#[derive(Debug)]
pub(super) struct Outputs {
    directory: PathBuf,
    /// Directory of files that are printed and removed; `None` if files are kept.
    scratch: Option<TempDir>,
    order: PrintOrder,
    /// Number of outputs that could not be printed.
    lost: usize,
    /// Whether the reader of stdout is gone.
    is_unread: bool,
}

/// The two files of a job.
#[derive(Debug)]
pub(super) struct Pair {
    pub(super) stdout: File,
    pub(super) stderr: File,
}

impl Outputs {
    /// Prepares files in `directory`, which is created if needed, or in a directory below `temporary` to be printed
    /// in `order`.
    ///
    /// # Errors
    /// If no files can be created there.
    pub(super) fn prepare(
        directory: Option<&Path>,
        temporary: &Path,
        order: PrintOrder,
    ) -> io::Result<Self> {
        let scratch = match directory {
            Some(directory) => {
                std::fs::create_dir_all(directory)?;
                // Fails now rather than at the first job.
                tempfile::tempfile_in(directory)?;
                None
            }
            None => Some(TempDir::with_prefix_in("membound-batch-", temporary)?),
        };
        let path = scratch.as_ref().map(|scratch| scratch.path().to_owned());
        Ok(Self {
            directory: path
                .or_else(|| directory.map(Path::to_owned))
                .unwrap_or_default(),
            scratch,
            order,
            lost: 0,
            is_unread: false,
        })
    }

    /// The directory that holds the files.
    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Path of a job's stdout (`out`) or stderr (`err`).
    pub(super) fn path(&self, number: u64, ending: &str) -> PathBuf {
        self.directory.join(format!("{number}.{ending}"))
    }

    /// Creates the files of a job.
    ///
    /// # Errors
    /// If they cannot be created.
    pub(super) fn open(&self, number: u64) -> io::Result<Pair> {
        Ok(Pair {
            stdout: File::create(self.path(number, "out"))?,
            stderr: File::create(self.path(number, "err"))?,
        })
    }

    /// Whether the disk is full.
    pub(super) fn is_full(&self) -> bool {
        statvfs(&self.directory).is_ok_and(|disk| {
            let blocks = if geteuid().is_root() {
                disk.f_bfree
            } else {
                disk.f_bavail
            };
            disk.f_blocks > 0 && blocks.saturating_mul(disk.f_frsize) < MIN_ROOM_BYTES
        })
    }

    /// Size of a job's stdout and stderr, in bytes.
    pub(super) fn len(&self, number: u64) -> u64 {
        let len = |ending| std::fs::metadata(self.path(number, ending)).map_or(0, |it| it.len());
        len("out") + len("err")
    }

    /// Accounts for a job that has ended, and prints the outputs whose turn it is.
    ///
    /// # Errors
    /// If stdout or stderr cannot be written; the output then stays in its files. A reader that is gone is no
    /// error; see [`Self::is_unread`].
    pub(super) fn ended(&mut self, number: u64, to: &dyn BatchDisplay) -> io::Result<()> {
        let numbers = self.order.ended(number);
        self.print(&numbers, to)
    }

    /// Prints the outputs that wait for jobs which never ended.
    pub(super) fn flush(&mut self, to: &dyn BatchDisplay) -> io::Result<()> {
        let numbers = self.order.rest();
        self.print(&numbers, to)
    }

    fn print(&mut self, numbers: &[u64], to: &dyn BatchDisplay) -> io::Result<()> {
        if self.scratch.is_none() {
            return Ok(());
        }
        let mut failed = Ok(());
        for number in numbers {
            match self.print_one(*number, to) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                    self.is_unread = true;
                    self.lost += 1;
                }
                Err(error) => {
                    failed = Err(error);
                    self.lost += 1;
                }
            }
        }
        failed
    }

    fn print_one(&self, number: u64, to: &dyn BatchDisplay) -> io::Result<()> {
        let (out, err) = (self.path(number, "out"), self.path(number, "err"));
        copy(&out, JobStream::Stdout, to)?;
        copy(&err, JobStream::Stderr, to)?;
        // Remaining files are removed with the directory.
        let _ = std::fs::remove_file(out);
        let _ = std::fs::remove_file(err);
        Ok(())
    }

    /// Whether the reader of stdout is gone.
    pub(super) const fn is_unread(&self) -> bool {
        self.is_unread
    }

    /// Removes the printed files. If some outputs could not be printed, keeps all files and returns a note
    /// with their place.
    pub(super) fn finish(mut self) -> Option<String> {
        let scratch = self.scratch.take()?;
        if self.lost == 0 || self.is_unread {
            return None;
        }
        let kept = scratch.keep();
        Some(format!(
            "what {} printed is kept in {}",
            match self.lost {
                1 => "1 job".to_owned(),
                jobs => format!("{jobs} jobs"),
            },
            kept.display()
        ))
    }
}

fn copy(path: &Path, stream: JobStream, to: &dyn BatchDisplay) -> io::Result<()> {
    let mut file = match File::open(path) {
        Ok(file) => file,
        // A job may remove its own output, and one that could not be started has none.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    if file.metadata()?.len() > 0 {
        to.print(stream, &mut file)?;
    }
    Ok(())
}

/// Which outputs are printed when a job has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PrintOrder {
    /// The output of that job.
    Ends,
    /// The outputs of the list up to the first job that has not ended.
    List {
        /// Jobs that have not ended.
        open: BTreeSet<u64>,
        /// Jobs that have ended but come after an open one.
        waiting: BTreeSet<u64>,
    },
}

impl PrintOrder {
    /// The order of the list that holds these `numbers`.
    pub(super) fn list(numbers: impl Iterator<Item = u64>) -> Self {
        Self::List {
            open: numbers.collect(),
            waiting: BTreeSet::new(),
        }
    }

    /// The jobs whose outputs are printed when job `number` has ended.
    fn ended(&mut self, number: u64) -> Vec<u64> {
        let Self::List { open, waiting } = self else {
            return vec![number];
        };
        open.remove(&number);
        waiting.insert(number);
        let Some(first) = open.first() else {
            return std::mem::take(waiting).into_iter().collect();
        };
        let later = waiting.split_off(first);
        std::mem::replace(waiting, later).into_iter().collect()
    }

    /// The jobs that have ended and are not printed yet.
    fn rest(&mut self) -> Vec<u64> {
        match self {
            Self::Ends => Vec::new(),
            Self::List { waiting, .. } => std::mem::take(waiting).into_iter().collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    /// A display that nothing is printed to.
    struct NoDisplay;

    impl BatchDisplay for NoDisplay {
        fn is_shown(&self) -> bool {
            false
        }

        fn at(&self, _: usize, _: usize, _: &str) {}

        fn aside(&self, act: &mut dyn FnMut()) {
            act();
        }

        fn finish(&self) {}

        fn print(&self, stream: JobStream, _: &mut File) -> io::Result<()> {
            panic!("{stream:?} is kept");
        }
    }

    #[test]
    fn outputs_are_printed_in_the_order_of_ends_or_of_the_list() {
        let mut order = PrintOrder::Ends;
        assert_eq!(order.ended(7), [7]);
        assert_eq!(order.rest(), [0; 0]);
        let mut order = PrintOrder::list([1, 2, 4, 5].into_iter());
        assert_eq!(order.ended(2), [0; 0]);
        assert_eq!(order.ended(1), [1, 2]);
        assert_eq!(order.ended(5), [0; 0]);
        assert_eq!(order.clone().rest(), [5]);
        assert_eq!(order.ended(4), [4, 5]);
        assert_eq!(order.rest(), [0; 0]);
    }

    #[test]
    fn outputs_stay_where_the_user_wants_them() {
        let place = tempfile::tempdir().unwrap();
        let directory = place.path().join("a/b");
        let mut outputs =
            Outputs::prepare(Some(&directory), place.path(), PrintOrder::Ends).unwrap();
        let mut pair = outputs.open(3).unwrap();
        pair.stdout.write_all(b"out").unwrap();
        pair.stderr.write_all(b"er").unwrap();
        assert_eq!(outputs.len(3), 5);
        outputs.ended(3, &NoDisplay).unwrap();
        assert!(!outputs.is_full() && !outputs.is_unread());
        assert_eq!(outputs.finish(), None);
        assert_eq!(std::fs::read(directory.join("3.out")).unwrap(), b"out");
        assert_eq!(std::fs::read(directory.join("3.err")).unwrap(), b"er");
        let none = Path::new("/proc/none");
        assert!(Outputs::prepare(Some(none), none, PrintOrder::Ends).is_err());
    }
}
