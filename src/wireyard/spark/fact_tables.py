"""The facts of packets as DataFrames: the tables of a lake for those who write Spark themselves.

Packets that a filter has left out are bytes that were not captured. The rows of a stream follow
each other byte by byte, so what is missing between two of them is known, and becomes a row of a
gap, as in a capture that has lost packets. Behind the last row of a stream, and for streams of
which every row is gone, it is known only from the table of streams.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from wireyard.captures.stream_table import STREAMS
from wireyard.errors import UsageError
from wireyard.formats import get_format
from wireyard.layers.destinations import count_messages, destinations
from wireyard.layers.facts import Facts, PacketFile, facts_of, registered
from wireyard.layers.frame_files import FrameFiles
from wireyard.layers.gaps import each_stream, of_sources, with_gaps
from wireyard.layers.latencies import delayed, latencies
from wireyard.layers.records import GAP
from wireyard.layers.tables import all_tables, as_text, join_tables, with_times
from wireyard.pipeline.exchange import (
    MOST_BYTES,
    Blob,
    PartInput,
    Stage,
    pass_by_text,
    pass_on,
    read_tables,
)
from wireyard.pipeline.facts.tasks import STREAM_COLUMNS, TASK_PACKETS
from wireyard.pipeline.inputs.tasks import group_in_order
from wireyard.spark.running import (
    RESULTS,
    context_of,
    data_of,
    first_stage,
    next_stage,
    run_batches,
)
from wireyard.spark.table_reader import table_schema
from wireyard.streams.plan import make_plan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_PACKETS, _STREAMS = "packets", "streams"
_ENDS: Final = tuple(dict.fromkeys((*STREAM_COLUMNS, "transport", "bytes_read", "bytes_gap")))
"""Columns of the table of streams that are read."""
_NEVER_NS: Final = int(np.iinfo(np.int64).max)
_CONNECT_PARTITIONS: Final = 8


def facts(packets: DataFrame, streams: DataFrame | None = None) -> dict[str, DataFrame]:
    """Return the tables of facts that follow from packets, by name.

    They are computed when they are used, and kept on the disks of the executors by Spark, so that
    several tables cost no more than one. One task derives the facts of a source, of several that
    have few packets, or of all sources of JMQ packets and GPackets, which may show the same
    messages.

    Parameters
    ----------
    packets
        Packets of captures in one format, with all columns: from ``format("wireyard")``, or of a
        lake's table; filtered, united or written and read in between, as you like. Nothing is
        concluded from packets that a filter has left out: they count as bytes that were not
        captured.
    streams
        The streams of the captures, from option ``table`` or of a lake's table. Without them it is
        not known where a stream ends, so what happens behind its last packet is undecided.

    Raises
    ------
    UsageError
        A column is missing.

    Examples
    --------
    >>> from wireyard.spark import facts
    >>> packets = spark.read.format("wireyard").load("traffic.pcap")  # doctest: +SKIP
    >>> facts(packets)["deliveries"].groupBy("verdict").count().show()  # doctest: +SKIP
    """
    from pyspark.sql.functions import col
    from pyspark.storagelevel import StorageLevel

    from wireyard.spark.types import spark_schema

    format, of_protocol = _format_of(packets)
    context = context_of(packets.sparkSession)
    parallelism = _CONNECT_PARTITIONS if context is None else int(context.defaultParallelism)
    parts = 1 if of_protocol.shares_messages else parallelism
    schema = _packet_schema(format)
    passed = _deal(packets, schema, _PACKETS, parts)
    if streams is not None:
        passed = passed.union(_deal(streams, _pick(STREAMS, _ENDS), _STREAMS, parts))
    work = partial(_derive, format=format, protocol=of_protocol.protocol)
    stage = Stage((_PACKETS, _STREAMS), parts, work)
    derived = next_stage(passed, stage, 1, parts, None).persist(StorageLevel.DISK_ONLY)
    of_tables = derived.where(col("part") != RESULTS)
    return {
        name: of_tables.where(col("name") == name).mapInArrow(
            partial(_rows_of, schema=table_schema(name)), spark_schema(table_schema(name))
        )
        for name in all_tables()
    }


def _format_of(packets: DataFrame) -> tuple[str, Facts]:
    """Return the format of packets, by their columns, and its facts."""
    missing: dict[str, list[str]] = {}
    for of_protocol in registered():
        for format in of_protocol.formats:
            names = _packet_schema(format).names
            missing[format] = [name for name in names if name not in packets.columns]
            if not missing[format]:
                return format, of_protocol
    there = {*packets.columns}
    format = max(missing, key=lambda name: len(there.intersection(_packet_schema(name).names)))
    raise UsageError(
        f"facts: these are no packets of captures with all columns: {format} also has"
        f" {', '.join(missing[format])}"
    )


def _packet_schema(format: str) -> pa.Schema:
    return make_plan(get_format(format), captured=True).schema


def _pick(schema: pa.Schema, names: Iterable[str]) -> pa.Schema:
    return pa.schema([schema.field(name) for name in names])


# --- in workers -----------------------------------------------------------------------------


def _deal(rows: DataFrame, schema: pa.Schema, name: str, parts: int) -> DataFrame:
    """Return rows as what a stage passes on, those of a source to one part."""
    missing = [each for each in schema.names if each not in rows.columns]
    if missing:
        raise UsageError(f"facts: the table of {name} has no column {', '.join(missing)}")
    work = partial(_by_source, schema=schema, name=name, parts=parts)
    return first_stage(rows.select(*schema.names), partial(run_batches, work=work), None)


def _by_source(
    batches: Iterator[pa.RecordBatch], schema: pa.Schema, name: str, parts: int
) -> Iterator[Blob]:
    held, size = list[pa.RecordBatch](), 0
    for batch in batches:
        held.append(batch.cast(schema))
        size += batch.nbytes
        if size >= MOST_BYTES:
            yield from pass_by_text(name, pa.Table.from_batches(held), "source", parts)
            held, size = [], 0
    if held:
        yield from pass_by_text(name, pa.Table.from_batches(held), "source", parts)


def _derive(given: PartInput, format: str, protocol: str) -> Iterator[Blob]:
    """Derive the facts of a part; pass each table on under its name."""
    of_protocol = facts_of(protocol)
    assert of_protocol is not None
    shown = STREAMS.empty_table().select(_ENDS)
    packets, streams = (
        pa.concat_tables([none, *(each.tables[0] for each in given.inbox.get(name, ()))])
        for name, none in ((_PACKETS, _packet_schema(format).empty_table()), (_STREAMS, shown))
    )
    streams = streams.filter(streams["transport"].is_valid())
    counted = pc.value_counts(packets["source"])
    counts = {row["values"]: row["counts"] for row in counted.to_pylist()}
    most = sys.maxsize if of_protocol.shares_messages else TASK_PACKETS
    for own in group_in_order(counts, counts.__getitem__, most):
        ends = streams.filter(of_sources(streams, own))
        seen = pa.concat_tables(
            _with_hidden(*(rows.filter(of_sources(rows, [each])) for rows in (packets, ends)))
            for each in own
        )
        yield from _tables_of(of_protocol, format, seen, ends, own)


def _with_hidden(packets: pa.Table, streams: pa.Table) -> pa.Table:
    """Return the packets of a source in the order of their streams, with rows for missing bytes.

    `streams` are all streams of the source; if there are none, each stream has missing bytes at its
    end.
    """
    seen, of_row = each_stream(packets)
    ends = np.zeros(seen.num_rows, np.int64)
    np.maximum.at(ends, of_row, pc.add(packets["offset"], packets["length"]).to_numpy())
    reached = dict(zip(seen["stream"].to_pylist(), ends.tolist(), strict=True))
    hidden = [
        {**row, "offset": start, "length": row["bytes_read"] + row["bytes_gap"] - start}
        for row in streams.to_pylist()
        if (start := reached.get(row["stream"], 0)) < row["bytes_read"] + row["bytes_gap"]
    ]
    if not streams.num_rows:
        hidden = [
            {**row, "offset": reached[row["stream"]], "length": 1} for row in seen.to_pylist()
        ]
    rows = pa.Table.from_pylist([{**row, "status": GAP} for row in hidden], packets.schema)
    ordered, _ = with_gaps(packets, {packets["source"][0].as_py(): _NEVER_NS})
    return pa.concat_tables([ordered, rows])


def _tables_of(
    of_protocol: Facts, format: str, packets: pa.Table, streams: pa.Table, sources: list[str]
) -> Iterator[Blob]:
    """Derive the facts of some sources; yield the rows of each table."""
    file = PacketFile(0, format, lambda names: [packets.select(_there(packets, names))])
    derived = of_protocol.derive([file], streams.select(STREAM_COLUMNS), sources)
    parts = defaultdict[str, list[pa.Table]](list)
    for name, table in derived.tables:
        if table.num_rows:
            parts[name].append(FrameFiles().locate(table) if name == "messages" else table)
    tables = {name: join_tables(found) for name, found in parts.items()}
    messages, deliveries = tables.get("messages"), tables.get("deliveries")
    if messages is not None:
        tables["destinations"] = destinations([count_messages(messages)])
    if deliveries is not None:
        delays = None if messages is None else delayed(messages)
        tables["latencies"] = latencies(deliveries, delays)
    for name, rows in tables.items():
        if rows.num_rows:
            yield from pass_on(name, [[as_text(with_times(name, rows))]])


def _there(table: pa.Table, names: Iterable[str]) -> list[str]:
    return [name for name in names if name in table.column_names]


def _rows_of(batches: Iterator[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the rows in the blobs of a table. For `mapInArrow`."""
    from wireyard.spark.types import arrow_schema, spark_schema

    wanted = arrow_schema(spark_schema(schema))
    for batch in batches:
        for data in data_of(batch):
            for table in read_tables(data):
                yield from table.cast(wanted).to_batches()
