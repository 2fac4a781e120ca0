"""A cursor over the data of one record, which locates the packets in it."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

from wireyard.captures.stores.record import ConsumerState, Contents, StoredPacket
from wireyard.errors import DecodeError, Malformed, Truncated
from wireyard.formats import get_format
from wireyard.formats.cursor import Cursor
from wireyard.formats.message_id import MESSAGE_ID_CODES, message_id_text

SPEC: Final = "Open MQ store"
_MESSAGE_ID: Final = struct.Struct(f">{MESSAGE_ID_CODES}")
_CONSUMER_ID: Final = struct.Struct(">q")


class Section(Cursor):
    """Bytes ``[start, stop)`` of a file, part of the record that begins at `record_start`.

    Offsets in errors count from the record, offsets of packets from the beginning of the file.
    """

    def __init__(self, data: bytes, record_start: int, start: int, stop: int, name: str) -> None:
        super().__init__(data[start:stop], name, start - record_start, f"{SPEC}, {name}")
        self.start = start

    def part(self, size: int, field: str) -> Section:
        """Read `size` bytes as a section of the same record."""
        base, start = self.base + self.at, self.place
        inner = Section(self.take(size, field), 0, 0, size, self.format)
        inner.base, inner.start = base, start
        return inner

    @property
    def place(self) -> int:
        """Offset in the file of the next byte."""
        return self.start + self.at

    @property
    def left(self) -> int:
        """Number of bytes that are left."""
        return len(self.data) - self.at

    def packet(self, format: str = "jmq", size: int | None = None) -> StoredPacket:
        """Read a packet; check that it has `size` bytes, if given."""
        at = self.at
        packets = get_format(format)
        try:
            actual = packets.framing.frame_size(
                self.data,
                at,
                len(self.data),
                packets.framing.max_packet_bytes,
                packets.context,
                True,
            )
        except DecodeError as error:
            problem = f"is no {format} packet, '{error.field}' {error.problem}"
            raise self.fault(Malformed, "packet", at, problem, error.code) from None
        if actual is None:
            actual = self.left + 1  # too few bytes to show the size: truncated
        elif size not in (actual, None):
            problem = f"has {actual} bytes where the record says {size}"
            raise self.fault(Malformed, "packet", at, problem, "bad_size")
        self.take(actual, "packet")
        return StoredPacket(self.start + at, self.place)

    def message_id(self) -> str:
        """Read a SysMessageID as text."""
        return message_id_text(*_MESSAGE_ID.unpack(self.take(_MESSAGE_ID.size, "message id")))

    def count(self, field: str, least_bytes: int) -> int:
        """Read the number of items that follow, each of `least_bytes` or more."""
        start = self.at
        number = self.size(field)
        if number * least_bytes > self.left:
            raise Truncated(
                *(self.format, field, self.base + start),
                *(number * least_bytes, self.left, self.spec),
            )
        return number

    def size(self, field: str, width: int = 4) -> int:
        """Read a length in bytes, which must not be negative."""
        start = self.at
        number = self.integer(width, field)
        if number < 0:
            raise self.fault(Malformed, field, start, f"is {number}", "bad_size")
        return number

    def consumers(self) -> tuple[ConsumerState, ...]:
        """Read the ids of a message's consumers."""
        number = self.count("consumer count", _CONSUMER_ID.size)
        ids = self.take(number * _CONSUMER_ID.size, "consumer ids")
        return tuple(ConsumerState(number, None) for (number,) in _CONSUMER_ID.iter_unpack(ids))

    def end(self) -> None:
        """Check that everything was read."""
        if self.left:
            problem = f"is followed by {self.left} bytes that belong to nothing"
            raise self.fault(Malformed, "end", self.at, problem, "trailing_bytes")


ReadData = Callable[[Section, Contents], None]
"""Reads the data of a record into contents; on `DecodeError` these have the part before it."""
