"""What turns the bytes of inputs that grow to streams: captures, and bare streams."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from wireyard.captures.assignment import parse_decode_as
from wireyard.captures.following import BareStream
from wireyard.captures.growing import GrowingFile
from wireyard.captures.inputs import describe_unknown
from wireyard.captures.live import LiveCapture
from wireyard.captures.live_state import capture_state, restore_capture
from wireyard.captures.magic import PCAPNG
from wireyard.captures.tls_keys import embedded_secrets, read_key_logs
from wireyard.spark.growing_files import GrowingFiles
from wireyard.streams.framer import Framer
from wireyard.streams.growth import Grown

if TYPE_CHECKING:
    from wireyard.formats.base import Format

__all__ = ["CaptureReader", "GrowthSettings", "Reader", "StreamReader"]


@dataclass(frozen=True, slots=True)
class GrowthSettings:
    """How growing inputs are read; the fields are those of `open_captures`."""

    decode_as: tuple[str, ...] = ()
    keylog: tuple[str, ...] = ()
    max_packet_bytes: int | None = None


class Reader(Protocol):
    """What turns the bytes of an input to streams."""

    offset: int
    """Where the bytes begin that a reader of the state wants next."""

    def receive(self, data: bytes) -> Iterator[list[Grown]]:
        """Take the next bytes; yield what can be read."""

    def next_file(self) -> Iterator[list[Grown]]:
        """Go on with the beginning of another file; yield what is left of the one before."""

    def end(self) -> Iterator[list[Grown]]:
        """Yield what is left."""

    def facts(self) -> tuple[Mapping[str, Mapping[str, Any]], set[str]]:
        """Return what is known of streams since this was asked last, and which have ended."""

    def state(self) -> dict[str, Any] | None:
        """Return what another reader goes on with, None if it has to begin anew."""

    def notes(self) -> list[str]:
        """Return what is to be said of the input at its end."""

    @property
    def frames(self) -> int | None:
        """How many frames of a capture were read."""

    @property
    def now_ns(self) -> int | None:
        """The time of the last of them."""


class CaptureReader:
    """A capture that grows."""

    def __init__(self, files: GrowingFiles, named: Format | None, settings: GrowthSettings) -> None:
        self._files, self._restored = files, False
        # Secrets are in no state: those in the files are read again.
        keys = read_key_logs(settings.keylog, lambda: embedded_secrets(self._bytes_before()))
        rules = [parse_decode_as(text) for text in settings.decode_as]
        limit = settings.max_packet_bytes
        self._capture = LiveCapture(files.source, named, rules, keys, limit, describes=True)
        self._take_secrets = keys.add
        self._file = GrowingFile(keys.add)
        self._damage: str | None = None
        self._unread_bytes = 0

    def _bytes_before(self) -> Iterator[Any]:
        """Yield the bytes before those that arrive, of files that may hold secrets."""
        return self._files.bytes_before(PCAPNG) if self._restored else iter(())

    @property
    def offset(self) -> int:
        """Where the record begins in its file that is not read yet."""
        return self._file.offset

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on where another reader stood."""
        self._damage, self._unread_bytes = state["damage"]
        restore_capture(state, self._capture, self._file)
        self._restored = True

    def next_file(self) -> Iterator[list[Grown]]:
        """Go on with the beginning of another file; yield what is left of the one before."""
        for part, records in self._file.end():
            yield self._capture.receive(part, records)
        self._add_damage()
        self._file = GrowingFile(self._take_secrets)

    def _add_damage(self) -> None:
        """Count what of the file cannot be read."""
        if self._file.damage is not None:
            self._damage = self._damage or str(self._file.damage)
            self._unread_bytes += self._file.unread_bytes

    def receive(self, data: bytes) -> Iterator[list[Grown]]:
        """Take the next bytes; yield what can be read."""
        for part, records in self._file.receive(np.frombuffer(data, np.uint8), idle=True):
            yield self._capture.receive(part, records)

    def end(self) -> Iterator[list[Grown]]:
        """Yield what is left."""
        yield from self.next_file()
        yield from self._capture.end()

    def facts(self) -> tuple[Mapping[str, Mapping[str, Any]], set[str]]:
        """Return what is known of streams since this was asked last, and which have ended."""
        ended = dict(self._capture.take_ended())
        return {**ended, **dict(self._capture.describe())}, {*ended}

    def state(self) -> dict[str, Any] | None:
        """Return what another reader goes on with, None if it has to begin anew."""
        state = capture_state(self._capture, self._file)
        return None if state is None else {**state, "damage": [self._damage, self._unread_bytes]}

    def notes(self) -> list[str]:
        """Return what is to be said of the input at its end."""
        capture, damage = self._capture, self._damage
        found = describe_unknown(
            capture.name,
            capture.unknown,
            capture.tally_endings,
            capture.proxies,
            damage=f"{damage}; {self._unread_bytes} bytes are not read" if damage else None,
            problems=[*capture.problems],
            keyed=capture.has_keys,
        )
        return [*filter(None, (found.damage, *found.notes, *found.closed, found.unread))]

    @property
    def frames(self) -> int:
        """How many frames were read."""
        return self._capture.frames

    @property
    def now_ns(self) -> int | None:
        """The time of the last frame."""
        return self._capture.now_ns


class StreamReader:
    """A bare stream that grows."""

    def __init__(self, path: str, format: Format, settings: GrowthSettings) -> None:
        self._path, self._format = path, format
        self._framer = Framer(format, settings.max_packet_bytes)
        self._stream = BareStream(path)

    @property
    def offset(self) -> int:
        """Where the frame begins that is not read yet, or in garbage the next byte."""
        return self._framer.position

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on where another reader stood."""
        self._framer.restore(state)
        self._stream = BareStream(self._path, self._framer.position)

    def receive(self, data: bytes) -> Iterator[list[Grown]]:
        """Take the next bytes; yield what can be read."""
        self._stream.receive(data)
        yield [Grown(self._format, self._stream, self._framer)]

    def next_file(self) -> Iterator[list[Grown]]:
        """Yield nothing: a bare stream is one file."""
        yield from ()

    def end(self) -> Iterator[list[Grown]]:
        """Yield what is left."""
        self._stream.at_end = True
        yield [Grown(self._format, self._stream, self._framer)]

    def facts(self) -> tuple[Mapping[str, Mapping[str, Any]], set[str]]:
        """Return nothing: a bare stream has no description, and may always go on."""
        return {}, set()

    def state(self) -> dict[str, Any]:
        """Return what another reader goes on with."""
        return self._framer.state()

    def notes(self) -> list[str]:
        """Return nothing."""
        return []

    @property
    def frames(self) -> None:
        """None: it has none."""

    @property
    def now_ns(self) -> None:
        """None: it has no times."""
