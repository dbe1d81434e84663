"""What is installed: the command behind the module, types, and the page of the book."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import membound
from conftest import FIXTURES, WORKSPACE
from membound import COLUMNS, _command

PACKAGE = Path(membound.__file__).parent
PAGE = WORKSPACE / "docs/book/python.md"


def test_the_module_is_the_command() -> None:
    version = [sys.executable, "-m", "membound", "--version"]
    by_module = subprocess.run(
        version, check=True, capture_output=True, env={**os.environ, "PYTHONPATH": str(PACKAGE.parent)}
    )
    by_name = subprocess.run([_command.find(), "--version"], check=True, capture_output=True)
    assert by_module.stdout == by_name.stdout
    assert by_name.stdout.startswith(b"membound ")


def test_a_command_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(_command.VARIABLE, str(tmp_path / "membound"))
    with pytest.raises(membound.Error, match="MEMBOUND_COMMAND names"):
        membound.open("x.run")
    monkeypatch.delenv(_command.VARIABLE)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(_command, "_directories", lambda: iter([str(tmp_path)]))
    with pytest.raises(membound.Error, match="not where pip installs"):
        membound.open("x.run")


def test_a_script_that_starts_this_module_is_not_taken_for_the_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script = tmp_path / "membound"
    script.write_text("#!/usr/bin/python3\nimport membound.__main__\n")
    script.chmod(0o755)
    monkeypatch.delenv(_command.VARIABLE, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(_command, "_directories", lambda: iter(()))
    with pytest.raises(membound.Error, match="not where pip installs"):
        _command.find()


def test_types_are_strict(data: Path) -> None:
    pytest.importorskip("mypy")
    pytest.importorskip("pandas")
    pytest.importorskip("polars")
    files = [str(PACKAGE), str(Path(__file__).parent / "typed.py")]
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", f"--cache-dir={data / 'mypy'}", *files],
        capture_output=True,
        text=True,
        cwd=PACKAGE.parent,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_the_book_describes_every_column() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for table, columns in COLUMNS.items():
        assert f"`{table}`" in page or table.startswith("Run.stalls"), f"{table} is not in {PAGE}"
        for column in columns:
            row = f"| `{column.name}` | {column.type} | {column.meaning} |"
            ends = re.sub(r"_(low|high)", "", column.name) if re.search(r"_(low|high)(_|$)", column.name) else None
            assert row in page or (ends and f"`{ends}`" in page), f"{table}: {row} is not in {PAGE}"


def test_the_examples_of_the_book_run(
    objects_run: Path, machine_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pandas")
    pytest.importorskip("polars")
    pytest.importorskip("pyarrow")
    subprocess.run(["cc", "-O2", "-g", "-o", tmp_path / "objects", FIXTURES / "objects.c"], check=True)
    (tmp_path / "membound.run").write_bytes(objects_run.read_bytes())
    (tmp_path / "machine.json").write_bytes(machine_file.read_bytes())
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 3
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)
