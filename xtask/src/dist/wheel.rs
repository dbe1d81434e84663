//! The Python wheel: the binary as a script of the environment, and the package `membound`, which
//! runs it and makes data frames of its output (`packaging/python/membound`).
//!
//! Follows the binary distribution format of packaging.python.org. The binary is static, so the
//! wheel names the oldest platforms that installers know.

use std::io::{Cursor, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use sha2::{Digest as _, Sha256};
use zip::ZipWriter;
use zip::write::SimpleFileOptions;

use super::processor::{Processor, VERSION};
use super::stage::{NOTICES, read, write};
use crate::run::root;

/// The Python package, from the workspace's root.
const PACKAGE: &str = "packaging/python/membound";
/// Optional dependencies: the extra, and what it brings. Samples come as an Arrow file, which polars reads by itself.
pub(crate) const EXTRAS: [(&str, &str); 3] = [
    ("pandas", "pandas>=2.2.2"),
    ("pandas", "pyarrow>=17.0.0"),
    ("polars", "polars>=1.0.0"),
];

/// Makes the wheel from `tree`.
pub(super) fn make_wheel(processor: Processor, tree: &Path, into: &Path) -> Result<PathBuf> {
    let begin = format!("membound-{VERSION}");
    let info = format!("{begin}.dist-info");
    let mut wheel = Wheel::new();
    let binary = read(&tree.join("membound"))?;
    let script = format!("{begin}.data/scripts/membound");
    wheel.add(&script, &binary, Mode::Executable)?;
    for path in package_files()? {
        let name = path
            .file_name()
            .context("a file of the package has no name")?;
        let name = format!("membound/{}", name.to_string_lossy());
        wheel.add(&name, &read(&path)?, Mode::Plain)?;
    }
    let metadata = metadata(&String::from_utf8(read(&tree.join("README.md"))?)?);
    wheel.add(
        &format!("{info}/METADATA"),
        metadata.as_bytes(),
        Mode::Plain,
    )?;
    wheel.add(
        &format!("{info}/WHEEL"),
        tags(processor).as_bytes(),
        Mode::Plain,
    )?;
    for name in ["LICENSE-APACHE", "LICENSE-MIT", NOTICES] {
        let text = read(&tree.join(name))?;
        wheel.add(&format!("{info}/licenses/{name}"), &text, Mode::Plain)?;
    }
    let platforms = platforms(processor).join(".");
    let path = into.join(format!("{begin}-py3-none-{platforms}.whl"));
    write(&path, wheel.finish(&format!("{info}/RECORD"))?)?;
    Ok(path)
}

/// The files of the Python package by name: its modules, and the marker for typed packages.
fn package_files() -> Result<Vec<PathBuf>> {
    let directory = root().join(PACKAGE);
    let entries = std::fs::read_dir(&directory)
        .with_context(|| format!("cannot read {}", directory.display()))?;
    let mut files: Vec<PathBuf> = entries
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| {
            path.extension()
                .is_some_and(|kind| kind == "py" || kind == "typed")
        })
        .collect();
    files.sort();
    Ok(files)
}

fn metadata(readme: &str) -> String {
    let mut extras = String::new();
    for (index, (extra, needs)) in EXTRAS.iter().enumerate() {
        if EXTRAS[..index].iter().all(|(before, _)| before != extra) {
            extras += &format!("Provides-Extra: {extra}\n");
        }
        extras += &format!("Requires-Dist: {needs}; extra == \"{extra}\"\n");
    }
    format!(
        "Metadata-Version: 2.4\n\
         Name: membound\n\
         Version: {VERSION}\n\
         Summary: Measures a machine's memory hierarchy and shows where programs wait for it\n\
         License-Expression: MIT OR Apache-2.0\n\
         License-File: LICENSE-APACHE\n\
         License-File: LICENSE-MIT\n\
         License-File: {NOTICES}\n\
         Requires-Python: >=3.9\n\
         {extras}\
         Description-Content-Type: text/markdown\n\
         \n{readme}"
    )
}

/// The names of the platforms, as installers compare them with their own.
fn platforms(processor: Processor) -> [String; 2] {
    ["manylinux_2_17", "musllinux_1_1"].map(|libc| format!("{libc}_{}", processor.name()))
}

/// The file WHEEL, with one tag per platform.
fn tags(processor: Processor) -> String {
    let mut text = format!(
        "Wheel-Version: 1.0\nGenerator: membound-xtask {VERSION}\nRoot-Is-Purelib: false\n"
    );
    for platform in platforms(processor) {
        text += &format!("Tag: py3-none-{platform}\n");
    }
    text
}

/// Permissions of an unpacked file.
#[derive(Clone, Copy)]
enum Mode {
    /// Readable by everyone.
    Plain = 0o644,
    /// Also executable.
    Executable = 0o755,
}

/// An archive, and its RECORD so far.
struct Wheel {
    archive: ZipWriter<Cursor<Vec<u8>>>,
    record: String,
}

impl Wheel {
    fn new() -> Self {
        Self {
            archive: ZipWriter::new(Cursor::new(Vec::new())),
            record: String::new(),
        }
    }

    fn add(&mut self, name: &str, data: &[u8], mode: Mode) -> Result<()> {
        let sum = BASE64_URL_SAFE_NO_PAD.encode(Sha256::digest(data));
        self.record += &format!("{name},sha256={sum},{}\n", data.len());
        self.put(name, data, mode)
    }

    fn put(&mut self, name: &str, data: &[u8], mode: Mode) -> Result<()> {
        // All files are dated 1980, so that the same content makes the same archive.
        let options = SimpleFileOptions::DEFAULT
            .compression_level(Some(9))
            .unix_permissions(mode as u32);
        self.archive.start_file(name, options)?;
        Ok(self.archive.write_all(data)?)
    }

    /// The whole wheel; the record itself has no sum in it.
    fn finish(mut self, record: &str) -> Result<Vec<u8>> {
        self.record += &format!("{record},,\n");
        let text = self.record.clone();
        self.put(record, text.as_bytes(), Mode::Plain)?;
        Ok(self.archive.finish()?.into_inner())
    }
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum as _;
    use membound_testkit::{is_there, skipped};

    use super::*;
    use crate::run::{program, stdout_of};

    #[test]
    fn another_implementation_reads_what_was_written() {
        if !is_there("python3") {
            return skipped("no python3");
        }
        let mut wheel = Wheel::new();
        wheel.add("a/plain", b"text\n", Mode::Plain).unwrap();
        let large = b"0123456789".repeat(10_000);
        wheel.add("program", &large, Mode::Executable).unwrap();
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("x.zip");
        std::fs::write(&path, wheel.finish("RECORD").unwrap()).unwrap();
        let read = "import sys, zipfile\nz = zipfile.ZipFile(sys.argv[1])\n\
                    assert z.testzip() is None\nfor i in z.infolist():\n \
                    print(i.filename, oct(i.external_attr >> 16), len(z.read(i)))\n\
                    print(z.read('RECORD').decode().splitlines()[0])";
        let told = stdout_of(program("python3").args(["-c", read]).arg(&path)).unwrap();
        // As `openssl dgst -sha256` has it.
        let row = "a/plain,sha256=ueaOG-o-WxnKay-YtzpUtz2q-qJQSEkC4JmC4HoS5zM,5\n";
        assert!(
            told.starts_with("a/plain 0o100644 5\nprogram 0o100755 100000\n"),
            "{told}"
        );
        assert!(told.ends_with(row), "{told}");
    }

    #[test]
    fn the_package_is_typed_and_starts_the_command() {
        let files = package_files().unwrap();
        for name in ["__init__.py", "__main__.py", "py.typed"] {
            let found = files.iter().any(|path| path.ends_with(name));
            assert!(found, "{name} is not among {files:?}");
        }
    }

    #[test]
    fn what_pip_installs_is_the_command_and_the_typed_package() {
        const TRY: &str = "import membound, pathlib\n\
                           assert (pathlib.Path(membound.__file__).parent / 'py.typed').is_file()\n\
                           try:\n    membound.open('x.run')\n\
                           except membound.Error as error:\n    print(error)";
        let place = tempfile::tempdir().unwrap();
        let environment = place.path().join("venv");
        let made = stdout_of(program("python3").args(["-m", "venv"]).arg(&environment));
        if made.is_err() {
            return skipped("python3 makes no environment");
        }
        let python = environment.join("bin/python");
        let new_enough = "import sys; sys.exit(sys.version_info < (3, 9))";
        if stdout_of(program(&python).args(["-c", new_enough])).is_err() {
            return skipped("python3 is older than 3.9");
        }
        let mut all = Processor::value_variants().iter().copied();
        let Some(here) = all.find(|it| it.is_here()) else {
            return skipped("there is no wheel for this processor");
        };
        for name in ["README.md", "LICENSE-APACHE", "LICENSE-MIT", NOTICES] {
            std::fs::write(place.path().join(name), "text\n").unwrap();
        }
        let command = "#!/bin/sh\necho \"membound: $*\" >&2\nexit 1\n";
        std::fs::write(place.path().join("membound"), command).unwrap();
        let wheel = make_wheel(here, place.path(), place.path()).unwrap();
        let install = [
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-index",
            "--disable-pip-version-check",
        ];
        stdout_of(program(&python).args(install).arg(&wheel)).unwrap();
        let told = stdout_of(program(&python).args(["-c", TRY])).unwrap();
        assert_eq!(told, "report --format=json -- x.run\n");
        let by_module = stdout_of(program(&python).args(["-m", "membound", "a", "b"]));
        let error = by_module.unwrap_err().to_string();
        assert!(error.ends_with("membound: a b"), "{error}");
    }

    #[test]
    fn extras_are_declared_once_with_all_that_they_need() {
        let text = metadata("");
        assert_eq!(text.matches("Provides-Extra: pandas\n").count(), 1);
        assert!(text.contains("Requires-Dist: pyarrow>=17.0.0; extra == \"pandas\"\n"));
        assert!(text.contains("Provides-Extra: polars\n"));
    }

    #[test]
    fn each_platform_has_a_tag() {
        assert!(tags(Processor::X86_64).ends_with(
            "Tag: py3-none-manylinux_2_17_x86_64\nTag: py3-none-musllinux_1_1_x86_64\n"
        ));
    }
}
