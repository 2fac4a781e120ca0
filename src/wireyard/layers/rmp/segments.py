"""A message to send, and its packets."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from wireyard.formats.rmp.layout import REPLY_TO, SEGMENT, TYPING
from wireyard.formats.rmp.packet import Message, encode
from wireyard.layers.rmp.events import MessageId
from wireyard.layers.rmp.limits import (
    MAX_PACKETS,
    MESSAGE_OVERHEAD_BYTES,
    PACKET_OVERHEAD_BYTES,
    Limits,
    MessageTooBig,
)

__all__ = ["Draft"]

_LATER_HEAD_BYTES = TYPING.size + SEGMENT.size
_write_segment = SEGMENT.struct.pack
_HEADS = 1024
"""The most cached heads, 200 kB of them: for the layers, domains and clients in use at a time."""


@lru_cache(_HEADS)
def _around_segment(
    layer: int,
    domain: int | None,
    client: int | None,
    reply_to: MessageId | None,
    reply_requested: bool,
    is_segment: bool,
) -> tuple[bytes, bytes]:
    """Return the header fields before and after those of a segment."""
    segment = (0, 1, 1) if is_segment else (None,) * 3
    reply = (None, None) if reply_to is None else (reply_to.number, reply_to.source)
    values: dict[str, Any] = dict(
        zip((*SEGMENT.names, *REPLY_TO.names), (*segment, *reply), strict=True)
    )
    head = encode(
        Message(
            layer=layer, domain=domain, client=client, reply_requested=reply_requested, **values
        )
    )
    return head[: TYPING.size], head[_LATER_HEAD_BYTES if is_segment else TYPING.size :]


@dataclass(frozen=True, slots=True)
class Draft:
    """A message to send, without its number."""

    data: bytes
    layer: int = 0
    domain: int | None = None
    client: int | None = None
    reply_to: MessageId | None = None
    reply_requested: bool = False

    def head(self, number: int | None = None, count: int = 1) -> bytes:
        """Return the header fields of its first packet.

        Raises
        ------
        EncodeError
            A value cannot be written.
        """
        is_segment = number is not None
        typing, rest = _around_segment(
            self.layer, self.domain, self.client, self.reply_to, self.reply_requested, is_segment
        )
        segment = b"" if number is None else _write_segment(number, 1, count)
        return typing + segment + rest

    def packet_count(self, max_packet_bytes: int, limits: Limits) -> int:
        """Return the number of its packets, all with a message number.

        Raises
        ------
        MessageTooBig
            More than the wire can count, or than receivers accept: they check the count.
        """
        later = len(self.data) - (max_packet_bytes - len(self.head(0)))
        room = max_packet_bytes - _LATER_HEAD_BYTES
        count = 1 + max(0, -(-later // room))
        most = min(MAX_PACKETS, limits.max_message_bytes // max_packet_bytes)
        if count > most:
            raise MessageTooBig(
                f"a message of {len(self.data)} bytes has {count} packets of"
                f" {max_packet_bytes} bytes, {most} are the most"
            )
        kept = MESSAGE_OVERHEAD_BYTES + len(self.data) + (count - 1) * PACKET_OVERHEAD_BYTES
        if kept > limits.max_held_bytes:
            raise MessageTooBig(
                f"a message of {len(self.data)} bytes costs receivers {kept} bytes,"
                f" {limits.max_held_bytes} are the most"
            )
        return count

    def packets(self, number: int, count: int, max_packet_bytes: int) -> Iterator[bytes]:
        """Yield its packets. Only the first has the fields of the message (errata R9)."""
        head = self.head(number, count)
        at = max_packet_bytes - len(head)
        yield head + self.data[:at]
        typing, _ = _around_segment(self.layer, None, None, None, False, True)
        room = max_packet_bytes - _LATER_HEAD_BYTES
        for packet_number in range(2, count + 1):
            segment = _write_segment(number, packet_number, count)
            yield typing + segment + self.data[at : at + room]
            at += room
