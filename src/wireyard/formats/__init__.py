"""The registry of wire formats, by name. A format is imported at its first use."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from importlib import import_module
from types import MappingProxyType, ModuleType
from typing import Final

from wireyard.errors import UsageError
from wireyard.formats.base import Format, View

__all__ = [
    "FIRST_BYTES",
    "Format",
    "get_format",
    "labels",
    "load_columns",
    "names",
    "sniff",
    "sniff_inside",
    "titles",
]

_MODULES = {
    "jmq": "wireyard.formats.jmq",
    "gpacket": "wireyard.formats.gpacket",
    "mqtt": "wireyard.formats.mqtt",
    "rmp": "wireyard.formats.rmp",
}
FIRST_BYTES: Final[Mapping[int, str]] = MappingProxyType({0x1B: "jmq", 0x10: "mqtt", 0x20: "mqtt"})
"""First bytes of streams -> the format, of the formats whose kernels read many streams in one call.

Streams of other formats begin with other bytes.
"""


def names() -> tuple[str, ...]:
    """Return the names of all formats."""
    return tuple(_MODULES)


def labels() -> tuple[str, ...]:
    """Return every name that `get_format` accepts: formats alone, and with their dialects."""
    return tuple(
        label
        for name in _MODULES
        for label in (name, *(f"{name}/{dialect}" for dialect in get_format(name).dialects))
    )


def titles() -> dict[str, str]:
    """Return the title of each format by its name."""
    return {name: get_format(name).title for name in _MODULES}


@cache
def get_format(name: str) -> Format:
    """Return the format called `name`; a part after a slash, as in ``mqtt/5.0``, is its dialect.

    Raises
    ------
    UsageError
        An unknown name or dialect; the message lists the known ones.
    """
    plain, _, dialect = name.lower().partition("/")
    module = _MODULES.get(plain)
    if module is None:
        raise UsageError(f"unknown format '{name}'; there are: {', '.join(labels())}")
    format: Format = import_module(module).FORMAT
    if not dialect:
        return format
    if dialect not in format.dialects:
        known = ", ".join(f"{plain}/{other}" for other in format.dialects) or plain
        raise UsageError(f"{plain} has no dialect '{dialect}'; there is: {known}")
    return replace(format, dialect=dialect)


def load_columns() -> None:
    """Load the columnar decoders, which pay for many small streams though not for a single one."""
    for name in _MODULES:
        import_module(get_format(name).columnar.module)


def sniff(head: View) -> Format | None:
    """Return the format whose packet begins at the first byte of `head`, if one does."""
    for name in _MODULES:
        candidate = get_format(name)
        if candidate.evidence.begins(head):
            return candidate
    return None


def sniff_inside(data: View) -> Format | None:
    """Return the format of which `data` has a packet, and behind it another one or nothing.

    Only a format whose packets have a magic is found.
    """
    stop = len(data)
    for format in map(get_format, _MODULES):
        framing, at = format.framing, 0
        while at < stop:
            at, is_certain = framing.find_header(data, at, stop, framing.max_packet_bytes)
            if at == stop or not is_certain:
                break
            size = framing.frame_size(data, at, stop, framing.max_packet_bytes, 0, True)
            if size is not None and at + size <= stop:
                following = data[at + size :]
                if not len(following) or format.evidence.begins(following):
                    return format
            at += 1
    return None


class _Registry(ModuleType):
    """The package itself, callable, so that ``wireyard.formats()`` returns `titles`.

    Importing this package replaces the function `formats` of `wireyard` by the module.
    """

    def __call__(self) -> dict[str, str]:
        return titles()


sys.modules[__name__].__class__ = _Registry
