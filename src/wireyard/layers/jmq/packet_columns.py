"""Bronze columns of JMQ packets and GPackets as integers for kernels.

Text becomes dictionary codes, and packets are sorted by time within each connection. Properties and
bodies are read for control packets only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from wireyard.accelerate import kernel
from wireyard.arrays import Bytes, Grid, Int32s, Ints, ReadOnly
from wireyard.formats.base import Row
from wireyard.layers.endpoints import connection_of
from wireyard.layers.grouping import by_group, dense_ids, order_groups, text_codes
from wireyard.layers.jmq.packet_row import MAX_TEXT, MOST_ITEM_BYTES

JMQ, GPACKET = "jmq", "gpacket"
ROW_NUMBER: Final = "row_number"
"""A column of packets with the caller's number of each row."""
NONE: Final = np.iinfo(np.int64).min
"""A missing time, which sorts before all others."""
_STREAM_COLUMNS: Final = (
    "source", "stream", "src_addr", "src_port", "dst_addr", "dst_port",
)  # fmt: skip
_PART: Final = 4096
_ROW_TEXTS: Final = ("destination", "reply_to", "correlation_id", "message_id")

_long: Final[Any] = np.int64


class PacketColumns:
    """The packets of both formats as columns, sorted by time within each connection.

    `tables` are the bronze columns of each format, with or without `ROW_NUMBER`. `rows` has the row
    of each packet in them, counting those of GPackets after those of JMQ; `row_number` is the
    caller's number of that row, or `rows` without that column. `stream` is an index into `streams`.
    """

    def __init__(self, tables: Mapping[str, pa.Table]) -> None:
        self.tables = {name: tables[name] for name in (JMQ, GPACKET) if name in tables}
        self.sizes = [table.num_rows for table in self.tables.values()]
        self.streams: list[Row] = []
        """The first row of each stream, with its source, name and endpoints."""
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

    def _in_order(self, stream: Int32s, ns: Ints, frame: Ints, offset: Ints) -> Ints:
        """Return the rows connection by connection, each in the order of time.

        A receiver reads a stream in order, so a packet that was complete early arrives when all
        before it have.
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
        raise_times(streams, reached, in_frame)
        connections = self.connection_of_stream[streams]
        order, _ = order_groups(
            connections, self.connections, reached, in_frame, rank[streams], offset[by_stream]
        )
        return by_stream[order]

    # --- columns ------------------------------------------------------------------------------

    def ints(self, name: str, kind: Any = np.int64) -> Any:
        """Return a column of numbers, with 0 for null and where a format does not have it."""
        return np.ascontiguousarray(self._all(name, 0, kind)[self.rows])

    def valid(self, name: str) -> Any:
        """Return which values of a column are not null."""
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
        """Return `value_of` of each text of a column with few distinct ones, as an int8."""
        parts = []
        for table in self.tables.values():
            codes, texts = text_codes(table[name])
            values = [value_of(text) for text in texts.to_pylist()]
            parts.append(np.array([*values, value_of(None)], np.int8)[codes])
        return np.concatenate(parts)[self.rows] if parts else np.empty(0, np.int8)

    def jmq(self, name: str, places: Any) -> pa.Array:
        """Return values of a column of JMQ packets; all null without that column."""
        table = self.tables.get(JMQ)
        if table is None or name not in table.column_names:
            return pa.nulls(len(places), pa.string())
        return take_rows(table[name], self.rows[places])

    def texts(self, name: str, places: Any) -> pa.Array:
        """Return names and ids of JMQ packets, truncated to `MAX_TEXT` characters."""
        values = self.jmq(name, places)
        if name in _ROW_TEXTS and self._has_long_items():
            truncated = pc.utf8_slice_codeunits(values.cast(pa.string()), 0, MAX_TEXT)
            long = self.ints("property_offset")[places] > MOST_ITEM_BYTES
            return pc.if_else(pa.array(long), truncated, values.cast(pa.string()))
        return values

    def _has_long_items(self) -> bool:
        table = self.tables.get(JMQ)
        most = None if table is None else pc.max(table["property_offset"]).as_py()
        return most is not None and bool(most > MOST_ITEM_BYTES)

    def python_rows(self, format: str, places: Any, names: tuple[str, ...]) -> Iterator[Row]:
        """Yield rows as dictionaries, a few at a time in memory."""
        if len(places) == 0:
            return
        table = self.tables[format]
        first = 0 if format == JMQ else self.tables[JMQ].num_rows if JMQ in self.tables else 0
        present = [name for name in names if name in table.column_names]
        for part in rows_in_parts(self.rows[places] - first):
            chosen = pa.table({name: take_rows(table[name], part) for name in present})
            yield from chosen.to_pylist(maps_as_pydicts="lossy")


def take_rows(column: pa.ChunkedArray, rows: Any) -> pa.Array:
    """Return the values of some rows of a column without copying others.

    Arrow's own `take` concatenates the chunks of a column of binary values first.
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
    """Yield the rows in slices of up to `_PART`."""
    for start in range(0, len(rows), _PART):
        yield rows[start : start + _PART]


def rank_of(texts: list[str]) -> Ints:
    """Return the rank of each text in sorted order."""
    ranks = np.empty(len(texts), np.int64)
    ranks[sorted(range(len(texts)), key=texts.__getitem__)] = np.arange(len(texts))
    return ranks


def _filled(column: pa.ChunkedArray, missing: int) -> Any:
    return column.fill_null(missing).to_numpy() if column.null_count else column.to_numpy()


@kernel
def raise_times(streams: Int32s, ns: Ints, frame: Ints) -> None:
    """Raise every time and frame to the latest one before it in its stream."""
    for i in range(1, len(streams)):
        if streams[i] == streams[i - 1] and (
            ns[i] < ns[i - 1] or (ns[i] == ns[i - 1] and frame[i] < frame[i - 1])
        ):
            ns[i], frame[i] = ns[i - 1], frame[i - 1]


# --- addresses and blocks -------------------------------------------------------------------


def _binary(column: pa.Array) -> tuple[Bytes, Ints, Ints]:
    """Return the bytes of a column of binary values, and the start and stop of each value."""
    _, offsets, data = column.buffers()
    ends = np.frombuffer(offsets, np.int32, len(column) + 1, 4 * column.offset).astype(np.int64)
    octets = np.zeros(1, np.uint8) if data is None else np.frombuffer(data, np.uint8)
    starts, stops = ends[:-1].copy(), ends[1:].copy()
    if column.null_count:
        stops[~column.is_valid().to_numpy(zero_copy_only=False)] = 0
    return octets, starts, np.maximum(stops, starts)


def read_addresses(column: pa.ChunkedArray) -> tuple[Ints, Ints]:
    """Return addresses of 16 bytes as two numbers each, 0 for a missing one."""
    parts = []
    for chunk in column.chunks:
        octets, starts, stops = _binary(chunk)
        halves = np.zeros((2, len(chunk)), np.int64)
        _addresses(octets, starts, stops, halves)
        parts.append(halves)
    whole = np.concatenate(parts, axis=1) if parts else np.empty((2, 0), np.int64)
    return whole[0].copy(), whole[1].copy()


@kernel
def _addresses(octets: ReadOnly[Bytes], starts: Ints, stops: Ints, halves: Grid) -> None:
    for i in range(len(starts)):
        if stops[i] - starts[i] == 16:
            for half in range(2):
                word = _long(0)
                for at in range(starts[i] + 8 * half, starts[i] + 8 * half + 8):
                    word = (word & 0xFFFFFFFFFFFFFF) << 8 | _long(octets[at])
                halves[half, i] = word


class Blocks(NamedTuple):
    """Consumer ids and SysMessageIDs in the bodies of packets.

    `starts` has the first block of each body, then the end of the last; `malformed` is true for a
    body that is no list of blocks. `words` has ``[consumer id, timestamp, address, address, port,
    sequence]`` by block.
    """

    starts: Ints
    malformed: Any
    words: Any


def read_blocks(bodies: pa.Array, id_bytes: Any) -> Blocks:
    """Read lists of blocks: a consumer id of `id_bytes` (0, 4 or 8) bytes, then a SysMessageID."""
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


@kernel
def _blocks(octets: ReadOnly[Bytes], begins: Ints, wide: Ints, starts: Ints, words: Grid) -> None:
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


class NumericProperties(NamedTuple):
    """Numeric properties of packets by name: whether each is present, and its value or 0."""

    present: Mapping[str, Any]
    values: Mapping[str, Any]


_WHOLE, _TRUTH = 1, 2
_KINDS: Final = {"byte": _WHOLE, "short": _WHOLE, "integer": _WHOLE, "long": _WHOLE,
                 "boolean": _TRUTH}  # fmt: skip


def read_numbers(maps: pa.Array, names: Mapping[str, str]) -> NumericProperties:
    """Return integer and boolean properties of packets, like `number` for a single one.

    `names` has the names of properties, by their names in the result.
    """
    rows = len(maps)
    numbers = {name: np.zeros(rows, np.int64) for name in names}
    present = {name: np.zeros(rows, bool) for name in names}
    if maps.null_count == rows or not pa.types.is_map(maps.type):
        return NumericProperties(present, numbers)
    ends = maps.offsets.to_numpy()
    first, stop = int(ends[0]), int(ends[-1])
    keys = maps.keys.slice(first, stop - first)
    items = maps.items.slice(first, stop - first)
    of_name = pc.index_in(keys, value_set=pa.array(list(names.values())))
    codes = of_name.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int32)
    wanted = np.flatnonzero(codes >= 0)
    if len(wanted) == 0:
        return NumericProperties(present, numbers)
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
        present[name][owner[of]] = ok[of] != 0
        numbers[name][owner[of]] = np.where(ok[of] != 0, values[of], 0)
    return NumericProperties(present, numbers)


@kernel
def _numbers(
    octets: ReadOnly[Bytes], begins: Ints, stops: Ints, how: Int32s, values: Ints, ok: Int32s
) -> None:
    """Parse the text of properties: an optional sign and digits, or ``true`` and ``false``."""
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
