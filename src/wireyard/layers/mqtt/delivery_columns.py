"""Deliveries of the messages of some topics, by columns.

Rare cases go to the scalar stages as records: retained values, expected deliveries that are
certainly missing, requests and replies.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from wireyard.arrays import Grid, Ints
from wireyard.layers.grouping import by_group, text_codes
from wireyard.layers.mqtt import delivery_kernels as kernels
from wireyard.layers.mqtt.deliveries import reply_record, request_record
from wireyard.layers.mqtt.delivery_grids import (
    NO_INTS,
    DeliveredColumns,
    SentColumns,
    assign_all,
    assign_retained,
    delivered_grid,
    group_contents,
    group_starts,
    mark_served,
    message_grid,
    older_messages,
    subscription_grid,
)
from wireyard.layers.mqtt.delivery_kernels import MISSED, UNDECIDED, Delivered, DeliveryRow
from wireyard.layers.mqtt.delivery_rows import (
    DeliveryGrids,
    Numbered,
    Times,
    broken_rules,
    delivery_table,
)
from wireyard.layers.mqtt.expected_kernels import (
    Expected,
    Message,
    Subscription,
    count_expected,
    find_expected,
)
from wireyard.layers.mqtt.grids import NONE, Status
from wireyard.layers.mqtt.missing import (
    LatestDelivered,
    UnsubscribedDelivery,
    latest_record,
    missing_record,
    unsubscribed_record,
)
from wireyard.layers.mqtt.missing_columns import capture_ends, connections_of, explain_absence
from wireyard.layers.mqtt.numbering import Numbers, Positions, joined
from wireyard.layers.mqtt.packets import NO_TIME, KnownStream
from wireyard.layers.mqtt.records import (
    Attempt,
    Client,
    ConnectionRecord,
    Lost,
    Subscribed,
    TopicKey,
    content_of,
    lost_record,
    value_records,
)
from wireyard.layers.mqtt.records import Message as Sent
from wireyard.layers.mqtt.retained import (
    attempt_record,
    broker_violations,
    keep_values,
    new_subscription_record,
)
from wireyard.layers.mqtt.subscriptions import ends_of
from wireyard.layers.records import Position
from wireyard.layers.stages import Dropped, Fact, Found, Key, KeyedRecord
from wireyard.layers.tables import fact_table

__all__ = ["MAX_UNDELIVERED", "Deliveries", "Topics", "Will", "deliver"]

MAX_UNDELIVERED: Final = 1 << 20
"""Pairs of a message and a subscription without a delivery: at 1 KB each 1 GiB. A capture of a
megabyte can have thousands of subscribers and of messages, and so millions of such pairs."""


class Will(NamedTuple):
    """A will, the hashes of its payload, and the file and row of its CONNECT."""

    message: Sent
    content: tuple[int, int]
    file: int
    row: int


_NEVER_NS: Final = (1 << 63) - 1
_MESSAGE_COLUMNS: Final = (
    "length", "expires_s", "response_topic", "correlation_data", "is_lasting",
)  # fmt: skip


@dataclass(slots=True)
class Topics:
    """The context of some topics: all that is derived before their messages."""

    subscriptions: list[Subscribed]
    """All of the brokers; or those that match a topic here, and others to the same filters."""
    matching: Mapping[TopicKey, Sequence[Subscribed]]
    """The subscriptions that ever matched a topic, in their order."""
    valued: frozenset[TopicKey]
    """Topics that have retained values."""
    asked: frozenset[TopicKey]
    """Response topics of requests."""
    older: frozenset[TopicKey]
    """Topics that may have subscriptions from before the capture."""
    wills: list[Will]
    connections: list[ConnectionRecord]
    """Accepted connections of the clients with these subscriptions, in the order of their
    opening."""
    divided: frozenset[TopicKey] = frozenset()
    """Topics whose messages with other payloads are handled elsewhere."""
    prefixed: frozenset[tuple[str, str, str]] = frozenset()
    """Source, server and name of clients with filters that begin with $, as those that brokers
    define."""
    lost: Mapping[TopicKey, Lost] = field(default_factory=dict)
    """For topics with retained values, the packets that were not captured."""
    lacking_ns: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """By source and server of a broker, since when messages may have been sent to it that were not
    captured."""


@dataclass(slots=True)
class Deliveries:
    """The results for some topics."""

    tables: dict[str, list[pa.Table]]
    records: list[KeyedRecord]
    """For later stages."""
    dropped: Counter[str]


def deliver(
    sent: pa.Table,
    delivered: pa.Table,
    topics: Topics,
    clients: Sequence[Client],
    streams: Sequence[KnownStream],
) -> Deliveries:
    """Derive the deliveries of some topics.

    Parameters
    ----------
    sent, delivered
        All messages and attempts of these topics: columns of `SENT` and `DELIVERED`.
    clients, streams
        By number.
    """
    return _Derivation(sent, delivered, topics, clients, streams).run()


class _ByClient(dict[TopicKey, dict[str, list[Subscribed]]]):
    """The subscriptions that match a topic, by the name of their client."""

    def __init__(self, matching: Mapping[TopicKey, Sequence[Subscribed]]) -> None:
        super().__init__()
        self._of = matching

    def __missing__(self, topic: TopicKey) -> dict[str, list[Subscribed]]:
        found = self[topic] = {}
        for one in self._of.get(topic, ()):
            found.setdefault(one.client.name, []).append(one)
        return found


# --- the stages ------------------------------------------------------------------------------


class _Derivation:
    """One call of `deliver`: the messages of some topics, and their context."""

    def __init__(
        self,
        sent: pa.Table,
        delivered: pa.Table,
        topics: Topics,
        clients: Sequence[Client],
        streams: Sequence[KnownStream],
    ) -> None:
        self.sent_table, self.delivered_table = sent, delivered
        self.known = topics
        self.streams = streams
        self.positions = Positions(
            streams, (sent, "sent"), (sent, "accepted"), (sent, "released"), (delivered, "at")
        )
        self.clients = Numbers(clients)
        self.topics = Numbers[TopicKey]()
        self._matching = _ByClient(topics.matching)
        self._results = Deliveries({}, [], Counter())
        self._rows: defaultdict[str, list[Any]] = defaultdict(list)

    def run(self) -> Deliveries:
        """Return the deliveries and all other results."""
        sent, delivered = self._sent(), self._delivered()
        self._keep_values(sent, delivered)
        self._converse(sent)
        deliveries = self._deliver(sent, delivered)
        results = self._results
        results.tables = {name: [fact_table(name, rows)] for name, rows in self._rows.items()}
        results.tables.setdefault("deliveries", []).append(deliveries)
        return results

    def _collect(self, results: Iterable[Found]) -> None:
        for result in results:
            if isinstance(result, Fact):
                self._rows[result.table].append(result.row)
            elif isinstance(result, KeyedRecord):
                self._results.records.append(result)
            else:
                self._results.dropped[result.cap] += result.things

    def _number_topics(self, table: pa.Table) -> Ints:
        """Return the number of each row's topic among those of all brokers."""
        if not table.num_rows:
            return NO_INTS
        codes, dictionary = text_codes(table["topic"])
        texts = dictionary.to_pylist()
        of_clients = Numbers[tuple[str, str]]()
        brokers = np.array([of_clients[client[:2]] for client in self.clients.all], np.int64)
        pairs = brokers[table["client"].to_numpy()] * len(texts) + codes
        unique, places = np.unique(pairs, return_inverse=True)
        numbers = [
            self.topics[*of_clients.all[pair // len(texts)], texts[pair % len(texts)]]
            for pair in unique.tolist()
        ]
        return np.array(numbers, np.int64)[places]

    # --- messages ---------------------------------------------------------------------------

    def _sent(self) -> SentColumns:
        table, positions = self.sent_table, self.positions
        wills = [will.message for will in self.known.wills]
        hashes = np.array([will.content for will in self.known.wills], np.int64).reshape(-1, 2)
        number = positions.of(table, "sent")
        return SentColumns(
            sent=joined(number, [positions.add(will.sent) for will in wills]),
            accepted=joined(
                positions.of(table, "accepted"), [positions.add(w.accepted) for w in wills]
            ),
            released=joined(
                positions.of(table, "released"), [positions.add(w.released) for w in wills]
            ),
            start=joined(number, [positions.add(will.start) for will in wills]),
            topic=joined(
                self._number_topics(table), [self.topics[*w.client[:2], w.topic] for w in wills]
            ),
            content=np.concatenate((_contents(table), hashes)),
            client=joined(_ints(table, "client"), [self.clients[w.client] for w in wills]),
            qos=joined(_ints(table, "qos"), [will.qos for will in wills]),
            retain=joined(_ints(table, "retain"), [will.retain for will in wills]),
            copies=joined(_ints(table, "copies"), [will.copies for will in wills]),
            refused=joined(_ints(table, "refused"), [NONE] * len(wills)),
            malformed=joined(_ints(table, "malformed"), [0] * len(wills)),
            is_repeated=joined(_ints(table, "is_repeated"), [0] * len(wills)),
            is_received=joined(_ints(table, "is_received"), [0] * len(wills)),
            is_unseen=joined(_ints(table, "is_unseen"), [0] * len(wills)),
            is_will=joined(np.zeros(len(number), np.int64), [1] * len(wills)),
            expires_s=joined(
                _ints(table, "expires_s"),
                [NONE if will.expires_s is None else will.expires_s for will in wills],
            ),
        )

    def _delivered(self) -> DeliveredColumns:
        table = self.delivered_table
        identifier = np.full(table.num_rows, NONE, np.int64)
        several = {}
        lists = table["identifiers"]
        if lists.null_count < len(lists):
            rows = np.flatnonzero(lists.is_valid().to_numpy(zero_copy_only=False))
            for row, identifiers in zip(rows.tolist(), lists.drop_null().to_pylist(), strict=True):
                if len(identifiers) == 1:
                    identifier[row] = identifiers[0]
                else:
                    several[row] = identifiers
        return DeliveredColumns(
            at=self.positions.of(table, "at"),
            topic=self._number_topics(table),
            content=_contents(table),
            client=_ints(table, "client"),
            qos=_ints(table, "qos"),
            retain=_ints(table, "retain"),
            is_acknowledged=_ints(table, "is_acknowledged"),
            copies=_ints(table, "copies"),
            refused=_ints(table, "refused"),
            status=_ints(table, "status"),
            identifier=identifier,
            is_live=np.ones(table.num_rows, np.int64),
            may_be_live=(_ints(table, "status") & Status.MAY_BE_LIVE != 0).astype(np.int64),
            is_extra=np.zeros(table.num_rows, np.int64),
            setter=np.full(table.num_rows, NONE, np.int64),
            expires_s=_ints(table, "expires_s"),
            acknowledged_ns=_ints(table, "acknowledged_ns"),
            acknowledged_frame=_ints(table, "acknowledged_frame"),
            several=several,
        )

    def _message(self, sent: SentColumns, place: int) -> Sent:
        """Return a message as a record."""
        table, positions = self.sent_table, self.positions
        if place >= table.num_rows:
            will: Sent = self.known.wills[place - table.num_rows].message
            return will
        row = {name: table[name][place].as_py() for name in _MESSAGE_COLUMNS}
        return Sent(
            "publish",
            positions.at(int(sent.sent[place])),
            self.clients.all[sent.client[place]],
            self.topics.all[sent.topic[place]][2],
            b"",
            int(sent.qos[place]),
            bool(sent.retain[place]),
            None,
            row["length"],
            None if row["expires_s"] == NONE else row["expires_s"],
            row["response_topic"],
            row["correlation_data"],
            bool(sent.malformed[place]),
            positions.get(int(sent.accepted[place])),
            positions.get(int(sent.released[place])),
            None if sent.refused[place] == NONE else int(sent.refused[place]),
            is_lasting=row["is_lasting"],
        )

    def _retained(self, sent: SentColumns, place: int) -> Sent:
        """Return a message with RETAIN as a record, with its payload."""
        message = self._message(sent, place)
        if message.origin != "will":
            message.value = self.sent_table["payload"][place].as_py() or b""
        return message

    # --- retained values --------------------------------------------------------------------

    def _keep_values(self, sent: SentColumns, delivered: DeliveredColumns) -> None:
        """Derive retained values; find the message that set each delivered value."""
        keyed: defaultdict[Key, list[KeyedRecord]] = defaultdict(list)
        for place in np.flatnonzero(sent.retain).tolist():
            if (change := self._retained(sent, place).change()) is not None:
                for record in value_records(change):
                    keyed[record.key].append(record)
        for key, lost in self.known.lost.items():
            if key in keyed or key in self.known.valued:
                record = lost_record(key[:2], key[2], lost)
                keyed[record.key].append(record)
        for key in self.known.valued:
            for subscribed in self.known.matching.get(key, ()):
                keyed[key].append(new_subscription_record(key[2], subscribed))
        places: dict[Position, int] = {}
        for place in np.flatnonzero(delivered.retain).tolist():
            at = self.positions.at(int(delivered.at[place]))
            places[at] = place
            client = self.clients.all[delivered.client[place]]
            topic = self.topics.all[delivered.topic[place]][2]
            content = content_of(self.delivered_table["payload"][place].as_py() or b"")
            attempt = Attempt(at, client, topic, content, int(delivered.qos[place]), True)
            attempt.may_be_live = bool(delivered.may_be_live[place])
            attempt.is_sparse = bool(delivered.status[place] & Status.SPARSE)
            record = attempt_record(attempt)
            keyed[record.key].append(record)
        setters: dict[Position, int] = {}
        for of_topic in keyed.values():
            of_topic.sort(key=attrgetter("order"))
            for result in keep_values(one.record for one in of_topic):
                if not isinstance(result, KeyedRecord):
                    self._collect([result])
                    continue
                place, setter = places[result.record.at], result.record.setter
                delivered.is_live[place] = result.record.is_live
                delivered.may_be_live[place] = result.record.may_be_live
                delivered.is_extra[place] = result.record.is_extra
                if setter is not None:
                    if setter not in setters:
                        setters[setter] = self.positions.add(setter)
                    delivered.setter[place] = setters[setter]

    # --- requests and replies ---------------------------------------------------------------

    def _converse(self, sent: SentColumns) -> None:
        """Pass on requests, and the messages that may be replies to them."""
        wanted = self.sent_table["response_topic"]
        if wanted.null_count < len(wanted):
            for place in np.flatnonzero(wanted.is_valid().to_numpy(zero_copy_only=False)).tolist():
                self._collect([request_record(self._message(sent, place))])
        asked = [place for place, key in enumerate(self.topics.all) if key in self.known.asked]
        if asked:
            replies = np.isin(sent.topic, asked) & (sent.is_will == 0)
            for place in np.flatnonzero(replies).tolist():
                self._collect([reply_record(self._message(sent, place))])

    # --- deliveries -------------------------------------------------------------------------

    def _deliver(self, sent: SentColumns, delivered: DeliveredColumns) -> pa.Table:
        """Return the deliveries of all messages; pass on the missing ones without a verdict yet."""
        subscriptions, sub_positions, firsts, matching = self._subscriptions()
        records = self.known.connections
        ends = [self.positions.numbers((one.accepted, one.closed, one.until)) for one in records]
        record_clients = [self.clients[one.client] for one in records]
        ranks = self.positions.ranks()
        names = Numbers[tuple[str, str, str]]()
        by_client = [names[c.source, c.server, c.name] for c in self.clients.all]
        client_names = np.array(by_client, np.int64)
        damaged = {one.client[:3] for one in records if one.damaged or not one.begun}
        subs = subscription_grid(subscriptions, sub_positions, ranks, names, damaged)
        connections = connections_of(
            records,
            ranks[np.array(ends, np.int64).reshape(-1, 3)],
            record_clients,
            names.__getitem__,
        )
        # The last packet of a connection may be a message; its will comes after that.
        by_start, _ = by_group(ranks[sent.start] * 2 + sent.is_will, 2 * len(ranks))
        by_at, _ = by_group(ranks[delivered.at], len(ranks))
        groups, message_order, delivered_order = group_contents(sent, delivered, by_start, by_at)
        older = np.array([key in self.known.older for key in self.topics.all], np.int64)
        messages = message_grid(sent, message_order, groups, ranks, client_names)
        messages[:, Message.HAS_OLDER] = older[messages[:, Message.TOPIC]] if len(older) else 0
        attempts = delivered_grid(delivered, delivered_order, groups, ranks, client_names)
        expected, expected_subs = self._expected(
            messages, subs, firsts, matching, attempts, len(names.all)
        )
        count = len(expected)
        sent_ns, is_null = self.positions.column(sent.start[message_order], "ns")
        sent_ns[is_null] = NO_TIME
        at_ns, is_null = self.positions.column(delivered.at[delivered_order], "ns")
        at_ns[is_null] = NO_TIME
        lacking = self.known.lacking_ns
        since_ns = np.array([lacking.get(key[:2], _NEVER_NS) for key in self.topics.all], np.int64)
        attempts[:, Delivered.LACKS_EQUALS] = at_ns > since_ns[delivered.topic[delivered_order]]
        found = assign_all(
            messages, expected, expected_subs, subs, attempts, names, (sent_ns, at_ns)
        )
        if found.is_early.any():
            self._collect([Dropped("early", int(found.is_early.sum()))])
        assigned = found.entries

        def matching_of(topic: int) -> Ints:
            return matching[firsts[topic] : firsts[topic + 1]]

        def breaks(rule: str, sub: int, attempt: int, message: int) -> None:
            at = self.positions.at(int(delivered.at[delivered_order[attempt]]))
            key = self.positions.at(int(sent.sent[message_order[message]])).key
            self._collect(broker_violations(rule, subscriptions[sub], at, key))

        retained = assign_retained(
            messages, expected, expected_subs, subs, attempts, assigned, matching_of
        )
        for attempt, sub in retained:
            delivered.is_live[delivered_order[attempt]] = 1
            if sub != NONE:
                breaks("retained_live", sub, attempt, expected[assigned[attempt], Expected.MESSAGE])
        mark_served(messages, expected, expected_subs, subs, attempts, assigned)
        first_messages = group_starts(messages[:, Message.GROUP], groups)
        entry_groups = messages[expected[:, Expected.MESSAGE], Message.GROUP]
        first_expected = group_starts(entry_groups, groups)
        confirmed = np.full(len(messages), NONE, np.int64)
        has_row = np.zeros(len(messages), np.int64)
        rows = np.empty((len(attempts) + count + len(messages), len(DeliveryRow)), np.int64)
        older_ones, open_ones = older_messages(messages, expected, attempts, found, first_messages)
        messages[open_ones, Message.UNCONFIRMED] = UNDECIDED
        row_count = kernels.find_verdicts(
            messages, subs, expected, expected_subs, attempts, assigned, found.ordinals,
            first_messages, first_expected, older_ones, confirmed, has_row, rows,
        )  # fmt: skip
        rows = rows[:row_count]
        by_rank = np.empty(len(ranks), np.int64)
        by_rank[ranks] = np.arange(len(ranks))
        grids = DeliveryGrids(
            messages, expected, expected_subs, attempts, assigned, message_order, delivered_order,
            by_rank, subscriptions, subs, names,
        )  # fmt: skip
        is_again = delivered.status[delivered_order] & Status.AGAIN != 0
        times = Times(
            sent_ns, sent.expires_s[message_order], at_ns, delivered.expires_s[delivered_order],
            is_again | (delivered.copies[delivered_order] > 1),
            capture_ends(connections, attempts[:, Delivered.NAME]),
        )  # fmt: skip
        for broken in broken_rules(
            messages, expected, expected_subs, subs, attempts, assigned, rows, times, matching_of
        ):
            breaks(*broken)
        self._judge_unexpected(sent, delivered, grids, rows)
        explain_absence(
            rows, expected, expected_subs, subs, messages, confirmed, connections, sent_ns,
            sent.expires_s[message_order],
        )  # fmt: skip
        is_missing = rows[:, DeliveryRow.VERDICT] == MISSED
        self._pass_on_missed(sent, delivered, grids, rows[is_missing], confirmed)
        numbered = Numbered(self.positions, self.clients, self.topics, self.streams)
        return delivery_table(numbered, sent, delivered, grids, rows[~is_missing])

    def _judge_unexpected(
        self, sent: SentColumns, delivered: DeliveredColumns, grids: DeliveryGrids, rows: Grid
    ) -> None:
        """Judge the deliveries that no subscription accounts for, if all of them were captured."""
        is_unexpected = (rows[:, DeliveryRow.EXPECTED] == NONE) & (
            rows[:, DeliveryRow.DELIVERED] != NONE
        )
        unexpected = rows[is_unexpected][:, [DeliveryRow.MESSAGE, DeliveryRow.DELIVERED]].tolist()
        for message, attempt in unexpected:
            place = int(grids.delivered_order[attempt])
            client = self.clients.all[delivered.client[place]]
            topic = self.topics.all[delivered.topic[place]]
            if topic in self.known.older or client[:3] in self.known.prefixed:
                continue
            at = self.positions.at(int(delivered.at[place]))
            row = NONE if message == NONE else int(grids.message_order[message])
            key = None if row == NONE else self.positions.at(int(sent.sent[row])).key
            own = [one for one in self._matching[topic].get(client.name, ()) if one.asked < at]
            if not own:
                self._collect([unsubscribed_record(UnsubscribedDelivery(client, at, key))])
            elif row != NONE and sent.retain[row] and not delivered.retain[place]:
                of = self._retained(sent, row)
                is_old = of.accepted is not None and all(of.accepted < one.asked for one in own)
                if is_old and not of.deletes and any(one.gets_values for one in own):
                    delivered.is_live[place] = 0
                    self._collect(broker_violations("retained_unmarked", own[-1], at, key))

    def _expected(
        self, messages: Grid, subs: Grid, firsts: Ints, matching: Ints, attempts: Grid, names: int
    ) -> tuple[Grid, Ints]:
        """Return the expected deliveries, within the limit, and the subscriptions of each."""
        size = count_expected(messages, subs, firsts, matching)
        most = len(attempts) + MAX_UNDELIVERED
        kept = min(size, most + len(attempts))
        expected = np.zeros((kept, len(Expected)), np.int64)
        expected_subs = np.empty(kept, np.int64)
        buffers = np.zeros((2, max(names, 1)), np.int64)
        buffers[0] = NONE
        longest = int(np.diff(firsts).max(initial=0))
        pairs = subs[:, [Subscription.NAME, Subscription.FILTER]]
        filters = np.unique(pairs, axis=0, return_inverse=True)[1].reshape(-1)
        count = find_expected(
            messages, subs, firsts, matching, filters, expected, expected_subs,
            np.ascontiguousarray(attempts[:, [Delivered.GROUP, Delivered.NAME]]), most, buffers,
            np.full(len(subs), NONE), np.empty(longest, np.int64),
        )  # fmt: skip
        expected = expected[:count]
        if size > most:
            left = size - int(expected[:, Expected.SUBSCRIPTIONS].sum())
            self._collect([Dropped("undelivered", left)])
        return expected, expected_subs

    def _subscriptions(self) -> tuple[list[Subscribed], list[list[int]], Ints, Ints]:
        """Return subscriptions, their positions, and the subscriptions that match each topic.

        The positions are the numbers of `asked`, `granted`, `leaving` and of the end; then 1 if
        that is an end, 0 if it is the beginning of a newer subscription. Those that match topic t
        are ``matching[firsts[t]:firsts[t + 1]]``.
        """
        subs = self.known.subscriptions
        numbers = {one: number for number, one in enumerate(subs)}
        by_broker: defaultdict[tuple[str, str], list[Subscribed]] = defaultdict(list)
        for one in subs:
            by_broker[one.client[:2]].append(one)
        positions: list[list[int]] = [[] for _ in subs]
        for of_broker in by_broker.values():
            for one, turn in ends_of(of_broker).items():
                end = (NONE, 0) if turn is None else (self.positions.add(turn[0]), turn[1])
                others = [self.positions.add(at) for at in (one.asked, one.granted, one.leaving)]
                positions[numbers[one]] = [*others, *end]
        firsts, matching = [0], []
        for topic in self.topics.all:
            matching += [numbers[one] for one in self.known.matching.get(topic, ())]
            firsts.append(len(matching))
        return subs, positions, np.array(firsts, np.int64), np.array(matching, np.int64)

    def _pass_on_missed(
        self,
        sent: SentColumns,
        delivered: DeliveredColumns,
        grids: DeliveryGrids,
        missed: Grid,
        confirmed: Ints,
    ) -> None:
        """Pass on missing deliveries without a verdict yet, and the latest delivered messages."""
        subscriptions = grids.subscriptions
        topics: defaultdict[int, set[int]] = defaultdict(set)
        latest = NONE
        for message, _, _, _, entry, _ in missed.tolist():
            first, count = grids.expected[entry, [Expected.FIRST, Expected.SUBSCRIPTIONS]].tolist()
            matching = grids.expected_subs[first : first + count].tolist()
            rank, start = confirmed[message], grids.messages[message, Message.START]
            active = [
                subscriptions[one]
                for one in matching
                if grids.subs[one, Subscription.GRANTED] < start
                and not NONE < grids.subs[one, Subscription.LEAVING] <= rank
            ]
            if message != latest:
                # Those of a message follow each other, and share its record.
                latest, record = message, self._message(sent, int(grids.message_order[message]))
                confirmed_at = self.positions.at(int(grids.by_rank[rank]))
            name = int(grids.expected[entry, Expected.NAME])
            topics[int(grids.messages[message, Message.TOPIC])].add(name)
            text = grids.names.all[name][2]
            self._collect(
                [missing_record(record, text, subscriptions[matching[0]], active, confirmed_at)]
            )
        self._pass_on_latest(delivered, grids, topics)

    def _pass_on_latest(
        self, delivered: DeliveredColumns, grids: DeliveryGrids, missed: Mapping[int, set[int]]
    ) -> None:
        """Pass on the latest delivered message for each recipient, connection and QoS.

        Parameters
        ----------
        missed
            By topic, the names of the clients and groups with a missing delivery.
        """
        places = np.flatnonzero(grids.assigned != NONE)
        if not len(places):
            return
        entry = grids.assigned[places]
        names, message = (
            grids.expected[entry, Expected.NAME],
            grids.expected[entry, Expected.MESSAGE],
        )
        start, topic = (
            grids.messages[message, Message.START],
            grids.messages[message, Message.TOPIC],
        )
        at, qos = grids.attempts[places, Delivered.AT], grids.attempts[places, Delivered.QOS]
        endpoints = Numbers[tuple[str, str]]()
        order = grids.delivered_order[places]
        stream, _ = self.positions.column(delivered.at[order], "stream")
        pairs, of_pair = np.unique(
            delivered.client[order] * len(self.streams) + stream, return_inverse=True
        )
        numbers = [
            endpoints[self.clients.all[client].endpoint, self.streams[on].name.partition("#")[2]]
            for client, on in (divmod(pair, len(self.streams)) for pair in pairs.tolist())
        ]
        endpoint = np.array(numbers, np.int64)[of_pair]
        keys = (names * len(endpoints.all) + endpoint) * 3 + qos
        latest: list[tuple[int, str | None]] = [
            (one, None) for one in kernels.latest_of(keys, start, at).tolist()
        ]
        others = {
            number: set(names[topic == number].tolist())
            for number, key in enumerate(self.topics.all)
            if key in self.known.divided
        }
        for number, of_topic in {**missed, **others}.items():
            here = np.flatnonzero((topic == number) & np.isin(names, list(of_topic)))
            latest += [
                (int(here[one]), self.topics.all[number][2])
                for one in kernels.latest_of(keys[here], start[here], at[here]).tolist()
            ]
        for place, text in latest:
            latest_delivered = LatestDelivered(
                text,
                endpoints.all[int(endpoint[place])],
                int(qos[place]),
                self.positions.at(int(grids.by_rank[start[place]])),
                self.positions.at(int(grids.by_rank[at[place]])),
            )
            self._collect([latest_record(grids.names.all[int(names[place])], latest_delivered)])


def _ints(table: pa.Table, name: str) -> Ints:
    column = table[name]
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.int8())
    values: Ints = column.to_numpy().astype(np.int64)
    return values


def _contents(table: pa.Table) -> Grid:
    return np.stack((table["content_0"].to_numpy(), table["content_1"].to_numpy()), 1)
