"""MQTT packets as integers, connection by connection in the order of time.

Text becomes numbers at this door: streams, topics and clients are looked up by number from here to
the rows of a table, and a payload is two hashes. They are polynomials modulo the prime 2^61 - 1 at
two secret places that are drawn for each use, so two payloads of at most n words of 7 bytes that
differ have both hashes in common with a chance of at most (n / 2^61)^2, whoever chose them.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from wireyard.accelerate import BOOL, READ, array, kernel, piece
from wireyard.formats.base import Row
from wireyard.formats.mqtt import layout
from wireyard.layers.mqtt.directions import Side, Stream
from wireyard.layers.mqtt.flow_kernels import NONE, Flag, Packet
from wireyard.layers.mqtt.records import Moment

__all__ = ["NO_TIME", "Packets", "new_secret"]

Ints = np.ndarray[tuple[int], np.dtype[np.int64]]
Shorts = np.ndarray[tuple[int], np.dtype[np.int32]]
Grid = np.ndarray[tuple[int, int], np.dtype[np.int32]]
Hashes = np.ndarray[tuple[int, int], np.dtype[np.int64]]
Octets = np.ndarray[tuple[int], np.dtype[np.uint8]]
Bools = np.ndarray[tuple[int], np.dtype[np.bool_]]

NO_TIME: Final = -(1 << 63)
"""The time of a packet that has none."""
_PRIME: Final = (1 << 61) - 1
_WORD_BYTES: Final = 7

_EXTRA: Final = pa.array(["subscription_identifier", "response_topic", "correlation_data"])
"""Properties that are rare, or of any length: who needs them reads the row."""

_INTS: Final = array("int64")
_SHORTS: Final = array("int32", readonly=True)
_HASHES: Final = array("int64", 2)


def new_secret() -> tuple[int, int]:
    """Return two places at which payloads are hashed."""
    return secrets.randbelow(_PRIME - 2) + 2, secrets.randbelow(_PRIME - 2) + 2


@piece
def _times(one: int, other: int) -> int:
    """Return the product of two numbers below the prime, modulo the prime."""
    low, high = one & 0x7FFFFFFF, one >> 31
    other_low, other_high = other & 0x7FFFFFFF, other >> 31
    middle = low * other_high + high * other_low
    # 2^62 is 2, and 2^61 is 1.
    found = 2 * high * other_high + (middle >> 30)
    found = (found & _PRIME) + (found >> 61) + ((middle & 0x3FFFFFFF) << 31)
    found = (found & _PRIME) + (found >> 61) + low * other_low
    found = (found & _PRIME) + (found >> 61)
    return found - _PRIME if found >= _PRIME else found


@kernel((READ, _SHORTS, array("int64", readonly=True), _HASHES))
def _hash(data: Octets, offsets: Shorts, places: Ints, hashes: Hashes) -> None:
    """Hash byte strings at two places."""
    one, other = places[0], places[1]
    for row in range(len(offsets) - 1):
        at, stop = offsets[row], offsets[row + 1]
        first = second = stop - at
        while at < stop:
            word = 0
            for byte in range(min(_WORD_BYTES, stop - at)):
                word |= data[at + byte] << (8 * byte)
            first = _times(first, one) + word
            second = _times(second, other) + word
            if first >= _PRIME:
                first -= _PRIME
            if second >= _PRIME:
                second -= _PRIME
            at += _WORD_BYTES
        hashes[row, 0], hashes[row, 1] = first, second


@kernel((_INTS, _INTS, _INTS, _INTS, _INTS))
def _reach(stream: Ints, ns: Ints, frame: Ints, reached_ns: Ints, reached_frame: Ints) -> None:
    """Find when the packets of each stream were there with all before them."""
    latest_ns = latest_frame = 0
    for row in range(len(stream)):
        if row == 0 or stream[row] != stream[row - 1]:
            latest_ns = latest_frame = 0
        if ns[row] != NO_TIME and (
            ns[row] > latest_ns or (ns[row] == latest_ns and frame[row] > latest_frame)
        ):
            latest_ns, latest_frame = ns[row], frame[row]
        reached_ns[row], reached_frame[row] = latest_ns, latest_frame


@kernel(BOOL(_INTS, _INTS, _INTS, _INTS, _INTS))
def _is_ordered(key: Ints, ns: Ints, frame: Ints, stream: Ints, offset: Ints) -> bool:
    """Tell whether packets of a key that were there at the same time are in their order."""
    for row in range(1, len(key)):
        if key[row] != key[row - 1] or ns[row] != ns[row - 1] or frame[row] > frame[row - 1]:
            continue
        in_frame = frame[row] == frame[row - 1]
        if in_frame and stream[row] > stream[row - 1]:
            continue
        if in_frame and stream[row] == stream[row - 1] and offset[row] > offset[row - 1]:
            continue
        return False
    return True


@dataclass(slots=True, eq=False)
class Packets:
    """Packets of some clients, client by client in the order of time.

    Axes: p = packets, s = streams in the order of their names, t = topics.
    """

    table: pa.Table
    """The rows that they were made from."""
    row: Ints
    """Where a packet is in the table."""
    streams: Sequence[Stream]
    sides: Sequence[Side]
    topics: pa.Array
    grid: Grid
    """Columns of `Packet`."""
    contents: Hashes
    key: Ints
    """Number of the client."""
    stream: Ints
    offset: Ints
    length: Ints
    ns: Ints
    frame: Ints
    reached_ns: Ints
    reached_frame: Ints
    expires_s: Ints
    """Message Expiry Interval; -1 if it has none."""
    is_extra: Bools
    """Whether it has properties that are read one by one."""
    secret: tuple[int, int]

    def __len__(self) -> int:
        return len(self.row)

    def moment(self, packet: int) -> Moment:
        """Return the place of a packet in the order of a capture."""
        source, name = self.streams[self.stream[packet]]
        ns = int(self.ns[packet])
        has_time = ns != NO_TIME
        return Moment(
            int(self.reached_ns[packet]),
            int(self.reached_frame[packet]),
            name,
            int(self.offset[packet]),
            ns if has_time else None,
            int(self.frame[packet]) if has_time else None,
            source,
        )

    def rows(self, packets: Ints | Sequence[int]) -> list[Row]:
        """Return packets as rows."""
        found: list[Row] = self.table.take(pa.array(self.row[packets])).to_pylist()
        return found

    def key_of(self, packet: int) -> str:
        """Return how a message is called whose packet this is."""
        return f"{self.streams[self.stream[packet]][1]}@{self.offset[packet]}"

    def hash(self, payloads: pa.ChunkedArray) -> Hashes:
        """Return two hashes of each of other payloads, which compare with those of `contents`."""
        return _contents(payloads, self.secret)

    @classmethod
    def of(
        cls, table: pa.Table, sides: Mapping[Stream, Side], secret: tuple[int, int]
    ) -> Packets:
        """Return the packets of a table with the columns of `NEEDED`, in any order.

        Parameters
        ----------
        sides
            Of each stream, which side of its connection it is, and whose.
        secret
            The places at which payloads are hashed, the same for all that is to be compared.
        """
        names = sorted(sides)
        known = [sides[name] for name in names]
        stream, offset = _stream_numbers(table, names), _integers(table, "offset")
        ns, frame = _integers(table, "captured_ns", NO_TIME), _integers(table, "frame")
        reached_ns, reached_frame = _reached(stream, offset, ns, frame)
        numbers = {key: number for number, key in enumerate(dict.fromkeys(s.key for s in known))}
        key = np.array([numbers[side.key] for side in known], np.int64)[stream]
        order = _in_time(key, reached_ns, reached_frame, stream, offset)
        by_client = np.array([side.by_client for side in known], np.bool_)[stream]
        grid, topics = _grid(table, by_client)
        expires_s, is_extra = _read_properties(table, grid)
        return cls(
            table,
            order,
            names,
            known,
            topics,
            grid[order],
            _contents(table["payload"], secret)[order],
            key[order],
            stream[order],
            offset[order],
            _integers(table, "length")[order],
            ns[order],
            frame[order],
            reached_ns[order],
            reached_frame[order],
            expires_s[order],
            is_extra[order],
            secret,
        )


# --- columns of a table ---------------------------------------------------------------------


def _integers(table: pa.Table, name: str, missing: int = 0) -> Ints:
    column = table[name]
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.int8())
    if column.null_count:
        column = column.fill_null(missing)
    return np.ascontiguousarray(column.to_numpy(), np.int64)


def _stream_numbers(table: pa.Table, names: Sequence[Stream]) -> Ints:
    """Return the place of the stream of each row among `names`."""
    numbers = {name: number for number, name in enumerate(names)}
    found = np.empty(table.num_rows, np.int64)
    at = 0
    for batch in table.select(["source", "stream"]).to_batches():
        source, stream = (column.dictionary_encode() for column in batch.columns)
        pairs = source.indices.to_numpy().astype(np.int64) * len(stream.dictionary)
        pairs += stream.indices.to_numpy()
        unique, places = np.unique(pairs, return_inverse=True)
        sources, streams = source.dictionary.to_pylist(), stream.dictionary.to_pylist()
        each = [numbers[sources[p // len(streams)], streams[p % len(streams)]] for p in unique]
        found[at : at + len(pairs)] = np.array(each, np.int64)[places]
        at += len(pairs)
    return found


def _reached(stream: Ints, offset: Ints, ns: Ints, frame: Ints) -> tuple[Ints, Ints]:
    order = np.lexsort((offset, stream))
    found = np.empty(len(stream), np.int64), np.empty(len(stream), np.int64)
    reached = np.empty_like(found[0]), np.empty_like(found[0])
    _reach(stream[order], ns[order], frame[order], *reached)
    for ours, theirs in zip(found, reached, strict=True):
        ours[order] = theirs
    return found


def _in_time(key: Ints, ns: Ints, frame: Ints, stream: Ints, offset: Ints) -> Ints:
    """Return rows in the order of their keys, and of time within each."""
    order = np.lexsort((ns, key))
    columns = key, ns, frame, stream, offset
    if _is_ordered(*(column[order] for column in columns)):
        return order
    return np.lexsort(columns[::-1])


def _grid(table: pa.Table, by_client: Bools) -> tuple[Grid, pa.Array]:
    topics = pc.dictionary_encode(table["topic"]).combine_chunks()
    if isinstance(topics, pa.ChunkedArray):
        topics = topics.chunk(0) if topics.num_chunks else pa.array([], topics.type)
    grid = np.empty((table.num_rows, len(Packet)), np.int32)
    grid[:, Packet.KIND] = _integers(table, "packet_type")
    grid[:, Packet.QOS] = _integers(table, "qos", NONE)
    grid[:, Packet.ID] = _integers(table, "packet_id")
    grid[:, Packet.CODE] = _integers(table, "return_code")
    grid[:, Packet.TOPIC] = topics.indices.fill_null(NONE).to_numpy()
    grid[:, Packet.ALIAS] = NONE
    flags = Flag.BY_CLIENT * by_client.astype(np.int64)
    flags |= Flag.DUP * _integers(table, "dup") | Flag.RETAIN * _integers(table, "retain")
    flags |= Flag.MALFORMED * table["verdict"].is_valid().to_numpy()
    grid[:, Packet.FLAGS] = flags
    return grid, topics.dictionary


def _read_properties(table: pa.Table, grid: Grid) -> tuple[Ints, Bools]:
    """Put what follows from properties into the grid; return expiry, and whether there is more."""
    expires_s = np.full(table.num_rows, NONE, np.int64)
    is_extra = np.zeros(table.num_rows, np.bool_)
    at = 0
    for batch in table.select(["packet_type", "properties"]).to_batches():
        column = batch["properties"]
        if column.null_count < len(column):
            rows = pc.list_parent_indices(column).to_numpy() + at
            rows, pairs = rows, pc.list_flatten(column)
            names, values = (pc.struct_field(pairs, place) for place in (0, 1))
            published = grid[rows, Packet.KIND] == layout.PUBLISH
            for name, found in (
                ("topic_alias", grid[:, Packet.ALIAS]),
                ("message_expiry_interval", expires_s),
            ):
                named = pc.equal(names, name).to_numpy(zero_copy_only=False)
                named &= values.is_valid().to_numpy(zero_copy_only=False) & published
                if named.any():
                    found[rows[named]] = values.filter(pa.array(named)).cast(pa.int64()).to_numpy()
            wanted = pc.is_in(names, _EXTRA).to_numpy(zero_copy_only=False) & published
            is_extra[rows[wanted]] = True
            named = pc.equal(names, "subscription_identifier").to_numpy(zero_copy_only=False)
            grid[rows[named & published], Packet.FLAGS] |= Flag.IDENTIFIED
        at += len(column)
    return expires_s, is_extra


def _contents(payloads: pa.ChunkedArray, secret: tuple[int, int]) -> Hashes:
    """Return two hashes of each payload; none counts as empty."""
    found = np.empty((len(payloads), 2), np.int64)
    at = 0
    for chunk in payloads.chunks:
        _, offsets, data = chunk.buffers()
        places = np.frombuffer(offsets, np.int32)[chunk.offset : chunk.offset + len(chunk) + 1]
        octets = np.frombuffer(data if data and data.size else b"\0", np.uint8)
        _hash(octets, places, np.array(secret, np.int64), found[at : at + len(chunk)])
        at += len(chunk)
    return found
