"""Views of a body: as bytes in several notations, or decoded."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from wireyard.cli.decoding.jsonl import json_text, json_value
from wireyard.errors import DecodeError, UsageError
from wireyard.formats import Format
from wireyard.formats.base import Row
from wireyard.text import cut_note, payload_text

__all__ = ["CHOICES", "body_view", "payload_cell"]

_OF_BYTES: Mapping[str, Callable[[bytes], str]] = MappingProxyType(
    {
        "hex": bytes.hex,
        "base64": lambda data: base64.b64encode(data).decode("ascii"),
        "hash": lambda data: hashlib.sha256(data).hexdigest(),
    }
)
CHOICES = (*_OF_BYTES, "text", "value", "none")
"""``hash`` is SHA-256; ``text`` and ``value`` decode a body, if the format can."""


def payload_cell(format: Format, choice: str, row: Row, most_bytes: int | None = None) -> str:
    """Return the payload of a row on one line for people, cut after `most_bytes`.

    As text, a body of several values, such as that of a MAP_MESSAGE, is JSON.
    """
    data = row.get(format.body)
    if data is None or choice == "none":
        return ""
    if choice in _OF_BYTES:
        return _cut(data, None if choice == "hash" else most_bytes, _OF_BYTES[choice])
    shown = payload_text(data, most_bytes)
    if shown.startswith("0x") and "value" in format.body_views and not format.plain_text:
        try:
            value = format.body_views["value"](row)
        except (DecodeError, AttributeError, TypeError):  # the row has no properties as a mapping
            return shown
        if not isinstance(value, bytes | str | None):
            return json_text(json_value(value))
    return shown


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
