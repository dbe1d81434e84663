"""Runs: the tables say what the command says, and what the program knows of itself."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

import membound
from conftest import build, document_of, rows_of
from membound import COLUMNS, _frames, _run

LISTS = {
    "function": "functions",
    "line": "lines",
    "instruction": "instructions",
    "thread": "threads",
    "level": "levels",
    "function,object": "function_objects",
}

#: Two lines as the page on profiles describes them.
CONTENDED = {
    "false_sharing": [
        {
            "line_address": 0x7FFF_FFFF_F000,
            "line_bytes": 64,
            "pid": 7,
            "object": "stats.cpp:19 (512 B)",
            "object_offset": 64,
            "threads": [{"tid": 8}, {"tid": 9}],
            "offsets": [0, 8, 16],
            "sites": [{"name": "stats.h:31", "accesses": 10}, {"name": "stats.h:27", "accesses": 20}],
            "avg_latency_ns": 52.4,
            "l1_latency_ns": 1.1,
            "stall_fraction": 0.111,
            "predicted_gain": {"value": 0.2, "low": 0.15, "high": 0.25, "basis": "measured"},
            "advice": "keep the records apart",
            "confidence": 0.97,
        }
    ],
    "true_sharing": [
        {
            "line_address": 0x1000,
            "line_bytes": 64,
            "pid": 7,
            "object": "counter",
            "object_offset": None,
            "threads": [{"tid": 8}, {"tid": 9}],
            "offsets": [0],
            "sites": [],
            "avg_latency_ns": None,
            "l1_latency_ns": 1.1,
            "stall_fraction": 0.05,
            "predicted_gain": None,
            "advice": "",
            "confidence": 0.5,
        }
    ],
}


def opened(path: Path, backend: Any = "rows") -> Any:
    return membound.open(path, backend=backend)


def tables(run: Any) -> dict[str, Any]:
    """Every table of a run by its name in COLUMNS."""
    stalls = {f'Run.stalls(by="{by}")': run.stalls(by=by) for by in LISTS}
    names = [name for name in COLUMNS if name.startswith("Run.") and "stalls" not in name]
    return {**stalls, **{name: getattr(run, name[4:-2])() for name in names}}


def test_every_table_has_the_columns_that_are_described(objects_run: Path, backend: Any) -> None:
    for name, frame in tables(opened(objects_run, backend)).items():
        described = [column.name for column in COLUMNS[name]]
        if isinstance(frame, list):
            assert all(list(row) == described for row in frame), name
        else:
            assert list(frame.columns) == described, name


def test_types_of_columns_are_those_that_are_described(objects_run: Path) -> None:
    pandas = pytest.importorskip("pandas")
    polars = pytest.importorskip("polars")
    is_of = {
        "text": (pandas.api.types.is_string_dtype, (polars.String, polars.Categorical)),
        "integer": (pandas.api.types.is_integer_dtype, ()),
        "unsigned": (pandas.api.types.is_unsigned_integer_dtype, (polars.UInt64,)),
        "number": (pandas.api.types.is_float_dtype, (polars.Float64,)),
        "flag": (pandas.api.types.is_bool_dtype, (polars.Boolean,)),
    }
    for name, frame in tables(opened(objects_run, "pandas")).items():
        for column in COLUMNS[name]:
            dtype = frame[column.name].dtype
            if isinstance(dtype, pandas.CategoricalDtype):
                dtype = dtype.categories.dtype
            assert is_of[column.type][0](dtype), f"{name} {column.name}: {dtype}"
    for name, frame in tables(opened(objects_run, "polars")).items():
        for column in COLUMNS[name]:
            dtype = frame.schema[column.name]
            good = dtype.is_integer() if column.type == "integer" else dtype in is_of[column.type][1]
            assert good, f"{name} {column.name}: {dtype}"


def test_units_end_the_names_of_columns() -> None:
    for table, columns in COLUMNS.items():
        names = [column.name for column in columns]
        assert len(set(names)) == len(names), table
        for name in names:
            assert not re.search(r"_(s|ns|bytes|percent|gb_s|cycles)_(low|high)$", name), f"{table} {name}"
            if re.search(r"_(low|high)(_|$)", name):
                assert re.sub(r"_(low|high)", "", name) in names, f"{table} {name}"


@pytest.mark.parametrize("by", LISTS)
def test_stalls_are_those_of_the_report(objects_run: Path, document: Any, backend: Any, by: Any) -> None:
    rows = rows_of(opened(objects_run, backend).stalls(by=by))
    expected = document[LISTS[by]]
    assert len(rows) == len(expected) > 0
    cpu_s = document["time"]["cpu_s"]
    for row, said in zip(rows, expected):
        for end in ("", "_low", "_high"):
            fraction = said[f"stall{end}" if end else "stall_fraction"]
            assert row[f"stall{end}_percent"] == pytest.approx(fraction * 100)
            assert row[f"stall{end}_s"] == pytest.approx(fraction * cpu_s)
        if by == "level":
            assert (row["name"], row["latency_ns"]) == (said["name"], said["latency_ns"])
            continue
        assert row["cpu_s"] == said["time_s"]
        assert row["samples"] == said["samples"]
        for name in ("loads", "loads_low", "loads_high", "stores", "llc_misses"):
            assert row[name] == said.get(name), name
        assert row["latency_ns"] == said["avg_latency_ns"]
        for level in ("l1", "l3", "dram", "remote", "unknown"):
            assert row[f"stall_{level}_s"] == pytest.approx(said["levels"][level] * cpu_s)


def test_what_is_unknown_is_null_with_a_reason(objects_run: Path) -> None:
    run = opened(objects_run)
    unknown = 0
    for name, rows in tables(run).items():
        names = [column.name for column in COLUMNS[name]]
        if "unknown_because" not in names or "findings" in name:
            continue
        for row in rows:
            nulls = [key for key in ("latency_ns", "loads", "stores", "llc_misses") if key in row and row[key] is None]
            if nulls:
                assert row["unknown_because"], f"{name}: {row}"
                unknown += 1
    assert unknown > 0


def test_the_hot_line_is_that_of_the_chase(objects_run: Path) -> None:
    source = (Path(__file__).parents[3] / "crates/membound/tests/profile/fixtures/objects.c").read_text()
    line = 1 + next(at for at, text in enumerate(source.splitlines()) if "at = *(void **)at" in text)
    first = opened(objects_run).stalls(by="line")[0]
    assert (Path(first["file"]).name, first["line"], first["function"]) == ("objects.c", line, "chase")
    assert first["stall_low_percent"] <= first["stall_percent"] <= first["stall_high_percent"]
    assert first["stall_percent"] > 50


def test_objects_have_the_shares_that_the_program_measured(objects_run: Path) -> None:
    said = objects_run.with_suffix(".txt").read_text()
    truth = {int(line): int(ns) for line, ns in re.findall(r"object \d line (\d+) ns (\d+)", said)}
    assert len(truth) == 6
    found: dict[int, float] = {}
    # The program measures the chase alone; the tables were also filled.
    for row in opened(objects_run).stalls(by="function,object"):
        place = re.search(r"from objects\.c:(\d+)", row["object"])
        if place and row["function"] == "chase":
            found[int(place[1])] = row["stall_s"]
    assert set(found) == set(truth)
    for line, ns in truth.items():
        share = found[line] / sum(found.values())
        assert share == pytest.approx(ns / sum(truth.values()), abs=0.06), f"objects.c:{line}"


def test_samples_add_up_to_the_summary(objects_run: Path, backend: Any) -> None:
    if backend == "rows":
        pytest.importorskip("pyarrow")
    run = opened(objects_run, backend)
    summary = run.summary()
    rows = rows_of(run.samples())
    # Those in membound's own code are in no table.
    assert len(rows) == sum(row["samples"] for row in rows_of(run.stalls(by="thread"))) <= summary.samples
    # A part of the time in that code counts as the program's.
    assert sum(row["cpu_ns"] for row in rows) == pytest.approx(summary.cpu_s * 1e9, rel=2e-2)
    assert sum(row["stall_ns"] for row in rows) == pytest.approx(summary.stall_s * 1e9, rel=1e-2)
    times = [row["time_ns"] for row in rows]
    assert times == sorted(times)
    assert {row["function"] for row in rows} >= {"chase"}
    assert any(row["object"] and row["stack"].endswith("chase") for row in rows)


def test_summary_is_that_of_the_report(objects_run: Path, document: Any) -> None:
    it = opened(objects_run).summary()
    assert it.command[1:] == ("1500",)
    assert it.exit_code == 0 and it.signal is None and not it.incomplete
    assert it.memory_bound_percent == pytest.approx(document["memory_bound"]["fraction"] * 100)
    assert it.memory_bound_low_percent <= it.memory_bound_percent <= it.memory_bound_high_percent
    assert it.stall_s == document["time"]["memory_stall_s"]
    assert it.latency_ns == document["latency"]["ns"] and it.latency_unknown_because is None


def test_a_run_is_shown_in_one_line(objects_run: Path) -> None:
    shown = repr(opened(objects_run))
    assert re.fullmatch(r"<membound\.Run \S+: .* 1500, memory bound \d+ % \[\d+, \d+\] of [\d.]+ s CPU>", shown), shown


def test_live_bytes_reach_the_six_blocks(objects_run: Path, document: Any) -> None:
    rows = opened(objects_run).memory()
    together = [row["live_bytes"] for row in rows if row["object"] is None]
    assert max(together) >= 6 * (64 << 20)
    assert len(together) == len(document["memory"]["timeline"])


def test_a_selected_span_and_thread_hold_a_part(objects_run: Path) -> None:
    pytest.importorskip("pyarrow")
    run = opened(objects_run)
    part = run.select(from_s=0.5, to_s=1.0)
    assert 0 < part.summary().cpu_s < run.summary().cpu_s
    assert all(0.5e9 <= row["time_ns"] <= 1.0e9 for row in part.samples())
    end = run.select(from_s=1.0)
    assert all(row["time_ns"] >= 1.0e9 for row in end.samples())
    tid = run.stalls(by="thread")[0]["tid"]
    assert run.select(threads=[tid]).stalls(by="thread")[0]["tid"] == tid
    with pytest.raises(membound.Error, match="no thread"):
        run.select(threads=["there is no such thread"])


def test_contended_lines_are_those_of_the_report(sharing_run: Path, backend: Any) -> None:
    said = document_of(sharing_run)
    rows = rows_of(opened(sharing_run, backend).sharing())
    lines = [*said["false_sharing"], *said["true_sharing"]]
    assert [row["line_address"] for row in rows] == [line["line_address"] for line in lines]
    assert [row["stall_percent"] for row in rows] == [pytest.approx(line["stall_fraction"] * 100) for line in lines]


def test_a_contended_line_has_its_threads_code_and_gain(
    objects_run: Path, document: Any, backend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_run, "output_of", lambda arguments: json.dumps({**document, **CONTENDED}).encode())
    [first, second] = rows_of(opened(objects_run, backend).sharing())
    assert (first["kind"], second["kind"]) == ("false", "true")
    assert first["line_address"] == 0x7FFF_FFFF_F000 and first["object_offset_bytes"] == 64
    assert (first["threads"], first["offsets"]) == (2, 3)
    assert first["code"] == "stats.h:27, stats.h:31"
    assert first["stall_percent"] == pytest.approx(11.1)
    assert [first[f"gain{end}_percent"] for end in ("", "_low", "_high")] == [20.0, 15.0, 25.0]
    assert first["unknown_because"] is None
    assert second["object_offset_bytes"] is None and second["gain_percent"] is None and second["latency_ns"] is None
    assert second["unknown_because"] == "no gain can be predicted; its accesses were not timed"


def test_a_run_without_objects_and_latencies_says_so(data: Path, machine_file: Path, tmp_path: Path) -> None:
    options = ["--no-objects", "--no-latencies"]
    program = build(data, "objects")
    run: Any = membound.profile(
        [program, "300"], tmp_path / "x.run", machine=machine_file, options=options, backend="rows"
    )
    assert "heap" not in {row["kind"] for row in run.objects()}
    with pytest.raises(membound.NotMeasured, match="accesses were not timed"):
        run.sharing()
    with pytest.raises(membound.NotMeasured, match="without --no-objects") as raised:
        run.memory()
    assert raised.value.what == "memory" and raised.value.reason == "allocations were not followed"
    for row in run.stalls(by="line"):
        assert row["latency_ns"] is None
        assert "not timed" in row["unknown_because"]
    assert {row["what"] for row in run.missing()} >= {"objects", "latency"}
    summary = run.summary()
    assert summary.latency_ns is None and summary.latency_unknown_because


def test_the_second_level_is_null_where_the_timer_cannot_tell_it(
    objects_run: Path, document: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed = {**document, "memory_bound": {**document["memory_bound"], "l1_and_l2_together": True}}
    monkeypatch.setattr(_run, "output_of", lambda arguments: json.dumps(changed).encode())
    run = opened(objects_run)
    for row in run.stalls():
        assert row["stall_l2_s"] is None and row["stall_l1_s"] is not None
    [reason] = [row["reason"] for row in run.missing() if row["what"] == "stall_l2_s"]
    assert "L1 and L2" in reason


def test_the_machine_of_a_run_is_the_one_that_was_named(objects_run: Path, machine_file: Path) -> None:
    levels = opened(objects_run).machine().levels()
    assert levels == membound.open_machine(machine_file, backend="rows").levels()


def test_the_exit_code_of_the_program_is_kept(machine_file: Path, tmp_path: Path) -> None:
    loop = "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done; exit 7"
    run = membound.profile(["sh", "-c", loop], tmp_path / "x.run", machine=machine_file, backend="rows")
    assert run.summary().exit_code == 7


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (None, "x.run"),
        (b"no run at all", "x.run"),
        (b"SQLite format 3\0" + bytes(200), "x.run"),
    ],
)
def test_what_is_no_run_is_one_line(tmp_path: Path, make: Any, says: str) -> None:
    path = tmp_path / "x.run"
    if make is not None:
        path.write_bytes(make)
    with pytest.raises(membound.Error, match=says) as raised:
        membound.open(path)
    assert "\n" not in str(raised.value) and not str(raised.value).startswith("membound")


def test_what_cannot_be_recorded_is_one_line(tmp_path: Path, machine_file: Path, data: Path) -> None:
    with pytest.raises(membound.Error, match="no-such-program"):
        membound.profile(["no-such-program"], tmp_path / "x.run", machine=machine_file)
    with pytest.raises(membound.Error, match="list of words"):
        membound.profile("./program", tmp_path / "x.run", machine=machine_file)
    with pytest.raises(membound.Error, match="--no-such-option"):
        membound.profile(["true"], tmp_path / "x.run", machine=machine_file, options=["--no-such-option"])
    with pytest.raises(membound.Error, match="several runs"):
        membound.profile(["true"], tmp_path / "x.run", machine=machine_file, options=["--repeat=2"])
    with pytest.raises(membound.Error, match="no-such-directory"):
        membound.profile(["true"], tmp_path / "no-such-directory/x.run", machine=machine_file)


def test_groupings_and_backends_that_do_not_exist_are_named(objects_run: Path) -> None:
    with pytest.raises(membound.Error, match="function,object"):
        opened(objects_run).stalls(by="colour")
    with pytest.raises(membound.Error, match="pandas, polars or rows"):
        opened(objects_run, "numpy")


def test_without_a_library_of_frames_the_remedy_is_named(objects_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_frames, "_is_there", lambda name: False)
    for name in ("pandas", "polars"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    run = membound.open(objects_run)
    with pytest.raises(membound.Error, match=r"pip install 'membound\[pandas\]'"):
        run.stalls()
    with pytest.raises(membound.Error, match="polars is not installed"):
        membound.open(objects_run, backend="polars")
    with pytest.raises(membound.Error, match="pip install pyarrow"):
        opened(objects_run, "rows").samples()
    assert opened(objects_run, "rows").stalls()


def test_the_library_that_the_program_uses_is_taken(objects_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    polars = pytest.importorskip("polars")
    pytest.importorskip("pandas")
    monkeypatch.delitem(sys.modules, "pandas", raising=False)
    assert isinstance(membound.open(objects_run).stalls(), polars.DataFrame)
