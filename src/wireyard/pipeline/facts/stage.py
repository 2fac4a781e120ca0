"""Fact tables, which the layers derive from packets: messages, deliveries, logins, requests.

Every key of the layers begins with the source, except for JMS messages, which several captures may
show. So the facts of some inputs can be made while those of others stay.

MQTT and JMQ are columnar (`mqtt`, `jmq`). For RMP, and for JMS messages that several inputs show,
stages (``wireyard.layers.stages``) run over records: a cluster partitions the input of a stage by
key and sorts it, and a task processes its keys one after the other. It writes facts to files of its
own, as the tasks of the bronze stage do, and keyed records for a later stage too, which are
partitioned again. A task makes one Python call for a stage, and holds the state of one key and some
thousand rows.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from wireyard.formats import get_format
from wireyard.formats.jmq.layout import MESSAGE_TYPES
from wireyard.lake.parts import measure, read_batches, write_table
from wireyard.lake.records import Input
from wireyard.lake.staging import Staging, writing
from wireyard.lake.writer import Lake
from wireyard.layers.destinations import NEEDED as COUNTED
from wireyard.layers.destinations import count_messages, destinations
from wireyard.layers.facts import Facts as ProtocolFacts
from wireyard.layers.facts import registered
from wireyard.layers.frame_files import FrameFiles
from wireyard.layers.jmq.facts import FORMATS as JMS_FORMATS
from wireyard.layers.latencies import DELAYS, delayed, latencies
from wireyard.layers.latencies import NEEDED as LATENCY_NEEDED
from wireyard.layers.rmp.facts import FACTS as RMP_FACTS
from wireyard.layers.stages import Chain
from wireyard.layers.tables import TABLES, all_tables, fact_table, with_times
from wireyard.pipeline.exchange import EXCHANGE, dump, dump_frame_files, load
from wireyard.pipeline.facts.keyed import RECORD, RECORDS, RESULTS, run_stage
from wireyard.pipeline.facts.tasks import (
    COUNTS,
    Counts,
    derive_whole,
    dropped_rows,
    intermediate_file,
    run_tasks,
    write_tables,
)
from wireyard.pipeline.running import Keyed, Runner
from wireyard.streams.plan import make_plan
from wireyard.streams.source import filesystem

__all__ = [
    "FEW",
    "Facts",
    "producers_shown",
    "read_producers",
    "related_to",
    "write_empty",
    "write_facts",
]

_IN_STAGES: Final = ("mqtt", "jms", "rmp")
"""Protocols whose facts are derived in stages if there are many packets."""
FEW: Final = 1 << 14
"""Records of a stage, or RMP packets, up to which the driver processes them itself: to start tasks
would take longer."""
_FEW_BYTES: Final = 64 << 20
_COUNTED_HERE: Final = 1 << 19
"""Messages up to which the driver counts them itself."""
_SPANS: Final = ("source", "producer", "first_ms", "last_ms")
_OF_MESSAGES: Final = ("source", "packet_type", "sys_message_id")

_Work = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""The function of a task, for `mapInArrow`."""


@dataclass(frozen=True, slots=True)
class Facts:
    """The staged files of facts.

    Attributes
    ----------
    files
        By table, each file and the sources of its rows.
    notes
        Notes for the user.
    """

    files: Mapping[str, Mapping[str, Sequence[str]]] = field(default_factory=dict)
    notes: Sequence[str] = ()


def write_facts(
    runner: Runner,
    lake: Staging,
    files: Mapping[str, Sequence[str]],
    streams: Sequence[str],
    captured: Sequence[str],
    inputs: Collection[Input],
    staged: Mapping[str, Collection[str]],
) -> Facts:
    """Stage the facts of some inputs.

    Parameters
    ----------
    files
        Files with their packets, by format.
    streams
        Files of the table `streams` with their streams.
    captured
        Files of the table `files` with the frames of captures.
    inputs
        The inputs, including those that have JMS messages in common with others of them.
    staged
        Files of tables that are staged already.
    """
    lake.make_staging([*all_tables(), RECORDS, EXCHANGE])
    dump_frame_files(lake.staged(""), FrameFiles(chain.from_iterable(map(_rows, captured))))
    staged_facts = _StagedFacts(runner, lake)
    staging, sources = lake.staged(""), [each.source for each in inputs]
    # The code of a protocol is loaded where it occurs.
    if jms := {name: files[name] for name in JMS_FORMATS if files.get(name)}:
        from wireyard.layers.jmq.hops import HOP_STAGES
        from wireyard.pipeline.facts.jmq import write_jmq_facts

        staged_facts.add(write_jmq_facts(runner, staging, jms, streams, sources))
        staged_facts.run(HOP_STAGES)
    if rmp := files.get("rmp"):
        _add_rmp_facts(staged_facts, runner, rmp, sources)
    staged_facts.measure_latencies()
    for facts in registered():
        if facts.protocol not in _IN_STAGES:
            staged_facts.add_whole(facts, files, streams, sources)
    if packets := files.get("mqtt"):
        from wireyard.pipeline.facts.mqtt import mqtt_groups, write_mqtt_facts

        groups = mqtt_groups(packets, inputs, streams)
        staged_facts.add(write_mqtt_facts(runner, staging, groups))
    return staged_facts.finish(staged)


def related_to(lake: Lake, producers: pa.Table, changed: Collection[str]) -> set[str]:
    """Return the inputs of a lake that may have JMS messages in common with others.

    Two inputs are related if they show the same producer in overlapping spans of time. Inputs that
    are related to related ones are included.

    Parameters
    ----------
    producers
        The producers of the others, with their spans: rows of the table `producers`.
    changed
        Inputs of the lake that count among the others, with what they show there: their rows are
        replaced.
    """
    if not (producers.num_rows or changed):
        return set()
    spans = read_producers(lake.paths("producers")).select(_SPANS)
    is_changed = pc.is_in(spans["source"], pa.array(list(changed), pa.string()))
    waiting = pa.concat_tables([producers.select(_SPANS), spans.filter(is_changed)])
    left = spans.filter(pc.invert(is_changed))
    related: set[str] = set()
    while waiting.num_rows and left.num_rows:
        pairs = left.join(waiting, "producer", join_type="inner", right_suffix="_of_other")
        overlap = pc.and_(
            pc.less_equal(pairs["first_ms"], pairs["last_ms_of_other"]),
            pc.less_equal(pairs["first_ms_of_other"], pairs["last_ms"]),
        )
        sources = pc.unique(pairs.filter(overlap)["source"])
        related.update(sources.to_pylist())
        is_new = pc.is_in(left["source"], sources)
        waiting, left = left.filter(is_new), left.filter(pc.invert(is_new))
    return related


def producers_shown(paths: Sequence[str], sources: Collection[str]) -> pa.Table:
    """Return the producers in JMQ packets whose facts are not made yet.

    Messages inside GPackets are not considered.
    """
    from wireyard.layers.jmq.columns import producers_of_keys

    wanted = pa.array(list(sources), pa.string())
    parts = [fact_table("producers", ())]
    for path in paths:
        for table in read_batches(path, _OF_MESSAGES):
            is_message = pc.is_in(table["packet_type"], pa.array(MESSAGE_TYPES, pa.int32()))
            of_source = pc.is_in(table["source"].cast(pa.string()), wanted)
            messages = table.filter(pc.and_(is_message, of_source))
            keys = [messages[name].cast(pa.string()) for name in ("source", "sys_message_id")]
            parts.append(producers_of_keys(pa.table(keys, ["source", "message_key"])))
    return pa.concat_tables(parts)


def read_producers(paths: Iterable[str]) -> pa.Table:
    """Return the rows of some files of the table `producers`."""
    names = [column.name for column in TABLES["producers"]]
    return pa.concat_tables([fact_table("producers", ()), *(_read(path, names) for path in paths)])


def write_empty(lake: Staging, table: str) -> str:
    """Stage an empty file of a table of facts; return its name."""
    return write_table(lake.staged(table), with_times(table, fact_table(table, ())))


def _rows(path: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = _read(path).to_pylist()
    return rows


def _read(path: str, columns: Sequence[str] | None = None) -> pa.Table:
    system, inner = filesystem(path)
    return pq.read_table(inner, filesystem=system, columns=columns)


# --- rmp ------------------------------------------------------------------------------------


def _add_rmp_facts(
    staged_facts: _StagedFacts, runner: Runner, files: Sequence[str], sources: list[str]
) -> None:
    """Stage the facts of files of RMP packets; a sender and its group are one stream."""
    sizes = [measure(path) for path in files]
    few = sum(rows for rows, _ in sizes) <= FEW and sum(size for _, size in sizes) <= _FEW_BYTES
    if few or runner.in_process:
        staged_facts.add_whole(RMP_FACTS, {"rmp": files}, (), sources)
        return
    from wireyard.layers.rmp.chain import CHAIN
    from wireyard.layers.rmp.observer import NEEDED

    schema = make_plan(get_format("rmp"), captured=True).schema
    packets = Keyed(files, schema, NEEDED, ("source", "stream"), "offset", sources)
    first, *later = CHAIN
    staged_facts.run_by_key(packets, first, CHAIN, packed=False)
    staged_facts.run({name: CHAIN[name] for name in later})


# --- stages ---------------------------------------------------------------------------------


def _records(paths: Sequence[str]) -> Keyed:
    """Return the keyed records in some files."""
    return Keyed(paths, RECORD, ("record",), ("key",), "order")


def _run_here(paths: Iterable[str], work: _Work) -> pa.Table:
    """Process a few keyed records in this process, in the order in which a task would get them."""
    rows = pa.concat_tables(map(_read, paths))
    ordered = rows.sort_by([("key", "ascending"), ("order", "ascending")])
    return pa.Table.from_batches(work(iter(ordered.to_batches())), RESULTS)


class _StagedFacts:
    """The files that tasks have written: facts, and intermediate files for later stages."""

    def __init__(self, runner: Runner, lake: Staging) -> None:
        self._runner = runner
        self._lake = lake
        self._facts: defaultdict[str, dict[str, Sequence[str]]] = defaultdict(dict)
        self._rows: Counter[str] = Counter()
        self._intermediate: defaultdict[str, list[tuple[str, int]]] = defaultdict(list)
        self._dropped: Counter[str] = Counter()

    def run(self, stages: Chain) -> None:
        """Run stages, each over the keyed records for it."""
        for name in stages:
            files = self._intermediate.pop(name, [])
            paths = [self._lake.staged(RECORDS, file) for file, _ in files]
            if sum(count for _, count in files) > FEW and not self._runner.in_process:
                self.run_by_key(_records(paths), name, stages, packed=True)
            elif files:
                self.add(_run_here(paths, self._work(name, stages, packed=True)).to_pylist())
            self._delete(paths)

    def run_by_key(self, rows: Keyed, name: str, stages: Chain, *, packed: bool) -> None:
        """Run one of some stages on the cluster, key by key."""
        work = self._work(name, stages, packed=packed)
        self.add(self._runner.run_by_key(rows, work, RESULTS).to_pylist())

    def _work(self, name: str, stages: Chain, *, packed: bool) -> _Work:
        staging = self._lake.staged("")
        return partial(run_stage, name=name, stages=dict(stages), packed=packed, staging=staging)

    def add_whole(
        self,
        facts: ProtocolFacts,
        files: Mapping[str, Sequence[str]],
        streams: Sequence[str],
        sources: Sequence[str],
    ) -> None:
        """Write the facts of few packets; parameters as for `write_facts`."""
        named = [(format, path) for format in facts.formats for path in files.get(format, ())]
        derived = derive_whole(facts, named, streams, sources)
        self.add(write_tables(derived.tables, self._lake.staged("")))
        self.add(dropped_rows(derived.dropped))

    def add(self, results: Iterable[Mapping[str, Any]]) -> None:
        """Add the results of tasks, rows of `RESULTS`."""
        for row in results:
            kind, name, file, count = (row[column] for column in RESULTS.names[:4])
            if kind == "fact":
                self._facts[name][file] = row["sources"]
                self._rows[name] += count
            elif kind == "intermediate":
                self._intermediate[name].append((file, count))
            else:
                self._dropped[name] += count

    def finish(self, staged: Mapping[str, Collection[str]]) -> Facts:
        """Write the summary tables, and delete the files of failed attempts; return all facts."""
        self._count_destinations()
        self._join_producers()
        for table in all_tables():
            self._delete_others(table, {*self._facts[table], *staged.get(table, ())})
        notes = []
        if self._dropped:
            caps = sorted(self._dropped.items())
            things = ", ".join(f"{count:,} above {cap}" for cap, count in caps)
            notes = [f"facts: too much was open at once; dropped: {things}"]
        return Facts(dict(self._facts), notes)

    def _count_destinations(self) -> None:
        """Write the table `destinations` from the counts of tasks, and count the other files."""
        counted = dict(load(path, Counts) for path, _ in self._intermediate.pop(COUNTS, []))
        names = [name for name in self._facts["messages"] if name not in counted]
        paths = [self._lake.staged("messages", name) for name in names]
        here = self._rows["messages"] <= _COUNTED_HERE
        work = partial(_count, staging=self._lake.staged(""))
        results = run_tasks(self._runner, paths, work, here=here)
        counted |= (load(row["file"], Counts) for row in results)
        if counted:
            self._add("destinations", destinations([*counted.values()]))

    def measure_latencies(self) -> None:
        """Write the latencies of the deliveries that were written, file by file.

        Delivery delays that producers requested are in the files of messages. MQTT has none.
        """
        paths = [self._lake.staged("deliveries", file) for file in self._facts["deliveries"]]
        sent = [self._lake.staged("messages", file) for file in self._facts["messages"]]
        work = partial(_measure, delays=_delays(sent), staging=self._lake.staged(""))
        here = self._rows["deliveries"] <= _COUNTED_HERE
        self.add(run_tasks(self._runner, paths, work, here=here))

    def _join_producers(self) -> None:
        """Merge the rows of a producer that several tasks have written."""
        paths = [self._lake.staged("producers", file) for file in self._facts.pop("producers", ())]
        if paths:
            rows = pa.concat_tables(map(_read, paths))
            merged = rows.group_by(["source", "producer"], use_threads=False).aggregate(
                [("first_ms", "min"), ("last_ms", "max")]
            )
            names = {"first_ms": "first_ms_min", "last_ms": "last_ms_max"}
            columns = [merged[names.get(one.name, one.name)] for one in TABLES["producers"]]
            self._add("producers", pa.table(columns, [one.name for one in TABLES["producers"]]))

    def _add(self, table: str, rows: pa.Table) -> None:
        sources = sorted(pc.unique(rows["source"]).to_pylist())
        self._facts[table][write_table(self._lake.staged(table), with_times(table, rows))] = sources

    def _delete_others(self, table: str, names: Collection[str]) -> None:
        """Delete all staged files of a table but these: failed or superseded attempts left them."""
        there = self._lake.list_staged(table)
        self._delete(self._lake.staged(table, name) for name in there if name not in names)

    def _delete(self, paths: Iterable[str]) -> None:
        with writing(self._lake.url):
            for path in paths:
                system, inner = filesystem(path)
                system.delete_file(inner)


def _delays(paths: Iterable[str]) -> pa.Table:
    """Return the delivery delays of messages; row groups without any are skipped by statistics."""
    parts = [fact_table("messages", ()).select(DELAYS)]
    for path in paths:
        system, inner = filesystem(path)
        messages = pq.read_table(
            inner, filesystem=system, columns=list(DELAYS), filters=[(DELAYS[1], ">", 0)]
        )
        parts.append(delayed(messages).cast(parts[0].schema))
    return pa.concat_tables(parts)


def _measure(path: str, delays: pa.Table, staging: str) -> Iterator[Mapping[str, Any]]:
    """Write the latencies of a file of deliveries."""
    parts = (latencies(table, delays) for table in read_batches(path, LATENCY_NEEDED))
    yield from write_tables((("latencies", part) for part in parts), staging)


def _count(path: str, staging: str) -> Iterator[Mapping[str, Any]]:
    """Write the messages of a file counted by destination."""
    counts = path, count_messages(_read(path, list(COUNTED)))
    yield intermediate_file(COUNTS, dump(staging, counts, Counts))
