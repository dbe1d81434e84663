//! The job log: one line for every job that ended, in GNU parallel's columns.
//!
//! A line is written with one call, and a partial line is removed again, so the file is valid whenever the
//! batch is killed. Where the disk is full, lines wait in memory and are tried again.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use super::job_list::Listed;

/// The header line with the column names.
const HEADER: &[u8] =
    b"Seq\tHost\tStarttime\tJobRuntime\tSend\tReceive\tExitval\tSignal\tCommand\n";
/// `Exitval` of a job that the batch ended.
const EXITVAL_ENDED_BY_BATCH: i32 = -1;

/// A job that ended.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Entry {
    pub(super) number: u64,
    pub(super) started_unix_s: f64,
    pub(super) wall_s: f64,
    /// Size of its stdout and stderr, in bytes.
    pub(super) output_bytes: u64,
    pub(super) exit_code: i32,
    pub(super) signal: i32,
    /// Whether the batch ended it.
    pub(super) ended: bool,
    pub(super) command: Vec<u8>,
}

impl Entry {
    /// The line of the log. Host `:` is the local machine, and `Send` is 0 because nothing is sent.
    fn line(&self) -> Vec<u8> {
        let exit_code = if self.ended {
            EXITVAL_ENDED_BY_BATCH
        } else {
            self.exit_code
        };
        let mut line = format!(
            "{}\t:\t{:.3}\t{:10.3}\t0\t{}\t{exit_code}\t{}\t",
            self.number, self.started_unix_s, self.wall_s, self.output_bytes, self.signal
        )
        .into_bytes();
        line.extend_from_slice(&self.command);
        line.push(b'\n');
        line
    }
}

/// The columns of a line that a resumed batch needs.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Logged {
    number: u64,
    exit_code: i32,
    signal: i32,
    command: Vec<u8>,
}

/// Parses a line; `None` for the header and for lines of another form.
fn logged(line: &[u8]) -> Option<Logged> {
    let mut columns = line.splitn(9, |byte| *byte == b'\t');
    let mut next = || columns.next();
    let number = |column: &[u8]| std::str::from_utf8(column).ok()?.trim().parse::<i64>().ok();
    let seq = number(next()?)?;
    for _ in 0..5 {
        next()?;
    }
    Some(Logged {
        number: u64::try_from(seq).ok()?,
        exit_code: i32::try_from(number(next()?)?).ok()?,
        signal: i32::try_from(number(next()?)?).ok()?,
        command: next()?.to_vec(),
    })
}

/// Which jobs of the log a resumed batch runs again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ResumedJobs {
    /// Jobs that the batch ended.
    Unended,
    /// Those, and jobs that failed.
    Failed,
}

/// Numbers of the commands that a log with this `text` lists as done. A line of the log belongs to the
/// command of the same number and text, else to one of the same text, because the list may have grown or been
/// sorted since.
pub(super) fn done(text: &[u8], listed: &[Listed], again: ResumedJobs) -> Vec<u64> {
    let mut last: HashMap<(u64, &[u8]), bool> = HashMap::new();
    let lines: Vec<Logged> = text
        .split(|byte| *byte == b'\n')
        .filter_map(logged)
        .collect();
    for line in &lines {
        let failed = line.exit_code != 0 || line.signal != 0;
        let is_done = line.exit_code >= 0 && !(failed && again == ResumedJobs::Failed);
        last.insert((line.number, &line.command), is_done);
    }
    let mut rest = Vec::new();
    let mut done = Vec::new();
    for command in listed {
        match last.remove(&(command.number, command.line.as_bytes())) {
            Some(true) => done.push(command.number),
            Some(false) => {}
            None => rest.push(command),
        }
    }
    let mut left: HashMap<&[u8], usize> = HashMap::new();
    for ((_, command), _) in last.into_iter().filter(|(_, is_done)| *is_done) {
        *left.entry(command).or_default() += 1;
    }
    for command in rest {
        if let Some(count) = left.get_mut(command.line.as_bytes())
            && *count > 0
        {
            *count -= 1;
            done.push(command.number);
        }
    }
    done
}

/// A log that is being written.
#[derive(Debug)]
pub(super) struct JobLog {
    file: File,
    /// Bytes of earlier lines that are kept; new lines follow.
    held_bytes: u64,
    /// Lines that could not be written yet.
    waiting: Vec<u8>,
}

impl JobLog {
    /// Opens the log at `path`, to begin anew or (`resume`) to continue it, without changing it yet. Returns
    /// the lines that are kept.
    ///
    /// # Errors
    /// If the file cannot be written, or is no job log: its content would be lost.
    pub(super) fn open(path: &Path, resume: bool) -> io::Result<(Self, Vec<u8>)> {
        let file = File::options()
            .create(true)
            .read(true)
            .append(true)
            .truncate(false)
            .open(path)?;
        let mut content = Vec::new();
        if file.metadata()?.is_file() {
            io::Read::read_to_end(&mut &file, &mut content)?;
            if !HEADER.starts_with(&content) && !content.starts_with(HEADER) {
                let why = "it holds something other than a job log";
                return Err(io::Error::new(io::ErrorKind::InvalidData, why));
            }
            // A batch on a full disk may have left a partial line.
            let whole = content.iter().rposition(|byte| *byte == b'\n');
            let whole = whole.filter(|_| resume).map_or(0, |at| at + 1);
            content.truncate(whole);
        }
        let log = Self {
            file,
            held_bytes: content.len() as u64,
            waiting: Vec::new(),
        };
        Ok((log, content))
    }

    /// Removes what is not continued, and writes the header into an empty log.
    ///
    /// # Errors
    /// If that cannot be written.
    pub(super) fn begin(&mut self) -> io::Result<()> {
        if self.file.metadata()?.is_file() {
            self.file.set_len(self.held_bytes)?;
        }
        if self.held_bytes == 0 {
            self.waiting.extend_from_slice(HEADER);
        }
        self.flush()
    }

    /// Whether all jobs that were added are in the file.
    pub(super) const fn is_complete(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Adds a job, and writes all lines that wait.
    ///
    /// # Errors
    /// If they cannot be written now; they are kept for the next attempt.
    pub(super) fn add(&mut self, entry: &Entry) -> io::Result<()> {
        self.waiting.extend_from_slice(&entry.line());
        self.flush()
    }

    /// Writes the lines that wait.
    ///
    /// # Errors
    /// If they cannot be written now.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        if self.waiting.is_empty() {
            return Ok(());
        }
        let before = self
            .file
            .metadata()
            .map(|found| (found.is_file(), found.len()));
        let written = self.file.write_all(&self.waiting);
        match written {
            Ok(()) => self.waiting.clear(),
            // Remove a partially written line.
            Err(_) if matches!(before, Ok((true, _))) => {
                let _ = self.file.set_len(before.map_or(0, |(_, len)| len));
            }
            Err(_) => {}
        }
        written
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use super::*;
    use crate::harvest_batch::job_list;

    fn entry(number: u64, exit_code: i32, command: &str) -> Entry {
        Entry {
            number,
            started_unix_s: 1_700_000_000.25,
            wall_s: 1.5,
            output_bytes: 12,
            exit_code,
            signal: 0,
            ended: false,
            command: command.as_bytes().to_vec(),
        }
    }

    fn listed(lines: &str) -> Vec<Listed> {
        job_list::parse(lines.as_bytes(), &|_: &OsStr| None).unwrap()
    }

    #[test]
    fn a_line_has_gnu_parallels_columns() {
        let line = entry(7, 3, "a\tb").line();
        let expected = "7\t:\t1700000000.250\t     1.500\t0\t12\t3\t0\ta\tb\n";
        assert_eq!(String::from_utf8(line.clone()).unwrap(), expected);
        let read = logged(line.trim_ascii_end()).unwrap();
        assert_eq!((read.number, read.exit_code, read.signal), (7, 3, 0));
        assert_eq!(read.command, b"a\tb");
        let mut ended = entry(1, 0, "a");
        (ended.ended, ended.signal) = (true, 15);
        let line = String::from_utf8(ended.line()).unwrap();
        assert!(line.ends_with("\t-1\t15\ta\n"), "{line}");
        assert_eq!(logged(HEADER), None);
        assert_eq!(logged(b"1\t:\t2"), None);
    }

    #[test]
    fn a_log_identifies_finished_jobs_by_number_and_command() {
        let log: Vec<u8> = [
            HEADER.to_vec(),
            entry(1, 0, "a").line(),
            entry(2, 1, "b").line(),
            entry(3, 0, "c").line(),
            entry(4, -1, "d").line(),
        ]
        .concat();
        let check = |lines: &str, again, expected: &[u64]| {
            assert_eq!(done(&log, &listed(lines), again), expected, "{lines}");
        };
        check("a\nb\nc\nd\ne", ResumedJobs::Unended, &[1, 2, 3]);
        check("a\nb\nc\nd\ne", ResumedJobs::Failed, &[1, 3]);
        // Sorted differently, with a command twice that was run once.
        check("c\nd\nc\na", ResumedJobs::Unended, &[3, 4]);
        check("z\na\na", ResumedJobs::Unended, &[2]);
        // A job that failed and then succeeded counts as done.
        let twice = [log.clone(), entry(2, 0, "b").line()].concat();
        assert_eq!(done(&twice, &listed("a\nb"), ResumedJobs::Failed), [1, 2]);
    }

    #[test]
    fn a_log_is_continued_after_its_last_complete_line() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("log");
        let (mut log, held) = JobLog::open(&path, true).unwrap();
        assert!(held.is_empty());
        log.begin().unwrap();
        log.add(&entry(1, 0, "a")).unwrap();
        let whole = std::fs::read(&path).unwrap();
        std::fs::write(&path, [&whole[..], b"2\t:\t17"].concat()).unwrap();
        let (mut log, held) = JobLog::open(&path, true).unwrap();
        assert_eq!(held, whole);
        log.begin().unwrap();
        log.add(&entry(2, 0, "b")).unwrap();
        let expected = [whole, entry(2, 0, "b").line()].concat();
        assert_eq!(std::fs::read(&path).unwrap(), expected);
        let (mut log, held) = JobLog::open(&path, false).unwrap();
        assert!(held.is_empty());
        log.begin().unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), HEADER);
    }

    #[test]
    fn a_file_that_is_no_log_is_not_overwritten() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("list");
        std::fs::write(&path, "gzip a\n").unwrap();
        assert!(JobLog::open(&path, false).is_err());
        assert_eq!(std::fs::read(&path).unwrap(), b"gzip a\n");
    }

    #[test]
    fn lines_wait_while_the_disk_is_full() {
        let (mut log, _) = JobLog::open(Path::new("/dev/full"), false).unwrap();
        assert!(log.begin().is_err());
        assert!(log.add(&entry(2, 0, "b")).is_err());
        let lines = log.waiting.iter().filter(|byte| **byte == b'\n');
        assert_eq!(lines.count(), 2);
    }
}
