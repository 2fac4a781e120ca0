"""``wireyard encode``."""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import replace
from functools import cache

import click

from wireyard.cli import exits
from wireyard.cli.jsonl import row_of
from wireyard.cli.options import PATH, examples, format_option
from wireyard.cli.output import open_output
from wireyard.cli.selection import PARENT
from wireyard.errors import EncodeError, SourceError, WireError
from wireyard.formats import Format, get_format, names
from wireyard.formats.base import Row
from wireyard.layout import Column
from wireyard.schema import COMMON, pick_columns
from wireyard.streams.source import Reading, open_source, reading

__all__ = ["command"]

_MAX_LINE_BYTES = 1 << 30
"""Two digits for each byte of the largest payload there is (256 MiB in MQTT) and as much again for
all else, or six characters, as JSON writes the worst of them, for each that JMQ takes (70 MiB)."""

_CHUNK_BYTES = 1 << 20


@click.command(
    "encode",
    epilog=examples(
        "wireyard decode in.jmq --secrets --out jsonl | wireyard encode -w out.jmq",
        'echo \'{"packet_type":54,"consumer_id":7}\' | wireyard encode --format jmq -w ping.jmq',
    ),
)
@click.argument("file", metavar="[FILE]", default="-", type=PATH)
@click.option("-w", "--write", type=PATH, metavar="FILE", help="Write there, whole or not at all.")
@format_option("what each row says")
@click.option("--skip-faults", is_flag=True, help="Leave out rows that are no well-formed packets.")
def command(file: str, write: str | None, format_name: str | None, skip_faults: bool) -> int:
    """Turn JSON Lines, as decode prints them, back into packets.

    FILE is a path, a URL, or - for standard input, which is the default. What decode printed
    comes back byte for byte. Columns that are left out get the format's defaults; columns that
    follow from others (size, packet_type_name, flags..) are not looked at.
    """
    skipped = 0
    with open_output(write, binary=True) as target, closing(_lines(file)) as lines:
        for number, line in lines:
            try:
                format, row = _row(line, format_name)
                if row.get(PARENT.name) is not None:
                    continue  # Its parent has it.
                if row.get("status") in (None, "ok"):
                    target.write(_encode(format, row))
                elif skip_faults:
                    skipped += 1
                else:
                    raise EncodeError("status", row["status"], "only packets can be written")
            except WireError as error:
                error.add_note(f"in {file}, line {number}")
                raise
    if skipped:
        exits.note(f"{file}: {skipped} row{'s' * (skipped != 1)} left out, being no packets")
    return exits.DONE


def _lines(path: str) -> Generator[tuple[int, bytes]]:
    """Yield the lines that are not blank, each with its number."""
    name, file, _ = open_source(path)
    number, size = 1, 0
    parts: list[bytes] = []
    with file:
        while chunk := _read(file, name):
            for place, piece in enumerate(chunk.split(b"\n")):
                if place:
                    yield from _unless_blank(number, parts)
                    number, size, parts = number + 1, 0, []
                parts.append(piece)
                size += len(piece)
                if size > _MAX_LINE_BYTES:
                    raise SourceError(f"{name}, line {number}: is over {_MAX_LINE_BYTES} bytes")
    yield from _unless_blank(number, parts)


def _unless_blank(number: int, parts: list[bytes]) -> Iterator[tuple[int, bytes]]:
    if line := b"".join(parts).strip():
        yield number, line


def _read(file: Reading, name: str) -> bytes:
    with reading(name):
        return file.read(_CHUNK_BYTES)


def _row(line: bytes, format_name: str | None) -> tuple[Format, Row]:
    """Return the format and the row of a line."""
    try:
        values = json.loads(line.decode())
    except (UnicodeDecodeError, RecursionError):
        raise SourceError("is no JSON: bytes that are not UTF-8, or too many brackets") from None
    except json.JSONDecodeError as error:
        raise SourceError(f"is no JSON: {error.msg}, column {error.colno}") from None
    if not isinstance(values, dict):
        raise SourceError("is no row: an object with columns is needed")
    name = format_name or values.get("format")
    if not isinstance(name, str):
        raise SourceError("the row has no 'format'; name it with --format")
    format, columns = _format(name)
    return format, row_of(values, columns)


@cache
def _format(name: str) -> tuple[Format, dict[str, Column]]:
    """Return the format of rows of a name, and the columns they may have by what they call them."""
    others = () if name in names() else map(get_format, names())
    for format in others:
        if own := format.other_rows.get(name):
            columns = {column.name: replace(column, name=at) for at, column in own.items()}
            return format, {**{column.name: column for column in COMMON}, **columns}
    format = get_format(name)
    return format, {column.name: column for column in (*pick_columns(format, None), PARENT)}


def _encode(format: Format, row: Row) -> bytes:
    """Return the packet of a row; a body that was taken out of it is not silently left out."""
    body = format.body
    size = row.get(f"{body}_size")
    if size is not None and size != len(row.get(body) or b""):
        problem = f"{body}_size is {size}; decode --secrets --body hex keeps it as it is"
        raise EncodeError(body, row.get(body), problem)
    return format.encode(format.packet_of(row, format.context))
