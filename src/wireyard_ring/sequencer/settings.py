"""The settings and addresses of a ring, the same at all members, and the text form of addresses."""

from __future__ import annotations

import hashlib
import ipaddress
from collections.abc import Iterator
from dataclasses import dataclass

from wireyard.errors import UsageError
from wireyard_ring.sequencer.frames import MAX_PLACES

__all__ = ["Settings", "read_addresses"]

_PORTS = range(1, 1 << 16)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Bounds and delays of a ring; a process with other ones cannot join."""

    max_packet_bytes: int = 32 << 10
    """Longest packet: as over corosync, some 1,600 of the smallest messages."""
    window_bytes: int = 1 << 20
    """Packets of one sender that not all members hold: 32 of the longest. A member holds at most
    this much of each other member, and the same again of packets that wait for its application."""
    patience_s: float = 3.0
    """Time that a member may be silent before the others may exclude it: corosync's default. A
    process whose event loop does not run is silent."""
    give_up_s: float = 15.0
    """Time after which a member without a ring to join, without a majority, or without reading
    fails: five times `patience_s`."""

    @property
    def tick_s(self) -> float:
        """The interval of a member's timer."""
        return self.patience_s / 24

    def digest(self, addresses: tuple[str, ...]) -> int:
        """Return a digest of addresses and settings, which differs between different rings."""
        text = repr((addresses, self.max_packet_bytes, self.window_bytes, self.patience_s))
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def read_addresses(text: str) -> tuple[str, ...]:
    """Return the addresses of a ring, each as ``address:port``.

    Parameters
    ----------
    text
        Parts separated by commas: ``127.0.0.1:7077`` or, for several ports of one address,
        ``127.0.0.1:7077-7092``.

    Raises
    ------
    UsageError
        A part is neither, an address is repeated, or there are too many.
    """
    addresses = tuple(address for part in text.split(",") for address in _part(part))
    if len(set(addresses)) < len(addresses):
        raise UsageError(f"'{text}' has an address twice")
    if len(addresses) > MAX_PLACES:
        raise UsageError(f"'{text}' has {len(addresses)} addresses, {MAX_PLACES} are the most")
    return addresses


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
