//! Exports contain the samples, and obey the rules of their readers.

use std::io::Cursor;

use arrow_array::cast::AsArray;
use arrow_array::types::{Int32Type, Int64Type, UInt32Type, UInt64Type};
use arrow_array::{Array, LargeStringArray};
use arrow_ipc::reader::FileReader;
use membound_report::By;
use membound_report::export::{self, Weight};
use membound_types::{Basis, Detail, DetailAccess, HardwareLevelRow, HardwareView, Profile};
use serde_json::Value;

use super::fixture;
use super::protobuf::Message;

const HOSTILE: &str = "=cmd|' /C calc'!A0;\"</script>,\u{2028}\n\x1b[31m";

/// The simulation with a name that is dangerous in every format.
pub(super) fn hostile() -> (Profile, Detail) {
    let (mut profile, mut detail) = fixture::simulation();
    for name in &mut detail.names {
        *name = HOSTILE.to_owned();
    }
    for row in profile
        .functions
        .iter_mut()
        .chain(&mut profile.lines)
        .chain(&mut profile.instructions)
    {
        (row.name, row.function, row.module) = (HOSTILE.into(), HOSTILE.into(), HOSTILE.into());
        row.file = Some(HOSTILE.into());
    }
    for row in &mut profile.threads {
        row.name = HOSTILE.into();
    }
    for row in &mut profile.objects {
        row.name = HOSTILE.into();
        for frame in &mut row.alloc_stack {
            frame.function = HOSTILE.into();
        }
    }
    profile.run.command = vec![HOSTILE.into()];
    (profile, detail)
}

fn totals(detail: &Detail) -> (f64, f64) {
    detail
        .samples
        .iter()
        .fold((0.0, 0.0), |(weight, stall), sample| {
            (weight + sample.weight_s, stall + sample.stall_s)
        })
}

#[test]
fn folded_lines_sum_to_the_totals() {
    for (_, detail) in [
        fixture::simulation(),
        fixture::large(20_000),
        hostile(),
        fixture::nothing(),
    ] {
        let (cpu_s, stall_s) = totals(&detail);
        for (weight, total_s) in [(Weight::Time, cpu_s), (Weight::Stall, stall_s)] {
            let text = export::folded(&detail, weight);
            let mut sum = 0;
            let mut stacks = std::collections::BTreeSet::new();
            for line in text.lines() {
                let (stack, value) = line.rsplit_once(' ').expect("a weight stands last");
                sum += value.parse::<u64>().expect("the weight is a number");
                assert!(!stack.is_empty());
                assert!(stacks.insert(stack.to_owned()), "{stack} twice");
            }
            let off = sum as f64 - total_s * 1e9;
            // Each line is rounded to a nanosecond.
            assert!(
                off.abs() <= 0.5 * text.lines().count() as f64 + 1.0,
                "{off} ns"
            );
        }
    }
}

#[test]
fn a_folded_chain_runs_from_the_outside_in() {
    let (_, detail) = fixture::simulation();
    let text = export::folded(&detail, Weight::Stall);
    assert!(
        text.lines().any(|line| line.starts_with(
            "start_thread;sim::Worker::run();sim::step(sim::State&, unsigned int);sim::gather_forces("
        )),
        "{text}"
    );
    // A chain without stall has no line.
    assert!(!text.contains("sim::rng::next()"), "{text}");
    assert!(export::folded(&detail, Weight::Time).contains("sim::rng::next()"));
}

#[test]
fn inlined_functions_are_marked_and_broken_chains_end() {
    let (_, mut detail) = fixture::simulation();
    detail.frames.last_mut().expect("there are frames").inlined = true;
    let last = detail.stacks.len() as u32 - 1;
    detail.stacks[0].parent = Some(last);
    detail.stacks[1].parent = Some(1);
    detail.stacks[2].frame = 9999;
    detail.samples[0].stack = 9999;
    let text = export::folded(&detail, Weight::Time);
    assert!(text.contains("_[i]") && text.contains("[unknown] "));
}

#[test]
fn broken_references_break_no_export() {
    let (profile, mut detail) = fixture::simulation();
    detail.stacks[0].parent = Some(detail.stacks.len() as u32 - 1);
    detail.stacks[1].frame = 9999;
    detail.frames[0].function = 9999;
    for (index, sample) in detail.samples.iter_mut().enumerate() {
        match index % 5 {
            0 => sample.stack = 9999,
            1 => sample.thread = 9999,
            2 => sample.object = Some(9999),
            3 => sample.level = Some(200),
            _ => (sample.t_s, sample.weight_s, sample.stall_s) = (f64::NAN, -1.0, f64::INFINITY),
        }
    }
    assert!(!export::speedscope(&profile, &detail).is_empty());
    assert!(!export::firefox(&profile, &detail).is_empty());
    for bytes in [
        export::pprof(&profile, &detail),
        export::perfetto(&profile, &detail),
        export::otlp(&profile, &detail),
    ] {
        assert!(!bytes.is_empty());
    }
}

/// Rows of a CSV according to RFC 4180.
fn rows(text: &str) -> Vec<Vec<String>> {
    let mut rows = Vec::new();
    let (mut row, mut field, mut inside) = (Vec::new(), String::new(), false);
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '"' if inside && chars.peek() == Some(&'"') => {
                chars.next();
                field.push('"');
            }
            '"' => inside = !inside,
            ',' if !inside => row.push(std::mem::take(&mut field)),
            '\n' if !inside => {
                row.push(std::mem::take(&mut field));
                rows.push(std::mem::take(&mut row));
            }
            c => field.push(c),
        }
    }
    assert!(!inside && field.is_empty() && row.is_empty(), "cut short");
    rows
}

#[test]
fn every_csv_is_a_table() {
    for (profile, detail) in [
        fixture::simulation(),
        fixture::two_nodes(),
        fixture::nothing(),
        hostile(),
        with_accesses(),
    ] {
        for &by in By::ALL {
            let rows = rows(&export::csv(&profile, &detail, by));
            let columns = rows[0].len();
            assert!(columns > 3, "{by}");
            for row in &rows {
                assert_eq!(row.len(), columns, "{by}: {row:?}");
                for field in row {
                    assert!(
                        !field.starts_with(['=', '+', '@', '\t', '\r', '|']),
                        "{by}: {field} is a formula"
                    );
                    assert!(!field.contains("NaN") && !field.contains("inf,"), "{by}");
                }
            }
        }
    }
}

#[test]
fn csv_rows_are_the_profiles() {
    let (profile, detail) = fixture::simulation();
    let table = rows(&export::csv(&profile, &detail, By::Object));
    let column = |name: &str| table[0].iter().position(|title| title == name).expect(name);
    assert_eq!(table.len() - 1, profile.objects.len());
    for (row, object) in table[1..].iter().zip(&profile.objects) {
        assert_eq!(row[column("name")], object.name);
        assert_eq!(
            row[column("stall_fraction")].parse(),
            Ok(object.share.stall_fraction)
        );
        assert_eq!(row[column("size_bytes")].parse(), Ok(object.size_bytes));
    }
    assert!(
        table[1][column("alloc_stack")]
            .contains("sim::State::State(unsigned long) state.cpp:22 < main")
    );
    let nodes = export::csv(&profile, &detail, By::Node);
    assert!(nodes.ends_with(",,,,,,one node,,\n"), "{nodes}");
}

struct Pprof {
    message: Message,
    strings: Vec<String>,
}

impl Pprof {
    fn of(profile: &Profile, detail: &Detail) -> Self {
        let message = Message::parse(&export::pprof(profile, detail));
        let strings = message
            .bytes(6)
            .map(|bytes| String::from_utf8(bytes.to_vec()).expect("UTF-8"))
            .collect();
        Self { message, strings }
    }

    fn string(&self, index: u64) -> &str {
        &self.strings[index as usize]
    }

    fn with_id(&self, field: u64, id: u64) -> Message {
        self.message
            .messages(field)
            .find(|message| message.number(1) == id)
            .unwrap_or_else(|| panic!("no {field} with id {id}"))
    }
}

#[test]
fn pprof_agrees_with_the_samples() {
    let (profile, detail) = fixture::simulation();
    let read = Pprof::of(&profile, &detail);
    assert_eq!(read.strings[0], "");
    let types: Vec<(&str, &str)> = read
        .message
        .messages(1)
        .map(|kind| (read.string(kind.number(1)), read.string(kind.number(2))))
        .collect::<Vec<_>>();
    assert_eq!(
        types,
        [
            ("samples", "count"),
            ("cpu", "nanoseconds"),
            ("stall", "nanoseconds")
        ]
    );
    let mut sums = [0u64; 3];
    let mut threads = std::collections::BTreeSet::new();
    for sample in read.message.messages(2) {
        let values = sample.packed(2);
        assert_eq!(values.len(), 3);
        for (sum, value) in sums.iter_mut().zip(values) {
            *sum += value;
        }
        assert!(!sample.packed(1).is_empty());
        for label in sample.messages(3) {
            if read.string(label.number(1)) == "thread" {
                threads.insert(read.string(label.number(2)).to_owned());
            }
        }
    }
    let (cpu_s, stall_s) = totals(&detail);
    assert_eq!(sums[0], detail.samples.len() as u64);
    for (sum, seconds) in [(sums[1], cpu_s), (sums[2], stall_s)] {
        assert!((sum as f64 / 1e9 - seconds).abs() < 1e-6, "{sum} {seconds}");
    }
    assert_eq!(
        threads.into_iter().collect::<Vec<_>>(),
        ["simulate", "worker-0", "worker-1"]
    );
    assert_eq!(read.message.number(9), 1_795_194_131_000_000_000);
    assert_eq!(read.message.number(10), 3_100_000_000);
    assert_eq!(read.string(read.message.number(14)), "stall");
}

/// The simulation with three accesses that the processor sampled.
pub(super) fn with_accesses() -> (Profile, Detail) {
    let (mut profile, mut detail) = fixture::simulation();
    let level = |name: &str, accesses, fraction, latency_cycles| HardwareLevelRow {
        name: name.to_owned(),
        accesses,
        fraction,
        latency_cycles,
    };
    profile.hardware = Some(HardwareView {
        basis: Basis::Measured,
        samplers: vec!["PEBS".to_owned()],
        accesses: 3,
        loads: 2,
        stores: 1,
        latency_cycles: Some(300.0),
        walked_fraction: None,
        levels: vec![
            level("L1", 1, 1.0 / 3.0, None),
            level("DRAM", 2, 2.0 / 3.0, Some(300.0)),
        ],
        functions: Vec::new(),
        changed_lines: Vec::new(),
    });
    let access = |t_s, level, latency_cycles, address| DetailAccess {
        t_s,
        thread: 0,
        stack: 1,
        level,
        latency_cycles,
        address,
        events: 1000,
    };
    detail.accesses = vec![
        access(0.5, 1, Some(350), Some(0x7000_0040)),
        access(1.0, 1, Some(250), Some(0x7000_0080)),
        access(1.5, 0, None, None),
    ];
    (profile, detail)
}

#[test]
fn pprof_has_sampled_accesses_in_addition_to_time() {
    let (profile, mut detail) = with_accesses();
    let read = Pprof::of(&profile, &detail);
    let types = read.message.messages(1);
    let types: Vec<String> = types
        .map(|kind| read.string(kind.number(1)).to_owned())
        .collect();
    assert_eq!(
        types,
        ["samples", "cpu", "stall", "accesses", "access_latency"]
    );
    let mut sums = [0; 5];
    let mut from = std::collections::BTreeMap::new();
    for sample in read.message.messages(2) {
        let values = sample.packed(2);
        assert_eq!(values.len(), 5);
        for (sum, value) in sums.iter_mut().zip(&values) {
            *sum += value;
        }
        for label in sample.messages(3) {
            if read.string(label.number(1)) == "line from" {
                let level = read.string(label.number(2)).to_owned();
                from.insert(level, (values[3], values[4]));
            }
        }
    }
    assert_eq!(sums[0], detail.samples.len() as u64);
    assert_eq!(sums[3..], [3000, 600_000]);
    let known = [
        ("DRAM".to_owned(), (2000, 600_000)),
        ("L1".to_owned(), (1000, 0)),
    ];
    assert_eq!(from, known.into());
    assert_eq!(read.string(read.message.number(14)), "stall");
    detail.samples.clear();
    let read = Pprof::of(&profile, &detail);
    assert_eq!(read.string(read.message.number(14)), "access_latency");
}

#[test]
fn tables_have_a_row_for_every_access_that_the_processor_sampled() {
    let (profile, detail) = with_accesses();
    let bytes = export::arrow(&profile, &detail).expect("it is written");
    let mut reader = FileReader::try_new(Cursor::new(bytes), None).expect("it is Arrow");
    let batch = reader.next().expect("a batch").expect("it is whole");
    assert_eq!(batch.num_rows(), detail.samples.len() + 3);
    let column = |name: &str| batch.column_by_name(name).expect(name);
    let events = column("sampled_accesses").as_primitive::<UInt64Type>();
    let cpu_ns = column("cpu_ns").as_primitive::<Int64Type>();
    let time_ns = column("time_ns").as_primitive::<Int64Type>();
    let latency = column("latency_cycles").as_primitive::<UInt32Type>();
    let address = column("data_address").as_primitive::<UInt64Type>();
    let from = column("line_from").as_dictionary::<Int32Type>();
    let from = from
        .downcast_dict::<LargeStringArray>()
        .expect("it is text");
    let found: Vec<_> = (0..batch.num_rows())
        .filter(|row| events.is_valid(*row))
        .map(|row| {
            assert_eq!((events.value(row), cpu_ns.value(row)), (1000, 0));
            let latency = latency.is_valid(row).then(|| latency.value(row));
            let address = address.is_valid(row).then(|| address.value(row));
            let from = from
                .into_iter()
                .nth(row)
                .expect("a row")
                .expect("it is known");
            (time_ns.value(row), from, latency, address)
        })
        .collect();
    let known = [
        (500_000_000, "DRAM", Some(350), Some(0x7000_0040)),
        (1_000_000_000, "DRAM", Some(250), Some(0x7000_0080)),
        (1_500_000_000, "L1", None, None),
    ];
    assert_eq!(found, known);
}

#[test]
fn pprof_chains_lead_to_names_and_lines() {
    let (profile, detail) = fixture::simulation();
    let read = Pprof::of(&profile, &detail);
    let hottest = read
        .message
        .messages(2)
        .max_by_key(|sample| sample.packed(2)[2])
        .expect("there are samples");
    let chain: Vec<String> = hottest
        .packed(1)
        .into_iter()
        .map(|id| {
            let location = read.with_id(4, id);
            let mapping = read.with_id(3, location.number(2));
            assert!(read.string(mapping.number(5)).starts_with('/'));
            let line = location.messages(4).next().expect("a line");
            let function = read.with_id(5, line.number(1));
            format!(
                "{} {}:{}",
                read.string(function.number(2)),
                read.string(function.number(4)),
                line.number(2)
            )
        })
        .collect();
    assert!(chain[0].starts_with("sim::gather_forces"), "{chain:?}");
    assert!(chain[0].ends_with("forces.cpp:88"), "{chain:?}");
    assert_eq!(chain[2], "sim::Worker::run() worker.cpp:61");
}

#[test]
fn pprof_has_the_mapping_of_the_program_first() {
    let (mut profile, detail) = fixture::simulation();
    let paths = |profile: &Profile| -> Vec<String> {
        let read = Pprof::of(profile, &detail);
        let mappings = read.message.messages(3);
        mappings
            .map(|it| read.string(it.number(5)).to_owned())
            .collect()
    };
    let all = paths(&profile);
    assert!(all.len() > 1, "{all:?}");
    for path in all {
        let name = path.rsplit('/').next().unwrap();
        // The command as a shell finds it, and without its version.
        for command in [name, &name[..name.len() - 1]] {
            profile.run.command = vec![format!("./{command}"), "argument".to_owned()];
            assert_eq!(paths(&profile)[0], path);
        }
    }
}

#[test]
fn pprof_puts_inlined_functions_into_one_location() {
    let (profile, mut detail) = fixture::simulation();
    let stack = detail.samples.last().expect("there are samples").stack;
    let frame = detail.stacks[stack as usize].frame;
    detail.frames[frame as usize].inlined = true;
    let read = Pprof::of(&profile, &detail);
    let lines: Vec<usize> = read
        .message
        .messages(4)
        .map(|location| location.messages(4).count())
        .collect();
    assert!(lines.contains(&2) && lines.contains(&1), "{lines:?}");
}

/// Length of a table; asserts that each of its columns has that length.
fn table<'a>(value: &'a Value, columns: &[&str]) -> (&'a Value, usize) {
    let length = value["length"].as_u64().expect("a table has a length") as usize;
    for column in columns {
        let found = value[*column]
            .as_array()
            .unwrap_or_else(|| panic!("{column} is missing"));
        assert_eq!(found.len(), length, "{column}");
    }
    (value, length)
}

/// Asserts that every entry of a column is null or below `limit`.
fn refers(table: &Value, column: &str, limit: usize) {
    for entry in table[column].as_array().expect("a column") {
        assert!(
            entry.is_null() || (entry.as_u64().expect("a position") as usize) < limit,
            "{column}: {entry}"
        );
    }
}

fn check_firefox(profile: &Profile, detail: &Detail) -> Value {
    let text = export::firefox(profile, detail);
    let read: Value = serde_json::from_str(&text).expect("it is JSON");
    let meta = &read["meta"];
    assert_eq!(meta["preprocessedProfileVersion"], 48);
    for field in [
        "version",
        "interval",
        "startTime",
        "processType",
        "stackwalk",
    ] {
        assert!(meta[field].is_number(), "{field}");
    }
    assert!(meta["markerSchema"].is_array() && meta["product"].is_string());
    let categories = meta["categories"].as_array().expect("categories").len();
    for category in meta["categories"].as_array().expect("categories") {
        assert!(category["name"].is_string() && category["color"].is_string());
        assert_eq!(category["subcategories"][0], "Other");
    }
    let libraries = read["libs"].as_array().expect("libs").len();
    let mut weight_ms = 0.0;
    for thread in read["threads"].as_array().expect("threads") {
        assert!(thread["pid"].is_string() && thread["tid"].is_number());
        for field in ["name", "processName", "processType"] {
            assert!(thread[field].is_string(), "{field}");
        }
        let strings = thread["stringArray"].as_array().expect("strings").len();
        let (samples, _) = table(&thread["samples"], &["stack", "time", "weight"]);
        let (stacks, stack_count) = table(
            &thread["stackTable"],
            &["prefix", "frame", "category", "subcategory"],
        );
        let (frames, frame_count) = table(
            &thread["frameTable"],
            &[
                "address",
                "inlineDepth",
                "category",
                "subcategory",
                "func",
                "nativeSymbol",
                "innerWindowID",
                "implementation",
                "line",
                "column",
            ],
        );
        let (functions, function_count) = table(
            &thread["funcTable"],
            &[
                "name",
                "isJS",
                "relevantForJS",
                "resource",
                "fileName",
                "lineNumber",
                "columnNumber",
            ],
        );
        let (resources, resource_count) =
            table(&thread["resourceTable"], &["lib", "name", "host", "type"]);
        table(
            &thread["markers"],
            &["data", "name", "startTime", "endTime", "phase", "category"],
        );
        table(
            &thread["nativeSymbols"],
            &["libIndex", "address", "name", "functionSize"],
        );
        refers(samples, "stack", stack_count);
        refers(stacks, "frame", frame_count);
        refers(stacks, "category", categories);
        refers(frames, "func", function_count);
        refers(frames, "category", categories);
        refers(functions, "name", strings);
        refers(functions, "fileName", strings);
        refers(functions, "resource", resource_count);
        refers(resources, "lib", libraries);
        refers(resources, "name", strings);
        // A caller comes before its callees.
        for (index, prefix) in stacks["prefix"]
            .as_array()
            .expect("a column")
            .iter()
            .enumerate()
        {
            assert!(prefix.is_null() || prefix.as_u64().expect("a position") < index as u64);
        }
        let times: Vec<f64> = samples["time"]
            .as_array()
            .expect("a column")
            .iter()
            .map(|time| time.as_f64().expect("a time"))
            .collect();
        assert!(times.is_sorted());
        assert_eq!(samples["weightType"], "tracing-ms");
        weight_ms += samples["weight"]
            .as_array()
            .expect("a column")
            .iter()
            .map(|weight| weight.as_f64().expect("a weight"))
            .sum::<f64>();
    }
    let (cpu_s, _) = totals(detail);
    assert!((weight_ms / 1e3 - cpu_s).abs() < 1e-6 * cpu_s.max(1.0));
    read
}

#[test]
fn firefox_gets_the_structure_that_it_reads() {
    for (profile, detail) in [
        fixture::simulation(),
        fixture::large(5_000),
        hostile(),
        fixture::nothing(),
    ] {
        check_firefox(&profile, &detail);
    }
}

#[test]
fn firefox_sees_threads_apart_and_stalls_by_level() {
    let (profile, detail) = fixture::simulation();
    let read = check_firefox(&profile, &detail);
    let names: Vec<&str> = read["threads"]
        .as_array()
        .expect("threads")
        .iter()
        .map(|thread| thread["name"].as_str().expect("a name"))
        .collect();
    assert_eq!(names, ["simulate", "worker-0", "worker-1"]);
    let dram = read["meta"]["categories"]
        .as_array()
        .expect("categories")
        .iter()
        .position(|category| category["name"] == "Waiting for DRAM")
        .expect("DRAM is a category");
    let mut stalled_ms = 0.0;
    for thread in read["threads"].as_array().expect("threads") {
        let samples = &thread["samples"];
        for index in 0..samples["length"].as_u64().expect("a length") as usize {
            let stack = samples["stack"][index].as_u64().expect("a stack") as usize;
            if thread["stackTable"]["category"][stack] == dram {
                stalled_ms += samples["weight"][index].as_f64().expect("a weight");
            }
        }
    }
    let right_s: f64 = detail
        .samples
        .iter()
        .filter(|sample| sample.level == Some(2))
        .map(|sample| sample.stall_s)
        .sum();
    assert!((stalled_ms / 1e3 - right_s).abs() < 1e-6, "{stalled_ms}");
    let counters = read["counters"].as_array().expect("counters");
    assert_eq!(counters.len(), 2);
    assert_eq!(counters[0]["name"], "DRAM read");
    table(&counters[0]["samples"], &["time", "count"]);
}
