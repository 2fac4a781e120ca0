"""MQTT packets as integers, sorted by client, then by time.

Text is replaced by numbers here: streams, topics and clients have numbers until rows of a table are
made, and a payload is two hashes. They are the values of a polynomial modulo the prime 2^61 - 1 at
two secret points, which are random for each use. So two different payloads of at most n words of 7
bytes have the same two hashes with a chance of at most (n / 2^61)^2, even if they were chosen to
collide.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from wireyard.accelerate import inlined, kernel
from wireyard.arena import room
from wireyard.arrays import Bools, Bytes, Grid, Grid32, Int8s, Int32s, Ints, ReadOnly
from wireyard.formats.mqtt import layout
from wireyard.layers.grouping import order_groups, split_rows
from wireyard.layers.mqtt.directions import Stream
from wireyard.layers.mqtt.grids import NO_TIME, NONE, Flag, Packet
from wireyard.layers.records import TAIL, Position, position_of
from wireyard.memory import load_word

__all__ = [
    "DELIVERY_TYPES",
    "LARGE_BYTES",
    "NEEDED",
    "NO_TIME",
    "PACKETS",
    "TRACKED",
    "KnownStream",
    "Packets",
    "Part",
    "hash_payloads",
    "new_secret",
    "stream_numbers",
]

LARGE_BYTES: Final = 16 << 20
"""Arrays of this size and more are in files (`arena.room`); a task has about twenty of them."""
_PRIME: Final = (1 << 61) - 1
_WORD_BYTES: Final = 7

NEEDED: Final = (
    "source", "stream", "offset", "length", "status", "error", "captured_ns", "frame",
    "src_addr", "src_port", "dst_addr", "dst_port", "packet_type", "dup", "qos", "retain",
    "client_id", "clean_start", "keep_alive", "will_topic", "will_payload", "will_qos",
    "will_retain", "username", "session_present", "return_code", "return_codes", "topic",
    "packet_id", "payload", "filters", "properties", "will_properties", "version_in_force",
    "protocol_version", "verdict",
)  # fmt: skip
"""Columns of MQTT packets that this layer reads."""
_REPEATING: Final = ("source", "stream", "status", "src_addr", "dst_addr", "topic")
"""Columns with few different texts, which are dictionary-encoded."""
DELIVERY_TYPES: Final = (
    layout.PUBLISH, layout.PUBACK, layout.PUBREC, layout.PUBREL, layout.PUBCOMP,
)  # fmt: skip
"""Types of the packets of message delivery."""
TRACKED: Final = (*DELIVERY_TYPES, layout.PINGREQ, layout.PINGRESP)
"""Types of the packets that the kernels track."""
_EXTRA: Final = pa.array(["subscription_identifier", "response_topic", "correlation_data"])
"""Properties that are rare or have any length; they are read from the kept row when needed."""


def new_secret() -> tuple[int, int]:
    """Return two random points at which payloads are hashed."""
    return secrets.randbelow(_PRIME - 2) + 2, secrets.randbelow(_PRIME - 2) + 2


@inlined
def _times(one: int, other: int) -> int:
    """Return the product of two numbers below the prime, modulo the prime."""
    low, high = one & 0x7FFFFFFF, one >> 31
    other_low, other_high = other & 0x7FFFFFFF, other >> 31
    middle = low * other_high + high * other_low
    # Modulo the prime, 2^62 is 2, and 2^61 is 1.
    product = 2 * high * other_high + (middle >> 30)
    product = (product & _PRIME) + (product >> 61) + ((middle & 0x3FFFFFFF) << 31)
    product = (product & _PRIME) + (product >> 61) + low * other_low
    product = (product & _PRIME) + (product >> 61)
    return product - _PRIME if product >= _PRIME else product


@kernel
def _hash(
    data: ReadOnly[Bytes], offsets: ReadOnly[Int32s], places: ReadOnly[Ints], hashes: Grid
) -> None:
    """Hash byte strings at two points."""
    one, other = places[0], places[1]
    for row in range(len(offsets) - 1):
        at, stop = int(offsets[row]), int(offsets[row + 1])
        first = second = stop - at
        while at < stop:
            size = min(_WORD_BYTES, stop - at)
            if at + 8 <= len(data):
                word = load_word(data, at) & ((1 << (8 * size)) - 1)
            else:
                word = 0
                for byte in range(size):
                    word |= data[at + byte] << (8 * byte)
            first = _times(first, one) + word
            second = _times(second, other) + word
            if first >= _PRIME:
                first -= _PRIME
            if second >= _PRIME:
                second -= _PRIME
            at += _WORD_BYTES
        hashes[row, 0], hashes[row, 1] = first, second


@kernel
def _reach(
    stream: Int32s,
    offset: Ints,
    ns: Ints,
    frame: Ints,
    latest: Grid,
    reached_ns: Ints,
    reached_frame: Ints,
) -> bool:
    """Find when each packet has arrived together with all packets before it in its stream.

    `latest`, [3, s], is the latest time and frame, and last offset, of each stream; 0 at the
    beginning. Return whether the packets of each stream are in order; if not, the results are
    undefined.
    """
    for row in range(len(stream)):
        one = stream[row]
        if offset[row] < latest[2, one]:
            return False
        latest[2, one] = offset[row]
        if ns[row] != NO_TIME and (
            ns[row] > latest[0, one] or (ns[row] == latest[0, one] and frame[row] > latest[1, one])
        ):
            latest[0, one], latest[1, one] = ns[row], frame[row]
        reached_ns[row], reached_frame[row] = latest[0, one], latest[1, one]
    return True


class KnownStream(NamedTuple):
    """A stream with its context, which is known before its packets are tracked."""

    source: str
    name: str
    from_client: bool
    key: tuple[str, str, str]
    """The key of its state: source, server, and the client id or a substitute."""
    alone: bool = False
    older: bool = False
    followed: bool = False
    begun: bool | None = None
    ended: str | None = None
    ended_ns: int | None = None
    ended_frame: int | None = None
    until_ns: int | None = None
    """When its capture ends."""
    first_ns: int | None = None
    """When its first packet was captured."""
    src_addr: str | None = None
    src_port: int | None = None
    dst_addr: str | None = None
    dst_port: int | None = None

    @property
    def addresses(self) -> tuple[str | None, int | None, str | None, int | None]:
        """``src_addr, src_port, dst_addr, dst_port``."""
        return self[-4:]


class Part(NamedTuple):
    """Packets as they are read, those of each stream in order."""

    packets: pa.Table
    """The columns of `PACKETS`."""
    rows: pa.Table
    """The columns of `NEEDED`, for the packets with `is_kept`, in the same order."""

    @classmethod
    def of(
        cls,
        table: pa.Table,
        stream: Ints,
        secret: tuple[int, int],
        file: int = 0,
        first: int = 0,
    ) -> Part:
        """Return the packets of a table with the columns of `NEEDED`; drop those without a stream.

        `stream` has the number of the stream of each row, -1 if it has none. `secret` are the
        points at which payloads are hashed, the same for all payloads that are compared. The table
        was read from the file with the number `file`, where its first row has the index `first`.
        """
        table = _of_whole_packets(table)
        of_packets: dict[str, Any] = {
            name: pc.fill_null(table[column].cast(PACKETS.field(name).type), missing)
            for name, (column, missing) in _TAKEN.items()
        }
        kind, flags = of_packets["kind"].to_numpy(), _flags(table)
        alias, expires_s, is_extra = _read_properties(table, kind, flags)
        is_kept = ~np.isin(kind, TRACKED) | (flags & (Flag.MALFORMED | Flag.RETAIN) != 0) | is_extra
        contents = hash_payloads(table["payload"], secret)
        of_packets |= {
            "stream": stream,
            "flags": flags,
            "alias": alias,
            "topic": pc.dictionary_encode(table["topic"]),
            "content_0": contents[:, 0],
            "content_1": contents[:, 1],
            "expires_s": expires_s,
            "is_extra": is_extra,
            "is_kept": is_kept,
            "file": np.full(table.num_rows, file, np.int32),
            "row": np.arange(first, first + table.num_rows),
        }
        packets = pa.Table.from_arrays([of_packets[name] for name in PACKETS.names], schema=PACKETS)
        is_known = stream != NONE
        if not is_known.all():
            packets = packets.filter(pa.array(is_known))
        rows = table.select(NEEDED).filter(pa.array(is_kept & is_known))
        for name in _REPEATING:
            place = rows.schema.get_field_index(name)
            rows = rows.set_column(place, name, rows[name].dictionary_encode())
        return cls(packets, rows)

    def split(self, partition: Ints, partitions: int) -> Iterator[Part]:
        """Yield the packets of each partition; `partition` has the partition of each packet."""
        of_kept = partition[self.packets["is_kept"].to_numpy(zero_copy_only=False)]
        packets = split_rows(self.packets, partition, partitions)
        return map(Part, packets, split_rows(self.rows, of_kept, partitions))


PACKETS: Final = pa.schema(
    [
        ("stream", pa.int32()),
        ("offset", pa.int64()),
        ("length", pa.int64()),
        ("ns", pa.int64()),
        ("frame", pa.int64()),
        *((column.name.lower(), pa.int32()) for column in Packet if column != Packet.TOPIC),
        ("topic", pa.dictionary(pa.int32(), pa.string())),
        ("content_0", pa.int64()),
        ("content_1", pa.int64()),
        ("expires_s", pa.int64()),
        ("version", pa.int8()),
        ("is_extra", pa.bool_()),
        ("is_kept", pa.bool_()),
        ("file", pa.int32()),
        ("row", pa.int64()),
    ]
)
"""A packet: its position, its time, the columns of `Packet`, two hashes of its payload, its expiry
in seconds or -1, whether it has properties of `_EXTRA`, whether its row is kept, its file and its
row there."""


_TAKEN: Final = {
    "offset": ("offset", 0), "length": ("length", 0), "ns": ("captured_ns", NO_TIME),
    "frame": ("frame", 0), "kind": ("packet_type", 0), "qos": ("qos", NONE), "id": ("packet_id", 0),
    "code": ("return_code", 0), "version": ("version_in_force", 0),
}  # fmt: skip
"""Columns of `PACKETS` that packets have as well: by which name, and what stands for null."""


@dataclass(slots=True, eq=False)
class Packets:
    """Packets of clients, sorted by client, then by time.

    Axes: p = packets, k = those whose rows are kept, s = streams, t = topics.
    """

    streams: Sequence[KnownStream]
    """All streams, in the order of their names."""
    kept: pa.Table
    """The rows of the packets with `is_kept`."""
    kept_row: Ints
    """The index of a packet in `kept`; -1 if its row is not kept."""
    topics: pa.Array
    grid: Grid32
    """Columns of `Packet`."""
    contents: Grid
    key: Int32s
    """Number of the client."""
    stream: Int32s
    offset: Ints
    length: Ints
    ns: Ints
    frame: Ints
    reached_ns: Ints
    reached_frame: Ints
    expires_s: Ints
    """Message Expiry Interval; -1 for none."""
    is_extra: Bools
    """Whether it has properties of `_EXTRA`."""
    version: Int8s
    """The version in force."""
    file: Int32s
    row: Ints
    """The file and the row in it that the packet was read from."""
    secret: tuple[int, int]

    def __len__(self) -> int:
        return len(self.kept_row)

    def position(self, packet: int) -> Position:
        """Return the position of a packet in the capture."""
        stream = self.streams[self.stream[packet]]
        ns = int(self.ns[packet])
        has_time = ns != NO_TIME
        return position_of(
            (
                int(self.reached_ns[packet]),
                int(self.reached_frame[packet]),
                stream.name,
                int(self.offset[packet]),
                ns if has_time else None,
                int(self.frame[packet]) if has_time else None,
                stream.source,
            )
        )

    def key_of(self, packet: int) -> str:
        """Return the message key of a packet."""
        return f"{self.streams[self.stream[packet]].name}@{self.offset[packet]}"

    @classmethod
    def of(
        cls, parts: list[Part], streams: Sequence[KnownStream], secret: tuple[int, int]
    ) -> Packets:
        """Combine and sort all packets of clients, whose parts come in any order.

        The list is emptied, so that the packets are not in memory twice.
        """
        tables, rows = [part.packets for part in parts], [part.rows for part in parts]
        parts.clear()
        count = sum(table.num_rows for table in tables)
        topics = pa.chunked_array(
            [chunk for table in tables for chunk in table["topic"].chunks],
            PACKETS.field("topic").type,
        )
        topics = topics.unify_dictionaries().combine_chunks()
        if isinstance(topics, pa.ChunkedArray):
            topics = topics.chunk(0) if topics.num_chunks else pa.array([], topics.type)
        stream, offset, ns, frame = (
            _filled(tables, name, None, count) for name in ("stream", "offset", "ns", "frame")
        )
        reached_ns, reached_frame = _reached(stream, offset, ns, frame, len(streams))
        numbers = {key: number for number, key in enumerate(dict.fromkeys(s.key for s in streams))}
        key_of = np.array([numbers[one.key] for one in streams] or [0], np.int32)
        key: Int32s = np.take(key_of, stream, out=_room(count, np.int32))
        order, _ = order_groups(key, len(numbers), reached_ns, reached_frame, stream, offset)
        place: Ints = _room(count)
        place[order] = np.arange(count)
        grid = _room((count, len(Packet)), np.int32)
        for column in Packet:
            if column != Packet.TOPIC:
                _fill(tables, column.name.lower(), place, grid[:, column])
        grid[place, Packet.TOPIC] = topics.indices.fill_null(NONE).to_numpy()
        from_client = np.array([one.from_client for one in streams] or [False], np.bool_)
        grid[place, Packet.FLAGS] |= np.int32(Flag.FROM_CLIENT) * from_client[stream]
        contents = _room((count, 2))
        for half in (0, 1):
            _fill(tables, f"content_{half}", place, contents[:, half])
        is_kept = _filled(tables, "is_kept", None, count)
        kept_row = np.cumsum(is_kept, out=_room(count))
        kept_row -= 1
        kept_row[~is_kept] = NONE
        others = {name: _filled(tables, name, place, count) for name in _FILLED}
        tables.clear()
        return cls(
            streams,
            pa.concat_tables(rows).combine_chunks(),
            _moved(kept_row, place),
            topics.dictionary,
            grid,
            contents,
            _moved(key, place),
            _moved(stream, place),
            _moved(offset, place),
            ns=_moved(ns, place),
            frame=_moved(frame, place),
            reached_ns=_moved(reached_ns, place),
            reached_frame=_moved(reached_frame, place),
            secret=secret,
            **others,
        )


_FILLED: Final = "length", "expires_s", "is_extra", "version", "file", "row"
"""Columns of packets that are sorted, but not changed."""


def _room(shape: int | tuple[int, ...], kind: Any = np.int64) -> Any:
    """Return an uninitialised array, in a file if it is large."""
    return room(shape, kind, LARGE_BYTES)


def _filled(tables: Iterable[pa.Table], name: str, place: Ints | None, count: int) -> Any:
    values = _room(count, PACKETS.field(name).type.to_pandas_dtype())
    _fill(tables, name, place, values)
    return values


def _moved(values: Any, place: Ints) -> Any:
    moved = _room(len(values), values.dtype)
    moved[place] = values
    return moved


def _fill(tables: Iterable[pa.Table], name: str, place: Ints | None, target: Any) -> None:
    """Copy a column of the tables into `target`, to the indexes `place`, or in order if None."""
    start = 0
    for table in tables:
        for chunk in table[name].chunks:
            stop = start + len(chunk)
            where = slice(start, stop) if place is None else place[start:stop]
            target[where] = chunk.to_numpy(zero_copy_only=False)
            start = stop


# --- columns of a table ---------------------------------------------------------------------


def stream_numbers(table: pa.Table, numbers: Mapping[Stream, int]) -> Ints:
    """Return the number of the stream of each row; -1 if it has none."""
    of_rows = np.empty(table.num_rows, np.int64)
    at = 0
    for batch in table.select(["source", "stream"]).to_batches():
        source, stream = (column.dictionary_encode() for column in batch.columns)
        pairs = source.indices.to_numpy().astype(np.int64) * len(stream.dictionary)
        pairs += stream.indices.to_numpy()
        unique, places = np.unique(pairs, return_inverse=True)
        sources, streams = source.dictionary.to_pylist(), stream.dictionary.to_pylist()
        each = [
            numbers.get((sources[p // len(streams)], streams[p % len(streams)]), NONE)
            for p in unique
        ]
        of_rows[at : at + len(pairs)] = np.array(each, np.int64)[places]
        at += len(pairs)
    return of_rows


def _reached(
    stream: Int32s, offset: Ints, ns: Ints, frame: Ints, streams: int
) -> tuple[Ints, Ints]:
    found: tuple[Ints, Ints] = _room(len(stream)), _room(len(stream))
    if not _reach(stream, offset, ns, frame, np.zeros((3, streams), np.int64), *found):
        order = np.lexsort((offset, stream))
        reached = np.empty_like(ns), np.empty_like(ns)
        ordered = stream[order], offset[order], ns[order], frame[order]
        _reach(*ordered, np.zeros((3, streams), np.int64), *reached)
        for ours, theirs in zip(found, reached, strict=True):
            ours[order] = theirs
    return found


def _of_whole_packets(table: pa.Table) -> pa.Table:
    """Return packets; unfinished ones have no type, because fields of them are missing."""
    is_cut = pc.equal(table["status"].cast(pa.string()), TAIL)
    if not pc.any(is_cut).as_py():
        return table
    types = pc.if_else(is_cut, None, table["packet_type"])
    return table.set_column(table.schema.get_field_index("packet_type"), "packet_type", types)


def _flags(table: pa.Table) -> Int32s:
    """Return bits of `Flag`, without those that properties or the stream decide."""
    dup, retain = (
        pc.fill_null(table[name], False).to_numpy().astype(np.int32) for name in ("dup", "retain")
    )
    flags: Int32s = Flag.DUP * dup + Flag.RETAIN * retain
    if table["verdict"].null_count < table.num_rows:
        flags += Flag.MALFORMED * table["verdict"].is_valid().to_numpy().astype(np.int32)
    return flags


def _read_properties(table: pa.Table, kind: Int32s, flags: Int32s) -> tuple[Int32s, Ints, Bools]:
    """Return aliases, expiries and `is_extra` of PUBLISH packets; add to their flags."""
    alias, expires_s = np.full(len(kind), NONE, np.int32), np.full(len(kind), NONE, np.int64)
    is_extra = np.zeros(len(kind), np.bool_)
    at = 0
    for batch in table.select(["properties"]).to_batches():
        column = batch["properties"]
        if column.null_count < len(column):
            rows = pc.list_parent_indices(column).to_numpy() + at
            pairs = pc.list_flatten(column)
            names, values = (pc.struct_field(pairs, place) for place in (0, 1))
            published = kind[rows] == layout.PUBLISH
            for name, found in (("topic_alias", alias), ("message_expiry_interval", expires_s)):
                named = pc.equal(names, name).to_numpy(zero_copy_only=False)
                named &= values.is_valid().to_numpy(zero_copy_only=False) & published
                if named.any():
                    found[rows[named]] = values.filter(pa.array(named)).cast(pa.int64()).to_numpy()
            wanted = pc.is_in(names, _EXTRA).to_numpy(zero_copy_only=False) & published
            is_extra[rows[wanted]] = True
            named = pc.equal(names, "subscription_identifier").to_numpy(zero_copy_only=False)
            flags[rows[named & published]] |= Flag.IDENTIFIED
        at += len(column)
    return alias, expires_s, is_extra


def hash_payloads(payloads: pa.ChunkedArray, secret: tuple[int, int]) -> Grid:
    """Return two hashes of each payload as columns; null counts as empty."""
    hashes = np.empty((len(payloads), 2), np.int64)
    at = 0
    for chunk in payloads.chunks:
        _, offsets, data = chunk.buffers()
        places = np.frombuffer(offsets, np.int32)[chunk.offset : chunk.offset + len(chunk) + 1]
        octets = np.frombuffer(data if data and data.size else b"\0", np.uint8)
        _hash(octets, places, np.array(secret, np.int64), hashes[at : at + len(chunk)])
        at += len(chunk)
    return hashes
