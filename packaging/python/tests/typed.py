"""What type checkers are to know of the package: read by mypy in `test_package.py`, never run."""

from __future__ import annotations

from typing import Any

import pandas
import polars
from typing_extensions import assert_type

import membound

assert_type(membound.open("x.run"), "membound.Run[Any]")
assert_type(membound.open("x.run", backend="pandas").stalls(), pandas.DataFrame)
assert_type(membound.open("x.run", backend="polars").objects(), polars.DataFrame)
assert_type(membound.open("x.run", backend="rows").samples(), list[dict[str, Any]])
assert_type(membound.profile(["true"], backend="polars").select(to_s=1).sharing(), polars.DataFrame)
assert_type(membound.measure(quick=True, backend="pandas").levels(), pandas.DataFrame)
assert_type(membound.open("x.run", backend="polars").machine().latency(), polars.DataFrame)
assert_type(membound.open("x.run").summary().latency_ns, "float | None")
assert_type(membound.open_machine("m.json").summary().hypervisor, "str | None")

membound.open("x.run", backend="numpy")  # type: ignore[call-overload]
membound.open("x.run").stalls(by="colour")  # type: ignore[arg-type]
