"""The data source `wireyard`: streams of packets as Spark tables, and back.

Spark calls `schema`, the planning of tasks and each task in processes of their own. So nothing is
imported here before it is needed, and the first two need no kernels unless a file has to be split.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, MutableMapping
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar, cast

from pyspark.sql.datasource import DataSource

from wireyard.captures.packets.segment_columns import TABLE, segment_schema
from wireyard.errors import UsageError, WireError
from wireyard.formats import get_format, labels
from wireyard.pipeline.inputs.options import WRITE_OPTIONS, Options, opener_of, read_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

    from wireyard.spark.reader import Reader
    from wireyard.spark.segments import SegmentReader
    from wireyard.spark.stream_reader import StreamReader
    from wireyard.spark.table_reader import TableReader
    from wireyard.spark.writer import Writer

_PACKETS = "packets"
F = TypeVar("F", bound=Callable[..., Any])


def _without_traceback(method: F) -> F:
    """Have Spark report a user's mistake in one line.

    Spark formats the error next, and ends the process after that.
    """

    @wraps(method)
    def call(*args: Any, **named: Any) -> Any:
        try:
            return method(*args, **named)
        except WireError:
            os.environ["SPARK_HIDE_TRACEBACK"] = "1"
            raise

    return cast(F, call)


class WireyardSource(DataSource):
    """Read and write streams of packets.

    Options of reading: those of ``wireyard.pipeline.inputs.options``. Options of writing:
    ``protocol``.

    Examples
    --------
    >>> rows = spark.read.format("wireyard").option("protocol", "jmq")  # doctest: +SKIP
    >>> rows.load("traffic").select("destination").show()  # doctest: +SKIP
    """

    @_without_traceback
    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._options = read_options(options)

    @classmethod
    def name(cls) -> str:
        """Return the name that ``format()`` takes."""
        return "wireyard"

    @_without_traceback
    def schema(self) -> StructType:
        """Return the columns of the protocol, or those that option ``columns`` names."""
        import pyarrow as pa
        from pyspark.sql.types import BinaryType

        from wireyard.pipeline.inputs.captures import find_captures, format_of
        from wireyard.pipeline.inputs.listing import list_files
        from wireyard.spark.types import spark_schema
        from wireyard.streams.plan import make_plan

        options = _with_paths(self._options)
        if options.table == TABLE:
            return spark_schema(segment_schema(options.columns))
        if options.table != _PACKETS:
            from wireyard.spark.table_reader import table_schema

            return spark_schema(table_schema(options.table, options.columns))
        files = list_files(options)
        captures = find_captures(files, options)
        format = format_of(options, files, captures)
        captured = bool(captures) or options.input == "pcap"
        plan = make_plan(format, options.columns, mode=options.mode, captured=captured)
        opener = opener_of(format, options)
        opened = () if opener is None else opener.fields
        schema = spark_schema(pa.schema([*plan.schema, *opened]))
        corrupt = options.corrupt_column
        if corrupt is not None and corrupt not in schema.names:
            schema = schema.add(corrupt, BinaryType())
        return schema

    @_without_traceback
    def reader(self, schema: StructType) -> Reader | SegmentReader | TableReader:
        """Return the reader of the columns of `schema`, in its order."""
        from wireyard.spark.reader import FilteringReader, Reader

        if self._options.table == TABLE:
            from wireyard.spark.segments import SegmentReader

            return SegmentReader(_with_paths(self._options), schema)
        if self._options.table != _PACKETS:
            from wireyard.spark.table_reader import TableReader

            return TableReader(_with_paths(self._options), schema)
        kind = FilteringReader if self._options.push_filters else Reader
        return kind(_with_paths(self._options), schema)

    @_without_traceback
    def streamReader(self, schema: StructType) -> StreamReader:  # noqa: N802
        """Return the streaming reader of the columns of `schema`."""
        from wireyard.spark.stream_reader import StreamReader

        if (table := self._options.table) != _PACKETS:
            raise UsageError(f"option 'table' cannot be '{table}' with readStream")
        return StreamReader(_with_paths(self._options), schema)

    @_without_traceback
    def writer(self, schema: StructType, overwrite: bool) -> Writer:
        """Return the writer of rows as streams of packets into a folder."""
        from wireyard.spark.writer import Writer

        for name in self.options:
            if name.lower() not in WRITE_OPTIONS:
                raise UsageError(f"option '{name}' is for reading, not for writing")
        options = _with_paths(self._options)
        if options.protocol is None:
            known = ", ".join(labels())
            raise UsageError(f"option 'protocol' is needed to write; there are: {known}")
        return Writer(get_format(options.protocol).label, options.paths[0], overwrite)


def register(spark: SparkSession) -> None:
    """Register ``format("wireyard")`` in a session.

    This is not needed if wireyard is installed for the Python that runs Spark's workers. It is
    needed if wireyard was sent with ``--py-files`` or ``addPyFile``, or if another package named
    ``pyspark_*`` cannot be imported, which hides the data sources of all packages. In a session
    that was made without ``PYSPARK_PYTHON``, the Python of this process runs workers from now on.

    Examples
    --------
    >>> wireyard.register(spark)  # doctest: +SKIP
    """
    context = getattr(spark, "sparkContext", None)  # Spark Connect has none
    if context is not None and "PYSPARK_PYTHON" not in os.environ:
        context.pythonExec = sys.executable
    spark.dataSource.register(WireyardSource)


def _with_paths(options: Options) -> Options:
    if not options.paths:
        raise UsageError("no path was given")
    return options
