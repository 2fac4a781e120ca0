"""Fact tables, which the layers derive from packets: messages, deliveries, logins, requests.

Every key of the layers begins with the source, except for JMS messages, which several captures may
show. So the facts of some inputs can be made while those of others stay.

1. A task derives the facts of a protocol from all packets of some inputs, if they are few enough to
   be held (`registered`). More packets are partitioned by key among tasks, in several stages
   (`Division`): those of `mqtt` and `jmq` as columns, those of `rmp` row by row.
2. If producers requested delivery delays, latencies are computed anew from the files of deliveries.
3. One task merges the counts of messages, and the producers that several tasks have seen.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from operator import attrgetter
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from wireyard.formats.jmq.layout import MESSAGE_TYPES
from wireyard.lake.parts import read_batches
from wireyard.lake.records import Input
from wireyard.lake.staging import Staging
from wireyard.lake.writer import Lake
from wireyard.layers.destinations import destinations
from wireyard.layers.facts import registered
from wireyard.layers.frame_files import FrameFiles, ends_of_captures
from wireyard.layers.latencies import NEEDED as LATENCY_NEEDED
from wireyard.layers.latencies import latencies
from wireyard.layers.tables import TABLES, all_tables, fact_table, with_times
from wireyard.pipeline.facts.tasks import (
    TASK_PACKETS,
    Division,
    FactFile,
    Group,
    Messages,
    Outputs,
    Result,
    Staged,
    derive_groups,
    divide,
    division_of,
    groups_of,
    run_tasks,
    write_tables,
)
from wireyard.pipeline.inputs.tasks import group_in_order
from wireyard.pipeline.running import Runner
from wireyard.streams.source import filesystem

_SPANS: Final = ("source", "producer", "first_ms", "last_ms")
_OF_MESSAGES: Final = ("source", "packet_type", "sys_message_id")

_LEFT_OUT: Final = {
    "undelivered": "deliveries to subscribers that did not get a message are in no row: too many"
    " subscriptions match too many messages",
    "early": "deliveries were captured before their messages, by up to 5 ms, and have the times of"
    " these",
    "repeats": "packets of the RMP messaging layer came again, sent or captured, and count once",
    "subscriptions": "subscriptions of clients with very many match no message",
    "filters": "subscriptions of brokers with very many match no message",
    "requests": "requests count as unanswered: very many waited for a reply",
}
"""What tables lack where a limit was reached, or have other than captured, in words."""


@dataclass(frozen=True, slots=True)
class Facts:
    """The staged files of facts, and notes for the user.

    `files` has by table each file, and the sources of its rows.
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
) -> Facts:
    """Stage the facts of some inputs.

    `files` are the files with their packets, by format; `streams` files of the table `streams` with
    their streams, and `captured` files of the table `files` with the frames of captures. `inputs`
    includes those that have JMS messages in common with others of them.
    """
    lake.make_staging(all_tables())
    in_files = [*chain.from_iterable(map(_rows, captured))]
    ends_ns = ends_of_captures(in_files)
    output = Staged(lake.staged(""), FrameFiles(in_files).spans, ends_ns)
    staged_facts = _StagedFacts(runner, lake, output)
    tasks, large = list[list[Group]](), list[tuple[Division, Group]]()
    for facts in registered():
        groups = groups_of(facts, files, inputs, streams)
        division = division_of(facts.protocol) if groups else None
        most = sys.maxsize
        if division is not None:
            most = division.most_here if runner.in_process else division.most_packets
            large += [(division, group) for group in groups if group.packets > most]
        small = [group for group in groups if group.packets <= most]
        tasks += group_in_order(small, attrgetter("packets"), min(most, TASK_PACKETS))
    staged_facts.add(run_tasks(runner, tasks, partial(derive_groups, output=output)))
    for division, group in large:
        staged_facts.add(divide(runner, output, group, division))
    staged_facts.derive_more()
    return staged_facts.finish()


def related_to(lake: Lake, producers: pa.Table, changed: Collection[str]) -> set[str]:
    """Return the inputs of a lake that may have JMS messages in common with others.

    Two inputs are related if they show the same producer in overlapping spans of time. Inputs that
    are related to related ones are included. `producers` has the producers of the others with their
    spans, as rows of the table `producers`. `changed` are inputs of the lake that count among the
    others, with what they show there: their rows are replaced.
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


def producers_shown(runner: Runner, paths: Sequence[str], sources: Collection[str]) -> pa.Table:
    """Return the producers in JMQ packets whose facts are not made yet.

    Messages inside GPackets are not considered.
    """
    found = runner.run(paths, partial(_producers, sources=tuple(sources)), pa.Table)
    return pa.concat_tables([fact_table("producers", ()), *found])


def _producers(path: str, sources: Sequence[str]) -> Iterator[pa.Table]:
    """Yield the producers in a file of JMQ packets."""
    from wireyard.layers.jmq.columns import producers_of_keys

    wanted = pa.array(sources, pa.string())
    for table in read_batches(path, _OF_MESSAGES):
        is_message = pc.is_in(table["packet_type"], pa.array(MESSAGE_TYPES, pa.int32()))
        of_source = pc.is_in(table["source"].cast(pa.string()), wanted)
        messages = table.filter(pc.and_(is_message, of_source))
        keys = [messages[name].cast(pa.string()) for name in ("source", "sys_message_id")]
        yield producers_of_keys(pa.table(keys, ["source", "message_key"]))


def merge_producers(parts: Iterable[pa.Table]) -> pa.Table:
    """Return the table `producers` of the rows that several tasks have made."""
    rows = pa.concat_tables(parts)
    merged = rows.group_by(["source", "producer"], use_threads=False).aggregate(
        [("first_ms", "min"), ("last_ms", "max")]
    )
    names = {"first_ms": "first_ms_min", "last_ms": "last_ms_max"}
    columns = [merged[names.get(one.name, one.name)] for one in TABLES["producers"]]
    return pa.table(columns, [one.name for one in TABLES["producers"]])


def read_producers(paths: Iterable[str]) -> pa.Table:
    """Return the rows of some files of the table `producers`."""
    names = [column.name for column in TABLES["producers"]]
    return pa.concat_tables([fact_table("producers", ()), *(_read(path, names) for path in paths)])


def empty_facts(table: str) -> pa.Table:
    """Return a table of facts without rows."""
    return with_times(table, fact_table(table, ()))


def _rows(path: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = _read(path).to_pylist()
    return rows


def _read(path: str, columns: Sequence[str] | None = None) -> pa.Table:
    system, inner = filesystem(path)
    with system.open_input_file(inner) as file:
        return pq.read_table(file, columns=columns and [*columns])


# --- stages ---------------------------------------------------------------------------------


class _StagedFacts:
    """The files of facts that tasks have written, and the values that they have returned."""

    def __init__(self, runner: Runner, lake: Staging, output: Staged) -> None:
        self._runner, self._lake, self._output = runner, lake, output
        self._facts: defaultdict[str, dict[str, Sequence[str]]] = defaultdict(dict)
        self._messages = list[Messages]()
        self._dropped: Counter[str] = Counter()

    def add(self, results: Iterable[Result]) -> None:
        """Add the results of tasks."""
        for result in results:
            if isinstance(result, FactFile):
                self._facts[result.table][result.name] = result.sources
            elif isinstance(result, Messages):
                self._messages.append(result)
            else:
                self._dropped[result.cap] += result.things

    def finish(self) -> Facts:
        """Return all facts. Files of failed attempts are in no commit, and go with their run."""
        notes = []
        if self._dropped:
            caps = sorted(self._dropped.items())
            notes = [
                f"facts: {self._dropped[cap]:,} {text}"
                for cap, text in _LEFT_OUT.items()
                if cap in self._dropped
            ]
            things = ", ".join(
                f"{count:,} above {cap}" for cap, count in caps if cap not in _LEFT_OUT
            )
            if things:
                notes.append(f"facts: too much was open at once; dropped: {things}")
        return Facts(dict(self._facts), notes)

    def derive_more(self) -> None:
        """Write the tables that follow from those of all tasks."""
        deliveries = [self._lake.staged("deliveries", file) for file in self._facts["deliveries"]]
        delays = [one.delayed for one in self._messages if one.delayed.num_rows]
        if delays and deliveries:
            # A message and its deliveries may be of different tasks.
            self._facts.pop("latencies", None)
            known = pa.concat_tables(delays)
            work = partial(_delay, delays=known, output=self._output)
            self.add(run_tasks(self._runner, deliveries, work))
        seen = self._facts.pop("producers", {})
        parts = _Parts(
            tuple(one.counts for one in self._messages),
            tuple(self._lake.staged("producers", file) for file in seen),
        )
        work = partial(_merge, output=self._output)
        self.add(run_tasks(self._runner, [parts] * any(parts), work))


def _delay(path: str, delays: pa.Table, output: Staged) -> Outputs:
    """Write the latencies of a file of deliveries whose messages may have delivery delays."""
    parts = (latencies(rows, delays) for rows in read_batches(path, LATENCY_NEEDED))
    yield from write_tables((("latencies", part) for part in parts), output)


class _Parts(NamedTuple):
    """Files with parts of tables of which an input has few rows."""

    counts: tuple[pa.Table, ...]
    """Counts of messages."""
    producers: tuple[str, ...]


def _merge(parts: _Parts, output: Staged) -> Outputs:
    """Write the tables `destinations` and `producers`, with one row for a key of several parts."""
    tables = list[tuple[str, pa.Table]]()
    if parts.counts:
        tables.append(("destinations", destinations(parts.counts)))
    if parts.producers:
        tables.append(("producers", merge_producers(map(_read, parts.producers))))
    yield from write_tables(tables, output)
