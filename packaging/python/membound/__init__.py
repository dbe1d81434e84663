"""Where programs wait for memory, as data frames.

    import membound

    run = membound.profile(["./program", "argument"])   # or membound.open("membound.run")
    run.stalls(by="line")
    run.objects()
    machine = membound.measure(quick=True)
    machine.levels()

Frames are of pandas or polars: of the one that the program has imported, else of the one that is installed;
`backend="pandas"`, `"polars"` or `"rows"` (a list of dictionaries) says which. The unit is the end of a column's name,
`x_low_…` and `x_high_…` are the interval of `x_…`, and what is not known is null, with the reason in the column
`unknown_because`. `COLUMNS` describes every column of every table.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, Union, overload

from ._columns import COLUMNS, Column
from ._command import Error, NotMeasured
from ._frames import Backend, Rows, choose
from ._machine import Machine, MachineSummary
from ._record import USUAL_RUN, measure_machine, read_machine, record
from ._run import Grouping, Run, Summary

if TYPE_CHECKING:
    import pandas
    import polars

__all__ = [
    "COLUMNS",
    "Backend",
    "Column",
    "Error",
    "Grouping",
    "Machine",
    "MachineSummary",
    "NotMeasured",
    "Rows",
    "Run",
    "Summary",
    "measure",
    "open",
    "open_machine",
    "profile",
]

_Path = Union[str, "os.PathLike[str]"]


@overload
def open(path: _Path = ..., *, backend: None = ...) -> Run[Any]: ...
@overload
def open(path: _Path = ..., *, backend: Literal["pandas"]) -> Run[pandas.DataFrame]: ...
@overload
def open(path: _Path = ..., *, backend: Literal["polars"]) -> Run[polars.DataFrame]: ...
@overload
def open(path: _Path = ..., *, backend: Literal["rows"]) -> Run[Rows]: ...
def open(path: _Path = USUAL_RUN, *, backend: Backend | None = None) -> Run[Any]:
    """Opens a run that `membound profile` recorded.

    Raises Error with the command's message when the file is not there, is no run, or holds no sample.
    """
    return Run(path, choose(backend))


@overload
def open_machine(path: _Path, *, backend: None = ...) -> Machine[Any]: ...
@overload
def open_machine(path: _Path, *, backend: Literal["pandas"]) -> Machine[pandas.DataFrame]: ...
@overload
def open_machine(path: _Path, *, backend: Literal["polars"]) -> Machine[polars.DataFrame]: ...
@overload
def open_machine(path: _Path, *, backend: Literal["rows"]) -> Machine[Rows]: ...
def open_machine(path: _Path, *, backend: Backend | None = None) -> Machine[Any]:
    """Opens what `membound measure --json FILE` wrote. Raises Error when it is no such document."""
    return read_machine(path, choose(backend))


_Command = Sequence[_Path]
_MachineOrPath = Union[_Path, Machine[Any], None]


@overload
def profile(
    command: _Command,
    output: _Path = ...,
    *,
    machine: _MachineOrPath = ...,
    options: Sequence[str] = ...,
    backend: None = ...,
) -> Run[Any]: ...
@overload
def profile(
    command: _Command,
    output: _Path = ...,
    *,
    machine: _MachineOrPath = ...,
    options: Sequence[str] = ...,
    backend: Literal["pandas"],
) -> Run[pandas.DataFrame]: ...
@overload
def profile(
    command: _Command,
    output: _Path = ...,
    *,
    machine: _MachineOrPath = ...,
    options: Sequence[str] = ...,
    backend: Literal["polars"],
) -> Run[polars.DataFrame]: ...
@overload
def profile(
    command: _Command,
    output: _Path = ...,
    *,
    machine: _MachineOrPath = ...,
    options: Sequence[str] = ...,
    backend: Literal["rows"],
) -> Run[Rows]: ...
def profile(
    command: _Command,
    output: _Path = USUAL_RUN,
    *,
    machine: _MachineOrPath = None,
    options: Sequence[str] = (),
    backend: Backend | None = None,
) -> Run[Any]:
    """Runs `command` to its end, records where it waits for memory into the file `output`, and opens that.

    `machine` is a machine profile or its file (default: the one that `membound measure` keeps; a quick one is made when
    there is none, which takes about a minute once). `options` are further options of `membound profile`, as in
    `["--no-objects"]`. The program keeps its stdin and stdout; its exit code is in `Run.summary()`.

    Raises Error with the command's message when nothing could be recorded.
    """
    return record(command, output, machine, options, choose(backend))


@overload
def measure(
    parts: Sequence[str] = ...,
    *,
    quick: bool = ...,
    output: _Path | None = ...,
    options: Sequence[str] = ...,
    backend: None = ...,
) -> Machine[Any]: ...
@overload
def measure(
    parts: Sequence[str] = ...,
    *,
    quick: bool = ...,
    output: _Path | None = ...,
    options: Sequence[str] = ...,
    backend: Literal["pandas"],
) -> Machine[pandas.DataFrame]: ...
@overload
def measure(
    parts: Sequence[str] = ...,
    *,
    quick: bool = ...,
    output: _Path | None = ...,
    options: Sequence[str] = ...,
    backend: Literal["polars"],
) -> Machine[polars.DataFrame]: ...
@overload
def measure(
    parts: Sequence[str] = ...,
    *,
    quick: bool = ...,
    output: _Path | None = ...,
    options: Sequence[str] = ...,
    backend: Literal["rows"],
) -> Machine[Rows]: ...
def measure(
    parts: Sequence[str] = (),
    *,
    quick: bool = False,
    output: _Path | None = None,
    options: Sequence[str] = (),
    backend: Backend | None = None,
) -> Machine[Any]:
    """Measures this machine: all parts, or those named, as in `["latency", "bandwidth"]`.

    Everything takes some minutes, with `quick` less than one. The document also goes to the file `output`. `options`
    are further options of `membound measure`, as in `["--max", "256M"]`.

    Raises Error with the command's message when nothing could be measured.
    """
    return measure_machine(parts, quick, output, options, choose(backend))
