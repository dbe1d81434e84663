"""Machine profiles: the tables say what the documents say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import membound
from conftest import WORKSPACE, rows_of
from membound import COLUMNS

#: Profiles that come with the command; both have most parts.
BUNDLED = WORKSPACE / "crates/membound/machines"
TABLES = [name[8:-2] for name in COLUMNS if name.startswith("Machine.")]


def every_part() -> Any:
    """A profile with one row of each part, as the pages under docs/formats have them."""
    document = json.loads((BUNDLED / "amd-zen5-guest.json").read_text())
    for part, rows in PARTS.items():
        name = "cells" if part == "mlp" else "pairs" if part in ("numa", "c2c") else "points"
        document[part] = {name: rows}
    return document


PARTS: dict[str, list[dict[str, Any]]] = {
    "latency": [
        {
            "size_bytes": 16384, "stride_bytes": 64, "pattern": "random", "access": "clean", "page": "thp", "cpu": 1,
            "node": 0, "prefetch": "default", "threads": 1, "ns": 0.986, "ns_low": 0.985, "ns_high": 0.987,
            "cycles": 4.0, "samples": 3, "prefetch_taint": {"against": "indexed", "ratio": 0.4},
        }
    ],
    "mlp": [
        {
            "mode": "parallel", "loads": 2, "fillers": 440, "filler": "nop", "area_bytes": 268435456, "node": "local",
            "page": "thp", "cycles": 652.4, "spread": 9.5,
            "misses": {"not_measured": {"reason": "no PMU in this guest"}},
        }
    ],
    "bandwidth": [
        {
            "kernel": "copy", "vector": "512", "size_bytes": 268435456, "level": "DRAM", "threads": 2, "page": "thp",
            "node": "local", "gb_s": 30.2, "gb_s_low": 29.9, "gb_s_high": 30.6, "gb_s_with_allocate": 45.3,
        }
    ],
    "loaded": [
        {
            "mix": {"reads": 2, "writes": 1}, "injectors": 1, "delay_steps": None, "gb_s": 0.0, "ns": 171.0,
            "ns_low": 168.5, "ns_high": 174.1, "cycles": None,
        }
    ],
    "tlb": [{"page": "4k", "pages": 64, "ns": 1.2, "packed_ns": 1.1, "translation_cycles": 0.4}],
    "prefetch": [
        {
            "pattern": {"name": "forward", "stride_bytes": 64}, "prefetch": "default", "ns": 3.1, "random_ns": 158.0,
            "ratio": 0.02, "prefetched": True,
        }
    ],
    "numa": [
        {
            "cpu_node": 0, "cpu": 1, "memory_node": 1, "distance": 21, "placed_share": 1.0, "latency_ns": 161.2,
            "read_gb_s": {"not_measured": {"reason": "interrupted"}},
        }
    ],
    "c2c": [{"from": 0, "to": 1, "one_way_ns": 24.6, "one_way_low_ns": 24.2, "one_way_high_ns": 25.1}],
}  # fmt: skip


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    path = tmp_path / "whole.json"
    path.write_text(json.dumps(every_part()))
    return path


@pytest.mark.parametrize("table", TABLES)
def test_every_table_has_the_columns_that_are_described(whole: Path, backend: Any, table: str) -> None:
    machine = membound.open_machine(whole, backend=backend)
    frame = getattr(machine, table)()
    described = [column.name for column in COLUMNS[f"Machine.{table}()"]]
    assert list(frame[0] if isinstance(frame, list) else frame.columns) == described


def test_figures_keep_their_value_and_get_their_unit(whole: Path, backend: Any) -> None:
    machine = membound.open_machine(whole, backend=backend)
    [latency] = rows_of(machine.latency())
    assert (latency["latency_ns"], latency["latency_low_ns"], latency["latency_high_ns"]) == (0.986, 0.985, 0.987)
    assert (latency["node"], latency["prefetch_ratio"]) == ("0", 0.4)
    [rate] = rows_of(machine.bandwidth())
    assert (rate["rate_gb_s"], rate["with_allocate_gb_s"], rate["vector_bits"]) == (30.2, 45.3, 512)
    [loaded] = rows_of(machine.loaded())
    assert (loaded["reads"], loaded["writes"], loaded["delay_steps"]) == (2, 1, None)
    assert loaded["latency_cycles"] is None and loaded["unknown_because"] == "the core clock is not known"
    [pair] = rows_of(machine.numa())
    assert pair["placed_percent"] == 100.0
    assert pair["read_gb_s"] is None and pair["unknown_because"] == "interrupted"
    [line] = rows_of(machine.c2c())
    assert (line["from_cpu"], line["to_cpu"], line["one_way_ns"]) == (0, 1, 24.6)
    [pattern] = rows_of(machine.prefetch())
    assert (pattern["stride_bytes"], pattern["streams"], pattern["prefetched"]) == (64, None, True)
    [cell] = rows_of(machine.mlp())
    assert (cell["time_cycles"], cell["spread_cycles"]) == (652.4, 9.5)
    [page] = rows_of(machine.tlb())
    assert (page["packed_latency_ns"], page["translation_cycles"]) == (1.1, 0.4)


def test_levels_are_those_of_this_machine(machine_file: Path, backend: Any) -> None:
    document = json.loads(machine_file.read_text())
    rows = rows_of(membound.open_machine(machine_file, backend=backend).levels())
    assert [row["name"] for row in rows] == [level["name"] for level in document["levels"]]
    for row, level in zip(rows, document["levels"]):
        for name in ("size_bytes", "size_low_bytes", "latency_ns", "latency_high_ns", "latency_cycles"):
            assert row[name] == level[name]
    last = rows[-1]
    assert last["kind"] == "memory" and last["size_bytes"] is None and last["unknown_because"]
    latencies = [row["latency_ns"] for row in rows]
    assert latencies == sorted(latencies)


def test_parts_that_were_not_measured_have_a_reason(machine_file: Path) -> None:
    machine = membound.open_machine(machine_file, backend="rows")
    with pytest.raises(membound.NotMeasured, match="tlb: ") as raised:
        machine.tlb()
    assert raised.value.reason
    missing = {row["what"]: row["reason"] for row in machine.missing()}
    assert missing["tlb"] == raised.value.reason
    assert "latency" not in missing


def test_one_part_is_a_profile_of_that_part(tmp_path: Path) -> None:
    output = tmp_path / "latency.json"
    sizes = ["--sizes", "16K,64K"]
    machine = membound.measure(["latency"], quick=True, output=output, options=sizes, backend="rows")
    rows = rows_of(machine.latency())
    assert {row["size_bytes"] for row in rows} >= {16384, 65536}
    assert all(row["latency_low_ns"] <= row["latency_ns"] <= row["latency_high_ns"] for row in rows)
    assert machine.summary().host
    with pytest.raises(membound.NotMeasured, match="bandwidth"):
        machine.bandwidth()
    assert membound.open_machine(output, backend="rows").latency() == rows


def test_a_summary_names_the_machine(machine_file: Path) -> None:
    document = json.loads(machine_file.read_text())
    it = membound.open_machine(machine_file).summary()
    assert (it.host, it.cpu) == (document["host"], document["cpu"]["model_name"])
    assert it.memory_bytes == document["memory_bytes"] and it.cpus >= 1


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "No such file"),
        ("{", "no JSON"),
        ("[]", "no document"),
        ('{"kind": "profile"}', "kind `profile`"),
    ],
)
def test_what_is_no_profile_is_one_line(tmp_path: Path, text: Any, says: str) -> None:
    path = tmp_path / "x.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(membound.Error, match=says) as raised:
        membound.open_machine(path)
    assert "\n" not in str(raised.value)


def test_parts_and_options_that_do_not_exist_are_named() -> None:
    with pytest.raises(membound.Error, match="no part `cache`: use latency"):
        membound.measure(["cache"])
    with pytest.raises(membound.Error, match="--no-such-option"):
        membound.measure(["latency"], options=["--no-such-option"])
