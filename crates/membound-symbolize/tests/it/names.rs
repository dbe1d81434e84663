//! Functions, lines, inlining and variables of compiled programs, against their sources.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use membound_symbolize::{DebugPaths, SourceLine, Symbols};
use object::{Object as _, ObjectSymbol as _};

use crate::build::{Workshop, source};

/// Addresses of the labels of a program, even if it is stripped later.
fn marks(program: &Path) -> HashMap<String, u64> {
    let bytes = fs::read(program).expect("it was just compiled");
    let file = object::File::parse(bytes.as_slice()).expect("it was just compiled");
    file.symbols()
        .filter_map(|symbol| Some((symbol.name().ok()?.to_owned(), symbol.address())))
        .collect()
}

/// The line of a fixture that is marked so.
fn line(fixture: &str, mark: &str) -> u32 {
    let text = fs::read_to_string(source(fixture)).expect("fixtures are here");
    let at = text
        .lines()
        .position(|line| {
            line.split_once("line: ")
                .is_some_and(|(_, rest)| rest.trim_end_matches(" */") == mark)
        })
        .unwrap_or_else(|| panic!("{fixture} has no line: {mark}"));
    u32::try_from(at + 1).expect("fixtures are short")
}

/// Functions and lines, innermost first.
fn chain(places: &[SourceLine]) -> Vec<(&str, u32)> {
    places
        .iter()
        .map(|place| (place.function.as_str(), place.line.unwrap_or(0)))
        .collect()
}

fn nowhere() -> DebugPaths {
    DebugPaths { roots: Vec::new() }
}

fn open(path: &Path) -> Symbols {
    Symbols::open_with(path, &nowhere()).expect("it was just compiled")
}

/// Everything about the C fixture is right to the line.
fn check_inlined(symbols: &Symbols, marks: &HashMap<String, u64>) {
    const FIXTURE: &str = "inlined.c";
    let places = symbols.locate(marks["mark_innermost"]);
    let expected = [
        ("innermost", line(FIXTURE, "innermost")),
        ("middle", line(FIXTURE, "middle")),
        ("outermost", line(FIXTURE, "outermost")),
    ];
    assert_eq!(chain(&places), expected, "{:?}", symbols.notes());
    let file = source(FIXTURE).display().to_string();
    for place in &places {
        assert_eq!(place.file.as_deref(), Some(file.as_str()));
        assert_eq!(place.function_start, Some(marks["outermost"]));
        assert!(
            place
                .function_size
                .is_some_and(|size| size > 0 && size < 4096)
        );
    }
    let itself = symbols.locate(marks["mark_outermost"]);
    assert_eq!(chain(&itself), [("outermost", line(FIXTURE, "itself"))]);
    let cold = symbols.locate(marks["has_cold_part.cold"]);
    assert_eq!(chain(&cold), [("has_cold_part", line(FIXTURE, "cold"))]);
}

fn compiled(workshop: &Workshop, flags: &str) -> Option<(PathBuf, HashMap<String, u64>)> {
    let program = workshop.compile("gcc", flags, "inlined.c", "inlined")?;
    let marks = marks(&program);
    Some((program, marks))
}

/// Lines of a program that is compiled with these flags.
fn check_flags(flags: &str) {
    let workshop = Workshop::new();
    if let Some((program, marks)) = compiled(&workshop, flags) {
        let symbols = open(&program);
        check_inlined(&symbols, &marks);
        assert_eq!(symbols.notes(), Vec::<String>::new(), "{flags}");
    }
}

#[test]
fn inlined_functions_are_found_to_the_line() {
    for flags in [
        "-O2 -g",
        "-O2 -gdwarf-4",
        "-O2 -gdwarf-3",
        "-O2 -g -gz=zlib",
        "-O2 -g -static",
        "-O2 -g -no-pie",
        "-O2 -g -ffunction-sections -Wl,--gc-sections",
    ] {
        check_flags(flags);
    }
}

#[test]
fn packed_sections_are_unpacked() {
    for packing in ["zlib", "zstd"] {
        let workshop = Workshop::new();
        let Some((program, marks)) = compiled(&workshop, "-O2 -g") else {
            return;
        };
        let flag = format!("--compress-debug-sections={packing}");
        if workshop.tool("objcopy", &[&flag, "inlined"]) {
            check_inlined(&open(&program), &marks);
        }
    }
}

#[test]
fn split_debug_information_is_found_next_to_the_objects() {
    for flags in ["-O2 -g -gsplit-dwarf", "-O2 -gdwarf-4 -gsplit-dwarf"] {
        check_flags(flags);
    }
}

#[test]
fn split_debug_information_is_found_in_a_package() {
    let workshop = Workshop::new();
    let flags = "-O2 -gdwarf-4 -gsplit-dwarf";
    let Some((program, marks)) = compiled(&workshop, flags) else {
        return;
    };
    if !workshop.tool("dwp", &["-e", "inlined", "-o", "inlined.dwp"]) {
        return;
    }
    remove_halves(&workshop);
    check_inlined(&open(&program), &marks);
}

/// Removes what `-gsplit-dwarf` put beside the program.
fn remove_halves(workshop: &Workshop) {
    for entry in fs::read_dir(workshop.path("")).expect("the workshop is there") {
        let path = entry.expect("it can be listed").path();
        if path.extension().is_some_and(|extension| extension == "dwo") {
            fs::remove_file(path).expect("it can be removed");
        }
    }
}

#[test]
fn missing_split_units_are_noted_and_lines_stay() {
    let workshop = Workshop::new();
    let Some((program, marks)) = compiled(&workshop, "-O2 -g -gsplit-dwarf") else {
        return;
    };
    remove_halves(&workshop);
    let symbols = open(&program);
    let places = symbols.locate(marks["mark_innermost"]);
    assert_eq!(
        chain(&places),
        [("outermost", line("inlined.c", "innermost"))],
        "the line is in the program, the inlining is not"
    );
    assert!(
        symbols.notes()[0].contains(".dwo was not found"),
        "{:?}",
        symbols.notes()
    );
}

#[test]
fn without_debug_information_there_are_functions_and_variables() {
    let workshop = Workshop::new();
    let Some((program, marks)) = compiled(&workshop, "-O2") else {
        return;
    };
    let symbols = open(&program);
    let places = symbols.locate(marks["mark_innermost"]);
    assert_eq!(chain(&places), [("outermost", 0)]);
    let function = symbols
        .function(marks["outermost"] + 1)
        .expect("it has a symbol");
    assert_eq!(
        (function.name.as_str(), function.start),
        ("outermost", marks["outermost"])
    );
    let cold = symbols
        .function(marks["has_cold_part.cold"])
        .expect("it has a symbol");
    assert_eq!(cold.name, "has_cold_part.cold");
    for (name, size) in [
        ("in_data", 16),
        ("in_bss", 64),
        ("in_rodata", 13),
        ("counter", 4),
    ] {
        let label = marks
            .keys()
            .find(|label| label.split('.').next() == Some(name))
            .expect("the symbol table has it");
        let variable = symbols
            .variable(marks[label] + size - 1)
            .expect("it has a symbol");
        assert_eq!(variable.name.split('.').next(), Some(name));
        assert_eq!((variable.address, variable.size), (marks[label], size));
    }
    assert_eq!(symbols.function(0), None);
    assert_eq!(symbols.variable(u64::MAX), None);
    assert_eq!(symbols.locate(u64::MAX), Vec::new());
}

#[test]
fn a_stripped_program_has_extents_and_linkage() {
    let workshop = Workshop::new();
    for (flags, linkage) in [
        ("-O2", 1),
        ("-O2 -fcf-protection=full -Wl,-z,lazy", 1),
        ("-O2 -Wl,-z,now -Wl,-z,ibtplt", 1),
        ("-O2 -fno-plt", 0),
    ] {
        let Some((program, marks)) = compiled(&workshop, flags) else {
            return;
        };
        if !workshop.tool("strip", &["inlined"]) {
            return;
        }
        let symbols = open(&program);
        let name = format!("function at {:#x}", marks["outermost"]);
        let found = symbols
            .function(marks["mark_innermost"])
            .expect("it has a frame");
        assert_eq!(
            (found.name.as_str(), found.start),
            (name.as_str(), marks["outermost"])
        );
        assert_eq!(
            chain(&symbols.locate(marks["mark_innermost"])),
            [(name.as_str(), 0)]
        );
        let data = symbols
            .variable(marks["in_data"])
            .expect("it has a section");
        assert_eq!(data.name, ".data");
        let text = marks["_init"]..marks["_fini"];
        let stubs = (text.start..text.end)
            .step_by(8)
            .filter(|address| {
                symbols
                    .function(*address)
                    .is_some_and(|f| f.name == "malloc@plt")
            })
            .count();
        assert!(
            stubs >= linkage && (linkage > 0 || stubs == 0),
            "{flags}: {stubs}"
        );
    }
}

#[test]
fn separate_debug_information_is_used_when_it_belongs() {
    let workshop = Workshop::new();
    for id in ["-Wl,--build-id=sha1", "-Wl,--build-id=none"] {
        let Some((program, marks)) = compiled(&workshop, &format!("-O2 -g {id}")) else {
            return;
        };
        let steps: [&[&str]; 3] = [
            &["--only-keep-debug", "inlined", "inlined.debug"],
            &["--strip-all", "inlined"],
            &["--add-gnu-debuglink=inlined.debug", "inlined"],
        ];
        if !steps
            .iter()
            .all(|arguments| workshop.tool("objcopy", arguments))
        {
            return;
        }
        let symbols = open(&program);
        check_inlined(&symbols, &marks);
        assert_eq!(
            symbols
                .variable(marks["in_data"])
                .map(|v| v.name)
                .as_deref(),
            Some("in_data")
        );
        assert_eq!(symbols.notes(), Vec::<String>::new());

        // A file of another build, a damaged one, and none.
        let debug = workshop.path("inlined.debug");
        let right = fs::read(&debug).expect("it was just made");
        let Some(other) = workshop.compile("gcc", &format!("-O1 -g {id}"), "inlined.c", "other")
        else {
            return;
        };
        fs::copy(other, &debug).expect("it can be replaced");
        let symbols = open(&program);
        assert_eq!(symbols.locate(marks["mark_innermost"])[0].line, None);
        assert!(
            symbols.notes()[0].contains("is not used: its "),
            "{:?}",
            symbols.notes()
        );

        fs::write(&debug, b"\x7fELF, or so").expect("it can be replaced");
        let symbols = open(&program);
        assert_eq!(symbols.locate(marks["mark_innermost"])[0].line, None);
        assert!(
            symbols.notes()[0].contains("is not a readable ELF file"),
            "{:?}",
            symbols.notes()
        );

        fs::remove_file(&debug).expect("it can be removed");
        let symbols = open(&program);
        assert_eq!(symbols.locate(marks["mark_innermost"])[0].line, None);
        assert!(
            symbols.notes()[0].contains("which was not found"),
            "{:?}",
            symbols.notes()
        );

        // By build-id, in a place of such files.
        let Some(build_id) = symbols.build_id().map(str::to_owned) else {
            continue;
        };
        let root = workshop.path("root");
        let directory = root.join(".build-id").join(&build_id[..2]);
        fs::create_dir_all(&directory).expect("there is room");
        let place = directory.join(format!("{}.debug", &build_id[2..]));
        fs::write(&place, &right).expect("there is room");
        let places = DebugPaths { roots: vec![root] };
        let symbols = Symbols::open_with(&program, &places).expect("it was just compiled");
        check_inlined(&symbols, &marks);
    }
}

#[test]
fn shared_debug_information_is_used_when_it_belongs() {
    let workshop = Workshop::new();
    let Some((program, marks)) = compiled(&workshop, "-O2 -g") else {
        return;
    };
    let Some(other) = workshop.compile("gcc", "-O2 -g -DOTHER=1", "inlined.c", "other") else {
        return;
    };
    let shared = workshop.path("shared.debug");
    let arguments = ["-m", "shared.debug", "inlined", "other"];
    if !workshop.tool("dwz", &arguments) {
        return;
    }
    assert!(shared.exists() && other.exists());
    check_inlined(&open(&program), &marks);
    fs::remove_file(shared).expect("it can be removed");
    let symbols = open(&program);
    assert!(!symbols.locate(marks["mark_innermost"]).is_empty());
    assert!(
        symbols.notes()[0].contains("which was not found"),
        "{:?}",
        symbols.notes()
    );
}

#[test]
fn names_of_cpp_are_complete() {
    const FIXTURE: &str = "templates.cpp";
    for compiler in ["g++", "clang++"] {
        let workshop = Workshop::new();
        let Some(program) = workshop.compile(compiler, "-O2 -g", FIXTURE, "templates") else {
            continue;
        };
        let marks = marks(&program);
        let symbols = open(&program);
        let member = symbols.locate(marks["mark_member"]);
        assert_eq!(
            chain(&member),
            [(
                "shapes::Box<long, 4>::sum(long) const",
                line(FIXTURE, "member")
            )],
        );
        let hidden = symbols.locate(marks["mark_hidden"]);
        let (name, at) = chain(&hidden)[0];
        assert!(name.ends_with("::hidden(int)"), "{name}");
        assert_eq!(at, line(FIXTURE, "hidden"));
        let lambda = symbols.locate(marks["mark_lambda"]);
        let lambda = chain(&lambda);
        assert_eq!(lambda.len(), 2, "{lambda:?}");
        assert!(lambda[0].0.starts_with("main::"), "{lambda:?}");
        assert!(lambda[0].0.contains("::operator()"), "{lambda:?}");
        assert_eq!(lambda[0].1, line(FIXTURE, "lambda"));
        assert!(lambda[1].0.contains("apply<main::"), "{lambda:?}");
        assert_eq!(lambda[1].1, line(FIXTURE, "apply"));
    }
}

#[test]
fn names_of_rust_are_complete() {
    const FIXTURE: &str = "generic.rs";
    for mangling in ["legacy", "v0"] {
        let workshop = Workshop::new();
        let mut flags =
            "--edition 2024 -Copt-level=2 -g --crate-name generic -Cpanic=abort".to_owned();
        if mangling == "v0" {
            flags.push_str(" -Csymbol-mangling-version=v0");
        }
        let Some(program) = workshop.compile("rustc", &flags, FIXTURE, "generic") else {
            return;
        };
        let marks = marks(&program);
        let symbols = open(&program);
        let places = symbols.locate(marks["mark_method"]);
        let places = chain(&places);
        assert_eq!(places.len(), 2, "{places:?}");
        assert!(
            places[0].0.contains("generic::Pair<") && places[0].0.ends_with("::sum"),
            "{places:?}"
        );
        assert_eq!(places[0].1, line(FIXTURE, "method"));
        assert_eq!(places[1], ("generic::total", line(FIXTURE, "total")));
        let places = symbols.locate(marks["mark_within"]);
        let expected = [
            ("generic::within", line(FIXTURE, "within")),
            ("generic::block", line(FIXTURE, "block")),
        ];
        assert_eq!(chain(&places), expected);
    }
}

#[test]
fn a_file_has_its_build_id_or_none() {
    let workshop = Workshop::new();
    let Some((program, _)) = compiled(&workshop, "-O2 -Wl,--build-id=0x00ff10") else {
        return;
    };
    let symbols = open(&program);
    assert_eq!(symbols.build_id(), Some("00ff10"));
    let Some((program, _)) = compiled(&workshop, "-O2 -Wl,--build-id=none") else {
        return;
    };
    let symbols = open(&program);
    assert_eq!(symbols.build_id(), None);
}

#[test]
fn files_that_are_no_module_are_refused_in_one_line() {
    let workshop = Workshop::new();
    let path = workshop.path("text");
    fs::write(&path, "no program").expect("there is room");
    for path in [path, workshop.path("missing"), workshop.path("")] {
        let error = Symbols::open(&path)
            .expect_err("it is no program")
            .to_string();
        assert!(
            !error.contains('\n') && error.contains(&path.display().to_string()),
            "{error}"
        );
    }
}

#[test]
fn the_kernel_s_code_has_names() {
    use std::os::unix::fs::FileExt as _;
    let maps = fs::read_to_string("/proc/self/maps").expect("there are maps");
    let Some(line) = maps.lines().find(|line| line.ends_with("[vdso]")) else {
        membound_testkit::skipped("no vdso");
        return;
    };
    let range = line
        .split(' ')
        .next()
        .and_then(|range| range.split_once('-'));
    let (start, end) = range.expect("maps begin with a range");
    let number = |text| u64::from_str_radix(text, 16).expect("addresses are hexadecimal");
    let (start, end) = (number(start), number(end));
    let mut image = vec![0; usize::try_from(end - start).expect("it is small")];
    let memory = fs::File::open("/proc/self/mem").expect("it is this process's own");
    memory
        .read_exact_at(&mut image, start)
        .expect("it is mapped");
    let symbols = Symbols::of_bytes(image, "[vdso]").expect("the kernel makes ELF files");
    let names: Vec<String> = (0..end - start)
        .filter_map(|address| symbols.function(address))
        .map(|function| function.name)
        .collect();
    assert!(
        names.iter().any(|name| name == "clock_gettime"),
        "{names:?}"
    );
}
