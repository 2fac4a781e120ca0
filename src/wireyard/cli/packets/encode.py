"""``wireyard encode``."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from functools import cache
from itertools import groupby
from operator import itemgetter
from types import MappingProxyType
from typing import Any

import click

from wireyard.cli import exits
from wireyard.cli.decoding.selection import PARENT
from wireyard.cli.options import PATH, examples, format_option, write_option
from wireyard.cli.output import open_output
from wireyard.errors import EncodeError, SourceError, UsageError
from wireyard.formats import Format, get_format, names
from wireyard.formats.base import Row
from wireyard.layout import Column
from wireyard.payloads.columns import ROW_COLUMNS
from wireyard.schema import CAPTURED, COMMON
from wireyard.streams.source import Reading, open_source, reading
from wireyard.text import count_text

_MAX_LINE_BYTES = 1 << 30
"""Two digits for each byte of the largest payload (256 MiB in MQTT) and as much again for all other
columns; or six characters, JSON's longest escape, for each of JMQ's largest text (70 MiB)."""

_CHUNK_BYTES = 1 << 20
_OF_EVERY_ROW = {column.name: column for column in (*COMMON, *CAPTURED, PARENT)}


@click.command(
    "encode",
    epilog=examples(
        "wireyard decode in.jmq --secrets --out jsonl | wireyard encode -w out.jmq",
        'echo \'{"packet_type":54,"consumer_id":7}\' | wireyard encode --format jmq -w ping.jmq',
    ),
)
@click.argument("file", metavar="[FILE]", default="-", type=PATH)
@write_option()
@format_option("what each row says")
@click.option("--skip-faults", is_flag=True, help="Leave out rows that are no well-formed packets.")
def command(file: str, write: str | None, format_name: str | None, skip_faults: bool) -> int:
    """Turn JSON Lines, as decode prints them, back into packets.

    FILE is a path, a URL, or - for standard input, which is the default. The output of decode
    becomes the same bytes again: raw_header and similar columns have the bytes that other columns
    do not determine, and are used as long as they agree with these. Missing columns get the
    format's defaults. Columns that follow from others (size, packet_type_name, flags..) may be
    missing too; a row where one of them contradicts the others is refused.
    """
    with open_output(write, binary=True) as target, closing(_lines(file)) as lines:
        packets, count = _Packets(lines, format_name, skip_faults), 0
        try:
            for format, group in groupby(packets, key=itemgetter(0)):
                for row in format.several.join_rows(map(itemgetter(1), group), format.context):
                    data = format.encode(format.packet_of(row, format.context))
                    _check_derived(format, row, data)
                    target.write(data)
                    count += 1
        except (EncodeError, UsageError, _NoRow) as error:
            error.add_note(f"in {file}, line {packets.line}")
            raise
    exits.note_written(write, count_text(count, "packet"))
    if packets.skipped:
        exits.note(f"{file}: {count_text(packets.skipped, 'row')} left out, being no packets")
    return exits.DONE


def _check_derived(format: Format, row: Row, data: bytes) -> None:
    """Reject a row if a derived column differs from the value in the encoded packet."""
    made, _ = format.read_row(data, format.contexts.of_row(row, format.context))
    for name, origin in format.derived.items():
        value = row.get(name)
        if value is not None and value != made.get(name):
            raise EncodeError(name, value, f"by {origin} it is {made.get(name)!r}")


class _NoRow(SourceError):
    """A line is no row."""


class _Packets:
    """A single-pass iterator over the rows of lines that are packets, each with its format.

    `lines` are lines of JSON, each with its number. `format_name` is the format of all rows; if
    None, each row has a column `format`. `skip_faults` is whether to leave out rows that are no
    well-formed packets instead of raising an error.
    """

    def __init__(
        self, lines: Iterator[tuple[int, bytes]], format_name: str | None, skip_faults: bool
    ) -> None:
        self.line = 0
        """Number of the line that was read last."""
        self.skipped = 0
        self._lines = lines
        self._format_name = format_name
        self._skip_faults = skip_faults

    def __iter__(self) -> Iterator[tuple[Format, Row]]:
        for number, line in self._lines:
            self.line = number
            format, row = _row(line, self._format_name)
            if row.get(PARENT.name) is not None:
                continue  # part of its parent
            if row.get("status") not in (None, "ok"):
                if not self._skip_faults:
                    raise EncodeError("status", row["status"], "only packets can be written")
                self.skipped += 1
                continue
            _check_body(format, row)
            yield format, row


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
        raise _NoRow("is no JSON: bytes that are not UTF-8, or too many brackets") from None
    except json.JSONDecodeError as error:
        raise _NoRow(f"is no JSON: {error.msg}, column {error.colno}") from None
    if not isinstance(values, dict):
        raise _NoRow("is no row: an object with columns is needed")
    said = values.get("format")
    name = format_name or said
    if not isinstance(name, str):
        raise _NoRow("the row has no 'format'; name it with --format")
    if isinstance(said, str) and name in names() and said in get_format(name).inner.other_rows:
        name = said  # a row of another kind of packet of the format
    format, columns = _format(name)
    for opened in ROW_COLUMNS:  # follow from the payload
        values.pop(opened.name, None)
    return format, _row_of(values, columns)


@cache
def _format(name: str) -> tuple[Format, dict[str, Column]]:
    """Return the format of rows whose column `format` is `name`, and their columns by name."""
    others = () if name in names() else map(get_format, names())
    for format in others:
        if own := format.inner.other_rows.get(name):
            columns = {column.name: replace(column, name=at) for at, column in own.items()}
            return format, {**_OF_EVERY_ROW, **columns}
    format = get_format(name)
    return format, {**_OF_EVERY_ROW, **{column.name: column for column in format.columns}}


def _check_body(format: Format, row: Row) -> None:
    """Reject a row whose body was removed, so that it is not silently lost."""
    body = format.body.column
    size = row.get(f"{body}_size")
    if size is not None and size != len(row.get(body) or b""):
        problem = f"{body}_size is {size}; decode --secrets --body hex keeps it as it is"
        raise EncodeError(body, row.get(body), problem)


# --- values --------------------------------------------------------------------------------


def _bytes_of(name: str, text: Any) -> bytes:
    try:
        return bytes.fromhex(text)
    except (TypeError, ValueError):
        raise EncodeError(name, text, "bytes are written as hexadecimal") from None


def _items_of(name: str, items: Any) -> list[Row]:
    if not isinstance(items, list):
        raise EncodeError(name, items, "a list of {type, value} is needed")
    return [_item_of(item) for item in items]


def _item_of(item: Any) -> Row:
    match item:
        case {"type": int(code), "value": str(text)}:
            return {"type": code, "value": _bytes_of(f"item {code}", text)}
    raise EncodeError("item", item, "a number as type and a value in hexadecimal are needed")


def _properties_of(name: str, properties: Any) -> Row:
    if not isinstance(properties, dict):
        raise EncodeError(name, properties, "an object of {type, value} is needed")
    return {key: _property_of(key, entry) for key, entry in properties.items()}


def _property_of(name: str, entry: Any) -> Row:
    match entry:
        case {"type": "object", "value": value}:
            return {"type": "object", "value": _bytes_of(f"property {name}", value)}
        case {"type": str(kind), "value": str() | int() | float() as value}:
            return {"type": kind, "value": value}
    raise EncodeError(f"property {name}", entry, "a type and a value are needed")


def _list_of(name: str, values: Any) -> list[Any]:
    if not isinstance(values, list):
        raise EncodeError(name, values, "a list is needed")
    return values


def _checked(kind: type, words: str) -> Callable[[str, Any], Any]:
    def check(name: str, value: Any) -> Any:
        if type(value) is not kind:
            raise EncodeError(name, value, f"{words} is needed")
        return value

    return check


_READERS: Mapping[str, Callable[[str, Any], Any]] = MappingProxyType(
    {
        "binary": _bytes_of,
        "items": _items_of,
        "properties": _properties_of,
        "bool": _checked(bool, "true or false"),
        "int32": _checked(int, "an integer"),
        "int64": _checked(int, "an integer"),
        "offset": _checked(int, "an integer"),
        "string": _checked(str, "text"),
        "int32s": _list_of,
        "filters": _list_of,
        "name_values": _list_of,
    }
)


def _row_of(values: Mapping[str, Any], columns: Mapping[str, Column]) -> Row:
    """Return the row in a JSON object; `columns` are its columns, by their names in the object.

    An `EncodeError` is raised if a name is no column, or a value does not have its column's kind.
    """
    row: Row = {}
    for name, value in values.items():
        if name not in columns:
            raise EncodeError("column", name, f"there are {', '.join(columns)}")
        column = columns[name]
        read = _READERS.get(column.kind)
        row[column.name] = value if value is None or read is None else read(name, value)
    return row
