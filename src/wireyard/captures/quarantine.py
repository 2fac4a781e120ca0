"""The quarantine table: rows that are not well-formed packets, with their first bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache, partial
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np
import pyarrow as pa

from wireyard.arrays import Grid, Ints
from wireyard.schema import COMMON, schema_of
from wireyard.streams.framer import GAP, GARBAGE, OK
from wireyard.streams.redaction import shown_beginning
from wireyard.streams.source import Reading, open_source, reading

if TYPE_CHECKING:
    from wireyard.captures.connections.stream import Stream
    from wireyard.captures.stores.stream import StoreStream
    from wireyard.formats.base import Format
    from wireyard.streams.batches import Part
    from wireyard.streams.blocks import Block

QUARANTINE: Final = pa.schema([*schema_of(COMMON), pa.field("first_bytes", pa.string())])
"""Columns of the table; `first_bytes` are the first bytes of the row in hex, up to the first
that may be secret; null if that is the first byte."""
SHOWN_BYTES: Final = 32
"""Number of bytes in `first_bytes`."""
MAX_CORRUPT_BYTES = 64 << 10
"""Bytes of a bad row that are read. Garbage may be as long as the file, and Spark holds rows in
memory; offset and length lead to the rest."""
_SKIP_BYTES = 1 << 20
_READ_BYTES: Final = 1 << 12
"""Bytes of a row that are read to find secrets; of a longer row only the header is shown."""
_MOST_ALIKE: Final = 256
"""Different rows that are remembered: those of an attack are often alike."""


class BytesOfRows(Protocol):
    """A reader of the bytes of bad rows."""

    def read(self, start: int, length: int) -> bytes:
        """Return the first bytes of the row at offset `start` of its stream."""


class BadBytes:
    """The bytes of bad rows of a bare stream, whose file is read again in the order of the rows."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._file: Reading | None = None
        self._seeks = False
        self._start, self._data = 0, b""
        """Offset of the bytes that were read last; of these, up to `MAX_CORRUPT_BYTES`."""

    def read(self, start: int, length: int) -> bytes:
        """Return up to `MAX_CORRUPT_BYTES` of the row at offset `start` of the stream."""
        wanted = min(length, MAX_CORRUPT_BYTES)
        if start < self._start or start + wanted > self._start + len(self._data):
            self._read_from(start)
        at = start - self._start
        return self._data[at : at + wanted]

    def close(self) -> None:
        """Close the file, if it was opened."""
        if self._file is not None:
            self._file.close()

    def _read_from(self, start: int) -> None:
        """Read the bytes from an offset on."""
        with reading(self._path):
            if self._file is None:
                _, self._file, size = open_source(self._path)
                self._seeks = size is not None  # a compressed file can only be read forward
            self._data = self._data[start - self._start :] if start >= self._start else b""
            self._start = start
            if not self._data and self._seeks:
                self._file.seek(start)
            while (left := start - self._file.position) > 0:
                if not self._file.read(min(left, _SKIP_BYTES)):
                    return
            while left := MAX_CORRUPT_BYTES - len(self._data):
                if not (more := self._file.read(left)):
                    return
                self._data += more


class PieceBytes:
    """The bytes of bad rows of a stream with gaps."""

    def __init__(self, stream: Stream | StoreStream) -> None:
        self._stream = stream

    def read(self, start: int, length: int) -> bytes:
        """Return up to `MAX_CORRUPT_BYTES` of the row at offset `start`; none of a gap."""
        at = int(np.searchsorted(self._pieces[:, 0], start, "right")) - 1
        stop = start + min(length, MAX_CORRUPT_BYTES)
        if at < 0 or stop > self._pieces[at, 1]:
            return b""
        return self._stream.read(start, stop).tobytes()

    @cached_property
    def _pieces(self) -> Grid:
        return self._stream.pieces  # cached, but only computed for streams with bad rows


class PartBytes:
    """The bytes of bad rows of several streams of a capture that were read together.

    `parts` are the blocks of the rows, in the order of the rows.
    """

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = parts
        self._stops = np.cumsum([len(block.offsets) for _, block in parts])
        self._streams: dict[int, PieceBytes] = {}
        """The readers of streams with gaps, by the number of the part: each finds the gaps once."""

    def of_row(self, row: int) -> BytesOfRows:
        """Return the bytes of the stream of a row."""
        from wireyard.captures.directed import CapturedStream

        at = int(self._stops.searchsorted(row, "right"))
        opened, block = self._parts[at]
        if isinstance(opened, CapturedStream):
            return self._streams.setdefault(at, PieceBytes(opened.captured))
        return _BlockBytes(block, row - int(self._stops[at]) + len(block.offsets))


class _BlockBytes:
    """The bytes of a row of streams that were read together, which are in memory."""

    def __init__(self, block: Block, row: int) -> None:
        self._block, self._row = block, row

    def read(self, start: int, length: int) -> bytes:
        """Return up to `MAX_CORRUPT_BYTES` of the row; none of a gap."""
        frame = self._block.odd.get(self._row)
        if frame is not None and frame.status == GAP:
            return b""
        return self._block.view(self._row)[: min(length, MAX_CORRUPT_BYTES)].tobytes()


def bad_rows(batch: pa.RecordBatch) -> Ints:
    """Return the indexes of the rows that are not well-formed packets.

    Bytes between the packets of a store have no error, and are not quarantined.
    """
    from pyarrow import compute as pc  # slow to import

    is_bad = pc.and_(pc.not_equal(batch["status"], OK), batch["error"].is_valid())
    return np.flatnonzero(is_bad.to_numpy(zero_copy_only=False))


def quarantined(
    format: Format,
    batch: pa.RecordBatch,
    bad: Ints,
    bad_bytes: Callable[[int], BytesOfRows],
    *,
    secrets: bool = False,
) -> pa.RecordBatch:
    """Return the rows of the quarantine table for a batch.

    `bad` is the result of `bad_rows`. `bad_bytes` returns the bytes of the stream of a row. With
    `secrets`, bytes that may be secret are shown too.
    """
    rows = batch.select([*QUARANTINE.names[:-1], *_context_of(batch)]).take(pa.array(bad))
    most = _READ_BYTES if format.secrets.types and not secrets else SHOWN_BYTES
    shown: list[str | None] = []
    beginning = lru_cache(_MOST_ALIKE)(partial(shown_beginning, format))
    for at, row in zip(bad.tolist(), rows.drop_columns("error").to_pylist(), strict=True):
        if row["status"] == GARBAGE and most != SHOWN_BYTES:
            shown.append(None)
            continue
        data = bad_bytes(at).read(row["offset"], min(row["length"], most))
        if not secrets:
            context = format.contexts.of_row(row, format.context)
            data = beginning(data, row["status"], context)
        shown.append(data[:SHOWN_BYTES].hex() if data or row["status"] == GAP else None)
    columns = [*rows.select(QUARANTINE.names[:-1]).columns, pa.array(shown, pa.string())]
    return pa.RecordBatch.from_arrays(columns, schema=QUARANTINE)


def _context_of(batch: pa.RecordBatch) -> list[str]:
    """Return the columns that `Format.contexts.of_row` reads."""
    return [name for name in ("version_in_force",) if name in batch.schema.names]
