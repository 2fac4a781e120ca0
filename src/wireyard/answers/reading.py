"""Reading inputs: each source is read once, and its rows are written to the spool.

The rows are those of a lake: without passwords, with every byte of every stream in one row, and
with a balanced ledger.
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
    """The streams and files of some inputs, and notes.

    Attributes
    ----------
    streams
        By source and name, columns of `STREAMS` and `LEDGER` for each stream.
    files
        Rows of the table `FILES`.
    notes
        Notes for the user: damage, and bytes that are in no row.
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
        Paths or URLs of captures, streams and stores; a folder that is no store stands for all
        files in it, nested folders included.
    format, decode_as, keylog
        Those of `open_input`.
    rotated
        Whether all captures in a folder are one rotated capture, named like the folder.

    Raises
    ------
    SourceError
        An input cannot be read.
    UsageError
        A file named by itself begins like no format; in a folder it is left out, with a note.
    """
    result = Reading()
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
            result.notes.append(f"left out: {error}")
            continue
        with closing(opened):
            _read_input(opened, source, spool, result)
    spool.close()
    return result


def _captures(sources: Iterable[str], *, rotated: bool) -> Iterator[tuple[str, list[str]]]:
    """Yield sources with their files: one each, or all files of a rotated capture."""
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
    """Yield the sources at a path."""
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


def _read_input(opened: Input, source: str, spool: Spool, result: Reading) -> None:
    notes = (opened.damage, *opened.notes, *opened.closed, opened.unread)
    result.notes += [f"{opened.name}: {note}" for note in notes if note]
    if not is_store(source):
        result.files += file_rows(opened.name, opened.spans)
    streams = {stream.opened.stream: stream for stream in opened.streams}
    for _, same_format in groupby(sorted(opened.readables, key=_format_name), key=_format_name):
        _read_streams(list(same_format), opened, streams, source, spool, result)
    for name, stream in streams.items():
        _describe(stream, result.streams.setdefault((stream.opened.name, name), _no_counts()))
    if any(isinstance(each.opened, StoreStream) for each in streams.values()) or not streams:
        _read_records(source, spool, result)


def _format_name(readable: Readable) -> str:
    return readable.format.name


def _read_streams(
    readables: Sequence[Readable],
    opened: Input,
    streams: dict[str, Readable],
    source: str,
    spool: Spool,
    result: Reading,
) -> None:
    """Read the streams of one format, in any dialect, of an input."""
    plans = {each.format.label: make_plan(each.format, captured=True) for each in readables}
    format = readables[0].format
    table, redactor = f"packets_{format.name}", Redactor(format)
    threads = thread_count(format, captured=opened.captured)
    wanted = ((each.opened, plans[each.format.label]) for each in readables)
    for batch in scan_streams(wanted, threads):
        shown, secret = redactor.redact(batch)
        spool.write(table, shown, source)
        _count(shown, result)
        for rows in _bad_rows(shown, set(secret.tolist()), streams):
            spool.write("quarantine", rows, source)


def _no_counts() -> dict[str, Any]:
    return {**dict.fromkeys(LEDGER, 0), "bytes_gap": 0}


def _count(batch: pa.RecordBatch, result: Reading) -> None:
    """Add the rows of a batch to the ledger of their streams."""
    rows = pa.table({name: batch[name] for name in ("source", "stream", "status", "length")})
    counted = rows.group_by(["source", "stream", "status"], use_threads=False).aggregate(
        [("length", "sum"), ("length", "count")]
    )
    for row in counted.to_pylist():
        counts = result.streams.setdefault((row["source"], row["stream"]), _no_counts())
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


def _describe(stream: Readable, row: dict[str, Any]) -> None:
    """Add the format of a stream, and the columns of a captured one."""
    format: Format = stream.format
    row["format"] = format.label
    if isinstance(stream.opened, CapturedStream):
        row |= describe_stream(stream.opened.captured)


def _read_records(source: str, spool: Spool, result: Reading) -> None:
    """Read the records of a source, if it is a store."""
    if not is_store(source):
        return
    for file in read_store(source):
        rows: list[Row] = list(record_rows(file))
        if rows:
            spool.write("store_records", pa.Table.from_pylist(rows, STORE_RECORDS), source)
        if file.stream is None:  # no byte of it is a packet's
            counts = {**_no_counts(), "bytes_gap": len(file.data)}
            result.streams[file.source, file.name] = counts
