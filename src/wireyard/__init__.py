"""wireyard: message-broker traffic as tables, and back.

``import wireyard`` loads the standard library only; each name below is imported, with all that it
needs, at its first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wireyard import client, gpacket, jmq, mqtt, rmp
    from wireyard.api import (
        decode,
        encode,
        follow,
        formats,
        packets,
        read,
        scan,
        segments,
        write,
    )
    from wireyard.broker.thread import BrokerThread as broker  # noqa: N813
    from wireyard.errors import (
        DecodeError,
        EncodeError,
        LimitExceeded,
        Malformed,
        SourceError,
        Truncated,
        UnknownFormat,
        UnsupportedVersion,
        UsageError,
        WireError,
    )
    from wireyard.notebook import show, with_times
    from wireyard.spark import register
    from wireyard.streams.decoder import Decoded, Decoder, Need

__version__ = "0.1.0"

_HOMES = {
    "wireyard.api": (
        "decode",
        "encode",
        "follow",
        "formats",
        "packets",
        "read",
        "scan",
        "segments",
        "write",
    ),
    "wireyard.errors": (
        "DecodeError",
        "EncodeError",
        "LimitExceeded",
        "Malformed",
        "SourceError",
        "Truncated",
        "UnknownFormat",
        "UnsupportedVersion",
        "UsageError",
        "WireError",
    ),
    "wireyard.notebook": ("show", "with_times"),
    "wireyard.spark": ("register",),
    "wireyard.streams.decoder": ("Decoded", "Decoder", "Need"),
}
_MODULES = ("broker", "client", "gpacket", "jmq", "mqtt", "rmp")
"""Modules with the packet classes of a format, the broker, which can be called, and its client."""
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "DecodeError",
    "Decoded",
    "Decoder",
    "EncodeError",
    "LimitExceeded",
    "Malformed",
    "Need",
    "SourceError",
    "Truncated",
    "UnknownFormat",
    "UnsupportedVersion",
    "UsageError",
    "WireError",
    "broker",
    "client",
    "decode",
    "encode",
    "follow",
    "formats",
    "gpacket",
    "jmq",
    "mqtt",
    "packets",
    "read",
    "register",
    "rmp",
    "scan",
    "segments",
    "show",
    "with_times",
    "write",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"wireyard.{name}")
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'wireyard' has no attribute '{name}'")
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return sorted((*__all__, "__version__"))
