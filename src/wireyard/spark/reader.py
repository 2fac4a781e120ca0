"""The batch reader of the data source: plan the tasks, and yield the rows of each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from typing import Any

import pyarrow as pa
from pyspark.sql import datasource
from pyspark.sql.types import StructType

from wireyard.captures.inputs import open_captures
from wireyard.captures.quarantine import BadBytes, PartBytes
from wireyard.errors import SourceError, UsageError
from wireyard.formats import get_format
from wireyard.formats.rows import pick_columns
from wireyard.pipeline.inputs.captures import CapturePart, find_captures, format_of
from wireyard.pipeline.inputs.listing import faults, list_files
from wireyard.pipeline.inputs.options import Options, opener_of
from wireyard.pipeline.inputs.tasks import Piece, plan_tasks
from wireyard.spark.types import BAD_ROW_COLUMNS, Shape, arrow_schema, check_schema
from wireyard.spark.workers import settle
from wireyard.streams.mapped import map_windows
from wireyard.streams.plan import Condition, Plan, make_plan
from wireyard.streams.scan import (
    load_fast_path,
    open_windows,
    scan_parts,
    scan_stream,
    scan_streams,
)

__all__ = ["FilteringReader", "Reader", "faults"]

_CORRUPT_COLUMN = "_corrupt_record"
"""Spark's default name of the column for bad rows."""


class Reader(datasource.DataSourceReader):
    """Batch reader of a table's columns. Spark pickles it for tasks, so it holds little.

    `options` are those given to the data source. `schema` has the columns of the table: some of the
    format's, in any order, and optionally one for the bytes of bad rows. A `UsageError` is raised
    for a column that the format does not have, or has with another type.
    """

    def __init__(self, options: Options, schema: StructType) -> None:
        files = list_files(options)
        captures = find_captures(files, options)
        self._options = options
        self._captured = bool(captures) or options.input == "pcap"
        self.format = format_of(options, files, captures).label
        """Label of the format of all rows."""
        self._schema = schema
        self._where: list[Condition] = []
        name = options.corrupt_column or _CORRUPT_COLUMN
        self._corrupt = name if name in schema.names else None
        own = [field for field in schema.fields if field.name != name]
        opener = opener_of(get_format(self.format), options)
        fields = {} if opener is None else {field.name: field for field in opener.fields}
        opened = [field for field in own if field.name in fields]
        own = [field for field in own if field.name not in fields]
        self._opens = bool(opened)
        self._columns = [field.name for field in own]
        if opener is not None and opened:
            self._columns += [name for name in opener.needed if name not in self._columns]
            check_schema(StructType(opened), pa.schema([fields[one.name] for one in opened]))
        if self._corrupt:
            if schema[name].dataType.typeName() not in ("string", "binary"):
                raise UsageError(f"column '{name}' takes bytes: it is binary, or string for hex")
            self._columns += [extra for extra in BAD_ROW_COLUMNS if extra not in self._columns]
        offered = self.plan().schema
        check_schema(StructType(own), pa.schema([offered.field(field.name) for field in own]))

    def partitions(self) -> list[datasource.InputPartition]:
        """Return the pieces that each task reads."""
        files = list_files(self._options)
        captures = find_captures(files, self._options)
        tasks = plan_tasks(files, get_format(self.format), self._options, captures)
        return [datasource.InputPartition(pieces) for pieces in tasks]

    def read(self, partition: datasource.InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task."""
        pieces: tuple[Piece | CapturePart, ...] = partition.value or ()
        plan = self.plan()
        if load_fast_path(plan.format, sum(piece.size for piece in pieces)):
            settle()
        shape = self.shape(plan)
        for piece in pieces:
            if isinstance(piece, CapturePart):
                yield from self._of_capture(piece, plan, shape)
                continue
            with closing(BadBytes(piece.path)) as bad_bytes:
                for batch in self._batches(piece, plan):
                    yield shape.fit(batch, lambda _: bad_bytes)

    def shape(self, plan: Plan) -> Shape:
        """Return the conversion of rows to the columns of the table."""
        opener = opener_of(plan.format, self._options) if self._opens else None
        return Shape(arrow_schema(self._schema), self._corrupt, opener)

    def plan(self) -> Plan:
        """Return the plan for reading each stream."""
        options = self._options
        format = get_format(self.format)
        where, limit = self._where, options.packet_bytes
        return make_plan(format, self._columns, where, options.mode, limit, captured=self._captured)

    def _of_capture(self, part: CapturePart, plan: Plan, shape: Shape) -> Iterator[pa.RecordBatch]:
        with faults(self._options, part.files[0]):
            share = part.part, part.of
            found = open_captures(
                part.files, plan.format, part.decode_as, share, part.source, keylog=part.keylog
            )
            if found.damage and not self._options.ignore_corrupt:
                raise SourceError(f"{found.name}: {found.damage}")
            if found.problems and self._options.mode == "failfast":
                raise SourceError(f"{found.name}: {found.problems[0]}")
            streams = ((opened, plan) for _, opened in found.readables)
            if self._corrupt is None:
                yield from map(shape.fit, scan_streams(streams))
                return
            for _, parts, batches, *_ in scan_parts(streams):
                if batches:
                    yield shape.fit(pa.concat_batches(batches), PartBytes(parts).of_row)

    def _batches(self, piece: Piece, plan: Plan) -> Iterator[pa.RecordBatch]:
        with faults(self._options, piece.path):
            opened = map_windows(piece.path, piece.start) or open_windows(piece.path, piece.start)
            with closing(opened):
                framer = plan.framer(piece.start, piece.context)
                yield from scan_stream(opened, plan, framer, piece.stop)


_SIGNS: Mapping[type[datasource.Filter], str] = {
    datasource.EqualTo: "==",
    datasource.EqualNullSafe: "==",
    datasource.GreaterThan: ">",
    datasource.GreaterThanOrEqual: ">=",
    datasource.LessThan: "<",
    datasource.LessThanOrEqual: "<=",
    datasource.In: "in",
}
_VALUES: Mapping[str, type] = {"bool": bool, "int32": int, "int64": int, "string": str}
"""The kinds of column that can be compared, with the Python type of the values."""


class FilteringReader(Reader):
    """A reader that evaluates filters on plain columns before it decodes the others.

    A class of its own, because Spark refuses a reader with `pushFilters` unless
    ``spark.sql.python.filterPushdown.enabled`` is set.
    """

    def pushFilters(self, filters: list[datasource.Filter]) -> Iterable[datasource.Filter]:  # noqa: N802
        """Accept the filters that can be evaluated here; return the others to Spark."""
        kinds = {
            column.name: column.kind
            for column in pick_columns(get_format(self.format), None, captured=self._captured)
        }
        for given in filters:
            condition = _condition(given, kinds)
            if condition is None:
                yield given
            else:
                self._where.append(condition)


def _condition(given: datasource.Filter, kinds: Mapping[str, str]) -> Condition | None:
    """Return a filter as a condition; None unless both keep the same rows, nulls included."""
    negated = isinstance(given, datasource.Not)
    inner: Any = given.child if isinstance(given, datasource.Not) else given
    sign = _SIGNS.get(type(inner))
    name = ".".join(inner.attribute)
    wanted = _VALUES.get(kinds.get(name, ""))
    if sign is None or wanted is None:
        return None
    # A null is in no list, and a comparison with null keeps no row.
    values = [each for each in inner.value if each is not None] if sign == "in" else [inner.value]
    if not values or any(type(value) is not wanted for value in values):
        return None
    if negated:
        return (name, "!=", inner.value) if isinstance(inner, datasource.EqualTo) else None
    return name, sign, values if sign == "in" else inner.value
