"""Reading values of membound's JSON documents, in which what is unknown has a reason."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ._command import NotMeasured

#: A JSON object of a document.
Object = Mapping[str, Any]


def known(value: Any) -> Any:
    """A value, or None where it was not measured."""
    return None if reason(value) is not None else value


def reason(value: Any) -> str | None:
    """Why a value was not measured; None where it was."""
    if isinstance(value, Mapping) and "not_measured" in value:
        return str(value["not_measured"]["reason"])
    return None


def required(document: Object, name: str) -> Any:
    """A part of a document. Raises NotMeasured where it was not measured."""
    value = document[name]
    if reason(value) is not None:
        why = value["not_measured"]
        raise NotMeasured(name, why["reason"], why.get("remedy"))
    return value


def scaled(value: float | None, by: float) -> float | None:
    """A value in another unit; what is unknown stays so."""
    return None if value is None else value * by


def percent(fraction: float | None) -> float | None:
    """A fraction in per cent."""
    return scaled(fraction, 100.0)


def figure(name: str, unit: str, value: Object | None, by: float = 1.0) -> dict[str, float | None]:
    """The three columns of a figure with its interval."""
    ends = value if value is not None else {}
    return {
        f"{name}_{unit}": scaled(ends.get("value"), by),
        f"{name}_low_{unit}": scaled(ends.get("low"), by),
        f"{name}_high_{unit}": scaled(ends.get("high"), by),
    }


def because(reasons: Iterable[str | None]) -> str | None:
    """The reasons of a row in one text, each once; None where there are none."""
    given = dict.fromkeys(reason for reason in reasons if reason)
    return "; ".join(given) or None
