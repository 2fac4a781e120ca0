"""Values as text: as JSON, as cells of a table, as fields of a line, and payloads in each notation.

JSON is exact to the bit. Bytes are lowercase hex; numbers that JSON cannot represent are ``"NaN"``,
``"Infinity"`` and ``"-Infinity"``; missing values are null. Cells are for people: payloads are text
where they are text, times ISO 8601, and what is long is cut.

`wireyard.cli.decoding.csv` and `wireyard.cli.decoding.lines` write whole columns by the same rules.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from wireyard.errors import DecodeError, UsageError
from wireyard.formats import Format
from wireyard.formats.base import Row
from wireyard.formats.plain_values import json_value
from wireyard.layout import Column
from wireyard.text import PAYLOADS, count_text, cut_note, moment, payload_text, printable

UNSAFE: Final = "\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"
"""Characters, as in a regular expression, that are line ends for some readers, control characters
for some terminals, or set the direction of text, so that it looks like another one."""
_UNSAFE: Final = re.compile(f"[{UNSAFE}]")
_JSON: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
_CELL_BYTES: Final = 16
_CELL_TEXT: Final = 1 << 10
_EPOCH: Final = "captured_ns"

# --- JSON -----------------------------------------------------------------------------------


def json_line(value: Any) -> bytes:
    """Return a JSON value as one line.

    The error handler sees only lone surrogates, which Java text may contain. Its escapes are the
    same as JSON's.
    """
    return json_text(value).encode("utf-8", "backslashreplace") + b"\n"


def row_line(row: Row, columns: Sequence[Column]) -> bytes:
    """Return a row as one line with the given columns in order; missing values are null."""
    values: Row = {}
    for column in columns:
        value = row.get(column.name)
        write = _JSON_OF_KIND.get(column.kind)
        values[column.name] = value if value is None or write is None else write(value)
    return json_line(values)


def json_text(value: Any) -> str:
    """Return a JSON value as text on one line, with control characters escaped."""
    text = _JSON.encode(value)
    if text.isascii() and "\x7f" not in text:
        return text
    return _UNSAFE.sub(lambda at: f"\\u{ord(at[0]):04x}", text)


_JSON_OF_KIND: Final[Mapping[str, Callable[[Any], Any]]] = MappingProxyType(
    {
        "binary": bytes.hex,
        "items": lambda items: [{"type": i["type"], "value": i["value"].hex()} for i in items],
        "properties": lambda properties: {
            name: {"type": kind, "value": json_value(value)}
            for name, (kind, value) in properties.items()
        },
        "name_values": json_value,
    }
)
"""Conversions of column values to JSON, by kind; values of other kinds stay as they are."""

# --- payloads -------------------------------------------------------------------------------

NOTATIONS: Final[Mapping[str, Callable[[bytes], str]]] = MappingProxyType(
    {
        "hex": bytes.hex,
        "base64": lambda data: base64.b64encode(data).decode("ascii"),
        "hash": lambda data: hashlib.sha256(data).hexdigest(),
    }
)
"""Notations of bytes. ``hash`` is SHA-256, of all bytes however many are shown otherwise."""
CHOICES: Final = (*NOTATIONS, "text", "value", "none")
"""``text`` and ``value`` decode a body, if the format can."""


def shown_bytes(data: bytes, choice: str, most_bytes: int | None = None) -> str:
    """Return bytes in a notation, or as ``text`` where they are text, cut after `most_bytes`."""
    if choice == "text":
        return payload_text(data, most_bytes)
    show = NOTATIONS[choice]
    if most_bytes is None or choice == "hash" or len(data) <= most_bytes:
        return show(data)
    return show(data[:most_bytes]) + cut_note(len(data) - most_bytes)


def payload_cell(format: Format, choice: str, row: Row, most_bytes: int | None = None) -> str:
    """Return the payload of a row on one line for people, cut after `most_bytes`.

    As text, a body of several values, such as that of a MAP_MESSAGE, is JSON.
    """
    data = row.get(format.body.column)
    if data is None or choice == "none":
        return ""
    shown = shown_bytes(data, choice if choice in NOTATIONS else "text", most_bytes)
    if choice in NOTATIONS or not shown.startswith("0x") or "value" not in format.body.views:
        return shown
    if not format.texts.are_plain:
        try:
            value = format.body.views["value"](row)
        except (DecodeError, AttributeError, TypeError):  # the row has no properties as a mapping
            return shown
        if not isinstance(value, bytes | str | None):
            return json_text(json_value(value))
    return shown


def body_view(format: Format, choice: str, most_bytes: int | None = None) -> Callable[[Row], Any]:
    """Return a function from a row to the shown value of its body, cut after `most_bytes`.

    A `UsageError` is raised if the format has no such view of bodies.
    """
    if choice in NOTATIONS:
        name = format.body.column
        return lambda row: (
            None if row.get(name) is None else shown_bytes(row[name], choice, most_bytes)
        )
    if choice not in format.body.views:
        raise UsageError(f"--payload {choice}: {format.name} has no such view of a payload")
    open_body = format.body.views[choice]
    return lambda row: _cut_value(json_value(open_body(row)), most_bytes)


def _cut_value(value: Any, most: int | None) -> Any:
    """Return a value, cut if it is text; structured values stay whole."""
    if not isinstance(value, str) or most is None:
        return value
    data = value.encode("utf-8", "surrogatepass")
    if len(data) <= most:
        return value
    return data[:most].decode(errors="ignore") + cut_note(len(data) - most)


# --- cells ----------------------------------------------------------------------------------


def cell_of(column: Column, row: Row) -> str:
    """Return the value of a column in a row as text on one line, empty for null."""
    value = row.get(column.name)
    if value is None:
        return ""
    if column.name == _EPOCH:
        return moment(value, 3)
    if isinstance(value, bytes) and column.name in PAYLOADS:
        text = payload_text(value, _CELL_TEXT)
        return printable(f"0x{_bytes_cell(value)}" if text.startswith("0x") else text)
    return printable(_CELL_OF_KIND.get(column.kind, str)(value))


def _bytes_cell(data: bytes) -> str:
    shown = data[:_CELL_BYTES].hex()
    return shown if len(data) <= _CELL_BYTES else f"{shown}.. ({count_text(len(data), 'byte')})"


def _pairs_cell(pairs: Sequence[tuple[str, Any]]) -> str:
    return ", ".join(f"{name}={json_value(value)}" for name, value in pairs)


_CELL_OF_KIND: Final[Mapping[str, Callable[[Any], str]]] = MappingProxyType(
    {
        "binary": _bytes_cell,
        "properties": lambda known: _pairs_cell([(name, one) for name, (_, one) in known.items()]),
        "bool": lambda value: "yes" if value else "no",
        "json": lambda value: json.dumps(value, ensure_ascii=False),
        "int32s": lambda values: ", ".join(map(str, values)),
        "filters": lambda filters: ", ".join(f"{f['filter']} at {f['qos']}" for f in filters),
        "name_values": lambda pairs: _pairs_cell([(one["name"], one["value"]) for one in pairs]),
        "items": lambda items: ", ".join(f"{i['type']}={i['value'].hex()}" for i in items),
        "error": lambda error: str(error["message"]),
    }
)


def fields_line(names: Sequence[str], row: Row, between: str) -> bytes:
    """Return the line of a row: bytes as hex, flags as 1 and 0, times in seconds since 1970."""
    cells = []
    for name in names:
        value = json_value(row.get(name))
        if value is None:
            cells.append("")
        elif name == _EPOCH:
            seconds, rest = divmod(value, 10**9)
            cells.append(f"{seconds}.{rest:09d}")
        elif isinstance(value, str):
            cells.append(printable(value))
        else:
            cells.append(json_text(int(value) if isinstance(value, bool) else value))
    return f"{between.join(cells)}\n".encode()
