"""The tables that the layers make of packets: what became of messages, logins, requests.

What sets and joins can say is Spark SQL: which packets there are, and when each was complete. The
layers have a state from packet to packet, so they run in Python: packets are dealt to tasks by
their source, each task takes them in the order of time and writes what follows to files of its own,
as the tasks of the bronze stage do. There is one Python call a task, and no packet is held longer
than its layer holds it.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, groupby, repeat
from operator import itemgetter
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pyarrow as pa
from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it

from wireyard.formats.base import Row
from wireyard.layers.tables import TABLES
from wireyard.schema import arrow_type, storable
from wireyard.spark.lake import Input, Lake
from wireyard.spark.parts import PartFile
from wireyard.spark.types import spark_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["FACTS", "MAX_PACKETS", "Derive", "Layer", "write_facts"]

FACTS = tuple(TABLES)
"""The tables that are made anew from all of bronze with every commit."""
MAX_PACKETS = 1 << 21
"""That is 1 to 3 GB of memory in a task, by what is in them."""
_SINCE_1970 = "since 1970"
"""In the unit of a column that holds a moment, and so has a timestamp beside it."""
_FILES = pa.schema([("table", pa.string()), ("file", pa.string())])
_BATCH_ROWS = 1 << 14


Derive = Callable[[Iterator[Row], Sequence[Row] | None], Mapping[str, Iterable[Row]]]
"""The packets of a source in the order of time, what a capture tells of its streams -> tables."""


@dataclass(frozen=True)
class Layer:
    """How the packets of some formats become rows of tables."""

    packets: Callable[[Mapping[str, DataFrame]], DataFrame | None]
    """Packets by format -> those that say something, None if there are none."""
    prepare: Callable[[DataFrame], Derive]
    """What is to be known of all packets -> what a task does with those of a source."""


def write_facts(
    layers: Iterable[Layer], packets: Mapping[str, DataFrame], lake: Lake, inputs: Iterable[Input]
) -> list[str]:
    """Stage the tables of facts; return what is to be said of sources that were left out.

    Parameters
    ----------
    packets
        By format, all packets that there will be after the commit.
    inputs
        The inputs that there will be, for what captures tell of their streams.

    Limits
    ------
    A task holds what is known of all messages of a source, so one with more packets than
    `MAX_PACKETS` is left out.
    """
    lake.make_staging(FACTS)
    told = dict(_told(inputs))
    written: set[str] = set()
    notes: dict[str, str] = {}
    for layer in layers:
        rows = layer.packets(packets)
        if rows is None:
            continue
        large = rows.groupBy("source").count().where(F.col("count") > MAX_PACKETS).collect()
        for source, count in large:
            notes[source] = f"{source}: no facts of its {count:,} packets, over {MAX_PACKETS:,}"
        rows = rows.where(~F.col("source").isin([source for source, _ in large]))
        work = partial(
            _write_sources, derive=layer.prepare(rows), told=told, staging=lake.staged("")
        )
        dealt = _dealt(rows, timed=bool(told))
        files = dealt.mapInArrow(work, spark_schema(_FILES)).toArrow()
        written.update(files["table"].to_pylist())
    for table in FACTS:
        if table not in written:
            _write_rows(lake.staged(table), table, ())
    return list(notes.values())


def _told(inputs: Iterable[Input]) -> Iterator[tuple[str, list[Row]]]:
    """Yield what captures tell of their streams besides the packets, by source."""
    for each in inputs:
        if any(one.facts.get("transport") for one in each.streams):
            place = {"source": each.source}
            yield each.source, [{**place, "stream": s.stream, **s.facts} for s in each.streams]


def _dealt(rows: DataFrame, *, timed: bool) -> DataFrame:
    """Deal packets to tasks by their source, and put those of each in the order of time.

    A receiver reads a stream in order, so what was complete early waits for what is before it.
    Where no packet is `timed`, the streams of a source go one behind the other.
    """
    if not timed:
        return rows.repartition("source").sortWithinPartitions("source", "stream", "offset")
    before = Window.partitionBy("source", "stream").orderBy("offset")
    before = before.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    reached = F.max(F.struct("captured_ns", "frame")).over(before)
    dealt = rows.withColumn("reached", reached).repartition("source")
    ordered = dealt.sortWithinPartitions("source", "reached", "stream", "offset")
    return ordered.drop("reached")


def _write_sources(
    batches: Iterator[pa.RecordBatch],
    derive: Derive,
    told: Mapping[str, Sequence[Row]],
    staging: str,
) -> Iterator[pa.RecordBatch]:
    """Write what follows from the packets of some sources; yield the files. For `mapInArrow`."""
    rows = chain.from_iterable(map(_rows, batches))
    found: dict[str, list[Iterable[Row]]] = {}
    gc.freeze()
    gc.disable()  # half of the time would go into looking at what is kept anyway
    try:
        for source, packets in groupby(rows, key=itemgetter("source")):
            for table, facts in derive(packets, told.get(source)).items():
                found.setdefault(table, []).append(facts)
    finally:
        gc.enable()
    for table, parts in found.items():
        name = _write_rows(f"{staging}/{table}", table, chain.from_iterable(parts))
        yield pa.RecordBatch.from_pylist([{"table": table, "file": name}], _FILES)


def _rows(batch: pa.RecordBatch) -> Iterator[Row]:
    """Yield the rows of a batch, which is several times as fast as asking Arrow for them."""
    names = batch.schema.names
    return (
        dict(zip(names, values, strict=True))
        for values in zip(*map(_values, batch.columns), strict=False)
    )


def _values(column: pa.Array) -> Iterable[Any]:
    if column.null_count == len(column):
        return repeat(None, len(column))
    if column.null_count == 0 and pa.types.is_primitive(column.type):
        numbers: list[Any] = column.to_numpy(zero_copy_only=False).tolist()
        return numbers
    values: list[Any] = column.to_pylist(maps_as_pydicts="lossy")
    return values


# --- what is written ------------------------------------------------------------------------


def _schema_of(table: str) -> pa.Schema:
    fields: list[pa.Field] = []
    for column in TABLES[table]:
        fields.append(pa.field(column.name, arrow_type(column.kind)))
        if column.unit and _SINCE_1970 in column.unit:
            fields.append(pa.field(_twin(column.name), pa.timestamp("us", tz="UTC")))
    return pa.schema(fields)


def _twin(name: str) -> str:
    """Return the name of the timestamp beside a column of nanoseconds."""
    return name.removesuffix("_ns") + "_at"


_SCHEMAS = {table: _schema_of(table) for table in TABLES}
_MOMENTS = {
    table: [column.name for column in columns if _SINCE_1970 in (column.unit or "")]
    for table, columns in TABLES.items()
}
_TEXTS = {
    table: [column.name for column in columns if column.kind == "string"]
    for table, columns in TABLES.items()
}


def _write_rows(folder: str, table: str, rows: Iterable[Row]) -> str:
    """Write rows of a table to a file; return its name."""
    name = f"part-{uuid4().hex}.parquet"
    file = PartFile(f"{folder}/{name}", _SCHEMAS[table])
    held: list[Row] = []
    for row in rows:
        held.append(_stored(row, table))
        if len(held) == _BATCH_ROWS:
            file.write(pa.RecordBatch.from_pylist(held, _SCHEMAS[table]))
            held = []
    file.write(pa.RecordBatch.from_pylist(held, _SCHEMAS[table]))
    file.close()
    return name


def _stored(row: Row, table: str) -> Row:
    stored = dict(row)
    for name in _MOMENTS[table]:
        time_ns = row.get(name)
        stored[_twin(name)] = None if time_ns is None else time_ns // 1000
    for name in _TEXTS[table]:
        if (text := row.get(name)) is not None:
            stored[name] = storable(text)
    return stored
