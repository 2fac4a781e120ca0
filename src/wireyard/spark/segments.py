"""The reader of the table `tcp_segments`: captures are split between records."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import datasource
from pyspark.sql.types import StructType

from wireyard.captures.files.extents import first_time_ns, plan_extents
from wireyard.captures.files.file import CaptureFile, Extent, map_extent
from wireyard.captures.packets.segment_columns import TABLE, segment_schema
from wireyard.captures.packets.segments import scan_extent, scan_files
from wireyard.errors import UsageError
from wireyard.pipeline.inputs.captures import find_captures
from wireyard.pipeline.inputs.listing import faults, list_files
from wireyard.pipeline.inputs.options import Options
from wireyard.pipeline.inputs.tasks import group_into_tasks
from wireyard.spark.types import Shape, arrow_schema, check_schema
from wireyard.spark.workers import settle


@dataclass(frozen=True, slots=True)
class SegmentPart:
    """The segments of a capture, or only those of an extent of the last of its files."""

    source: str
    files: tuple[str, ...]
    extent: Extent | None
    first: int
    """Number of packets of the capture before the extent."""
    size: int


class SegmentReader(datasource.DataSourceReader):
    """Batch reader of the table's columns. Spark pickles it for tasks, so it holds little.

    A `UsageError` is raised if a column does not exist or has another type, or there is no capture.
    """

    def __init__(self, options: Options, schema: StructType) -> None:
        check_schema(schema, segment_schema(schema.names))
        self._options = options
        self._schema = schema

    def partitions(self) -> list[datasource.InputPartition]:
        """Return the parts that each task reads."""
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
        return [datasource.InputPartition(tuple(task)) for task in tasks]

    def read(self, partition: datasource.InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task."""
        parts: tuple[SegmentPart, ...] = partition.value or ()
        settle()
        shape = Shape(arrow_schema(self._schema), None)
        for part in parts:
            with faults(self._options, part.source):
                for batch in self._batches(part):
                    yield shape.fit(batch)

    def _cut(self, name: str, paths: Sequence[str], size: int) -> Iterator[SegmentPart]:
        """Yield the parts of a capture; one that cannot be split is a single part."""
        planned = {path: plan_extents(path, self._options.partition_bytes) for path in paths}
        if None in planned.values():
            yield SegmentPart(name, tuple(paths), None, 0, size)
            return
        # Frames are numbered in the order of time, as in a file merged from all of them.
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
