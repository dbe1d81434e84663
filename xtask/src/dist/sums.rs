//! Check sums of the files that were made, as `sha256sum --check` reads them.

use std::path::Path;

use anyhow::Result;
use sha2::{Digest as _, Sha256};

use super::stage::{read, write};

/// Writes `directory`/SHA256SUMS.
pub(super) fn write_sums(directory: &Path, files: &[&Path]) -> Result<()> {
    let mut text = String::new();
    for path in files {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        text += &format!("{}  {name}\n", hexadecimal(&read(path)?));
    }
    write(&directory.join("SHA256SUMS"), text)
}

fn hexadecimal(data: &[u8]) -> String {
    let mut text = String::new();
    for byte in Sha256::digest(data) {
        text += &format!("{byte:02x}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sum_of_nothing_is_the_one_that_the_standard_gives() {
        assert_eq!(
            hexadecimal(b"abc"),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
    }
}
