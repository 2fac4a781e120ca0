"""A ring's addresses and settings, the same at all members, and the text that names them."""

from __future__ import annotations

import hashlib
import ipaddress
from collections.abc import Iterator
from dataclasses import dataclass

from wireyard.errors import UsageError
from wireyard.layers.sequencer.frames import MAX_PLACES

__all__ = ["Settings", "read_addresses"]

_PORTS = range(1, 1 << 16)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Bounds and delays of a ring; members with others are refused."""

    max_packet_bytes: int = 32 << 10
    """Longest packet: as over corosync, some 1,600 of the smallest messages."""
    window_bytes: int = 1 << 20
    """Packets of one sender that not all members hold: 32 of the longest. A member keeps at most
    this much of each other one, and packets that wait for its application once more."""
    patience_s: float = 3.0
    """How long a member may be silent before the others may exclude it: corosync's default. A
    process that does not run its event loop for so long is silent."""
    give_up_s: float = 15.0
    """How long a member goes without a ring to join, without a majority, or without reading, before
    it fails: five times `patience_s`."""

    @property
    def tick_s(self) -> float:
        """How often a member looks at what is due."""
        return self.patience_s / 24

    def digest(self, addresses: tuple[str, ...]) -> int:
        """Return a number that two rings of other addresses or settings do not share."""
        known = repr((addresses, self.max_packet_bytes, self.window_bytes, self.patience_s))
        return int.from_bytes(hashlib.sha256(known.encode()).digest()[:8], "big")


def read_addresses(text: str) -> tuple[str, ...]:
    """Return the addresses of a ring, as ``address:port`` each.

    Parameters
    ----------
    text
        Parts with commas between them: ``127.0.0.1:7077`` or, for several ports of one address,
        ``127.0.0.1:7077-7092``.

    Raises
    ------
    UsageError
        A part is neither, an address is there twice, or there are too many.
    """
    found = tuple(address for part in text.split(",") for address in _part(part))
    if len(set(found)) < len(found):
        raise UsageError(f"'{text}' has an address twice")
    if len(found) > MAX_PLACES:
        raise UsageError(f"'{text}' has {len(found)} addresses, {MAX_PLACES} are the most")
    return found


def _part(part: str) -> Iterator[str]:
    host, _, ports = part.strip().rpartition(":")
    first, _, last = ports.partition("-")
    try:
        address = ipaddress.IPv4Address(host)
        start, stop = _port(first), _port(last or first)
    except ValueError:
        raise UsageError(f"'{part}' is no ADDRESS:PORT or ADDRESS:PORT-PORT") from None
    if start > stop:
        raise UsageError(f"'{part}': the first port is above the last")
    return (f"{address}:{port}" for port in range(start, stop + 1)[: MAX_PLACES + 1])


def _port(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and int(text) in _PORTS):
        raise ValueError(text)
    return int(text)
