"""Evidence of the side of each stream, and the number of its packets, counted from columns.

It is counted once, when packets are decoded. A file of packets contains the counts of its streams
as a small table (`StreamEvidence.table`), so sides are decided before packets are read again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from wireyard.formats.base import Row
from wireyard.formats.mqtt.layout import BROKER_TYPES, CLIENT_TYPES, CONNECT
from wireyard.layers.mqtt.directions import (
    BROKER_CODES,
    CLIENT_CODES,
    NAMING,
    OK,
    Evidence,
    Side,
    Stream,
    client_id_of,
    decide_sides,
)
from wireyard.layers.records import GAP, TAIL

_ENDS: Final = ("source", "stream", "src_addr", "src_port", "dst_addr", "dst_port")
_OF_CLIENT_ID: Final = ("packet_type", "client_id", "return_code", "properties")
NEEDED: Final = (*_ENDS, "status", "captured_ns", *_OF_CLIENT_ID)
"""Columns of MQTT packets that contain evidence of the side of a stream."""
SCHEMA: Final = pa.schema(
    [
        ("source", pa.string()),
        ("stream", pa.string()),
        ("src_addr", pa.string()),
        ("src_port", pa.int32()),
        ("dst_addr", pa.string()),
        ("dst_port", pa.int32()),
        ("packets", pa.int64()),
        ("connects", pa.int64()),
        ("client_packets", pa.int64()),
        ("broker_packets", pa.int64()),
        ("has_name", pa.bool_()),
        ("client_id", pa.string()),
        ("gaps", pa.int64()),
        ("first_ns", pa.int64()),
        ("last_ns", pa.int64()),
    ]
)
"""The `Evidence` of a stream without what the capture shows beside its packets."""
_SHOWN: Final = Evidence._fields[len(SCHEMA) :]

_CLIENT, _BROKER = 1, 2
_LAST: Final = ("ended_ns", "last_ns")
_LATEST_NS: Final = (1 << 63) - 1


def _by_type() -> Any:
    sides = np.zeros(256, np.int8)
    sides[list(CLIENT_TYPES)], sides[list(BROKER_TYPES)] = _CLIENT, _BROKER
    return sides


def _by_code() -> Any:
    sides = np.zeros((256, 256), np.int8)
    for side, codes in ((_CLIENT, CLIENT_CODES), (_BROKER, BROKER_CODES)):
        for kind, reasons in codes.items():
            sides[kind, list(reasons)] = side
    return sides


_BY_TYPE: Final = _by_type()
"""By packet type: the only side that sends it; 0 if both do."""
_BY_CODE: Final = _by_code()
"""By packet type and reason code: the same for types that both sides send."""
_NAMES: Final = np.isin(np.arange(256), NAMING)


def _sum(one: Evidence, later: Evidence) -> Evidence:
    """Return the evidence of packets of a stream, and of later ones."""
    named = one if one.has_name else later
    return one._replace(
        packets=one.packets + later.packets,
        connects=one.connects + later.connects,
        client_packets=one.client_packets + later.client_packets,
        broker_packets=one.broker_packets + later.broker_packets,
        has_name=named.has_name,
        client_id=named.client_id,
        gaps=one.gaps + later.gaps,
        first_ns=_either(min, one.first_ns, later.first_ns),
        last_ns=_either(max, one.last_ns, later.last_ns),
    )


def _either(choose: Callable[[int, int], int], one: int | None, other: int | None) -> int | None:
    """Choose between two numbers, of which either may be missing."""
    if one is None or other is None:
        return other if one is None else one
    return choose(one, other)


class StreamEvidence:
    """The evidence of streams, counted from packets; those of a stream come in order."""

    def __init__(self) -> None:
        self._counts: list[Evidence] = []
        self._numbers: dict[Stream, int] = {}
        """The index of each stream in `_counts`."""

    def add(self, packets: pa.Table) -> None:
        """Count packets, with the columns of `NEEDED`."""
        for batch in packets.to_batches():
            self.add_batch(batch)

    def add_batch(self, batch: pa.RecordBatch) -> Any:
        """Count packets, with the columns of `NEEDED`.

        Return the number of the stream of each packet, which is its row in `table`.
        """
        if not batch.num_rows:
            return np.empty(0, np.int64)
        source, stream = (batch[name].dictionary_encode() for name in ("source", "stream"))
        pairs = source.indices.to_numpy().astype(np.int64) * len(stream.dictionary)
        pairs += stream.indices.to_numpy()
        # Packets of a stream mostly follow each other.
        starts = np.flatnonzero(np.concatenate([[True], pairs[1:] != pairs[:-1]]))
        _, runs, places = np.unique(pairs[starts], return_index=True, return_inverse=True)
        kind, code = (
            batch[name].fill_null(0).to_numpy() for name in ("packet_type", "return_code")
        )
        is_cut = pc.equal(batch["status"], TAIL).to_numpy(zero_copy_only=False)
        kind = np.where(is_cut, 0, kind)
        sides = _sides(batch["status"], kind, code)
        is_gap = pc.equal(batch["status"], GAP).to_numpy(zero_copy_only=False)
        flags = (is_gap, kind == CONNECT, sides == _CLIENT, sides == _BROKER)
        sums = [np.add.reduceat(flag, starts, dtype=np.int64) for flag in flags]
        sums.insert(1, np.diff(starts, append=batch.num_rows))
        gaps, *counts = [
            np.bincount(places, each, len(runs)).astype(np.int64).tolist() for each in sums
        ]
        ends = batch.select(_ENDS).take(pa.array(starts[runs]))
        naming = np.flatnonzero(_NAMES[kind])
        of_naming = places[np.searchsorted(starts, naming, "right") - 1]
        named, firsts = np.unique(of_naming, return_index=True)
        names: list[str | None] = [None] * len(runs)
        for place, name in zip(named.tolist(), _client_ids(batch, naming[firsts]), strict=True):
            names[place] = name
        has_name = np.isin(np.arange(len(runs)), named).tolist()
        values = [_values(column) for column in ends.columns]
        spans_ns = _spans_ns(batch["captured_ns"], starts, places, len(runs))
        self._add(*values, *counts, has_name, names, gaps, *spans_ns)
        numbers = np.array([self._numbers[name] for name in zip(*values[:2], strict=True)])
        return np.repeat(numbers[places], sums[1])

    def _add(self, *columns: Iterable[Any]) -> None:
        """Add streams, given the columns of `SCHEMA`."""
        for one in map(Evidence, *columns):
            number = self._numbers.setdefault((one.source, one.stream), len(self._counts))
            if number == len(self._counts):
                self._counts.append(one)
            else:
                self._counts[number] = _sum(self._counts[number], one)

    def add_counted(self, table: pa.Table, sources: Collection[str] | None = None) -> None:
        """Add counts of packets that come after those counted before in the same streams.

        `table` has the columns of `SCHEMA`. Only streams of `sources` are added, all if that is
        None.
        """
        if sources is not None:
            table = table.filter(pc.is_in(table["source"], pa.array(sources, pa.string())))
        self._add(*(_values(table[name]) for name in SCHEMA.names))

    def table(self) -> pa.Table:
        """Return the streams as a table of `SCHEMA`, in the order of their first packets."""
        arrays = [
            pa.array([one[place] for one in self._counts], kind)
            for place, kind in enumerate(SCHEMA.types)
        ]
        return pa.Table.from_arrays(arrays, schema=SCHEMA)

    def sides(self, shown: Mapping[Stream, Row]) -> dict[Stream, Side]:
        """Decide which side of its connection each stream is.

        `shown` has ``opened``, ``begun``, ``paired`` and ``sliced`` of streams, as far as the
        capture shows them.
        """
        evidence = []
        for name, one in zip(self._numbers, self._counts, strict=True):
            seen = shown.get(name, {})
            flags = (bool(seen.get(flag)) for flag in _SHOWN)
            evidence.append(Evidence._make((*one[: len(SCHEMA)], *flags)))
        return decide_sides(evidence)

    def ends_ns(self, shown: Iterable[Row]) -> dict[str, int]:
        """Return when each capture ends, by source: the last time of its packets and rows.

        `shown` are rows of the table `streams`, and of the last frames of captures, without a
        stream.
        """
        ends: dict[str, int] = {}
        times = [(one.source, one.last_ns) for one in self._counts]
        times += ((row["source"], row.get(name)) for row in shown for name in _LAST)
        for source, ns in times:
            if ns is not None:
                ends[source] = max(ns, ends.get(source, ns))
        return ends

    def without_side(self, sides: Collection[Stream]) -> list[Stream]:
        """Return the streams whose side is not in `sides`."""
        return [stream for stream in self._numbers if stream not in sides]

    def packets(self, name: Stream) -> int:
        """Return the number of packets of a stream."""
        return self._counts[self._numbers[name]].packets if name in self._numbers else 0

    def first_ns(self, name: Stream) -> int | None:
        """Return the first time of a stream."""
        return self._counts[self._numbers[name]].first_ns

    def ends(self, name: Stream) -> tuple[str | None, int | None, str | None, int | None]:
        """Return the endpoints of a stream: ``src_addr, src_port, dst_addr, dst_port``."""
        return self._counts[self._numbers[name]][2:6]


def _spans_ns(
    times: pa.Array, starts: Any, places: Any, streams: int
) -> Iterator[list[int | None]]:
    """Yield the first and then the last time of each stream; None if it has no time.

    Runs of rows of one stream begin at `starts`; `places` has the stream of each run.
    """
    for reduce, missing in ((np.minimum, _LATEST_NS), (np.maximum, -_LATEST_NS)):
        found = np.full(streams, missing)
        values = times.fill_null(missing).to_numpy(zero_copy_only=False)
        reduce.at(found, places, reduce.reduceat(values, starts))
        yield [None if ns == missing else ns for ns in found.tolist()]


def _values(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """Return the values of a column, each text once in memory."""
    kind = column.type
    if not (pa.types.is_string(kind) or pa.types.is_dictionary(kind)):
        return column.to_pylist()  # type: ignore[no-any-return]
    values: list[Any] = []
    for chunk in column.chunks if isinstance(column, pa.ChunkedArray) else [column]:
        encoded = chunk.dictionary_encode()
        texts = encoded.dictionary.to_pylist()
        indices = encoded.indices.to_pylist()
        values += (None if index is None else texts[index] for index in indices)
    return values


def _client_ids(batch: pa.RecordBatch, rows: Any) -> list[str | None]:
    """Return the client ids that packets have or assign."""
    packets = batch.select(_OF_CLIENT_ID).take(pa.array(rows))
    names: list[str | None] = packets["client_id"].to_pylist()
    others = np.flatnonzero(packets["packet_type"].to_numpy() != CONNECT)
    # Most CONNACK packets have no properties, so they assign none.
    for place in others.tolist():
        names[place] = None
    others = others[packets["properties"].take(pa.array(others)).is_valid().to_numpy(False)]
    for place, packet in zip(
        others.tolist(), packets.take(pa.array(others)).to_pylist(), strict=True
    ):
        names[place] = client_id_of(packet)
    return names


def _sides(status: pa.Array, kind: Any, code: Any) -> Any:
    """Return for each packet the only side that sends such packets; 0 if both do."""
    sides, coded = _BY_TYPE[kind], _BY_CODE[kind, code]
    if coded.any():  # rare
        is_ok = pc.equal(status, OK).to_numpy(zero_copy_only=False)
        sides = np.where(sides == 0, coded * is_ok, sides)
    return sides
