"""Inputs to packets: each source is opened and read once, and its rows go to the spool.

The rows are those that a lake has: no passwords, every byte of every stream in one row, and the
ledger adds up.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from itertools import chain, groupby
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from wireyard.answers.spool import Spool
from wireyard.captures.directed import CapturedStream
from wireyard.captures.inputs import Input, Readable, open_captures, open_input
from wireyard.captures.magic import is_capture
from wireyard.captures.quarantine import BadBytes, PieceBytes, quarantined
from wireyard.captures.stores.read import is_store, read_store
from wireyard.captures.stores.rows import SCHEMA as STORE_RECORDS
from wireyard.captures.stores.rows import record_rows
from wireyard.captures.stores.stream import StoreStream
from wireyard.captures.stream_table import LEDGER, describe_stream, file_rows
from wireyard.errors import SourceError, UsageError
from wireyard.formats import Format, get_format
from wireyard.formats.base import Row
from wireyard.streams.framer import GAP, OK
from wireyard.streams.plan import make_plan
from wireyard.streams.redaction import Redactor
from wireyard.streams.scan import scan_streams, thread_count
from wireyard.streams.source import open_source, reading

__all__ = ["Reading", "read_inputs"]

_SNIFFED_BYTES: Final = 1 << 12
_HIDDEN: Final = (".", "_")


class Reading:
    """What was read of some inputs.

    Attributes
    ----------
    streams
        By source and name, the columns of `STREAMS` and of `LEDGER` that are known of a stream.
    files
        Rows of the table `FILES`.
    notes
        What is to be said about inputs: damage, and bytes that are in no row.
    """

    def __init__(self) -> None:
        self.streams: dict[tuple[str, str], dict[str, Any]] = {}
        self.files: list[Row] = []
        self.notes: list[str] = []


def read_inputs(
    inputs: Sequence[str],
    spool: Spool,
    *,
    format: str | None,
    decode_as: Sequence[str],
    keylog: Sequence[str],
    rotated: bool = False,
) -> Reading:
    """Read inputs into the tables `packets_*`, `quarantine` and `store_records` of a spool.

    Parameters
    ----------
    inputs
        Paths or URLs of captures, streams and stores; of a folder that is no store all files in it,
        folders in folders too.
    format, decode_as, keylog
        Those of `open_input`.
    rotated
        Whether all captures in a folder are one, that went on in a new file again and again. It
        goes by the name of the folder.

    Raises
    ------
    SourceError
        An input cannot be read.
    UsageError
        A file named by itself begins like no format; in a folder it is left out, with a note.
    """
    found = Reading()
    named = get_format(format) if format else None
    sources = dict.fromkeys(chain.from_iterable(map(_sources, inputs)))
    for source, files in _captures(sources, rotated=rotated):
        with reading(source):
            source.encode()  # as tables have it
        try:
            if files == [source]:
                opened = open_input(source, named, decode_as, keylog)
            else:
                opened = open_captures(files, named, decode_as, name=source, keylog=keylog)
        except UsageError as error:
            if source in inputs:
                raise
            found.notes.append(f"left out: {error}")
            continue
        with closing(opened):
            _read_input(opened, source, spool, found)
    spool.close()
    return found


def _captures(sources: Iterable[str], *, rotated: bool) -> Iterator[tuple[str, list[str]]]:
    """Yield sources and their files: one each, or of a rotated capture all in its folder."""
    folders: dict[str, list[str]] = {}
    for source in sources:
        if rotated and not os.path.isdir(source) and _is_capture(source):
            folders.setdefault(source.rpartition("/")[0] or ".", []).append(source)
        else:
            yield source, [source]
    yield from folders.items()


def _is_capture(path: str) -> bool:
    _, file, _ = open_source(path)
    with file, reading(path):
        return is_capture(file.peek(_SNIFFED_BYTES))


def _sources(path: str) -> Iterator[str]:
    """Yield the sources that a path stands for."""
    if not os.path.isdir(path) or is_store(path):
        yield path
        return
    files = []
    for folder, folders, names in os.walk(path):
        folders[:] = sorted(name for name in folders if not name.startswith(_HIDDEN))
        if is_store(folder):
            folders.clear()
            files.append(folder)
        else:
            shown = sorted(name for name in names if not name.startswith(_HIDDEN))
            files += [os.path.join(folder, name) for name in shown]
    if not files:
        raise SourceError(f"{path}: no file to read there")
    yield from files


def _read_input(opened: Input, source: str, spool: Spool, found: Reading) -> None:
    said = (opened.damage, *opened.notes, *opened.closed, opened.unread)
    found.notes += [f"{opened.name}: {note}" for note in said if note]
    if not is_store(source):
        found.files += file_rows(opened.name, opened.spans)
    streams = {one.opened.stream: one for one in opened.streams}
    for _, some in groupby(sorted(opened.readables, key=_format_name), key=_format_name):
        _read_streams(list(some), opened, streams, source, spool, found)
    for name, one in streams.items():
        _describe(one, found.streams.setdefault((one.opened.name, name), _nothing()))
    if any(isinstance(one.opened, StoreStream) for one in streams.values()) or not streams:
        _read_records(source, spool, found)


def _format_name(one: Readable) -> str:
    return one.format.name


def _read_streams(
    readables: Sequence[Readable],
    opened: Input,
    streams: dict[str, Readable],
    source: str,
    spool: Spool,
    found: Reading,
) -> None:
    """Read streams of one format, of any dialects, that an input has."""
    plans = {one.format.label: make_plan(one.format, captured=True) for one in readables}
    format = readables[0].format
    table, redactor = f"packets_{format.name}", Redactor(format)
    threads = thread_count(format, captured=opened.captured)
    wanted = ((one.opened, plans[one.format.label]) for one in readables)
    for batch in scan_streams(wanted, threads):
        shown, secret = redactor.redact(batch)
        spool.write(table, shown, source)
        _count(shown, found)
        for rows in _bad_rows(shown, set(secret.tolist()), streams):
            spool.write("quarantine", rows, source)


def _nothing() -> dict[str, Any]:
    return {**dict.fromkeys(LEDGER, 0), "bytes_gap": 0}


def _count(batch: pa.RecordBatch, found: Reading) -> None:
    """Add the rows of a batch to the ledger of their streams."""
    rows = pa.table({name: batch[name] for name in ("source", "stream", "status", "length")})
    counted = rows.group_by(["source", "stream", "status"], use_threads=False).aggregate(
        [("length", "sum"), ("length", "count")]
    )
    for row in counted.to_pylist():
        counts = found.streams.setdefault((row["source"], row["stream"]), _nothing())
        counts[f"bytes_{row['status']}"] += row["length_sum"]
        if row["status"] != GAP:
            counts["bytes_read"] += row["length_sum"]
        if f"packets_{row['status']}" in counts:
            counts[f"packets_{row['status']}"] += row["length_count"]


def _bad_rows(
    batch: pa.RecordBatch, secret: set[int], streams: dict[str, Readable]
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a batch that are no packets, stream by stream."""
    is_bad = pc.and_(pc.not_equal(batch["status"], OK), batch["error"].is_valid())
    bad = np.flatnonzero(is_bad.to_numpy(zero_copy_only=False))
    if not len(bad):
        return
    of_stream: defaultdict[str, list[int]] = defaultdict(list)
    for row, name in zip(
        bad.tolist(), batch["stream"].take(pa.array(bad)).to_pylist(), strict=True
    ):
        of_stream[name].append(row)
    for name, rows in of_stream.items():
        opened = streams[name].opened
        if isinstance(opened, CapturedStream | StoreStream):
            content = opened.captured if isinstance(opened, CapturedStream) else opened
            yield quarantined(batch, np.array(rows), secret, PieceBytes(content))
        else:
            with closing(BadBytes(opened.name)) as data:
                yield quarantined(batch, np.array(rows), secret, data)


def _describe(one: Readable, row: dict[str, Any]) -> None:
    """Add what is known of a stream apart from its rows."""
    format: Format = one.format
    row["format"] = format.label
    if isinstance(one.opened, CapturedStream):
        row |= describe_stream(one.opened.captured)


def _read_records(source: str, spool: Spool, found: Reading) -> None:
    """Read the records of a store; there are none in what is no store."""
    if not is_store(source):
        return
    for file in read_store(source):
        rows: list[Row] = list(record_rows(file))
        if rows:
            spool.write("store_records", pa.Table.from_pylist(rows, STORE_RECORDS), source)
        if file.stream is None:  # no byte of it is a packet's
            counts = {**_nothing(), "bytes_gap": len(file.data)}
            found.streams[file.source, file.name] = counts
