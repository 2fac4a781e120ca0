"""The streaming reader of the data source (`readStream`): new files and growing streams.

An offset holds for each file how far it was read. For a bare stream that is the end of a frame, the
context of the next one, and the number of bytes that were examined to find it. What is between two
offsets is a `Piece` of the file, as of one that is read whole: however large the file has become,
its frames are the same. So the same two offsets always give the same rows, as Spark requires of a
source that can be replayed after a failure. Captures,
stores and compressed files are read as a whole, once they stand still.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql import datasource
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxFiles,
    SupportsTriggerAvailableNow,
)

from wireyard.captures.live.following import BareStream
from wireyard.errors import SourceError, UsageError
from wireyard.formats import get_format
from wireyard.pipeline.inputs.captures import find_captures
from wireyard.pipeline.inputs.listing import FoundFile, list_files
from wireyard.pipeline.inputs.options import Options
from wireyard.pipeline.inputs.tasks import Piece, plan_tasks
from wireyard.pipeline.inputs.watching import SETTLED_S
from wireyard.spark.reader import Reader, faults
from wireyard.streams.scan import load_fast_path
from wireyard.streams.source import compression, reading

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_READ_BYTES: Final = 1 << 20
_MAGIC_BYTES: Final = 4
_NS: Final = 1_000_000_000
_FILES: Final = "files"


class StreamReader(datasource.DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Streaming reader of the files that arrive at some paths, and of bare streams that grow.

    The parameters are those of `Reader`. A `UsageError` is raised if an option is not for streams,
    or the format does not have a column.
    """

    def __init__(self, options: Options, schema: StructType) -> None:
        if options.rotated or options.push_filters:
            name = "rotated" if options.rotated else "pushFilters"
            raise UsageError(f"option '{name}' is not for readStream")
        self._options = options
        self._reader = Reader(options, schema)
        self._available: dict[str, int] | None = None
        """The sizes of files at the start of a query with the trigger `AvailableNow`."""

    # --- offsets ------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return the offset before the first file."""
        return {_FILES: {}}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the limit of a batch that the options set."""
        options = self._options
        if options.batch_bytes is not None:
            return ReadMaxBytes(options.batch_bytes)
        if options.batch_files is not None:
            return ReadMaxFiles(options.batch_files)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Record the present files: the query reads exactly these, and then ends."""
        self._available = {file.path: file.size for file in list_files(self._options)}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return the offset at which the next batch ends."""
        unlimited = isinstance(limit, ReadAllAvailable)
        left_bytes = None if unlimited else self._options.batch_bytes
        left_files = None if unlimited else self._options.batch_files
        before: Mapping[str, list[int]] = start[_FILES]
        after = dict(before)
        files = self._files()
        for path in before.keys() - {file.path for file in files}:
            del after[path]  # deleted: keeps offsets from growing without bound
        files.sort(key=lambda file: (file.modified_ns or 0, file.path))
        new = [file for file in files if file.path not in before or not _is_whole(before, file)]
        captures = find_captures(new, self._options)
        for file in new:
            if left_files == 0 or (left_bytes is not None and left_bytes <= 0):
                break
            most = file.size if left_bytes is None else left_bytes
            reached = self._next_offset(file, before.get(file.path), file.path in captures, most)
            if reached is None or reached == before.get(file.path):
                continue
            old = before.get(file.path, [0])[0]
            after[file.path] = reached
            if left_bytes is not None:
                left_bytes -= reached[0] - (old if old <= reached[0] else 0)
            if left_files is not None:
                left_files -= 1
        return {_FILES: after}

    def _files(self) -> list[FoundFile]:
        files = list_files(self._options)
        if self._available is None:
            return files
        sizes = self._available
        return [
            FoundFile(file.path, sizes[file.path], file.origin, file.modified_ns)
            for file in files
            if file.size >= sizes.get(file.path, file.size + 1)
        ]

    def _next_offset(
        self, file: FoundFile, before: list[int] | None, is_captured: bool, most: int
    ) -> list[int] | None:
        """Return the next offset in a file; None if there is nothing to read."""
        inode = None if "://" in file.path else os.stat(file.path).st_ino
        whole = is_captured or inode is None or _is_compressed(file.path)
        if whole:
            settled = self._available is not None or _is_settled(file)
            return [file.size] if file.size and settled else None
        assert inode is not None
        if before is None or len(before) == 1 or before[3] != inode or file.size < before[2]:
            before = [0, get_format(self._reader.format).context, 0, inode]
        stop, context, seen = self._walk(file, before[0], before[1], most)
        return before if stop == before[0] else [stop, context, seen, inode]

    def _walk(self, file: FoundFile, start: int, context: int, most: int) -> tuple[int, int, int]:
        """Return the end of the last whole frame, the next one's context, and the bytes examined.

        About `most` bytes are examined, and more only if they contain no whole frame.
        """
        format = get_format(self._reader.format)
        framer = self._reader.plan().framer(start, context)
        fast = load_fast_path(format, file.size - start)
        reached = start, context, start
        step = max(min(most, _READ_BYTES), _MAGIC_BYTES)
        stream, seen = BareStream(file.path, start), start
        with reading(file.path), open(file.path, "rb") as opened:
            opened.seek(start)
            while seen < file.size and (data := opened.read(min(step, file.size - seen))):
                seen += len(data)
                stream.receive(data)
                for _ in stream.blocks(framer, fast and fast.scan_frames):
                    pass
                if framer.is_aligned and framer.position > start:
                    reached = framer.position, framer.context, seen
                    if seen - start >= most:
                        break
        return reached

    # --- tasks --------------------------------------------------------------------------------

    def partitions(
        self, start: dict[str, Any], end: dict[str, Any]
    ) -> list[datasource.InputPartition]:
        """Return the input of each task of a batch."""
        before: Mapping[str, list[int]] = start[_FILES]
        spans: list[Piece] = []
        whole: list[FoundFile] = []
        context = get_format(self._reader.format).context
        for path, (stop, *rest) in end[_FILES].items():
            old = before.get(path)
            if old == [stop, *rest]:
                continue
            if not rest:
                whole.append(FoundFile(path, stop, path))
            elif old is not None and len(old) > 1 and old[3] == rest[2] and old[0] <= stop:
                spans.append(Piece(path, old[0], stop, stop - old[0], old[1]))
            else:
                spans.append(Piece(path, 0, stop, stop, context))
        captures = find_captures(whole, self._options)
        tasks = plan_tasks(whole, get_format(self._reader.format), self._options, captures)
        return [*map(datasource.InputPartition, spans), *map(datasource.InputPartition, tasks)]

    def read(self, partition: datasource.InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task."""
        piece = partition.value
        if not isinstance(piece, Piece):
            yield from self._reader.read(partition)
            return
        with faults(self._options, piece.path):
            with reading(piece.path):
                size = os.stat(piece.path).st_size
            if size < piece.stop:
                raise SourceError(f"{piece.path}: has less than when it was looked at")
            yield from self._reader.read(datasource.InputPartition((piece,)))


def _is_whole(before: Mapping[str, list[int]], file: FoundFile) -> bool:
    """Return whether a file was read as a whole, or has nothing new."""
    old = before[file.path]
    return len(old) == 1 or (file.size == old[2] and old[0] == old[2])


def _is_settled(file: FoundFile) -> bool:
    """Return whether a file stands still."""
    return file.modified_ns is None or time.time_ns() - file.modified_ns >= SETTLED_S * _NS


def _is_compressed(path: str) -> bool:
    with reading(path), open(path, "rb") as file:
        return compression(file.read(_MAGIC_BYTES)) is not None
