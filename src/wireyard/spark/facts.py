"""The tables that the layers make of packets: messages, what became of them, logins, requests.

Every key of the layers begins with the source, but for JMS messages, which several captures may
show. So facts are made of some inputs, and those of others stay as they are.

MQTT and JMQ have columns (``spark.mqtt_facts``, ``spark.jmq_facts``). Of RMP, and of JMS messages
that several inputs show, steps (``wireyard.layers.stages``) go through records: Spark deals what a
step takes to tasks by its key, in its order, and a task goes through its keys one after the other.
What follows it writes to files of its own, as the tasks of the bronze stage do; notes for a later
step too, from which they are partitioned anew. There is one Python call a task and step, and a task
holds the state of one key and some thousand rows.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from wireyard.formats import get_format
from wireyard.formats.jmq.layout import MESSAGE_TYPES
from wireyard.layers.destinations import NEEDED as COUNTED
from wireyard.layers.destinations import count_messages, destinations
from wireyard.layers.frame_files import FrameFiles
from wireyard.layers.jmq.columns import producers_of_keys
from wireyard.layers.jmq.hops import HOP_STAGES
from wireyard.layers.latencies import DELAYS, delayed, latencies
from wireyard.layers.latencies import NEEDED as LATENCY_NEEDED
from wireyard.layers.rmp.chain import CHAIN as RMP
from wireyard.layers.rmp.chain import derive_tables as rmp_tables
from wireyard.layers.rmp.observer import NEEDED as RMP_NEEDED
from wireyard.layers.stages import Chain, Stage
from wireyard.layers.tables import FACTS, TABLES, fact_table, with_times
from wireyard.spark.exchange import EXCHANGE, dump, dump_frame_files, load
from wireyard.spark.fact_tasks import (
    COUNTS,
    dropped_rows,
    note_file,
    run_tasks,
    write_tables,
)
from wireyard.spark.jmq_facts import FORMATS as JMS_FORMATS
from wireyard.spark.jmq_facts import write_jmq_facts
from wireyard.spark.lake import Input, Lake, writing
from wireyard.spark.mqtt_facts import mqtt_groups, write_mqtt_facts
from wireyard.spark.parts import measure, read_batches, write_table
from wireyard.spark.running import Runner
from wireyard.spark.steps import FOUND, NOTE, NOTES, run_step
from wireyard.spark.urls import literal
from wireyard.streams.plan import make_plan
from wireyard.streams.source import filesystem

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = [
    "FEW",
    "Facts",
    "producers_made",
    "producers_of_inputs",
    "producers_shown",
    "related_to",
    "write_empty",
    "write_facts",
]

FEW: Final = 1 << 14
"""Notes of a step, or RMP packets, that need no tasks: to start some takes longer than to go
through them."""
_FEW_BYTES: Final = 64 << 20
_COUNTED_HERE: Final = 1 << 19
"""Messages that are counted without tasks."""
_SPANS: Final = ("source", "producer", "first_ms", "last_ms")
_OF_MESSAGES: Final = ("source", "packet_type", "sys_message_id")
_BETWEEN: Final = "\0"
"""Between the parts of a key: it is in no path, address or id."""

_Work = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""What a task does with the rows that it is given, in their order."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What was staged.

    Attributes
    ----------
    files
        By table, each file and the sources of its rows.
    notes
        What is to be said about them.
    """

    files: Mapping[str, Mapping[str, Sequence[str]]] = field(default_factory=dict)
    notes: Sequence[str] = ()


def write_facts(
    runner: Runner,
    lake: Lake,
    files: Mapping[str, Sequence[str]],
    streams: Sequence[str],
    captured: Sequence[str],
    inputs: Collection[Input],
    staged: Mapping[str, Sequence[str]],
) -> Facts:
    """Stage the facts of some inputs.

    Parameters
    ----------
    files
        Where their packets are, by format.
    streams
        Where what captures show of their streams is: files of the table `streams`.
    captured
        Files of the table `files`, which has the frames of captures.
    inputs
        Them, with those that have JMS messages in common with them.
    staged
        Files of tables that are staged already.
    """
    lake.make_staging([*FACTS, NOTES, EXCHANGE])
    dump_frame_files(lake.staged(""), FrameFiles(chain.from_iterable(map(_rows, captured))))
    stage = _Stage(runner, lake)
    staging, sources = lake.staged(""), [each.source for each in inputs]
    jms = {name: files[name] for name in JMS_FORMATS if files.get(name)}
    stage.take(write_jmq_facts(runner, staging, jms, streams, sources))
    stage.run(HOP_STAGES)
    rmp = files.get("rmp", ())
    sizes = [measure(path) for path in rmp]
    if sum(rows for rows, _ in sizes) <= FEW and sum(size for _, size in sizes) <= _FEW_BYTES:
        stage.take(_write_rmp(rmp, sources, staging))
    else:
        (_, first), *later = RMP.items()
        stage.take(stage.by_tasks(_rmp_rows(runner.spark, rmp, sources), first, packed=False))
        stage.run(dict(later))
    stage.measure_latencies()
    groups = mqtt_groups(files.get("mqtt", ()), inputs, streams)
    stage.take(write_mqtt_facts(runner, staging, groups))
    return stage.finish(staged)


def related_to(lake: Lake, producers: pa.Table, changed: Collection[str]) -> set[str]:
    """Return the inputs of a lake that may have JMS messages in common with others.

    They show the same producer in spans that overlap, or are related in turn to one that does.

    Parameters
    ----------
    producers
        The producers of the others, with their spans: rows of the table.
    changed
        Inputs that the lake holds no more.
    """
    held = lake.paths("producers")
    if not producers.num_rows or not held:
        return set()
    spans = pa.concat_tables(map(_read, held)).select(_SPANS)
    gone = pa.array(list(changed), pa.string())
    waiting = producers.select(_SPANS)
    left = spans.filter(pc.invert(pc.is_in(spans["source"], gone)))
    found: set[str] = set()
    while waiting.num_rows and left.num_rows:
        pairs = left.join(waiting, "producer", join_type="inner", right_suffix="_of_other")
        overlap = pc.and_(
            pc.less_equal(pairs["first_ms"], pairs["last_ms_of_other"]),
            pc.less_equal(pairs["first_ms_of_other"], pairs["last_ms"]),
        )
        sources = pc.unique(pairs.filter(overlap)["source"])
        found.update(sources.to_pylist())
        is_new = pc.is_in(left["source"], sources)
        waiting, left = left.filter(is_new), left.filter(pc.invert(is_new))
    return found


def producers_of_inputs(lake: Lake, sources: Collection[str]) -> pa.Table:
    """Return the rows of the table of producers that the lake has of some inputs."""
    rows = _producers(lake.paths("producers"))
    return rows.filter(pc.is_in(rows["source"], pa.array(list(sources), pa.string())))


def producers_made(lake: Lake, facts: Facts) -> pa.Table:
    """Return the rows of the table of producers that were staged."""
    return _producers(lake.staged("producers", file) for file in facts.files.get("producers", ()))


def producers_shown(paths: Sequence[str], sources: Collection[str]) -> pa.Table:
    """Return the producers that JMQ packets show, before any facts are made of these.

    Messages inside GPackets are not looked at.
    """
    wanted = pa.array(list(sources), pa.string())
    parts = [fact_table("producers", ())]
    for path in paths:
        for table in read_batches(path, _OF_MESSAGES):
            is_message = pc.is_in(table["packet_type"], pa.array(MESSAGE_TYPES, pa.int32()))
            of_source = pc.is_in(table["source"].cast(pa.string()), wanted)
            some = table.filter(pc.and_(is_message, of_source))
            keys = [some[name].cast(pa.string()) for name in ("source", "sys_message_id")]
            parts.append(producers_of_keys(pa.table(keys, ["source", "message_key"])))
    return pa.concat_tables(parts)


def _producers(paths: Iterable[str]) -> pa.Table:
    """Return the rows that some files have of the table of producers."""
    names = [column.name for column in TABLES["producers"]]
    return pa.concat_tables([fact_table("producers", ()), *(_read(path, names) for path in paths)])


def write_empty(lake: Lake, table: str) -> str:
    """Stage a file of a table of facts without rows; return its name."""
    return write_table(lake.staged(table), with_times(table, fact_table(table, ())))


def _rows(path: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = _read(path).to_pylist()
    return rows


def _read(path: str, columns: Sequence[str] | None = None) -> pa.Table:
    system, inner = filesystem(path)
    return pq.read_table(inner, filesystem=system, columns=columns)


# --- rmp ------------------------------------------------------------------------------------


def _rmp_rows(spark: SparkSession, files: Sequence[str], sources: Collection[str]) -> DataFrame:
    """Return RMP packets with their keys, in the order of each stream.

    A sender and its group are one stream.
    """
    from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it

    from wireyard.spark.types import spark_schema

    schema = spark_schema(make_plan(get_format("rmp"), captured=True).schema)
    rows = spark.read.schema(schema).parquet(*map(literal, files))
    rows = rows.where(F.col("source").isin(*sources))
    keyed = rows.select(*RMP_NEEDED, F.concat_ws(_BETWEEN, "source", "stream").alias("key"))
    return keyed.repartition("key").sortWithinPartitions("key", "offset")


def _write_rmp(
    files: Sequence[str], sources: Collection[str], staging: str
) -> Iterator[Mapping[str, Any]]:
    """Write what a few RMP packets say."""
    wanted = pa.array(sources, pa.string())
    parts = [
        table.filter(pc.is_in(table["source"].cast(pa.string()), wanted))
        for path in files
        for table in read_batches(path, RMP_NEEDED)
    ]
    if parts:
        rows = [row for part in parts for row in part.to_pylist()]
        found = rmp_tables(sorted(rows, key=itemgetter("source", "stream", "offset")))
        made = ((name, fact_table(name, some)) for name, some in found.tables.items())
        yield from write_tables(made, staging)
        yield from dropped_rows(found.dropped)


# --- steps ----------------------------------------------------------------------------------


def _in_key_order(spark: SparkSession, notes: Iterable[str]) -> DataFrame:
    """Deal the notes in files to tasks by their key, and put those of each in their order."""
    from wireyard.spark.types import spark_schema

    rows = spark.read.schema(spark_schema(NOTE)).parquet(*map(literal, notes))
    ordered = rows.repartition("key").sortWithinPartitions("key", "order")
    return ordered.drop("order")


def _here(notes: Iterable[str], work: _Work) -> pa.Table:
    """Go through a few notes in this process, in the order in which a task would get them."""
    rows = pa.concat_tables(map(_read, notes))
    ordered = rows.sort_by([("key", "ascending"), ("order", "ascending")])
    return pa.Table.from_batches(work(iter(ordered.to_batches())), FOUND)


class _Stage:
    """The files that tasks have written, and the steps that notes among them wait for."""

    def __init__(self, runner: Runner, lake: Lake) -> None:
        self._runner = runner
        self._lake = lake
        self._facts: defaultdict[str, dict[str, Sequence[str]]] = defaultdict(dict)
        self._rows: Counter[str] = Counter()
        self._notes: defaultdict[str, list[tuple[str, int]]] = defaultdict(list)
        self._dropped: Counter[str] = Counter()

    def run(self, steps: Chain) -> None:
        """Run steps over the notes for them."""
        for name, step in steps.items():
            files = self._notes.pop(name, [])
            paths = [self._lake.staged(NOTES, file) for file, _ in files]
            if sum(things for _, things in files) > FEW:
                rows = _in_key_order(self._runner.spark, paths)
                self.take(self.by_tasks(rows, step, packed=True))
            elif files:
                self.take(_here(paths, self._work(step, packed=True)).to_pylist())
            self._delete(paths)

    def by_tasks(self, rows: DataFrame, step: Stage, *, packed: bool) -> list[Mapping[str, Any]]:
        """Have Spark run a step; return what its tasks have written."""
        from wireyard.spark.types import spark_schema

        work = self._work(step, packed=packed)
        found: list[Mapping[str, Any]] = (
            rows.mapInArrow(work, spark_schema(FOUND)).toArrow().to_pylist()
        )
        return found

    def _work(self, step: Stage, *, packed: bool) -> _Work:
        return partial(run_step, step=step, packed=packed, staging=self._lake.staged(""))

    def take(self, found: Iterable[Mapping[str, Any]]) -> None:
        """Take what tasks have written, rows of `FOUND`."""
        for one in found:
            kind, name, file, things = (one[column] for column in FOUND.names[:4])
            if kind == "fact":
                self._facts[name][file] = one["sources"]
                self._rows[name] += things
            elif kind == "note":
                self._notes[name].append((file, things))
            else:
                self._dropped[name] += things

    def finish(self, staged: Mapping[str, Sequence[str]]) -> Facts:
        """See to it that each table is what was written of it; return what there is."""
        self._count_destinations()
        self._join_producers()
        for table in FACTS:
            self._keep(table, {*self._facts[table], *staged.get(table, ())})
        notes = []
        if self._dropped:
            caps = sorted(self._dropped.items())
            things = ", ".join(f"{many:,} above {cap}" for cap, many in caps)
            notes = [f"facts: more was open at once than is remembered; forgotten: {things}"]
        return Facts(dict(self._facts), notes)

    def _count_destinations(self) -> None:
        """Write how much was sent where: what tasks have counted, and the messages of steps."""
        counted = dict(load(path) for path, _ in self._notes.pop(COUNTS, []))
        names = [name for name in self._facts["messages"] if name not in counted]
        paths = [self._lake.staged("messages", name) for name in names]
        here = self._rows["messages"] <= _COUNTED_HERE
        work = partial(_count, staging=self._lake.staged(""))
        found = run_tasks(self._runner, paths, work, here=here)
        if counts := [*counted.values(), *(load(one["file"]) for one in found)]:
            self._add("destinations", destinations(counts))

    def measure_latencies(self) -> None:
        """Write how long messages waited, from the deliveries that were written, file by file.

        The delays that producers asked for are in what was written of messages. MQTT has none.
        """
        paths = [self._lake.staged("deliveries", file) for file in self._facts["deliveries"]]
        sent = [self._lake.staged("messages", file) for file in self._facts["messages"]]
        work = partial(_measure, delays=_delays(sent), staging=self._lake.staged(""))
        here = self._rows["deliveries"] <= _COUNTED_HERE
        self.take(run_tasks(self._runner, paths, work, here=here))

    def _join_producers(self) -> None:
        """Write one row for each producer of a source, of whose messages tasks had a part each."""
        paths = [self._lake.staged("producers", file) for file in self._facts.pop("producers", ())]
        if paths:
            rows = pa.concat_tables(map(_read, paths))
            found = rows.group_by(["source", "producer"], use_threads=False).aggregate(
                [("first_ms", "min"), ("last_ms", "max")]
            )
            names = {"first_ms": "first_ms_min", "last_ms": "last_ms_max"}
            columns = [found[names.get(one.name, one.name)] for one in TABLES["producers"]]
            self._add("producers", pa.table(columns, [one.name for one in TABLES["producers"]]))

    def _add(self, table: str, rows: pa.Table) -> None:
        sources = sorted(pc.unique(rows["source"]).to_pylist())
        self._facts[table][write_table(self._lake.staged(table), with_times(table, rows))] = sources

    def _keep(self, table: str, names: Collection[str]) -> None:
        """Delete what attempts have left that did not end, or that another one overtook."""
        there = self._lake.list_staged(table)
        self._delete(self._lake.staged(table, name) for name in there if name not in names)

    def _delete(self, paths: Iterable[str]) -> None:
        with writing(self._lake.url):
            for path in paths:
                system, inner = filesystem(path)
                system.delete_file(inner)


def _delays(paths: Iterable[str]) -> pa.Table:
    """Return the delivery delays of messages; statistics of the files show where there is none."""
    parts = [fact_table("messages", ()).select(DELAYS)]
    for path in paths:
        system, inner = filesystem(path)
        found = pq.read_table(
            inner, filesystem=system, columns=list(DELAYS), filters=[(DELAYS[1], ">", 0)]
        )
        parts.append(delayed(found).cast(parts[0].schema))
    return pa.concat_tables(parts)


def _measure(path: str, delays: pa.Table, staging: str) -> Iterator[Mapping[str, Any]]:
    """Write how long the messages in a file of deliveries waited."""
    parts = (latencies(table, delays) for table in read_batches(path, LATENCY_NEEDED))
    yield from write_tables((("latencies", part) for part in parts), staging)


def _count(path: str, staging: str) -> Iterator[Mapping[str, Any]]:
    """Write how many of the messages in a file were sent where."""
    yield note_file(COUNTS, dump(staging, count_messages(_read(path, list(COUNTED)))))
