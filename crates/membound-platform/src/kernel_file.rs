//! Reads files that the kernel makes up when they are read, as those of `/proc`.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

/// Room for all of most such files: they give no size, and are otherwise read in pieces from 32 bytes on.
const USUAL_BYTES: usize = 8192;

/// The whole text of such a file.
///
/// # Errors
/// If it cannot be read.
pub fn read(path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
    let mut text = Vec::with_capacity(USUAL_BYTES);
    File::open(path)?.read_to_end(&mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_any_length_are_read_whole() {
        let maps = read("/proc/self/maps").unwrap();
        assert!(maps.ends_with(b"\n"), "the last line is whole");
        let long = tempfile::NamedTempFile::new().unwrap();
        let text = vec![b'x'; 3 * USUAL_BYTES + 1];
        std::fs::write(long.path(), &text).unwrap();
        assert_eq!(read(long.path()).unwrap(), text);
        assert!(read("/no/such/file").is_err());
    }
}
