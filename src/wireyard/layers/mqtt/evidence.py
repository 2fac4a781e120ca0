"""Evidence of the side of each stream, and the number of its packets, counted from columns.

It is counted once, when packets are decoded. A file of packets contains the counts of its streams
as a small table (`StreamEvidence.table`), so sides are decided before packets are read again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass
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

__all__ = ["NEEDED", "SCHEMA", "StreamEvidence"]

_ENDS: Final = ("source", "stream", "src_addr", "src_port", "dst_addr", "dst_port")
_OF_CLIENT_ID: Final = ("packet_type", "client_id", "return_code", "properties")
NEEDED: Final = (*_ENDS, "status", *_OF_CLIENT_ID)
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
    ]
)
"""A stream with its `Evidence`; `has_name`: whether a packet that can contain the client id was
counted, the first of which `client_id` is from."""

_CLIENT, _BROKER = 1, 2


def _by_type() -> Any:
    sides = np.zeros(256, np.int8)
    sides[list(CLIENT_TYPES)], sides[list(BROKER_TYPES)] = _CLIENT, _BROKER
    return sides


def _by_code() -> Any:
    sides = np.zeros((256, 256), np.int8)
    for side, codes in ((_CLIENT, CLIENT_CODES), (_BROKER, BROKER_CODES)):
        for kind, some in codes.items():
            sides[kind, list(some)] = side
    return sides


_BY_TYPE: Final = _by_type()
"""The side that alone sends packets of a type; 0 if both do."""
_BY_CODE: Final = _by_code()
"""The same for types that both sides send, by type and reason code."""
_NAMES: Final = np.isin(np.arange(256), NAMING)


@dataclass(slots=True)
class _Counts:
    """The columns of `SCHEMA` except for the endpoints."""

    packets: int = 0
    connects: int = 0
    client_packets: int = 0
    broker_packets: int = 0
    has_name: bool = False
    client_id: str | None = None

    def add(self, other: _Counts) -> None:
        """Add the counts of later packets of the stream."""
        self.packets += other.packets
        self.connects += other.connects
        self.client_packets += other.client_packets
        self.broker_packets += other.broker_packets
        if not self.has_name:
            self.has_name, self.client_id = other.has_name, other.client_id


class StreamEvidence:
    """The evidence of streams, counted from packets; those of a stream come in order."""

    def __init__(self) -> None:
        self._ends: dict[Stream, Row] = {}
        self._counts: dict[Stream, _Counts] = {}
        self._numbers: dict[Stream, int] = {}

    def add(self, packets: pa.Table) -> None:
        """Count packets, with the columns of `NEEDED`."""
        for batch in packets.to_batches():
            self.add_batch(batch)

    def add_batch(self, batch: pa.RecordBatch) -> Any:
        """Count packets, with the columns of `NEEDED`.

        Returns
        -------
        numbers
            The number of the stream of each packet, which is its row in `table`.
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
        sides = _sides(batch["status"], kind, code)
        flags = (kind == CONNECT, sides == _CLIENT, sides == _BROKER)
        sums = [np.add.reduceat(flag, starts, dtype=np.int64) for flag in flags]
        sums.insert(0, np.diff(starts, append=batch.num_rows))
        counts = [np.bincount(places, some, len(runs)).astype(np.int64).tolist() for some in sums]
        ends: list[Row] = batch.select(_ENDS).take(pa.array(starts[runs])).to_pylist()
        names = [(row["source"], row["stream"]) for row in ends]
        for name, row, some in zip(names, ends, zip(*counts, strict=True), strict=True):
            self._add(name, row, _Counts(*some))
        naming = np.flatnonzero(_NAMES[kind])
        of_naming = places[np.searchsorted(starts, naming, "right") - 1]
        firsts: dict[int, int] = {}
        for row_number, place in zip(naming.tolist(), of_naming.tolist(), strict=True):
            if not self._counts[names[place]].has_name:
                firsts.setdefault(place, row_number)
        rows = batch.select(_OF_CLIENT_ID).take(pa.array(list(firsts.values()), pa.int64()))
        for place, packet in zip(firsts, rows.to_pylist(), strict=True):
            found = self._counts[names[place]]
            found.has_name, found.client_id = True, client_id_of(packet)
        numbers = np.array([self._numbers[name] for name in names])
        return np.repeat(numbers[places], sums[0])

    def _add(self, name: Stream, ends: Row, counts: _Counts) -> None:
        if name in self._counts:
            self._counts[name].add(counts)
        else:
            self._numbers[name] = len(self._numbers)
            self._ends[name], self._counts[name] = ends, counts

    def add_counted(self, table: pa.Table, sources: Collection[str] | None = None) -> None:
        """Add counts of packets that come after those counted before in the same streams.

        Parameters
        ----------
        table
            Columns of `SCHEMA`.
        sources
            Only streams of these sources are added; all if None.
        """
        if sources is not None:
            table = table.filter(pc.is_in(table["source"], pa.array(sources, pa.string())))
        for row in table.to_pylist():
            ends = {name: row.pop(name) for name in _ENDS}
            self._add((ends["source"], ends["stream"]), ends, _Counts(**row))

    def table(self) -> pa.Table:
        """Return the streams as a table of `SCHEMA`, in the order of their first packets."""
        rows = [{**ends, **asdict(self._counts[name])} for name, ends in self._ends.items()]
        return pa.Table.from_pylist(rows, SCHEMA)

    def sides(self, streams: Iterable[Row] | None) -> dict[Stream, Side]:
        """Decide which side of its connection each stream is.

        Parameters
        ----------
        streams
            The beginnings of streams, as captured: ``source, stream, opened, begun``.
        """
        shown = {(row["source"], row["stream"]): row for row in streams or ()}
        return decide_sides(
            Evidence(
                **row,
                opened=bool(shown.get(name, {}).get("opened")),
                begun=bool(shown.get(name, {}).get("begun")),
                connects=self._counts[name].connects,
                client_packets=self._counts[name].client_packets,
                broker_packets=self._counts[name].broker_packets,
                client_id=self._counts[name].client_id,
            )
            for name, row in self._ends.items()
        )

    def without_side(self, sides: Collection[Stream]) -> list[Stream]:
        """Return the streams whose side is not in `sides`."""
        return [stream for stream in self._ends if stream not in sides]

    def packets(self, name: Stream) -> int:
        """Return the number of packets of a stream."""
        return self._counts[name].packets if name in self._counts else 0

    def ends(self, name: Stream) -> Row:
        """Return the endpoints of a stream as the columns of a row."""
        return self._ends[name]


def _sides(status: pa.Array, kind: Any, code: Any) -> Any:
    """Return the side that alone sends such a packet, for each; 0 if both do."""
    sides, coded = _BY_TYPE[kind], _BY_CODE[kind, code]
    if coded.any():  # as in few files
        is_ok = pc.equal(status, OK).to_numpy(zero_copy_only=False)
        sides = np.where(sides == 0, coded * is_ok, sides)
    return sides
