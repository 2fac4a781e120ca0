"""The parts of ``wireyard ring`` below its options: rings by name, messages as rows, its loop."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator, Coroutine
from typing import Any, Final

from wireyard.errors import SourceError, UsageError
from wireyard.layers.rmp import Delivered
from wireyard_ring.corosync import Corosync
from wireyard_ring.tcp import Tcp
from wireyard_ring.transport import Transport
from wireyard_ring.udp import UdpMulticast

__all__ = ["message_row", "read_lines", "run", "transport_named"]

_READ_BYTES = 1 << 16
MAX_LINE_BYTES = 16 << 20
"""The longest line, which is as long as the longest message."""
_RINGS: Final = "tcp:ADDRESS:PORT[-PORT],..., udp:GROUP:PORT or corosync:NAME"


def transport_named(name: str, interface: str) -> Transport:
    """Return the transport of a ring, by the ring's name.

    Parameters
    ----------
    interface
        Address of the network interface for multicast.

    Raises
    ------
    UsageError
        No ring has such a name.
    """
    kind, _, rest = name.partition(":")
    if kind == "tcp" and rest:
        return Tcp(rest)
    group, _, port = rest.rpartition(":")
    if kind == "corosync" and rest:
        return Corosync(rest)
    if kind == "udp" and port.isascii() and port.isdecimal() and 0 < int(port) < 1 << 16:
        return UdpMulticast(group, int(port), interface=interface)
    raise UsageError(f"'{name}' is no ring: {_RINGS}")


def message_row(message: Delivered) -> dict[str, Any]:
    """Return a message as a row for JSON."""
    to = message.reply_to
    return {
        "ring": message.ring,
        "sender": message.source,
        "layer": message.layer,
        "message_number": message.number,
        "domain": message.domain,
        "client": message.client,
        "reply_message_number": None if to is None else to.number,
        "reply_source": None if to is None else to.source,
        "reply_requested": message.reply_requested,
        "data_size": len(message.data),
        "data": message.data.hex(),
    }


def run(main: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine in an event loop of its own, and return its result."""
    return asyncio.run(main)


async def read_lines(stream: io.BufferedIOBase) -> AsyncIterator[list[bytes]]:
    """Yield lists of the lines that have arrived, without line ends, and block no event loop.

    Raises
    ------
    SourceError
        A line is longer than any message.
    """
    pieces: list[bytes] = []
    size = 0
    while data := await asyncio.to_thread(stream.read1, _READ_BYTES):
        lines, newline, rest = data.rpartition(b"\n")
        if newline:
            yield b"".join((*pieces, lines)).split(b"\n")
            pieces.clear()
            size = 0
        pieces.append(rest)
        size += len(rest)
        if size > MAX_LINE_BYTES:
            raise SourceError(f"standard input: has a line of more than {MAX_LINE_BYTES} bytes")
    if size:
        yield [b"".join(pieces)]
