"""The table `tcp_segments`: a row for every TCP segment and UDP datagram, as it was captured.

Only IP fragments are reassembled. Retransmissions are separate rows, and lost segments are missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, pairwise
from typing import Final

import numpy as np
import pyarrow as pa

from wireyard.arrays import Bools, Grid, Ints
from wireyard.captures.connections.flows import FlowTable
from wireyard.captures.files.file import CaptureFile, Extent
from wireyard.captures.files.places import Places
from wireyard.captures.layout import Flag, Protocol, Unit
from wireyard.captures.packets.headers import PacketReader, Tally, scan_headers
from wireyard.captures.packets.segment_columns import segment_schema
from wireyard.captures.records import NO_TIME, describe_damage
from wireyard.errors import SourceError
from wireyard.schema import Repeated, array_of, as_array
from wireyard.streams.source import Source

_LETTERS: Final = "FSRPAUEC"
_FLAG_TEXTS: Final = array_of(
    [
        "".join(letter for bit, letter in enumerate(_LETTERS) if flags >> bit & 1)
        for flags in range(256)
    ],
    pa.string(),
)
_TRANSPORTS: Final = array_of(["tcp", "udp"], pa.string())
_BATCH_BYTES: Final = 8 << 20
"""Payload bytes of a batch: few enough for the cache, and below the 2 GiB of a binary column."""
_MOST_FLOWS: Final = 1 << 16
"""Flows whose names are cached; a long capture has new ones all the time."""


def scan_segments(
    source: Source, columns: Sequence[str] | None = None, tally: Tally | None = None
) -> pa.RecordBatchReader:
    """Open a capture as a stream of batches of the table.

    `source` is as for `open_source`. `columns` are those wanted, in order; all if None. All packets
    are counted in `tally` while they are read. `UsageError` is raised if the table has no such
    column, `SourceError` if the source cannot be read or is no capture; if it is damaged, while
    reading, after the rows before the damage. The whole capture is in memory, except if it is a
    local file that is not compressed.
    """
    schema = segment_schema(columns)
    file = CaptureFile.open(source)
    rows = scan_files([file], file.name, schema, tally=tally)
    return pa.RecordBatchReader.from_batches(schema, rows)


def scan_extent(
    paths: Sequence[str], extent: Extent, first: int, source: str, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of an extent of the last one of `paths`, the local files of a capture.

    `first` is the number of packets of the capture before the extent.
    """
    *before, path = paths
    file = CaptureFile.map(path, extent)
    if not _has_fragments(file):
        yield from scan_files([CaptureFile.map(path, extent)], source, schema, first)
        return
    # Its fragments may complete datagrams that began before the extent.
    last = CaptureFile.map(path, extent._replace(start=0, context=None))
    files = chain(map(CaptureFile.open, before), [last])
    yield from scan_files(files, source, schema, first=first)


def scan_files(
    files: Iterable[CaptureFile],
    source: str,
    schema: pa.Schema,
    count: int = 0,
    first: int = 0,
    tally: Tally | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of the files of one capture, in the order of their packets.

    `source` is the capture, as in the column `source`. `count` is the number of packets before the
    files, and `first` the number, from 0 on, of the first packet whose row is wanted. All packets
    are counted in `tally`.
    """
    packets = PacketReader(count, tally)
    rows = _Rows(source, schema, packets.places)
    for file in files:
        packets.begin(file.data)
        for records in file.records():
            units, times_ns = packets.read(records)
            at = int(np.searchsorted(units[Unit.RECORD], first))
            yield from rows.batches(units[:, at:], times_ns[at:])
        if file.damage is not None:
            raise SourceError(f"{file.name}: {describe_damage(file.damage, file.unread_bytes)}")


def _has_fragments(file: CaptureFile) -> bool:
    return any(scan_headers(file.data, records, 0).fragments.shape[1] for records in file.records())


class _Rows:
    """Makes batches of rows from units."""

    def __init__(self, source: str, schema: pa.Schema, places: Places) -> None:
        self._source = source
        self._schema = schema
        self._places = places
        self._repeated = Repeated()
        self._names = _Names()

    def batches(self, units: Grid, times_ns: Ints) -> Iterator[pa.RecordBatch]:
        """Yield the rows of units, in batches of about `_BATCH_BYTES`."""
        stops = np.cumsum(units[Unit.CAPTURED])
        cuts = np.flatnonzero(np.diff(stops // _BATCH_BYTES)) + 1
        for start, stop in pairwise([0, *cuts.tolist(), len(times_ns)]):
            if start < stop:
                yield self._batch(units[:, start:stop], times_ns[start:stop])

    def _batch(self, units: Grid, times_ns: Ints) -> pa.RecordBatch:
        segments = _Segments(units, times_ns, self._places, self._names)
        arrays = [
            self._repeated.column("string", self._source, len(times_ns))
            if field.name == "source"
            else _COLUMNS[field.name](segments).cast(field.type)
            for field in self._schema
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


class _Names:
    """A cache of the addresses and names of flows as text."""

    def __init__(self) -> None:
        self._clear()

    def flows(self, units: Grid) -> Ints:
        """Return the flow of each unit; valid until the next call."""
        if len(self._flows) > _MOST_FLOWS:
            self._clear()
        flows = self._flows.number(np.ascontiguousarray(units), units.shape[1])
        for conversation in range(len(self._texts) >> 1, len(self._flows)):
            ends = self._flows.endpoints(conversation)
            for src, dst in (ends, ends[::-1]):
                self._texts.append((src.address, dst.address, f"{src}>{dst}"))
        return flows

    def texts(self, flows: Ints, part: int) -> pa.Array:
        """Return a text of each unit's flow: its source, target or name for `part` 0, 1 or 2."""
        used, places = np.unique(flows, return_inverse=True)
        texts = array_of([self._texts[flow][part] for flow in used.tolist()], pa.string())
        return texts.take(as_array(places))

    def _clear(self) -> None:
        self._flows = FlowTable()
        self._texts: list[tuple[str, str, str]] = []


class _Segments:
    """Units, and their values for columns."""

    def __init__(self, units: Grid, times_ns: Ints, places: Places, names: _Names) -> None:
        self._units, self._places, self._names = units, places, names
        self.times_ns = times_ns
        self.udp = units[Unit.PROTOCOL] == Protocol.UDP
        self._flows: Ints | None = None

    def field(self, unit: Unit) -> Ints:
        """Return one field of each unit."""
        values: Ints = self._units[unit]
        return values

    def of_tcp(self, values: Ints, absent: Bools | None = None) -> pa.Array:
        """Return values as an array that is null for UDP, and where they are absent."""
        return as_array(values, self.udp if absent is None else self.udp | absent)

    def texts(self, part: int) -> pa.Array:
        """Return a text of each unit's flow; see `_Names.texts`."""
        if self._flows is None:
            self._flows = self._names.flows(self._units)
        return self._names.texts(self._flows, part)

    def payloads(self) -> pa.Array:
        """Return the captured bytes of the payloads."""
        lengths = np.ascontiguousarray(self._units[Unit.CAPTURED])
        bounds = np.zeros(len(lengths) + 1, np.int32)
        np.cumsum(lengths, out=bounds[1:])
        data = np.empty(int(bounds[-1]), np.uint8)
        self._places.copy(np.ascontiguousarray(self._units[Unit.START]), lengths, data)
        buffers = [None, pa.py_buffer(bounds), pa.py_buffer(data)]
        return pa.Array.from_buffers(pa.binary(), len(lengths), buffers)


_COLUMNS: Final[dict[str, Callable[[_Segments], pa.Array]]] = {
    "frame": lambda rows: as_array(rows.field(Unit.RECORD) + 1),
    "captured_ns": lambda rows: as_array(rows.times_ns, rows.times_ns == NO_TIME),
    "transport": lambda rows: _TRANSPORTS.take(as_array(rows.udp.astype(np.int8))),
    "src_addr": lambda rows: rows.texts(0),
    "src_port": lambda rows: as_array(rows.field(Unit.SRC_PORT)),
    "dst_addr": lambda rows: rows.texts(1),
    "dst_port": lambda rows: as_array(rows.field(Unit.DST_PORT)),
    "flow": lambda rows: rows.texts(2),
    "seq": lambda rows: rows.of_tcp(rows.field(Unit.SEQUENCE)),
    "ack": lambda rows: rows.of_tcp(
        rows.field(Unit.ACKNOWLEDGMENT), rows.field(Unit.FLAGS) & Flag.ACK == 0
    ),
    "bit_flags": lambda rows: rows.of_tcp(rows.field(Unit.FLAGS)),
    "flags": lambda rows: _FLAG_TEXTS.take(rows.of_tcp(rows.field(Unit.FLAGS))),
    "window": lambda rows: rows.of_tcp(rows.field(Unit.WINDOW), rows.field(Unit.WINDOW) < 0),
    "payload_length": lambda rows: as_array(rows.field(Unit.LENGTH)),
    "cut_bytes": lambda rows: as_array(rows.field(Unit.LENGTH) - rows.field(Unit.CAPTURED)),
    "payload": lambda rows: rows.payloads(),
}
