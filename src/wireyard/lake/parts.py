"""Parquet files of the lake, written by tasks with measured settings, and read by columns.

The measurements, on packets with random bodies:

- A dictionary costs a quarter of the time if values do not repeat, and saves as much if they do. So
  a column gets one if the values of the first rows repeat.
- Snappy shrinks headers and properties to a third, and costs nothing on incompressible bodies;
  zstandard takes 1.7 times as long for 7 % less.
- Integers and times are stored as differences: files of packets are a quarter smaller, those of
  deliveries almost half, and neither takes longer to write or to read.
- All columns except those of bytes have statistics: those of a body would copy it three times.
"""

from __future__ import annotations

import stat
import zlib
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from wireyard.lake.commits import Seal, write_seal
from wireyard.lake.staging import writing
from wireyard.streams.source import filesystem

_GROUP_BYTES = 32 << 20
"""Size of a row group in memory. A task holds it as batches and, column by column, encoded."""
_BUFFER_BYTES: Final = 1 << 18
"""Write buffer, because the page of a column may have only a few bytes."""
_ROWS_TOGETHER: Final = 1 << 13
"""Rows of a column that are encoded at once, and the least rows of a page. For dictionary columns
each call scans the whole dictionary."""
_FOOTER_PREFIX: Final = "wireyard."
_SAMPLE_ROWS = 1024
_SAMPLE_BYTES: Final = 16 << 20
"""A column with more in the sample is of long values, which rarely repeat."""
_REPEATS = 4


class PartFile:
    """Writer of a Parquet file, which is created with the first rows and complete once closed.

    Only the owner of a local file may read it if it is `private`. Any method raises a `LakeError`
    if the file cannot be written.
    """

    def __init__(self, path: str, schema: pa.Schema, *, private: bool = False) -> None:
        self._path, self._private = path, private
        self._schema = schema
        self._held: list[pa.RecordBatch] = []
        self._held_bytes = 0
        self._rows = 0
        self._sink: _Sink | None = None
        self._stream: pa.NativeFile | None = None
        self._writer: pq.ParquetWriter | None = None
        self._footer: dict[str, str] = {}

    def write(self, batch: pa.RecordBatch) -> None:
        """Append rows."""
        self._held.append(batch)
        self._held_bytes += batch.nbytes
        if self._held_bytes >= _GROUP_BYTES:
            self._flush()

    def put_in_footer(self, name: str, table: pa.Table) -> None:
        """Store a small table in the file's metadata, for `read_footer_table`.

        Files that are merged or copied from this one do not have it.
        """
        sink = pa.BufferOutputStream()
        options = pa.ipc.IpcWriteOptions(compression="zstd")
        with pa.ipc.new_stream(sink, table.schema, options=options) as stream:
            stream.write_table(table)
        self._footer[_FOOTER_PREFIX + name] = b64encode(sink.getvalue()).decode()

    def close(self) -> Seal:
        """Finish the file, and write its seal beside it; return the seal."""
        self._flush()
        seal = Seal(self._rows, 0, 0)
        with writing(self._path):
            if self._writer is not None and self._stream is not None and self._sink is not None:
                self._writer.add_key_value_metadata(self._footer)
                self._writer.close()
                self._stream.close()
                seal = Seal(self._rows, self._sink.size, self._sink.crc32)
                write_seal(self._path, seal)
        return seal

    def _flush(self) -> None:
        if not self._held:
            return
        table = pa.Table.from_batches(self._held, self._schema)
        self._held, self._held_bytes = [], 0
        with writing(self._path):
            if self._writer is None:
                settings = _settings(table.slice(0, _SAMPLE_ROWS))
                self._sink = _Sink(self._path, self._private)
                self._stream = pa.BufferedOutputStream(
                    pa.PythonFile(self._sink, "w"), _BUFFER_BYTES
                )
                self._writer = pq.ParquetWriter(self._stream, self._schema, **settings)
            self._rows += table.num_rows
            self._writer.write_table(table, row_group_size=max(table.num_rows, 1))


class _Sink:
    """A sequentially written file, with a running checksum."""

    def __init__(self, path: str, private: bool) -> None:
        system, inner = filesystem(path)
        if private and isinstance(system, fs.LocalFileSystem):
            Path(inner).touch(stat.S_IRUSR | stat.S_IWUSR)
        self._file = system.open_output_stream(inner)
        self.crc32 = self.size = 0
        self.closed = False

    def write(self, block: bytes) -> int:
        """Append bytes."""
        self.crc32 = zlib.crc32(block, self.crc32)
        self.size += len(block)
        self._file.write(block)
        return len(block)

    def flush(self) -> None:
        """Do nothing: the file counts only once it is complete."""

    def close(self) -> None:
        """Finish the file."""
        if not self.closed:
            self.closed = True
            self._file.close()


def _settings(sample: pa.Table) -> dict[str, Any]:
    """Choose the writer's settings for each column by a sample of its rows."""
    rows = pa.array(np.arange(sample.num_rows))
    repeating, ordered = [], []
    for name, column in zip(sample.schema.names, sample.columns, strict=True):
        taken = rows if column.nbytes < _SAMPLE_BYTES else rows[:0]
        # Taken, not sliced: what is inside a sliced list is that of the whole list.
        for path, values in _leaves(name, column.take(taken).combine_chunks()):
            if not pa.types.is_binary(values.type):
                ordered.append(path)
            if pa.types.is_integer(values.type) or pa.types.is_timestamp(values.type):
                continue
            if 0 < _REPEATS * len(values.unique()) <= len(values):
                repeating.append(path)
    return {
        "compression": "snappy",
        # Without it, readers get plain text for our dictionary columns.
        "store_schema": not any(pa.types.is_dictionary(kind) for kind in sample.schema.types),
        "use_dictionary": repeating,
        "column_encoding": {
            field.name: "DELTA_BINARY_PACKED"
            for field in sample.schema
            if pa.types.is_int64(field.type) or pa.types.is_timestamp(field.type)
        },
        # Without those of bodies: nobody asks for their order, and each is copied three times.
        "write_statistics": ordered,
        "write_batch_size": _ROWS_TOGETHER,
    }


def _leaves(path: str, values: pa.Array) -> Iterator[tuple[str, pa.Array]]:
    """Yield the leaf columns that Parquet stores for an Arrow column, with their Parquet paths."""
    if pa.types.is_map(values.type):
        yield from _leaves(f"{path}.key_value.key", values.keys)
        yield from _leaves(f"{path}.key_value.value", values.items)
    elif pa.types.is_list(values.type):
        yield from _leaves(f"{path}.list.element", values.values)
    elif pa.types.is_struct(values.type):
        for field, inner in zip(values.type, values.flatten(), strict=True):
            yield from _leaves(f"{path}.{field.name}", inner)
    else:
        yield path, values


def write_table(
    folder: str, rows: pa.Table, prefix: str = "part-", *, private: bool = False
) -> str:
    """Write a table as one file, even if it has no rows; return the file's name."""
    return write_sealed(folder, rows, prefix, private=private)[0]


def write_sealed(
    folder: str, rows: pa.Table, prefix: str = "part-", *, private: bool = False
) -> tuple[str, Seal]:
    """Write a table as `write_table` does; return the file's seal too."""
    name = f"{prefix}{uuid4().hex}.parquet"
    file = PartFile(f"{folder}/{name}", rows.schema, private=private)
    for batch in rows.to_batches() or [pa.RecordBatch.from_pylist([], rows.schema)]:
        file.write(batch)
    return name, file.close()


# --- reading --------------------------------------------------------------------------------

_BATCH_ROWS: Final = 1 << 15
_REPEATING: Final = frozenset(
    {
        "source", "stream", "format", "status", "src_addr", "dst_addr", "topic", "destination",
        "packet_type_name", "source_ip_text",
    }
)  # fmt: skip
"""Text columns that are read as dictionary columns."""
_FETCHED_BYTES: Final = 64 << 20
"""Up to so many bytes of an object in a store are fetched at once: else each column of each row
group is a request."""


def read_batches(path: str, columns: Iterable[str]) -> Iterator[pa.Table]:
    """Yield the rows of a file, with those of the columns that it has; at most a row group each."""
    wanted = list(columns)
    system, inner = filesystem(path)
    with system.open_input_file(inner) as opened:
        source: pa.NativeFile = opened
        if not isinstance(system, fs.LocalFileSystem) and opened.size() <= _FETCHED_BYTES:
            source = pa.BufferReader(opened.read())
        there = set(pq.ParquetFile(source).schema_arrow.names)
        chosen = [name for name in wanted if name in there]
        texts = [name for name in chosen if name in _REPEATING]
        file = pq.ParquetFile(source, read_dictionary=texts)
        for batch in file.iter_batches(_BATCH_ROWS, columns=chosen):
            yield pa.Table.from_batches([batch])


def read_footer_table(path: str, name: str, schema: pa.Schema) -> pa.Table | None:
    """Return the table of a name and a schema in a file's metadata; None if there is none."""
    system, inner = filesystem(path)
    with system.open_input_file(inner) as opened:
        metadata = pq.read_metadata(opened).metadata or {}
    encoded = metadata.get(f"{_FOOTER_PREFIX}{name}".encode())
    if encoded is None:
        return None
    try:
        table = pa.ipc.open_stream(b64decode(encoded)).read_all()
        table.validate(full=True)
    except (ValueError, OSError):  # of others, or damaged
        return None
    return table if table.schema.equals(schema) else None


def measure(path: str) -> tuple[int, int]:
    """Return the number of rows in a file, and their approximate size in memory, in bytes."""
    system, inner = filesystem(path)
    with system.open_input_file(inner) as opened:
        metadata = pq.ParquetFile(opened).metadata
        groups = (metadata.row_group(number) for number in range(metadata.num_row_groups))
        return metadata.num_rows, sum(group.total_byte_size for group in groups)
