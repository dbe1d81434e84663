"""The columns of every table: name with its unit, type, and what it means.

An interval is `x_low` and `x_high` beside `x`, before the unit; it is the 95 % interval. What is not known is null, and
`unknown_because` of the same row says why; `Run.missing` says what is not known of the whole run.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

Type = Literal["text", "integer", "unsigned", "number", "flag"]


class Column(NamedTuple):
    """One column of a table."""

    #: Its name, the unit last: `_s`, `_ns`, `_bytes`, `_percent`, `_gb_s` (10⁹ bytes a second), `_cycles` (core).
    name: str
    #: What its values are.
    type: Type
    #: What they mean.
    meaning: str


Columns = tuple[Column, ...]


def _interval(name: str, unit: str, meaning: str) -> Columns:
    """A figure with both ends of its interval."""
    return (
        Column(f"{name}_{unit}", "number", meaning),
        Column(f"{name}_low_{unit}", "number", "lower end of its interval"),
        Column(f"{name}_high_{unit}", "number", "upper end of its interval"),
    )


def _count(name: str, meaning: str) -> Columns:
    """A count, which is an estimate, with both ends of its interval."""
    return (
        Column(name, "number", meaning),
        Column(f"{name}_low", "number", "lower end of its interval"),
        Column(f"{name}_high", "number", "upper end of its interval"),
    )


LEVELS = ("l1", "l2", "l3", "dram", "remote", "unknown")

_WHY = Column("unknown_because", "text", "why figures of this row are not known; null where all are known")

_STALL: Columns = (
    *_interval("stall", "s", "CPU time that waited for memory here"),
    *_interval("stall", "percent", "the same as a share of all CPU time of the run"),
)

_FIGURES: Columns = (
    Column("samples", "integer", "timer samples"),
    Column("cpu_s", "number", "CPU time"),
    Column("cpu_percent", "number", "the same as a share of all CPU time of the run"),
    *_STALL,
    *(
        Column(f"stall_{level}_s", "number", f"the part of `stall_s` that waited for {name}")
        for level, name in zip(
            LEVELS,
            (
                "L1 (for L1 and L2 where the timer cannot tell them apart)",
                "L2 (null where it is told together with L1)",
                "L3",
                "memory of the own node",
                "memory of another node, or another core's cache",
                "a level that is not known",
            ),
        )
    ),
    Column("latency_ns", "number", "average latency of its accesses"),
    Column("latency_cycles", "number", "the same in cycles of the core"),
    *_count("loads", "executions of loads"),
    *_count("stores", "executions of stores"),
    *_count("llc_misses", "executions that the last cache did not hold"),
    Column("worth_a_look", "flag", "past a threshold of the report"),
    Column("confidence", "number", "how sure the attribution to instructions is, 0 to 1"),
    _WHY,
)

_CODE: Columns = (
    Column("name", "text", "function, `file:line`, or the instruction"),
    Column("function", "text", "function that it is in"),
    Column("module", "text", "file of the code"),
    Column("file", "text", "source file; null without line numbers"),
    Column("line", "integer", "source line"),
    Column("address", "unsigned", "address in the module; of a function where it begins"),
    *_FIGURES,
)

#: By grouping of `Run.stalls`.
STALLS: dict[str, Columns] = {
    "function": _CODE,
    "line": _CODE,
    "instruction": _CODE,
    "thread": (
        Column("name", "text", "name of the thread"),
        Column("pid", "integer", "its process"),
        Column("tid", "integer", "its number"),
        Column("lifetime_s", "number", "how long it lived"),
        Column("idle_s", "number", "the part of that on no CPU"),
        *_FIGURES,
    ),
    "level": (
        Column("name", "text", "`L1`, `L1+L2`, `L2`, `L3`, `DRAM`, `remote` or `unknown`"),
        *_STALL,
        Column("accesses_percent", "number", "share of the executions that it served"),
        Column("latency_ns", "number", "its latency on this machine"),
        _WHY,
    ),
    "function,object": (
        Column("function", "text", "function"),
        Column("module", "text", "file of its code"),
        Column("object", "text", "object that it waited for"),
        *_FIGURES,
    ),
}

#: By the method of `Run`.
RUN: dict[str, Columns] = {
    "objects": (
        Column("name", "text", "`file:line (size)` of the allocation, symbol, thread or path"),
        Column("kind", "text", "`heap`, `mapped`, `file`, `global`, `stack` or `unknown`"),
        Column("size_bytes", "integer", "bytes of one block (the median)"),
        *_count("blocks", "blocks that were allocated"),
        Column("total_bytes", "integer", "bytes of all blocks"),
        Column("lifetime_s", "number", "average lifetime of a block; null where none was freed"),
        Column("false_sharing", "flag", "threads contend for lines of it without sharing data"),
        Column("node_local_percent", "number", "share of its accesses to the thread's own node"),
        Column("alloc_stack", "text", "call chain of the allocation, innermost first, ` < ` between"),
        *_FIGURES,
    ),
    "samples": (
        Column("time_ns", "integer", "since the run began"),
        Column("cpu_ns", "integer", "CPU time that the sample stands for"),
        Column("stall_ns", "integer", "the part of it that waited for memory"),
        Column("level", "text", "level that the stalled part waited for; null where nothing was stalled"),
        Column("object", "text", "object that it waited for; null where it is not known"),
        Column("thread", "text", "name of the thread"),
        Column("pid", "integer", "its process"),
        Column("tid", "integer", "its number"),
        Column("function", "text", "function of the innermost frame"),
        Column("module", "text", "file of its code"),
        Column("file", "text", "source file"),
        Column("line", "integer", "source line"),
        Column("address", "unsigned", "address in the module"),
        Column("stack", "text", "call chain, outermost first, `;` between"),
        Column("sampled_accesses", "unsigned", "events that a processor's own sample stands for; null in timer samples"),
        Column("line_from", "text", "where the line of that access came from"),
        Column("latency_cycles", "integer", "core clock cycles of that access; null where they were not measured"),
        Column("data_address", "unsigned", "what that access read or wrote"),
    ),
    "sharing": (
        Column("kind", "text", "`false` (threads contend for a line without sharing data) or `true`"),
        Column("object", "text", "what lies on the line"),
        Column("object_offset_bytes", "integer", "where in the object the line begins"),
        Column("line_address", "unsigned", "address of the line in the process"),
        Column("line_bytes", "integer", "its size"),
        Column("pid", "integer", "the process"),
        Column("threads", "integer", "threads that use the line"),
        Column("offsets", "integer", "distinct offsets that they use"),
        Column("code", "text", "lines of code, most accesses first, `, ` between"),
        Column("stall_percent", "number", "what it costs, as a share of all CPU time"),
        *_interval("gain", "percent", "share of the wall time that separating the data would save"),
        Column("latency_ns", "number", "average latency of accesses to the line"),
        Column("l1_latency_ns", "number", "latency of a hit in the innermost cache"),
        Column("advice", "text", "what to do"),
        Column("confidence", "number", "how sure it is, 0 to 1"),
        _WHY,
    ),
    "memory": (
        Column("object", "text", "the object; null for all together"),
        Column("kind", "text", "what it is"),
        Column("time_s", "number", "since the run began"),
        Column("live_bytes", "integer", "live bytes from then on until the next row"),
    ),
    "bandwidth": (
        Column("domain", "text", "`DRAM`, the memory of one node, or a link between nodes"),
        Column("basis", "text", "`measured` with counters, or `modelled`"),
        Column("time_s", "number", "since the run began"),
        Column("read_gb_s", "number", "read from then on until the next row"),
        Column("write_gb_s", "number", "written"),
        Column("machine_max_gb_s", "number", "the most that this machine was measured to do"),
        _WHY,
    ),
    "findings": (
        Column("kind", "text", "what it is about"),
        Column("text", "text", "what was found, with its figures"),
        Column("advice", "text", "what to do; null if nothing"),
        *_interval("gain", "percent", "share of the wall time that following the advice would save"),
        Column("threshold", "text", "the threshold that was passed"),
        _WHY,
    ),
    "missing": (
        Column("what", "text", "the table or field that is not there"),
        Column("reason", "text", "why"),
        Column("remedy", "text", "what to switch on; null where nothing helps"),
    ),
}

_BANDWIDTH: Columns = _interval("rate", "gb_s", "bytes that the program asked for, all threads together")

#: By the method of `Machine`.
MACHINE: dict[str, Columns] = {
    "levels": (
        Column("name", "text", "`L1`, `L2`, …, `DRAM`"),
        Column("kind", "text", "`cache` or `memory`"),
        *_interval("size", "bytes", "effective size, found from the curve"),
        *_interval("latency", "ns", "load-to-use latency; its interval holds nine tenths of the plateau's points"),
        Column("latency_cycles", "number", "the same in cycles of the core"),
        Column("line_bytes", "integer", "line size"),
        Column("line_basis", "text", "`measured` or `declared`"),
        Column("declared_bytes", "integer", "size that the machine declares"),
        Column("note", "text", "a sentence where effective and declared size differ"),
        _WHY,
    ),
    "latency": (
        Column("size_bytes", "integer", "bytes that one copy walks over"),
        Column("stride_bytes", "integer", "distance between elements"),
        Column("pattern", "text", "order of the accesses"),
        Column("access", "text", "`clean` or `dirty`"),
        Column("page", "text", "page kind, verified"),
        Column("node", "text", "node policy, verified"),
        Column("prefetch", "text", "setting of the prefetchers"),
        Column("threads", "integer", "copies at once"),
        *_interval("latency", "ns", "load-to-use latency"),
        Column("latency_cycles", "number", "the same in cycles of the core"),
        Column("samples", "integer", "batches behind it"),
        Column("prefetch_ratio", "number", "this ÷ the pattern that shows that prefetchers shortened it; else null"),
        _WHY,
    ),
    "mlp": (
        Column("mode", "text", "`parallel`, or `sequential`: each load outside the window of the one before"),
        Column("loads", "integer", "loads (N)"),
        Column("fillers", "integer", "instructions between the last two loads (K)"),
        Column("filler", "text", "their kind"),
        Column("area_bytes", "integer", "bytes that the loads fall into"),
        Column("page", "text", "page kind, verified"),
        Column("node", "text", "node policy, verified"),
        Column("time_cycles", "number", "cycles of an execution, without those of the empty kernel"),
        Column("spread_cycles", "number", "half the width of the middle half of the batches"),
    ),
    "bandwidth": (
        Column("kernel", "text", "`read`, `write`, `nt-write`, `copy` or `triad`"),
        Column("vector_bits", "integer", "bits of its vectors"),
        Column("size_bytes", "integer", "bytes that each thread works on"),
        Column("level", "text", "level that they fit in, where known"),
        Column("threads", "integer", "threads"),
        Column("page", "text", "page kind, verified"),
        Column("node", "text", "node policy, verified"),
        *_BANDWIDTH,
        Column("with_allocate_gb_s", "number", "the same with the lines that stores read first"),
    ),
    "loaded": (
        Column("reads", "integer", "lines that an injector reads in each round"),
        Column("writes", "integer", "lines that it writes"),
        Column("injectors", "integer", "injecting threads"),
        Column("delay_steps", "integer", "pause between rounds, about core cycles; null when injectors are idle"),
        Column("rate_gb_s", "number", "traffic of the injectors"),
        *_interval("latency", "ns", "latency of the chase meanwhile"),
        Column("latency_cycles", "number", "the same in cycles of the core"),
        _WHY,
    ),
    "tlb": (
        Column("page", "text", "page kind"),
        Column("pages", "integer", "pages under the chase, one line on each"),
        Column("latency_ns", "number", "time of a load"),
        Column("packed_latency_ns", "number", "time of a load with as many lines packed together"),
        Column("translation_cycles", "number", "the difference, in cycles of the core"),
    ),
    "prefetch": (
        Column("pattern", "text", "order of the accesses"),
        Column("stride_bytes", "integer", "its stride, where it has one"),
        Column("streams", "integer", "its streams, where it has several"),
        Column("prefetch", "text", "setting of the prefetchers"),
        Column("latency_ns", "number", "time of a load"),
        Column("random_latency_ns", "number", "time of random loads with the same footprint"),
        Column("ratio", "number", "the first ÷ the second"),
        Column("prefetched", "flag", "whether the hardware fetches it ahead"),
    ),
    "numa": (
        Column("cpu_node", "integer", "node of the CPU"),
        Column("memory_node", "integer", "node of the memory"),
        Column("cpu", "integer", "the CPU"),
        Column("distance", "integer", "what the firmware declares, 10 is local"),
        Column("placed_percent", "number", "share of the pages verified to lie there"),
        Column("latency_ns", "number", "latency of a random chase"),
        Column("read_gb_s", "number", "read bandwidth of one thread"),
        _WHY,
    ),
    "c2c": (
        Column("from_cpu", "integer", "one CPU"),
        Column("to_cpu", "integer", "the other"),
        *_interval("one_way", "ns", "half a round trip of a line"),
    ),
    "missing": RUN["missing"],
}

#: Every table by what returns it.
COLUMNS: dict[str, Columns] = {
    **{f'Run.stalls(by="{by}")': columns for by, columns in STALLS.items()},
    **{f"Run.{name}()": columns for name, columns in RUN.items()},
    **{f"Machine.{name}()": columns for name, columns in MACHINE.items()},
}
