"""The MQTT pipeline, from the packets of captures to tables: its stages and their keys.

Messages and deliveries are frequent: they pass from stage to stage as columns. Subscriptions, wills
and missing deliveries are rare: they are records, and scalar stages handle them.

1. `track`, key: source, server and client id. The only stage that reads packets (`tracking`). It
   yields sessions, violations, messages and delivery attempts (`published`). A connection without a
   client id has a key of its own.
2. `match`, key: source and server. Finds the subscriptions that match each topic.
3. ``deliver``, key: source, server and topic. Derives retained values, expected deliveries and
   their outcome (`delivery_columns`). A value that a new subscription did not get is a violation.
4. `explain_rest`, key: source, server, and the client or group that did not get a message; or
   response topic and correlation data. Finds the verdicts of missing deliveries, and the replies to
   requests. A broker may choose any member of a group, so the connections of all are needed.

A server is one endpoint. The key of a message is the stream and offset of its first PUBLISH; that
of a will, those of its CONNECT.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from operator import attrgetter, itemgetter
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from wireyard.formats.base import Row
from wireyard.formats.mqtt.layout import PUBLISH
from wireyard.layers.facts import DerivedFiles, PacketFile
from wireyard.layers.mqtt.deliveries.columns import Topics, deliver
from wireyard.layers.mqtt.deliveries.conversations import CONVERSATIONS, RequestMessage, converse
from wireyard.layers.mqtt.deliveries.missing import (
    MISSING,
    LatestDelivered,
    MissedDelivery,
    UnsubscribedDelivery,
    connection_record,
    explain,
)
from wireyard.layers.mqtt.deliveries.published import message_tables
from wireyard.layers.mqtt.deliveries.subscriptions import (
    KeptSubscriptions,
    Subscription,
    Subscriptions,
)
from wireyard.layers.mqtt.deliveries.topics import DELAYED_PREFIX, is_of_broker
from wireyard.layers.mqtt.directions import OK, Stream
from wireyard.layers.mqtt.evidence import NEEDED as EVIDENCE_NEEDED
from wireyard.layers.mqtt.evidence import SCHEMA, StreamEvidence
from wireyard.layers.mqtt.facts import EVIDENCE
from wireyard.layers.mqtt.grids import NO_TIME
from wireyard.layers.mqtt.messages import NEEDED as MESSAGE_NEEDED
from wireyard.layers.mqtt.messages import marks_of, message_table, unknown_marks
from wireyard.layers.mqtt.packets import (
    NEEDED,
    KnownStream,
    Packets,
    Part,
    new_secret,
    stream_numbers,
)
from wireyard.layers.mqtt.records import (
    Client,
    ConnectionRecord,
    Lost,
    Message,
    Span,
    Subscribed,
    TopicKey,
    Will,
)
from wireyard.layers.mqtt.tracked import Clients
from wireyard.layers.mqtt.tracking import track_clients
from wireyard.layers.records import Position
from wireyard.layers.stages import Derived, Dropped, Fact, Found, Key, KeyedRecord, Stage
from wireyard.layers.tables import fact_table

# --- files of packets -----------------------------------------------------------------------

Batches = Callable[[Sequence[str]], Iterable[pa.Table]]
"""Names of columns -> the packets of a file with these columns, in batches."""


def derive_files(
    files: Sequence[PacketFile], shown: Iterable[Row] | None, sources: Collection[str]
) -> DerivedFiles:
    """Derive the tables of inputs from files of packets, which are read in batches, twice.

    The columns that tracking needs are held for all packets, about 500 bytes each; payloads are
    held for one batch. The files may have packets of inputs that are not in `sources`. `shown` has
    the beginning and end of each stream, as captured: ``source, stream, opened, begun, ended,
    ended_frame, ended_ns, last_ns``; rows of other streams, and of none, show how long a capture
    lasts. If it is None, a connection without a DISCONNECT counts as open, and nothing after its
    last packet counts as a fault.
    """
    evidence = StreamEvidence()
    for file in files:
        counted = file.footer(EVIDENCE, SCHEMA)
        if counted is None:  # it was merged from others, or is in memory
            count_evidence(evidence, file.batches, sources)
        else:
            evidence.add_counted(counted, sources)
    streams, secret = known_of(evidence, shown), new_secret()
    unknown = evidence.without_side({(one.source, one.name) for one in streams})
    # Released before tracking: they are large if there are many connections.
    del evidence, shown
    parts = [
        part for file in files for part in parts_of(file.batches, streams, secret, file.number)
    ]
    if not parts:
        return DerivedFiles(iter(()), Counter())
    tracked, messages = track(parts, streams, secret)
    sent, delivered = map(pa.concat_tables, zip(*messages, strict=True))
    matched = match([tracked])
    deliveries = deliver(sent, delivered, matched.topics(), matched.clients, streams)
    rest = explain_rest(deliveries.records, matched.connections)
    marks = marks_of(sent, tracked.clients, matched.wills, tracked.users)
    message_rows = (
        ("messages", table)
        for file in files
        for table in messages_of(
            file.batches, marks.filter(pc.equal(marks["file"], file.number)), unknown
        )
    )
    tables = chain(
        tracked.tables.items(), each_part(deliveries.tables), each_part(rest.tables), message_rows
    )
    dropped = sum((each.dropped for each in (tracked, matched, deliveries, rest)), Counter[str]())
    return DerivedFiles(tables, dropped)


def each_part(tables: Mapping[str, Iterable[pa.Table]]) -> Iterator[tuple[str, pa.Table]]:
    """Yield the parts of tables one by one, each with the name of its table."""
    return ((name, part) for name, parts in tables.items() for part in parts)


def _of_sources(table: pa.Table, sources: Collection[str]) -> Any:
    """Return a mask of the rows of the sources."""
    wanted = pa.array(list(sources), pa.string())
    return pc.is_in(table["source"].cast(pa.string()), wanted).to_numpy()


def shown_rows(streams: pa.Table, format: str) -> list[Row]:
    """Return the rows of the table `streams` of a format, and the last to end of each source."""
    last_ns = streams["last_ns"].fill_null(NO_TIME).to_numpy()
    sources = streams["source"].combine_chunks().dictionary_encode().indices.to_numpy()
    order = np.lexsort((last_ns, sources))
    wanted = pc.starts_with(streams["format"], format).fill_null(False).to_numpy().copy()
    wanted[order[np.flatnonzero(np.diff(sources[order], append=-1))]] = True
    rows: list[Row] = streams.filter(pa.array(wanted)).drop_columns("format").to_pylist()
    return rows


def count_evidence(evidence: StreamEvidence, file: Batches, sources: Collection[str]) -> None:
    """Add the evidence in the packets of the sources in a file."""
    for table in file(EVIDENCE_NEEDED):
        evidence.add(table.filter(pa.array(_of_sources(table, sources))))


def parts_of(
    file: Batches, streams: Sequence[KnownStream], secret: tuple[int, int], number: int
) -> Iterator[Part]:
    """Yield the packets of known streams as columns for `track`.

    `number` is that of the file: the value of the column `file` in the marks of its messages.
    """
    numbers = {(one.source, one.name): place for place, one in enumerate(streams)}
    first = 0
    for table in file(NEEDED):
        yield Part.of(table, stream_numbers(table, numbers), secret, number, first)
        first += table.num_rows


def messages_of(file: Batches, marks: pa.Table, unknown: Collection[Stream]) -> Iterator[pa.Table]:
    """Yield the messages in a file, including those on `unknown` streams, whose side is unknown.

    `marks` are the packets of the file that are messages, with the columns of `MARKS`.
    """
    if unknown:
        numbers = {stream: number for number, stream in enumerate(unknown)}
        marks = pa.concat_tables([marks, *_unknown_marks(file, numbers)])
    marks = marks.sort_by("row")
    rows = marks["row"].to_numpy()
    first = 0
    for table in file(MESSAGE_NEEDED) if len(rows) else ():
        start, stop = np.searchsorted(rows, [first, first + table.num_rows]).tolist()
        if stop > start:
            packets = table.take(pa.array(rows[start:stop] - first))
            yield message_table(packets, marks.slice(start, stop - start))
        first += table.num_rows


def _unknown_marks(file: Batches, numbers: Mapping[Stream, int]) -> Iterator[pa.Table]:
    """Yield marks of the PUBLISH packets on streams whose side is unknown."""
    first = 0
    for table in file(("source", "stream", "packet_type", "topic", "status")):
        unknown = stream_numbers(table, numbers) >= 0
        if unknown.any():
            is_publish = pc.fill_null(pc.equal(table["packet_type"], int(PUBLISH)), False)
            unknown &= is_publish.to_numpy(zero_copy_only=False)
            unknown &= pc.equal(table["status"], OK).to_numpy(zero_copy_only=False)
            yield unknown_marks(table["topic"], np.flatnonzero(unknown), first)
        first += table.num_rows


# --- streams --------------------------------------------------------------------------------


def known_of(evidence: StreamEvidence, streams: Iterable[Row] | None) -> list[KnownStream]:
    """Return the streams whose side is known, in the order of their names.

    `streams` has the beginning and end of each stream, as captured, or is None if the capture shows
    none. Rows of other streams, and of none, show how long the capture lasts.
    """
    rows = list(streams or ())
    shown = {(row["source"], row["stream"]): row for row in rows}
    ends_ns = evidence.ends_ns(rows)
    known = []
    for name, side in evidence.sides(shown).items():
        row = shown.get(name, {})
        known.append(
            KnownStream(
                *name, side.from_client, side.key, side.alone, side.older, side.followed,
                None if streams is None else bool(row.get("begun")), row.get("ended"),
                row.get("ended_ns"), row.get("ended_frame"), ends_ns.get(name[0]),
                evidence.first_ns(name), *evidence.ends(name),
            )
        )  # fmt: skip
    return sorted(known, key=itemgetter(0, 1))


# --- stages ---------------------------------------------------------------------------------


def track(
    parts: list[Part], streams: Sequence[KnownStream], secret: tuple[int, int]
) -> tuple[Clients, Iterator[tuple[pa.Table, pa.Table]]]:
    """Track the packets of some clients, of which `parts` has all; `parts` is emptied.

    Return the results for the clients, and the messages that they sent and the attempts to them,
    which are derived in batches while they are iterated.
    """
    tracked = track_clients(Packets.of(parts, streams, secret))
    return tracked.clients, message_tables(tracked)


@dataclass
class Matched:
    """The clients and topics of all brokers, with the subscriptions that match."""

    clients: list[Client] = field(default_factory=list)
    """By number: those of the first part, then those of the next."""
    users: dict[Client, str] = field(default_factory=dict)
    """The user names of those that have one."""
    connections: list[ConnectionRecord] = field(default_factory=list)
    """Those of clients that are not plain."""
    subscriptions: list[Subscribed] = field(default_factory=list)
    matching: dict[TopicKey, list[Subscribed]] = field(default_factory=dict)
    valued: set[TopicKey] = field(default_factory=set)
    asked: set[TopicKey] = field(default_factory=set)
    older: set[TopicKey] = field(default_factory=set)
    lost: dict[tuple[str, str], Lost] = field(default_factory=dict)
    lost_messages: dict[tuple[str, str], Lost] = field(default_factory=dict)
    """As of `Topics`."""
    unseen: dict[Stream, tuple[Span, ...]] = field(default_factory=dict)
    wills: list[Will] = field(default_factory=list)
    dropped: Counter[str] = field(default_factory=Counter)

    @cached_property
    def served(self) -> tuple[list[ConnectionRecord], Mapping[tuple[str, str, str], list[int]]]:
        """Accepted connections in the order of their opening, and those of each name served."""
        found = [connection for connection in self.connections if connection.accepted is not None]
        found.sort(key=attrgetter("opened"))
        by_name: defaultdict[tuple[str, str, str], list[int]] = defaultdict(list)
        for place, connection in enumerate(found):
            for name in connection.served_as:
                by_name[*connection.client[:2], name].append(place)
        return found, by_name

    def topics(
        self,
        wanted: Callable[[TopicKey], bool] = lambda _: True,
        wanted_will: Callable[[Will], bool] = lambda _: True,
        divided: Callable[[TopicKey], bool] = lambda _: False,
    ) -> Topics:
        """Return the context of some topics and wills.

        With `divided`, the messages of a topic are divided by payload among several calls.
        """
        matching = {key: subs for key, subs in self.matching.items() if wanted(key)}
        served = {(*one.client[:2], one.served_as) for subs in matching.values() for one in subs}
        accepted, by_name = self.served
        places = sorted({place for name in served for place in by_name.get(name, ())})
        return Topics(
            self.subscriptions,
            matching,
            frozenset(filter(wanted, self.valued)),
            frozenset(filter(wanted, self.asked)),
            frozenset(filter(wanted, self.older)),
            [will for will in self.wills if wanted_will(will)],
            [accepted[place] for place in places],
            frozenset(key for key in self.matching if wanted(key) and divided(key)),
            frozenset(one.client[:3] for one in self.subscriptions if is_of_broker(one.filter)),
            self.lost,
            self.lost_messages,
            self.unseen,
        )


def match(found: Sequence[Clients]) -> Matched:
    """Find the subscriptions that match each topic on which there are messages."""
    matched = Matched()
    brokers: defaultdict[tuple[str, str], KeptSubscriptions] = defaultdict(KeptSubscriptions)
    named: set[tuple[TopicKey, bool]] = set()
    waiting: list[Will] = []
    ends: dict[tuple[str, str], Position] = {}
    for part in found:
        named |= part.topics
        matched.clients += part.clients
        matched.users |= part.users
        matched.connections += part.connections
        matched.subscriptions += part.subscriptions
        matched.wills += part.wills
        waiting += part.waiting
        for broker, last in part.last.items():
            ends[broker] = max(ends.get(broker, last.at), last.at)
            brokers[broker].has_older |= last.has_older
            for known, spans in (
                (matched.lost, last.lost),
                (matched.lost_messages, last.lost_messages),
            ):
                if spans:
                    known[broker] = Lost.of((*spans, *known.get(broker, Lost()).spans))
        matched.unseen |= part.unseen
        matched.asked |= part.asked
    for will in (*matched.wills, *waiting):
        message = will.message
        named.add(((*message.client[:2], message.topic), message.retain))
    for will in waiting:
        due, end = will.message.accepted, ends.get(will.message.client[:2])
        if due is not None and end is not None and due < end:
            matched.wills.append(will)
    for subscribed in sorted(matched.subscriptions, key=attrgetter("since")):
        brokers[subscribed.client[:2]].add(subscribed)
    for key in {key for key, _ in named}:
        kept, has_values = brokers[key[:2]], (key, True) in named
        if matching := list(kept.matching(key[2])):
            matched.matching[key] = matching
        if kept.has_older:
            matched.older.add(key)
        if has_values and matching:
            matched.valued.add(key)
    matched.dropped["filters"] = sum(kept.refused for kept in brokers.values())
    matched.dropped = +matched.dropped
    topics = {key for key, _ in named}
    matched.older |= _served_elsewhere(matched, topics)
    matched.older |= {key for key in topics if key[2].startswith(DELAYED_PREFIX)}
    return matched


def _served_elsewhere(matched: Matched, topics: Iterable[TopicKey]) -> set[TopicKey]:
    """Return the topics whose messages may have gone to clients at other endpoints of their source.

    These endpoints may be other listeners of the same broker. They have the only subscriptions that
    match, or other members of a group.
    """
    servers: defaultdict[str, set[str]] = defaultdict(set)
    sharing: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    for one in matched.subscriptions:
        servers[one.client.source].add(one.client.server)
        if one.group:
            sharing[one.client.source, one.filter].add(one.client.server)
    topics = [key for key in topics if servers[key[0]] - {key[1]}]
    trees: defaultdict[str, Subscriptions] = defaultdict(Subscriptions)
    for one in matched.subscriptions if topics else ():
        trees[one.client.source].subscribe(Subscription(one.client.server, one.filter))
    found = set()
    for key in topics:
        own = matched.matching.get(key, ())
        shared = (sharing[key[0], one.filter] for one in own if one.group)
        if any(of - {key[1]} for of in shared) or (not own and any(trees[key[0]].matching(key[2]))):
            found.add(key)
    return found


RestRecord = LatestDelivered | MissedDelivery | UnsubscribedDelivery | RequestMessage | Message
"""The records that `deliver` passes on to `explain_rest`."""
_ROWS_AT_ONCE: Final = 1 << 16
"""Rows are ten times as large as those of a table."""
_REST: Final[Mapping[str, Stage]] = {MISSING: explain, CONVERSATIONS: converse}


def explain_rest(
    records: Iterable[KeyedRecord], connections: Iterable[ConnectionRecord]
) -> Derived[list[pa.Table]]:
    """Derive rows from the records that the stages before have passed on."""
    by_key: defaultdict[tuple[str, Key], list[KeyedRecord]] = defaultdict(list)
    for record in records:
        by_key[record.stage, record.key].append(record)
    for connection in connections:
        if connection.accepted is not None and connection.served_as:
            # Deliveries without a subscription have the client's own name, also that of a member.
            for name in {*connection.served_as, connection.client.name}:
                if (MISSING, (*connection.client[:2], name)) in by_key:
                    record = connection_record(connection, name)
                    by_key[record.stage, record.key].append(record)
    rows: defaultdict[str, list[Row]] = defaultdict(list)
    tables: defaultdict[str, list[pa.Table]] = defaultdict(list)
    dropped: Counter[str] = Counter()
    for (stage, _), of_key in by_key.items():
        of_key.sort(key=attrgetter("order"))
        found: Iterable[Found] = _REST[stage](one.record for one in of_key)
        for one in found:
            if isinstance(one, Fact):
                rows[one.table].append(one.row)
                if len(rows[one.table]) == _ROWS_AT_ONCE:
                    tables[one.table].append(fact_table(one.table, rows.pop(one.table)))
            elif isinstance(one, Dropped):
                dropped[one.cap] += one.things
    for name, some in rows.items():
        tables[name].append(fact_table(name, some))
    return Derived(dict(tables), dropped)
