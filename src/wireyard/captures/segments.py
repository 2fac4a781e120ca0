"""The table `tcp_segments`: every TCP segment and UDP datagram as it was captured, a row each.

Nothing is put together here but the fragments of datagrams: what was sent twice is there twice,
and what was lost is not there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, pairwise
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from wireyard.captures.files import CaptureFile, Extent
from wireyard.captures.flows import FlowTable
from wireyard.captures.headers import PacketReader, Tally, scan_headers
from wireyard.captures.layout import Flag, Protocol, Unit
from wireyard.captures.places import Places
from wireyard.captures.records import NO_TIME
from wireyard.captures.segment_columns import segment_schema
from wireyard.errors import SourceError
from wireyard.schema import Repeated, array_of, as_array
from wireyard.streams.source import Source

__all__ = ["scan_extent", "scan_files", "scan_segments"]

Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
Grid = np.ndarray[tuple[int, int], np.dtype[np.int64]]

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
"""Of payload: a batch is passed on while it is in the cache, and a binary column ends at 2 GiB."""
_MOST_FLOWS: Final = 1 << 16
"""Whose names are kept: a long capture has ever new ones."""


def scan_segments(
    source: Source, columns: Sequence[str] | None = None, tally: Tally | None = None
) -> pa.RecordBatchReader:
    """Open a capture as a stream of batches of the table.

    Parameters
    ----------
    source
        What `open_source` takes.
    columns
        The columns wanted, in order; all if None.
    tally
        Where all packets are counted while they are read.

    Raises
    ------
    SourceError
        The source cannot be read, or is no capture; while reading, that it is damaged, after the
        rows before the damage.
    UsageError
        A column the table does not have.

    Limits
    ------
    The whole capture is in memory, but for a local file that is not compressed.
    """
    schema = segment_schema(columns)
    file = CaptureFile.open(source)
    rows = scan_files([file], file.name, schema, tally=tally)
    return pa.RecordBatchReader.from_batches(schema, rows)


def scan_extent(
    paths: Sequence[str], extent: Extent, first: int, source: str, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of an extent of the last of the local files of one capture.

    Parameters
    ----------
    first
        How many packets of the capture there are before it.
    """
    *before, path = paths
    file = CaptureFile.map(path, extent)
    if not _has_fragments(file):
        yield from scan_files([CaptureFile.map(path, extent)], source, schema, first)
        return
    # Some may complete a datagram whose other fragments came before.
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

    Parameters
    ----------
    source
        What the rows call the capture.
    count
        How many packets there are before the files.
    first
        The number, from 0 on, of the first packet whose row is wanted.
    tally
        Where all packets are counted.
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
            raise SourceError(f"{file.name}: {file.damage}; {file.unread_bytes} bytes are not read")


def _has_fragments(file: CaptureFile) -> bool:
    return any(scan_headers(file.data, records, 0).fragments.shape[1] for records in file.records())


class _Rows:
    """Makes rows of units."""

    def __init__(self, source: str, schema: pa.Schema, places: Places) -> None:
        self._source = source
        self._schema = schema
        self._places = places
        self._repeated = Repeated()
        self._names = _Names()

    def batches(self, units: Grid, times_ns: Ints) -> Iterator[pa.RecordBatch]:
        """Yield the rows of units, without too many bytes in one batch."""
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
    """Addresses of conversations and names of flows as text, each made once."""

    def __init__(self) -> None:
        self._forget()

    def flows(self, units: Grid) -> Ints:
        """Return the flow of each unit; good until this is asked again."""
        if len(self._flows) > _MOST_FLOWS:
            self._forget()
        flows = self._flows.number(np.ascontiguousarray(units), units.shape[1])
        for conversation in range(len(self._texts) >> 1, len(self._flows)):
            ends = self._flows.endpoints(conversation)
            for src, dst in (ends, ends[::-1]):
                self._texts.append((src.address, dst.address, f"{src}>{dst}"))
        return flows

    def texts(self, flows: Ints, part: int) -> pa.Array:
        """Return one of a flow's texts for each unit: source, target, name."""
        used, places = np.unique(flows, return_inverse=True)
        texts = array_of([self._texts[flow][part] for flow in used.tolist()], pa.string())
        return texts.take(as_array(places))

    def _forget(self) -> None:
        self._flows = FlowTable()
        self._texts: list[tuple[str, str, str]] = []


class _Segments:
    """Some units, and what their columns are made of."""

    def __init__(self, units: Grid, times_ns: Ints, places: Places, names: _Names) -> None:
        self._units, self._places, self._names = units, places, names
        self.times_ns = times_ns
        self.udp = units[Unit.PROTOCOL] == Protocol.UDP
        self._flows: Ints | None = None

    def field(self, unit: Unit) -> Ints:
        """Return a field of each."""
        values: Ints = self._units[unit]
        return values

    def of_tcp(self, values: Ints, absent: npt.NDArray[np.bool_] | None = None) -> pa.Array:
        """Return values that datagrams do not have."""
        return as_array(values, self.udp if absent is None else self.udp | absent)

    def texts(self, part: int) -> pa.Array:
        """Return a text that is made of the endpoints."""
        if self._flows is None:
            self._flows = self._names.flows(self._units)
        return self._names.texts(self._flows, part)

    def payloads(self) -> pa.Array:
        """Return what was captured of the payloads."""
        lengths = np.ascontiguousarray(self._units[Unit.CAPTURED])
        bounds = np.zeros(len(lengths) + 1, np.int32)
        np.cumsum(lengths, out=bounds[1:])
        data = np.empty(int(bounds[-1]), np.uint8)
        self._places.copy(np.ascontiguousarray(self._units[Unit.START]), lengths, data)
        buffers = [None, pa.py_buffer(bounds), pa.py_buffer(data)]
        return pa.Array.from_buffers(pa.binary(), len(lengths), buffers)


_COLUMNS: Final[dict[str, Callable[[_Segments], pa.Array]]] = {
    "frame": lambda one: as_array(one.field(Unit.RECORD) + 1),
    "captured_ns": lambda one: as_array(one.times_ns, one.times_ns == NO_TIME),
    "transport": lambda one: _TRANSPORTS.take(as_array(one.udp.astype(np.int8))),
    "src_addr": lambda one: one.texts(0),
    "src_port": lambda one: as_array(one.field(Unit.SRC_PORT)),
    "dst_addr": lambda one: one.texts(1),
    "dst_port": lambda one: as_array(one.field(Unit.DST_PORT)),
    "flow": lambda one: one.texts(2),
    "seq": lambda one: one.of_tcp(one.field(Unit.SEQUENCE)),
    "ack": lambda one: one.of_tcp(
        one.field(Unit.ACKNOWLEDGMENT), one.field(Unit.FLAGS) & Flag.ACK == 0
    ),
    "bit_flags": lambda one: one.of_tcp(one.field(Unit.FLAGS)),
    "flags": lambda one: _FLAG_TEXTS.take(one.of_tcp(one.field(Unit.FLAGS))),
    "window": lambda one: one.of_tcp(one.field(Unit.WINDOW), one.field(Unit.WINDOW) < 0),
    "payload_length": lambda one: as_array(one.field(Unit.LENGTH)),
    "cut_bytes": lambda one: as_array(one.field(Unit.LENGTH) - one.field(Unit.CAPTURED)),
    "payload": lambda one: one.payloads(),
}
