"""Reading the table `tcp_segments` in Spark: captures cut at the bounds of records."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import datasource as ask
from pyspark.sql.types import StructType

from wireyard.captures.extents import first_time_ns, plan_extents
from wireyard.captures.files import CaptureFile, Extent, map_extent
from wireyard.captures.segment_columns import TABLE, segment_schema
from wireyard.captures.segments import scan_extent, scan_files
from wireyard.errors import UsageError
from wireyard.spark.captures import find_captures
from wireyard.spark.files import faults, list_files
from wireyard.spark.options import Options
from wireyard.spark.rows import Shape
from wireyard.spark.task_groups import group_into_tasks
from wireyard.spark.types import arrow_schema, check_schema
from wireyard.spark.workers import settle

__all__ = ["SegmentReader"]


@dataclass(frozen=True, slots=True)
class SegmentPart:
    """The segments of a capture, or those of an extent of the last of its files."""

    source: str
    files: tuple[str, ...]
    extent: Extent | None
    first: int
    """How many packets of the capture there are before the extent."""
    size: int


class SegmentReader(ask.DataSourceReader):
    """Reads the columns of a schema. Spark sends it to the tasks, so it holds only what they need.

    Raises
    ------
    UsageError
        A column that the table does not have, or has with another type; no capture.
    """

    def __init__(self, options: Options, schema: StructType) -> None:
        check_schema(schema, segment_schema(schema.names))
        self._options = options
        self._schema = schema

    def partitions(self) -> list[ask.InputPartition]:
        """Return what each task reads."""
        options = self._options
        files = list_files(options)
        sizes = find_captures(files, options)
        if not sizes:
            raise UsageError(f"table {TABLE}: there is no capture at {', '.join(options.paths)}")
        grouped: dict[str, list[str]] = {}
        for file in files:
            if file.path in sizes:
                name = file.origin if options.rotated else file.path
                grouped.setdefault(name, []).append(file.path)
        parts: list[SegmentPart] = []
        for name, paths in grouped.items():
            with faults(options, name):
                parts += self._cut(name, paths, sum(sizes[path] for path in paths))
        tasks = group_into_tasks(parts, options.partition_bytes)
        return [ask.InputPartition(tuple(task)) for task in tasks]

    def read(self, partition: ask.InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task."""
        parts: tuple[SegmentPart, ...] = partition.value or ()
        settle()
        shape = Shape(arrow_schema(self._schema), None)
        for part in parts:
            with faults(self._options, part.source):
                for batch in self._batches(part):
                    yield shape.fit(batch)

    def _cut(self, name: str, paths: Sequence[str], size: int) -> Iterator[SegmentPart]:
        """Yield the parts of a capture; what cannot be cut is one."""
        planned = {path: plan_extents(path, self._options.partition_bytes) for path in paths}
        if None in planned.values():
            yield SegmentPart(name, tuple(paths), None, 0, size)
            return
        # Frames are numbered in the order of time, as where the files are put together.
        paths = sorted(paths, key=lambda path: first_time_ns(map_extent(path, 0, 0), path))
        before = 0
        for number, path in enumerate(paths, 1):
            for extent in planned[path] or ():
                files = tuple(paths[:number])
                yield SegmentPart(name, files, extent, before, extent.stop - extent.start)
                before += extent.packets

    def _batches(self, part: SegmentPart) -> Iterator[pa.RecordBatch]:
        schema = segment_schema(self._schema.names)
        if part.extent is not None:
            return scan_extent(part.files, part.extent, part.first, part.source, schema)
        files = sorted(map(CaptureFile.open, part.files), key=lambda file: file.begun_ns)
        return scan_files(files, part.source, schema)
