//! Files that cannot be used: the error is one line with position and reason.

use crate::invariants::checked;
use crate::samples::file;

#[track_caller]
fn check(bytes: impl AsRef<[u8]>, message: &str) {
    let error = checked(bytes.as_ref()).unwrap_err().to_string();
    assert!(error.starts_with(r"some\nfile: "), "{error}");
    assert!(error.contains(message), "{error}\nlacks {message}");
}

#[test]
fn files_without_content() {
    check("", "is empty");
    check(" \r\n\t\n", "is empty");
    check("\u{feff}", "is empty");
    check("# nothing\n", "holds comments only");
    check("size_bytes,ns\n", "holds no points");
    check(
        "size_bytes,ns\n4096,1.2\n",
        "holds one point; a curve needs more",
    );
    check("\"stride=64\n", "holds no points");
    check("4k 1.2\n", "holds one point");
    check(
        "Intel(R) Memory Latency Checker - v3.11b\n",
        "without a result",
    );
}

#[test]
fn files_that_are_no_text() {
    check(b"\x7fELF\x02\x01", "byte 0: 0x7f is no text");
    check(b"ns\xff", "byte 2: 0xff is no text");
    check(b"size_bytes,ns\n\0", "byte 14: 0x00 is no text");
    check(b"\xff\xfen\0s\0", "UTF-16");
}

#[test]
fn files_in_no_known_format() {
    check(
        "name = \"origin2000\"\n",
        "not a format that is known here; accepted are",
    );
    check("<html>\n", "lat_mem_rd, multichase, Intel MLC and Mess");
    check("[1, 2]", "a JSON list");
    check(
        "[[level]]\nname = \"L1\"\n",
        "not a format that is known here",
    );
    check(
        "A sentence of some length, and another one.\n",
        "not a format that is known here",
    );
}

#[test]
fn broken_json() {
    check("{", "line 1: column 1: the JSON ends in the middle");
    check("{}", "schema_version: is missing");
    check(
        "{\"schema_version\": NaN}",
        "line 1: column 20: expected value",
    );
    check(
        "{\"schema_version\": 1e999}",
        "line 1: column 24: number out of range",
    );
    check(
        "{\"kind\": 1}\n{}",
        "line 2: column 1: more text after the end",
    );
    check("{\"kind\": 1, \"kind\": 2}", "duplicate field `kind`");
    check(
        format!("{{\"kind\": {}", "[".repeat(200)),
        "recursion limit",
    );
}

#[test]
fn headers_of_tables() {
    for (header, message) in [
        (
            "size_bytes,latency",
            "line 1: unknown column `latency`; known are size_bytes, ns, ",
        ),
        (
            "window_bytes,area_bytes,x",
            "line 1: unknown column `x`; known are window_bytes, ",
        ),
        (
            "size_bytes",
            "line 1: no column `ns` (nanoseconds of one load)",
        ),
        ("ns", "line 1: no column `size_bytes`"),
        ("window_bytes,seconds_per_window", "no column `area_bytes`"),
        ("size_bytes,cycles", "divide them by the core clock in GHz"),
        ("size_bytes,ns,ns", "column `ns` stands there twice"),
        ("size_bytes,ns,NS", "column `ns` stands there twice"),
        (
            "window_bytes,area_bytes,seconds_per_window,size_bytes,ns",
            "line 1: both `size_bytes` and columns of windows: a table holds loads",
        ),
        (
            "bytes,ns",
            "unknown column `bytes`: did you mean `size_bytes`?",
        ),
        (
            "size_bytes,latency_ns",
            "unknown column `latency_ns`: did you mean `ns`?",
        ),
        (
            "size_bytes,ns,line_bytes",
            "unknown column `line_bytes`; known are size_bytes",
        ),
        (
            "window_bytes,area_b,seconds_per_window",
            "unknown column `area_b`: did you mean `area_bytes`?",
        ),
        (
            "window_bytes,area_bytes,seconds",
            "unknown column `seconds`: did you mean `seconds_per_window`?",
        ),
        ("size_bytes,ns,", "column 3 has no name"),
        (
            "size_kib,ns",
            "column `size_kib` is in KiB; expected are sizes as `size_bytes`, in bytes",
        ),
        ("Size (MB),ns", "column `Size (MB)` is in MiB"),
        (
            "size_bytes,us",
            "column `us` is in microseconds; expected are times as `ns`, in nanoseconds",
        ),
        ("size_bytes,latency_s", "column `latency_s` is in seconds"),
        (
            "window_bytes,area_kb,seconds_per_window",
            "column `area_kb` is in KiB; expected are sizes as `window_bytes` and `area_bytes`",
        ),
        (
            "window_bytes,area_bytes,ms_per_window",
            "column `ms_per_window` is in milliseconds; expected are times as `seconds_per_window`, in seconds",
        ),
        (
            "window_bytes,area_bytes,ns",
            "column `ns` is in nanoseconds; expected are times as `seconds_per_window`",
        ),
        ("window_bytes,area_bytes,cycles", "clock cycles"),
        (
            "size_bytes;ns",
            "line 1: columns are separated by `;`; expected are commas",
        ),
        ("size_bytes\tns", r"columns are separated by `\t`"),
        ("size_bytes ns", "columns are separated by blanks"),
        (
            "4096,1.2",
            "line 1: no header; the first line names the columns",
        ),
        (
            "size_bytes,\"ns",
            "line 1: the quotation mark before `ns` is not closed",
        ),
    ] {
        check(format!("{header}\n4096,1.2\n"), message);
    }
}

#[test]
fn fields_of_a_latency_table() {
    for (row, message) in [
        ("4096", "line 4: 1 field, but the header has 2"),
        ("4096,1,2", "line 4: 3 fields, but the header has 2"),
        ("4096,", "line 4: ns: is empty; leave the line out"),
        (",1.2", "line 4: size_bytes: is empty"),
        ("4096,abc", "line 4: ns: `abc` is not a number"),
        (
            "4096,-4.2",
            "line 4: ns: -4.2 is negative; times are above 0",
        ),
        ("4096,0", "line 4: ns: 0 is no time"),
        ("4096,-0.0", "line 4: ns: 0 is no time"),
        ("4096,NaN", "line 4: ns: NaN is no time"),
        ("4096,inf", "line 4: ns: inf is not finite"),
        ("4096,1e999", "line 4: ns: inf is not finite"),
        ("4096,1e300", "line 4: ns: 1e300 ns would be 1e294 ms"),
        ("4096,-1e300", "line 4: ns: -1e300 is negative"),
        (
            "4096,1,2",
            "line 4: 3 fields, but the header has 2 (decimal commas? Numbers take points)",
        ),
        (
            "4096,\"1,2\"",
            "line 4: ns: `1,2` has a decimal comma; expected is a point",
        ),
        (
            "4096,1e-8",
            "line 4: ns: 0.00000001 ns is too short for a load: are these seconds",
        ),
        (
            "4096,2000000",
            "line 4: ns: 2000000 ns would be 2 ms for one load",
        ),
        ("0,1", "line 4: size_bytes: 0 bytes hold nothing"),
        (
            "4,1",
            "line 4: size_bytes: 4 bytes hold no pointer and no double: is this KiB",
        ),
        ("-4096,1", "line 4: size_bytes: `-4096` is negative"),
        (
            "0.5,1",
            "line 4: size_bytes: `0.5` is not a whole number of bytes: is this KiB or MiB?",
        ),
        (
            "18446744073709551616,1",
            "line 4: size_bytes: `18446744073709551616` is beyond 64 bits",
        ),
        (
            "9223372036854775807,1",
            "are more than any machine addresses",
        ),
        ("4K,1", "line 4: size_bytes: `4K` is not a number"),
        ("\"4096,1", "line 4: the quotation mark"),
    ] {
        check(
            format!("size_bytes,ns\r\n\r\n4096,1.2\r\n{row}\r\n"),
            message,
        );
    }
}

#[test]
fn fields_of_a_window_table() {
    for (row, message) in [
        ("0,65536,1e-7", "line 2: window_bytes: 0 bytes"),
        (
            "65536,1024,1e-7",
            "line 2: window_bytes: 65536 bytes do not fit into an area of 1024",
        ),
        (
            "1024,65536,53",
            "line 2: seconds_per_window: 53 would be 53 s for 1024 bytes: are these nanoseconds?",
        ),
        ("1048576,67108864,53000", "are these nanoseconds?"),
        ("1048576,67108864,1e-12", "is too short for 1048576 bytes"),
        (
            "1024,65536,nan",
            "line 2: seconds_per_window: NaN is no time",
        ),
    ] {
        check(
            format!("window_bytes,area_bytes,seconds_per_window\n{row}\n"),
            message,
        );
    }
}

#[test]
fn fields_that_separate_curves() {
    for (column, value, message) in [
        (
            "pattern",
            "zigzag",
            "line 2: pattern: `zigzag` is not one of random, stride",
        ),
        ("page", "64k", "line 2: page: `64k` is not one of 4k, thp"),
        ("node", "far", "line 2: node: unknown node `far`"),
        ("threads", "0", "line 2: threads: 0 is too few"),
        (
            "stride_bytes",
            "-64",
            "line 2: stride_bytes: `-64` is not a whole number",
        ),
        ("access", "", "line 2: access: is empty"),
        (
            "disturbed",
            "no",
            "line 2: disturbed: `no` is neither `true` nor `false`",
        ),
    ] {
        check(format!("size_bytes,ns,{column}\n4096,1,{value}\n"), message);
    }
    check(
        "size_bytes,ns,ns_low,ns_high\n4096,1,2,3\n",
        "line 2: ns_low, ns_high: 2 to 3 does not hold its value 1",
    );
}

#[test]
fn lines_of_lat_mem_rd() {
    for (line, message) in [
        ("0.00098", "line 3: 0 fields after the size `0.00098`"),
        ("0.00098 1.0 2.0", "line 3: 2 fields after the size"),
        ("0.00098 x", "line 3: latency: `x` is not a number"),
        (
            "0.00098 1,180",
            "line 3: latency: `1,180` has a decimal comma",
        ),
        (
            "0,00098 1,180",
            "line 3: `0,00098` has a decimal comma; expected are points: put them in",
        ),
        ("0.00098 -1.0", "line 3: latency: -1 is negative"),
        ("0.00098 nan", "line 3: latency: NaN is no time"),
        ("-0.00098 1.0", "line 3: size: `-0.00098` is negative"),
        ("nan 1.0", "line 3: size: NaN is no size"),
        (
            "inf 1.0",
            "line 3: size: `inf` MiB are more than any machine addresses",
        ),
        (
            "\"stride=x",
            "line 3: stride: `x` is not a whole number; expected is `\"stride=64`",
        ),
        ("\"stride=0", "line 3: stride: 0 is no stride"),
    ] {
        check(format!("\"stride=64\n0.00049 1.0\n{line}\n"), message);
    }
    check(
        "0.00049 1.0\n\"stride=64\n",
        "line 1: a point before the first `\"stride=N` line",
    );
}

#[test]
fn lines_of_multichase() {
    check(
        " 87.3\n 88.1\n",
        "line 1: `87.3` stands without a size; print the size before each run",
    );
    check(
        "0.00049 1.2\n",
        "lat_mem_rd's output needs its `\"stride=N` line",
    );
    for (line, message) in [
        ("8k abc", "line 2: latency: `abc` is not a number"),
        ("8k -1", "line 2: latency: -1 is negative"),
        ("8k 1,5", "line 2: latency: `1,5` has a decimal comma"),
        ("1,5", "line 2: `1,5` has a decimal comma"),
        ("8k 1 2", "line 2: 3 fields in `8k 1 2`"),
        (
            "8k",
            "line 2: the run that begins here has no result: the file looks cut off",
        ),
        ("-8 1", "line 2: size: `-8` is negative"),
        (
            "1.3 1",
            "line 2: size: `1.3` is not a whole number of bytes",
        ),
        ("4 1", "line 2: size: 4 bytes hold no pointer"),
        (
            "total_memory = x",
            "line 2: total_memory: `x` is not a number",
        ),
    ] {
        check(format!("4k 1.2\n{line}\n"), message);
    }
}

#[test]
fn decimal_commas_from_the_first_line_on() {
    check(
        "4k 1,2\n8k 1,3\n",
        "line 1: latency: `1,2` has a decimal comma",
    );
    check(
        "\"stride=64\n0,00049 1,180\n0,00098 1,180\n",
        "line 2: `0,00049` has a decimal comma",
    );
    check("4096, 1.2\n", "line 1: no header");
    check(
        "Using buffer size of 1.000MiB\nEach iteration took 3,6 clocks ( 1,9 ns)\n",
        "line 2: latency: `1,9` has a decimal comma",
    );
}

#[test]
fn output_of_mlc_without_a_curve() {
    check(
        file("mlc_matrix.txt"),
        "line 5: a latency matrix, measured with one buffer size",
    );
    let result = "Each iteration took 3.6 base frequency clocks (\t1.9\tns)\n";
    check(
        result,
        "line 1: no `Using buffer size of …MiB` line before this result",
    );
    for (size, line, message) in [
        ("2GiB", result, "line 2: buffer size: `2GiB` is not in MiB"),
        ("xMiB", result, "line 2: buffer size: `x` is not a number"),
        (
            "0.000MiB",
            "Each iteration took 3 clocks ( x ns)",
            "line 2: latency: `x` is not",
        ),
        (
            "1.000MiB",
            "Each iteration took 3.6 base fre",
            "line 2: no latency in nanoseconds",
        ),
    ] {
        check(format!("Using buffer size of {size}\n{line}\n"), message);
    }
}

#[test]
fn a_stride_of_nothing() {
    for text in [
        "nr_threads = 1\ntotal_memory = 65536\nstride = 00\n 1.3\n",
        "\"stride=0\n0.5 1.0\n1.0 2.0\n",
    ] {
        check(text, "stride: 0 is no stride");
    }
}

#[test]
fn loaded_latencies_that_cannot_be() {
    let table = |row: &str| {
        format!(
            "Inject\tLatency\tBandwidth\nDelay\t(ns)\tMB/sec\n=====\n 00000\t200.0\t1000.0\n{row}\n"
        )
    };
    for (row, message) in [
        (
            " 00100\t158.",
            "line 5: `00100\\t158.` is not a delay, a latency and a bandwidth",
        ),
        (" 00100\tx\t1.0", "line 5: latency: `x` is not a number"),
        (" 00100\t0.00\t1000.0", "line 5: latency: 0 is no time"),
        (
            " 00100\t90.0\t-1",
            "line 5: bandwidth: -0.001 is no bandwidth",
        ),
        ("", "holds 1 point of latency beside traffic"),
    ] {
        check(table(row), message);
    }
    check(
        "Intel(R) Memory Latency Checker - v3.11b\nMeasuring Loaded Latencies for the system\n",
        "holds 0 points of latency beside traffic",
    );
}

#[test]
fn tables_of_mess_that_cannot_be() {
    let table = |row: &str| format!("pause,read_pct_rounded,bandwidth_mean,latency_mean\n{row}\n");
    for (row, message) in [
        ("0,100,10", "line 2: 3 fields, but the header has 4"),
        ("0,101,10,90", "line 2: read_pct_rounded: `101` is no share"),
        ("0,100,x,90", "line 2: bandwidth_mean: `x` is not a number"),
        (
            "0,100,225000,90",
            "line 2: bandwidth: 225000 GB/s is more than any machine moves",
        ),
        ("0,100,10,90", "holds 1 point of latency beside traffic"),
    ] {
        check(table(row), message);
    }
    check(
        "pause,rd_percentage,bandwidth_mean\n0,100,1\n",
        "line 1: a table of Mess without both columns",
    );
    check(
        "{\"100\": [[1.0, 90.0], [2.0, -1.0]]}",
        "100[1]: latency: -1 is negative",
    );
    check("{\"101\": [[1.0, 90.0]]}", "schema_version: is missing");
}
