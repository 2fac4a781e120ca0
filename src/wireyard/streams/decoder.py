"""An incremental decoder of a stream: chunks of bytes in, packets and faults out.

It uses no clock, socket or thread; those are the caller's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any

from wireyard.errors import DecodeError
from wireyard.formats.base import Format
from wireyard.streams.blocks import Block
from wireyard.streams.framer import MALFORMED, OK, Frame, Framer


class Need(Enum):
    """Results of `Decoder.next_event` without an event."""

    DATA = "data"
    """More bytes are needed."""
    NOTHING = "nothing"
    """The stream has ended, and events cover all of its bytes."""


@dataclass(frozen=True, slots=True)
class Decoded:
    """An event of a stream: a packet, or bytes that are none.

    `offset` and `length` are in bytes of the stream; events are contiguous. `packet` is None unless
    `status` is ``ok``; else `error` has the reason.
    """

    offset: int
    length: int
    status: str
    packet: Any
    error: DecodeError | None


class Decoder:
    """Decode one directed stream incrementally.

    Limits
    ------
    Holds at most one unfinished packet of `max_packet_bytes`, and one chunk. Garbage is counted,
    not held.

    Examples
    --------
    >>> from wireyard.formats import get_format
    >>> decoder = Decoder(get_format("jmq"))
    >>> decoder.receive_data(b"HELP")
    >>> decoder.receive_end()
    >>> [(event.status, event.length) for event in decoder.events()]
    [('garbage', 4)]
    """

    def __init__(self, format: Format, max_packet_bytes: int | None = None) -> None:
        self.format = format
        self._framer = Framer(format, max_packet_bytes)
        self._buffer = bytearray()
        self._base = 0
        self._ended = False

    def receive_data(self, data: bytes | bytearray | memoryview) -> None:
        """Add the next bytes of the stream."""
        if self._ended:
            raise ValueError("bytes after the end of the stream")
        self._buffer += data

    def receive_end(self) -> None:
        """End the stream here."""
        self._ended = True

    def next_event(self) -> Decoded | Need:
        """Return the next event, or `Need` if there is none."""
        with memoryview(self._buffer) as whole, whole[self._framer.position - self._base :] as view:
            frame = self._framer.next_frame(view, self._ended)
            event = None if frame is None else self._decode(frame, whole)
        del self._buffer[: self._framer.position - self._base]
        self._base = self._framer.position
        if event is not None:
            return event
        return Need.NOTHING if self._ended else Need.DATA

    def events(self) -> Iterator[Decoded]:
        """Yield events until more bytes are needed."""
        while isinstance(event := self.next_event(), Decoded):
            yield event

    def _decode(self, frame: Frame, buffer: memoryview) -> Decoded:
        length = frame.stop - frame.start
        if frame.status != OK:
            return Decoded(frame.start, length, frame.status, None, frame.error)
        with buffer[frame.start - self._base : frame.stop - self._base] as view:
            return _decode(view, frame.start, self.format, frame.context)


def decode_blocks(blocks: Iterable[Block], format: Format) -> Iterator[Decoded]:
    """Yield the events of the rows of blocks."""
    for block in blocks:
        offsets, lengths = block.offsets.tolist(), block.lengths.tolist()
        for row, (offset, length) in enumerate(zip(offsets, lengths, strict=True)):
            odd = block.odd.get(row)
            if odd is not None:
                yield Decoded(offset, length, odd.status, None, odd.error)
            else:
                yield _decode(block.view(row), offset, format, int(block.contexts[row]))


def _decode(view: memoryview, offset: int, format: Format, context: int) -> Decoded:
    try:
        return Decoded(offset, len(view), OK, format.decode(bytes(view), context), None)
    except DecodeError as error:
        return Decoded(offset, len(view), MALFORMED, None, error)
