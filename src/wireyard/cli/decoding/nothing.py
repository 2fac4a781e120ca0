"""What an input has in the columns of conditions that none of its rows meets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from typing import Any, Final

from wireyard.captures.inputs import Input
from wireyard.formats.rows import pick_columns
from wireyard.streams.conditions import ALIASES, Where, comparisons, parse
from wireyard.streams.plan import make_plan
from wireyard.streams.scan import scan_streams
from wireyard.text import moment

__all__ = ["what_there_is"]

_MOST_ROWS: Final = 1 << 20
_MOST_VALUES: Final = 10_000
_SHOWN: Final = 5


def what_there_is(found: Input, where: Where) -> str:
    """Return the values of the columns of a condition, those like the wanted ones first."""
    tree = parse(where)
    wanted = {one.column: one.value for one in comparisons(tree)} if tree else {}
    return "; ".join(filter(None, (_values(found, *each) for each in wanted.items())))


def _values(found: Input, name: str, wanted: Sequence[Any]) -> str:
    """Return what a column holds, empty if it holds nothing."""
    values: dict[Any, None] = {}
    rows = 0
    for batch in _batches(found, name):
        values |= dict.fromkeys(batch)
        rows += len(batch)
        if rows > _MOST_ROWS or len(values) > _MOST_VALUES:
            break
    for empty in (None, ""):
        values.pop(empty, None)
    if not values:
        return f"{name} has no value"
    if name == "captured_ns":
        return f"packets are from {moment(min(values))} to {moment(max(values))}"
    if len(values) > _SHOWN and isinstance(next(iter(values)), int):
        return f"{name} is {min(values)} to {max(values)}"
    texts = [
        text.lower() if text in ("True", "False") else text for text in sorted(map(str, values))
    ]
    close = [like for value in wanted for like in get_close_matches(str(value), texts, _SHOWN, 0.5)]
    shown = list(dict.fromkeys([*close, *texts]))[:_SHOWN]
    others = len(texts) - len(shown)
    return f"{name} is {', '.join(shown)}" + (f" and {others:,} others" if others else "")


def _batches(found: Input, name: str) -> Iterator[list[Any]]:
    """Yield the values of a column of all formats that have it."""
    for format, opened in found.readables:
        known = {column.name for column in pick_columns(format, None, captured=found.captured)}
        own = name if name in known else ALIASES.get(name, "")
        if own in known:
            plan = make_plan(format, [own], captured=found.captured)
            for batch in scan_streams([(opened, plan)]):
                yield batch[own].to_pylist()
