"""The tables of facts of MQTT in Spark: small inputs by tasks, a large one by steps.

Every key of the layer begins with the source, so inputs have nothing to do with each other: a task
takes some small ones from their packets to rows of tables. One that is too large for a task goes
through the steps of ``wireyard.layers.mqtt.columns``, each a stage whose tasks take some of its
keys: packets by client, messages by topic.
"""

from __future__ import annotations

import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from heapq import heapreplace
from itertools import accumulate, chain
from operator import attrgetter
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from wireyard.formats.base import Row
from wireyard.lake.ledgers import captured_streams
from wireyard.lake.snapshot import name_of
from wireyard.layers.grouping import split_rows, text_codes
from wireyard.layers.latencies import with_latencies
from wireyard.layers.mqtt.columns import Matched, explain_rest, known_of, match, track
from wireyard.layers.mqtt.delivery_columns import Will, deliver
from wireyard.layers.mqtt.directions import Stream
from wireyard.layers.mqtt.evidence import StreamEvidence
from wireyard.layers.mqtt.files import (
    Batches,
    DerivedFiles,
    count_evidence,
    derive_files,
    messages_of,
    parts_of,
)
from wireyard.layers.mqtt.messages import marks_of
from wireyard.layers.mqtt.packets import (
    Ints,
    KnownStream,
    new_secret,
)
from wireyard.layers.mqtt.published import SENT, Clients
from wireyard.layers.mqtt.records import TopicKey
from wireyard.layers.stages import KeyedRecord
from wireyard.spark.bronze import EVIDENCE
from wireyard.spark.exchange import (
    dump,
    load,
    read_part,
    remove,
    write_parts,
)
from wireyard.spark.fact_tasks import dropped_rows, note_file, run_tasks, write_tables
from wireyard.spark.lake import Input
from wireyard.spark.packet_files import (
    UNDIVIDED,
    PacketHead,
    StreamsOfFile,
    find_left,
    read_heads,
    read_packets,
    write_split,
)
from wireyard.spark.parts import read_batches, read_footer_table
from wireyard.spark.running import Runner
from wireyard.streams.source import filesystem

__all__ = [
    "FEW",
    "MOST_PACKETS",
    "SHOWN",
    "Group",
    "counted_evidence",
    "mqtt_groups",
    "partition_streams",
    "shown_rows",
    "write_mqtt_facts",
]

MOST_PACKETS: Final = 1 << 19
"""Packets that a task holds at once, at most about 500 bytes each with all that is made of them."""
FEW: Final = 1 << 18
"""Packets that need no tasks: to start Spark for some takes longer than to go through them."""
_THREADS: Final = 8
"""That read footers: what is waited for is mostly a store's answer."""
_FORMAT: Final = "mqtt"
_TABLE: Final = "packets_mqtt"
SHOWN: Final = ("source", "stream", "opened", "begun", "ended", "ended_frame", "ended_ns")
"""Columns of the table `streams` that are looked at."""


@dataclass(frozen=True, slots=True)
class Group:
    """Inputs that have files in common, and no others have."""

    files: tuple[str, ...]
    sources: tuple[str, ...]
    """Files may have packets of others too, which are none of this."""
    packets: int
    streams: tuple[str, ...]
    """Files of the table `streams` with what captures show of theirs."""

    def shown(self) -> list[Row]:
        """Return what captures show of their streams, a row each, as for `known_of`."""
        found = captured_streams(self.streams, self.sources, (*SHOWN, "format"))
        return [row for rows in found for row in shown_rows(rows, _FORMAT)]


def shown_rows(streams: pa.Table, format: str) -> list[Row]:
    """Return what captures show of streams of a format, given rows of the table `streams`."""
    of_format = streams.filter(pc.starts_with(streams["format"], format))
    rows: list[Row] = of_format.select(SHOWN).to_pylist()
    return rows


def mqtt_groups(
    files: Iterable[str], inputs: Iterable[Input], streams: Iterable[str]
) -> list[Group]:
    """Return the inputs that have MQTT packets, those together that have files in common.

    Parameters
    ----------
    files
        Where the packets of all inputs are.
    streams
        Files of the table `streams` of all inputs.
    """
    packets_of, streams_of = ({name_of(path): path for path in paths} for paths in (files, streams))
    by_file: defaultdict[str, list[Input]] = defaultdict(list)
    for each in inputs:
        for name in each.files.get(_TABLE, ()):
            by_file[name].append(each)
    groups: list[Group] = []
    seen: set[str] = set()
    for name in by_file:
        if name in seen:
            continue
        sources: dict[str, Input] = {}
        waiting = [name]
        names: dict[str, None] = {}
        while waiting:
            one = waiting.pop()
            if one in names:
                continue
            names[one] = None
            for each in by_file[one]:
                if each.source not in sources:
                    sources[each.source] = each
                    waiting += each.files[_TABLE]
        seen |= names.keys()
        packets = sum(map(_count, sources.values()))
        shown = dict.fromkeys(file for each in sources.values() for file in each.files["streams"])
        of_packets = tuple(packets_of[one] for one in names)
        of_streams = tuple(streams_of[one] for one in shown)
        groups.append(Group(of_packets, tuple(sources), packets, of_streams))
    return groups


def _count(each: Input) -> int:
    """Return how many MQTT packets an input has."""
    sums = each.ledger.items()
    return sum(one.packets for format, one in sums if format.partition("/")[0] == _FORMAT)


def write_mqtt_facts(
    runner: Runner, staging: str, groups: Sequence[Group]
) -> Iterator[Mapping[str, Any]]:
    """Stage the rows of all tables; yield what was written, as rows of `FOUND`."""
    small = [group for group in groups if group.packets <= MOST_PACKETS]
    here = sum(group.packets for group in small) <= FEW
    work = partial(_write_small, staging=staging)
    yield from run_tasks(runner, _tasks_of(small), work, here=here)
    for group in groups:
        if group.packets > MOST_PACKETS:
            yield from _Large(runner, staging, group).write()


def _tasks_of(groups: Iterable[Group]) -> list[list[Group]]:
    """Return the groups as tasks of at most `MOST_PACKETS` each."""
    tasks: list[list[Group]] = []
    room = 0
    for group in groups:
        if not tasks or group.packets > room:
            tasks.append([])
            room = MOST_PACKETS
        tasks[-1].append(group)
        room -= group.packets
    return tasks


# --- files ----------------------------------------------------------------------------------


def _packets_of(path: str) -> Batches:
    """Return the packets of a file, to be read again and again by their columns."""
    return partial(read_batches, path)


_Footers = Sequence[pa.Table | None]
"""By file the evidence of its streams; None of one that was put together of others."""


def _footers_of(files: Sequence[str]) -> _Footers:
    with ThreadPoolExecutor(_THREADS) as pool:
        return list(pool.map(partial(read_footer_table, name=EVIDENCE), files))


def _evidence_of(
    group: Group, footers: _Footers, count: Callable[[Sequence[str]], Mapping[str, pa.Table]]
) -> StreamEvidence:
    """Return what packets show of the sides of their streams.

    Parameters
    ----------
    count
        Counts it from the packets of files.
    """
    uncounted = [file for file, one in zip(group.files, footers, strict=True) if one is None]
    counted = count(uncounted) if uncounted else {}
    found = StreamEvidence()
    for file, footer in zip(group.files, footers, strict=True):
        found.add_counted(counted[file] if footer is None else footer, group.sources)
    return found


def counted_evidence(path: str, sources: Sequence[str]) -> pa.Table:
    """Return what the packets of a file show of the sides of streams."""
    found = StreamEvidence()
    count_evidence(found, _packets_of(path), sources)
    return found.table()


def _all(tables: Mapping[str, Iterable[pa.Table]]) -> Iterator[tuple[str, pa.Table]]:
    return ((name, part) for name, parts in tables.items() for part in parts)


def _write_facts(
    tables: Iterable[tuple[str, pa.Table]], staging: str
) -> Iterator[Mapping[str, Any]]:
    """Write rows of tables, and beside those of deliveries how long they took."""
    return write_tables(chain.from_iterable(map(with_latencies, tables)), staging)


# --- small inputs ---------------------------------------------------------------------------


def _write_small(groups: Iterable[Group], staging: str) -> Iterator[Mapping[str, Any]]:
    """Write the rows of some small inputs; yield what was written."""
    found = [_derived(group) for group in groups]
    yield from _write_facts(chain.from_iterable(one.tables for one in found), staging)
    yield from dropped_rows(sum((one.dropped for one in found), Counter()))


def _derived(group: Group) -> DerivedFiles:
    def count(files: Sequence[str]) -> Mapping[str, pa.Table]:
        return {file: counted_evidence(file, group.sources) for file in files}

    files = list(map(_packets_of, group.files))
    evidence = _evidence_of(group, _footers_of(group.files), count)
    return derive_files(files, group.shown(), group.sources, evidence)


# --- a large input --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Shared:
    """What all tasks of a large input share."""

    staging: str
    streams: str
    """Where they are written, with the partition of each."""
    secret: tuple[int, int]
    partitions: int
    """Of clients."""
    files: int
    """How many files its packets are in."""
    unknown: frozenset[Stream]
    """The streams whose side is unknown."""
    divided: frozenset[str] = frozenset()
    """Topics whose messages are divided by what is in them."""

    @property
    def topic_partitions(self) -> int:
        """What is made of messages is larger than their packets, so there are more of topics."""
        return 2 * self.partitions

    def partition(self, topic: str) -> int:
        """Return the partition of a topic; the first of one that is divided."""
        return zlib.crc32(topic.encode("utf-8", "surrogatepass")) % self.topic_partitions


class _Tracked(NamedTuple):
    """What a task has tracked."""

    number: int
    """That of its partition."""
    found: Clients
    messages: list[str]
    """Files of what was sent and delivered, by the partitions of topics."""
    marks: list[str]
    """Files of which packets are messages, by the files that these are in."""


class _Large:
    """An input that is too large for a task."""

    def __init__(self, runner: Runner, staging: str, group: Group) -> None:
        self._runner, self._staging = runner, staging
        self._group = replace(group, files=_largest_first(group.files))
        # Not many: every task leaves a part for each of the next stage.
        self._partitions = -(-group.packets // (MOST_PACKETS // 2))

    def write(self) -> Iterator[Mapping[str, Any]]:
        """Write the rows of all tables; yield what was written."""
        runner, files = self._runner, self._group.files

        def count(files: Sequence[str]) -> Mapping[str, pa.Table]:
            sources = self._group.sources
            work = partial(_write_evidence, sources=sources, staging=self._staging)
            return {one["name"]: load(one["file"]) for one in run_tasks(runner, files, work)}

        footers = _footers_of(files)
        evidence = _evidence_of(self._group, footers, count)
        streams = known_of(evidence, self._group.shown())
        partition = partition_streams(streams, evidence, self._partitions)
        left = find_left(self._staging, files, footers, streams)
        heads = read_heads(left)
        shared = _Shared(
            self._staging,
            dump(self._staging, (streams, partition)),
            heads[0].secret if heads else new_secret(),
            self._partitions,
            len(files),
            frozenset(evidence.without_side({(one.source, one.name) for one in streams})),
        )
        split = self._split_others(left, len(streams), shared)
        packets = [*left, *split]
        divided = _divided([*heads, *read_heads(split)], shared.topic_partitions)
        shared = replace(shared, divided=divided)
        numbers = range(self._partitions)
        work = partial(_track, shared=shared, files=dump(self._staging, packets))
        tracked = list(run_tasks(runner, numbers, work))
        remove(one.path for one in packets)
        yield from (one for one in tracked if one["kind"] == "fact")
        # In the order of partitions, by which clients are numbered.
        clients: list[_Tracked] = sorted(
            (load(one["file"]) for one in tracked if one["name"] == _CLIENTS),
            key=attrgetter("number"),
        )
        matched = match([one.found for one in clients])
        dropped = (one.found.dropped for one in clients)
        yield from dropped_rows(sum(dropped, matched.dropped))
        marks = [path for one in clients for path in one.marks]
        senders = {will.message.client for will in matched.wills}
        users = {sender: matched.users[sender] for sender in senders & matched.users.keys()}
        wills = dump(self._staging, (matched.wills, users))
        topics = self._write_topics(matched, shared)
        firsts = accumulate((len(one.found.clients) for one in clients), initial=0)
        messages = [
            (path, first)
            for one, first in zip(clients, firsts, strict=False)
            for path in one.messages
        ]
        # One stage, the tasks that take longest first.
        tasks = [
            *(_OfTopics(*one) for one in enumerate(topics)),
            *(_OfFile(*one) for one in enumerate(files)),
        ]
        work = partial(_write_rest, shared=shared, marks=marks, wills=wills, messages=messages)
        found = list(run_tasks(runner, tasks, work))
        remove([*marks, *(path for path, _ in messages)])
        notes: list[KeyedRecord] = []
        for one in found:
            if one["name"] == _NOTES:
                notes += load(one["file"])
            else:
                yield one
        rest = explain_rest(notes, matched.connections)
        yield from _write_facts(_all(rest.tables), self._staging)
        yield from dropped_rows(rest.dropped)

    def _split_others(
        self, left: Sequence[StreamsOfFile], streams: int, shared: _Shared
    ) -> list[StreamsOfFile]:
        """Write the packets of the files of which the bronze stage has left none."""
        there = {one.file for one in left}
        numbers = {path: number for number, path in enumerate(self._group.files)}
        tasks = [(number, path) for path, number in numbers.items() if number not in there]
        return [
            StreamsOfFile(one["file"], numbers[one["name"]], np.arange(streams))
            for one in run_tasks(self._runner, tasks, partial(_split, shared=shared))
        ]

    def _write_topics(self, matched: Matched, shared: _Shared) -> list[str]:
        """Write what is known of the topics of each partition, and of all clients."""
        of_will: defaultdict[int, set[int]] = defaultdict(set)
        for will in matched.wills:
            of_will[_will_partition(will, shared)].add(id(will))

        def is_divided(key: TopicKey) -> bool:
            return key[2] in shared.divided

        def write(number: int) -> str:
            def is_wanted(key: TopicKey) -> bool:
                return is_divided(key) or shared.partition(key[2]) == number

            topics = matched.topics(is_wanted, lambda will: id(will) in of_will[number], is_divided)
            return dump(self._staging, (topics, matched.clients))

        return [write(number) for number in range(shared.topic_partitions)]


def _largest_first(files: Sequence[str]) -> tuple[str, ...]:
    """Return files in an order in which no core has a large one left when others are idle."""
    system = filesystem(files[0])[0]
    found = system.get_file_info([filesystem(file)[1] for file in files])
    sizes = {file: info.size for file, info in zip(files, found, strict=True)}
    return tuple(sorted(files, key=sizes.__getitem__, reverse=True))


_CLIENTS, _NOTES = "clients", "notes"


def _write_evidence(path: str, sources: Sequence[str], staging: str) -> Iterator[Mapping[str, Any]]:
    """Write what the packets of a file show of the sides of streams; the note has its path."""
    yield note_file(path, dump(staging, counted_evidence(path, sources)))


def partition_streams(
    streams: Sequence[KnownStream], evidence: StreamEvidence, partitions: int
) -> Ints:
    """Return the partition of each stream: those of a client in one, all of them about as large.

    A partition is as much as a task holds, and some clients have most of the packets. So they are
    placed one after the other, the largest first, each where there are the fewest packets yet.
    """
    packets: Counter[tuple[str, ...]] = Counter()
    for one in streams:
        packets[one.key] += evidence.packets((one.source, one.name))
    sums = [(0, number) for number in range(partitions)]
    of_client = {}
    for key, count in packets.most_common():
        fewest, of_client[key] = sums[0]
        heapreplace(sums, (fewest + count, of_client[key]))
    return np.array([of_client[one.key] for one in streams])


@lru_cache(maxsize=1)
def _streams(path: str) -> tuple[list[KnownStream], Ints]:
    """Return the streams of an input, and the partition of each."""
    found: tuple[list[KnownStream], Ints] = load(path)
    return found


@lru_cache(maxsize=1)
def _packet_files(path: str) -> list[StreamsOfFile]:
    """Return the files of the packets of an input."""
    found: list[StreamsOfFile] = load(path)
    return found


def _split(task: tuple[int, str], shared: _Shared) -> Iterator[Mapping[str, Any]]:
    """Write the packets of a file by the partitions of their clients; the note has its path."""
    number, path = task
    streams, of_stream = _streams(shared.streams)
    parts = parts_of(_packets_of(path), streams, shared.secret, number)
    written = write_split(shared.staging, parts, of_stream, shared.partitions, shared.secret)
    yield note_file(path, written)


def _divided(heads: Iterable[PacketHead], partitions: int) -> frozenset[str]:
    """Return the topics that would make a partition much larger than others."""
    topics: Counter[str] = Counter()
    for head in heads:
        topics.update(head.topics)
    most = sum(count for count in topics.values() if count < UNDIVIDED) // (2 * partitions)
    return frozenset(topic for topic, count in topics.items() if most < count < UNDIVIDED)


def _will_partition(will: Will, shared: _Shared) -> int:
    number = shared.partition(will.message.topic)
    if will.message.topic in shared.divided:
        number = (number + will.content[0]) % shared.topic_partitions
    return number


def _track(number: int, shared: _Shared, files: str) -> Iterator[Mapping[str, Any]]:
    """Track the clients of a partition; write what they sent and got by the partition of topics.

    Parameters
    ----------
    files
        Where it is which files have packets.
    """
    streams, of_stream = _streams(shared.streams)
    parts = list(read_packets(_packet_files(files), of_stream, number))
    found, messages = track(parts, streams, shared.secret)
    message_files, mark_files = [], []
    for sent, delivered in messages:
        by_topic = _by_topic(sent, delivered, shared)
        message_files.append(write_parts(shared.staging, by_topic))
        marked = marks_of(sent, found.clients, (), found.users)
        of_files = split_rows(marked, marked["file"].to_numpy(), shared.files)
        mark_files.append(write_parts(shared.staging, ([table] for table in of_files)))
    yield from write_tables(found.tables.items(), shared.staging)
    found.tables.clear()
    yield note_file(
        _CLIENTS, dump(shared.staging, _Tracked(number, found, message_files, mark_files))
    )


class _OfTopics(NamedTuple):
    """A task: what became of the messages of some topics."""

    number: int
    """That of their partition."""
    known: str
    """Where it is what is known of the topics, and of all clients."""


class _OfFile(NamedTuple):
    """A task: the messages among the packets of a file."""

    number: int
    path: str


def _write_rest(
    task: _OfTopics | _OfFile,
    shared: _Shared,
    marks: Sequence[str],
    wills: str,
    messages: Sequence[tuple[str, int]],
) -> Iterator[Mapping[str, Any]]:
    """Write what a task of the last stage has to find.

    Parameters
    ----------
    marks, messages
        Files that the clients' tasks have written.
    wills
        Where the wills are that were published.
    """
    if isinstance(task, _OfTopics):
        yield from _deliver(task, shared, messages)
    else:
        yield from _write_messages(task, shared, marks, wills)


def _write_messages(
    task: _OfFile, shared: _Shared, marks: Sequence[str], wills: str
) -> Iterator[Mapping[str, Any]]:
    """Write the messages among the packets of a file."""
    number, path = task
    published, users = load(wills)
    mine = [will for will in published if will.file == number]
    parts = [table for (table,) in read_part(marks, number)]
    found = pa.concat_tables([*parts, marks_of(SENT.empty_table(), (), mine, users)])
    messages = messages_of(_packets_of(path), found, shared.unknown)
    tables = (("messages", table) for table in messages)
    yield from write_tables(tables, shared.staging)


def _by_topic(sent: pa.Table, delivered: pa.Table, shared: _Shared) -> Iterator[list[pa.Table]]:
    split = (
        split_rows(table, _topic_partitions(table, shared), shared.topic_partitions)
        for table in (sent, delivered)
    )
    return map(list, zip(*split, strict=True))


def _topic_partitions(table: pa.Table, shared: _Shared) -> Ints:
    """Return the partition of each message: by its topic, and its payload if that is divided."""
    indices, dictionary = text_codes(table["topic"])
    texts = dictionary.to_pylist()
    of = np.array([shared.partition(text) for text in texts] or [0])
    is_divided = np.array([text in shared.divided for text in texts] or [False])
    content = np.where(is_divided[indices], table["content_0"].to_numpy(), 0)
    found: Ints = (of[indices] + content) % shared.topic_partitions
    return found


def _deliver(
    task: _OfTopics, shared: _Shared, files: Sequence[tuple[str, int]]
) -> Iterator[Mapping[str, Any]]:
    """Write what became of the messages of some topics.

    Parameters
    ----------
    files
        Of messages, each with the number that its first client has among all.
    """
    number, known = task
    topics, clients = load(known)
    streams, _ = _streams(shared.streams)
    paths, firsts = zip(*files, strict=True)
    both = zip(*read_part(paths, number), strict=True)
    sent, delivered = (_joined(tables, firsts) for tables in both)
    found = deliver(sent, delivered, topics, clients, streams)
    yield from _write_facts(_all(found.tables), shared.staging)
    yield from dropped_rows(found.dropped)
    yield note_file(_NOTES, dump(shared.staging, found.records))


def _joined(tables: Sequence[pa.Table], firsts: Sequence[int]) -> pa.Table:
    """Return tables as one, whose clients have the numbers that they have among all."""
    table = pa.concat_tables(tables)
    place = table.schema.get_field_index("client")
    first = np.repeat(firsts, [each.num_rows for each in tables])
    return table.set_column(
        place, "client", pa.array(table["client"].to_numpy() + first, pa.int32())
    )
