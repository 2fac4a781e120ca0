"""Derives tables from files of MQTT packets, which are read in batches, several times.

The columns that ``columns`` needs are held for all packets; payloads are held for one batch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from wireyard.formats.base import Row
from wireyard.formats.mqtt.layout import PUBLISH
from wireyard.layers.facts import DerivedFiles
from wireyard.layers.mqtt.columns import explain_rest, known_of, match, track
from wireyard.layers.mqtt.delivery_columns import deliver
from wireyard.layers.mqtt.directions import OK, Stream
from wireyard.layers.mqtt.evidence import NEEDED as EVIDENCE_NEEDED
from wireyard.layers.mqtt.evidence import StreamEvidence
from wireyard.layers.mqtt.messages import NEEDED as MESSAGE_NEEDED
from wireyard.layers.mqtt.messages import marks_of, message_table, unknown_marks
from wireyard.layers.mqtt.packets import (
    NEEDED,
    NO_TIME,
    KnownStream,
    Part,
    new_secret,
    stream_numbers,
)

__all__ = [
    "Batches",
    "count_evidence",
    "derive_files",
    "messages_of",
    "parts_of",
    "shown_rows",
]

Batches = Callable[[Sequence[str]], Iterable[pa.Table]]
"""Names of columns -> the packets of a file with these columns, in batches."""


def derive_files(
    files: Sequence[Batches],
    shown: Iterable[Row],
    sources: Collection[str],
    evidence: StreamEvidence | None = None,
) -> DerivedFiles:
    """Derive the tables of inputs.

    Parameters
    ----------
    files
        The files with packets of the inputs.
    shown
        The beginning and end of each stream, as captured: ``source, stream, opened, begun, ended,
        ended_frame, ended_ns, last_ns``. Rows of other streams show how long a capture lasts.
    sources
        The inputs; files may have packets of other inputs too.
    evidence
        The evidence of the sides of their streams; counted from the files if None.
    """
    if evidence is None:
        evidence = StreamEvidence()
        for file in files:
            count_evidence(evidence, file, sources)
    streams, secret = known_of(evidence, shown), new_secret()
    unknown = evidence.without_side({(one.source, one.name) for one in streams})
    # Released before tracking: they are large if there are many connections.
    del evidence, shown
    parts = [
        part
        for number, file in enumerate(files)
        for part in parts_of(file, streams, secret, number)
    ]
    if not parts:
        return DerivedFiles(iter(()), Counter())
    tracked, messages = track(parts, streams, secret)
    sent, delivered = map(pa.concat_tables, zip(*messages, strict=True))
    matched = match([tracked])
    deliveries = deliver(sent, delivered, matched.topics(), matched.clients, streams)
    rest = explain_rest(deliveries.records, matched.connections)
    marks = marks_of(sent, tracked.clients, matched.wills, tracked.users)
    message_rows = (
        ("messages", table)
        for number, file in enumerate(files)
        for table in messages_of(file, marks.filter(pc.equal(marks["file"], number)), unknown)
    )
    tables = chain(tracked.tables.items(), _all(deliveries.tables), _all(rest.tables), message_rows)
    dropped = sum((each.dropped for each in (tracked, matched, deliveries, rest)), Counter[str]())
    return DerivedFiles(tables, dropped)


def _all(tables: Mapping[str, Iterable[pa.Table]]) -> Iterator[tuple[str, pa.Table]]:
    return ((name, part) for name, parts in tables.items() for part in parts)


def _of_sources(table: pa.Table, sources: Collection[str]) -> Any:
    """Return a mask of the rows of the sources."""
    wanted = pa.array(list(sources), pa.string())
    return pc.is_in(table["source"].cast(pa.string()), wanted).to_numpy()


def shown_rows(streams: pa.Table, format: str) -> list[Row]:
    """Return the rows of the table `streams` of a format, and the last to end of each source."""
    last_ns = streams["last_ns"].fill_null(NO_TIME).to_numpy()
    sources = streams["source"].combine_chunks().dictionary_encode().indices.to_numpy()
    order = np.lexsort((last_ns, sources))
    wanted = pc.starts_with(streams["format"], format).fill_null(False).to_numpy().copy()
    wanted[order[np.flatnonzero(np.diff(sources[order], append=-1))]] = True
    rows: list[Row] = streams.filter(pa.array(wanted)).drop_columns("format").to_pylist()
    return rows


def count_evidence(evidence: StreamEvidence, file: Batches, sources: Collection[str]) -> None:
    """Add the evidence in the packets of the sources in a file."""
    for table in file(EVIDENCE_NEEDED):
        evidence.add(table.filter(pa.array(_of_sources(table, sources))))


def parts_of(
    file: Batches, streams: Sequence[KnownStream], secret: tuple[int, int], number: int
) -> Iterator[Part]:
    """Yield the packets of known streams as columns for `track`.

    Parameters
    ----------
    number
        The number of the file: the value of the column `file` in the marks of its messages.
    """
    numbers = {(one.source, one.name): place for place, one in enumerate(streams)}
    first = 0
    for table in file(NEEDED):
        yield Part.of(table, stream_numbers(table, numbers), secret, number, first)
        first += table.num_rows


def messages_of(file: Batches, marks: pa.Table, unknown: Collection[Stream]) -> Iterator[pa.Table]:
    """Yield the messages in a file, including those on streams whose side is unknown.

    Parameters
    ----------
    marks
        The packets of the file that are messages, with the columns of `MARKS`.
    unknown
        The streams whose side is unknown.
    """
    if unknown:
        numbers = {stream: number for number, stream in enumerate(unknown)}
        marks = pa.concat_tables([marks, *_unknown_marks(file, numbers)])
    marks = marks.sort_by("row")
    rows = marks["row"].to_numpy()
    first = 0
    for table in file(MESSAGE_NEEDED) if len(rows) else ():
        start, stop = np.searchsorted(rows, [first, first + table.num_rows]).tolist()
        if stop > start:
            packets = table.take(pa.array(rows[start:stop] - first))
            yield message_table(packets, marks.slice(start, stop - start))
        first += table.num_rows


def _unknown_marks(file: Batches, numbers: Mapping[Stream, int]) -> Iterator[pa.Table]:
    """Yield marks of the PUBLISH packets on streams whose side is unknown."""
    first = 0
    for table in file(("source", "stream", "packet_type", "topic", "status")):
        unknown = stream_numbers(table, numbers) >= 0
        if unknown.any():
            is_publish = pc.fill_null(pc.equal(table["packet_type"], int(PUBLISH)), False)
            unknown &= is_publish.to_numpy(zero_copy_only=False)
            unknown &= pc.equal(table["status"], OK).to_numpy(zero_copy_only=False)
            yield unknown_marks(table["topic"], np.flatnonzero(unknown), first)
        first += table.num_rows
