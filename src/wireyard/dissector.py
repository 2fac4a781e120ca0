"""Wireshark dissectors, generated from the layouts that wireyard itself decodes by.

A dissector is a Lua file of this package with the logic of a format, after the format's layout as
Lua tables. All offsets, codes and names come from the layout, so that both agree. Fields have the
names of wireyard's columns.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import fields, is_dataclass
from importlib import import_module, resources
from typing import Any

from wireyard.errors import UsageError
from wireyard.formats import get_format
from wireyard.formats import names as format_names
from wireyard.formats.properties import TYPES
from wireyard.layout import Column, Layout

_LUA = resources.files(__package__) / "lua"
_USED = re.compile(r"\blayout\.(\w+)")
_LINE_CHARACTERS = 96

_HEAD = """\
-- Wireshark dissectors for {names}, made by `wireyard dissector`.
--
-- tshark -X lua_script:FILE -r traffic.pcap; or put the file into the folder of Lua plugins that
-- Wireshark names under Help, About, Folders. Fields are named as wireyard names its columns.
"""

_KINDS = {
    "u8": "uint8", "u16": "uint16", "u32": "uint32",
    "bool": "bool", "int32": "int32", "int64": "int64", "offset": "int64", "string": "string",
}  # fmt: skip
"""Wireshark's field types by our kinds of columns and fields; other kinds are shown as bytes."""


def names() -> tuple[str, ...]:
    """Return the formats that have a dissector."""
    return tuple(name for name in format_names() if (_LUA / f"{name}.lua").is_file())


def lua_script(formats: Sequence[str] = ()) -> str:
    """Return the dissectors of these formats, or of all if none is given, as one Lua script.

    A format without a dissector raises a UsageError.
    """
    for name in formats:
        if name not in names():
            known = ", ".join(names())
            raise UsageError(f"there is no dissector of '{name}'; there are: {known}")
    wanted = tuple(dict.fromkeys(formats)) or names()
    parts = [_HEAD.format(names=", ".join(wanted)), _lua_file("common")]
    for name in wanted:
        dissector = _lua_file(name)
        tables = _lua(_plain(_tables(name, set(_USED.findall(dissector)))))
        parts += [f"do\nlocal layout = {tables}\n", dissector, "end\n"]
    return "\n".join(parts)


def _lua_file(name: str) -> str:
    return (_LUA / f"{name}.lua").read_text("utf-8")


# --- layouts as tables ----------------------------------------------------------------------


def _tables(name: str, used: Set[str]) -> dict[str, Any]:
    """Return the tables that a dissector uses: columns, and tables of the layout by name."""
    format = get_format(name)
    module = import_module(f"wireyard.formats.{name}.layout")
    unsigned = dict(_unsigned(getattr(module, key) for key in module.__all__))
    others = format.inner.other_rows.items()
    # Raw bytes are for encoding; Wireshark shows the bytes anyway.
    columns = [column for column in format.columns if not column.name.startswith("raw_")]
    tables = {
        "title": format.title,
        "columns": _columns(columns, unsigned),
        "others": {key: _columns(columns.values(), unsigned) for key, columns in others},
        "PROPERTY_TYPES": TYPES,
        **{key: getattr(module, key) for key in module.__all__},
    }
    return {key: value for key, value in tables.items() if key in used}


def _unsigned(values: Iterable[Any]) -> Iterator[tuple[str, str]]:
    """Yield the kind of each unsigned field of a header.

    Columns are signed and wider, but Wireshark would show such a field as a negative number.
    """
    for value in values:
        if isinstance(value, Layout):
            yield from ((field.name, field.kind) for field in value.fields if field.kind in _KINDS)
        elif isinstance(value, Mapping):
            yield from _unsigned(value.values())


def _columns(columns: Iterable[Column], unsigned: Mapping[str, str]) -> list[dict[str, Any]]:
    return [
        {
            "name": column.name,
            "kind": _KINDS.get(unsigned.get(column.name, column.kind), "bytes"),
            "doc": column.doc,
            "unit": column.unit,
        }
        for column in columns
    ]


# --- Lua ------------------------------------------------------------------------------------


def _plain(value: Any) -> Any:
    """Return a value as lists and dictionaries of numbers and text."""
    match value:
        case bytes():
            return value.hex()
        case Layout():
            return _plain(value.fields)
        case Mapping() if all(isinstance(number, int) for number in value.values()):
            # A list, because a Lua table has no order, and that of flags matters.
            return [{"name": key, "value": number} for key, number in value.items()]
        case Mapping():
            return {key: _plain(item) for key, item in value.items()}
        case tuple() | list() | frozenset():
            return [_plain(item) for item in value]
        case _ if is_dataclass(value):
            return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    return value


def _lua(value: Any, indent: str = "") -> str:
    """Return a plain value as a Lua expression, without entries that are None."""
    match value:
        case dict():
            entries = [(f"{_key(key)} = ", item) for key, item in value.items() if item is not None]
        case list():
            entries = [("", item) for item in value]
        case str():
            return json.dumps(value)
        case _:
            return str(value).lower()
    deeper = indent + "    "
    parts = [name + _lua(item, deeper) for name, item in entries]
    line = f"{{ {', '.join(parts)} }}" if parts else "{}"
    if len(indent) + len(line) <= _LINE_CHARACTERS and "\n" not in line:
        return line
    return "{\n" + "".join(f"{deeper}{part},\n" for part in parts) + indent + "}"


def _key(key: str | int) -> str:
    return key if isinstance(key, str) and key.isidentifier() else f"[{_lua(key)}]"
