"""Who got which message: the steps that take the messages of some topics, by columns.

What is rare is handed to the scalar steps as records: retained values, what was due to somebody for
certain and never came, requests and replies.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final, Generic, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from wireyard.layers.grouping import text_codes
from wireyard.layers.mqtt import delivery_kernels as kernels
from wireyard.layers.mqtt.conversations import reply_note, request_note
from wireyard.layers.mqtt.delivery_kernels import (
    MISSED,
    VERDICT_NAMES,
    Delivered,
    Expected,
    Fate,
    Message,
    Subscription,
)
from wireyard.layers.mqtt.expected import ends_of
from wireyard.layers.mqtt.flow_kernels import NONE, Status
from wireyard.layers.mqtt.missing import Passed, missing_note, passed_note
from wireyard.layers.mqtt.missing_columns import connections_of, explain_absence
from wireyard.layers.mqtt.packets import NO_TIME, Bools, Ints, KnownStream
from wireyard.layers.mqtt.records import (
    Client,
    Handed,
    Link,
    Moment,
    Setting,
    Subscribed,
    content_of,
    moment_of,
)
from wireyard.layers.mqtt.records import Message as Sent
from wireyard.layers.mqtt.values import (
    handed_note,
    keep_values,
    new_subscription_note,
    setting_notes,
)
from wireyard.layers.steps import Fact, Found, Key, Note
from wireyard.layers.tables import as_fact_table, fact_table, text_array

__all__ = ["Deliveries", "Topics", "Will", "deliver"]

Grid = np.ndarray[tuple[int, int], np.dtype[np.int64]]
T = TypeVar("T")
TopicKey = tuple[str, str, str]
"""Source, server and topic."""


class Will(NamedTuple):
    """A will, the hashes of its payload, and where the row of its CONNECT is."""

    message: Sent
    content: tuple[int, int]
    file: int
    row: int


_MIX: Final = np.uint64(0x9E3779B97F4A7C15)
_LONGEST_TIE: Final = 64
_REFUSED, _MALFORMED = 1, 2
_NO_OLDER: Final = -2
_SAID: Final = ("length", "expires_s", "response_topic", "correlation_data")
_NO_INTS: Final[Ints] = np.zeros(0, np.int64)
_OUTCOMES: Final = pa.array(["no_ack_wanted", "acknowledged", "unacknowledged", "expired"])
_EXPIRED: Final = VERDICT_NAMES.index("expired")
_ORIGINS: Final = pa.array(["publish", "will", "broker"])


@dataclass(slots=True)
class Topics:
    """What is known of some topics before their messages are looked at."""

    subscriptions: list[Subscribed]
    """All of the brokers, or those that match a topic here and others to the same filters."""
    matching: Mapping[TopicKey, Sequence[Subscribed]]
    """The subscriptions that ever matched a topic, in the order in which they are told."""
    valued: frozenset[TopicKey]
    """Topics that have retained values."""
    asked: frozenset[TopicKey]
    """Topics that replies are asked for on."""
    older: frozenset[TopicKey]
    """Topics that may have subscriptions which nobody saw, of before the capture."""
    wills: list[Will]
    links: list[Link]
    """Accepted connections that messages of the subscriptions go to, in the order of their
    opening."""
    divided: frozenset[TopicKey] = frozenset()
    """Topics of which others take messages too, those with other payloads."""


@dataclass(slots=True)
class Deliveries:
    """What was found of some topics."""

    tables: dict[str, list[pa.Table]]
    notes: list[Note]
    """For the steps behind."""
    dropped: Counter[str]


def deliver(
    sent: pa.Table,
    delivered: pa.Table,
    topics: Topics,
    clients: Sequence[Client],
    streams: Sequence[KnownStream],
) -> Deliveries:
    """Return what became of the messages of some topics.

    Parameters
    ----------
    sent, delivered
        All there is of these topics: columns of `SENT` and `DELIVERED`.
    clients, streams
        By number.
    """
    return _Derivation(sent, delivered, topics, clients, streams).run()


# --- moments --------------------------------------------------------------------------------


class _Moments:
    """Moments by number: first those in columns, then others as they are added.

    Parameters
    ----------
    columns
        Tables, and what the names of their columns begin with.
    """

    def __init__(self, streams: Sequence[KnownStream], *columns: tuple[pa.Table, str]) -> None:
        self._streams = streams
        self._columns = {
            name: np.concatenate(
                [table[f"{prefix}_{name}"].to_numpy() for table, prefix in columns]
            )
            for name in ("reached_ns", "reached_frame", "stream", "offset", "ns", "frame")
        }
        self._count = len(self._columns["ns"])
        self._firsts: dict[tuple[int, str], int] = {}
        first = 0
        for table, prefix in columns:
            self._firsts[id(table), prefix] = first
            first += table.num_rows
        self._added: list[Moment] = []
        self._places: dict[tuple[str, str], int] = {}
        self._wholes: dict[str, Ints] = {}

    def of(self, table: pa.Table, prefix: str) -> Ints:
        """Return the numbers of the moments in columns; -1 where there is none."""
        first = self._firsts[id(table), prefix]
        numbers = np.arange(first, first + table.num_rows)
        there = self._columns["reached_ns"][numbers] != NO_TIME
        return np.where(there, numbers, NONE)

    def add(self, moment: Moment | None) -> int:
        """Return the number of a moment; -1 for none."""
        if moment is None:
            return NONE
        self._added.append(moment)
        return self._count + len(self._added) - 1

    def numbers(self, moments: Iterable[Moment | None]) -> Ints:
        """Return the numbers of moments."""
        return np.array([self.add(moment) for moment in moments], np.int64)

    def get(self, number: int) -> Moment | None:
        """Return the moment of a number."""
        if number == NONE:
            return None
        if number >= self._count:
            return self._added[number - self._count]
        row = {name: int(column[number]) for name, column in self._columns.items()}
        stream, ns = self._streams[row["stream"]], row["ns"]
        order = row["reached_ns"], row["reached_frame"], stream.name, row["offset"]
        own = (None, None) if ns == NO_TIME else (ns, row["frame"])
        return moment_of((*order, *own, stream.source))

    def at(self, number: int) -> Moment:
        """Return the moment of a number that is there."""
        found = self.get(number)
        assert found is not None
        return found

    def _stream(self, moment: Moment) -> int:
        if not self._places:
            self._places = {(s.source, s.name): place for place, s in enumerate(self._streams)}
        return self._places[moment.source, moment.stream]

    def ranks(self) -> Ints:
        """Return the place of each moment in the order of all, equal ones alike; of -1 it is -1."""
        ns, frame, stream, offset = (
            self._whole(name) for name in ("reached_ns", "reached_frame", "stream", "offset")
        )
        # What has no time is one stream behind the other.
        ns = np.where(ns == 0, stream, ns)
        order = np.argsort(ns, kind="stable")
        if _longest_tie(ns[order]) > _LONGEST_TIE:
            order = np.lexsort((offset, frame, ns))
        ranks = np.empty(len(ns) + 1, np.int64)
        kernels.rank(order, ns, frame, offset, ranks)
        ranks[NONE] = NONE
        return ranks

    def column(self, numbers: Ints, name: str) -> tuple[Ints, Bools]:
        """Return ``ns``, ``frame``, ``stream`` or ``offset`` of moments, and where none is."""
        values, missing = _at(self._whole(name), numbers), numbers == NONE
        if name in ("ns", "frame"):
            missing |= (_at(self._whole("ns"), numbers) == NO_TIME) | (values == NO_TIME)
        return np.where(missing, 0, values), missing

    def _whole(self, name: str) -> Ints:
        """Return a column of all moments, those that were added too."""
        count = self._count + len(self._added)
        found = self._wholes.get(name)
        if found is None or len(found) != count:
            added = [self._value(moment, name) for moment in self._added]
            found = self._wholes[name] = _joined(self._columns[name], added)
        return found

    def _value(self, moment: Moment, name: str) -> int:
        if name == "stream":
            return self._stream(moment)
        value: int | None = getattr(moment, name)
        return NO_TIME if value is None else value


def _joined(values: Ints, more: Sequence[int]) -> Ints:
    return np.concatenate((values, np.array(more, np.int64)))


def _longest_tie(ordered: Ints) -> int:
    bounds = np.flatnonzero(np.diff(ordered)) + 1
    return int(np.diff(bounds, prepend=0, append=len(ordered)).max(initial=0))


# --- the steps ------------------------------------------------------------------------------


@dataclass(slots=True)
class _Sent:
    """Messages that clients sent, and wills that were published, by columns."""

    sent: Ints
    accepted: Ints
    released: Ints
    """Moments by number."""
    start: Ints
    topic: Ints
    content: Grid
    client: Ints
    qos: Ints
    retain: Ints
    copies: Ints
    refused: Ints
    """Reason code; -1 if it was not refused."""
    malformed: Ints
    is_repeated: Ints
    is_will: Ints
    expires_s: Ints


@dataclass(slots=True)
class _Delivered:
    """Messages that brokers delivered, by columns."""

    at: Ints
    topic: Ints
    content: Grid
    client: Ints
    qos: Ints
    retain: Ints
    is_acknowledged: Ints
    copies: Ints
    refused: Ints
    status: Ints
    identifier: Ints
    is_live: Ints
    may_be_live: Ints
    setter: Ints


class _Derivation:
    """The messages of some topics, and what is known of them."""

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
        self.moments = _Moments(
            streams, (sent, "sent"), (sent, "accepted"), (sent, "released"), (delivered, "at")
        )
        self.clients = _Numbers(clients)
        self.topics = _Numbers[TopicKey]()
        self._found = Deliveries({}, [], Counter())
        self._rows: defaultdict[str, list[Any]] = defaultdict(list)
        self._several: dict[int, list[int]] = {}
        """The subscription identifiers of deliveries that have several."""

    def run(self) -> Deliveries:
        """Return what was found."""
        sent, delivered = self._sent(), self._delivered()
        self._keep_values(sent, delivered)
        self._converse(sent)
        deliveries = self._deliver(sent, delivered)
        found = self._found
        found.tables = {name: [fact_table(name, rows)] for name, rows in self._rows.items()}
        found.tables.setdefault("deliveries", []).append(deliveries)
        return found

    def _take(self, found: Iterable[Found]) -> None:
        for one in found:
            if isinstance(one, Fact):
                self._rows[one.table].append(one.row)
            elif isinstance(one, Note):
                self._found.notes.append(one)
            else:
                self._found.dropped[one.cap] += one.things

    def _number_topics(self, table: pa.Table) -> Ints:
        """Return the number of each row's topic among those of all brokers."""
        if not table.num_rows:
            return _NO_INTS
        codes, dictionary = text_codes(table["topic"])
        texts = dictionary.to_pylist()
        of_clients = _Numbers[tuple[str, str]]()
        brokers = np.array([of_clients[client[:2]] for client in self.clients.all], np.int64)
        pairs = brokers[table["client"].to_numpy()] * len(texts) + codes
        unique, places = np.unique(pairs, return_inverse=True)
        numbers = [
            self.topics[*of_clients.all[pair // len(texts)], texts[pair % len(texts)]]
            for pair in unique.tolist()
        ]
        return np.array(numbers, np.int64)[places]

    # --- messages ---------------------------------------------------------------------------

    def _sent(self) -> _Sent:
        table, moments = self.sent_table, self.moments
        wills = [will.message for will in self.known.wills]
        hashes = np.array([will.content for will in self.known.wills], np.int64).reshape(-1, 2)
        number = moments.of(table, "sent")
        return _Sent(
            sent=_joined(number, [moments.add(will.sent) for will in wills]),
            accepted=_joined(
                moments.of(table, "accepted"), [moments.add(w.accepted) for w in wills]
            ),
            released=_joined(
                moments.of(table, "released"), [moments.add(w.released) for w in wills]
            ),
            start=_joined(number, [moments.add(will.start) for will in wills]),
            topic=_joined(
                self._number_topics(table), [self.topics[*w.client[:2], w.topic] for w in wills]
            ),
            content=np.concatenate((_contents(table), hashes)),
            client=_joined(_ints(table, "client"), [self.clients[w.client] for w in wills]),
            qos=_joined(_ints(table, "qos"), [will.qos for will in wills]),
            retain=_joined(_ints(table, "retain"), [will.retain for will in wills]),
            copies=_joined(_ints(table, "copies"), [will.copies for will in wills]),
            refused=_joined(_ints(table, "refused"), [NONE] * len(wills)),
            malformed=_joined(_ints(table, "malformed"), [0] * len(wills)),
            is_repeated=_joined(_ints(table, "is_repeated"), [0] * len(wills)),
            is_will=_joined(np.zeros(len(number), np.int64), [1] * len(wills)),
            expires_s=_joined(
                _ints(table, "expires_s"),
                [NONE if will.expires_s is None else will.expires_s for will in wills],
            ),
        )

    def _delivered(self) -> _Delivered:
        table = self.delivered_table
        identifier = np.full(table.num_rows, NONE, np.int64)
        said = table["identifiers"]
        if said.null_count < len(said):
            there = np.flatnonzero(said.is_valid().to_numpy(zero_copy_only=False))
            for place, some in zip(there.tolist(), said.drop_null().to_pylist(), strict=True):
                if len(some) == 1:
                    identifier[place] = some[0]
                else:
                    self._several[place] = some
        return _Delivered(
            at=self.moments.of(table, "at"),
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
            setter=np.full(table.num_rows, NONE, np.int64),
        )

    def _message(self, sent: _Sent, place: int) -> Sent:
        """Return a message as a record."""
        table, moments = self.sent_table, self.moments
        if place >= table.num_rows:
            will: Sent = self.known.wills[place - table.num_rows].message
            return will
        row = {name: table[name][place].as_py() for name in _SAID}
        return Sent(
            "publish",
            moments.at(int(sent.sent[place])),
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
            moments.get(int(sent.accepted[place])),
            moments.get(int(sent.released[place])),
            None if sent.refused[place] == NONE else int(sent.refused[place]),
        )

    # --- retained values --------------------------------------------------------------------

    def _keep_values(self, sent: _Sent, delivered: _Delivered) -> None:
        """Follow retained values; what was delivered of them learns which message set it."""
        notes: defaultdict[Key, list[Note]] = defaultdict(list)
        for setting in self._settings(sent):
            for note in setting_notes(setting):
                notes[note.key].append(note)
        for key in self.known.valued:
            for subscribed in self.known.matching.get(key, ()):
                notes[key].append(new_subscription_note(key[2], subscribed))
        places: dict[Moment, int] = {}
        for place in np.flatnonzero(delivered.retain).tolist():
            at = self.moments.at(int(delivered.at[place]))
            places[at] = place
            client = self.clients.all[delivered.client[place]]
            topic = self.topics.all[delivered.topic[place]][2]
            content = content_of(self.delivered_table["payload"][place].as_py() or b"")
            handed = Handed(at, client, topic, content, int(delivered.qos[place]), True)
            handed.may_be_live = bool(delivered.may_be_live[place])
            note = handed_note(handed)
            notes[note.key].append(note)
        setters: dict[Moment, int] = {}
        for of_topic in notes.values():
            of_topic.sort(key=attrgetter("order"))
            for found in keep_values(note.record for note in of_topic):
                if not isinstance(found, Note):
                    self._take([found])
                    continue
                place, setter = places[found.record.at], found.record.setter
                delivered.is_live[place] = found.record.is_live
                delivered.may_be_live[place] = found.record.may_be_live
                if setter is not None:
                    if setter not in setters:
                        setters[setter] = self.moments.add(setter)
                    delivered.setter[place] = setters[setter]

    def _settings(self, sent: _Sent) -> Iterator[Setting]:
        """Yield what messages did to retained values."""
        payloads = self.sent_table["payload"]
        for place in np.flatnonzero(sent.retain).tolist():
            message = self._message(sent, place)
            if message.origin != "will":
                message.value = payloads[place].as_py() or b""
            setting = message.setting()
            if setting is not None:
                yield setting

    # --- requests and replies ---------------------------------------------------------------

    def _converse(self, sent: _Sent) -> None:
        """Note requests, and the messages that may be replies to them."""
        wanted = self.sent_table["response_topic"]
        if wanted.null_count < len(wanted):
            for place in np.flatnonzero(wanted.is_valid().to_numpy(zero_copy_only=False)).tolist():
                self._take([request_note(self._message(sent, place))])
        asked = [place for place, key in enumerate(self.topics.all) if key in self.known.asked]
        if asked:
            replies = np.isin(sent.topic, asked) & (sent.is_will == 0)
            for place in np.flatnonzero(replies).tolist():
                self._take([reply_note(self._message(sent, place))])

    # --- deliveries -------------------------------------------------------------------------

    def _deliver(self, sent: _Sent, delivered: _Delivered) -> pa.Table:
        """Find what became of every message; return what is known of it already as a table."""
        subs, kept, firsts, matching = self._subscriptions()
        links = self.known.links
        ends = [self.moments.numbers((one.accepted, one.closed, one.until)) for one in links]
        link_clients = [self.clients[one.client] for one in links]
        ranks = self.moments.ranks()
        names = _Numbers[tuple[str, str, str]]()
        by_client = [names[c.source, c.server, c.name] for c in self.clients.all]
        client_names = np.array(by_client, np.int64)
        grid = _subscription_grid(subs, kept, ranks, names)
        connections = connections_of(
            links,
            ranks[np.array(ends, np.int64).reshape(-1, 3)],
            link_clients,
            names.__getitem__,
        )
        # The last packet of a connection may be a message; its will comes behind that.
        by_start = np.argsort(ranks[sent.start] * 2 + sent.is_will, kind="stable")
        by_at = np.argsort(ranks[delivered.at], kind="stable")
        groups, message_order, delivered_order = _grouped(sent, delivered, by_start, by_at)
        older = np.array([key in self.known.older for key in self.topics.all], np.int64)
        messages = _message_grid(sent, message_order, groups, ranks, client_names)
        messages[:, Message.HAS_OLDER] = older[messages[:, Message.TOPIC]] if len(older) else 0
        taken = _delivered_grid(delivered, delivered_order, groups, ranks, client_names)
        size = kernels.count_expected(messages, grid, firsts, matching)
        expected = np.zeros((size, len(Expected)), np.int64)
        expected_subs = np.empty(size, np.int64)
        numbers = np.full(max(len(names.all), 1), NONE, np.int64)
        count = kernels.find_expected(
            messages, grid, firsts, matching, expected, expected_subs, numbers
        )
        expected = expected[:count]
        assigned, places = _assign_all(messages, expected, expected_subs, grid, taken, names)
        first_messages = _firsts(messages[:, Message.GROUP], groups)
        entry_groups = messages[expected[:, Expected.MESSAGE], Message.GROUP]
        first_expected = _firsts(entry_groups, groups)
        shown = np.full(len(messages), NONE, np.int64)
        is_found = np.zeros(len(messages), np.int64)
        fates = np.empty((len(taken) + count + len(messages), len(Fate)), np.int64)
        rows = kernels.judge(
            messages, grid, expected, expected_subs, taken, assigned, places, first_messages,
            first_expected, _of_older(messages, taken, assigned, first_messages, expected,
            expected_subs, grid), shown, is_found, fates,
        )  # fmt: skip
        fates = fates[:rows]
        by_rank = np.empty(len(ranks), np.int64)
        by_rank[ranks] = np.arange(len(ranks))
        found = _Found(messages, expected, expected_subs, taken, assigned, message_order,
                       delivered_order, by_rank, subs, grid, names)  # fmt: skip
        sent_ns, has_none = self.moments.column(sent.sent[message_order], "ns")
        sent_ns[has_none] = NO_TIME
        explain_absence(
            fates, expected, expected_subs, grid, messages, shown, connections, sent_ns,
            sent.expires_s[message_order],
        )  # fmt: skip
        is_missed = fates[:, Fate.VERDICT] == MISSED
        self._note_missed(sent, delivered, found, fates[is_missed], shown)
        return _delivery_table(self, sent, delivered, found, fates[~is_missed])

    def _subscriptions(self) -> tuple[list[Subscribed], list[list[int]], Ints, Ints]:
        """Return subscriptions, their moments, and which of them match each topic.

        The moments are the numbers of begin, end, whether that is an end, granted and leaving.
        """
        subs = self.known.subscriptions
        numbers = {one: number for number, one in enumerate(subs)}
        by_broker: defaultdict[tuple[str, str], list[Subscribed]] = defaultdict(list)
        for one in subs:
            by_broker[one.client[:2]].append(one)
        moments: list[list[int]] = [[] for _ in subs]
        for of_broker in by_broker.values():
            for one, turn in ends_of(of_broker).items():
                end = (NONE, 0) if turn is None else (self.moments.add(turn[0]), turn[1])
                others = [self.moments.add(at) for at in (one.asked, one.granted, one.leaving)]
                moments[numbers[one]] = [*others, *end]
        firsts, matching = [0], []
        for topic in self.topics.all:
            matching += [numbers[one] for one in self.known.matching.get(topic, ())]
            firsts.append(len(matching))
        return subs, moments, np.array(firsts, np.int64), np.array(matching, np.int64)

    def _note_missed(
        self, sent: _Sent, delivered: _Delivered, found: _Found, missed: Grid, shown: Ints
    ) -> None:
        """Note what was missed and no connection explains, and what came instead."""
        subs = found.subs
        topics: defaultdict[int, set[int]] = defaultdict(set)
        for message, _, _, _, entry, _ in missed.tolist():
            first, count = found.expected[entry, [Expected.FIRST, Expected.SUBSCRIPTIONS]].tolist()
            matching = found.expected_subs[first : first + count].tolist()
            rank, start = shown[message], found.messages[message, Message.START]
            certain = [
                subs[one]
                for one in matching
                if found.grid[one, Subscription.GRANTED] < start
                and not NONE < found.grid[one, Subscription.LEAVING] <= rank
            ]
            record = self._message(sent, int(found.message_order[message]))
            name = int(found.expected[entry, Expected.NAME])
            topics[int(found.messages[message, Message.TOPIC])].add(name)
            taken = self.moments.at(int(found.by_rank[rank]))
            text = found.names.all[name][2]
            self._take([missing_note(record, text, subs[matching[0]], certain, taken)])
        self._note_passed(delivered, found, topics)

    def _note_passed(
        self, delivered: _Delivered, found: _Found, missed: Mapping[int, set[int]]
    ) -> None:
        """Note the message sent last of those that came on each connection at each QoS.

        Parameters
        ----------
        missed
            By topic the names of those who did not get a message of it.
        """
        places = np.flatnonzero(found.assigned != NONE)
        if not len(places):
            return
        entry = found.assigned[places]
        names, message = (
            found.expected[entry, Expected.NAME],
            found.expected[entry, Expected.MESSAGE],
        )
        start, topic = (
            found.messages[message, Message.START],
            found.messages[message, Message.TOPIC],
        )
        at, qos = found.taken[places, Delivered.AT], found.taken[places, Delivered.QOS]
        ends = _Numbers[str]()
        by_client = np.array([ends[client.endpoint] for client in self.clients.all], np.int64)
        endpoint = by_client[delivered.client[found.delivered_order[places]]]
        ways = (names * len(ends.all) + endpoint) * 3 + qos
        latest: list[tuple[int, str | None]] = [
            (one, None) for one in kernels.latest_of(ways, start, at).tolist()
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
                for one in kernels.latest_of(ways[here], start[here], at[here]).tolist()
            ]
        for place, text in latest:
            passed = Passed(
                text,
                ends.all[int(endpoint[place])],
                int(qos[place]),
                self.moments.at(int(found.by_rank[start[place]])),
                self.moments.at(int(found.by_rank[at[place]])),
            )
            self._take([passed_note(found.names.all[int(names[place])], passed)])

    def name_subscriptions(self, found: _Found, fates: Grid, delivered: _Delivered) -> None:
        """Find the subscription of what was delivered with several subscription identifiers."""
        if not self._several:
            return
        for fate in fates[(fates[:, Fate.DELIVERED] != NONE) & (fates[:, Fate.EXPECTED] != NONE)]:
            each = int(fate[Fate.DELIVERED])
            place = int(found.delivered_order[each])
            first, count = found.expected[
                fate[Fate.EXPECTED], [Expected.FIRST, Expected.SUBSCRIPTIONS]
            ]
            for one in found.expected_subs[first : first + count].tolist():
                mine = found.grid[one, Subscription.NAME] == found.taken[each, Delivered.NAME]
                by_it = found.subs[one].identifier in self._several.get(place, ())
                if by_it and (mine or found.subs[one].group is None):
                    fate[Fate.SUBSCRIPTION] = one
                    break

    def message_keys(self, sent: _Sent, found: _Found, message: Ints) -> pa.Array:
        """Return how messages are called, of rows that are about them."""
        numbers = sent.sent[found.message_order]
        stream, offset = (self.moments.column(numbers, name)[0] for name in ("stream", "offset"))
        names = _pick(stream, text_array([stream.name for stream in self.streams]))
        offsets = pa.array(offset).cast(pa.string())
        keys = pc.binary_join_element_wise(names.dictionary_decode(), offsets, "@")
        return _pick(message, keys)


@dataclass(slots=True)
class _Found:
    """Who was due to get what, and who got it: grids of `delivery_kernels`, and what is in them."""

    messages: Grid
    expected: Grid
    expected_subs: Ints
    taken: Grid
    assigned: Ints
    message_order: Ints
    delivered_order: Ints
    by_rank: Ints
    """A moment of each rank."""
    subs: list[Subscribed]
    grid: Grid
    """The subscriptions."""
    names: _Numbers[tuple[str, str, str]]


class _Numbers(Generic[T]):
    """Things by number, in the order in which they were first asked for."""

    def __init__(self, first: Iterable[T] = ()) -> None:
        self.all: list[T] = list(first)
        self._numbers: dict[T, int] = {}
        for number, one in enumerate(self.all):
            self._numbers.setdefault(one, number)

    def __getitem__(self, one: T) -> int:
        number = self._numbers.get(one)
        if number is None:
            number = self._numbers[one] = len(self.all)
            self.all.append(one)
        return number


def _subscription_grid(
    subs: Sequence[Subscribed], moments: Sequence[Sequence[int]], ranks: Ints, names: _Numbers[Any]
) -> Grid:
    grid = np.empty((len(subs), len(Subscription)), np.int64)
    filters = _Numbers[str]()
    for row, one, (asked, granted, leaving, end, ends) in zip(grid, subs, moments, strict=True):
        broker = one.client[:2]
        row[Subscription.BEGINS] = 2 * ranks[asked]
        row[Subscription.ENDS] = NONE if end == NONE else 2 * ranks[end] + ends
        row[Subscription.GRANTED], row[Subscription.LEAVING] = ranks[granted], ranks[leaving]
        row[Subscription.NAME] = names[*broker, one.client.name]
        row[Subscription.SERVED_AS] = names[*broker, one.served_as]
        row[Subscription.FILTER] = filters[one.filter]
        row[Subscription.IS_SHARED] = bool(one.group)
        row[Subscription.QOS] = one.qos
        row[Subscription.RETAIN_AS_PUBLISHED] = one.retain_as_published
        row[Subscription.NO_LOCAL] = one.no_local
        row[Subscription.IDENTIFIER] = NONE if one.identifier is None else one.identifier
    return grid


def _grouped(
    sent: _Sent, delivered: _Delivered, by_start: Ints, by_at: Ints
) -> tuple[tuple[Ints, Ints, int], Ints, Ints]:
    """Put together what has topic and payload in common, each in the order that it has.

    Returns
    -------
    groups, messages, deliveries
        Of each message and delivery the number of its group, and how many there are; the order.
    """
    topic = np.concatenate((sent.topic[by_start], delivered.topic[by_at]))
    content = np.concatenate((sent.content[by_start], delivered.content[by_at]))
    mixed = content[:, 0].view(np.uint64) ^ (topic.astype(np.uint64) * _MIX)
    order = np.argsort(mixed, kind="stable")
    changes = np.diff(mixed[order]) != 0
    differs = np.diff(topic[order]) != 0
    differs |= (np.diff(content[order], axis=0) != 0).any(axis=1)
    if (differs & ~changes).any():
        order = np.lexsort((content[:, 1], content[:, 0], topic))
        differs = np.diff(topic[order]) != 0
        differs |= (np.diff(content[order], axis=0) != 0).any(axis=1)
    group = np.zeros(len(order), np.int64)
    group[1:] = np.cumsum(differs)
    is_message = order < len(by_start)
    messages, deliveries = by_start[order[is_message]], by_at[order[~is_message] - len(by_start)]
    count = int(group[-1]) + 1 if len(group) else 0
    return (group[is_message], group[~is_message], count), messages, deliveries


def _message_grid(
    sent: _Sent, order: Ints, groups: tuple[Ints, Ints, int], ranks: Ints, client_names: Ints
) -> Grid:
    grid = np.empty((len(order), len(Message)), np.int64)
    grid[:, Message.GROUP] = groups[0]
    grid[:, Message.TOPIC] = sent.topic[order]
    grid[:, Message.SENT] = ranks[sent.sent[order]]
    grid[:, Message.START] = ranks[sent.start[order]]
    grid[:, Message.ACCEPTED] = ranks[sent.accepted[order]]
    grid[:, Message.NAME] = client_names[sent.client[order]]
    grid[:, Message.QOS] = sent.qos[order]
    grid[:, Message.RETAIN] = sent.retain[order]
    grid[:, Message.COPIES] = sent.copies[order]
    grid[:, Message.IS_REPEATED] = sent.is_repeated[order]
    refused = sent.refused[order] != NONE
    grid[:, Message.IS_REFUSED] = np.where(
        refused, _REFUSED, np.where(sent.malformed[order] != 0, _MALFORMED, 0)
    )
    return grid


def _delivered_grid(
    delivered: _Delivered, order: Ints, groups: tuple[Ints, Ints, int], ranks: Ints, names: Ints
) -> Grid:
    grid = np.empty((len(order), len(Delivered)), np.int64)
    grid[:, Delivered.GROUP] = groups[1]
    grid[:, Delivered.AT] = ranks[delivered.at[order]]
    grid[:, Delivered.NAME] = names[delivered.client[order]]
    grid[:, Delivered.QOS] = delivered.qos[order]
    grid[:, Delivered.RETAIN] = delivered.retain[order]
    grid[:, Delivered.IS_LIVE] = delivered.is_live[order]
    grid[:, Delivered.IDENTIFIER] = delivered.identifier[order]
    grid[:, Delivered.SETTER] = ranks[delivered.setter[order]]
    is_open = (delivered.qos[order] > 0) & (delivered.is_acknowledged[order] == 0)
    status = delivered.status[order]
    verdicts = {name: VERDICT_NAMES.index(name) for name in VERDICT_NAMES}
    closed = np.where(status & Status.LOST_ACK != 0, verdicts["lost_ack"], verdicts["delivered"])
    left = np.where(status & Status.ABANDONED != 0, verdicts["abandoned"], verdicts["in_flight"])
    left = np.where(status & Status.UNTRACED != 0, verdicts["undecided"], left)
    outcome = np.where(is_open, left, closed)
    refused = delivered.refused[order] != NONE
    grid[:, Delivered.OUTCOME] = np.where(refused, verdicts["refused_by_client"], outcome)
    return grid


def _firsts(of: Ints, groups: tuple[Ints, Ints, int]) -> Ints:
    """Return where the things of each group begin, which are in the order of their groups."""
    return np.searchsorted(of, np.arange(groups[2] + 1))


def _assign_all(
    messages: Grid, expected: Grid, expected_subs: Ints, subs: Grid, taken: Grid,
    names: _Numbers[Any],
) -> tuple[Ints, Ints]:  # fmt: skip
    """Give messages what was delivered of them.

    Returns
    -------
    assigned, places
        Of each delivery what it is of, -1 if it is of nothing that was due, and the how manieth.
    """
    first_subs = expected_subs[expected[:, Expected.FIRST]] if len(expected) else _NO_INTS
    is_shared = subs[first_subs, Subscription.IS_SHARED] == 1
    mine, live = np.flatnonzero(~is_shared), np.flatnonzero(taken[:, Delivered.IS_LIVE] == 1)
    count = 2 * max(len(names.all), 1)
    group = messages[expected[mine, Expected.MESSAGE], Message.GROUP]
    keys = group * count + 2 * expected[mine, Expected.NAME] + expected[mine, Expected.RETAIN]
    order = np.argsort(keys, kind="stable")
    their_keys = taken[live, Delivered.GROUP] * count + 2 * taken[live, Delivered.NAME]
    their_keys += taken[live, Delivered.RETAIN]
    their_order = np.argsort(their_keys, kind="stable")
    assigned = np.full(len(taken), NONE, np.int64)
    places = np.zeros(len(taken), np.int64)
    room = (
        assigned, places, np.empty(len(taken), np.int64),
        np.empty((3, max(len(expected), 1)), np.int64),
    )  # fmt: skip
    kernels.assign(
        messages, expected, keys[order], mine[order], taken, their_keys[their_order],
        live[their_order], *room,
    )  # fmt: skip
    if is_shared.any():
        _assign_shared(messages, expected, expected_subs, subs, taken, is_shared, room)
    return assigned, places


def _assign_shared(
    messages: Grid, expected: Grid, expected_subs: Ints, subs: Grid, taken: Grid, is_shared: Bools,
    room: tuple[Ints, Ints, Ints, Grid],
) -> None:  # fmt: skip
    """Give groups what their members got and no subscription of their own accounts for."""
    assigned = room[0]
    by_group: defaultdict[int, dict[int, list[int]]] = defaultdict(dict)
    for entry in np.flatnonzero(is_shared).tolist():
        group = int(messages[expected[entry, Expected.MESSAGE], Message.GROUP])
        by_group[group].setdefault(int(expected[entry, Expected.NAME]), []).append(entry)
    bounds = np.searchsorted(taken[:, Delivered.GROUP], [[one, one + 1] for one in by_group])
    for sharing, (start, stop) in zip(by_group.values(), bounds.tolist(), strict=True):
        for entries in sharing.values():
            rest = start + np.flatnonzero(assigned[start:stop] == NONE)
            members: set[int] = set()
            for entry in entries:
                first = expected[entry, Expected.FIRST]
                mine = expected_subs[first : first + expected[entry, Expected.SUBSCRIPTIONS]]
                members.update(subs[mine, Subscription.NAME].tolist())
            theirs = rest[np.isin(taken[rest, Delivered.NAME], list(members))]
            kernels.assign(
                messages, expected, np.zeros(len(entries), np.int64), np.array(entries, np.int64),
                taken, np.zeros(len(theirs), np.int64), theirs, *room,
            )  # fmt: skip


def _of_older(
    messages: Grid, taken: Grid, assigned: Ints, first_messages: Ints, expected: Grid,
    expected_subs: Ints, subs: Grid,
) -> Ints:  # fmt: skip
    """Return the message of each delivery that nobody was due to get, where some may be older.

    A client gets one as often as it was sent. From the last one back, so that what is left over is
    of before the capture, and has -1; all others have -2.
    """
    found = np.full(len(taken), _NO_OLDER, np.int64)
    group = taken[:, Delivered.GROUP]
    first = first_messages[group]
    has_older = (first < first_messages[group + 1]) & (assigned == NONE)
    has_older[has_older] = messages[first[has_older], Message.HAS_OLDER] == 1
    places = np.flatnonzero(has_older)
    if not len(places):
        return found
    members = _members(messages, expected, expected_subs, subs)
    # A client's come by RETAIN, the first that it has foremost, but for those of who shares.
    keys = taken[places, Delivered.RETAIN] + 2 * (taken[places, Delivered.IS_LIVE] == 0)
    orders: dict[tuple[int, int], dict[int, int]] = {}
    for place in np.flatnonzero(np.isin(group, np.unique(group[places]))).tolist():
        key = _key_of_retain(taken[place])
        of_client = orders.setdefault((int(group[place]), int(taken[place, Delivered.NAME])), {})
        of_client.setdefault(key, len(of_client))
    ordered = []
    for place, key in zip(places.tolist(), keys.tolist(), strict=True):
        client = int(group[place]), int(taken[place, Delivered.NAME])
        rank = 0 if client in members else orders[client][min(key, 2)]
        ordered.append((client, rank, place))
    left: dict[tuple[int, int], tuple[int, int]] = {}
    for client, _, place in sorted(ordered, reverse=True):
        start, stop = first_messages[client[0]], first_messages[client[0] + 1]
        starts = messages[start:stop, Message.START]
        before = int(np.searchsorted(starts, taken[place, Delivered.AT]))
        count, copies = left.get(client, (before, 0))
        if before < count:
            count, copies = before, 0
        if count and copies == messages[start + count - 1, Message.COPIES]:
            count, copies = count - 1, 0
        found[place] = start + count - 1 if count else NONE
        left[client] = count, copies + 1
    return found


def _key_of_retain(delivered: Ints) -> int:
    return int(delivered[Delivered.RETAIN]) if delivered[Delivered.IS_LIVE] else 2


def _members(
    messages: Grid, expected: Grid, expected_subs: Ints, subs: Grid
) -> set[tuple[int, int]]:
    """Return the groups of messages that clients share subscriptions to, and these clients."""
    members = set()
    for first, count, message in expected[
        :, [Expected.FIRST, Expected.SUBSCRIPTIONS, Expected.MESSAGE]
    ].tolist():
        if subs[expected_subs[first], Subscription.IS_SHARED]:
            group = int(messages[message, Message.GROUP])
            mine = expected_subs[first : first + count]
            members |= {(group, name) for name in subs[mine, Subscription.NAME].tolist()}
    return members


# --- rows -------------------------------------------------------------------------------------


def _delivery_table(
    of: _Derivation, sent: _Sent, delivered: _Delivered, found: _Found, fates: Grid
) -> pa.Table:
    """Return what became of messages as a table."""
    message, each = fates[:, Fate.MESSAGE], fates[:, Fate.DELIVERED]
    of.name_subscriptions(found, fates, delivered)
    sub = fates[:, Fate.SUBSCRIPTION]
    none_sent, none_delivered, none_sub = message == NONE, each == NONE, sub == NONE
    where = _at(found.message_order, message), _at(found.delivered_order, each)
    moments = of.moments
    sub_clients = np.array([of.clients[one.client] for one in found.subs] or [0], np.int64)
    clients = of.clients.all
    endpoints = text_array([client.endpoint for client in clients])
    client_ids = text_array([client.client_id for client in clients])
    consumer = np.where(
        none_delivered,
        np.where(
            fates[:, Fate.CLIENT] != NONE,
            fates[:, Fate.CLIENT],
            np.where(none_sub, NONE, _at(sub_clients, sub)),
        ),
        _at(delivered.client, where[1]),
    )
    producer = np.where(none_sent, NONE, _at(sent.client, where[0]))
    sent_at = np.where(none_sent, NONE, _at(sent.sent, where[0]))
    at = np.where(none_delivered, NONE, _at(delivered.at, where[1]))
    proof = np.where(none_delivered, sent_at, at)
    accepted = np.where(none_sent, NONE, _at(sent.accepted, where[0]))
    done = np.where(none_delivered, 0, _at(delivered.is_acknowledged, where[1])) == 1
    own_ns, own_frame = (
        _at(of.delivered_table[f"acknowledged_{name}"].to_numpy(), where[1])
        for name in ("ns", "frame")
    )
    none_done = ~done | (own_ns == NO_TIME)
    topic = np.where(none_sent, _at(delivered.topic, where[1]), _at(sent.topic, where[0]))
    qos = _at(delivered.qos, where[1])
    status = _at(delivered.status, where[1])
    is_again, is_untraced = (status & bit != 0 for bit in (Status.AGAIN, Status.UNTRACED))
    outcome = np.where(qos == 0, 0, np.where(done, 1, 2))
    outcome = np.where((qos > 0) & is_untraced, NONE, outcome)
    never = np.where(fates[:, Fate.VERDICT] == _EXPIRED, 3, NONE)
    origin = np.where(none_sent, 2, _at(sent.is_will, where[0]))
    identifiers = np.array(
        [NONE if one.identifier is None else one.identifier for one in found.subs] or [0], np.int64
    )
    granted = of.moments.numbers([one.granted for one in found.subs])
    stream, _ = moments.column(proof, "stream")
    offset, _ = moments.column(proof, "offset")
    streams = text_array([one.name for one in of.streams])
    sources = text_array([one.source for one in of.streams])
    columns = {
        "message_key": of.message_keys(sent, found, message),
        "protocol": _pick(np.zeros(len(fates), np.int64), text_array(["mqtt"])),
        "origin": _pick(origin, _ORIGINS),
        "producer": _pick(producer, endpoints),
        "producer_client_id": _pick(producer, client_ids),
        "destination": _pick(topic, text_array([topic for _, _, topic in of.topics.all])),
        "consumer": _pick(consumer, endpoints),
        "consumer_client_id": _pick(consumer, client_ids),
        "consumer_id": _integers(_at(identifiers, sub), none_sub | (_at(identifiers, sub) < 0)),
        "subscription": _pick(sub, text_array([one.filter for one in found.subs])),
        "qos": _integers(qos, none_delivered),
        "retained": pa.array(
            _at(delivered.is_live, where[1]) == 0,
            mask=none_delivered | (_at(delivered.may_be_live, where[1]) == 1),
        ),
        "sent_ns": _integers(*moments.column(sent_at, "ns")),
        "delivered_ns": _integers(*moments.column(at, "ns")),
        "acknowledged_ns": pa.array(own_ns, mask=none_done),
        "redelivered": pa.array(is_again, mask=none_delivered | (is_untraced & ~is_again)),
        "delivery_count": _integers(_at(delivered.copies, where[1]), none_delivered),
        "outcome": _pick(np.where(none_delivered, never, outcome), _OUTCOMES),
        "verdict": _pick(fates[:, Fate.VERDICT], text_array(VERDICT_NAMES)),
        "sent_frame": _integers(*moments.column(sent_at, "frame")),
        "accepted_frame": _integers(*moments.column(accepted, "frame")),
        "subscribed_frame": _integers(
            *moments.column(np.where(none_sub, NONE, _at(granted, sub)), "frame")
        ),
        "delivered_frame": _integers(*moments.column(at, "frame")),
        "acknowledged_frame": pa.array(own_frame, mask=none_done),
        "source": _pick(stream, sources),
        "stream": _pick(stream, streams),
        "offset": pa.array(offset),
    }
    return as_fact_table("deliveries", columns)


def _at(values: Ints, index: Ints) -> Ints:
    """Return values by index; anything where the index is -1."""
    if not len(values):
        return np.full(len(index), NONE, np.int64)
    return values[np.maximum(index, 0)]


def _ints(table: pa.Table, name: str) -> Ints:
    column = table[name]
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.int8())
    found: Ints = column.to_numpy().astype(np.int64)
    return found


def _contents(table: pa.Table) -> Grid:
    return np.stack((table["content_0"].to_numpy(), table["content_1"].to_numpy()), 1)


def _pick(numbers: Ints, texts: pa.Array) -> pa.DictionaryArray:
    """Return texts by number; null where that is -1."""
    missing = numbers < 0
    if texts.null_count:
        missing |= ~texts.is_valid().to_numpy(zero_copy_only=False)[numbers]
        texts = texts.fill_null("")
    indices = pa.array(numbers.astype(np.int32), mask=missing)
    return pa.DictionaryArray.from_arrays(indices, texts)


def _integers(values: Ints, missing: Bools) -> pa.Array:
    return pa.array(values, mask=missing)
