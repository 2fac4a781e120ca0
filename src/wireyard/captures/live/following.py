"""Follow a capture or a bare stream that is still written: its rows as its bytes arrive."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from io import BufferedReader
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

import numpy as np

from wireyard.arrays import Ints
from wireyard.captures.inputs import Input, no_format, shown_format
from wireyard.captures.records import describe_damage
from wireyard.captures.signatures import SNIFFED_BYTES, is_capture
from wireyard.errors import UsageError
from wireyard.formats import Format
from wireyard.streams.arrivals import Arrival, arrivals_of_file, arrivals_of_pipe, first_bytes
from wireyard.streams.blocks import Block, FrameScanner, Grown, cut_window
from wireyard.streams.framer import Framer
from wireyard.streams.source import MAGIC_BYTES, Damaged, Reading, compression
from wireyard.streams.window import Window

if TYPE_CHECKING:
    from wireyard.captures.live.growing import GrowingCapture

_INFLATED_BYTES: Final = 1 << 16
_NO_CONSTANTS: Final[Mapping[str, str | int]] = {}
_STANDARD_INPUT: Final = 0


def follow(
    source: str | os.PathLike[str],
    named: Format | None = None,
    decode_as: Sequence[str] = (),
    keylog: Sequence[str | os.PathLike[str]] = (),
    *,
    max_packet_bytes: int | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Following:
    """Open a source that is still written.

    Parameters
    ----------
    source
        ``-`` for standard input, or the path of a named pipe: read to its end. The path of a file,
        or a pattern of paths: read until `stop`, with the bytes that are appended and the files
        that replace it; see `arrivals_of_file`.
    named, decode_as, keylog
        As for `open_input`.
    max_packet_bytes
        Largest packet that is accepted as one; the format's own bound if None.
    stop
        Called a few times a second; reading ends when it returns true.

    Raises
    ------
    SourceError
        The source cannot be read.
    UsageError
        A bare stream is compressed or of unknown format, or a key log is not one.
    """
    from wireyard.captures.carriers.tls_keys import read_key_logs
    from wireyard.captures.detection.assignment import parse_decode_as

    rules, keys = [parse_decode_as(text) for text in decode_as], read_key_logs(keylog)
    name = os.fspath(source)

    def new_capture() -> GrowingCapture:
        from wireyard.captures.live.capture import LiveCapture
        from wireyard.captures.live.growing import GrowingCapture

        return GrowingCapture(LiveCapture(name, named, rules, keys, max_packet_bytes))

    return Following(name, _arrivals(name, stop), named, new_capture, max_packet_bytes)


def _arrivals(path: str, stop: Callable[[], bool]) -> Iterator[Arrival]:
    if path == "-":
        if head := first_bytes():
            yield Arrival(cast(BufferedReader, sys.stdin.buffer).read1(len(head)))
        yield from arrivals_of_pipe(_STANDARD_INPUT, path, stop)
    elif Path(path).is_fifo():
        with open(path, "rb", buffering=0, opener=_without_waiting) as file:
            yield from arrivals_of_pipe(file.fileno(), path, stop)
    else:
        yield from arrivals_of_file(path, stop)


def _without_waiting(path: str, flags: int) -> int:
    """Open a FIFO that no program writes to yet; opening would wait, and hear no `stop`."""
    return os.open(path, flags | os.O_NONBLOCK)


@dataclass
class Following:
    """A source that is being followed."""

    name: str
    _arriving: Iterator[Arrival] = field(repr=False)
    _named: Format | None
    _new_capture: Callable[[], GrowingCapture] = field(repr=False)
    _max_packet_bytes: int | None
    captured: bool = False
    """Whether it is a capture; valid from the first turn with a stream on."""
    _capture: GrowingCapture | None = field(default=None, repr=False)
    _damage: list[str] = field(default_factory=list, repr=False)

    def turns(self) -> Iterator[list[Grown]]:
        """Yield the streams that can be read, turn by turn; an empty list before each wait.

        All streams of a turn have to be read before the next turn.
        """
        if self._is_pipe:
            self._arriving = self._unpacked(self._arriving)
        head = bytearray()
        for arrival in self._arriving:
            head += arrival.data
            if is_capture(bytes(head[:MAGIC_BYTES])):
                self.captured = True
                yield from self._capture_turns(Arrival(bytes(head)))
                return
            format = self._format(bytes(head), arrival)
            if format is not None:
                yield from self._stream_turns(format, Arrival(bytes(head)))
                return
            if len(head) >= SNIFFED_BYTES:
                break
            yield []
        format = shown_format(bytes(head), self._named) or self._named
        if format is None:
            no_format(self.name, bytes(head))
        yield from self._stream_turns(format, Arrival(bytes(head)))

    def summary(self) -> Input:
        """Return the unknown streams and losses of the source, as an `Input` without streams."""
        if self._capture is not None:
            return self._capture.summary(self._damage)
        return Input(self.name, False, [], broken="; ".join(self._damage) or None)

    def close(self) -> None:
        """Close the source."""
        close: Callable[[], None] | None = getattr(self._arriving, "close", None)
        if close is not None:
            close()

    def _unpacked(self, arriving: Iterator[Arrival]) -> Iterator[Arrival]:
        """Yield the bytes of a pipe, inflated if they are compressed."""
        head = b""
        while len(head) < MAGIC_BYTES and (arrival := next(arriving, None)) is not None:
            head += arrival.data
            yield arrival._replace(data=b"")
        codec = compression(head)
        if codec is None:
            yield Arrival(head)
            yield from arriving
            return
        from wireyard.streams.compressed import inflated

        file = inflated(Reading(_Arriving(head, arriving), ours=False), codec)
        try:
            while data := file.read(_INFLATED_BYTES):
                yield Arrival(data)
        except Damaged as damage:
            self._damage.append(describe_damage(damage, damage.unread_bytes))

    def _format(self, head: bytes, arrival: Arrival) -> Format | None:
        """Return the format of a bare stream; None while it is not certain."""
        from wireyard.captures.detection.assignment import HEAD_BYTES
        from wireyard.captures.live.copies import SETTLE_NS

        if compression(head):  # of a file, as pipes are inflated
            raise UsageError(f"{self.name}: is compressed, and cannot be read while it is written")
        settled = len(head) >= HEAD_BYTES or arrival.idle_ns >= SETTLE_NS
        if self._named is not None and len(head) >= MAGIC_BYTES:
            return shown_format(head, self._named) or self._named if settled else None
        return shown_format(head, self._named) if settled and head else None

    def _stream_turns(self, format: Format, first: Arrival) -> Iterator[list[Grown]]:
        stream = BareStream(self.name)
        framer = Framer(format, self._max_packet_bytes)
        grown = [Grown(format, stream, framer)]
        stream.receive(first.data)
        yield grown
        for arrival in self._arriving:
            if arrival.data:
                stream.receive(arrival.data)
                yield grown
            else:
                yield []
        stream.at_end = True
        yield grown

    def _capture_turns(self, first: Arrival) -> Iterator[list[Grown]]:
        self._capture = capture = self._new_capture()
        yield from capture.feed(first.data, idle=False)
        for arrival in self._arriving:
            if arrival.begins:
                yield from capture.next_file()
            yield from capture.feed(arrival.data, idle=not arrival.data)
            if not arrival.data:
                yield capture.capture.wait(arrival.idle_ns)
                yield []
            if capture.file.damage is not None and self._is_pipe:
                break
        yield from capture.end()

    @property
    def _is_pipe(self) -> bool:
        return self.name == "-" or Path(self.name).is_fifo()


class _Arriving:
    """The bytes that arrive in a pipe as a binary file."""

    def __init__(self, head: bytes, arriving: Iterator[Arrival]) -> None:
        self._ahead, self._arriving = head, arriving

    def read(self, count: int) -> bytes:
        """Return the next bytes, at most `count`, once there are any; none at the end."""
        while not self._ahead and (arrival := next(self._arriving, None)) is not None:
            self._ahead = arrival.data
        data, self._ahead = self._ahead[:count], self._ahead[count:]
        return data


class BareStream:
    """The unread bytes of a bare stream that is still written.

    `name` is that of the source and of the stream. `start` is the offset in the stream of the first
    byte that arrives.
    """

    def __init__(self, name: str, start: int = 0) -> None:
        self.name = self.stream = name
        self.context: int | None = None
        self.size: int | None = None
        self.at_end = False
        self._data = np.empty(0, np.uint8)
        self._base = start

    def receive(self, data: bytes) -> None:
        """Add the next bytes."""
        new = np.frombuffer(data, np.uint8)
        self._data = np.concatenate([self._data, new]) if len(self._data) else new

    def held(self) -> Callable[[int, int], bytes]:
        """Return a reader of ranges of the bytes held now; of no bytes if the first is not held."""
        data, base = self._data, self._base

        def read(start: int, stop: int) -> bytes:
            return data[start - base : stop - base].tobytes() if start >= base else b""

        return read

    @property
    def bytes_ahead(self) -> int:
        """Number of bytes that can be read."""
        return len(self._data)

    def blocks(
        self, framer: Framer, scanner: FrameScanner | None, _limit: int | None = None
    ) -> Iterator[Block]:
        """Yield the rows of the bytes held now as blocks."""
        start, stop = framer.position - self._base, len(self._data)
        window = Window(self._data, self._base, start, stop, self.at_end)
        yield from cut_window(window, framer, scanner)
        self._data = self._data[framer.position - self._base :]
        self._base = framer.position

    @property
    def constants(self) -> Mapping[str, str | int]:
        """Empty: the endpoints of a bare stream are unknown."""
        return _NO_CONSTANTS

    def columns(self, _block: Block) -> Mapping[str, Ints]:
        """Return no columns: the times of a bare stream are unknown."""
        return {}

    def close(self) -> None:
        """Do nothing: `Following` closes the source."""
