"""Real runs and a machine profile, recorded once; the programs know what they do.

MEMBOUND_COMMAND names the binary. MEMBOUND_TEST_DATA names a directory in which another run of these tests, with
another Python, finds what this one recorded; without it everything is recorded again.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

import membound
from membound._command import find

WORKSPACE = Path(__file__).parents[3]
FIXTURES = WORKSPACE / "crates/membound/tests/profile/fixtures"
SHARING = WORKSPACE / "bench/accuracy/sharing.c"
BACKENDS = ("pandas", "polars", "rows")


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    named = os.environ.get("MEMBOUND_TEST_DATA")
    place = Path(named) if named else tmp_path_factory.mktemp("data")
    place.mkdir(parents=True, exist_ok=True)
    return place


@pytest.fixture(scope="session")
def machine_file(data: Path) -> Path:
    """A profile of this machine with what latencies are read by; with one page kind, which takes half the time."""
    path = data / "machine.json"
    if not path.exists():
        membound.measure(["latency", "calibration"], quick=True, output=path, options=["--page", "4k"])
    return path


def build(data: Path, name: str) -> Path:
    """A program of the workspace that knows its own truth, compiled."""
    program = data / name
    source = SHARING if name == "sharing" else FIXTURES / f"{name}.c"
    if not program.exists():
        if shutil.which("cc") is None:
            pytest.skip("no C compiler")
        flags = ["-O2", "-g", "-pthread", f"-I{FIXTURES}", "-o", str(program)]
        subprocess.run(["cc", *flags, str(source)], check=True)
    return program


@pytest.fixture(scope="session")
def objects_run(data: Path, machine_file: Path) -> Path:
    """A program that chases through six blocks; what it prints is beside the run."""
    return recorded(data, machine_file, "objects", ["1500"])


@pytest.fixture(scope="session")
def sharing_run(data: Path, machine_file: Path) -> Path:
    """Two threads that sum into records that share lines."""
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("one CPU: no threads contend for a line")
    return recorded(data, machine_file, "sharing", ["false", "40000"])


def recorded(data: Path, machine_file: Path, name: str, arguments: list[str]) -> Path:
    run = data / f"{name}.run"
    if not run.exists():
        program = build(data, name)
        with open(data / f"{name}.txt", "wb") as said:
            subprocess.run(
                [find(), "profile", "--quiet", f"--machine={machine_file}", f"--output={run}", "--"]
                + [str(program), *arguments],
                stdout=said,
                check=True,
            )
    return run


@pytest.fixture(scope="session")
def document(objects_run: Path) -> Any:
    """What the command itself says of the run."""
    return document_of(objects_run)


def document_of(run: Path) -> Any:
    return json.loads(
        subprocess.run([find(), "report", str(run), "--format=json"], check=True, capture_output=True).stdout
    )


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> Any:
    if request.param != "rows":
        pytest.importorskip(request.param)
    return request.param


def rows_of(frame: Any) -> list[dict[str, Any]]:
    """Any frame as dictionaries in which what is unknown is None."""
    if isinstance(frame, list):
        return frame
    if hasattr(frame, "to_dicts"):
        rows: list[dict[str, Any]] = frame.to_dicts()
        return rows
    import pandas

    as_objects = frame.astype(object).where(frame.notna(), None)
    assert isinstance(as_objects, pandas.DataFrame)
    return [dict(zip(as_objects.columns, values)) for values in as_objects.itertuples(index=False)]
