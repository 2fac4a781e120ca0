"""Views of a body: as bytes in several notations, or decoded."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from wireyard.cli.jsonl import json_value
from wireyard.errors import UsageError
from wireyard.formats import Format
from wireyard.formats.base import Row

__all__ = ["CHOICES", "body_view", "cut_note"]

_OF_BYTES: Mapping[str, Callable[[bytes], str]] = MappingProxyType(
    {
        "hex": bytes.hex,
        "base64": lambda data: base64.b64encode(data).decode("ascii"),
        "hash": lambda data: hashlib.sha256(data).hexdigest(),
    }
)
CHOICES = (*_OF_BYTES, "text", "value", "none")
"""``hash`` is SHA-256; ``text`` and ``value`` decode a body, if the format can."""


def cut_note(count: int) -> str:
    """Return the note behind a payload of which `count` bytes were cut."""
    return f"...[{count} byte{'s' * (count != 1)} cut]"


def body_view(format: Format, choice: str, most_bytes: int | None = None) -> Callable[[Row], Any]:
    """Return a function from a row to the shown value of its body, cut after `most_bytes`.

    Raises
    ------
    UsageError
        The format has no such view of bodies.
    """
    if choice in _OF_BYTES:
        name, show = format.body, _OF_BYTES[choice]
        most = None if choice == "hash" else most_bytes
        return lambda row: None if row.get(name) is None else _cut(row[name], most, show)
    if choice not in format.body_views:
        raise UsageError(f"--payload {choice}: {format.name} has no such view of a payload")
    open_body = format.body_views[choice]
    return lambda row: _cut_value(json_value(open_body(row)), most_bytes)


def _cut(data: bytes, most: int | None, show: Callable[[bytes], str]) -> str:
    if most is None or len(data) <= most:
        return show(data)
    return show(data[:most]) + cut_note(len(data) - most)


def _cut_value(value: Any, most: int | None) -> Any:
    """Return a value, cut if it is text; structured values stay whole."""
    if not isinstance(value, str) or most is None:
        return value
    return _cut(
        value.encode("utf-8", "surrogatepass"), most, lambda data: data.decode(errors="ignore")
    )
