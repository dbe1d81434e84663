//! Initial inputs of the fuzzers of executables, code and plans: `fuzz/seeds.cpp` compiled with
//! several flags, and functions and plans extracted from it.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use membound_rewrite::image::Image;
use membound_rewrite::patch::{Body, Options, Plan};
use membound_testkit::perf_data::memory_recordings;

use crate::run::{program, root, succeed};

/// Flags of the seeds: language features, kinds of files, and one file that is not x86-64 code.
const FLAVOURS: [(&str, &str); 8] = [
    ("shared", "-O2 -shared -fPIC -DWITH_EXCEPTIONS"),
    ("plain", "-O0 -shared -fPIC -DWITH_EXCEPTIONS"),
    ("stripped", "-O3 -mavx2 -shared -fPIC -fno-exceptions -s"),
    (
        "small",
        "-Os -shared -fPIC -fno-exceptions -fcf-protection -fno-asynchronous-unwind-tables",
    ),
    (
        "static",
        "-O2 -static -no-pie -fno-pie -DWHOLE -fno-exceptions",
    ),
    ("pie", "-O2 -static-pie -fPIE -DWHOLE -fno-exceptions"),
    (
        "other",
        "-m32 -O2 -static -no-pie -fno-pie -DWHOLE -fno-exceptions",
    ),
    ("object", "-O2 -c -fno-exceptions"),
];

/// Flags of the seeds with debug information: versions of DWARF, compressed and not, and split.
const DEBUG_FLAVOURS: [(&str, &str); 4] = [
    ("lines5", "-O2 -g -shared -fPIC -DWITH_EXCEPTIONS"),
    (
        "lines4",
        "-O2 -gdwarf-4 -static -no-pie -fno-pie -DWHOLE -fno-exceptions",
    ),
    ("packed", "-O2 -g -gz=zlib -shared -fPIC -fno-exceptions"),
    ("split", "-O2 -gsplit-dwarf -shared -fPIC -fno-exceptions"),
];

/// Text of `perf script`: a call chain, and an access in one line.
const SCRIPT: &str = "a b 12/13 [001]  2.5: 250000 cpu-clock: \n\tffffffff8158e7b7 do_fault+0x2ec \
    ([kernel.kallsyms])\n\t ac50 main+0x1 (/bin/a)\n\nx 7 3.000001: 1 cpu/mem-loads/P: 7f00 68100142 \
    |OP LOAD|LVL L1 hit|SNP None|TLB L1 or L2 hit|LCK No 57 55d0a1b2 main+0x12 (/bin/a)\n";

/// Kind of a fuzzer's input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// Whole files, and their beginnings.
    Files,
    /// The code of single functions.
    Code,
    /// Plans of the files.
    Plans,
    /// Whole files with debug information, and their beginnings.
    Debug,
}

/// Builds the seeds of `form` and returns their directory.
pub(super) fn built(form: Form) -> Result<PathBuf> {
    let directory = root().join("target/fuzz/seeds");
    let (name, out) = match form {
        Form::Files => ("files", directory.join("files")),
        Form::Code => ("code", directory.join("code")),
        Form::Plans => ("plans", directory.join("plans")),
        Form::Debug => ("debug", directory.join("debug")),
    };
    fs::create_dir_all(&out).with_context(|| format!("cannot create {}", out.display()))?;
    let flavours: &[(&str, &str)] = match form {
        Form::Debug => &DEBUG_FLAVOURS,
        Form::Files | Form::Code | Form::Plans => &FLAVOURS,
    };
    for (flavour, file) in compiled(&directory, flavours)? {
        let seeds = match form {
            Form::Files | Form::Debug => beginnings(file),
            Form::Code => functions(&file),
            Form::Plans => plans(&file),
        };
        for (number, bytes) in seeds.iter().enumerate() {
            let path = out.join(format!("{name}-{flavour}-{number}"));
            fs::write(&path, bytes).with_context(|| format!("cannot write {}", path.display()))?;
        }
    }
    Ok(out)
}

/// Writes recordings of other profilers, as files, pipes and text, and returns their directory.
pub(super) fn recordings() -> Result<PathBuf> {
    let out = root().join("target/fuzz/seeds/recordings");
    fs::create_dir_all(&out).with_context(|| format!("cannot create {}", out.display()))?;
    let mut seeds = vec![("script".to_owned(), SCRIPT.as_bytes().to_vec())];
    for (name, file) in memory_recordings() {
        seeds.push((format!("{name}-file"), file.file()));
        seeds.push((format!("{name}-pipe"), file.pipe()));
    }
    for (name, bytes) in seeds {
        let path = out.join(name);
        fs::write(&path, bytes).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(out)
}

/// The compiled files, by flavour.
fn compiled<'a>(directory: &Path, flavours: &[(&'a str, &str)]) -> Result<Vec<(&'a str, Vec<u8>)>> {
    let mut files = Vec::new();
    for (flavour, flags) in flavours {
        let path = directory.join(format!("{flavour}.bin"));
        let mut compiler = program("g++");
        compiler
            .args(flags.split_whitespace())
            .args(["-nostdlib", "-Wl,-z,noseparate-code", "-Wl,-e,entry"])
            .args(["-Wl,--build-id", "-o"])
            .arg(&path)
            .arg(root().join("fuzz/seeds.cpp"));
        succeed(&mut compiler)?;
        let bytes = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        files.push((*flavour, bytes));
    }
    Ok(files)
}

/// The file, and truncated copies that end before parts to which their headers refer.
fn beginnings(file: Vec<u8>) -> Vec<Vec<u8>> {
    let cuts = [64, file.len() / 3, file.len() * 4 / 5];
    let mut seeds: Vec<Vec<u8>> = cuts.iter().map(|cut| file[..*cut].to_vec()).collect();
    seeds.push(file);
    seeds
}

/// Every function's bytes.
fn functions(file: &[u8]) -> Vec<Vec<u8>> {
    let Ok(image) = Image::parse(file) else {
        return Vec::new();
    };
    image
        .functions()
        .iter()
        .filter_map(|function| image.bytes(function.range.clone()))
        .map(<[u8]>::to_vec)
        .collect()
}

/// Plans with a body that needs little code and state and with one that needs much.
fn plans(file: &[u8]) -> Vec<Vec<u8>> {
    let Ok(image) = Image::parse(file) else {
        return Vec::new();
    };
    [Body::Displace, Body::Sample]
        .into_iter()
        .map(|body| Plan::make(&image, &Options::new(body)).as_bytes().to_vec())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_cut_off_and_whole() {
        let file: Vec<u8> = (0..=255).collect();
        let seeds = beginnings(file.clone());
        assert_eq!(seeds.len(), 4);
        assert!(seeds.iter().all(|seed| file.starts_with(seed)));
        assert_eq!(seeds[3], file);
    }

    #[test]
    fn the_source_of_the_seeds_is_there() {
        assert!(root().join("fuzz/seeds.cpp").is_file());
    }
}
