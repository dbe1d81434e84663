//! The Python wheel: the binary as a script of the environment, and a package that runs it.
//!
//! By the binary distribution format of packaging.python.org. The binary is static, so the
//! oldest platforms that installers know are named.

use std::path::{Path, PathBuf};

use anyhow::Result;
use sha2::{Digest as _, Sha256};

use super::VERSION;
use super::stage::{NOTICES, read, write};
use super::zip::{Archive, Mode};

const PLATFORM: &str = "manylinux_2_17_x86_64.musllinux_1_1_x86_64";
/// `python -m membound`.
const MAIN: &str = include_str!("main.py");

/// Makes the wheel of what `tree` has.
pub(super) fn make_wheel(tree: &Path, into: &Path) -> Result<PathBuf> {
    let begin = format!("membound-{VERSION}");
    let info = format!("{begin}.dist-info");
    let mut wheel = Wheel::default();
    let binary = read(&tree.join("membound"))?;
    let script = format!("{begin}.data/scripts/membound");
    wheel.add(&script, &binary, Mode::Executable)?;
    let about = b"\"\"\"membound, a command: see `membound --help`.\"\"\"\n";
    wheel.add("membound/__init__.py", about, Mode::Plain)?;
    wheel.add("membound/__main__.py", MAIN.as_bytes(), Mode::Plain)?;
    let metadata = metadata(&String::from_utf8(read(&tree.join("README.md"))?)?);
    wheel.add(
        &format!("{info}/METADATA"),
        metadata.as_bytes(),
        Mode::Plain,
    )?;
    wheel.add(&format!("{info}/WHEEL"), tags().as_bytes(), Mode::Plain)?;
    for name in ["LICENSE-APACHE", "LICENSE-MIT", NOTICES] {
        let text = read(&tree.join(name))?;
        wheel.add(&format!("{info}/licenses/{name}"), &text, Mode::Plain)?;
    }
    let path = into.join(format!("{begin}-py3-none-{PLATFORM}.whl"));
    write(&path, wheel.finish(&format!("{info}/RECORD"))?)?;
    Ok(path)
}

fn metadata(readme: &str) -> String {
    format!(
        "Metadata-Version: 2.4\n\
         Name: membound\n\
         Version: {VERSION}\n\
         Summary: Measures a machine's memory hierarchy and shows where programs wait for it\n\
         License-Expression: MIT OR Apache-2.0\n\
         License-File: LICENSE-APACHE\n\
         License-File: LICENSE-MIT\n\
         License-File: {NOTICES}\n\
         Requires-Python: >=3.6\n\
         Description-Content-Type: text/markdown\n\
         \n{readme}"
    )
}

/// The file WHEEL, with one tag a platform.
fn tags() -> String {
    let mut text = format!(
        "Wheel-Version: 1.0\nGenerator: membound-xtask {VERSION}\nRoot-Is-Purelib: false\n"
    );
    for platform in PLATFORM.split('.') {
        text += &format!("Tag: py3-none-{platform}\n");
    }
    text
}

/// An archive, and its RECORD so far.
#[derive(Default)]
struct Wheel {
    archive: Archive,
    record: String,
}

impl Wheel {
    fn add(&mut self, name: &str, data: &[u8], mode: Mode) -> Result<()> {
        let sum = url_safe_base64(&Sha256::digest(data));
        self.record += &format!("{name},sha256={sum},{}\n", data.len());
        self.archive.add(name, data, mode)
    }

    /// The whole wheel; the record itself has no sum in it.
    fn finish(mut self, record: &str) -> Result<Vec<u8>> {
        self.record += &format!("{record},,\n");
        let text = self.record.as_bytes();
        self.archive.add(record, text, Mode::Plain)?;
        self.archive.finish()
    }
}

/// Base64 by RFC 4648, section 5, without padding.
fn url_safe_base64(data: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut text = String::new();
    for group in data.chunks(3) {
        let bytes = [0, 1, 2].map(|at| u32::from(group.get(at).copied().unwrap_or(0)));
        let bits = bytes[0] << 16 | bytes[1] << 8 | bytes[2];
        let sextets = [18, 12, 6, 0].map(|shift| bits >> shift & 63);
        let letters = sextets.map(|sextet| char::from(LETTERS[sextet as usize]));
        text.extend(&letters[..=group.len()]);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_as_the_rfc_has_it_without_padding() {
        for (data, text) in [
            ("", ""),
            ("f", "Zg"),
            ("fo", "Zm8"),
            ("foo", "Zm9v"),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(url_safe_base64(data.as_bytes()), text);
        }
        assert_eq!(url_safe_base64(&[0xfb, 0xff, 0xbf]), "-_-_");
    }

    #[test]
    fn each_platform_has_a_tag() {
        assert!(tags().ends_with(
            "Tag: py3-none-manylinux_2_17_x86_64\nTag: py3-none-musllinux_1_1_x86_64\n"
        ));
    }
}
