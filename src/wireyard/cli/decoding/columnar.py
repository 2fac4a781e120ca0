"""Columnar output: CSV, Arrow and Parquet, in bounded memory and without secrets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing
from functools import partial
from pathlib import PurePath
from typing import IO, Protocol

import pyarrow as pa

from wireyard.cli.decoding.reading import OpenInput, read_parts
from wireyard.cli.decoding.selection import Selection
from wireyard.cli.output import open_output, to_terminal
from wireyard.errors import UnknownFormat, UsageError
from wireyard.streams.redaction import Redactor
from wireyard.text import count_text

_ROW_GROUP_BYTES = 16 << 20
"""Size of a row group: large enough for readers of single columns, small enough to be in memory
three times (as batches, as columns, encoded)."""
_MOST_HELD = 64
"""Tables of a row group that are held before they are combined."""
_WHOLE_BATCHES = 4
"""Batches that are held before they are copied; each holds the memory of a stream's window."""


def read_batches(reading: OpenInput) -> Iterator[pa.RecordBatch]:
    """Yield the selected rows and columns of an input.

    In mode ``failfast``, the first bad row raises a `DecodeError`.
    """
    selection = reading.selection
    redactor = Redactor(selection.format)
    names = [column.name for column in selection.columns]
    for _, batch in read_parts(reading, selection.column_plan):
        shown = redactor.redact(batch) if selection.redacts else batch
        if selection.opener is None:
            yield shown.select(names)
        else:
            yield selection.opener.extend(shown).select(selection.schema.names)


class Tables:
    """The output of one call: a table for each format, in a file of its own if there are several.

    Parameters
    ----------
    path
        The output file; None and ``-`` are standard output, which takes one table. For ``x.csv``
        and several formats the files are ``x.mqtt.csv`` and so on.
    kind
        ``csv``, ``arrow`` or ``parquet``.
    """

    def __init__(self, path: str | None, kind: str) -> None:
        self._path, self._kind = path, kind
        self._open: dict[str, tuple[pa.Schema, _Writer]] = {}
        self._rows: Counter[str] = Counter()

    def write(self, readings: Iterable[OpenInput]) -> dict[str, str]:
        """Write all rows; return how many, and of which format, by the name of the file.

        Raises
        ------
        DecodeError
            In mode ``failfast``: the first bad row.
        UnknownFormat
            There is no stream of a known format.
        UsageError
            There are several formats for one table, or the kind of table has no such view of
            payloads.
        """
        with ExitStack() as files:
            for reading in readings:
                if reading.selection.matches_nothing:  # still read it: a growing input must advance
                    for _ in read_batches(reading):
                        pass
                    continue
                name = reading.selection.format.name
                schema, writer = self._open.get(name) or self._add(name, reading.selection, files)
                if reading.selection.schema != schema:
                    raise UsageError(
                        f"{reading.streams[0].name}: one table takes captures or streams, not"
                        " both: their columns differ"
                    )
                for batch in read_batches(reading):
                    writer.write(batch)
                    self._rows[name] += batch.num_rows
            if not self._open:
                raise UnknownFormat(
                    "there is no stream of a known format, so no table; --format NAME makes one"
                    " without rows"
                )
        return {
            self._name_of(name): f"{count_text(self._rows[name], 'row')} of {name}"
            for name in self._open
        }

    def _add(self, name: str, selection: Selection, files: ExitStack) -> tuple[pa.Schema, _Writer]:
        """Open the table of a format."""
        _check_request(selection, self._kind)
        local = self._path not in (None, "-") and "://" not in str(self._path)
        if self._open and not local:
            formats = f"{next(iter(self._open))} and {name}"
            raise UsageError(
                f"one table has one format, here are {formats}; --format names one, and"
                f" -w FILE.{self._kind} writes a file for each"
            )
        is_binary, final = self._kind != "csv", partial(self._name_of, name)
        file = files.enter_context(open_output(self._path, binary=is_binary, final=final))
        schema = selection.schema
        writer = self._writer(schema, file, selection)
        files.enter_context(closing(writer))
        self._open[name] = schema, writer
        return schema, writer

    def _writer(self, schema: pa.Schema, file: IO[bytes], selection: Selection) -> _Writer:
        if self._kind == "arrow":
            return _ArrowWriter(schema, file)
        if self._kind == "parquet":
            return _ParquetWriter(schema, file)
        from wireyard.cli.decoding.csv import PAYLOAD_TEXTS, CsvWriter

        request = selection.request
        return CsvWriter(
            schema,
            file,
            selection.payload if selection.payload in PAYLOAD_TEXTS else "text",
            payload_bytes=request.payload_bytes,
            times=selection.times,
            spreadsheet=request.spreadsheet,
            terminal=to_terminal(self._path),
        )

    def _name_of(self, name: str) -> str:
        """Return the file name for a format: of its own if there are several formats."""
        path = PurePath(str(self._path))
        several = len(self._open) > 1
        return str(path.with_name(f"{path.stem}.{name}{path.suffix}") if several else self._path)


def _check_request(selection: Selection, kind: str) -> None:
    """Raise `UsageError` if a kind of table has no such view of payloads, or no nested packets."""
    choice = selection.payload
    if kind == "csv":
        from wireyard.cli.decoding.csv import PAYLOAD_TEXTS

        if choice not in (*PAYLOAD_TEXTS, "none"):
            raise UsageError(f"--payload {choice} is for table and jsonl; csv has text and bytes")
    if kind != "csv" and selection.shown_body is not None:
        raise UsageError(f"--payload {choice} is for text; {kind} holds bytes")
    if selection.request.nested:
        raise UsageError("--nested is for table and jsonl; a table holds packets of one format")


class _Writer(Protocol):
    """Writer of batches of one schema."""

    def write(self, batch: pa.RecordBatch) -> None: ...

    def close(self) -> None: ...


class _ArrowWriter:
    """Writer of an Arrow IPC stream."""

    def __init__(self, schema: pa.Schema, file: IO[bytes]) -> None:
        self._writer = pa.ipc.new_stream(pa.PythonFile(file, mode="w"), schema)

    def write(self, batch: pa.RecordBatch) -> None:
        self._writer.write_batch(batch)

    def close(self) -> None:
        self._writer.close()


class _ParquetWriter:
    """Writer of a Parquet file with row groups of `_ROW_GROUP_BYTES` in memory."""

    def __init__(self, schema: pa.Schema, file: IO[bytes]) -> None:
        from pyarrow import parquet

        sink = pa.PythonFile(file, mode="w")
        self._schema = schema
        delta, others = _encodings(schema)
        bodies = {field.name for field in schema if pa.types.is_binary(field.type)}
        self._writer = parquet.ParquetWriter(
            sink,
            schema,
            compression="zstd",
            # A body can be as long as the largest packet: a dictionary would hold it once more, and
            # statistics three times.
            use_dictionary=[name for name in others if name not in bodies],
            write_statistics=[name for name in (*delta, *others) if name not in bodies],
            column_encoding=dict.fromkeys(delta, "DELTA_BINARY_PACKED"),
        )
        self._batches: list[pa.RecordBatch] = []
        self._held: list[pa.Table] = []
        self._held_bytes = 0

    def write(self, batch: pa.RecordBatch) -> None:
        self._batches.append(batch)
        if batch.nbytes * _WHOLE_BATCHES >= _ROW_GROUP_BYTES:
            # A few of these fill a row group, so they are not copied.
            last = self._batches.pop()
            self._copy()
            self._hold(pa.Table.from_batches([last], self._schema))
        elif len(self._batches) == _WHOLE_BATCHES:
            self._copy()
        if self._held_bytes >= _ROW_GROUP_BYTES:
            self._write_group()

    def close(self) -> None:
        self._copy()
        self._write_group()
        self._writer.close()

    def _copy(self) -> None:
        """Copy the batches, to free the memory that their columns share with unselected ones."""
        if not self._batches:
            return
        table = pa.Table.from_batches(self._batches, self._schema).combine_chunks()
        self._batches = []
        self._hold(table)

    def _hold(self, table: pa.Table) -> None:
        self._held.append(table)
        self._held_bytes += table.nbytes
        if len(self._held) == _MOST_HELD:  # a table of few rows has more memory than they need
            self._held = [pa.concat_tables(self._held).combine_chunks()]

    def _write_group(self) -> None:
        if self._held_bytes:
            table = pa.concat_tables(self._held)
            self._writer.write_table(table, row_group_size=max(table.num_rows, 1))
        self._held, self._held_bytes = [], 0


def _encodings(schema: pa.Schema) -> tuple[list[str], list[str]]:
    """Return the columns of 64-bit integers, and the Parquet paths of all others.

    Offsets, frames and times ascend, so their differences take a third less space than a dictionary
    and half the time.
    """
    from pyarrow import parquet

    sink = pa.BufferOutputStream()
    parquet.ParquetWriter(sink, schema).close()
    columns = parquet.ParquetFile(pa.BufferReader(sink.getvalue())).schema
    paths = [columns.column(place).path for place in range(len(columns.names))]
    delta = [field.name for field in schema if pa.types.is_int64(field.type)]
    return delta, [path for path in paths if path not in delta]
