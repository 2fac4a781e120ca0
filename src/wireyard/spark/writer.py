"""The writer of the data source: each task writes a stream of packets, and the commit shows all."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain

import pyarrow as pa
from pyarrow import fs
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from wireyard.errors import SourceError
from wireyard.formats import get_format
from wireyard.pipeline.inputs.listing import absolute
from wireyard.streams.source import filesystem
from wireyard.streams.write import write_stream


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """The result of an attempt at a task: a hidden file, or none if there were no rows."""

    task: int
    file: str | None


class Writer(DataSourceArrowWriter):
    """Writes rows as streams of packets into a folder.

    Attempts write into a hidden folder, which readers skip. The commit moves the files of the
    successful attempts out of it, then deletes the files that they replace, then the hidden folder
    with all other attempts. So every visible file is complete, and a failed job leaves none.

    `protocol` is the name of the format. The folder at `path` is created if needed. With
    `overwrite`, the files in it are replaced; nested folders stay.
    """

    def __init__(self, protocol: str, path: str, overwrite: bool) -> None:
        self._protocol = protocol
        self._path = absolute(path)
        self._overwrite = overwrite
        self._job = uuid.uuid4().hex
        self._hidden = f"{self._path.rstrip('/')}/_writing-{self._job}"
        with _writing(self._path):
            system, hidden = filesystem(self._hidden)
            system.create_dir(hidden)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Write the rows of a task; a row that is no packet fails the job."""
        context = TaskContext.get()
        task = context.partitionId() if context else 0
        batches = (batch for batch in iterator if batch.num_rows)
        first = next(batches, None)
        if first is None:
            return Written(task, None)
        name = uuid.uuid4().hex
        write_stream(chain([first], batches), f"{self._hidden}/{name}", get_format(self._protocol))
        return Written(task, name)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Make the written files visible."""
        with _writing(self._path):
            system, folder = filesystem(self._path)
            hidden = filesystem(self._hidden)[1]
            before = system.get_file_info(fs.FileSelector(folder)) if self._overwrite else []
            for message in messages:
                if isinstance(message, Written) and message.file:
                    name = f"part-{message.task:05}-{self._job}.{self._protocol}"
                    system.move(f"{hidden}/{message.file}", f"{folder}/{name}")
            for info in before:
                if info.type == fs.FileType.File:
                    system.delete_file(info.path)
            system.delete_dir(hidden)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Delete all written files."""
        with suppress(OSError, SourceError):
            system, hidden = filesystem(self._hidden)
            system.delete_dir(hidden)


@contextmanager
def _writing(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise SourceError(f"{path}: cannot be written ({error.strerror or error})") from None
