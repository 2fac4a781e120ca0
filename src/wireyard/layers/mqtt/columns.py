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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from operator import attrgetter, itemgetter
from typing import Any, Final

import pyarrow as pa

from wireyard.formats.base import Row
from wireyard.layers.mqtt.deliveries import (
    CONVERSATIONS,
    DELIVERIES,
    Older,
    RequestMessage,
    converse,
)
from wireyard.layers.mqtt.delivery_columns import Topics, Will, deliver
from wireyard.layers.mqtt.directions import Side, Stream
from wireyard.layers.mqtt.evidence import StreamEvidence
from wireyard.layers.mqtt.missing import (
    MISSING,
    LatestDelivered,
    MissedDelivery,
    UnsubscribedDelivery,
    connection_record,
    explain,
)
from wireyard.layers.mqtt.packets import (
    KnownStream,
    Packets,
    Part,
    new_secret,
    stream_numbers,
)
from wireyard.layers.mqtt.published import Clients, message_tables, published
from wireyard.layers.mqtt.records import (
    VALUES,
    Client,
    ConnectionRecord,
    Lost,
    Message,
    Subscribed,
    TopicKey,
)
from wireyard.layers.mqtt.subscriptions import (
    Subscription,
    Subscriptions,
    Topic,
    match_topics,
)
from wireyard.layers.mqtt.topics import topic_hash
from wireyard.layers.mqtt.tracking import track_clients
from wireyard.layers.records import Position
from wireyard.layers.stages import Derived, Dropped, Fact, Found, Key, KeyedRecord, Stage
from wireyard.layers.tables import fact_table

__all__ = [
    "Matched",
    "RestRecord",
    "derive_columns",
    "explain_rest",
    "known_of",
    "match",
    "track",
]


def derive_columns(
    table: pa.Table,
    streams: Iterable[Row] | None = None,
    sides: Mapping[Stream, Side] | None = None,
) -> Derived[list[pa.Table]]:
    """Derive the tables from the MQTT packets of captures.

    Parameters
    ----------
    table
        Packets of both directions of every connection, in any order, with the columns of `NEEDED`.
    streams
        The beginning and end of each stream: ``source, stream, begun, ended, ended_frame,
        ended_ns``. If it is None, a connection without a DISCONNECT counts as open, and nothing
        after its last packet counts as a fault.
    sides
        The side of each stream, if it is known. If it is None, `table` and `streams` decide it.

    Returns
    -------
    derived
        Tables ``deliveries``, ``sessions``, ``retained``, ``violations``, ``conversations``, with
        the columns of ``wireyard.layers.tables``.
    """
    evidence = StreamEvidence()
    evidence.add(table)
    known = known_of(evidence, streams, sides)
    secret = new_secret()
    numbers = {(one.source, one.name): number for number, one in enumerate(known)}
    part = Part.of(table, stream_numbers(table, numbers), secret)
    found, messages = track([part], known, secret)
    sent, delivered = map(pa.concat_tables, zip(*messages, strict=True))
    matched = match([found])
    deliveries = deliver(sent, delivered, matched.topics(), matched.clients, known)
    rest = explain_rest(deliveries.records, matched.connections)
    tables: defaultdict[str, list[pa.Table]] = defaultdict(list)
    parts = ({name: [part] for name, part in found.tables.items()}, deliveries.tables, rest.tables)
    for some in parts:
        for name, several in some.items():
            tables[name] += (one for one in several if one.num_rows)
    return Derived(
        dict(tables), found.dropped + matched.dropped + deliveries.dropped + rest.dropped
    )


# --- streams --------------------------------------------------------------------------------


def known_of(
    evidence: StreamEvidence,
    streams: Iterable[Row] | None,
    sides: Mapping[Stream, Side] | None = None,
) -> list[KnownStream]:
    """Return the streams whose side is known, in the order of their names.

    Parameters
    ----------
    streams
        The beginning and end of each stream, as captured, None if the capture shows none. Rows of
        other streams show how long the capture lasts.
    sides
        The side of each stream, if it is known already.
    """
    rows = list(streams or ())
    shown = {(row["source"], row["stream"]): row for row in rows}
    ends_ns = evidence.ends_ns(rows)
    known = []
    for name, side in (evidence.sides(shown) if sides is None else sides).items():
        row = shown.get(name, {})
        known.append(
            KnownStream(
                *name, side.from_client, side.key, side.alone, side.older, side.followed,
                None if streams is None else bool(row.get("begun")), row.get("ended"),
                row.get("ended_ns"), row.get("ended_frame"), ends_ns.get(name[0]),
                *evidence.ends(name),
            )
        )  # fmt: skip
    return sorted(known, key=itemgetter(0, 1))


# --- stages ---------------------------------------------------------------------------------


def track(
    parts: list[Part], streams: Sequence[KnownStream], secret: tuple[int, int]
) -> tuple[Clients, Iterator[tuple[pa.Table, pa.Table]]]:
    """Track the packets of some clients, of which `parts` has all.

    Parameters
    ----------
    parts
        Emptied, as by `Packets.of`.

    Returns
    -------
    clients, messages
        The results for the clients; then the messages that they sent and the attempts to them,
        derived in batches while they are iterated.
    """
    tracked = track_clients(Packets.of(parts, streams, secret))
    return published(tracked), message_tables(tracked)


@dataclass
class Matched:
    """The clients and topics of all brokers, with the subscriptions that match."""

    clients: list[Client]
    """By number: those of the first part, then those of the next."""
    users: dict[Client, str]
    """The user names of those that have one."""
    connections: list[ConnectionRecord]
    """Those of clients that are not plain."""
    subscriptions: list[Subscribed]
    matching: dict[TopicKey, list[Subscribed]]
    valued: set[TopicKey]
    asked: set[TopicKey]
    older: set[TopicKey]
    lost: dict[TopicKey, Lost]
    wills: list[Will]
    dropped: Counter[str]
    lacking_ns: dict[tuple[str, str], int] = field(default_factory=dict)
    """As of `Topics`."""

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

        Parameters
        ----------
        divided
            Whether the messages of a topic are divided by payload among several calls.
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
            frozenset(one.client[:3] for one in self.subscriptions if one.filter.startswith("$")),
            {key: lost for key, lost in self.lost.items() if wanted(key)},
            self.lacking_ns,
        )


def match(found: Sequence[Clients]) -> Matched:
    """Find the subscriptions that match each topic on which there are messages."""
    matched = Matched([], {}, [], [], {}, set(), set(), set(), {}, [], Counter())
    by_broker: defaultdict[tuple[str, str], list[Any]] = defaultdict(list)
    named: set[tuple[TopicKey, bool]] = set()
    waiting: dict[Position, Will] = {}
    for part in found:
        named |= part.topics
        matched.clients += part.clients
        matched.users |= part.users
        matched.connections += part.connections
        matched.subscriptions += part.subscriptions
        matched.wills += part.wills
        waiting |= {will.message.sent: will for will in part.waiting}
        for broker, last in part.last.items():
            for first_ns, _ in last.lost:
                matched.lacking_ns[broker] = min(first_ns, matched.lacking_ns.get(broker, first_ns))
            by_broker[broker].append(last)
        matched.asked |= part.asked
    for will in chain(matched.wills, waiting.values()):
        message = will.message
        named.add(((*message.client[:2], message.topic), message.retain))
    records = [*by_broker.items()]
    by_broker.clear()
    for subscribed in sorted(matched.subscriptions, key=attrgetter("since")):
        by_broker[subscribed.client[:2]].append(subscribed)
    for broker, lasts in records:
        by_broker[broker] += lasts
    for message in sorted((will.message for will in waiting.values()), key=attrgetter("sent")):
        by_broker[message.client[:2]].append(message)
    for key, retained in sorted(named, key=lambda one: (topic_hash(one[0][2]), one)):
        by_broker[key[:2]].append(Topic(key[2], retained))
    for of_broker in by_broker.values():
        for one in match_topics(iter(of_broker)):
            if isinstance(one, Dropped):
                matched.dropped[one.cap] += one.things
            elif isinstance(one, KeyedRecord) and one.stage == DELIVERIES:
                if isinstance(one.record, Subscribed):
                    matched.matching.setdefault(one.key, []).append(one.record)  # type: ignore[arg-type]
                elif isinstance(one.record, Older):
                    matched.older.add(one.key)  # type: ignore[arg-type]
                elif isinstance(one.record, Message):
                    matched.wills.append(waiting[one.record.sent])
            elif isinstance(one, KeyedRecord) and one.stage == VALUES:
                if isinstance(one.record, Lost):
                    matched.lost[one.key] = one.record  # type: ignore[index]
                else:
                    matched.valued.add(one.key)  # type: ignore[arg-type]
    matched.older |= _served_elsewhere(matched, {key for key, _ in named})
    return matched


def _served_elsewhere(matched: Matched, topics: Iterable[TopicKey]) -> set[TopicKey]:
    """Return the topics that only subscriptions at other endpoints of their source match.

    These endpoints may be other listeners of the same broker.
    """
    servers: defaultdict[str, set[str]] = defaultdict(set)
    for one in matched.subscriptions:
        servers[one.client.source].add(one.client.server)
    topics = [key for key in topics if key not in matched.matching and servers[key[0]] - {key[1]}]
    trees: defaultdict[str, Subscriptions] = defaultdict(Subscriptions)
    for one in matched.subscriptions if topics else ():
        trees[one.client.source].subscribe(Subscription(one.client.server, one.filter))
    return {key for key in topics if any(trees[key[0]].matching(key[2]))}


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
        if connection.accepted is not None:
            for name in connection.served_as:
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
