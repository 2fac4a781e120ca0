"""The packets of messages to send: several for a large message, one for several small ones.

Of messages that share a packet, each but the last has its length.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from wireyard.formats.rmp.layout import LENGTH, MAX_MESSAGE_BYTES, REPLY_TO, SEGMENT, TYPING
from wireyard.formats.rmp.packet import Message, encode
from wireyard.layers.rmp.events import MessageId
from wireyard.layers.rmp.limits import (
    MAX_PACKETS,
    MESSAGE_OVERHEAD_BYTES,
    PACKET_OVERHEAD_BYTES,
    Limits,
    MessageTooBig,
)

_LATER_HEAD_BYTES = TYPING.size + SEGMENT.size
_write_segment = SEGMENT.struct.pack
_HEADS = 1024
"""The most cached heads of a kind, 200 kB of them: for the layers, domains and clients in use."""


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

        An EncodeError is raised if a value cannot be written.
        """
        is_segment = number is not None
        typing, rest = _around_segment(
            self.layer, self.domain, self.client, self.reply_to, self.reply_requested, is_segment
        )
        segment = b"" if number is None else _write_segment(number, 1, count)
        return typing + segment + rest

    def packet_count(self, max_packet_bytes: int, limits: Limits) -> int:
        """Return the number of its packets, all with a message number.

        `MessageTooBig` is raised if there are more than the wire can count, or than receivers
        accept: they check the count.
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


# --- packing --------------------------------------------------------------------------------

_write_length = LENGTH.struct.pack


class Head(NamedTuple):
    """The header fields of a message, as the last one in a packet and as any other."""

    last: bytes
    followed: bytes
    """Without the length, which follows."""


@lru_cache(_HEADS)
def head_of(layer: int, domain: int | None, client: int | None) -> Head:
    """Return the head of a message that is neither a segment nor a reply.

    An EncodeError is raised if a value cannot be written.
    """
    last = encode(Message(layer=layer, domain=domain, client=client))
    followed = encode(Message(layer=layer, domain=domain, client=client, more_follows=True))
    return Head(last, followed[: -LENGTH.size])


class Packing:
    """The packet being filled, of at most `max_packet_bytes`, the longest packet of the ring."""

    def __init__(self, max_packet_bytes: int) -> None:
        self._max_packet_bytes = max_packet_bytes
        self._parts: list[bytes] = []
        self._size = 0
        self._last: tuple[Head, bytes] | None = None

    def __bool__(self) -> bool:
        return self._last is not None

    def add_all(self, head: Head, messages: Sequence[bytes], at: int) -> int:
        """Add the messages from index `at` on that fit; return the index of the first left out.

        All have the same head.
        """
        parts, size, last = self._parts, self._size, self._last
        for stop in range(at, len(messages)):
            data = messages[stop]
            if type(data) is not bytes:
                break
            size_before = size
            if last is not None:
                before, before_data = last
                length = len(before_data)
                if length > MAX_MESSAGE_BYTES:
                    break
                size_before += len(before.followed) + LENGTH.size + length
            if size_before + len(head.last) + len(data) > self._max_packet_bytes:
                break
            if last is not None:
                parts += (before.followed, _write_length(length), before_data)
            size, last = size_before, (head, data)
        else:
            stop = len(messages)
        self._size, self._last = size, last
        return stop

    def finish(self) -> bytes:
        """Return the packet, and begin another."""
        assert self._last is not None
        head, data = self._last
        packet = b"".join((*self._parts, head.last, data))
        self._parts.clear()
        self._size = 0
        self._last = None
        return packet
