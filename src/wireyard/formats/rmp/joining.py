"""The rows of a framed stream, of which the first of each packet says how long the packet is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from wireyard.errors import EncodeError
from wireyard.formats.base import Row
from wireyard.formats.rmp.packet import encode, packet_of
from wireyard.formats.rmp.place import Place

__all__ = ["join_rows"]

_MAX_PACKET_BYTES = 0xFFFF
"""Of a framed packet: its length has 16 bits. No more rows are held than fill one."""


def join_rows(rows: Iterable[Row], context: int) -> Iterable[Row]:
    """Yield the rows; where streams are framed, the first of a packet with its `framed_bytes`.

    Raises
    ------
    EncodeError
        A packet without all of its messages, or longer than its length field can hold.
    """
    place = Place.of(context)
    return _joined(rows, place._replace(framed=False).context) if place.framed else rows


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
