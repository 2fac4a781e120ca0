"""The facts of packets as DataFrames: the tables of a lake for those who write Spark themselves.

Packets that a filter has left out are bytes that were not captured. The rows of a stream follow
each other byte by byte, so what is missing between two of them is known, and becomes a row of a
gap, as in a capture that has lost packets. Behind the last row of a stream, and for streams of
which every row is gone, it is known only from the table of streams.

1. Packets are placed by stream: each part is a file of packets that Spark keeps.
2. What a plan needs is counted in these files, by a job of its own.
3. The stages are those of a run over many packets (`wireyard.pipeline.facts`). They pass tables on
   where those of a run write files.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from wireyard.captures.stream_table import STREAMS
from wireyard.errors import UsageError
from wireyard.formats import get_format
from wireyard.layers.destinations import count_messages, destinations
from wireyard.layers.facts import Facts, PacketFile, registered
from wireyard.layers.frame_files import FrameFiles
from wireyard.layers.gaps import DIRECTION, each_stream, stream_keys, with_gaps
from wireyard.layers.latencies import NEEDED as LATENCY_NEEDED
from wireyard.layers.latencies import delayed, latencies
from wireyard.layers.records import GAP
from wireyard.layers.tables import all_tables, as_text, join_tables, with_times
from wireyard.pipeline.exchange import (
    MOST_BYTES,
    Blob,
    Inbox,
    PartInput,
    Stage,
    pass_by_text,
    pass_on,
    read_tables,
)
from wireyard.pipeline.facts.stage import merge_producers
from wireyard.pipeline.facts.tasks import (
    FILES,
    STREAM_ROWS,
    TOGETHER,
    Counted,
    Divided,
    Outputs,
    Writer,
    division_of,
)
from wireyard.spark.running import (
    IS_RESULT,
    data_of,
    first_stage,
    next_here,
    next_stage,
    results_of,
    run_batches,
)
from wireyard.spark.table_reader import table_schema
from wireyard.streams.plan import make_plan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_PACKETS, _STREAMS, _WAITS, _DELAYS, _COUNTS = (
    "packets", "table of streams", "waits", "delays", "counts",
)  # fmt: skip
_TABLE: Final = "table "
"""Before the names of tables of facts: what stages pass on may have the same."""
_ENDS: Final = tuple(
    dict.fromkeys((*DIRECTION, *STREAM_ROWS.names, "transport", "bytes_read", "bytes_gap"))
)
"""Columns of the table of streams that are read."""
_NEVER_NS: Final = int(np.iinfo(np.int64).max)
_FILES: Final = 64
"""Files that packets become: a task holds one of them, with all columns."""


def facts(packets: DataFrame, streams: DataFrame | None = None) -> Mapping[str, DataFrame]:
    """Return the tables of facts that follow from packets, by name.

    They are computed when they are used, and kept on the disks of the executors by Spark, so that
    several tables cost no more than one. When the first is looked up, the packets are counted, by a
    job of Spark: they are divided among tasks by their number, as those of a run.

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
    format, of_protocol = _format_of(packets)
    placed = _deal(packets, _packet_schema(format), _PACKETS)
    if streams is not None:
        placed = placed.union(_deal(streams, _stream_schema(), _STREAMS))
    return _FactTables(placed, format, of_protocol)


class _FactTables(Mapping[str, "DataFrame"]):
    """The tables by name.

    `placed` are the packets and streams, as what a stage passes on by stream.
    """

    def __init__(self, placed: DataFrame, format: str, of_protocol: Facts) -> None:
        self._placed, self._format, self._facts = placed, format, of_protocol

    def __iter__(self) -> Iterator[str]:
        return iter(all_tables())

    def __len__(self) -> int:
        return len(all_tables())

    def __contains__(self, name: object) -> bool:
        return name in all_tables()

    def __getitem__(self, name: str) -> DataFrame:
        from pyspark.sql.functions import col

        from wireyard.spark.types import spark_schema

        schema, merge = table_schema(name), _MERGED.get(name)
        rows = self._derived.where(col("name") == (_TABLE + name))
        if merge is not None:
            rows = rows.repartition(1)
        return rows.mapInArrow(
            partial(_rows_of, name=name, schema=schema, merge=merge), spark_schema(schema)
        )

    @cached_property
    def _derived(self) -> DataFrame:
        """The rows of all tables, as what the stages pass on."""
        from pyspark.sql.functions import col
        from pyspark.storagelevel import StorageLevel

        division = division_of(self._facts.protocol)
        assert division is not None  # formats with facts of their own are divided
        order = partial(_order, format=self._format, count_file=division.count_file)
        order_stage = Stage((_PACKETS, _STREAMS), _FILES, order)
        files = next_stage(self._placed, [order_stage], 1, _File, TOGETHER)
        files = files.persist(StorageLevel.DISK_ONLY)
        found: list[_File] = results_of(files.where(IS_RESULT).toArrow(), _File)
        shown = [STREAMS.empty_table(), *(each.streams for each in found)]
        divided = Divided(
            _PassedFiles(self._format),
            tuple(sorted({source for each in found for source in each.packets})),
            sum(count for each in found for count in each.packets.values()),
            [each.counted for each in found if each.counted is not None],
            pa.concat_tables(table.select(STREAM_ROWS.names) for table in shown),
        )
        has_delays = self._facts.shares_messages  # only JMS has
        plan = division.plan(divided, _Passing(has_delays))
        split = Stage((FILES, _STREAMS), _FILES, partial(_split, split=plan.split))
        passed = next_here(files.where(f"NOT ({IS_RESULT})"), split, 2, None)
        stages = [*plan.stages, *[Stage((_WAITS, _DELAYS), _FILES, _delay)] * has_delays]
        for number, stage in enumerate(stages):
            if FILES in stage.names:
                again = files.where(col("name") == FILES)
                passed = passed.union(again.withColumn("part", col("part") % plan.groups))
            passed = next_stage(passed, stages[number:], number + 3, None, TOGETHER)
        return passed.where(f"NOT ({IS_RESULT})").persist(StorageLevel.DISK_ONLY)


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


def _stream_schema() -> pa.Schema:
    return pa.schema([STREAMS.field(name) for name in _ENDS])


def _deal(rows: DataFrame, schema: pa.Schema, name: str) -> DataFrame:
    """Return rows as what a stage passes on, those of a stream to one part."""
    missing = [each for each in schema.names if each not in rows.columns]
    if missing:
        raise UsageError(f"facts: the {name} has no column {', '.join(missing)}")
    work = partial(_by_stream, schema=schema, name=name)
    return first_stage(rows.select(*schema.names), partial(run_batches, work=work), None)


# --- in workers -----------------------------------------------------------------------------


def _by_stream(batches: Iterator[pa.RecordBatch], schema: pa.Schema, name: str) -> Iterator[Blob]:
    held, size = list[pa.RecordBatch](), 0
    for batch in batches:
        held.append(batch.cast(schema))
        size += batch.nbytes
        if size >= MOST_BYTES:
            yield from _pass_by_stream(name, held)
            held, size = [], 0
    if held:
        yield from _pass_by_stream(name, held)


def _pass_by_stream(name: str, batches: Sequence[pa.RecordBatch]) -> Iterator[Blob]:
    rows = pa.Table.from_batches(batches)
    return pass_by_text(name, rows, stream_keys(rows), _FILES)


class _File(NamedTuple):
    """What a file of packets has."""

    packets: dict[str, int]
    """How many of each source."""
    streams: pa.Table
    counted: Counted | None
    """What the plan of its protocol needs."""


def _order(given: PartInput, format: str, count_file: Any) -> Iterator[Blob | _File]:
    """Pass a part on as a file of packets, in the order of their streams."""
    packets, streams = (
        pa.concat_tables(table for each in given.inbox.get(name, ()) for table in each.tables)
        if name in given.inbox
        else schema.empty_table()
        for name, schema in ((_PACKETS, _packet_schema(format)), (_STREAMS, _stream_schema()))
    )
    streams = streams.filter(streams["transport"].is_valid())
    of_format = pc.fill_null(pc.starts_with(streams["format"], format), False)
    packets = _with_hidden(packets, streams.filter(of_format))
    yield from pass_on(FILES, [[packets]], given.part)
    yield from pass_on(_STREAMS, [[streams]], given.part)
    counts = pc.value_counts(packets["source"]).to_pylist()
    of_source = {row["values"]: row["counts"] for row in counts}
    file = PacketFile.in_memory(given.part, format, [packets])
    counted = None if count_file is None else count_file(file, [*of_source])
    yield _File(of_source, streams, counted)


def _with_hidden(packets: pa.Table, streams: pa.Table) -> pa.Table:
    """Return packets in the order of their streams, with rows for missing bytes.

    Of a stream that is not in `streams`, bytes are missing at its end.
    """
    seen, of_row = each_stream(packets)
    ends = np.zeros(seen.num_rows, np.int64)
    np.maximum.at(ends, of_row, pc.add(packets["offset"], packets["length"]).to_numpy())
    rows = seen.to_pylist()
    reached = {
        (row["source"], row["stream"]): end for row, end in zip(rows, ends.tolist(), strict=True)
    }
    hidden = []
    for row in streams.to_pylist():
        start = reached.pop((row["source"], row["stream"]), 0)
        if start < (stop := row["bytes_read"] + row["bytes_gap"]):
            hidden.append({**row, "offset": start, "length": stop - start})
    for row in rows:
        if (key := (row["source"], row["stream"])) in reached:
            hidden.append({**row, "offset": reached[key], "length": 1})
    missing = pa.Table.from_pylist([{**row, "status": GAP} for row in hidden], packets.schema)
    never = dict.fromkeys(pc.unique(packets["source"]).to_pylist(), _NEVER_NS)
    ordered, _ = with_gaps(packets, never)
    return pa.concat_tables([ordered, missing])


def _split(given: PartInput, split: Any) -> Outputs:
    """Partition the packets of a file."""
    outputs: Outputs = split(given.part, given.inbox)
    return outputs


class _PassedFiles(NamedTuple):
    """Files of packets that were passed on: `wireyard.pipeline.facts.tasks.Files`."""

    format: str

    @property
    def number(self) -> int:
        """How many there are."""
        return _FILES

    def packets(self, numbers: Iterable[int], inbox: Inbox) -> Iterator[PacketFile]:
        """Yield some files."""
        tables = defaultdict[int, list[pa.Table]](list)
        for passed in inbox.get(FILES, ()):
            tables[passed.origin] += passed.tables
        return (
            PacketFile.in_memory(each, self.format, tables[each])
            for each in numbers
            if each in tables
        )

    def streams(self, number: int, columns: Sequence[str], inbox: Inbox) -> Iterator[pa.Table]:
        """Yield columns of the captured streams that belong to a file."""
        tables = (table for passed in inbox.get(_STREAMS, ()) for table in passed.tables)
        return (table.select(columns) for table in tables)


class _Passing(NamedTuple):
    """Tables of facts that are passed on: `wireyard.pipeline.facts.tasks.Output`."""

    has_delays: bool
    """Whether messages may have delivery delays, which their deliveries do not have."""

    def writer(self) -> Writer:
        """Return the writer of a task."""
        return _TableWriter(self.has_delays)


class _TableWriter:
    """Passes rows of tables on, each under its name."""

    def __init__(self, has_delays: bool) -> None:
        self._has_delays = has_delays
        self._tables = defaultdict[str, list[pa.Table]](list)

    def write(self, name: str, table: pa.Table) -> None:
        """Take rows of a table."""
        if not table.num_rows:
            return
        self._tables[_TABLE + name].append(
            as_text(with_times(name, FrameFiles().locate(table) if name == "messages" else table))
        )
        if name == "messages":
            self._tables[f"{_TABLE}destinations"].append(count_messages(table))
            if (delays := delayed(table)).num_rows:
                self._tables[_DELAYS].append(delays)
        elif name == "deliveries" and self._has_delays:
            self._tables[_WAITS].append(as_text(table.select(LATENCY_NEEDED)))
        elif name == "deliveries":
            self.write("latencies", latencies(table))

    def close(self) -> Iterator[Blob]:
        """Yield the rows."""
        from pyspark import TaskContext

        context = TaskContext.get()
        part = context.partitionId() % _FILES if context else 0
        for name, tables in self._tables.items():
            rows = join_tables(tables)
            if name == _DELAYS:
                yield from pass_on(name, [[rows]] * _FILES)
            else:
                yield from pass_on(name, [[rows]], part)


def _delay(given: PartInput) -> Iterator[Blob]:
    """Pass the latencies of some deliveries on."""
    waits, delays = (
        [table for passed in given.inbox.get(name, ()) for table in passed.tables]
        for name in (_WAITS, _DELAYS)
    )
    if waits:
        rows = latencies(pa.concat_tables(waits), pa.concat_tables(delays) if delays else None)
        yield from pass_on(f"{_TABLE}latencies", [[as_text(with_times("latencies", rows))]])


_MERGED: Final = {
    "destinations": destinations,
    "producers": merge_producers,
}
"""Tables of which several tasks have parts of a row, and how they are merged."""


def _rows_of(
    batches: Iterator[pa.RecordBatch], name: str, schema: pa.Schema, merge: Any
) -> Iterator[pa.RecordBatch]:
    """Yield the rows in the blobs of a table. For `mapInArrow`."""
    from wireyard.spark.types import arrow_schema, spark_schema

    wanted = arrow_schema(spark_schema(schema))
    tables = (table for batch in batches for data in data_of(batch) for table in read_tables(data))
    if merge is not None:
        found = list(tables)
        tables = (as_text(with_times(name, merge(each))) for each in [found] if found)
    for table in tables:
        yield from table.cast(wanted).to_batches()
