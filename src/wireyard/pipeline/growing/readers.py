"""Readers of growing inputs: turn the bytes of a capture or a bare stream into streams."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from wireyard.captures.carriers.tls_keys import embedded_secrets, read_key_logs
from wireyard.captures.detection.assignment import parse_decode_as
from wireyard.captures.live.capture import LiveCapture
from wireyard.captures.live.following import BareStream
from wireyard.captures.live.growing import GrowingCapture
from wireyard.captures.signatures import PCAPNG, STATED, stated_columns
from wireyard.pipeline.growing.sources import GrowingFiles
from wireyard.streams.blocks import Grown
from wireyard.streams.framer import Framer

if TYPE_CHECKING:
    from wireyard.formats.base import Format


@dataclass(frozen=True, slots=True)
class GrowthSettings:
    """Settings for growing inputs; the fields are those of `open_captures`."""

    decode_as: tuple[str, ...] = ()
    keylog: tuple[str, ...] = ()
    max_packet_bytes: int | None = None


class CaptureReader:
    """Reader of a growing capture."""

    def __init__(self, files: GrowingFiles, named: Format | None, settings: GrowthSettings) -> None:
        self._files, self._restored = files, False
        # Secrets are in no state: those in the files are read again.
        keys = read_key_logs(settings.keylog, lambda: embedded_secrets(self._bytes_before()))
        rules = [parse_decode_as(text) for text in settings.decode_as]
        limit = settings.max_packet_bytes
        capture = LiveCapture(files.source, named, rules, keys, limit, describes=True)
        self._growing = GrowingCapture(capture)
        self._stated = stated_columns(())

    def _bytes_before(self) -> Iterator[Any]:
        """Yield the bytes that were read before a restore, of files that may hold secrets."""
        return self._files.bytes_before(PCAPNG) if self._restored else iter(())

    @property
    def offset(self) -> int:
        """File offset of the next record."""
        return self._growing.file.offset

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from the state of another reader."""
        self._stated = {name: state[name] for name in STATED}
        self._growing.restore(state)
        self._restored = True

    def next_file(self) -> Iterator[list[Grown]]:
        """Continue at the beginning of another file; yield the rest of the previous one."""
        return self._growing.next_file()

    def receive(self, data: bytes) -> Iterator[list[Grown]]:
        """Take the next bytes; yield the streams that have new bytes, turn by turn."""
        return self._growing.feed(data)

    def end(self) -> Iterator[list[Grown]]:
        """Yield the rest."""
        return self._growing.end()

    def describe_streams(self) -> tuple[Mapping[str, Mapping[str, Any]], set[str]]:
        """Return new descriptions of streams since the last call, and which streams have ended."""
        self._stated = stated_columns([self._files.head()], self._stated)
        ended = dict(self._growing.capture.take_ended())
        found = {**ended, **dict(self._growing.capture.describe())}
        return {name: {**each, **self._stated} for name, each in found.items()}, {*ended}

    def state(self) -> dict[str, Any] | None:
        """Return the state from which another reader continues; None if it must start over."""
        state = self._growing.state()
        return None if state is None else {**state, **self._stated}

    def notes(self) -> list[str]:
        """Return notes for the user at the end of the input."""
        found = self._growing.summary()
        return [*filter(None, (found.damage, *found.notes, *found.closed, found.unread))]

    @property
    def frames(self) -> int:
        """Number of frames that were read."""
        return self._growing.capture.frames

    @property
    def last_ns(self) -> int | None:
        """Time of the last frame, as in the table `files`."""
        return self._growing.capture.last_ns

    @property
    def now_ns(self) -> int | None:
        """Time of the last frame, as captured."""
        return self._growing.capture.now_ns


class StreamReader:
    """Reader of a growing bare stream."""

    def __init__(self, path: str, format: Format, settings: GrowthSettings) -> None:
        self._path, self._format = path, format
        self._framer = Framer(format, settings.max_packet_bytes)
        self._stream = BareStream(path)

    @property
    def offset(self) -> int:
        """Offset of the next frame, or of the next byte within garbage."""
        return self._framer.position

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from the state of another reader."""
        self._framer.restore(state)
        self._stream = BareStream(self._path, self._framer.position)

    def receive(self, data: bytes) -> Iterator[list[Grown]]:
        """Take the next bytes; yield the stream."""
        self._stream.receive(data)
        yield [Grown(self._format, self._stream, self._framer)]

    def next_file(self) -> Iterator[list[Grown]]:
        """Yield nothing: a bare stream is one file."""
        yield from ()

    def end(self) -> Iterator[list[Grown]]:
        """Yield the rest."""
        self._stream.at_end = True
        yield [Grown(self._format, self._stream, self._framer)]

    def describe_streams(self) -> tuple[Mapping[str, Mapping[str, Any]], set[str]]:
        """Return nothing: a bare stream has no description and never ends by itself."""
        return {}, set()

    def state(self) -> dict[str, Any]:
        """Return the state from which another reader continues."""
        return self._framer.state()

    def notes(self) -> list[str]:
        """Return nothing."""
        return []

    @property
    def frames(self) -> None:
        """None: a bare stream has no frames."""

    @property
    def now_ns(self) -> None:
        """None: a bare stream has no times."""
