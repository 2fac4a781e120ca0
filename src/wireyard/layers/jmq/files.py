"""The tables that follow from JMQ packets and GPackets in files, each read batch by batch, twice.

What is held of packets is what ``columns`` takes of them; bodies of messages are held a batch at a
time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from wireyard.formats.jmq.layout import MESSAGE_TYPES
from wireyard.layers.jmq.columns import NEEDED, derive_columns
from wireyard.layers.jmq.messages import NEEDED as MESSAGE_NEEDED
from wireyard.layers.jmq.messages import message_table
from wireyard.layers.jmq.packet_columns import JMQ, ROW_NUMBER
from wireyard.layers.jmq.receiver import DEAD_REASON

__all__ = [
    "DerivedFiles",
    "PacketFile",
    "derive_files",
    "file_numbers",
    "messages_of",
    "packets_of",
]

_FILE_BITS: Final = 40
"""Of a row number: above them is the number of its file, below its place there."""


class PacketFile(NamedTuple):
    """A file of packets."""

    number: int
    """Another one for each file that is read together with others."""
    format: str
    batches: Callable[[Sequence[str]], Iterable[pa.Table]]
    """Columns -> those of the packets that it has, in tables of some rows in order."""


class DerivedFiles(NamedTuple):
    """The tables that follow from some files."""

    tables: Iterator[tuple[str, pa.Table]]
    """Parts of tables by name, with the columns of ``wireyard.layers.tables``; those of `messages`
    are made while they are iterated."""
    dropped: Counter[str]
    """How much was left out of them, by the cap that it was above."""


def derive_files(
    files: Sequence[PacketFile], sources: Collection[str], ended: Iterable[tuple[str, str]]
) -> DerivedFiles:
    """Return the tables of the packets of some inputs.

    Parameters
    ----------
    sources
        The inputs; files may have packets of others too.
    ended
        Source and name of the streams whose end the captures show.
    """
    parts: dict[str, list[pa.Table]] = {}
    for file in files:
        parts.setdefault(file.format, []).extend(packets_of(file, sources))
    packets = {name: pa.concat_tables(some) for name, some in parts.items() if some}
    del parts
    found = derive_columns(packets, ended)
    del packets
    numbers = file_numbers(found.messages)
    messages = (
        ("messages", table)
        for file in files
        for table in messages_of(file, found.messages.filter(pa.array(numbers == file.number)))
    )
    tables = chain(found.tables.items(), [("producers", found.producers)], messages)
    return DerivedFiles(tables, found.dropped)


def packets_of(file: PacketFile, sources: Collection[str]) -> Iterator[pa.Table]:
    """Yield what is looked at of the packets of some inputs, with the numbers of their rows.

    The body of a message says nothing, and of its properties only why it is dead.
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
            table = _blanked(table, "body", is_message)
            is_dead = _has_key(table["properties"], DEAD_REASON)
            table = _blanked(table, "properties", pc.and_not(is_message, is_dead))
        yield table


def _blanked(table: pa.Table, name: str, rows: pa.ChunkedArray) -> pa.Table:
    """Return a table with nulls for some values of a column."""
    blank = rows.fill_null(False).to_numpy()
    places = pa.array(np.arange(table.num_rows), mask=blank)
    at = table.schema.get_field_index(name)
    return table.set_column(at, name, table[name].combine_chunks().take(places))


def _has_key(maps: pa.ChunkedArray, key: str) -> pa.Array:
    """Return which maps have a key."""
    found = np.zeros(len(maps), np.bool_)
    first = 0
    for chunk in maps.chunks:
        ends = chunk.offsets.to_numpy()
        keys = chunk.keys.slice(ends[0], ends[-1] - ends[0])
        there = np.flatnonzero(pc.equal(keys, key).to_numpy(zero_copy_only=False)) + ends[0]
        found[first + np.searchsorted(ends, there, side="right") - 1] = True
        first += len(chunk)
    return pa.array(found)


def file_numbers(marks: pa.Table) -> Any:
    """Return the number of the file that the row of each mark is in."""
    return marks[ROW_NUMBER].to_numpy() >> _FILE_BITS


def messages_of(file: PacketFile, marks: pa.Table) -> Iterator[pa.Table]:
    """Yield the messages that packets of a file stand for.

    Parameters
    ----------
    marks
        Those of the file, as `stand_for_messages` returns them.
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
