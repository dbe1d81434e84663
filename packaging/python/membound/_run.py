"""A run that was recorded: where a program waited for memory."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Literal

from . import _columns
from ._command import Error, NotMeasured, output_of
from ._document import Object, because, figure, known, percent, reason, required
from ._frames import Frame, Frames
from ._machine import Machine

#: What `Run.stalls` groups by.
Grouping = Literal["function", "line", "instruction", "thread", "level", "function,object"]

#: The list in the document that holds each grouping.
_LISTS: Mapping[str, str] = {
    "function": "functions",
    "line": "lines",
    "instruction": "instructions",
    "thread": "threads",
    "level": "levels",
    "function,object": "function_objects",
}


@dataclass(frozen=True)
class Summary:
    """A run in few figures. What is not known is None."""

    #: Command and arguments; empty when a process was attached to.
    command: tuple[str, ...]
    host: str
    cpu: str
    #: When it was recorded, RFC 3339 in UTC.
    date: str
    #: The version that recorded it.
    membound_version: str
    #: The recording was cut short: what is there is true of the part that was recorded.
    incomplete: bool
    #: Exit code of the program, when it ended by itself.
    exit_code: int | None
    #: Signal that ended it.
    signal: int | None
    #: Wall time.
    elapsed_s: float
    #: CPU time of all threads.
    cpu_s: float
    #: The part of it that waited for memory.
    stall_s: float
    #: Time of all threads on no CPU.
    idle_s: float
    #: Share of CPU time that waited for memory, with its 95 % interval.
    memory_bound_percent: float
    memory_bound_low_percent: float
    memory_bound_high_percent: float
    #: Average latency of the accesses that were timed.
    latency_ns: float | None
    #: Why that is not known.
    latency_unknown_because: str | None
    #: Timer samples, also those in membound's own code inside the program, which no table holds.
    samples: int
    #: By how much longer the program took because it was recorded (an estimate).
    recording_cost_percent: float


class Run(Generic[Frame]):
    """A recorded run, or a selected part of one. `membound.open` makes it."""

    def __init__(self, path: str | os.PathLike[str], frames: Frames[Frame], part: Sequence[str] = ()) -> None:
        self._path = Path(path)
        self._frames = frames
        self._part = tuple(part)
        self._document: Object = json.loads(self._report("json"))

    def __repr__(self) -> str:
        it = self.summary()
        command = " ".join(it.command) or "a process"
        return (
            f"<membound.Run {self._path}: {command}, memory bound {it.memory_bound_percent:.0f} % "
            f"[{it.memory_bound_low_percent:.0f}, {it.memory_bound_high_percent:.0f}] of {it.cpu_s:.2f} s CPU>"
        )

    @property
    def path(self) -> Path:
        """The run file."""
        return self._path

    @property
    def document(self) -> Object:
        """The whole document of `membound report --format json`, for what no table has."""
        return self._document

    def select(
        self,
        *,
        from_s: float | None = None,
        to_s: float | None = None,
        threads: Iterable[int | str] = (),
    ) -> Run[Frame]:
        """The part of the run in a span of time, or of threads by number or name; without arguments the whole run.

        Raises Error when the run has no such part.
        """
        part = []
        if from_s is not None or to_s is not None:
            ends = ["" if end_s is None else f"{end_s:.9f}s" for end_s in (from_s, to_s)]
            part.append(f"--span={'..'.join(ends)}")
        named = [str(thread) for thread in threads]
        if named:
            part.append(f"--thread={','.join(named)}")
        return Run(self._path, self._frames, part)

    def summary(self) -> Summary:
        """The run in few figures."""
        document = self._document
        run, time, bound = document["run"], document["time"], document["memory_bound"]
        latency = known(document["latency"])
        return Summary(
            command=tuple(run["command"]),
            host=run["host"],
            cpu=run["cpu"],
            date=run["date"],
            membound_version=run["membound_version"],
            incomplete=document["incomplete"],
            exit_code=run["exit_code"],
            signal=run["signal"],
            elapsed_s=document["elapsed_s"],
            cpu_s=time["cpu_s"],
            stall_s=time["memory_stall_s"],
            idle_s=time["idle_s"],
            memory_bound_percent=bound["fraction"] * 100.0,
            memory_bound_low_percent=bound["low"] * 100.0,
            memory_bound_high_percent=bound["high"] * 100.0,
            latency_ns=None if latency is None else latency["ns"],
            latency_unknown_because=reason(document["latency"]),
            samples=run["samples"],
            recording_cost_percent=document["overhead"]["cost_fraction"] * 100.0,
        )

    def machine(self) -> Machine[Frame]:
        """The machine profile that the run's latencies were read by.

        Raises NotMeasured when the run holds none.
        """
        # The command shows it in no report. The table is part of the format of runs (docs/formats/run.md).
        try:
            with closing(sqlite3.connect(f"{self._path.absolute().as_uri()}?mode=ro", uri=True)) as database:
                row = database.execute("select profile from machine").fetchone()
        except sqlite3.Error as error:
            raise Error(f"{self._path}: {error}") from error
        if row is None:
            remedy = "run `membound measure` before recording"
            raise NotMeasured("machine", "the run holds no machine profile", remedy)
        return Machine(json.loads(row[0]), self._frames)

    def stalls(self, by: Grouping = "function") -> Frame:
        """CPU time and the part of it that waited for memory, most stalled first."""
        if by not in _LISTS:
            raise Error(f"there is no grouping `{by}`: use {', '.join(_LISTS)}")
        rows = self._document[_LISTS[by]]
        if by == "level":
            return self._frames.table(_columns.STALLS[by], [self._level(row) for row in rows])
        copied = [column.name for column in _columns.STALLS[by]]
        return self._frames.table(_columns.STALLS[by], [{**_copy(row, copied), **self._figures(row)} for row in rows])

    def objects(self) -> Frame:
        """The same by object: heap blocks by allocating call chain, variables, mappings, stacks.

        Raises NotMeasured when allocations were not followed and nothing else is known.
        """
        rows = self._document["objects"]
        # Mappings, variables and stacks are known also where allocations were not followed.
        if not rows and not self._document["run"]["objects_recorded"]:
            raise self._why_not("objects", "allocations were not followed")
        return self._frames.table(_columns.RUN["objects"], [self._object(row) for row in rows])

    def samples(self) -> Frame:
        """Every timer sample, by time."""
        return self._frames.arrow(self._report("arrow"))

    def sharing(self) -> Frame:
        """Lines that threads contend for: those of which they share no data first."""
        document = self._document
        if not document["run"]["latencies_recorded"]:
            raise self._why_not("latency", "accesses were not timed")
        rows = [_shared("false", row) for row in document["false_sharing"]]
        rows += [_shared("true", row) for row in document["true_sharing"]]
        return self._frames.table(_columns.RUN["sharing"], rows)

    def memory(self) -> Frame:
        """Live bytes over time, of all objects together and of each.

        Raises NotMeasured when allocations were not followed.
        """
        memory = required(self._document, "memory")
        rows = [_moment(None, None, moment) for moment in memory["timeline"]]
        for one in memory["objects"]:
            rows += [_moment(one["name"], one["kind"], moment) for moment in one["timeline"]]
        return self._frames.table(_columns.RUN["memory"], rows)

    def bandwidth(self) -> Frame:
        """Traffic over time by domain.

        Raises NotMeasured when there is none.
        """
        domains = self._document["bandwidth"]
        if not domains:
            raise self._why_not("bandwidth", "no traffic was seen")
        rows = [
            {
                "domain": domain["domain"],
                "basis": domain["basis"],
                "time_s": moment["t_s"],
                "read_gb_s": moment["read_gb_s"],
                "write_gb_s": moment["write_gb_s"],
                "machine_max_gb_s": known(domain["machine_max_gb_s"]),
                "unknown_because": because([reason(domain["machine_max_gb_s"])]),
            }
            for domain in domains
            for moment in domain["timeline"]
        ]
        return self._frames.table(_columns.RUN["bandwidth"], rows)

    def findings(self) -> Frame:
        """What to look at first, most important first."""
        rows = [
            {
                "kind": found["kind"],
                "text": found["text"],
                "advice": found["advice"] or None,
                **figure("gain", "percent", found["predicted_gain"], 100.0),
                "threshold": found["threshold"],
                "unknown_because": None if found["predicted_gain"] else "no gain can be predicted",
            }
            for found in self._document["findings"]
        ]
        return self._frames.table(_columns.RUN["findings"], rows)

    def missing(self) -> Frame:
        """What is not known of the whole run, and what to switch on for it."""
        rows = [
            {"what": gap["table"], "reason": gap["why"]["reason"], "remedy": gap["why"].get("remedy")}
            for gap in self._document["missing"]
        ]
        if self._document["memory_bound"]["l1_and_l2_together"]:
            why = "the timer cannot tell L1 and L2 apart: `stall_l1_s` holds both"
            rows.append({"what": "stall_l2_s", "reason": why, "remedy": None})
        return self._frames.table(_columns.RUN["missing"], rows)

    def _report(self, form: str) -> bytes:
        return output_of(["report", f"--format={form}", *self._part, "--", self._path])

    def _why_not(self, table: str, otherwise: str) -> NotMeasured:
        """What the run says of a table that it does not have."""
        for gap in self._document["missing"]:
            if gap["table"] == table:
                return NotMeasured(table, gap["why"]["reason"], gap["why"].get("remedy"))
        return NotMeasured(table, otherwise)

    def _stall(self, row: Object) -> dict[str, Any]:
        """The stall of a row, in seconds and in per cent."""
        cpu_s = self._document["time"]["cpu_s"]
        ends = {"": row["stall_fraction"], "_low": row["stall_low"], "_high": row["stall_high"]}
        seconds = {f"stall{end}_s": fraction * cpu_s for end, fraction in ends.items()}
        return {**seconds, **{f"stall{end}_percent": percent(fraction) for end, fraction in ends.items()}}

    def _figures(self, row: Object) -> dict[str, Any]:
        cpu_s = self._document["time"]["cpu_s"]
        levels = {f"stall_{level}_s": row["levels"][level] * cpu_s for level in _columns.LEVELS}
        if self._document["memory_bound"]["l1_and_l2_together"]:
            levels["stall_l2_s"] = None
        counts = ("loads", "stores", "llc_misses")
        return {
            "samples": row["samples"],
            "cpu_s": row["time_s"],
            "cpu_percent": percent(row["time_fraction"]),
            **self._stall(row),
            **levels,
            "latency_ns": row["avg_latency_ns"],
            "latency_cycles": row["avg_latency_cycles"],
            **{f"{count}{end}": row.get(f"{count}{end}") for count in counts for end in ("", "_low", "_high")},
            "worth_a_look": row["flagged"],
            "confidence": row["confidence"],
            "unknown_because": because(
                [
                    self._untimed() if row["avg_latency_ns"] is None else None,
                    self._uncounted() if any(row[count] is None for count in counts) else None,
                ]
            ),
        }

    def _untimed(self) -> str:
        if self._document["run"]["latencies_recorded"]:
            return "none of its accesses was timed"
        return self._why_not("latency", "accesses were not timed").reason

    def _uncounted(self) -> str:
        if self._document["run"]["latencies_recorded"]:
            return "not all of its executions and misses were counted"
        return self._why_not("latency", "accesses were not timed").reason

    def _level(self, row: Object) -> dict[str, Any]:
        missing = [name for name in ("accesses_fraction", "latency_ns") if row[name] is None]
        words = {"accesses_fraction": "no access that it served was timed", "latency_ns": "its latency is not known"}
        return {
            "name": row["name"],
            **self._stall(row),
            "accesses_percent": percent(row["accesses_fraction"]),
            "latency_ns": row["latency_ns"],
            "unknown_because": because(words[name] for name in missing),
        }

    def _object(self, row: Object) -> dict[str, Any]:
        names = ("name", "kind", "size_bytes", "blocks", "total_bytes", "lifetime_s", "false_sharing")
        return {
            **_copy(row, names),
            # Blocks that were not sampled were counted one by one.
            "blocks_low": row.get("blocks_low", row["blocks"]),
            "blocks_high": row.get("blocks_high", row["blocks"]),
            "node_local_percent": percent(row["node_local_fraction"]),
            "alloc_stack": " < ".join(_place(frame) for frame in row["alloc_stack"]) or None,
            **self._figures(row),
        }


def _copy(row: Object, names: Iterable[str]) -> dict[str, Any]:
    """The columns that have the same name in the document."""
    return {name: row[name] for name in names if name in row}


def _place(frame: Object) -> str:
    if frame["file"] is None:
        return str(frame["function"])
    line = "" if frame["line"] is None else f":{frame['line']}"
    return f"{frame['function']} ({frame['file']}{line})"


def _moment(name: str | None, kind: str | None, moment: Object) -> dict[str, Any]:
    return {"object": name, "kind": kind, "time_s": moment["t_s"], "live_bytes": moment["bytes"]}


def _shared(kind: str, row: Object) -> dict[str, Any]:
    code = sorted(row["sites"], key=lambda site: -site["accesses"])
    return {
        "kind": kind,
        "object": row["object"],
        "object_offset_bytes": row["object_offset"],
        "line_address": row["line_address"],
        "line_bytes": row["line_bytes"],
        "pid": row["pid"],
        "threads": len(row["threads"]),
        "offsets": len(row["offsets"]),
        "code": ", ".join(dict.fromkeys(site["name"] for site in code)) or None,
        "stall_percent": percent(row["stall_fraction"]),
        **figure("gain", "percent", row["predicted_gain"], 100.0),
        "latency_ns": row["avg_latency_ns"],
        "l1_latency_ns": row["l1_latency_ns"],
        "advice": row["advice"] or None,
        "confidence": row["confidence"],
        "unknown_because": because(
            [
                None if row["predicted_gain"] else "no gain can be predicted",
                "its accesses were not timed" if row["avg_latency_ns"] is None else None,
                "the run holds no latency of the innermost cache" if row["l1_latency_ns"] is None else None,
            ]
        ),
    }
