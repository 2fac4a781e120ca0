"""Captures of RMP packets made by hand, and what the observer sees in them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import wireyard
from tests.captures.make import BEGAN_NS, Packet, ethernet, ipv4, pcap, udp
from wireyard.layers.records import Violation
from wireyard.layers.rmp.limits import Limits
from wireyard.layers.rmp.observer import NEEDED, Observer, Seen, observe

__all__ = [
    "GROUP",
    "PORT",
    "Sent",
    "breaches",
    "capture",
    "messages",
    "rows_of",
    "watch",
]

GROUP, PORT = "239.255.77.77", 7077


class Sent(NamedTuple):
    """A datagram: who sent it, when after the capture began, how much of it was captured."""

    packet: bytes
    at_s: float = 0.0
    port: int = 5001
    captured_bytes: int | None = None


def capture(datagrams: Iterable[Sent]) -> bytes:
    """Return a capture of datagrams to the group."""
    records = []
    for packet, at_s, port, captured_bytes in datagrams:
        frame = ethernet(ipv4(udp(port, PORT, packet), 17, "10.0.0.1", GROUP))
        kept = frame[: None if captured_bytes is None else captured_bytes - len(packet)]
        if captured_bytes == len(packet):
            kept = frame
        records.append(Packet(kept, BEGAN_NS + round(at_s * 1e9), len(frame)))
    return pcap(records)


def rows_of(datagrams: Iterable[Sent], label: str = "rmp") -> list[dict[str, Any]]:
    """Return the rows of the packets as they are read from a capture."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "in.pcap"
        path.write_bytes(capture(datagrams))
        rows: list[dict[str, Any]] = wireyard.read(path, label, list(NEEDED)).to_pylist()
    return rows


def watch(
    *datagrams: Sent, label: str = "rmp", limits: Limits | None = None
) -> list[Seen | Violation]:
    """Return all that an observer of one sender sees."""
    return list(observe(rows_of(datagrams, label), Observer(limits)))


def messages(found: Iterable[Seen | Violation]) -> list[bytes]:
    """Return the data of the messages."""
    return [one.data for one in found if isinstance(one, Seen)]


def breaches(found: Iterable[Seen | Violation]) -> list[str]:
    """Return the rules that were broken."""
    return [one.rule for one in found if isinstance(one, Violation)]
