"""Where the membound command is, and running it.

Everything that this package knows comes from the command's documents, so that both say the same.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
from collections.abc import Iterator, Sequence

#: Names a membound binary that is taken instead of the installed one.
VARIABLE = "MEMBOUND_COMMAND"
#: What the command begins its messages with.
PREFIX = "membound: "


class Error(Exception):
    """What was asked for could not be done; the message is the command's, one line."""


class NotMeasured(Error):
    """A table that the document does not have, with the reason and, where there is one, the remedy."""

    def __init__(self, what: str, reason: str, remedy: str | None = None) -> None:
        self.what = what
        self.reason = reason
        self.remedy = remedy
        super().__init__(f"{what}: {reason}" + (f" ({remedy})" if remedy else ""))


def _directories() -> Iterator[str]:
    """Directories that installers put commands into, the likeliest first."""
    yield sysconfig.get_path("scripts")
    yield sysconfig.get_path("scripts", "nt_user" if os.name == "nt" else "posix_user")
    # `pip install --target`.
    package = os.path.dirname(os.path.abspath(__file__))
    yield os.path.join(os.path.dirname(package), "bin")


def find() -> str:
    """The path of the membound binary: that of the variable, the installed one, else one along PATH.

    Raises Error when there is none.
    """
    named = os.environ.get(VARIABLE)
    if named:
        if not os.access(named, os.X_OK):
            raise Error(f"{VARIABLE} names {named}, which is no program")
        return named
    for directory in _directories():
        command = os.path.join(directory, "membound")
        if os.path.isfile(command):
            return command
    found = shutil.which("membound")
    # A file of this name that starts this module would start itself again and again.
    if found is None or b"python" in _first_line(found):
        raise Error("the command is not where pip installs commands, and not along PATH")
    return found


def _first_line(path: str) -> bytes:
    with open(path, "rb") as file:
        begin = file.read(128)
    return begin.split(b"\n", 1)[0] if begin.startswith(b"#!") else b""


def output_of(arguments: Sequence[str | os.PathLike[str]]) -> bytes:
    """What the command writes to stdout. Raises Error with its message when it fails."""
    done = subprocess.run([find(), *arguments], stdin=subprocess.DEVNULL, capture_output=True, check=False)
    if done.returncode != 0:
        raise Error(message(done.stderr, f"the command ended with {done.returncode}"))
    return done.stdout


def message(stderr: bytes, otherwise: str) -> str:
    """The last line that the command itself wrote, without its name; `otherwise` when it wrote none."""
    lines = stderr.decode(errors="replace").splitlines()
    # clap's messages, which are about arguments, begin differently.
    for begin in (PREFIX, "error: "):
        for line in reversed(lines):
            if line.startswith(begin):
                return line[len(begin) :]
    return otherwise
