"""Ways to show a body: as it is on the wire, or opened."""

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

__all__ = ["CHOICES", "body_view"]

_OF_BYTES: Mapping[str, Callable[[bytes], str]] = MappingProxyType(
    {
        "hex": bytes.hex,
        "base64": lambda data: base64.b64encode(data).decode("ascii"),
        "hash": lambda data: hashlib.sha256(data).hexdigest(),
    }
)
CHOICES = (*_OF_BYTES, "text", "value", "none")
"""``hash`` is SHA-256; ``text`` and ``value`` open what the format knows how to open."""


def body_view(format: Format, choice: str) -> Callable[[Row], Any]:
    """Return what makes a row's body into the value to show.

    Raises
    ------
    UsageError
        The format cannot open bodies that way.
    """
    if choice in _OF_BYTES:
        name, show = format.body, _OF_BYTES[choice]
        return lambda row: None if row.get(name) is None else show(row[name])
    if choice not in format.body_views:
        raise UsageError(f"--body {choice}: {format.name} has no such view of a body")
    open_body = format.body_views[choice]
    return lambda row: json_value(open_body(row))
