"""Batches in exactly the shape that Spark was told."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from wireyard.errors import UsageError
from wireyard.streams.framer import OK
from wireyard.streams.source import Reading, open_source, reading

if TYPE_CHECKING:
    from wireyard.captures.stores.stream import StoreStream
    from wireyard.captures.stream import Stream

__all__ = ["BAD_ROW_COLUMNS", "MAX_CORRUPT_BYTES", "BadBytes", "PieceBytes", "Shape"]

BAD_ROW_COLUMNS = ("offset", "length", "status")
"""The columns that lead from a bad row to its bytes."""
MAX_CORRUPT_BYTES = 64 << 10
"""What is shown of a bad row. A stretch of garbage may be as long as the file, and Spark holds
rows in memory; offset and length lead to the rest."""
_SKIP_BYTES = 1 << 20


class BadBytes:
    """The bytes of bad rows, read a second time in the order of the rows."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._file: Reading | None = None
        self._position = 0
        self._seeks = False

    def read(self, start: int, length: int) -> bytes:
        """Return up to `MAX_CORRUPT_BYTES` of the row at offset `start` of the stream."""
        if self._file is None:
            _, self._file, size = open_source(self._path)
            self._seeks = size is not None  # what is compressed is only read forward
        with reading(self._path):
            if self._seeks:
                self._file.seek(start)
                self._position = start
            while self._position < start and self._take(min(start - self._position, _SKIP_BYTES)):
                pass
            data = b""
            wanted = min(length, MAX_CORRUPT_BYTES)
            while len(data) < wanted and (more := self._take(wanted - len(data))):
                data += more
        return data

    def close(self) -> None:
        """Close the file, if it was needed."""
        if self._file is not None:
            self._file.close()

    def _take(self, count: int) -> bytes:
        assert self._file is not None
        data = self._file.read(count)
        self._position += len(data)
        return data


class PieceBytes:
    """The bytes of bad rows of a stream that is there in pieces."""

    def __init__(self, stream: Stream | StoreStream) -> None:
        self._stream = stream
        self._pieces = stream.pieces

    def read(self, start: int, length: int) -> bytes:
        """Return up to `MAX_CORRUPT_BYTES` of the row at offset `start`; none of a gap."""
        at = int(np.searchsorted(self._pieces[:, 0], start, "right")) - 1
        stop = start + min(length, MAX_CORRUPT_BYTES)
        if at < 0 or stop > self._pieces[at, 1]:
            return b""
        return self._stream.read(start, stop).tobytes()


class Shape:
    """The columns of a table in Spark.

    Parameters
    ----------
    schema
        What Spark compares batches with.
    corrupt
        Its column for the bytes of bad rows, None if it has none.
    """

    def __init__(self, schema: pa.Schema, corrupt: str | None) -> None:
        self._schema = schema
        self._corrupt = corrupt
        self._filled = [field.name for field in schema if not field.nullable]

    def fit(
        self, batch: pa.RecordBatch, bad_bytes: BadBytes | PieceBytes | None = None
    ) -> pa.RecordBatch:
        """Return a batch of ours as one of the table.

        Parameters
        ----------
        bad_bytes
            Where the bytes of bad rows are; needed for a column of them.

        Raises
        ------
        UsageError
            A null in a column that was declared ``NOT NULL``: Spark would fail without a word.
        """
        if self._schema.equals(batch.schema):
            return batch
        arrays = [
            self._bad_rows(batch, bad_bytes, field.type)
            if bad_bytes is not None and field.name == self._corrupt
            else batch.column(field.name)
            for field in self._schema
        ]
        fitted = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        for name in self._filled:
            if fitted.column(name).null_count:
                raise UsageError(f"column '{name}' has nulls, so it cannot be NOT NULL")
        return fitted

    def _bad_rows(
        self, batch: pa.RecordBatch, bad_bytes: BadBytes | PieceBytes, kind: pa.DataType
    ) -> pa.Array:
        bad = pc.not_equal(batch.column("status"), OK)
        if not bad.true_count:
            return pa.nulls(batch.num_rows, kind)
        values: list[bytes | str | None] = [None] * batch.num_rows
        offsets, lengths = batch.column("offset"), batch.column("length")
        for row in pc.indices_nonzero(bad).to_pylist():
            data = bad_bytes.read(offsets[row].as_py(), lengths[row].as_py())
            values[row] = data.hex() if pa.types.is_string(kind) else data
        return pa.array(values, kind)
