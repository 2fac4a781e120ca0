"""Deliveries of the messages of some topics, by columns.

Rare cases go to the scalar stages as records: retained values, expected deliveries that are
certainly missing, requests and replies.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from operator import attrgetter
from typing import Any, Final

import numpy as np
import pyarrow as pa

from wireyard.arrays import Bools, Grid, Grid32, Ints
from wireyard.layers.grouping import by_group, dense_ids, text_codes
from wireyard.layers.mqtt.deliveries.assignment import (
    assign_all,
    assign_retained,
    mark_served,
    older_messages,
)
from wireyard.layers.mqtt.deliveries.conversations import reply_record, request_record
from wireyard.layers.mqtt.deliveries.grids import (
    SOON_NS,
    Columns,
    DeliveryGrids,
    Numbers,
    Positions,
    attempt_grid,
    columns_of,
    group_contents,
    message_grid,
    starts_of,
    subscription_grid,
)
from wireyard.layers.mqtt.deliveries.missing import (
    LatestDelivered,
    UnsubscribedDelivery,
    latest_record,
    missing_record,
    unsubscribed_record,
)
from wireyard.layers.mqtt.deliveries.missing_columns import (
    capture_ends,
    connections_of,
    explain_absence,
)
from wireyard.layers.mqtt.deliveries.published import SENT
from wireyard.layers.mqtt.deliveries.retained import (
    MissingValue,
    attempt_record,
    broker_violations,
    keep_values,
    new_subscription_record,
)
from wireyard.layers.mqtt.deliveries.rows import Numbered, Times, broken_rules, delivery_table
from wireyard.layers.mqtt.deliveries.subscriptions import ends_of
from wireyard.layers.mqtt.directions import Stream
from wireyard.layers.mqtt.grids import NO_TIME, NONE, Status
from wireyard.layers.mqtt.kernels import deliveries as kernels
from wireyard.layers.mqtt.kernels.deliveries import MISSED, UNDECIDED, Delivered, DeliveryRow
from wireyard.layers.mqtt.kernels.expected import (
    Expected,
    Message,
    Subscription,
    count_expected,
    find_expected,
)
from wireyard.layers.mqtt.packets import KnownStream
from wireyard.layers.mqtt.records import (
    AT_PUBREL,
    Attempt,
    Client,
    ConnectionRecord,
    Lost,
    Span,
    Subscribed,
    TopicKey,
    Will,
    content_of,
    lost_record,
    value_records,
)
from wireyard.layers.mqtt.records import Message as Sent
from wireyard.layers.records import Position
from wireyard.layers.stages import Dropped, Fact, Found, Key, KeyedRecord
from wireyard.layers.tables import fact_table

MAX_UNDELIVERED: Final = 1 << 20
"""Pairs of a message and a subscription without a delivery: at 1 KB each 1 GiB. A capture of a
megabyte can have thousands of subscribers and of messages, and so millions of such pairs."""
_POSITIONS: Final = ("sent_", "accepted_", "released_", "at_")
_MESSAGE_COLUMNS: Final = (
    "client", "topic", "qos", "retain", "length", "expires_s", "response_topic",
    "correlation_data", "malformed", "refused", "is_lasting",
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
    """Source, server and name of clients with filters that brokers may define."""
    lost: Mapping[tuple[str, str], Lost] = field(default_factory=dict)
    """By source and server of a broker: the packets to it that were not captured."""
    lost_messages: Mapping[tuple[str, str], Lost] = field(default_factory=dict)
    """Those of them that may have been messages."""
    unseen: Mapping[Stream, tuple[Span, ...]] = field(default_factory=dict)
    """The same in streams to clients, ascending."""


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

    `sent` and `delivered` are all messages and attempts of these topics, with the columns of `SENT`
    and `DELIVERED`; `clients` and `streams` are by number.
    """
    return _Derivation(sent, delivered, topics, clients, streams).run()


def _last_before(spans: Sequence[Span], at_ns: Ints) -> Ints:
    """Return the end of the last of some ascending spans that begin before times, or `NO_TIME`."""
    firsts, lasts = np.array([(NO_TIME, NO_TIME), *spans], np.int64).T
    before: Ints = lasts[np.maximum(np.searchsorted(firsts, at_ns) - 1, 0)]
    return before


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
        self.known, self.streams = topics, streams
        self.positions = Positions(streams)
        self.clients, self.topics = Numbers(clients), Numbers[TopicKey]()
        self.wills = [will.message for will in topics.wills]
        self.sent_table, self.delivered_table = self._with_wills(sent), delivered
        self.sent, self.delivered = self._sent(), self._delivered()
        self.several = self._read_identifiers()
        self._matching = _ByClient(topics.matching)
        self._results = Deliveries({}, [], Counter())
        self._rows: defaultdict[str, list[Any]] = defaultdict(list)
        self._missing: defaultdict[tuple[str, str], list[MissingValue]] = defaultdict(list)
        """By name of the client and message key."""

    def run(self) -> Deliveries:
        """Return the deliveries and all other results."""
        self._keep_values()
        self._converse()
        deliveries = self._deliver()
        for one in chain.from_iterable(self._missing.values()):
            rule = "retained_missing", one.subscribed, one.confirmed, one.message_key
            self._collect(broker_violations(*rule))
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

    # --- messages ---------------------------------------------------------------------------

    def _with_wills(self, sent: pa.Table) -> pa.Table:
        """Return messages with published wills as the last rows."""
        none: dict[str, Any] = {"refused": NONE, "copies": 1}
        for one in SENT:
            if pa.types.is_integer(one.type) or pa.types.is_boolean(one.type):
                none.setdefault(one.name, 0 if pa.types.is_integer(one.type) else False)
        rows = [
            none
            | self.positions.columns(will.message.sent, "sent_")
            | self.positions.columns(will.message.accepted, "accepted_")
            | self.positions.columns(will.message.released, "released_")
            | {
                "topic": will.message.topic,
                "content_0": will.content[0],
                "content_1": will.content[1],
                "client": self.clients[will.message.client],
                "qos": will.message.qos,
                "retain": will.message.retain,
                "expires_s": NONE if will.message.expires_s is None else will.message.expires_s,
            }
            for will in self.known.wills
        ]
        return pa.concat_tables([sent, pa.Table.from_pylist(rows, SENT)]) if rows else sent

    def _sent(self) -> Columns:
        """Return messages as columns, positions and topics as numbers."""
        columns = columns_of(self.sent_table, *_POSITIONS)
        for name in ("sent", "accepted", "released"):
            columns[name] = self.positions.of(self.sent_table, name)
        rows = np.arange(len(columns["sent"]))
        is_will = rows >= len(rows) - len(self.wills)
        columns["is_will"] = is_will.view(np.int8)
        has_start = is_will & (columns["released"] != NONE)
        columns["start"] = np.where(has_start, columns["released"], columns["sent"])
        columns["topic"] = self._number_topics(self.sent_table)
        return columns

    def _delivered(self) -> Columns:
        """Return attempts as columns, positions and topics as numbers."""
        columns = columns_of(self.delivered_table, *_POSITIONS)
        count = self.delivered_table.num_rows
        columns["at"] = self.positions.of(self.delivered_table, "at")
        columns["topic"] = self._number_topics(self.delivered_table)
        columns["identifier"], columns["setter"] = np.full((2, count), NONE)
        columns["is_live"], columns["is_extra"] = np.ones(count, np.int8), np.zeros(count, np.int8)
        may_be_live = columns["status"] & Status.MAY_BE_LIVE != 0
        columns["may_be_live"] = may_be_live.view(np.int8)
        return columns

    def _read_identifiers(self) -> dict[int, Sequence[int]]:
        """Read the subscription identifiers of attempts; return those of attempts with several."""
        lists, several = self.delivered_table["identifiers"], {}
        rows = np.flatnonzero(lists.is_valid().to_numpy(zero_copy_only=False))
        for row, identifiers in zip(rows.tolist(), lists.drop_null().to_pylist(), strict=True):
            if len(identifiers) == 1:
                self.delivered["identifier"][row] = identifiers[0]
            else:
                several[row] = identifiers
        return several

    def _number_topics(self, table: pa.Table) -> Ints:
        """Return the number of each row's topic among those of all brokers."""
        codes, texts = text_codes(table["topic"])
        of_clients = Numbers[tuple[str, str]]()
        brokers = np.array([of_clients[client[:2]] for client in self.clients.all], np.int64)
        broker = brokers[table["client"].to_numpy()]
        pairs, count = dense_ids(broker, codes)
        firsts = np.empty(count, np.int64)
        firsts[pairs[::-1]] = np.arange(len(pairs))[::-1]
        names = texts.take(pa.array(codes[firsts])).to_pylist()
        keys = zip(broker[firsts].tolist(), names, strict=True)
        numbers = [self.topics[*of_clients.all[number], name] for number, name in keys]
        return np.array(numbers, np.int64)[pairs]

    def _messages(self, places: Ints, *more: str) -> Iterator[Sent]:
        """Yield messages as records; with the column ``payload``, those with RETAIN have it."""
        positions, first_will = self.positions, self.sent_table.num_rows - len(self.wills)
        table = self.sent_table.select((*_MESSAGE_COLUMNS, *more)).take(pa.array(places))
        for place, row in zip(places.tolist(), table.to_pylist(), strict=True):
            if place >= first_will:
                yield self.wills[place - first_will]
                continue
            yield Sent(
                "publish",
                positions.at(int(self.sent["sent"][place])),
                self.clients.all[row["client"]],
                row["topic"],
                b"",
                row["qos"],
                row["retain"],
                (row["payload"] or b"") if more and row["retain"] else None,
                row["length"],
                None if row["expires_s"] == NONE else row["expires_s"],
                row["response_topic"],
                row["correlation_data"],
                row["malformed"],
                positions.get(int(self.sent["accepted"][place])),
                positions.get(int(self.sent["released"][place])),
                None if row["refused"] == NONE else row["refused"],
                is_lasting=row["is_lasting"],
            )

    # --- retained values --------------------------------------------------------------------

    def _keep_values(self) -> None:
        """Derive retained values; find the message that set each delivered value."""
        keyed: defaultdict[Key, list[KeyedRecord]] = defaultdict(list)
        for message in self._messages(np.flatnonzero(self.sent["retain"]), "payload"):
            if (change := message.change()) is not None:
                for record in value_records(change):
                    keyed[record.key].append(record)
        for key in self.topics.all:
            lost = self.known.lost.get(key[:2])
            if lost is not None and (key in keyed or key in self.known.valued):
                keyed[key].append(lost_record(key[:2], key[2], lost))
        for key in self.known.valued:
            for subscribed in self.known.matching.get(key, ()):
                keyed[key].append(new_subscription_record(key[2], subscribed))
        delivered, places, is_again = self.delivered, {}, self._is_again()
        for place in np.flatnonzero(delivered["retain"]).tolist():
            at = self.positions.at(int(delivered["at"][place]))
            places[at] = place
            client = self.clients.all[delivered["client"][place]]
            topic = self.topics.all[delivered["topic"][place]][2]
            content = content_of(self.delivered_table["payload"][place].as_py() or b"")
            attempt = Attempt(at, client, topic, content, int(delivered["qos"][place]), True)
            attempt.may_be_live = bool(delivered["may_be_live"][place])
            attempt.is_sparse = bool(delivered["status"][place] & Status.SPARSE)
            left_s = int(delivered["expires_s"][place])
            attempt.left_s = None if is_again[place] or left_s == NONE else left_s
            record = attempt_record(attempt)
            keyed[record.key].append(record)
        setters: dict[int, Position] = {}
        for of_topic in keyed.values():
            of_topic.sort(key=attrgetter("order"))
            for result in keep_values(one.record for one in of_topic):
                if isinstance(result, MissingValue):
                    self._missing[result.subscribed.client.name, result.message_key].append(result)
                    continue
                if not isinstance(result, Attempt):
                    self._collect([result])
                    continue
                place = places[result.at]
                for name in ("is_live", "may_be_live", "is_extra"):
                    delivered[name][place] = getattr(result, name)
                if result.setter is not None:
                    setters[place] = result.setter
        delivered["setter"][list(setters)] = self.positions.numbers(setters.values())

    # --- requests and replies ---------------------------------------------------------------

    def _converse(self) -> None:
        """Pass on requests, and the messages that may be replies to them."""
        wanted = self.sent_table["response_topic"].is_valid().to_numpy(zero_copy_only=False)
        self._collect(map(request_record, self._messages(np.flatnonzero(wanted))))
        asked = [place for place, key in enumerate(self.topics.all) if key in self.known.asked]
        if asked:
            replies = np.isin(self.sent["topic"], asked) & (self.sent["is_will"] == 0)
            self._collect(map(reply_record, self._messages(np.flatnonzero(replies))))

    # --- deliveries -------------------------------------------------------------------------

    def _deliver(self) -> pa.Table:
        """Return the deliveries of all messages; pass on the missing ones without a verdict yet."""
        sent, delivered, positions = self.sent, self.delivered, self.positions
        records, names = self.known.connections, Numbers[tuple[str, str, str]]()
        sub_positions, is_end = self._sub_positions()
        ends = positions.numbers(
            at for one in records for at in (one.accepted, one.closed, one.until)
        ).reshape(-1, 3)
        ranks, record_clients = positions.ranks(), [self.clients[one.client] for one in records]
        client_names = np.array([names[one[:3]] for one in self.clients.all], np.int64)
        damaged = {one.client[:3] for one in records if one.damaged or not one.begun}
        sub_ranks: Grid32 = np.column_stack((ranks[sub_positions], is_end.astype(np.int32)))
        subs = subscription_grid(self.known.subscriptions, sub_ranks, names, damaged)
        connections = connections_of(records, ranks[ends], record_clients, names.__getitem__)
        # The last packet of a connection may be a message; its will comes after that.
        by_start, _ = by_group(ranks[sent["start"]] * 2 + sent["is_will"], 2 * len(ranks))
        by_at, _ = by_group(ranks[delivered["at"]], len(ranks))
        messages_by, message_groups, attempts_by, attempt_groups, groups = group_contents(
            sent, delivered, by_start, by_at
        )
        older = np.array([key in self.known.older for key in self.topics.all], np.int64)
        messages = message_grid(sent, messages_by, message_groups, ranks, client_names, older)
        attempts = attempt_grid(delivered, attempts_by, attempt_groups, ranks, client_names)
        firsts, matching = self._matching_subs()
        expected, expected_subs = self._expected(
            messages, subs, firsts, matching, attempts, len(names.all)
        )
        sent_ns, at_ns = (
            np.where(is_null, NO_TIME, ns)
            for ns, is_null in (
                positions.column(sent["start"][messages_by], "ns"),
                positions.column(delivered["at"][attempts_by], "ns"),
            )
        )
        g = DeliveryGrids(
            messages, attempts, subs, expected, expected_subs, sent_ns, at_ns,
            *self._uncaptured(attempts_by, at_ns),
            delivered["status"][attempts_by] & Status.SPARSE != 0, groups,
        )  # fmt: skip
        by_rank = np.empty(len(ranks), np.int64)
        by_rank[ranks] = np.arange(len(ranks))
        of = Numbered(
            positions, self.clients, self.topics, names, self.streams, sent, delivered, messages_by,
            attempts_by, by_rank, self.known.subscriptions, sub_positions[:, 1], self.several,
        )  # fmt: skip

        def matching_of(topic: int) -> Ints:
            return matching[firsts[topic] : firsts[topic + 1]]

        return self._judge(g, of, connections, matching_of)

    def _uncaptured(self, rows: Ints, at_ns: Ints) -> tuple[Ints, Ints]:
        """Return for attempts `lost_until_ns` and `unseen_until_ns`, as of `DeliveryGrids`."""
        if not self.known.lost_messages:
            none = np.broadcast_to(np.int64(NO_TIME), len(rows))
            return none, none
        lost = np.full(len(rows), NO_TIME)
        brokers = Numbers[tuple[str, str]]()
        of_topics = np.array([brokers[key[:2]] for key in self.topics.all], np.int64)
        broker = of_topics[self.delivered["topic"][rows]]
        for key, found in self.known.lost_messages.items():
            own = np.flatnonzero(broker == brokers[key])
            lost[own] = _last_before(found.spans, at_ns[own])
        stream, _ = self.positions.column(self.delivered["at"][rows], "stream")
        firsts = [NO_TIME if one.first_ns is None else one.first_ns for one in self.streams]
        unseen = np.array(firsts, np.int64)[stream]
        order, _ = by_group(stream, len(firsts))
        starts = np.searchsorted(stream[order], np.arange(len(firsts) + 1))
        for number, one in enumerate(self.streams):
            if spans := self.known.unseen.get((one.source, one.name)):
                own = order[starts[number] : starts[number + 1]]
                until = _last_before(spans, at_ns[own] + SOON_NS)
                unseen[own] = np.maximum(unseen[own], until)
        return lost, unseen

    def _judge(
        self,
        g: DeliveryGrids,
        of: Numbered,
        connections: Grid,
        matching: Callable[[int], Ints],
    ) -> pa.Table:
        """Find the verdict of each delivery; return the table."""
        assign_all(g)
        if g.is_early.any():
            self._collect([Dropped("early", int(g.is_early.sum()))])

        def breaks(rule: str, sub: int, attempt: int, message: int) -> None:
            at = of.positions.at(int(of.delivered["at"][of.attempt_order[attempt]]))
            key = of.positions.at(int(of.sent["sent"][of.message_order[message]])).key
            self._collect(broker_violations(rule, of.subscriptions[sub], at, key))

        for attempt, sub in assign_retained(g, matching):
            of.delivered["is_live"][of.attempt_order[attempt]] = 1
            if sub != NONE:
                message = g.expected[g.assigned[attempt], Expected.MESSAGE]
                breaks("retained_live", sub, attempt, message)
        of.delivered["may_be_live"][of.attempt_order] = g.attempts[:, Delivered.MAY_BE_LIVE]
        mark_served(g)
        first_messages = g.first_messages
        older_ones, open_ones = older_messages(g)
        g.messages[open_ones, Message.UNCONFIRMED] = UNDECIDED
        confirmed = np.full(len(g.messages), NONE, np.int64)
        has_row = np.zeros(len(g.messages), np.int64)
        most = len(g.attempts) + len(g.expected) + len(g.messages)
        rows = np.empty((most, len(DeliveryRow)), np.int32)
        row_count = kernels.find_verdicts(
            g.messages, g.subs, g.expected, g.expected_subs, g.attempts, g.assigned, g.ordinals,
            first_messages, starts_of(g.entry_groups, g.groups), older_ones, confirmed, has_row,
            rows,
        )  # fmt: skip
        rows = rows[:row_count]
        times = Times(
            of.sent["expires_s"][of.message_order],
            self._taken_ns()[of.message_order],
            of.delivered["expires_s"][of.attempt_order],
            self._is_again()[of.attempt_order],
            capture_ends(connections, g.attempts[:, Delivered.NAME]),
        )
        for broken in broken_rules(g, rows, times, matching):
            breaks(*broken)
        self._judge_unexpected(of, rows, first_messages[g.messages[:, Message.GROUP]])
        explain_absence(
            rows, g.expected, g.expected_subs, g.subs, g.messages, confirmed, connections,
            times.taken_ns, times.expires_s,
        )  # fmt: skip
        is_missing = rows[:, DeliveryRow.VERDICT] == MISSED
        self._pass_on_missed(g, of, rows[is_missing], confirmed)
        return delivery_table(of, g, rows[~is_missing])

    def _is_again(self) -> Bools:
        """Return whether delivery attempts, or copies of them, are redeliveries."""
        delivered = self.delivered
        is_again: Bools = (delivered["status"] & Status.AGAIN != 0) | (delivered["copies"] > 1)
        return is_again

    def _taken_ns(self) -> Ints:
        """Return when the broker took messages over, as `Message.taken`; `NO_TIME` if unknown."""
        sent = self.sent
        published = np.where(sent["qos"] == AT_PUBREL, sent["released"], sent["sent"])
        taken: Ints = np.where(sent["is_will"] == 1, sent["accepted"], published)
        ns, is_null = self.positions.column(taken, "ns")
        return np.where(is_null, NO_TIME, ns)

    def _judge_unexpected(self, of: Numbered, rows: Grid32, firsts: Ints) -> None:
        """Judge the deliveries that no subscription accounts for, if all of them were captured.

        `firsts` has for each message the first one that is equal to it.
        """
        is_unexpected = rows[:, DeliveryRow.EXPECTED] == NONE
        is_unexpected &= rows[:, DeliveryRow.DELIVERED] != NONE
        delivered, sent = self.delivered, self.sent
        for message, attempt, *_ in rows[is_unexpected].tolist():
            place = int(of.attempt_order[attempt])
            client = self.clients.all[delivered["client"][place]]
            topic = self.topics.all[delivered["topic"][place]]
            if topic in self.known.older or client[:3] in self.known.prefixed:
                continue
            at = self.positions.at(int(delivered["at"][place]))
            row = NONE if message == NONE else int(of.message_order[message])
            key = None if row == NONE else self.positions.at(int(sent["sent"][row])).key
            own = [one for one in self._matching[topic].get(client.name, ()) if one.asked < at]
            if own and row != NONE and not delivered["retain"][place]:
                first = int(sent["start"][of.message_order[firsts[message]]])
                if all(one.was_left_before(self.positions.at(first)) for one in own):
                    own = []
            if not own:
                self._collect([unsubscribed_record(UnsubscribedDelivery(client, at, key))])
            elif row != NONE and sent["retain"][row] and not delivered["retain"][place]:
                (value,) = self._messages(np.array([row]), "payload")
                is_old = value.accepted is not None and all(
                    value.accepted < one.asked for one in own
                )
                if is_old and not value.deletes and any(one.gets_values for one in own):
                    delivered["is_live"][place] = 0
                    self._missing.pop((client.name, value.sent.key), None)
                    self._collect(broker_violations("retained_unmarked", own[-1], at, key))

    def _expected(
        self,
        messages: Grid32,
        subs: Grid32,
        firsts: Ints,
        matching: Ints,
        attempts: Grid32,
        names: int,
    ) -> tuple[Grid32, Ints]:
        """Return the expected deliveries, within the limit, and the subscriptions of each."""
        size = count_expected(messages, subs, firsts, matching)
        most = len(attempts) + MAX_UNDELIVERED
        kept = min(size, most + len(attempts))
        expected = np.zeros((kept, len(Expected)), np.int32)
        expected_subs = np.empty(kept, np.int64)
        buffers = np.zeros((2, max(names, 1)), np.int32)
        buffers[0] = NONE
        filters, _ = dense_ids(subs[:, Subscription.NAME], subs[:, Subscription.FILTER])
        count = find_expected(
            messages, subs, firsts, matching, filters.astype(np.int64), expected, expected_subs,
            np.ascontiguousarray(attempts[:, [Delivered.GROUP, Delivered.NAME]]), most, buffers,
            np.full(len(subs), NONE), np.empty(int(np.diff(firsts).max(initial=0)), np.int64),
        )  # fmt: skip
        expected = expected[:count]
        if size > most:
            left = size - int(expected[:, Expected.SUBSCRIPTIONS].sum())
            self._collect([Dropped("undelivered", left)])
        return expected, expected_subs

    def _sub_positions(self) -> tuple[Grid, Ints]:
        """Return the positions of subscriptions: `asked`, `granted`, `leaving` and the end.

        They are returned as numbers; the second result is 1 if the last one is an end, 0 if it is
        the beginning of a newer subscription.
        """
        by_broker: defaultdict[tuple[str, str], list[Subscribed]] = defaultdict(list)
        for one in self.known.subscriptions:
            by_broker[one.client[:2]].append(one)
        turns: dict[Subscribed, tuple[Position | None, int]] = {}
        for of_broker in by_broker.values():
            turns |= {one: turn or (None, 0) for one, turn in ends_of(of_broker).items()}
        positions = [
            at
            for one in self.known.subscriptions
            for at in (one.asked, one.granted, one.leaving, turns[one][0])
        ]
        numbers = self.positions.numbers(positions).reshape(-1, 4)
        return numbers, np.array([turns[one][1] for one in self.known.subscriptions], np.int64)

    def _matching_subs(self) -> tuple[Ints, Ints]:
        """Return the subscriptions that match topics: ``matching[firsts[t]:firsts[t + 1]]``."""
        numbers = {one: number for number, one in enumerate(self.known.subscriptions)}
        matching = [self.known.matching.get(topic, ()) for topic in self.topics.all]
        firsts = np.cumsum([0, *map(len, matching)])
        return firsts, np.array([numbers[one] for of in matching for one in of], np.int64)

    def _pass_on_missed(
        self, g: DeliveryGrids, of: Numbered, missed: Grid32, confirmed: Ints
    ) -> None:
        """Pass on missing deliveries without a verdict yet, and the latest delivered messages."""
        # The rows of a message follow each other, and share its record.
        numbers = missed[:, DeliveryRow.MESSAGE]
        of_rows = np.flatnonzero(np.diff(numbers, prepend=NONE))
        records = self._messages(of.message_order[numbers[of_rows]])
        latest = NONE
        for message, _, _, _, entry, _ in missed.tolist():
            rank, start = confirmed[message], g.messages[message, Message.START]
            subs = g.subs_of(entry)
            leaving = g.subs[subs, Subscription.LEAVING]
            is_active = (leaving == NONE) | (leaving > rank)
            is_active &= g.subs[subs, Subscription.GRANTED] < start
            active = [of.subscriptions[one] for one in subs[is_active].tolist()]
            if message != latest:
                latest, record = message, next(records)
                confirmed_at = self.positions.at(int(of.by_rank[rank]))
            text = of.names.all[int(g.expected[entry, Expected.NAME])][2]
            first = of.subscriptions[int(subs[0])]
            self._collect([missing_record(record, text, first, active, confirmed_at)])
        self._pass_on_latest(g, of, missed)

    def _pass_on_latest(self, g: DeliveryGrids, of: Numbered, missed: Grid32) -> None:
        """Pass on the latest delivered message for each recipient, connection and QoS.

        So it is for all topics together, and for each topic on which the recipient has a missing
        delivery, here or elsewhere; each time up to every end of a subscription of the recipient.
        """
        places = np.flatnonzero(g.assigned != NONE)
        if not len(places):
            return
        entry, message = g.assigned[places], g.expected[g.assigned[places], Expected.MESSAGE]
        name = g.expected[entry, Expected.NAME].astype(np.int64)
        topic = g.messages[message, Message.TOPIC].astype(np.int64)
        start, at = g.messages[message, Message.START], g.attempts[places, Delivered.AT]
        qos = g.attempts[places, Delivered.QOS]
        rows = of.attempt_order[places]
        client = self.delivered["client"][rows]
        stream, _ = self.positions.column(self.delivered["at"][rows], "stream")
        ordinals = [one.name.partition("#")[2] for one in self.streams]
        endpoints, ordinal = Numbers[str](), Numbers[str]()
        endpoint_of = np.array([endpoints[one.endpoint] for one in self.clients.all], np.int64)
        ordinal_of = np.array([ordinal[text] for text in ordinals], np.int64)
        keys = (name * len(endpoints.all) + endpoint_of[client]) * len(ordinal.all)
        keys = (keys + ordinal_of[stream]) * 3 + qos
        subs = g.subs[g.subs[:, Subscription.LEAVING] != NONE].astype(np.int64)
        ends = subs[:, Subscription.SERVED_AS] * len(of.by_rank) + subs[:, Subscription.LEAVING]
        span = np.searchsorted(np.sort(ends), name * len(of.by_rank) + at, "right")
        keys = dense_ids(keys, span)[0].astype(np.int64)
        entries = g.expected[missed[:, DeliveryRow.EXPECTED]]
        topics = g.messages[entries[:, Expected.MESSAGE], Message.TOPIC].astype(np.int64)
        pairs = np.unique(topics * len(of.names.all) + entries[:, Expected.NAME])
        pair = topic * len(of.names.all) + name
        is_wanted = np.append(pairs, NONE)[np.searchsorted(pairs, pair)] == pair
        is_divided = np.array([key in self.known.divided for key in self.topics.all], np.bool_)
        here = np.flatnonzero(is_wanted | is_divided[topic])
        by_topic, _ = dense_ids(topic[here], keys[here])
        of_topics = here[kernels.latest_of(by_topic.astype(np.int64), start[here], at[here])]
        of_all = kernels.latest_of(keys, start, at)
        latest: list[tuple[int, str | None]] = [(one, None) for one in of_all.tolist()]
        latest += [(one, self.topics.all[topic[one]][2]) for one in of_topics.tolist()]
        for place, text in latest:
            latest_delivered = LatestDelivered(
                text,
                (self.clients.all[int(client[place])].endpoint, ordinals[int(stream[place])]),
                int(qos[place]),
                self.positions.at(int(of.by_rank[start[place]])),
                self.positions.at(int(of.by_rank[at[place]])),
            )
            self._collect([latest_record(of.names.all[int(name[place])], latest_delivered)])
