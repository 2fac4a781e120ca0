"""The tables that follow from files of JMQ packets and GPackets, each read twice, batch by batch.

Memory holds the columns of all packets that ``columns`` needs, and the bodies of messages of one
batch at a time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from wireyard.formats.jmq.layout import MESSAGE_TYPES
from wireyard.layers.facts import DerivedFiles, PacketFile
from wireyard.layers.jmq.columns import NEEDED, derive_columns
from wireyard.layers.jmq.facts import FORMATS
from wireyard.layers.jmq.messages import NEEDED as MESSAGE_NEEDED
from wireyard.layers.jmq.messages import message_table
from wireyard.layers.jmq.packet_columns import JMQ, ROW_NUMBER
from wireyard.layers.jmq.rules import DEAD_REASON
from wireyard.layers.jmq.tracking import Ends

__all__ = [
    "derive_files",
    "ends_of",
    "file_numbers",
    "messages_of",
    "packets_of",
    "slices_of",
]

_END: Final = ("source", "stream", "ended_ns", "ended_frame")
_FILE_BITS: Final = 40
"""The low bits of a row number are the row's index in its file, the high bits the file's number."""


def derive_files(
    files: Sequence[PacketFile],
    sources: Collection[str],
    ended: Ends,
    sliced: Collection[str] = (),
) -> DerivedFiles:
    """Return the tables that follow from the packets of some inputs.

    Parameters
    ----------
    sources
        The inputs; packets of other inputs in the files are skipped.
    ended
        The streams whose end is in the captures.
    sliced
        The inputs that are slices of captures.
    """
    parts: dict[str, list[pa.Table]] = {}
    for file in files:
        parts.setdefault(file.format, []).extend(packets_of(file, sources))
    packets = {name: pa.concat_tables(tables) for name, tables in parts.items() if tables}
    del parts
    derived = derive_columns(packets, ended, sliced)
    del packets
    numbers = file_numbers(derived.messages)
    messages = (
        ("messages", table)
        for file in files
        for table in messages_of(file, derived.messages.filter(pa.array(numbers == file.number)))
    )
    tables = chain(derived.tables.items(), [("producers", derived.producers)], messages)
    return DerivedFiles(tables, derived.dropped)


def ends_of(streams: Iterable[pa.Table]) -> dict[tuple[str, str], tuple[int | None, int | None]]:
    """Return the ends of streams of JMQ packets and GPackets, from the table of streams."""
    ends = {}
    for table in streams:
        of_format = pc.is_in(table["format"], pa.array(FORMATS))
        rows = table.filter(pc.and_(of_format, table["ended"].is_valid())).select(_END).to_pylist()
        ends.update(
            {(row["source"], row["stream"]): (row["ended_ns"], row["ended_frame"]) for row in rows}
        )
    return ends


def slices_of(streams: Iterable[pa.Table]) -> set[str]:
    """Return the inputs that are slices of captures, from the table of streams."""
    return {
        source
        for table in streams
        for source in pc.unique(table.filter(table["sliced"])["source"]).to_pylist()
    }


def packets_of(file: PacketFile, sources: Collection[str]) -> Iterator[pa.Table]:
    """Yield the columns `NEEDED` of the packets of some inputs, with their row numbers.

    The bodies of messages are null, and so are their properties unless they have the reason why
    the message is dead.
    """
    first = file.number << _FILE_BITS
    wanted = pa.array(sorted(sources), pa.string())
    for table in file.batches(NEEDED):
        numbers = np.arange(first, first + table.num_rows)
        first += table.num_rows
        table = table.append_column(ROW_NUMBER, pa.array(numbers))
        table = table.filter(pc.is_in(table["source"].cast(pa.string()), wanted))
        if file.format == JMQ:
            is_message = pc.is_in(table["packet_type"], pa.array(MESSAGE_TYPES, pa.int32()))
            table = _set_null(table, "body", is_message)
            is_dead = _has_key(table["properties"], DEAD_REASON)
            table = _set_null(table, "properties", pc.and_not(is_message, is_dead))
        yield table


def _set_null(table: pa.Table, name: str, rows: pa.ChunkedArray) -> pa.Table:
    """Return a table with a column set to null in the rows that `rows` selects."""
    blank = rows.fill_null(False).to_numpy()
    places = pa.array(np.arange(table.num_rows), mask=blank)
    at = table.schema.get_field_index(name)
    return table.set_column(at, name, table[name].combine_chunks().take(places))


def _has_key(maps: pa.ChunkedArray, key: str) -> pa.Array:
    """Return which maps have a key."""
    has_key = np.zeros(len(maps), np.bool_)
    first = 0
    for chunk in maps.chunks:
        ends = chunk.offsets.to_numpy()
        keys = chunk.keys.slice(ends[0], ends[-1] - ends[0])
        entries = np.flatnonzero(pc.equal(keys, key).to_numpy(zero_copy_only=False)) + ends[0]
        has_key[first + np.searchsorted(ends, entries, side="right") - 1] = True
        first += len(chunk)
    return pa.array(has_key)


def file_numbers(marks: pa.Table) -> Any:
    """Return the number of the file with the packet of each mark."""
    return marks[ROW_NUMBER].to_numpy() >> _FILE_BITS


def messages_of(file: PacketFile, marks: pa.Table) -> Iterator[pa.Table]:
    """Yield the messages whose packets are in a file.

    Parameters
    ----------
    marks
        The result of `stand_for_messages`, for this file.
    """
    numbers = marks[ROW_NUMBER].to_numpy()
    marks = marks.take(pa.array(np.argsort(numbers)))
    rows = np.sort(numbers) & ((1 << _FILE_BITS) - 1)
    first = 0
    for table in file.batches(MESSAGE_NEEDED) if len(rows) else ():
        start, stop = np.searchsorted(rows, [first, first + table.num_rows]).tolist()
        if stop > start:
            packets = table.take(pa.array(rows[start:stop] - first))
            yield message_table(packets, marks.slice(start, stop - start))
        first += table.num_rows
