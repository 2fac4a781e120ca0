"""Packing: small messages that share a packet, each but the last with its length."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from wireyard.formats.rmp.layout import LENGTH, MAX_MESSAGE_BYTES
from wireyard.formats.rmp.packet import Message, encode

__all__ = ["Head", "Packing", "head_of"]

_write_length = LENGTH.struct.pack
_HEADS = 1024
"""The most cached heads, 20 kB of them: for the layers, domains and clients in use at a time."""


class Head(NamedTuple):
    """The header fields of a message, as the last one in a packet and as any other."""

    last: bytes
    followed: bytes
    """Without the length, which follows."""


@lru_cache(_HEADS)
def head_of(layer: int, domain: int | None, client: int | None) -> Head:
    """Return the head of a message that is neither a segment nor a reply.

    Raises
    ------
    EncodeError
        A value cannot be written.
    """
    last = encode(Message(layer=layer, domain=domain, client=client))
    followed = encode(Message(layer=layer, domain=domain, client=client, more_follows=True))
    return Head(last, followed[: -LENGTH.size])


class Packing:
    """The packet being filled.

    Parameters
    ----------
    max_packet_bytes
        Longest packet of the ring.
    """

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
