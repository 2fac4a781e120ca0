"""Bronze columns of JMQ packets and GPackets as the integers that kernels follow.

Text becomes dictionary codes here, and packets stand in the order of time within each connection.
What only control packets have (properties, bodies) is read of those alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from wireyard.accelerate import array, kernel
from wireyard.formats.base import Row
from wireyard.layers.endpoints import connection_of
from wireyard.layers.grouping import Int32s, Int64s, by_group, dense_ids, order_groups, text_codes
from wireyard.layers.jmq.records import MAX_TEXT
from wireyard.layers.jmq.walk import MOST_ITEM_BYTES

__all__ = [
    "GPACKET",
    "JMQ",
    "NONE",
    "ROW_NUMBER",
    "Frame",
    "Numbers",
    "rank_of",
    "read_addresses",
    "read_blocks",
    "read_numbers",
    "rows_in_parts",
    "take_rows",
]

JMQ, GPACKET = "jmq", "gpacket"
ROW_NUMBER: Final = "row_number"
"""Column of packets by which a caller finds a row again."""
NONE: Final = np.iinfo(np.int64).min
"""A time that is not there, before all others."""
_STREAM_COLUMNS: Final = (
    "source", "stream", "src_addr", "src_port", "dst_addr", "dst_port",
)  # fmt: skip
_PART: Final = 4096
_ROW_TEXTS: Final = ("destination", "reply_to", "correlation_id", "message_id")

_long: Final[Any] = np.int64
_I32S, _I64S = array("int32"), array("int64")
Bytes = npt.NDArray[np.uint8]


class Frame:
    """The rows of both formats, in the order of time within each connection.

    Parameters
    ----------
    tables
        By format, the bronze columns of its packets, and perhaps `ROW_NUMBER`.

    Attributes
    ----------
    rows
        Of the packet at each place: its row in the tables, those of GPackets behind those of JMQ.
    row_number
        By what callers find that row again: `ROW_NUMBER`, or `rows` where there is none.
    stream
        Code of its stream, an index into `streams`.
    """

    def __init__(self, tables: Mapping[str, pa.Table]) -> None:
        self.tables = {name: tables[name] for name in (JMQ, GPACKET) if name in tables}
        self.sizes = [table.num_rows for table in self.tables.values()]
        self.streams: list[Row] = []
        """First row of each: its source and name, and between whom it is."""
        stream = self._stream_codes()
        self.connection_of_stream, self.connections = self._connections()
        ns, frame, offset = (
            self._all("captured_ns", NONE),
            self._all("frame", 0),
            self._all("offset"),
        )
        self.rows = self._in_order(stream, ns, frame, offset)
        self.stream = stream[self.rows]
        self.ns = ns[self.rows]
        self.timed = self.ns != NONE
        self.ns[~self.timed] = 0
        self.frame, self.offset = frame[self.rows], offset[self.rows]
        self.has_frame = self.valid("frame")
        numbered = [ROW_NUMBER in table.column_names for table in self.tables.values()]
        self.row_number = self.ints(ROW_NUMBER) if any(numbered) else self.rows

    # --- streams ------------------------------------------------------------------------------

    def _stream_codes(self) -> Int32s:
        known: dict[tuple[str, str], int] = {}
        parts = []
        for table in self.tables.values():
            codes, count = dense_ids(*(text_codes(table[name])[0] for name in ("source", "stream")))
            firsts = np.empty(count, np.int64)
            firsts[codes[::-1]] = np.arange(len(codes))[::-1]
            of_code = np.empty(count, np.int32)
            chosen = table.select([n for n in _STREAM_COLUMNS if n in table.column_names])
            for start in range(0, len(firsts), _PART):
                part = firsts[start : start + _PART]
                for at, row in enumerate(chosen.take(part).to_pylist(), start):
                    key = row["source"], row["stream"]
                    if key not in known:
                        known[key] = len(self.streams)
                        self.streams.append(row)
                    of_code[at] = known[key]
            parts.append(of_code[codes])
        return np.concatenate(parts) if parts else np.empty(0, np.int32)

    def _connections(self) -> tuple[Int32s, int]:
        known: dict[tuple[str, ...], int] = {}
        codes = [known.setdefault(connection_of(row), len(known)) for row in self.streams]
        return np.array(codes, np.int32), len(known)

    def _in_order(self, stream: Int32s, ns: Int64s, frame: Int64s, offset: Int64s) -> Int64s:
        """Return the rows connection by connection, each in the order of time.

        A receiver reads a stream in order, so what was complete early waits for what is before it.
        """
        if len(stream) == 0:
            return np.empty(0, np.int64)
        by_stream = np.arange(len(stream))
        again = np.count_nonzero(np.diff(stream)) >= len(self.streams)
        if again or np.any((np.diff(stream) == 0) & (np.diff(offset) < 0)):
            by_stream = np.lexsort((offset, stream))
        rank = rank_of([row["stream"] for row in self.streams])
        streams = stream[by_stream]
        reached, in_frame = ns[by_stream], frame[by_stream]
        _reach(streams, reached, in_frame)
        connections = self.connection_of_stream[streams]
        order, _ = order_groups(
            connections, self.connections, reached, in_frame, rank[streams], offset[by_stream]
        )
        return by_stream[order]

    # --- columns ------------------------------------------------------------------------------

    def ints(self, name: str, kind: Any = np.int64) -> Any:
        """Return a column of numbers at all places, 0 for null and where a format has none."""
        return np.ascontiguousarray(self._all(name, 0, kind)[self.rows])

    def valid(self, name: str) -> Any:
        """Return where a column is not null."""
        parts = [
            table[name].is_valid().to_numpy()
            if name in table.column_names and table[name].null_count
            else np.full(table.num_rows, name in table.column_names)
            for table in self.tables.values()
        ]
        return np.concatenate(parts)[self.rows] if parts else np.empty(0, bool)

    def _all(self, name: str, missing: int = 0, kind: Any = np.int64) -> Any:
        parts = [
            np.require(_filled(table[name], missing), kind)
            if name in table.column_names
            else np.full(table.num_rows, missing, kind)
            for table in self.tables.values()
        ]
        return np.concatenate(parts) if parts else np.empty(0, kind)

    def mapped(self, name: str, value_of: Callable[[str | None], int]) -> Any:
        """Return a small number for each text of a column with few different ones."""
        parts = []
        for table in self.tables.values():
            codes, texts = text_codes(table[name])
            values = [value_of(text) for text in texts.to_pylist()]
            parts.append(np.array([*values, value_of(None)], np.int8)[codes])
        return np.concatenate(parts)[self.rows] if parts else np.empty(0, np.int8)

    def jmq(self, name: str, places: Any) -> pa.Array:
        """Return values of a column of JMQ packets, null where it is not there."""
        table = self.tables.get(JMQ)
        if table is None or name not in table.column_names:
            return pa.nulls(len(places), pa.string())
        return take_rows(table[name], self.rows[places])

    def texts(self, name: str, places: Any) -> pa.Array:
        """Return names and ids of JMQ packets, as long as they are kept."""
        found = self.jmq(name, places)
        if name in _ROW_TEXTS and self._has_long_items():
            cut = pc.utf8_slice_codeunits(found.cast(pa.string()), 0, MAX_TEXT)
            long = self.ints("property_offset")[places] > MOST_ITEM_BYTES
            return pc.if_else(pa.array(long), cut, found.cast(pa.string()))
        return found

    def _has_long_items(self) -> bool:
        table = self.tables.get(JMQ)
        most = None if table is None else pc.max(table["property_offset"]).as_py()
        return most is not None and bool(most > MOST_ITEM_BYTES)

    def python_rows(self, format: str, places: Any, names: tuple[str, ...]) -> Iterator[Row]:
        """Yield rows as the scalar classes take them, a few at a time in memory."""
        if len(places) == 0:
            return
        table = self.tables[format]
        first = 0 if format == JMQ else self.tables[JMQ].num_rows if JMQ in self.tables else 0
        there = [name for name in names if name in table.column_names]
        for part in rows_in_parts(self.rows[places] - first):
            chosen = pa.table({name: take_rows(table[name], part) for name in there})
            yield from chosen.to_pylist(maps_as_pydicts="lossy")


def take_rows(column: pa.ChunkedArray, rows: Any) -> pa.Array:
    """Return the values of some rows of a column; only those are copied.

    Arrow's own `take` puts the chunks of a column of binary values together first.
    """
    if column.num_chunks < 2:
        return _chunk_of(column).take(pa.array(rows))
    ends = np.cumsum([len(chunk) for chunk in column.chunks])
    of_chunk = np.searchsorted(ends, rows, side="right")
    order, starts = by_group(of_chunk, column.num_chunks)
    parts = [
        chunk.take(pa.array(rows[order[start:stop]] - (end - len(chunk))))
        for chunk, start, stop, end in zip(
            column.chunks, starts[:-1].tolist(), starts[1:].tolist(), ends.tolist(), strict=True
        )
        if stop > start
    ]
    if not parts:
        return _chunk_of(column).slice(0, 0)
    if pa.types.is_dictionary(column.type):
        whole = pa.chunked_array(parts).unify_dictionaries().combine_chunks()
    else:
        whole = pa.concat_arrays(parts)
    if np.array_equal(order, np.arange(len(order))):
        return whole
    back = np.empty(len(order), np.int64)
    back[order] = np.arange(len(order))
    return whole.take(pa.array(back))


def _chunk_of(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks else pa.array([], column.type)


def rows_in_parts(rows: Any) -> Iterator[Any]:
    """Yield some rows at a time."""
    for start in range(0, len(rows), _PART):
        yield rows[start : start + _PART]


def rank_of(texts: list[str]) -> Int64s:
    """Return the place of each text in their order."""
    found = np.empty(len(texts), np.int64)
    found[sorted(range(len(texts)), key=texts.__getitem__)] = np.arange(len(texts))
    return found


def _filled(column: pa.ChunkedArray, missing: int) -> Any:
    return column.fill_null(missing).to_numpy() if column.null_count else column.to_numpy()


@kernel((_I32S, _I64S, _I64S))
def _reach(streams: Any, ns: Any, frame: Any) -> None:
    """Raise every time and frame to the latest before it in its stream."""
    for i in range(1, len(streams)):
        if streams[i] == streams[i - 1] and (
            ns[i] < ns[i - 1] or (ns[i] == ns[i - 1] and frame[i] < frame[i - 1])
        ):
            ns[i], frame[i] = ns[i - 1], frame[i - 1]


# --- addresses and blocks -------------------------------------------------------------------


def _binary(column: pa.Array) -> tuple[Bytes, Int64s, Int64s]:
    """Return the bytes of a column of binary values, and where each begins and ends."""
    _, offsets, data = column.buffers()
    ends = np.frombuffer(offsets, np.int32, len(column) + 1, 4 * column.offset).astype(np.int64)
    octets = np.zeros(1, np.uint8) if data is None else np.frombuffer(data, np.uint8)
    starts, stops = ends[:-1].copy(), ends[1:].copy()
    if column.null_count:
        stops[~column.is_valid().to_numpy(zero_copy_only=False)] = 0
    return octets, starts, np.maximum(stops, starts)


def read_addresses(column: pa.ChunkedArray) -> tuple[Int64s, Int64s]:
    """Return addresses of 16 bytes as two numbers each, 0 where there is none."""
    parts = []
    for chunk in column.chunks:
        octets, starts, stops = _binary(chunk)
        found = np.zeros((2, len(chunk)), np.int64)
        _addresses(octets, starts, stops, found)
        parts.append(found)
    whole = np.concatenate(parts, axis=1) if parts else np.empty((2, 0), np.int64)
    return whole[0].copy(), whole[1].copy()


@kernel((array("uint8", readonly=True), _I64S, _I64S, array("int64", 2)))
def _addresses(octets: Any, starts: Any, stops: Any, found: Any) -> None:
    for i in range(len(starts)):
        if stops[i] - starts[i] == 16:
            for half in range(2):
                word = _long(0)
                for at in range(starts[i] + 8 * half, starts[i] + 8 * half + 8):
                    word = (word & 0xFFFFFFFFFFFFFF) << 8 | _long(octets[at])
                found[half, i] = word


class Blocks(NamedTuple):
    """Consumer ids and SysMessageIDs in the bodies of packets.

    Attributes
    ----------
    starts
        Where the blocks of each body begin; one entry more.
    malformed
        Bodies that are no list of blocks.
    words
        ``[consumer id, timestamp, address, address, port, sequence]`` by block.
    """

    starts: Int64s
    malformed: Any
    words: Any


def read_blocks(bodies: pa.Array, id_bytes: Any) -> Blocks:
    """Read lists of blocks: a consumer id of so many bytes (0, 4 or 8), then a SysMessageID."""
    octets, begins, stops = _binary(bodies)
    sizes, wide = stops - begins, np.asarray(id_bytes, np.int64)
    block = wide + 32
    malformed = sizes % block != 0
    counts = np.where(malformed, 0, sizes // block)
    starts = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=starts[1:])
    words = np.zeros((6, int(starts[-1])), np.int64)
    _blocks(octets, begins, wide, starts, words)
    return Blocks(starts, malformed, words)


@kernel((array("uint8", readonly=True), _I64S, _I64S, _I64S, array("int64", 2)))
def _blocks(octets: Any, begins: Any, wide: Any, starts: Any, words: Any) -> None:
    for i in range(len(begins)):
        at = begins[i]
        for block in range(starts[i], starts[i + 1]):
            for word in range(6):
                size = _long(8)
                if word == 0:
                    size = wide[i]
                elif word > 3:
                    size = 4
                value = _long(0)
                for place in range(size):
                    value = (value & 0xFFFFFFFFFFFFFF) << 8 | _long(octets[at + place])
                if size == 4:
                    value = (value ^ 0x80000000) - 0x80000000
                words[word, block] = value
                at += size


# --- properties -----------------------------------------------------------------------------


class Numbers(NamedTuple):
    """Numeric properties of packets by name: whether each is there, and its value or 0."""

    present: Mapping[str, Any]
    values: Mapping[str, Any]


_WHOLE, _TRUTH = 1, 2
_KINDS: Final = {"byte": _WHOLE, "short": _WHOLE, "integer": _WHOLE, "long": _WHOLE,
                 "boolean": _TRUTH}  # fmt: skip


def read_numbers(maps: pa.Array, names: Mapping[str, str]) -> Numbers:
    """Return integer and boolean properties of packets, as `number` does one by one.

    Parameters
    ----------
    maps
        The property columns of the packets.
    names
        The property by the name that is wanted for it.
    """
    rows = len(maps)
    zeros = {name: np.zeros(rows, np.int64) for name in names}
    there = {name: np.zeros(rows, bool) for name in names}
    if maps.null_count == rows or not pa.types.is_map(maps.type):
        return Numbers(there, zeros)
    ends = maps.offsets.to_numpy()
    first, stop = int(ends[0]), int(ends[-1])
    keys = maps.keys.slice(first, stop - first)
    items = maps.items.slice(first, stop - first)
    of_name = pc.index_in(keys, value_set=pa.array(list(names.values())))
    codes = of_name.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int32)
    wanted = np.flatnonzero(codes >= 0)
    if len(wanted) == 0:
        return Numbers(there, zeros)
    owner = np.repeat(np.arange(rows), np.diff(ends))[wanted]
    codes = codes[wanted]
    chosen = items.take(pa.array(wanted))
    kinds, texts = chosen.flatten()
    kind_codes, kind_texts = text_codes(kinds)
    of_kind = [_KINDS.get(kind, 0) for kind in kind_texts.to_pylist()]
    how = np.array([*of_kind, 0], np.int32)[kind_codes]
    octets, begins, stops = _binary(texts)
    values, ok = np.zeros(len(wanted), np.int64), np.zeros(len(wanted), np.int32)
    _numbers(octets, begins, stops, how, values, ok)
    for code, name in enumerate(names):
        of = codes == code
        there[name][owner[of]] = ok[of] != 0
        zeros[name][owner[of]] = np.where(ok[of] != 0, values[of], 0)
    return Numbers(there, zeros)


@kernel((array("uint8", readonly=True), _I64S, _I64S, _I32S, _I64S, _I32S))
def _numbers(octets: Any, begins: Any, stops: Any, how: Any, values: Any, ok: Any) -> None:
    """Read numbers as columns spell them: a sign, digits; or ``true`` and ``false``."""
    for i in range(len(begins)):
        at, stop = begins[i], stops[i]
        if how[i] == _TRUTH:
            if stop - at == 4 and octets[at] == 116:  # t
                values[i], ok[i] = 1, 1
            elif stop - at == 5 and octets[at] == 102:  # f
                ok[i] = 1
        elif how[i] == _WHOLE:
            negative = stop > at and octets[at] == 45  # -
            at += negative
            value, good = _long(0), 0 < stop - at <= 19
            while at < stop and good:
                digit = _long(octets[at]) - 48
                good = 0 <= digit <= 9
                value = value * 10 - digit
                at += 1
            if good:
                values[i], ok[i] = value if negative else -value, 1
