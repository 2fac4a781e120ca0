"""Index files: the headers of an extent of a capture, grouped by the reader that needs them.

One task reads the headers of each extent and writes them to an index file, grouped by the share of
their conversation. The reader of a share then loads only its own headers from all index files, and
touches no other packets. The result equals that of reading the whole capture for this share.

For a remote capture the payloads are stored with the headers, so that it is fetched once.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import IO, Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from wireyard.arrays import Bytes, Grid, Ints
from wireyard.captures.connections.flows import FlowTable
from wireyard.captures.connections.merge_kernels import copy_runs
from wireyard.captures.connections.times import Clock
from wireyard.captures.files.file import CaptureFile, Extent
from wireyard.captures.layout import Unit
from wireyard.captures.packets.headers import Cut, Headers, Tally, scan_headers
from wireyard.captures.packets.units import Share
from wireyard.captures.read import Capture, CaptureBuilder
from wireyard.errors import SourceError, WireError
from wireyard.streams.mapped import map_places
from wireyard.streams.source import Damaged, filesystem, reading

_NARROW: Final = {
    Unit.RECORD: pa.int32(),
    Unit.VERSION: pa.int8(),
    Unit.PROTOCOL: pa.int16(),
    Unit.CAPTURED: pa.int32(),
    Unit.LENGTH: pa.int32(),
    Unit.SRC_PORT: pa.int32(),
    Unit.DST_PORT: pa.int32(),
    Unit.FLAGS: pa.int16(),
    Unit.WINDOW: pa.int32(),
}
"""Columns of fewer than 64 bits; wide enough for fragments too."""
_TIME, _DELAY, _FRAME_BYTES = "time_ns", "delay_ns", "frame_bytes"
_SCHEMA: Final = pa.schema(
    [
        *((unit.name.lower(), _NARROW.get(unit, pa.int64())) for unit in Unit),
        (_TIME, pa.int64()),
        (_DELAY, pa.int64()),
        (_FRAME_BYTES, pa.int32()),
    ]
)
"""Rows of `Headers` with their times; for fragments also the captured bytes of the packet.

Times are as captured, as the extents before may change them; delays are those of `Clock`.

A file has a batch for each share, one for all shares, and one for fragments."""
_PAYLOAD: Final = pa.field("payload", pa.large_binary())
"""The captured bytes of each row; for remote captures only."""
_TALLY: Final = b"tally"
_LATEST: Final = b"latest_ns"
_LAST: Final = b"last_ns"
"""The latest time in the extent, and those of its last frames: see `Clock`."""
_TAIL_BYTES: Final = 1 << 18
"""Bytes at the end of a file that mostly hold its last two batches and its footer."""
_PLACE: Final = (Unit.START, Unit.CAPTURED)


class IndexedExtent(NamedTuple):
    """The index file of an extent."""

    path: str
    file: int
    """Number of the file of the capture that it is part of."""


class Written(NamedTuple):
    """An extent whose index was written."""

    extent: Extent
    """The extent with its real end."""
    damage: WireError | Damaged | None
    """The error that ended reading before its end."""


def write_index(sink: IO[bytes], file: CaptureFile, extent: Extent, of: int, port: int) -> Written:
    """Write the index of an extent of a file.

    If the file is remote, its payloads are written too. There are `of` shares; conversations of
    `port` are in all of them.
    """
    flows, tally, clock = FlowTable(), Tally(), Clock()
    units = _Columns()
    fragments = _Columns()
    numbers = [np.empty(0, np.int64)]
    for records in file.records():
        headers = scan_headers(file.data, records, tally.packets)
        clock.see(records.times_ns)
        grid = np.ascontiguousarray(headers.units)
        numbers.append(flows.number(grid, grid.shape[1]) >> 1)
        delays = clock.delays(headers.times_ns, grid[Unit.CAPTURED] > 0)
        units.add(grid, headers.times_ns, delays, np.zeros_like(delays))
        times_ns = headers.fragment_times_ns
        fragments.add(headers.fragments, times_ns, np.zeros_like(times_ns), headers.fragment_bytes)
        tally.add(headers.tally)
    shares = np.where(flows.has_port(0, port), of, flows.parts(0, of))[np.concatenate(numbers)]
    order = np.argsort(shares, kind="stable")
    bounds = np.searchsorted(shares[order], np.arange(of + 2))
    payload = file.data if "://" in file.name else None
    fields = _SCHEMA if payload is None else _SCHEMA.append(_PAYLOAD)
    times = {_LATEST: str(clock.latest_ns), _LAST: json.dumps(clock.last_ns.tolist())}
    counts = {_TALLY: json.dumps(_as_lists(tally)), **times}
    schema = fields.with_metadata(counts)
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    with pa.ipc.new_file(sink, schema, options=options) as written:
        rows = units.batch(order, payload)
        for start, stop in pairwise(bounds.tolist()):
            written.write_batch(rows.slice(start, stop - start))
        written.write_batch(fragments.batch(slice(None), payload))
    stop, context = records.stop, records.context
    walked = extent._replace(stop=stop, next_context=context, packets=tally.packets)
    return Written(walked, file.damage)


def read_indexed(paths: Sequence[str], index: Sequence[IndexedExtent], share: Share) -> Capture:
    """Read the conversations of a share from the index files of all extents of a capture.

    `paths` are the files of the capture, in the order of their packets, and `index` its index
    files, in the same order.
    """
    builder = CaptureBuilder(share)
    for number, path in enumerate(paths):
        builder.begin_file(path)
        own = [extent.path for extent in index if extent.file == number]
        if "://" in path:
            for kept, payload in (_with_payload(_load(each, share.part)) for each in own):
                builder.begin_bytes(payload)
                _take(kept, builder)
            continue
        # Headers of one extent at a time: a share may be a connection of millions of packets.
        data = map_places(path, (_places(_load(each, share.part, _PLACE)) for each in own))
        if data is None:
            raise SourceError(f"{path}: cannot be read, or is another file than before")
        builder.begin_bytes(data)
        for each in own:
            _take(_load(each, share.part), builder)
    return builder.capture()


class _Kept(NamedTuple):
    """The units of an extent for one share, all of its fragments, and its tally."""

    units: pa.Table
    fragments: pa.Table
    tally: Tally
    latest_ns: int
    """The latest time of any of its packets with bytes."""
    last_ns: Ints
    """The times of its last frames."""


def _take(kept: _Kept, builder: CaptureBuilder) -> None:
    """Add the units of an extent to the capture."""
    headers, delays = _headers(kept, builder.packets.count, builder.packets.base)
    builder.take(headers, delays, kept.latest_ns, kept.last_ns)


class _Columns:
    """Buffers for headers, in the narrow types of `_SCHEMA`."""

    def __init__(self) -> None:
        self._parts: list[list[npt.NDArray[Any]]] = []

    def add(self, grid: Grid, times_ns: Ints, delays: Ints, frame_bytes: Ints) -> None:
        """Add some headers."""
        columns = [*grid, times_ns, delays, frame_bytes]
        kinds = [field.type.to_pandas_dtype() for field in _SCHEMA]
        self._parts.append(
            [column.astype(kind) for column, kind in zip(columns, kinds, strict=True)]
        )

    def batch(self, rows: Any, data: Bytes | None) -> pa.RecordBatch:
        """Return rows as a batch; with their payloads if `data`, the file's bytes, is given."""
        schema = _SCHEMA if data is None else _SCHEMA.append(_PAYLOAD)
        if not self._parts:
            return pa.RecordBatch.from_pylist([], schema)
        columns = [np.concatenate(parts)[rows] for parts in zip(*self._parts, strict=True)]
        arrays = [pa.array(column) for column in columns]
        if data is not None:
            arrays.append(_payloads(data, columns[Unit.START], columns[Unit.CAPTURED]))
        return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _payloads(data: Bytes, starts: Ints, lengths: Ints) -> pa.Array:
    """Return ranges of a file as binary values."""
    lengths = lengths.astype(np.int64)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    content = np.empty(int(offsets[-1]), np.uint8)
    if len(content):
        copy_runs(data, 0, starts, lengths, 0, content)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(content)]
    return pa.Array.from_buffers(pa.large_binary(), len(lengths), buffers)


def _with_payload(kept: _Kept) -> tuple[_Kept, Bytes]:
    """Return headers whose starts are offsets in the stored payloads, and these payloads."""
    contents: list[Bytes] = [np.empty(0, np.uint8)]
    placed: list[pa.Table] = []
    base = 0
    for table in kept[:2]:
        starts = [np.empty(0, np.int64)]
        for chunk in table[_PAYLOAD.name].chunks:
            _, offsets, content = chunk.buffers()
            bounds = np.frombuffer(offsets, np.int64)[chunk.offset :][: len(chunk) + 1]
            starts.append(bounds[:-1] - bounds[0] + base)
            if content is not None:
                contents.append(np.frombuffer(content, np.uint8)[bounds[0] : bounds[-1]])
            base += int(bounds[-1] - bounds[0])
        column = pa.array(np.concatenate(starts))
        placed.append(table.set_column(int(Unit.START), _SCHEMA.field(int(Unit.START)), column))
    return kept._replace(units=placed[0], fragments=placed[1]), np.concatenate(contents)


def _places(kept: _Kept) -> tuple[Ints, Ints]:
    """Return starts and stops of the payloads of an extent."""
    starts, captured = (
        np.concatenate([table[unit.name.lower()].to_numpy() for table in kept[:2]])
        for unit in _PLACE
    )
    return starts, starts + captured


def _headers(kept: _Kept, first: int, base: int) -> tuple[Headers, Ints]:
    """Return the headers of an extent, and the delays of its units.

    `first` is the number of its first record, and `base` the address of its file.
    """
    grid, fragmented = (_grid(table, first, base) for table in kept[:2])
    times_ns, fragment_times_ns = (table[_TIME].to_numpy() for table in kept[:2])
    records, delays = grid[Unit.RECORD], kept.units[_DELAY].to_numpy()
    if (records[1:] < records[:-1]).any():  # those for all shares come after the share's own
        order = np.argsort(records, kind="stable")
        grid, times_ns, delays = grid[:, order], times_ns[order], delays[order]
    frame_bytes = kept.fragments[_FRAME_BYTES].to_numpy().astype(np.int64)
    headers = Headers(grid, times_ns, fragmented, fragment_times_ns, frame_bytes, kept.tally)
    return headers, delays


def _load(path: str, share: int, units: Sequence[Unit] = ()) -> _Kept:
    """Load the headers of an extent for a share; only the columns `units` if any are given."""
    system, inner = filesystem(path)
    options = pa.ipc.IpcReadOptions(included_fields=[*map(int, units)])
    with reading(path), system.open_input_file(inner) as source:
        opened = source if system.type_name == "local" else pa.PythonFile(_Remote(source), "r")
        file = pa.ipc.open_file(opened, options=options)
        *own, fragments = (
            file.get_batch(at) for at in (share, *range(file.num_record_batches)[-2:])
        )
        fates, frame_bytes, cut, endings = json.loads(file.schema.metadata[_TALLY])
        latest_ns = int(file.schema.metadata[_LATEST])
        last_ns = np.array(json.loads(file.schema.metadata[_LAST]), np.int64)
    counts = np.array([fates, frame_bytes], np.int64)
    tally = Tally(counts[0], counts[1], Cut(*cut), Counter(dict(endings)))
    units, rest = pa.Table.from_batches(own), pa.Table.from_batches([fragments])
    return _Kept(units, rest, tally, latest_ns, last_ns)


class _Remote:
    """A file in a store, of which the end is fetched at once: each read would be a request."""

    closed = False

    def __init__(self, file: pa.NativeFile) -> None:
        self._file, self._at = file, 0
        self._size: int = file.size()
        self._tail_at = max(self._size - _TAIL_BYTES, 0)
        self._tail: bytes = file.read_at(self._size - self._tail_at, self._tail_at)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + (self._size if whence == os.SEEK_END else 0)
        return self._at

    def tell(self) -> int:
        return self._at

    def read(self, count: int) -> bytes:
        start, self._at = self._at, self._at + count
        if start >= self._tail_at:
            return self._tail[start - self._tail_at :][:count]
        data: bytes = self._file.read_at(count, start)
        return data


def _grid(table: pa.Table, first: int, base: int) -> Grid:
    """Return a table as a grid of `Unit`, with record numbers and addresses of the capture."""
    grid = np.empty((len(Unit), table.num_rows), np.int64)
    for unit in Unit:
        grid[unit] = table.column(int(unit)).to_numpy()
    grid[Unit.RECORD] += first
    grid[Unit.START] += base
    return grid


def _as_lists(tally: Tally) -> list[Any]:
    counts = tally.fates.tolist(), tally.frame_bytes.tolist()
    return [*counts, [*tally.cut], [*tally.endings.items()]]
