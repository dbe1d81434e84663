"""A machine profile: levels, latencies and bandwidth as they were measured."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic

from . import _columns
from ._command import Error
from ._document import Object, because, known, percent, reason, required
from ._frames import Frame, Frames

#: The parts of `membound measure`, which are also parts of the document.
PARTS = ("latency", "mlp", "window", "bandwidth", "loaded", "tlb", "prefetch", "numa", "c2c", "calibration")


@dataclass(frozen=True)
class MachineSummary:
    """A machine in few figures. What is not known is None."""

    host: str
    cpu: str
    #: When it was measured, RFC 3339 in UTC.
    date: str
    #: The version that measured it.
    membound_version: str
    #: The measurement was cut short, or a part of it failed.
    incomplete: bool
    #: Logical CPUs that are online.
    cpus: int
    memory_bytes: int
    #: The hypervisor, where there is one.
    hypervisor: str | None
    kernel: str
    #: Wall time of the measurement.
    elapsed_s: float


class Machine(Generic[Frame]):
    """What was measured of a machine. `membound.measure`, `membound.open_machine` and `Run.machine` make it.

    Every table raises NotMeasured where its part was not measured.
    """

    def __init__(self, document: Object, frames: Frames[Frame]) -> None:
        self._document = _profile(document)
        self._frames = frames

    def __repr__(self) -> str:
        it = self.summary()
        return f"<membound.Machine {it.host}: {it.cpu}, {it.date}>"

    @property
    def document(self) -> Object:
        """The whole document of `membound measure --json`, for what no table has."""
        return self._document

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the document, for `membound profile --machine` and `membound compare`."""
        try:
            Path(path).write_text(json.dumps(self._document), encoding="utf-8")
        except OSError as error:
            raise Error(f"cannot write {os.fspath(path)}: {error.strerror}") from error

    def summary(self) -> MachineSummary:
        """The machine in few figures."""
        it = self._document
        return MachineSummary(
            host=it["host"],
            cpu=it["cpu"]["model_name"],
            date=it["date"],
            membound_version=it["membound_version"],
            incomplete=it["incomplete"],
            cpus=len(it["cpu"]["online"]),
            memory_bytes=it["memory_bytes"],
            hypervisor=it["conditions"]["hypervisor"],
            kernel=it["conditions"]["kernel"],
            elapsed_s=it["elapsed_s"],
        )

    def levels(self) -> Frame:
        """The levels of the hierarchy, found from the latency curve, innermost first."""
        required(self._document, "latency")
        return self._table("levels", self._document["levels"], _level)

    def latency(self) -> Frame:
        """The latency curve: time of a load over size, stride, pattern and page kind."""
        return self._table("latency", self._points("latency"), _latency)

    def mlp(self) -> Frame:
        """Loads at once and fillers between them: the N × K plane and the loads in sequence."""
        return self._table("mlp", required(self._document, "mlp")["cells"], _mlp)

    def bandwidth(self) -> Frame:
        """Bytes a second in each level and in memory."""
        return self._table("bandwidth", self._points("bandwidth"), _bandwidth)

    def loaded(self) -> Frame:
        """Latency while other CPUs inject traffic."""
        return self._table("loaded", self._points("loaded"), _loaded)

    def tlb(self) -> Frame:
        """Time of a load over pages, and the part of it that is translation."""
        return self._table("tlb", self._points("tlb"), _tlb)

    def prefetch(self) -> Frame:
        """Access patterns that the hardware fetches ahead."""
        return self._table("prefetch", self._points("prefetch"), _prefetch)

    def numa(self) -> Frame:
        """The CPUs of each node against the memory of each node."""
        return self._table("numa", required(self._document, "numa")["pairs"], _numa)

    def c2c(self) -> Frame:
        """How long a line takes from one core to another."""
        return self._table("c2c", required(self._document, "c2c")["pairs"], _c2c)

    def missing(self) -> Frame:
        """What was not measured, and what to switch on for it."""
        rows = []
        for part in ("model", *PARTS):
            value = self._document[part]
            if reason(value) is not None:
                why = value["not_measured"]
                rows.append({"what": part, "reason": why["reason"], "remedy": why.get("remedy")})
        return self._frames.table(_columns.MACHINE["missing"], rows)

    def _points(self, part: str) -> Any:
        return required(self._document, part)["points"]

    def _table(self, name: str, rows: Any, row: Callable[[Object], Mapping[str, Any]]) -> Frame:
        return self._frames.table(_columns.MACHINE[name], [row(one) for one in rows])


def _profile(document: Object) -> Object:
    """A machine profile of what `membound measure --json` writes, which for one part is that part alone.

    Raises Error for any other document.
    """
    kind = document.get("kind")
    if kind == "machine":
        return document
    if kind not in PARTS:
        raise Error(f"a document of kind `{kind}` is no machine profile (`membound measure --json FILE` writes one)")
    other = {"not_measured": {"reason": "it was not asked for"}}
    return {
        **document["machine"],
        **{part: other for part in ("model", *PARTS)},
        "schema_version": document["schema_version"],
        "kind": "machine",
        "incomplete": document["incomplete"],
        "levels": [],
        "elapsed_s": document["elapsed_s"],
        kind: document,
    }


def _interval(name: str, unit: str, row: Object, base: str) -> dict[str, Any]:
    """The three columns of a figure that stands in a document as `x`, `x_low`, `x_high`."""
    ends = ("", "_low", "_high")
    return {f"{name}{end}_{unit}": row[f"{base}{end}"] for end in ends}


def _text(value: Any) -> str | None:
    """A name; a number that stands for one, as of a node, too."""
    return None if value is None else str(value)


def _level(row: Object) -> Mapping[str, Any]:
    return {
        **{column.name: row.get(column.name) for column in _columns.MACHINE["levels"]},
        "unknown_because": "memory has no size that a curve would show" if row["kind"] == "memory" else None,
    }


def _latency(row: Object) -> Mapping[str, Any]:
    taint = row.get("prefetch_taint")
    return {
        "size_bytes": row["size_bytes"],
        "stride_bytes": row["stride_bytes"],
        "pattern": row["pattern"],
        "access": row["access"],
        "page": row["page"],
        "node": _text(row["node"]),
        "prefetch": _text(row["prefetch"]),
        "threads": row["threads"],
        **_interval("latency", "ns", row, "ns"),
        "latency_cycles": row["cycles"],
        "samples": row["samples"],
        "prefetch_ratio": None if taint is None else taint["ratio"],
        "unknown_because": "the core clock is not known" if row["cycles"] is None else None,
    }


def _mlp(row: Object) -> Mapping[str, Any]:
    return {
        **{name: row[name] for name in ("mode", "loads", "fillers", "filler", "area_bytes", "page")},
        "node": _text(row["node"]),
        "time_cycles": row["cycles"],
        "spread_cycles": row["spread"],
    }


def _bandwidth(row: Object) -> Mapping[str, Any]:
    return {
        "kernel": row["kernel"],
        "vector_bits": int(row["vector"]),
        "size_bytes": row["size_bytes"],
        "level": row.get("level"),
        "threads": row["threads"],
        "page": row["page"],
        "node": _text(row["node"]),
        **_interval("rate", "gb_s", row, "gb_s"),
        "with_allocate_gb_s": row["gb_s_with_allocate"],
    }


def _loaded(row: Object) -> Mapping[str, Any]:
    return {
        "reads": row["mix"]["reads"],
        "writes": row["mix"]["writes"],
        "injectors": row["injectors"],
        "delay_steps": row["delay_steps"],
        "rate_gb_s": row["gb_s"],
        **_interval("latency", "ns", row, "ns"),
        "latency_cycles": row["cycles"],
        "unknown_because": "the core clock is not known" if row["cycles"] is None else None,
    }


def _tlb(row: Object) -> Mapping[str, Any]:
    return {
        "page": row["page"],
        "pages": row["pages"],
        "latency_ns": row["ns"],
        "packed_latency_ns": row["packed_ns"],
        "translation_cycles": row["translation_cycles"],
    }


def _prefetch(row: Object) -> Mapping[str, Any]:
    pattern = row["pattern"]
    return {
        "pattern": pattern["name"],
        "stride_bytes": pattern.get("stride_bytes"),
        "streams": pattern.get("streams"),
        "prefetch": _text(row["prefetch"]),
        "latency_ns": row["ns"],
        "random_latency_ns": row["random_ns"],
        "ratio": row["ratio"],
        "prefetched": row["prefetched"],
    }


def _numa(row: Object) -> Mapping[str, Any]:
    values = {name: row[name] for name in ("placed_share", "latency_ns", "read_gb_s")}
    return {
        **{name: row[name] for name in ("cpu_node", "memory_node", "cpu", "distance")},
        "placed_percent": percent(known(values["placed_share"])),
        "latency_ns": known(values["latency_ns"]),
        "read_gb_s": known(values["read_gb_s"]),
        "unknown_because": because(reason(value) for value in values.values()),
    }


def _c2c(row: Object) -> Mapping[str, Any]:
    return {
        "from_cpu": row["from"],
        "to_cpu": row["to"],
        "one_way_ns": row["one_way_ns"],
        "one_way_low_ns": row["one_way_low_ns"],
        "one_way_high_ns": row["one_way_high_ns"],
    }
