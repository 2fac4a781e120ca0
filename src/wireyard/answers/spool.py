"""The spool: tables in a temporary folder, as Parquet files that are written by row group.

At most one row group of each table is in memory, however large the tables are.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from wireyard.errors import WireError

__all__ = ["Spool", "SpoolError"]

_GROUP_BYTES: Final = 16 << 20
_BATCH_ROWS: Final = 1 << 16
_TEXTS: Final = ("source", "stream", "topic", "destination")
"""Text columns that are read as dictionary columns."""


class SpoolError(WireError):
    """The temporary folder cannot be written."""


class _File:
    """Writer of one file of a table."""

    def __init__(self, path: str, schema: pa.Schema) -> None:
        self.path = path
        self.schema = schema
        # Without Arrow's schema, so that dictionary columns are read as plain text.
        self._writer = pq.ParquetWriter(path, schema, compression="lz4", store_schema=False)
        self._held: list[pa.RecordBatch] = []
        self._held_bytes = 0

    def write(self, batch: pa.RecordBatch) -> None:
        self._held.append(batch)
        self._held_bytes += batch.nbytes
        if self._held_bytes >= _GROUP_BYTES:
            self._flush()

    def close(self) -> None:
        self._flush()
        self._writer.close()

    def _flush(self) -> None:
        if self._held:
            table = pa.Table.from_batches(self._held, self.schema)
            self._held, self._held_bytes = [], 0
            self._writer.write_table(table, row_group_size=max(table.num_rows, 1))


class Spool:
    """Tables in a folder, each of several files.

    Raises
    ------
    SpoolError
        From `write` and `close`: the folder cannot be written.
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self._files: dict[tuple[str, str], _File] = {}
        self._open: list[tuple[str, str]] = []

    def write(self, table: str, rows: pa.Table | pa.RecordBatch, part: str = "") -> None:
        """Append rows to a part of a table; each part is a file."""
        try:
            file = self._files.get((table, part))
            if file is None:
                path = os.path.join(self.folder, f"{table}-{len(self._files)}.parquet")
                file = self._files[table, part] = _File(path, rows.schema)
                self._open.append((table, part))
            for batch in rows.to_batches() if isinstance(rows, pa.Table) else (rows,):
                file.write(batch)
        except OSError as error:
            raise self._failure(error) from None

    def close(self) -> None:
        """Finish the open files."""
        try:
            while self._open:
                self._files[self._open.pop()].close()
        except OSError as error:
            raise self._failure(error) from None

    def _failure(self, error: OSError) -> SpoolError:
        why = os.strerror(error.errno) if error.errno else error
        return SpoolError(f"{self.folder}: cannot be written ({why}); TMPDIR names another folder")

    def paths(self, table: str) -> list[str]:
        """Return the files of a table."""
        return [file.path for (name, _), file in self._files.items() if name == table]

    def parts(self, table: str) -> list[str]:
        """Return the parts of a table that have rows."""
        return [part for name, part in self._files if name == table]

    def batches(self, table: str, part: str, columns: Sequence[str]) -> Iterator[pa.Table]:
        """Yield columns of a finished part in batches, text as dictionary columns."""
        written = self._files[table, part]
        names = [name for name in columns if name in written.schema.names]
        texts = [name for name in _TEXTS if name in names]
        with pq.ParquetFile(written.path, read_dictionary=texts) as file:
            for batch in file.iter_batches(_BATCH_ROWS, columns=names):
                yield pa.Table.from_batches([batch])
