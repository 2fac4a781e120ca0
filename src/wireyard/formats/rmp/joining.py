"""Rows of a framed stream: adds the length of each packet to the row of its first message."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from wireyard.errors import EncodeError
from wireyard.formats.base import Row
from wireyard.formats.rmp.context import MessageContext
from wireyard.formats.rmp.packet import encode, packet_of

_MAX_PACKET_BYTES = 0xFFFF
"""Largest framed packet, whose length has 16 bits. The rows of one packet are held at most."""


def join_rows(rows: Iterable[Row], context: int) -> Iterable[Row]:
    """Yield the rows; in framed streams, the first of each packet gets its `framed_bytes`.

    An EncodeError is raised for a packet with missing messages, or longer than its length field
    allows.
    """
    state = MessageContext.of(context)
    return _joined(rows, state._replace(framed=False).context) if state.framed else rows


def _joined(rows: Iterable[Row], context: int) -> Iterator[Row]:
    held: list[Row] = []
    size = 0
    for row in rows:
        at = row.get("message_in_packet")
        if at not in (None, len(held)):
            raise EncodeError("message_in_packet", at, f"message {len(held)} of the packet is next")
        message = replace(packet_of(row, context), framed_bytes=None)
        size += len(encode(message))
        if size > _MAX_PACKET_BYTES:
            raise EncodeError("framed_bytes", size, _MAX_PACKET_BYTES)
        held.append({**row, "message_in_packet": len(held), "framed_bytes": None})
        if not message.more_follows:
            held[0]["framed_bytes"] = size
            yield from held
            held, size = [], 0
    if held:
        raise EncodeError("more_follows", True, "the messages that follow are not there")
