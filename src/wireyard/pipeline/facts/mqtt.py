"""Fact tables of many MQTT packets, in stages.

An input that is too large for a task goes through the stages of ``wireyard.layers.mqtt.columns``,
whose tasks are partitioned by key: packets by client, messages by topic.
"""

from __future__ import annotations

import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from heapq import heapreplace
from itertools import accumulate
from operator import attrgetter
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from wireyard.arrays import Ints
from wireyard.formats.base import Row
from wireyard.lake.ledgers import captured_streams
from wireyard.lake.parts import read_batches, read_footer_table
from wireyard.layers.grouping import split_rows, text_codes
from wireyard.layers.mqtt.columns import (
    Matched,
    RestRecord,
    explain_rest,
    known_of,
    match,
    track,
)
from wireyard.layers.mqtt.delivery_columns import Topics, Will, deliver
from wireyard.layers.mqtt.directions import Stream
from wireyard.layers.mqtt.evidence import SCHEMA, StreamEvidence
from wireyard.layers.mqtt.facts import EVIDENCE, FORMAT
from wireyard.layers.mqtt.files import (
    Batches,
    count_evidence,
    messages_of,
    parts_of,
    shown_rows,
)
from wireyard.layers.mqtt.messages import marks_of
from wireyard.layers.mqtt.packets import KnownStream, new_secret
from wireyard.layers.mqtt.published import SENT, Clients
from wireyard.layers.mqtt.records import Client, ConnectionRecord, TopicKey
from wireyard.layers.stages import Key, KeyedRecord, Order
from wireyard.pipeline.decoding.packet_files import (
    UNDIVIDED,
    PacketHead,
    StreamsOfFile,
    find_packet_files,
    read_heads,
    read_packets,
    write_split,
)
from wireyard.pipeline.exchange import dump, load, read_part, remove, write_parts
from wireyard.pipeline.facts.tasks import (
    STREAM_COLUMNS,
    Division,
    Group,
    Results,
    dropped_rows,
    intermediate_file,
    run_tasks,
    write_tables,
)
from wireyard.pipeline.running import Runner
from wireyard.streams.source import filesystem

__all__ = [
    "DIVISION",
    "MOST_PACKETS",
    "counted_evidence",
    "partition_streams",
    "rows_of_streams",
]

MOST_PACKETS: Final = 1 << 19
"""Packets that a task holds at once, at most about 500 bytes each with all derived records."""
_THREADS: Final = 8
"""Threads that read footers; they mostly wait for the storage."""


def rows_of_streams(streams: pa.Table, format: str) -> list[Row]:
    """Return the rows of the table `streams` that have a format, in any of its dialects."""
    of_format = streams.filter(pc.starts_with(streams["format"], format))
    rows: list[Row] = of_format.select(STREAM_COLUMNS).drop_columns("format").to_pylist()
    return rows


# --- files ----------------------------------------------------------------------------------


def _packets_of(path: str) -> Batches:
    """Return a function that reads columns of a file of packets."""
    return partial(read_batches, path)


_Footers = Sequence[pa.Table | None]
"""The evidence in the footer of each file; None for a merged file, which has none."""


def _footers_of(files: Sequence[str]) -> _Footers:
    with ThreadPoolExecutor(_THREADS) as pool:
        return list(pool.map(partial(read_footer_table, name=EVIDENCE, schema=SCHEMA), files))


def _evidence_of(
    files: Sequence[str],
    sources: Sequence[str],
    footers: _Footers,
    count: Callable[[Sequence[str]], Mapping[str, pa.Table]],
) -> StreamEvidence:
    """Return the evidence for the directions of streams.

    Parameters
    ----------
    count
        Counts the evidence in the packets of files that have none in their footers.
    """
    uncounted = [file for file, one in zip(files, footers, strict=True) if one is None]
    counted = count(uncounted) if uncounted else {}
    evidence = StreamEvidence()
    for file, footer in zip(files, footers, strict=True):
        evidence.add_counted(counted[file] if footer is None else footer, sources)
    return evidence


def counted_evidence(path: str, sources: Sequence[str]) -> pa.Table:
    """Return the evidence in a file of packets, as a table."""
    evidence = StreamEvidence()
    count_evidence(evidence, _packets_of(path), sources)
    return evidence.table()


def _all(tables: Mapping[str, Iterable[pa.Table]]) -> Iterator[tuple[str, pa.Table]]:
    return ((name, part) for name, parts in tables.items() for part in parts)


# --- a large input --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Shared:
    """The arguments common to all tasks of a large input."""

    staging: str
    streams: str
    """File with its streams, and the partition of each."""
    secret: tuple[int, int]
    """Secret points of the payload hashes."""
    partitions: int
    """Number of partitions of clients."""
    files: int
    """Number of files of packets."""
    unknown: frozenset[Stream]
    """Streams of unknown direction."""
    divided: frozenset[str] = frozenset()
    """Topics whose messages are partitioned by payload too."""

    @property
    def topic_partitions(self) -> int:
        """Number of partitions of topics: more, as records of messages are larger than packets."""
        return 2 * self.partitions

    def partition(self, topic: str) -> int:
        """Return the partition of a topic; of a divided one the first."""
        return zlib.crc32(topic.encode("utf-8", "surrogatepass")) % self.topic_partitions


class _TrackedPartition(NamedTuple):
    """The result of tracking the clients of a partition."""

    number: int
    """Number of the partition."""
    clients: Clients
    messages: list[str]
    """Files of sent and delivered messages, by partition of topics."""
    marks: list[str]
    """Files that mark which packets are messages, by file of packets."""


class _MatchedFiles(NamedTuple):
    """The files that the stage behind the tracking of clients has written, or passes on."""

    topics: list[str]
    """By partition of topics: its topics, and all clients."""
    wills: str
    """The published wills, and the user names of their senders."""
    connections: str
    messages: list[tuple[str, int]]
    """Files of messages, each with the number that its first client has among all clients."""
    marks: list[str]
    """Files that mark which packets are messages."""


_Streams = tuple[list[KnownStream], Ints]
"""The streams of an input, and the partition of each."""
_PacketFiles = list[StreamsOfFile]
_Wills = tuple[list[Will], dict[Client, str]]
"""Published wills, and the user names of their senders."""
_Known = tuple[Topics, list[Client]]
"""The state of some topics, and all clients."""
_Connections = list[ConnectionRecord]
_Rest = list[tuple[str, Key, Order, RestRecord]]
"""Keyed records for `explain_rest`."""


def _write_in_stages(runner: Runner, staging: str, group: Group) -> Results:
    """Write the facts of some inputs, stage by stage; yield rows of `RESULTS`."""
    return _LargeInput(runner, staging, group).write()


DIVISION: Final = Division(MOST_PACKETS, 1 << 20, _write_in_stages, {})


class _LargeInput:
    """Inputs that are too large for a task."""

    def __init__(self, runner: Runner, staging: str, group: Group) -> None:
        self._runner, self._staging, self._group = runner, staging, group
        self._files = _largest_first([path for _, path in group.files])
        # Few partitions, because each task writes a part for each task of the next stage.
        self._partitions = -(-group.packets // (MOST_PACKETS // 2))

    def write(self) -> Results:
        """Write the rows of all tables; yield rows of `RESULTS`."""
        shared, packets = self._partition()
        work = partial(_track, shared=shared, files=dump(self._staging, packets, _PacketFiles))
        tracked = yield from self._run(range(self._partitions), work, _CLIENTS)
        remove(self._staging, (each.path for each in packets))
        (path,) = yield from self._run([tracked], partial(_match, shared=shared), _MATCHED)
        matched: _MatchedFiles = load(path, _MatchedFiles)
        # The tasks that take longest come first.
        tasks = [
            *(_TopicsTask(*each) for each in enumerate(matched.topics)),
            *(_FileTask(*each) for each in enumerate(self._files)),
        ]
        records = yield from self._run(
            tasks, partial(_write_rest, shared=shared, matched=matched), _RECORDS
        )
        remove(self._staging, [*matched.marks, *(path for path, _ in matched.messages)])
        work = partial(_explain, connections=matched.connections, staging=self._staging)
        yield from run_tasks(self._runner, [records], work)

    def _run(
        self, tasks: Sequence[Any], work: Callable[[Any], Results], passed_on: str
    ) -> Generator[Mapping[str, Any], None, list[str]]:
        """Run a stage; yield its results, but return the paths of files that it passes on."""
        paths = list[str]()
        for row in run_tasks(self._runner, tasks, work):
            if (row["kind"], row["name"]) == ("intermediate", passed_on):
                paths.append(row["file"])
            else:
                yield row
        return paths

    def _partition(self) -> tuple[_Shared, list[StreamsOfFile]]:
        """Partition the streams by client; return the arguments of tasks, and all packet files."""
        files, sources = self._files, self._group.sources

        def count(files: Sequence[str]) -> Mapping[str, pa.Table]:
            work = partial(_write_evidence, sources=sources, staging=self._staging)
            results = run_tasks(self._runner, files, work)
            return {row["name"]: load(row["file"], pa.Table) for row in results}

        footers = _footers_of(files)
        evidence = _evidence_of(files, sources, footers, count)
        streams = known_of(evidence, _stream_rows(self._group))
        partition = partition_streams(streams, evidence, self._partitions)
        from_bronze = find_packet_files(self._staging, files, footers, streams)
        heads = read_heads(from_bronze)
        shared = _Shared(
            self._staging,
            dump(self._staging, (streams, partition), _Streams),
            heads[0].secret if heads else new_secret(),
            self._partitions,
            len(files),
            frozenset(evidence.without_side({(each.source, each.name) for each in streams})),
        )
        split = self._split_others(from_bronze, len(streams), shared)
        divided = _divided([*heads, *read_heads(split)], shared.topic_partitions)
        return replace(shared, divided=divided), [*from_bronze, *split]

    def _split_others(
        self, from_bronze: Sequence[StreamsOfFile], streams: int, shared: _Shared
    ) -> list[StreamsOfFile]:
        """Write packet files for the bronze files for which the bronze stage has written none."""
        covered = {each.file for each in from_bronze}
        numbers = {path: number for number, path in enumerate(self._files)}
        tasks = [(number, path) for path, number in numbers.items() if number not in covered]
        return [
            StreamsOfFile(row["file"], numbers[row["name"]], np.arange(streams))
            for row in run_tasks(self._runner, tasks, partial(_split, shared=shared))
        ]


def _largest_first(files: Sequence[str]) -> tuple[str, ...]:
    """Sort files by size, so that no core still has a large one when the others are idle."""
    system = filesystem(files[0])[0]
    infos = system.get_file_info([filesystem(file)[1] for file in files])
    sizes = {file: info.size for file, info in zip(files, infos, strict=True)}
    return tuple(sorted(files, key=sizes.__getitem__, reverse=True))


_CLIENTS, _MATCHED, _RECORDS = "clients", "matched", "records"


def _stream_rows(group: Group) -> list[Row]:
    """Return the rows of the MQTT streams of some inputs, for `known_of`."""
    tables = captured_streams(group.streams, group.sources, STREAM_COLUMNS)
    return [row for table in tables for row in shown_rows(table, FORMAT)]


def _write_evidence(path: str, sources: Sequence[str], staging: str) -> Results:
    """Write the evidence in a file of packets; the result is named by the path of that file."""
    yield intermediate_file(path, dump(staging, counted_evidence(path, sources), pa.Table))


def partition_streams(
    streams: Sequence[KnownStream], evidence: StreamEvidence, partitions: int
) -> Ints:
    """Return the partition of each stream: one for all streams of a client, of about equal sizes.

    A task must hold a partition, and some clients have most of the packets. So clients are assigned
    one after the other, the largest first, each to the partition with the fewest packets so far.
    """
    packets: Counter[tuple[str, ...]] = Counter()
    for stream in streams:
        packets[stream.key] += evidence.packets((stream.source, stream.name))
    sums = [(0, number) for number in range(partitions)]
    of_client = {}
    for key, count in packets.most_common():
        total, of_client[key] = sums[0]
        heapreplace(sums, (total + count, of_client[key]))
    return np.array([of_client[stream.key] for stream in streams])


@lru_cache(maxsize=1)
def _streams(path: str) -> _Streams:
    """Return the streams of an input, and the partition of each."""
    streams: _Streams = load(path, _Streams)
    return streams


@lru_cache(maxsize=1)
def _packet_files(path: str) -> _PacketFiles:
    """Return the packet files of an input."""
    files: _PacketFiles = load(path, _PacketFiles)
    return files


def _split(task: tuple[int, str], shared: _Shared) -> Results:
    """Partition the packets of a file by client; the result is named by the path of that file."""
    number, path = task
    streams, of_stream = _streams(shared.streams)
    parts = parts_of(_packets_of(path), streams, shared.secret, number)
    written = write_split(shared.staging, parts, of_stream, shared.partitions, shared.secret)
    yield intermediate_file(path, written)


def _divided(heads: Iterable[PacketHead], partitions: int) -> frozenset[str]:
    """Return the topics that would make a partition much larger than the others."""
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


def _track(number: int, shared: _Shared, files: str) -> Results:
    """Track the clients of a partition; write their messages, partitioned by topic.

    Parameters
    ----------
    files
        File with the list of packet files.
    """
    streams, of_stream = _streams(shared.streams)
    parts = list(read_packets(_packet_files(files), of_stream, number))
    clients, messages = track(parts, streams, shared.secret)
    message_files, mark_files = [], []
    for sent, delivered in messages:
        by_topic = _by_topic(sent, delivered, shared)
        message_files.append(write_parts(shared.staging, by_topic))
        marked = marks_of(sent, clients.clients, (), clients.users)
        of_files = split_rows(marked, marked["file"].to_numpy(), shared.files)
        mark_files.append(write_parts(shared.staging, ([table] for table in of_files)))
    yield from write_tables(clients.tables.items(), shared.staging)
    clients.tables.clear()
    tracked = _TrackedPartition(number, clients, message_files, mark_files)
    yield intermediate_file(_CLIENTS, dump(shared.staging, tracked, _TrackedPartition))


def _match(paths: Sequence[str], shared: _Shared) -> Results:
    """Match subscriptions with the topics of all clients; write what the next stage needs.

    Parameters
    ----------
    paths
        Files that `_track` has written, one for each partition of clients.
    """
    # In the order of partitions, by which clients are numbered.
    tracked: list[_TrackedPartition] = sorted(
        (load(path, _TrackedPartition) for path in paths), key=attrgetter("number")
    )
    matched = match([each.clients for each in tracked])
    yield from dropped_rows(sum((each.clients.dropped for each in tracked), matched.dropped))
    senders = {will.message.client for will in matched.wills}
    users = {sender: matched.users[sender] for sender in senders & matched.users.keys()}
    firsts = accumulate((len(each.clients.clients) for each in tracked), initial=0)
    files = _MatchedFiles(
        _write_topics(matched, shared),
        dump(shared.staging, (matched.wills, users), _Wills),
        dump(shared.staging, matched.connections, _Connections),
        [
            (path, first)
            for each, first in zip(tracked, firsts, strict=False)
            for path in each.messages
        ],
        [path for each in tracked for path in each.marks],
    )
    yield intermediate_file(_MATCHED, dump(shared.staging, files, _MatchedFiles))


def _write_topics(matched: Matched, shared: _Shared) -> list[str]:
    """Write a file for each partition of topics, with its topics and all clients."""
    of_will: defaultdict[int, set[int]] = defaultdict(set)
    for will in matched.wills:
        of_will[_will_partition(will, shared)].add(id(will))

    def is_divided(key: TopicKey) -> bool:
        return key[2] in shared.divided

    def write(number: int) -> str:
        def is_wanted(key: TopicKey) -> bool:
            return is_divided(key) or shared.partition(key[2]) == number

        topics = matched.topics(is_wanted, lambda will: id(will) in of_will[number], is_divided)
        return dump(shared.staging, (topics, matched.clients), _Known)

    return [write(number) for number in range(shared.topic_partitions)]


class _TopicsTask(NamedTuple):
    """A task that matches the messages of some topics with their deliveries."""

    number: int
    """Number of the partition of topics."""
    known: str
    """File with the state of the topics, and all clients."""


class _FileTask(NamedTuple):
    """A task that writes the messages among the packets of a file."""

    number: int
    path: str


def _write_rest(task: _TopicsTask | _FileTask, shared: _Shared, matched: _MatchedFiles) -> Results:
    """Write the deliveries of some topics, or the messages of a file."""
    if isinstance(task, _TopicsTask):
        yield from _deliver(task, shared, matched.messages)
    else:
        yield from _write_messages(task, shared, matched)


def _write_messages(task: _FileTask, shared: _Shared, matched: _MatchedFiles) -> Results:
    """Write the messages among the packets of a file."""
    number, path = task
    published, users = load(matched.wills, _Wills)
    own_wills = [will for will in published if will.file == number]
    parts = [table for (table,) in read_part(matched.marks, number)]
    marked = pa.concat_tables([*parts, marks_of(SENT.empty_table(), (), own_wills, users)])
    messages = messages_of(_packets_of(path), marked, shared.unknown)
    tables = (("messages", table) for table in messages)
    yield from write_tables(tables, shared.staging)


def _explain(records: Sequence[str], connections: str, staging: str) -> Results:
    """Write the rows that follow from the records of all topics."""
    found = (KeyedRecord._make(one) for path in records for one in load(path, _Rest))
    rest = explain_rest(found, load(connections, _Connections))
    yield from write_tables(_all(rest.tables), staging)
    yield from dropped_rows(rest.dropped)


def _by_topic(sent: pa.Table, delivered: pa.Table, shared: _Shared) -> Iterator[list[pa.Table]]:
    split = (
        split_rows(table, _topic_partitions(table, shared), shared.topic_partitions)
        for table in (sent, delivered)
    )
    return map(list, zip(*split, strict=True))


def _topic_partitions(table: pa.Table, shared: _Shared) -> Ints:
    """Return the partition of each message: by topic, and for divided topics by payload too."""
    indices, dictionary = text_codes(table["topic"])
    texts = dictionary.to_pylist()
    of_topic = np.array([shared.partition(text) for text in texts] or [0])
    is_divided = np.array([text in shared.divided for text in texts] or [False])
    content = np.where(is_divided[indices], table["content_0"].to_numpy(), 0)
    partitions: Ints = (of_topic[indices] + content) % shared.topic_partitions
    return partitions


def _deliver(task: _TopicsTask, shared: _Shared, files: Sequence[tuple[str, int]]) -> Results:
    """Write the deliveries of the messages of some topics.

    Parameters
    ----------
    files
        Files of messages, each with the number that its first client has among all clients.
    """
    number, known = task
    topics, clients = load(known, _Known)
    streams, _ = _streams(shared.streams)
    paths, firsts = zip(*files, strict=True)
    both = zip(*read_part(paths, number), strict=True)
    sent, delivered = (_joined(tables, firsts) for tables in both)
    derived = deliver(sent, delivered, topics, clients, streams)
    yield from write_tables(_all(derived.tables), shared.staging)
    yield from dropped_rows(derived.dropped)
    yield intermediate_file(_RECORDS, dump(shared.staging, derived.records, _Rest))


def _joined(tables: Sequence[pa.Table], firsts: Sequence[int]) -> pa.Table:
    """Join tables; renumber their clients to the numbers that these have among all clients."""
    table = pa.concat_tables(tables)
    place = table.schema.get_field_index("client")
    first = np.repeat(firsts, [each.num_rows for each in tables])
    return table.set_column(
        place, "client", pa.array(table["client"].to_numpy() + first, pa.int32())
    )
