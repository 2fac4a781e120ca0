"""The tables that the layers make of packets: what became of messages, logins, requests.

What sets and joins can say is Spark SQL: which packets there are, when each was complete, and which
belong together. The layers have a state from packet to packet, so their steps
(``wireyard.layers.steps``) run in Python: Spark deals what a step takes to tasks by its key, in its
order, and a task goes through its keys one after the other. What follows it writes to files of its
own, as the tasks of the bronze stage do; notes for a later step too, from which they are dealt
anew. There is one Python call a task and step, and a task holds the state of one key and some
thousand rows, however many packets there are.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it

from wireyard.layers.jmq.chain import CHAIN as JMS
from wireyard.layers.steps import Chain, Step
from wireyard.spark.exchange import EXCHANGE
from wireyard.spark.fact_rows import FACTS, fact_batch
from wireyard.spark.jmq_facts import is_held, write_jmq_facts
from wireyard.spark.lake import Input, Lake, writing
from wireyard.spark.mqtt_facts import mqtt_groups, write_mqtt_facts
from wireyard.spark.parts import PartFile
from wireyard.spark.steps import FOUND, NOTE, NOTES, run_step
from wireyard.spark.streams import captured_streams
from wireyard.spark.tables.message import MESSAGES
from wireyard.spark.types import spark_schema
from wireyard.spark.urls import literal
from wireyard.streams.source import filesystem

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["FACTS", "FEW", "Layer", "write_facts"]

JMS_FORMATS = ("jmq", "gpacket")
FEW = 1 << 14
"""Notes of a step that need no tasks: to start some takes longer than to go through them."""

_Work = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""What a task does with the rows that it is given, in their order."""


@dataclass(frozen=True)
class Layer:
    """How the packets of some formats become rows of tables."""

    chain: Chain
    rows: Callable[[Mapping[str, DataFrame], DataFrame], DataFrame | None]
    """Packets by format, and what captures tell of their streams -> the rows that the first step
    takes, with a `key` each; None if there are none."""


def write_facts(
    layers: Iterable[Layer],
    packets: Mapping[str, DataFrame],
    files: Mapping[str, Sequence[str]],
    lake: Lake,
    inputs: Collection[Input],
) -> list[str]:
    """Stage the tables of facts; return what is to be said about them.

    Parameters
    ----------
    packets
        By format, all packets that there will be after the commit.
    files
        Where they are, by format.
    inputs
        The inputs that there will be, for what captures tell of their streams.
    """
    lake.make_staging([*FACTS, NOTES, EXCHANGE, "messages"])
    streams = captured_streams(inputs)
    told = next(iter(packets.values())).sparkSession.createDataFrame(streams)
    stage = _Stage(lake)
    found = lake.list_staged("messages")
    spark, staging = next(iter(packets.values())).sparkSession, lake.staged("")
    jms = {name: files[name] for name in JMS_FORMATS if files.get(name)}
    for layer in layers:
        if layer.chain is JMS and (not jms or is_held(jms)):
            continue
        rows = layer.rows(packets, told)
        if rows is not None:
            stage.run(layer.chain, _in_order(rows, timed=len(streams) > 0))
    if is_held(jms):
        closed = streams.filter(streams["ended"].is_valid())
        ended = zip(*(closed[name].to_pylist() for name in ("source", "stream")), strict=True)
        stage.take(write_jmq_facts(spark, staging, jms, ended))
    groups = mqtt_groups(files.get("mqtt", ()), inputs, streams)
    stage.take(write_mqtt_facts(spark, staging, groups))
    stage.keep_messages(found)
    return stage.finish()


def _in_order(rows: DataFrame, timed: bool) -> DataFrame:
    """Deal rows to tasks by their key, and put those of each in the order of time.

    A receiver reads a stream in order, so what was complete early waits for what is before it.
    Where no packet is `timed`, the streams of a key go one behind the other. What is known of
    streams has no offset and goes before all packets.
    """
    dealt = rows.repartition("key")
    order = ["stream", "offset"]
    if timed:
        before = Window.partitionBy("key", "stream").orderBy("offset")
        before = before.rowsBetween(Window.unboundedPreceding, Window.currentRow)
        dealt = dealt.withColumn("reached", F.max(F.struct("captured_ns", "frame")).over(before))
        order = ["reached", *order]
    ordered = dealt.sortWithinPartitions("key", F.col("offset").isNotNull(), *order)
    return ordered.drop("reached")


def _in_key_order(spark: SparkSession, notes: Iterable[str]) -> DataFrame:
    """Deal the notes in files to tasks by their key, and put those of each in their order."""
    rows = spark.read.schema(spark_schema(NOTE)).parquet(*map(literal, notes))
    ordered = rows.repartition("key").sortWithinPartitions("key", "order")
    return ordered.drop("order")


def _by_tasks(rows: DataFrame, work: _Work) -> pa.Table:
    return rows.mapInArrow(work, spark_schema(FOUND)).toArrow()


def _here(notes: Iterable[str], work: _Work) -> pa.Table:
    """Go through a few notes in this process, in the order in which a task would get them."""
    rows = pa.concat_tables(map(_read, notes))
    ordered = rows.sort_by([("key", "ascending"), ("order", "ascending")])
    return pa.Table.from_batches(work(iter(ordered.to_batches())), FOUND)


def _read(path: str) -> pa.Table:
    system, inner = filesystem(path)
    return pq.read_table(inner, filesystem=system)


class _Stage:
    """The steps of all layers, and the files that their tasks have written."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._facts: defaultdict[str, list[str]] = defaultdict(list)
        self._notes: defaultdict[str, list[tuple[str, int]]] = defaultdict(list)
        self._dropped: Counter[str] = Counter()

    def run(self, chain: Chain, rows: DataFrame) -> None:
        """Run the steps of a chain; the first takes `rows`."""
        (_, first), *later = chain.items()
        self.take(_by_tasks(rows, self._work(first, packed=False)).to_pylist())
        for name, step in later:
            work = self._work(step, packed=True)
            files = self._notes.pop(name, [])
            paths = [self._lake.staged(NOTES, file) for file, _ in files]
            if sum(things for _, things in files) > FEW:
                self.take(_by_tasks(_in_key_order(rows.sparkSession, paths), work).to_pylist())
            elif files:
                self.take(_here(paths, work).to_pylist())
            self._delete(paths)

    def _work(self, step: Step, *, packed: bool) -> _Work:
        return partial(run_step, step=step, packed=packed, staging=self._lake.staged(""))

    def take(self, found: Iterable[Mapping[str, Any]]) -> None:
        """Take what tasks have written, rows of `FOUND`."""
        for one in found:
            kind, name, file, things = (one[column] for column in FOUND.names)
            if kind == "fact":
                self._facts[name].append(file)
            elif kind == "note":
                self._notes[name].append((file, things))
            else:
                self._dropped[name] += things

    def finish(self) -> list[str]:
        """See to it that each table is what was written of it; return what is to be said."""
        for table in FACTS:
            self._keep(table, self._facts[table] or [self._write_nothing(table)])
        if not self._dropped:
            return []
        things = ", ".join(f"{many:,} above {cap}" for cap, many in sorted(self._dropped.items()))
        return [f"facts: more was open at once than is remembered; forgotten: {things}"]

    def keep_messages(self, found: Iterable[str]) -> None:
        """See to it that there are the messages that were found before, and those of layers."""
        names = {*found, *self._facts["messages"]}
        if not names:
            names.add(self._write(MESSAGES.empty_table(), "messages"))
        self._keep("messages", names)

    def _write_nothing(self, table: str) -> str:
        return self._write(pa.Table.from_batches([fact_batch(table, ())]), table)

    def _write(self, rows: pa.Table, table: str) -> str:
        name = f"part-{uuid4().hex}.parquet"
        file = PartFile(self._lake.staged(table, name), rows.schema)
        for batch in rows.to_batches() or [pa.RecordBatch.from_pylist([], rows.schema)]:
            file.write(batch)
        file.close()
        return name

    def _keep(self, table: str, names: Collection[str]) -> None:
        """Delete what attempts have left that did not end, or that another one overtook."""
        there = self._lake.list_staged(table)
        self._delete(self._lake.staged(table, name) for name in there if name not in names)

    def _delete(self, paths: Iterable[str]) -> None:
        with writing(self._lake.url):
            for path in paths:
                system, inner = filesystem(path)
                system.delete_file(inner)
