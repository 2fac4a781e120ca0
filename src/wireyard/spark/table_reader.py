"""The reader of the tables of streams and facts: a run into a temporary folder, as one task.

A data source cannot shuffle, so this is for inputs that one machine can read. To have tasks share
the facts, use `wireyard.spark.facts`, or fill a lake.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import datasource
from pyspark.sql.types import StructType

from wireyard.captures.stream_table import STREAMS
from wireyard.errors import UsageError
from wireyard.lake.parts import read_batches
from wireyard.lake.writer import Lake
from wireyard.layers.tables import as_text, fact_table, with_times
from wireyard.pipeline.inputs.finding import InputOptions, list_inputs
from wireyard.pipeline.inputs.listing import list_files
from wireyard.pipeline.inputs.options import Options
from wireyard.pipeline.job import fill_lake
from wireyard.spark.types import Shape, arrow_schema, check_schema
from wireyard.spark.workers import settle


def table_schema(name: str, columns: tuple[str, ...] | None = None) -> pa.Schema:
    """Return the schema of a table of streams or facts, with plain texts.

    A `UsageError` is raised if it has no such column.
    """
    schema = STREAMS
    if name != "streams":
        schema = as_text(with_times(name, fact_table(name, ()))).schema
    for column in columns or ():
        if column not in schema.names:
            raise UsageError(f"table {name} has no column '{column}'")
    return schema if columns is None else pa.schema([schema.field(each) for each in columns])


class TableReader(datasource.DataSourceReader):
    """Batch reader of the columns of a table; one task reads it."""

    def __init__(self, options: Options, schema: StructType) -> None:
        check_schema(schema, table_schema(options.table, tuple(schema.names)))
        self._options = options
        self._schema = schema

    def partitions(self) -> list[datasource.InputPartition]:
        """Return one part: what happened to a message may be seen in several inputs."""
        return [datasource.InputPartition(None)]

    def read(self, partition: datasource.InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows."""
        settle()
        options, shape = self._options, Shape(arrow_schema(self._schema), None)
        names = self._schema.names
        wanted = table_schema(options.table, tuple(names))
        with (
            tempfile.TemporaryDirectory(prefix="wireyard-") as folder,
            Lake.open(os.path.join(folder, "lake")) as lake,
        ):
            paths = [file.path for file in list_files(options)]
            given = options.paths if options.rotated else paths
            found = list_inputs(given, InputOptions(options.protocol), rotated=options.rotated)
            fill_lake(
                lake,
                found.inputs,
                None,
                _NoWatch(),
                max_packet_bytes=options.packet_bytes,
                decode_as=options.decode_as,
                keylog=options.keylog,
            )
            for path in lake.paths(options.table):
                for rows in read_batches(path, names):
                    for batch in rows.select(names).cast(wanted).to_batches():
                        yield shape.fit(batch)


class _NoWatch:
    """Shows no progress."""

    def stage(self, name: str) -> None:
        pass

    def at(self, done_bytes: int, total_bytes: int) -> None:
        pass
