"""Tables as data frames of the library that is chosen, with the types that the columns declare."""

from __future__ import annotations

import importlib
import importlib.util
import io
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

from ._columns import RUN, Columns
from ._command import Error

if TYPE_CHECKING:
    import pandas
    import polars

#: Which library frames are of; `rows` is a list of dictionaries and needs none.
Backend = Literal["pandas", "polars", "rows"]
Rows = list[dict[str, Any]]
Frame = TypeVar("Frame", covariant=True)


class Frames(Protocol[Frame]):
    """What makes frames of one kind."""

    def table(self, columns: Columns, rows: Sequence[Mapping[str, Any]]) -> Frame:
        """A frame with these columns; each row has a value or None for every one."""
        ...

    def arrow(self, file: bytes) -> Frame:
        """A frame of what the command exports as an Arrow file."""
        ...


class _Rows:
    def table(self, columns: Columns, rows: Sequence[Mapping[str, Any]]) -> Rows:
        return [{column.name: row[column.name] for column in columns} for row in rows]

    def arrow(self, file: bytes) -> Rows:
        if _is_there("pyarrow"):
            # It has no types of its own.
            pyarrow: Any = importlib.import_module("pyarrow")
            with pyarrow.ipc.open_file(file) as reader:
                rows: Rows = reader.read_all().to_pylist()
                return rows
        if _is_there("polars"):
            return _Polars().arrow(file).to_dicts()
        raise Error("samples are read by pyarrow or polars, and neither is installed: pip install pyarrow")


class _Pandas:
    #: Nullable types, so that a column's type does not depend on what is unknown in it.
    TYPES: Mapping[str, Any] = {
        "text": "string",
        "integer": "Int64",
        "unsigned": "UInt64",
        "number": "float64",
        "flag": "boolean",
    }

    def table(self, columns: Columns, rows: Sequence[Mapping[str, Any]]) -> pandas.DataFrame:
        import pandas

        data = {
            column.name: pandas.Series([row[column.name] for row in rows], dtype=self.TYPES[column.type])
            for column in columns
        }
        return pandas.DataFrame(data)

    def arrow(self, file: bytes) -> pandas.DataFrame:
        if not _is_there("pyarrow"):
            raise Error("pandas reads samples with pyarrow, which is not installed: pip install 'membound[pandas]'")
        pyarrow: Any = importlib.import_module("pyarrow")
        with pyarrow.ipc.open_file(file) as reader:
            table = reader.read_all()
        frame: pandas.DataFrame = table.to_pandas()
        numbers = [column for column in RUN["samples"] if column.type in ("integer", "unsigned")]
        return frame.astype({column.name: self.TYPES[column.type] for column in numbers})


class _Polars:
    def table(self, columns: Columns, rows: Sequence[Mapping[str, Any]]) -> polars.DataFrame:
        import polars

        types: Mapping[str, Any] = {
            "text": polars.String,
            "integer": polars.Int64,
            "unsigned": polars.UInt64,
            "number": polars.Float64,
            "flag": polars.Boolean,
        }
        data = {column.name: [row[column.name] for row in rows] for column in columns}
        return polars.DataFrame(data, schema={column.name: types[column.type] for column in columns})

    def arrow(self, file: bytes) -> polars.DataFrame:
        import polars

        return polars.read_ipc(io.BytesIO(file))


class _Automatic:
    """Chooses when the first frame is made, so that a run can be opened without a library of frames."""

    def table(self, columns: Columns, rows: Sequence[Mapping[str, Any]]) -> Any:
        return choose(_automatic()).table(columns, rows)

    def arrow(self, file: bytes) -> Any:
        return choose(_automatic()).arrow(file)


def choose(backend: Backend | None) -> Frames[Any]:
    """What makes frames of `backend`; with None, of the library that the program uses or has.

    Raises Error when that library is not installed, or no backend has this name.
    """
    if backend is None:
        return _Automatic()
    if backend == "rows":
        return _Rows()
    makers: Mapping[str, _Pandas | _Polars] = {"pandas": _Pandas(), "polars": _Polars()}
    if backend not in makers:
        raise Error(f"there is no backend `{backend}`: use pandas, polars or rows")
    if not _is_there(backend):
        raise Error(f"{backend} is not installed: pip install 'membound[{backend}]'")
    return makers[backend]


def _automatic() -> Backend:
    """The library that the program has imported, else the one that is installed; pandas where both are."""
    names: tuple[Backend, ...] = ("pandas", "polars")
    for name in names:
        if name in sys.modules:
            return name
    for name in names:
        if _is_there(name):
            return name
    raise Error(
        "neither pandas nor polars is installed: pip install 'membound[pandas]' or 'membound[polars]', "
        'or say backend="rows"'
    )


def _is_there(name: str) -> bool:
    return name in sys.modules or importlib.util.find_spec(name) is not None
