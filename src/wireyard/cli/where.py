"""Conditions as they are typed: ``packet_type in 1,2``, ``destination == orders``."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

from wireyard.errors import UsageError
from wireyard.formats import Format
from wireyard.schema import pick_columns
from wireyard.streams.plan import Condition

__all__ = ["parse_conditions"]

_FORM = re.compile(r"\s*(\w+)\s*(==|!=|<=|>=|<|>|\bin\b)\s*(.*?)\s*", re.DOTALL)
_BOOLEANS = {"true": True, "false": False}
_VALUES: dict[str, Callable[[str], Any]] = {
    "bool": lambda text: _BOOLEANS[text.lower()],
    "int32": lambda text: int(text, 0),
    "int64": lambda text: int(text, 0),
}
"""How the value of a column of that kind is read; of any other it is text."""


def parse_conditions(
    format: Format, texts: Iterable[str], *, captured: bool = False
) -> list[Condition]:
    """Return conditions on columns of a format; `captured` on those of captures too.

    Raises
    ------
    UsageError
        A text of another form, an unknown column, or a value that is none of its kind.
    """
    return [_parse(format, text, captured) for text in texts]


def _parse(format: Format, text: str, captured: bool) -> Condition:
    found = _FORM.fullmatch(text)
    if found is None:
        raise UsageError(f"--where '{text}' is not COLUMN OPERATOR VALUE; == != < <= > >= in")
    name, sign, value = found.groups()
    (column,) = pick_columns(format, [name], captured=captured)
    read = _VALUES.get(column.kind, str)
    try:
        if sign == "in":
            return name, sign, [read(part.strip()) for part in value.split(",")]
        return name, sign, read(value)
    except (ValueError, KeyError):
        raise UsageError(f"--where '{text}': {name} is {column.kind}, not like that") from None
