"""Recording: a program into a run, this machine into a profile."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ._command import Error, find, message, output_of
from ._frames import Frames
from ._machine import PARTS, Machine
from ._run import Run

#: Where a run goes when no file is named, as in the command.
USUAL_RUN = "membound.run"


def record(
    command: Sequence[str | os.PathLike[str]],
    output: str | os.PathLike[str],
    machine: str | os.PathLike[str] | Machine[Any] | None,
    options: Sequence[str],
    frames: Frames[Any],
) -> Run[Any]:
    """Runs a program under `membound profile`, and opens what was recorded."""
    if isinstance(command, (str, bytes)) or not command:
        raise Error("the command is a list of words, as in ['./program', 'argument']")
    for option in options:
        if option.split("=")[0] in ("--repeat", "--until"):
            raise Error(f"{option} makes several runs, and this opens one: call profile() for each of them")
    with tempfile.TemporaryDirectory(prefix="membound-") as place:
        arguments: list[str | os.PathLike[str]] = ["profile", "--quiet", f"--output={os.fspath(output)}"]
        if isinstance(machine, Machine):
            machine.save(Path(place, "machine.json"))
            arguments.append(f"--machine={Path(place, 'machine.json')}")
        elif machine is not None:
            arguments.append(f"--machine={os.fspath(machine)}")
        before = _identity(output)
        done = subprocess.run([find(), *arguments, *options, "--", *command], stderr=subprocess.PIPE, check=False)
    # The program's own messages, and what membound says beside them.
    sys.stderr.write(done.stderr.decode(errors="replace"))
    # The exit code is the program's own; whether there is a new run tells whether it was recorded.
    if _identity(output) == before:
        raise Error(message(done.stderr, f"nothing was recorded: `membound profile` ended with {done.returncode}"))
    return Run(output, frames)


def _identity(path: str | os.PathLike[str]) -> tuple[int, int, int] | None:
    """What differs between a file and the one that takes its place."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def measure_machine(
    parts: Sequence[str],
    quick: bool,
    output: str | os.PathLike[str] | None,
    options: Sequence[str],
    frames: Frames[Any],
) -> Machine[Any]:
    """Runs `membound measure`, and reads what it found."""
    if isinstance(parts, str):
        parts = [parts]
    for part in parts:
        if part not in PARTS:
            raise Error(f"there is no part `{part}`: use {', '.join(PARTS)}")
    speed = ["--quick"] if quick else []
    document = json.loads(output_of(["measure", *parts, *speed, *options, "--json=-"]))
    machine = Machine(document, frames)
    if output is not None:
        machine.save(output)
    return machine


def read_machine(path: str | os.PathLike[str], frames: Frames[Any]) -> Machine[Any]:
    """Reads what `membound measure --json` wrote."""
    name = os.fspath(path)
    try:
        document = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise Error(f"{name}: {error.strerror}") from error
    except ValueError as error:
        raise Error(f"{name} is no JSON: {error}") from error
    if not isinstance(document, dict):
        raise Error(f"{name} is no document of membound's")
    return Machine(document, frames)
