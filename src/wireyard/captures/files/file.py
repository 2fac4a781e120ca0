"""Capture files, or extents of them: their bytes and records."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from typing import Final, NamedTuple, Self

from wireyard.arrays import Bytes
from wireyard.captures import signatures
from wireyard.captures.files import pcap, pcapng
from wireyard.captures.layout import MAX_RECORD_BYTES, USUAL_RECORD_BYTES
from wireyard.captures.records import NO_TIME, Context, Records
from wireyard.errors import SourceError, Truncated, WireError
from wireyard.formats import sniff
from wireyard.streams.mapped import map_bytes, release, spooled
from wireyard.streams.scan import OpenedStream, open_windows
from wireyard.streams.source import Damaged, Source, unsupported_compression
from wireyard.streams.urls import shown_url

MAX_CAPTURE_BYTES: Final = 1 << 34
"""Largest capture, inflated if it is compressed."""
REMOTE_AHEAD_BYTES: Final = USUAL_RECORD_BYTES
"""Bytes of a remote file that are fetched after an extent, for its last record."""
_SHOWN_BYTES: Final = 4


class Extent(NamedTuple):
    """The records of a capture file that begin in ``[start, stop)``; both are bounds of records."""

    start: int
    stop: int
    context: Context | None
    """The context of the record at `start`; None at the start of the file."""
    next_context: Context | None
    """The context of the record at `stop`."""
    packets: int
    """Number of records."""


def read_records(data: Bytes, name: str, extent: Extent | None = None) -> Iterator[Records]:
    """Yield the records of a capture file, or of an extent of it.

    `SourceError` is raised if the file is no capture.
    """
    part = () if extent is None else extent[:3]
    head = data[:_SHOWN_BYTES].tobytes()
    if head[:4] in pcap.MAGICS:
        return pcap.read_records(data, *part)
    if head[:4] == signatures.PCAPNG:
        return pcapng.read_records(data, *part)
    if not head:
        raise SourceError(f"{name}: is empty, so no capture")
    format = sniff(data[: signatures.SNIFFED_BYTES].tobytes())
    if format is None and (packed := unsupported_compression(head)):
        raise SourceError(f"{name}: {packed}")
    hint = f"; it begins like {format.name}, which 'wireyard decode' reads" if format else ""
    raise SourceError(f"{name}: begins like no capture ({head.hex(' ')}){hint}")


def find_record(data: Bytes, start: int, stop: int, context: Context) -> int | None:
    """Return where the first record in ``[start, stop)`` begins, a guess; None if there is none."""
    find = pcap.find_record if context.header_bytes else pcapng.find_record
    return find(data, start, stop, context)


def map_extent(path: str, start: int, stop: int) -> Bytes:
    """Return the bytes of a file as an array; only those of an extent are loaded.

    A record that begins before `stop` is loaded whole, in a remote file only if it ends at most
    `REMOTE_AHEAD_BYTES` after `stop`; a larger one needs a map of an extent that includes its end.
    """
    ahead = REMOTE_AHEAD_BYTES if "://" in path else MAX_RECORD_BYTES
    data = map_bytes(path, start, stop + ahead)
    if data is None:
        raise SourceError(f"{path}: cannot be read, or is another file than before")
    return data


class CaptureFile:
    """One file of a capture, or an extent of one, to be read once."""

    def __init__(
        self, name: str, data: Bytes, damage: Damaged | None, extent: Extent | None = None
    ) -> None:
        self.name, self.data = shown_url(name), data
        self.damage: WireError | Damaged | None = damage
        self.unread_bytes = 0 if damage is None else damage.unread_bytes
        self._extent = extent
        # These records are not kept, but read again: a capture may have ten thousand files.
        first = next(read_records(data, name, extent))
        self.begun_ns = int(first.times_ns[0]) if len(first) else NO_TIME

    @classmethod
    def open(cls, source: Source | OpenedStream) -> Self:
        """Load a file."""
        return cls(*_load(source))

    @classmethod
    def map(cls, path: str, extent: Extent) -> Self:
        """Load an extent of a local file that is not compressed.

        `SourceError` is raised if it cannot be read any more, or if it is another file now.
        """
        return cls(path, map_extent(path, extent.start, extent.stop), None, extent)

    def records(self) -> Iterator[Records]:
        """Yield its records; set `damage` and `unread_bytes`."""
        done = 0
        for records in read_records(self.data, self.name, self._extent):
            yield records
            release(self.data, done, records.stop)
            done = records.stop
        unread_bytes = len(self.data) - records.stop
        # Where a source ends early, so may its last record; other damage came before that.
        if self.damage is None or not isinstance(records.damage, Truncated | None):
            self.damage, self.unread_bytes = records.damage, unread_bytes
        self.unread_bytes = self.unread_bytes or unread_bytes


def _load(source: Source | OpenedStream) -> tuple[str, Bytes, Damaged | None]:
    """Return a source's name, its bytes, and the reason why these end early, if they do."""
    if isinstance(source, str | os.PathLike):
        path = os.fspath(source)
        if "://" in path and (size := map_bytes(path, 0, 0)) is not None:
            _check_size(path, len(size))  # before all of it is fetched
        pages = map_bytes(path)
        if pages is not None:
            _check_size(path, len(pages))
            return path, pages, None
    if not isinstance(source, OpenedStream):
        source = open_windows(source, accepts_damage=True)
    with closing(source):
        return source.name, spooled(_pieces(source)), source.damage


def _pieces(opened: OpenedStream) -> Iterator[memoryview]:
    size = 0
    for window in opened.windows:
        _check_size(opened.name, size := size + len(window.view))
        yield window.view
        window.start = window.stop


def _check_size(name: str, size: int) -> None:
    if size > MAX_CAPTURE_BYTES:
        limit = f"{MAX_CAPTURE_BYTES >> 30} GiB"
        raise SourceError(f"{name}: has over {limit}; cut it in pieces (editcap -c)")
