"""Reading inputs: each source is read once, and its rows are written to the spool.

The rows are those of a lake: without passwords, with every byte of every stream in one row, and
with a balanced ledger.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from functools import cached_property
from itertools import chain, groupby
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from wireyard.answers.spool import Spool
from wireyard.captures.bundled import BundledStreams
from wireyard.captures.directed import CapturedStream
from wireyard.captures.inputs import Input, Readable, open_captures, open_input
from wireyard.captures.quarantine import BadBytes, BytesOfRows, PieceBytes, bad_rows, quarantined
from wireyard.captures.signatures import is_capture
from wireyard.captures.stores.read import is_store, read_store
from wireyard.captures.stores.rows import SCHEMA as STORE_RECORDS
from wireyard.captures.stores.rows import record_rows
from wireyard.captures.stores.stream import StoreStream
from wireyard.captures.stream_table import (
    CAPTURED_FACTS,
    LEDGER,
    LEDGER_TABLE,
    STREAMS,
    describe_stream,
    file_rows,
)
from wireyard.errors import SourceError, UsageError
from wireyard.formats import get_format
from wireyard.formats.base import Row
from wireyard.schema import as_array, repeat_texts
from wireyard.streams.blocks import Ints
from wireyard.streams.framer import GAP
from wireyard.streams.plan import make_plan
from wireyard.streams.redaction import Redactor
from wireyard.streams.scan import scan_streams, thread_count
from wireyard.streams.source import open_source, reading, utf8_names

__all__ = ["Reading", "read_inputs"]

_STREAM: Final = ["source", "stream"]
_DESCRIPTION: Final = pa.schema(
    [STREAMS.field(name) for name in (*_STREAM, "format", *CAPTURED_FACTS)]
)
_COUNTS: Final = pa.schema(
    [
        *(STREAMS.field(name) for name in (*_STREAM, "bytes_gap")),
        *(LEDGER_TABLE.field(name) for name in LEDGER),
    ]
)

_SNIFFED_BYTES: Final = 1 << 12
_HIDDEN: Final = (".", "_")


class Reading:
    """The streams and files of inputs, and notes.

    Attributes
    ----------
    described
        The columns of streams that do not follow from their rows: tables of `_DESCRIPTION`.
    counts
        Bytes and packets of streams: tables of `_COUNTS`, with several rows for a stream.
    files
        Rows of the table `FILES`.
    notes
        Notes for the user: damage, and bytes that are in no row.
    """

    def __init__(self) -> None:
        self.described: list[pa.Table] = [_DESCRIPTION.empty_table()]
        self.counts: list[pa.Table] = [_COUNTS.empty_table()]
        self.files: list[Row] = []
        self.notes: list[str] = []
        self.lost = False

    @cached_property
    def streams(self) -> pa.Table:
        """The columns `_DESCRIPTION` and `_COUNTS` of each stream, sorted by source and name."""
        parts = pa.concat_tables([*self.described, *self.counts], promote_options="default")
        self.described.clear()
        self.counts.clear()
        sums = [name for name in _COUNTS.names if name not in _STREAM]
        facts = [name for name in _DESCRIPTION.names if name not in _STREAM]
        wanted = [*((name, "first") for name in facts), *((name, "sum") for name in sums)]
        joined = parts.group_by(_STREAM, use_threads=False).aggregate(wanted)
        columns = {name: joined[name] for name in _STREAM}
        columns |= {name: joined[f"{name}_first"] for name in facts}
        columns |= {name: joined[f"{name}_sum"].fill_null(0) for name in sums}
        return pa.table(columns).sort_by([(name, "ascending") for name in _STREAM])


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
        with utf8_names(source):
            source.encode()  # raises if the name is not UTF-8, as texts in tables have to be
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
    if not is_store(source):
        result.files += file_rows(opened.name, opened.spans)
    for _, same_format in groupby(sorted(opened.readables, key=_format_name), key=_format_name):
        _read_streams(list(same_format), opened, source, spool, result)
    result.described += _describe(opened.readables)
    if all(isinstance(each.opened, StoreStream) for each in opened.readables):
        _read_records(source, spool, result)
    notes = (opened.damage, *opened.notes, *opened.closed, opened.unread)
    result.notes += [f"{opened.name}: {note}" for note in notes if note]
    result.lost = result.lost or bool(opened.damage or opened.unread)


def _format_name(readable: Readable) -> str:
    return readable.format.name


def _read_streams(
    readables: Sequence[Readable],
    opened: Input,
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
        bad = bad_rows(shown)
        if len(bad):
            rows = _quarantined(shown, bad, set(secret.tolist()), opened)
            spool.write("quarantine", rows, source)


def _count(batch: pa.RecordBatch, result: Reading) -> None:
    """Count the rows of a batch in the ledgers of their streams."""
    rows = pa.table({name: batch[name] for name in (*_STREAM, "status", "length")})
    counted = rows.group_by([*_STREAM, "status"], use_threads=False).aggregate(
        [("length", "sum"), ("length", "count")]
    )
    status = counted["status"].cast(pa.string())
    columns = {name: counted[name].cast(pa.string()) for name in _STREAM}
    for name in (*LEDGER, "bytes_gap"):
        unit, _, of_status = name.partition("_")
        values = counted["length_sum" if unit == "bytes" else "length_count"]
        is_counted = (
            pc.not_equal(status, GAP) if of_status == "read" else pc.equal(status, of_status)
        )
        columns[name] = pc.if_else(is_counted, values, 0)
    result.counts.append(pa.table(columns).select(_COUNTS.names).cast(_COUNTS))


def _quarantined(
    batch: pa.RecordBatch, bad: Ints, secret: set[int], opened: Input
) -> pa.RecordBatch:
    """Return the rows of the quarantine table for a batch; parameters as for `quarantined`."""
    names = dict(zip(bad.tolist(), batch["stream"].take(as_array(bad)).to_pylist(), strict=True))
    bytes_of: dict[str, BytesOfRows] = {}
    with ExitStack() as files:
        for _, stream in opened.streams_named(set(names.values())):
            if isinstance(stream, CapturedStream | StoreStream):
                content = stream.captured if isinstance(stream, CapturedStream) else stream
                bytes_of[stream.stream] = PieceBytes(content)
            else:
                bytes_of[stream.stream] = files.enter_context(closing(BadBytes(stream.name)))
        return quarantined(batch, bad, secret, lambda row: bytes_of[names[row]])


def _describe(readables: Iterable[Readable]) -> Iterator[pa.Table]:
    """Yield the columns `_DESCRIPTION` of streams."""
    rows = []
    for format, opened in readables:
        if isinstance(opened, BundledStreams):
            columns = opened.describe()
            for name, text in (("source", opened.name), ("format", format.label)):
                columns = columns.append_column(name, repeat_texts([text], [columns.num_rows]))
            yield columns.select(_DESCRIPTION.names).cast(_DESCRIPTION)
            continue
        row = {"source": opened.name, "stream": opened.stream, "format": format.label}
        if isinstance(opened, CapturedStream):
            row |= describe_stream(opened.captured)
        rows.append(row)
    yield pa.Table.from_pylist(rows, _DESCRIPTION)


def _read_records(source: str, spool: Spool, result: Reading) -> None:
    """Read the records of a source, if it is a store."""
    if not is_store(source):
        return
    for file in read_store(source):
        rows: list[Row] = list(record_rows(file))
        if rows:
            spool.write("store_records", pa.Table.from_pylist(rows, STORE_RECORDS), source)
        if file.stream is None:  # it has no packets
            counts = {"source": file.source, "stream": file.name, "bytes_gap": len(file.data)}
            result.counts.append(pa.Table.from_pylist([counts], _COUNTS))
