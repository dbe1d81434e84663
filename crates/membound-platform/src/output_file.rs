//! Files that take the place of an earlier one in a single step, when they are complete.
//!
//! An earlier file survives a full disk or a kill. Pipes, terminals and devices are opened once and written to.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

use crate::Error;

/// A path that was found to be writable.
#[derive(Debug)]
pub enum OutputFile {
    /// A regular file, or one that does not exist yet.
    Regular(PathBuf),
    /// A pipe, terminal or device, opened once.
    Stream(PathBuf, File),
}

impl OutputFile {
    /// Checks that `path` can be written, without changing what is there.
    ///
    /// # Errors
    /// [`Error::Output`] if it is a directory, cannot be opened for writing, or lies in a directory that takes no
    /// files.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let failed = |reason| cannot_write(path, reason);
        match fs::metadata(path) {
            Ok(found) if found.is_dir() => {
                return Err(failed(io::Error::other("it is a directory")));
            }
            Ok(found) if !found.is_file() => {
                let file = File::options().write(true).open(path).map_err(failed)?;
                return Ok(Self::Stream(path.to_owned(), file));
            }
            Ok(_) => {
                File::options().append(true).open(path).map_err(failed)?;
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(failed(error)),
        }
        let parent = directory(path);
        if !parent.is_dir() {
            let reason = format!("there is no directory {}", parent.display());
            return Err(failed(io::Error::other(reason)));
        }
        temporary_file(path).map_err(|error| failed(takes_no_files(error, parent)))?;
        Ok(Self::Regular(path.to_owned()))
    }

    /// Whether this is a regular file, or will become one.
    #[must_use]
    pub const fn is_regular(&self) -> bool {
        matches!(self, Self::Regular(_))
    }

    /// Writes a whole document. A pipe whose reader is gone is no error.
    ///
    /// # Errors
    /// [`Error::Output`] if the document cannot be written whole.
    pub fn write(&mut self, text: &str) -> Result<(), Error> {
        match self {
            Self::Stream(path, file) => {
                let written = file.write_all(text.as_bytes()).and_then(|()| file.flush());
                match written {
                    Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
                    other => other.map_err(|error| cannot_write(path, error)),
                }
            }
            Self::Regular(path) => replace(path, text),
        }
    }
}

/// Replaces `path` in one step, through a temporary file in its directory that is synced to disk before it replaces
/// the old one. Permissions of an existing file are kept.
///
/// # Errors
/// [`Error::Output`].
pub fn replace(path: &Path, text: &str) -> Result<(), Error> {
    replace_with(path, |temporary| {
        fs::write(temporary, text).map_err(|error| cannot_write(path, error))
    })
}

/// As [`replace`], with content from `write`, which is called with the path of an empty file.
///
/// # Errors
/// Those of `write`, and [`Error::Output`].
pub fn replace_with<E: From<Error>>(
    path: &Path,
    write: impl FnOnce(&Path) -> Result<(), E>,
) -> Result<(), E> {
    let given = path;
    let failed = |error| cannot_write(given, error);
    // A symbolic link is kept: the file that it points to is replaced.
    let path = &fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let file = temporary_file(path).map_err(failed)?;
    write(file.path())?;
    file.as_file().sync_all().map_err(failed)?;
    let permissions = fs::metadata(path).map(|found| found.permissions());
    let permissions = permissions.unwrap_or_else(|_| new_file_permissions());
    file.as_file()
        .set_permissions(permissions)
        .map_err(failed)?;
    file.persist(path).map_err(|error| failed(error.error))?;
    Ok(())
}

fn cannot_write(path: &Path, reason: io::Error) -> Error {
    Error::Output {
        path: path.to_owned(),
        reason,
    }
}

/// A temporary file in the directory of `path`, removed when it is dropped.
fn temporary_file(path: &Path) -> io::Result<NamedTempFile> {
    // The whole error names the temporary file, which means nothing to the user.
    NamedTempFile::new_in(directory(path)).map_err(|error| of_the_system(&error))
}

/// The system's own error behind one that names a temporary file.
fn of_the_system(error: &io::Error) -> io::Error {
    let mut inner: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(cause) = inner {
        let code = cause.downcast_ref::<io::Error>();
        if let Some(code) = code.and_then(io::Error::raw_os_error) {
            return io::Error::from_raw_os_error(code);
        }
        inner = cause.source();
    }
    io::Error::from(error.kind())
}

/// Rewords `error` where it claims that an existing directory does not exist, as file systems of the kernel
/// such as `/proc` do.
fn takes_no_files(error: io::Error, directory: &Path) -> io::Error {
    if error.kind() == io::ErrorKind::NotFound && directory.is_dir() {
        let why = format!("no file can be made in {}", directory.display());
        return io::Error::new(error.kind(), why);
    }
    error
}

/// Permissions of a new file under the usual umask; a temporary file would otherwise stay private.
fn new_file_permissions() -> fs::Permissions {
    fs::Permissions::from_mode(0o644)
}

fn directory(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replacing_a_file_keeps_its_permissions() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("profile.json");
        OutputFile::open(&path).unwrap().write("first").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        OutputFile::open(&path).unwrap().write("second").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "second");
        assert_eq!(
            fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o600
        );
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 1);
    }

    #[test]
    fn opening_an_output_file_changes_nothing() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("old.json");
        fs::write(&path, "old").unwrap();
        OutputFile::open(&path).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "old");
        OutputFile::open(&place.path().join("new.json")).unwrap();
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_directory_that_takes_no_files_is_named_as_the_cause() {
        let error = OutputFile::open(Path::new("/proc/x.json"))
            .unwrap_err()
            .to_string();
        assert_eq!(
            error,
            "cannot write /proc/x.json: no file can be made in /proc"
        );
    }

    #[test]
    fn the_error_names_the_path_that_cannot_be_written() {
        let place = tempfile::tempdir().unwrap();
        for path in [place.path().to_owned(), place.path().join("no/such/file")] {
            let error = OutputFile::open(&path).unwrap_err().to_string();
            assert!(error.contains(&path.display().to_string()), "{error}");
        }
    }
}
