"""Fact tables of many MQTT packets, in stages.

An input that is too large for a task goes through the stages of ``wireyard.layers.mqtt.columns``,
whose tasks are partitioned by key: packets by client, messages by topic.
"""

from __future__ import annotations

import zlib
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from heapq import heapreplace
from itertools import accumulate, chain, islice
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from wireyard.arrays import Ints
from wireyard.layers.facts import PacketFile
from wireyard.layers.grouping import split_rows, text_codes
from wireyard.layers.mqtt.columns import (
    Matched,
    RestRecord,
    count_evidence,
    each_part,
    explain_rest,
    known_of,
    match,
    messages_of,
    parts_of,
    shown_rows,
    track,
)
from wireyard.layers.mqtt.deliveries.columns import Topics, deliver
from wireyard.layers.mqtt.deliveries.published import SENT
from wireyard.layers.mqtt.directions import Stream
from wireyard.layers.mqtt.evidence import SCHEMA, StreamEvidence
from wireyard.layers.mqtt.facts import EVIDENCE, FORMAT
from wireyard.layers.mqtt.messages import marks_of
from wireyard.layers.mqtt.packets import KnownStream, Part, new_secret
from wireyard.layers.mqtt.records import Client, ConnectionRecord, TopicKey, Will
from wireyard.layers.mqtt.tracked import Clients
from wireyard.layers.stages import Key, KeyedRecord, Order
from wireyard.pipeline.exchange import (
    Inbox,
    PartInput,
    Stage,
    pass_on,
    pass_value,
    values_of,
)
from wireyard.pipeline.facts.tasks import (
    FILES,
    Counted,
    Divided,
    Division,
    Files,
    Output,
    Outputs,
    Plan,
    dropped_rows,
    write_tables,
)
from wireyard.pipeline.typed_json import from_json, to_json

MOST_PACKETS: Final = 1 << 19
"""Packets that a task holds at once, at most about 500 bytes each with all derived records."""
UNDIVIDED: Final = 1 << 62
"""Count of a topic's packets that marks it as one whose messages must stay in one partition."""
_HELD_BATCHES: Final = 16
"""Batches that are buffered before they are partitioned: about 150 bytes a packet."""


# --- what is counted ------------------------------------------------------------------------


def count_file(file: PacketFile, sources: Collection[str]) -> Counted:
    """Count the packets of each topic in a file, and the evidence, unless its footer has it."""
    topics: Counter[str] = Counter()
    for table in file.batches(_OF_TOPICS):
        topics.update(_count_topics(table))
    counts = {topic: min(count, UNDIVIDED) for topic, count in topics.items()}
    evidence = file.footer(EVIDENCE, SCHEMA)
    return Counted(counts, counted_evidence(file, sources) if evidence is None else evidence)


def counted_evidence(file: PacketFile, sources: Collection[str]) -> pa.Table:
    """Return the evidence in a file of packets, as a table."""
    evidence = StreamEvidence()
    count_evidence(evidence, file.batches, sources)
    return evidence.table()


# --- a large input --------------------------------------------------------------------------


_PACKETS, _CLIENTS, _MESSAGES, _MARKS, _KNOWN, _WILLS, _CONNECTIONS, _RECORDS = (
    "packets", "clients", "messages", "marks", "known", "wills", "connections", "records",
)  # fmt: skip
"""Names of what tasks pass on."""
_OF_TOPICS: Final = ("topic", "retain", "will_topic")


@dataclass(frozen=True, slots=True)
class _Shared:
    """The arguments common to all tasks of a large input."""

    output: Output
    streams: str
    """Its streams, and the partition of each, as JSON: tasks read it once a process."""
    secret: tuple[int, int]
    """Secret points of the payload hashes."""
    partitions: int
    """Number of partitions of clients."""
    files: Files
    unknown: frozenset[Stream]
    """Streams of unknown direction."""
    divided: frozenset[str]
    """Topics whose messages are partitioned by payload too."""

    @property
    def topic_partitions(self) -> int:
        """Number of partitions of topics: more, as records of messages are larger than packets."""
        return 2 * self.partitions

    @property
    def file_groups(self) -> int:
        """Number of groups of files whose messages a task writes: parts before those of topics."""
        return min(self.files.number, self.topic_partitions)

    def partition(self, topic: str) -> int:
        """Return the partition of a topic; of a divided one the first."""
        return zlib.crc32(topic.encode("utf-8", "surrogatepass")) % self.topic_partitions


_Streams = tuple[list[KnownStream], Ints]
"""The streams of an input, and the partition of each."""
_Wills = tuple[list[Will], dict[Client, str]]
"""Published wills, and the user names of their senders."""


class _Known(NamedTuple):
    """What the deliveries of some topics follow from, besides the messages."""

    topics: Topics
    clients: list[Client]
    """All clients."""
    firsts: dict[int, int]
    """By partition of clients, the number that its first client has among all."""


_Connections = list[ConnectionRecord]
_Rest = list[tuple[str, Key, Order, RestRecord]]
"""Keyed records for `explain_rest`."""


def _plan(divided: Divided, output: Output) -> Plan:
    """Partition the streams by client, and the topics; return the stages."""
    # Few partitions, because each task passes something on to each task of the next stage.
    partitions = -(-divided.packets // MOST_PACKETS) or 1
    topics, evidence = Counter[str](), StreamEvidence()
    for each in divided.counted:
        topics.update(each.topics)
        evidence.add_counted(each.evidence, divided.sources)
    streams = known_of(evidence, shown_rows(divided.streams, FORMAT))
    text = to_json((streams, partition_streams(streams, evidence, partitions)), _Streams)
    unknown = frozenset(evidence.without_side({(each.source, each.name) for each in streams}))
    of_topics = _divided(topics, 2 * partitions)
    files = divided.files
    shared = _Shared(output, text, new_secret(), partitions, files, unknown, of_topics)
    rest = _KNOWN, _MESSAGES, _WILLS, _MARKS, FILES
    parts = shared.file_groups + shared.topic_partitions
    stages = [
        Stage((_PACKETS,), partitions, partial(_track, shared=shared)),
        Stage((_CLIENTS,), 1, partial(_match, shared=shared)),
        Stage(rest, parts, partial(_write_rest, shared=shared)),
        Stage((_CONNECTIONS, _RECORDS), 1, partial(_explain, shared=shared)),
    ]
    return Plan(partial(_split, shared=shared), stages, shared.file_groups)


DIVISION: Final = Division(MOST_PACKETS, 1 << 20, _plan, count_file)


def _count_topics(packets: pa.Table) -> Counter[str]:
    """Count packets by topic; topics that may have a retained value get `UNDIVIDED`."""
    codes, texts = text_codes(packets["topic"])
    counts = np.bincount(codes[codes >= 0], minlength=len(texts))
    topics = Counter(dict(zip(texts.to_pylist(), counts.tolist(), strict=True)))
    retained = packets["topic"].filter(pc.fill_null(packets["retain"], False))
    for topic in {*pc.unique(retained).to_pylist(), *pc.unique(packets["will_topic"]).to_pylist()}:
        if topic is not None:
            topics[topic] = UNDIVIDED
    return topics


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
def _streams(text: str) -> _Streams:
    """Return the streams of an input, and the partition of each."""
    streams: _Streams = from_json(text, _Streams)
    return streams


def _split(number: int, inbox: Inbox, shared: _Shared) -> Outputs:
    """Partition the packets of a file by client."""
    streams, partition = _streams(shared.streams)
    (file,) = shared.files.packets([number], inbox)
    waiting = parts_of(file.batches, streams, shared.secret, number)
    while held := list(islice(waiting, _HELD_BATCHES)):
        packets, rows = (
            pa.concat_tables(one).unify_dictionaries() for one in zip(*held, strict=True)
        )
        of_client = partition[packets["stream"].to_numpy()]
        yield from pass_on(_PACKETS, Part(packets, rows).split(of_client, shared.partitions))


def _divided(topics: Mapping[str, int], partitions: int) -> frozenset[str]:
    """Return the topics that would make a partition much larger than the others."""
    most = sum(count for count in topics.values() if count < UNDIVIDED) // (2 * partitions)
    return frozenset(topic for topic, count in topics.items() if most < count < UNDIVIDED)


def _will_partition(will: Will, shared: _Shared) -> int:
    number = shared.partition(will.message.topic)
    if will.message.topic in shared.divided:
        number = (number + will.content[0]) % shared.topic_partitions
    return number


def _track(given: PartInput, shared: _Shared) -> Outputs:
    """Track the clients of a partition; pass their messages on, partitioned by topic."""
    streams, _ = _streams(shared.streams)
    parts = [Part(*passed.tables) for passed in given.inbox[_PACKETS]]
    clients, messages = track(parts, streams, shared.secret)
    for sent, delivered in messages:
        yield from pass_on(_MESSAGES, _by_topic(sent, delivered, shared), shared.file_groups)
        marked = marks_of(sent, clients.clients, (), clients.users)
        groups = marked["file"].to_numpy() % shared.file_groups
        of_files = split_rows(marked, groups, shared.file_groups)
        yield from pass_on(_MARKS, ([table] for table in of_files))
    yield from write_tables(clients.tables.items(), shared.output)
    clients.tables.clear()
    yield from pass_value(_CLIENTS, 0, clients, Clients)


def _match(given: PartInput, shared: _Shared) -> Outputs:
    """Match subscriptions with the topics of all clients."""
    # In the order of partitions, by which clients are numbered.
    tracked: list[Clients] = values_of(given.inbox, _CLIENTS, Clients)
    matched = match(tracked)
    yield from dropped_rows(sum((each.dropped for each in tracked), matched.dropped))
    counts = accumulate((len(each.clients) for each in tracked), initial=0)
    origins = [passed.origin for passed in given.inbox[_CLIENTS]]
    yield from _pass_known(matched, dict(zip(origins, counts, strict=False)), shared)
    senders = {will.message.client for will in matched.wills}
    users = {sender: matched.users[sender] for sender in senders & matched.users.keys()}
    for number in range(shared.file_groups):
        wills = [will for will in matched.wills if will.file % shared.file_groups == number]
        yield from pass_value(_WILLS, number, (wills, users), _Wills)
    yield from pass_value(_CONNECTIONS, 0, matched.connections, _Connections)


def _pass_known(matched: Matched, firsts: dict[int, int], shared: _Shared) -> Outputs:
    """Pass the state of its topics, and all clients, on to each partition of topics."""
    of_will: defaultdict[int, set[int]] = defaultdict(set)
    for will in matched.wills:
        of_will[_will_partition(will, shared)].add(id(will))

    def is_divided(key: TopicKey) -> bool:
        return key[2] in shared.divided

    def topics_of(number: int) -> Topics:
        def is_wanted(key: TopicKey) -> bool:
            return is_divided(key) or shared.partition(key[2]) == number

        return matched.topics(is_wanted, lambda will: id(will) in of_will[number], is_divided)

    for number in range(shared.topic_partitions):
        known = _Known(topics_of(number), matched.clients, firsts)
        yield from pass_value(_KNOWN, shared.file_groups + number, known, _Known)


def _write_rest(given: PartInput, shared: _Shared) -> Outputs:
    """Write the deliveries of some topics, or the messages of some files."""
    if given.part < shared.file_groups:
        yield from _write_messages(given.inbox, given.part, shared)
    else:
        yield from _deliver(given.inbox, shared)


def _write_messages(inbox: Inbox, group: int, shared: _Shared) -> Outputs:
    """Write the messages among the packets of a group of files."""
    ((wills, users),) = values_of(inbox, _WILLS, _Wills)
    parts = [table for passed in inbox.get(_MARKS, ()) for table in passed.tables]
    marked = pa.concat_tables([*parts, marks_of(SENT.empty_table(), (), wills, users)])
    numbers = range(group, shared.files.number, shared.file_groups)
    messages = (
        ("messages", table)
        for file in shared.files.packets(numbers, inbox)
        for table in messages_of(
            file.batches, marked.filter(pc.equal(marked["file"], file.number)), shared.unknown
        )
    )
    yield from write_tables(messages, shared.output)


def _deliver(inbox: Inbox, shared: _Shared) -> Outputs:
    """Write the deliveries of the messages of some topics."""
    known: _Known
    (known,) = values_of(inbox, _KNOWN, _Known)
    streams, _ = _streams(shared.streams)
    firsts = [known.firsts[passed.origin] for passed in inbox[_MESSAGES]]
    both = zip(*(passed.tables for passed in inbox[_MESSAGES]), strict=True)
    sent, delivered = (_joined(tables, firsts) for tables in both)
    derived = deliver(sent, delivered, known.topics, known.clients, streams)
    yield from write_tables(each_part(derived.tables), shared.output)
    yield from dropped_rows(derived.dropped)
    yield from pass_value(_RECORDS, 0, derived.records, _Rest)


def _explain(given: PartInput, shared: _Shared) -> Outputs:
    """Write the rows that follow from the records of all topics."""
    of_topics = values_of(given.inbox, _RECORDS, _Rest)
    (connections,) = values_of(given.inbox, _CONNECTIONS, _Connections)
    rest = explain_rest(map(KeyedRecord._make, chain.from_iterable(of_topics)), connections)
    yield from write_tables(each_part(rest.tables), shared.output)
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


def _joined(tables: Sequence[pa.Table], firsts: Sequence[int]) -> pa.Table:
    """Join tables; renumber their clients to the numbers that these have among all clients."""
    table = pa.concat_tables(tables)
    place = table.schema.get_field_index("client")
    first = np.repeat(firsts, [each.num_rows for each in tables])
    return table.set_column(
        place, "client", pa.array(table["client"].to_numpy() + first, pa.int32())
    )
