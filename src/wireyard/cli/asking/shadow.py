"""``wireyard shadow``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

import click

from wireyard.cli.asking.answers import (
    columns,
    head_of,
    limit_option,
    opened_tables,
    out_option,
    reading_options,
    status_of,
    wrapped,
)
from wireyard.cli.asking.sql import WRITERS
from wireyard.cli.options import PATH, examples
from wireyard.cli.output import open_output
from wireyard.errors import UsageError
from wireyard.formats.marks import shown

if TYPE_CHECKING:
    from wireyard.answers import Tables
    from wireyard.shadow import Difference

__all__ = ["command"]

_CLASSES = (18, -7, -7, -7, -7, -24)
_MOST_SHOWN = 10


@click.command(
    "shadow",
    epilog=examples(
        "wireyard shadow old.pcapng new.pcapng",
        "wireyard shadow lake-2.0 lake-2.1 --out jsonl | jq 'select(.breaks == \"B\")'",
    ),
)
@click.argument("inputs", metavar="A B", nargs=-1, type=PATH)
@reading_options
@limit_option(_MOST_SHOWN, "Show the first N differences.", least=0)
@out_option("A summary in words, or all differences.", "csv")
def command(inputs: tuple[str, ...], limit: int, out: str, **how: Any) -> int:
    """Show what the broker of one recording did otherwise than that of another.

    Both have the same MQTT clients. A and B are captures, streams, folders of them, or lakes.
    Deliveries are matched by client id, topic and payload, never by time, ports or packet ids;
    connections by client id and number. What a recording could not show is no difference. Each has
    a class, the side that breaks a rule if any does, and a frame of each side.
    """
    from wireyard.shadow import differences

    if len(inputs) != 2:
        raise UsageError("shadow: name two recordings, A and B")
    with opened_tables(inputs[:1], **how) as a, opened_tables(inputs[1:], **how) as b:
        found = differences(a, b)
        with open_output(None, binary=False) as file:
            if out == "text":
                for line in _text(found, limit, inputs, (a, b)):
                    file.write(f"{line}\n".encode())
            else:
                WRITERS[out](_table(found), file)
        return max(status_of(a), status_of(b))


def _table(found: Sequence[Difference]) -> Any:
    """Return the table of differences."""
    import pyarrow as pa

    from wireyard.shadow import Difference

    kinds = {name: pa.int64() if name.endswith("_frame") else pa.string()
             for name in Difference._fields}  # fmt: skip
    return pa.Table.from_pylist([each._asdict() for each in found], pa.schema(kinds.items()))


def _text(
    found: Sequence[Difference], limit: int, inputs: Sequence[str], sides: Sequence[Tables]
) -> Iterator[str]:
    for side, name, tables in zip("AB", inputs, sides, strict=True):
        yield f"{side}  {name}"
        yield from head_of(tables)
    yield ""
    if not found:
        yield "no difference"
        return
    yield from _summary(found)
    for each in found[:limit]:
        yield ""
        yield from _one(each, sides)
    if len(found) > limit:
        yield ""
        yield f"and {len(found) - limit:,} others"


def _summary(found: Sequence[Difference]) -> Iterator[str]:
    counts = Counter((each.difference, each.breaks) for each in found)
    yield columns(_CLASSES, "class", "rows", "A", "B", "both", "neither breaks a rule")
    for kind in dict.fromkeys(each.difference for each in found):
        numbers = [counts[kind, breaks] for breaks in ("A", "B", "both", "neither")]
        cells = (f"{number:,}" if number else "-" for number in numbers)
        yield columns(_CLASSES, kind, f"{sum(numbers):,}", *cells)


def _one(each: Difference, sides: Sequence[Tables]) -> Iterator[str]:
    where = f" on {shown(each.destination)}" if each.destination else ""
    yield f"{each.difference}: {shown(each.client)}{where}"
    for side, tables, text, frame, source in (
        ("A", sides[0], each.a, each.a_frame, each.a_source),
        ("B", sides[1], each.b, each.b_frame, each.b_source),
    ):
        place = ""
        if frame is not None and source is not None:
            file, number = tables.frame_files.find(source, frame)
            place = f", frame {number} of {PurePath(file).name}"
        yield from wrapped(f"{side}  {shown(text)}{place}", 2)
    if each.text is not None:
        rule = f" [{each.rule}]" if each.rule else ""
        yield from wrapped(f"{each.breaks} breaks it: {each.text}{rule}", 2)
