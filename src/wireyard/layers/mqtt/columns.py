"""The tables that follow from MQTT packets, by columns: the same as `derive_tables` makes of rows.

The steps are those of ``wireyard.layers.mqtt.derive``. Of what is frequent, which is messages and
their deliveries, each step takes and leaves columns; of what is rare, such as subscriptions,
retained values and what was missed, it takes and leaves the records of the scalar steps, which then
do the rest.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from operator import attrgetter
from typing import Any, Final, Generic, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from wireyard.formats.base import Row
from wireyard.java import storable
from wireyard.layers.mqtt import delivery_kernels as kernels
from wireyard.layers.mqtt.conversations import converse, reply_note, request_note
from wireyard.layers.mqtt.delivery_kernels import (
    VERDICT_NAMES,
    Delivered,
    Expected,
    Fate,
    Message,
    Subscription,
)
from wireyard.layers.mqtt.directions import TELLING, Side, Stream, known_streams, sides_of
from wireyard.layers.mqtt.expected import ends_of
from wireyard.layers.mqtt.flow_kernels import NONE, Flag, Packet, Record
from wireyard.layers.mqtt.missing import Passed, explain, link_note, missing_note, passed_note
from wireyard.layers.mqtt.packets import NO_TIME, Packets, new_secret
from wireyard.layers.mqtt.properties import properties_of
from wireyard.layers.mqtt.records import Client, Handed, Moment, Subscribed, content_of
from wireyard.layers.mqtt.records import Message as Sent
from wireyard.layers.mqtt.rows import session_row, violation_row
from wireyard.layers.mqtt.subscribers import Topic, match_topics
from wireyard.layers.mqtt.topics import topic_hash
from wireyard.layers.mqtt.tracking import Tracked, track_clients
from wireyard.layers.mqtt.values import (
    handed_note,
    keep_values,
    new_subscription_note,
    setting_notes,
)
from wireyard.layers.steps import Dropped, Fact, Found, Key, Note, Step
from wireyard.layers.tables import TABLES
from wireyard.schema import arrow_type

__all__ = ["Derived", "derive_columns"]

Ints = np.ndarray[tuple[int], np.dtype[np.int64]]
Bools = np.ndarray[tuple[int], np.dtype[np.bool_]]
Grid = np.ndarray[tuple[int, int], np.dtype[np.int64]]
T = TypeVar("T")

_AT_PUBREL: Final = 2
"""The QoS at which a broker has a message with PUBREL."""
_LONGEST_TIE: Final = 64
_MIX: Final = np.uint64(0x9E3779B97F4A7C15)
_DIRECTION: Final = ("source", "stream", "src_addr", "src_port", "dst_addr", "dst_port")
_REFUSED, _MALFORMED = 1, 2
_AGAIN, _LOST, _ABANDONED = 1, 2, 4
_NO_INTS: Final[Ints] = np.zeros(0, np.int64)
_OUTCOMES: Final = pa.array(["no_ack_wanted", "acknowledged", "unacknowledged"])
_ORIGINS: Final = pa.array(["publish", "will", "broker"])


class Derived(NamedTuple):
    """Tables by name, and how much of what was left out of them, by the cap that it was above."""

    tables: dict[str, list[pa.Table]]
    """In parts; with the columns of ``wireyard.layers.tables``."""
    dropped: Counter[str]


def derive_columns(
    table: pa.Table,
    streams: Iterable[Row] | None = None,
    sides: Mapping[Stream, Side] | None = None,
) -> Derived:
    """Return the tables that follow from the MQTT packets of captures, as `derive_tables` does.

    Parameters
    ----------
    table
        Packets of both directions of every connection, in any order, with the columns of `NEEDED`.
    streams, sides
        As of `derive_tables`.
    """
    if sides is None:
        sides = sides_of(_telling(table))
    known = {(row["source"], row["stream"]): row for row in known_streams(sides, streams)}
    packets = Packets.of(table, sides, new_secret())
    return _Derivation(track_clients(packets, known)).run()


def _telling(table: pa.Table) -> list[Row]:
    """Return the rows that tell sides, and one of every stream at least."""
    kinds = pc.is_in(table["packet_type"], pa.array(TELLING, pa.int32()))
    tells = table.filter(pc.fill_null(kinds, False))
    said = ["packet_type", "client_id", "return_code", "properties"]
    rows: list[Row] = tells.select([*_DIRECTION, *said]).to_pylist()
    streams = table.select(_DIRECTION).group_by(["source", "stream"], use_threads=False)
    firsts = streams.aggregate([(name, "first") for name in _DIRECTION[2:]])
    names = [name.removesuffix("_first") for name in firsts.column_names]
    return rows + firsts.rename_columns(names).to_pylist()


# --- moments --------------------------------------------------------------------------------


class _Moments:
    """Moments by number: first those of packets, then others as they are added."""

    def __init__(self, packets: Packets) -> None:
        self._packets = packets
        self._added: list[Moment] = []
        self._places = {name: place for place, name in enumerate(packets.streams)}

    def add(self, moment: Moment | None) -> int:
        """Return the number of a moment; -1 for none."""
        if moment is None:
            return NONE
        self._added.append(moment)
        return len(self._packets) + len(self._added) - 1

    def numbers(self, moments: Iterable[Moment | None]) -> Ints:
        """Return the numbers of moments."""
        return np.array([self.add(moment) for moment in moments], np.int64)

    def get(self, number: int) -> Moment | None:
        """Return the moment of a number."""
        if number == NONE:
            return None
        behind = number - len(self._packets)
        return self._packets.moment(number) if behind < 0 else self._added[behind]

    def at(self, number: int) -> Moment:
        """Return the moment of a number that is there."""
        found = self.get(number)
        assert found is not None
        return found

    def ranks(self) -> Ints:
        """Return the place of each moment in the order of all, equal ones alike; of -1 it is -1."""
        packets, added = self._packets, self._added
        stream = np.array([self._places.get((m.source, m.stream), 0) for m in added], np.int64)
        ns = _joined(packets.reached_ns, [moment.reached_ns for moment in added])
        # What has no time is one stream behind the other.
        untimed = np.concatenate((packets.stream, stream))
        ns = np.where(ns == 0, untimed, ns)
        frame = _joined(packets.reached_frame, [moment.reached_frame for moment in added])
        offset = _joined(packets.offset, [moment.offset for moment in added])
        order = np.argsort(ns, kind="stable")
        if _longest_tie(ns[order]) > _LONGEST_TIE:
            order = np.lexsort((offset, frame, ns))
        ranks = np.empty(len(ns) + 1, np.int64)
        kernels.rank(order, ns, frame, offset, ranks)
        ranks[NONE] = NONE
        return ranks

    def column(self, numbers: Ints, name: str) -> tuple[Ints, Bools]:
        """Return ``ns``, ``frame``, ``stream`` or ``offset`` of moments, and where there is none."""
        packets = self._packets
        inside = np.clip(numbers, 0, max(len(packets) - 1, 0))
        values = getattr(packets, name)[inside] if len(packets) else np.zeros(len(numbers), int)
        missing = numbers == NONE
        if name in ("ns", "frame") and len(packets):
            missing |= packets.ns[inside] == NO_TIME
        for place in np.flatnonzero(numbers >= len(packets)).tolist():
            moment = self._added[int(numbers[place]) - len(packets)]
            if name == "stream":
                values[place] = self._places[moment.source, moment.stream]
                continue
            value = getattr(moment, name)
            values[place], missing[place] = value or 0, value is None
        return values, missing


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
    is_will: Ints


@dataclass(slots=True)
class _Delivered:
    """Messages that brokers delivered, by columns."""

    at: Ints
    acknowledged: Ints
    topic: Ints
    content: Grid
    client: Ints
    qos: Ints
    retain: Ints
    copies: Ints
    refused: Ints
    status: Ints
    identifier: Ints
    is_live: Ints
    setter: Ints


class _Derivation:
    """The steps behind the first one, over what that has found."""

    def __init__(self, tracked: Tracked) -> None:
        self._tracked, self.packets = tracked, tracked.packets
        self.moments = _Moments(tracked.packets)
        self._rows: defaultdict[str, list[Row]] = defaultdict(list)
        self._dropped = tracked.dropped
        self._notes: defaultdict[str, defaultdict[Key, list[Note]]] = defaultdict(
            lambda: defaultdict(list)
        )
        self._wills: list[Sent] = list(tracked.wills)
        self._matched: defaultdict[tuple[str, str, str], list[Subscribed]] = defaultdict(list)
        self.clients = _Numbers(tracked.clients)
        self._brokers = _Numbers[tuple[str, str]]()
        self.topics = _Numbers[tuple[str, str, str]]()
        """Topics of brokers."""
        self._extra: dict[int, Mapping[str, Any]] = {}
        self._several: dict[int, tuple[int, ...]] = {}
        """By packet, the subscription identifiers of those that have several."""

    def run(self) -> Derived:
        """Return all tables."""
        tracked = self._tracked
        self._rows["sessions"] += map(session_row, tracked.links)
        self._rows["violations"] += map(violation_row, tracked.violations)
        self._read_extra()
        records = tracked.records.astype(np.int64)
        upward = records[:, Record.UPWARD] == 1
        topics = self._number_topics(records)
        self._match(records[upward], topics[upward])
        sent = self._sent(records[upward], topics[upward])
        delivered = self._delivered(records[~upward], topics[~upward])
        self._keep_values(sent, delivered)
        deliveries = self._deliver(sent, delivered)
        self._run("missing", explain)
        self._run("conversations", converse)
        tables = {name: [_table(name, rows)] for name, rows in self._rows.items() if rows}
        tables.setdefault("deliveries", []).append(deliveries)
        return Derived(tables, self._dropped)

    def _take(self, found: Iterable[Found]) -> None:
        for one in found:
            if isinstance(one, Fact):
                self._rows[one.table].append(one.row)
            elif isinstance(one, Note):
                self._notes[one.step][one.key].append(one)
            else:
                self._dropped[one.cap] += one.things

    def _run(self, name: str, step: Step) -> None:
        """Run a scalar step over its notes."""
        for notes in self._notes.pop(name, {}).values():
            notes.sort(key=attrgetter("order"))
            self._take(step(note.record for note in notes))

    def _read_extra(self) -> None:
        numbers = np.flatnonzero(self.packets.is_extra)
        for start in range(0, len(numbers), 1 << 13):
            some = numbers[start : start + (1 << 13)]
            taken = self.packets.table["properties"].take(pa.array(self.packets.row[some]))
            for number, rows in zip(some.tolist(), taken.to_pylist(), strict=True):
                self._extra[number] = properties_of(rows)

    def _number_topics(self, records: Grid) -> Ints:
        """Return the number of each record's topic among those of all brokers."""
        texts = self.packets.topics.to_pylist()
        brokers = np.array([self._brokers[c[:2]] for c in self._tracked.clients], np.int64)
        if not len(records):
            return np.zeros(0, np.int64)
        pairs = brokers[records[:, Record.CLIENT]] * len(texts) + records[:, Record.TOPIC]
        unique, places = np.unique(pairs, return_inverse=True)
        numbers = [
            self.topics[*self._brokers.all[pair // len(texts)], texts[pair % len(texts)]]
            for pair in unique.tolist()
        ]
        return np.array(numbers, np.int64)[places]

    # --- subscriptions ----------------------------------------------------------------------

    def _match(self, records: Grid, topics: Ints) -> None:
        """Find the subscriptions that match each topic on which there are messages."""
        tracked = self._tracked
        retain = self.packets.grid[records[:, Record.PACKET], Packet.FLAGS] & Flag.RETAIN
        named = {
            (self.topics.all[pair // 2], bool(pair % 2))
            for pair in np.unique(topics * 2 + (retain != 0)).tolist()
        }
        for will in chain(self._wills, tracked.waiting):
            named.add(((*will.client[:2], will.topic), will.retain))
        by_broker: defaultdict[tuple[str, str], list[Any]] = defaultdict(list)
        for subscribed in sorted(tracked.subscriptions, key=attrgetter("since")):
            by_broker[subscribed.client[:2]].append(subscribed)
        for broker, last in tracked.last.items():
            by_broker[broker].append(last)
        for will in sorted(tracked.waiting, key=attrgetter("sent")):
            by_broker[will.client[:2]].append(will)
        by_hash = sorted(named, key=lambda one: (topic_hash(one[0][2]), one))
        for (source, server, topic), retained in by_hash:
            by_broker[source, server].append(Topic(topic, retained))
        for records_of in by_broker.values():
            self._take(match_topics(iter(records_of)))
        for key, notes in self._notes.pop("deliveries", {}).items():
            for note in sorted(notes, key=attrgetter("order")):
                if isinstance(note.record, Subscribed):
                    self._matched[key].append(note.record)
                elif isinstance(note.record, Sent):
                    self._wills.append(note.record)

    # --- messages ---------------------------------------------------------------------------

    def _sent(self, records: Grid, topics: Ints) -> _Sent:
        packets, moments, wills = self.packets, self.moments, self._wills
        number = records[:, Record.PACKET]
        grid = packets.grid[number].astype(np.int64)
        released = records[:, Record.RELEASED]
        sent = [moments.add(will.sent) for will in wills]
        hashes = self._hash_wills()
        return _Sent(
            sent=_joined(number, sent),
            accepted=_joined(records[:, Record.ACCEPTED], [moments.add(w.accepted) for w in wills]),
            released=_joined(released, [moments.add(w.released) for w in wills]),
            start=_joined(number, [moments.add(will.start) for will in wills]),
            topic=_joined(topics, [self.topics[*w.client[:2], w.topic] for w in wills]),
            content=np.concatenate((packets.contents[number], hashes)),
            client=_joined(records[:, Record.CLIENT], [self.clients[w.client] for w in wills]),
            qos=_joined(grid[:, Packet.QOS], [will.qos for will in wills]),
            retain=_joined(grid[:, Packet.FLAGS] & Flag.RETAIN != 0, [w.retain for w in wills]),
            copies=_joined(records[:, Record.COPIES], [will.copies for will in wills]),
            refused=_joined(records[:, Record.REFUSED], [NONE] * len(wills)),
            malformed=_joined(grid[:, Packet.FLAGS] & Flag.MALFORMED != 0, [0] * len(wills)),
            is_will=_joined(np.zeros(len(number), np.int64), [1] * len(wills)),
        )

    def _hash_wills(self) -> Grid:
        packets = self.packets
        if not self._wills:
            return np.empty((0, 2), np.int64)
        connects = np.flatnonzero(packets.grid[:, Packet.KIND] == 1)
        at = {
            (*packets.streams[packets.stream[one]], int(packets.offset[one])): one
            for one in connects.tolist()
        }
        numbers = [at[w.sent.source, w.sent.stream, w.sent.offset] for w in self._wills]
        payloads = packets.table["will_payload"].take(pa.array(packets.row[numbers]))
        return packets.hash(payloads)

    def _delivered(self, records: Grid, topics: Ints) -> _Delivered:
        packets = self.packets
        number = records[:, Record.PACKET]
        grid = packets.grid[number].astype(np.int64)
        identifier = np.full(len(number), NONE, np.int64)
        for place in np.flatnonzero(packets.is_extra[number]).tolist():
            said = self._extra[int(number[place])].get("subscription_identifier", ())
            if len(said) == 1:
                identifier[place] = said[0]
            elif said:
                self._several[int(number[place])] = tuple(said)
        return _Delivered(
            at=number,
            acknowledged=records[:, Record.ACCEPTED],
            topic=topics,
            content=packets.contents[number],
            client=records[:, Record.CLIENT],
            qos=grid[:, Packet.QOS],
            retain=(grid[:, Packet.FLAGS] & Flag.RETAIN != 0).astype(np.int64),
            copies=records[:, Record.COPIES],
            refused=records[:, Record.REFUSED],
            status=records[:, Record.STATUS],
            identifier=identifier,
            is_live=np.ones(len(number), np.int64),
            setter=np.full(len(number), NONE, np.int64),
        )

    def _message(self, sent: _Sent, place: int) -> Sent:
        """Return a message as a record."""
        moments = self.moments
        behind = place - (len(sent.sent) - len(self._wills))
        if behind >= 0:
            return self._wills[behind]
        number = int(sent.sent[place])
        said = self._extra.get(number, {})
        expires_s = int(self.packets.expires_s[number])
        return Sent(
            "publish",
            moments.at(number),
            self.clients.all[sent.client[place]],
            self.topics.all[sent.topic[place]][2],
            b"",
            int(sent.qos[place]),
            bool(sent.retain[place]),
            None,
            int(self.packets.length[number]),
            None if expires_s == NONE else expires_s,
            said.get("response_topic"),
            said.get("correlation_data"),
            bool(sent.malformed[place]),
            moments.get(int(sent.accepted[place])),
            moments.get(int(sent.released[place])),
            None if sent.refused[place] == NONE else int(sent.refused[place]),
        )

    # --- retained values --------------------------------------------------------------------

    def _keep_values(self, sent: _Sent, delivered: _Delivered) -> None:
        """Follow retained values; what was delivered of them learns which message set it."""
        wills = len(self._wills)
        setting = np.flatnonzero(sent.retain[: len(sent.retain) - wills])
        payloads = self._payloads(sent.sent[setting])
        messages = [
            replace(self._message(sent, place), value=payload)
            for place, payload in zip(setting.tolist(), payloads, strict=True)
        ]
        for message in chain(messages, self._wills):
            found = message.setting()
            if found is not None:
                self._take(setting_notes(found))
        retained = np.flatnonzero(delivered.retain)
        places = {}
        payloads = self._payloads(delivered.at[retained])
        for place, payload in zip(retained.tolist(), payloads, strict=True):
            at = self.moments.at(int(delivered.at[place]))
            places[at] = place
            client = self.clients.all[delivered.client[place]]
            topic = self.topics.all[delivered.topic[place]][2]
            qos = int(delivered.qos[place])
            self._take([handed_note(Handed(at, client, topic, content_of(payload), qos, True))])
        self._run("values", keep_values)
        numbers: dict[Moment, int] = {}
        for notes in self._notes.pop("deliveries", {}).values():
            for note in notes:
                place = places[note.record.at]
                delivered.is_live[place] = note.record.is_live
                if (setter := note.record.setter) is not None:
                    if setter not in numbers:
                        numbers[setter] = self.moments.add(setter)
                    delivered.setter[place] = numbers[setter]

    def _payloads(self, numbers: Ints) -> list[bytes]:
        taken = self.packets.table["payload"].take(pa.array(self.packets.row[numbers]))
        return [payload or b"" for payload in taken.to_pylist()]

    # --- requests and replies ---------------------------------------------------------------

    def _converse(self, sent: _Sent) -> None:
        """Note requests, and the messages that may be replies to them."""
        asked: set[int] = set()
        by_packet = {int(one): place for place, one in enumerate(sent.sent)} if self._extra else {}
        for number, said in self._extra.items():
            place = by_packet.get(number)
            if place is None or said.get("response_topic") is None:
                continue
            request = self._message(sent, place)
            self._take([request_note(request)])
            asked.add(self.topics[*request.client[:2], str(request.response_topic)])
        if not asked:
            return
        replies = np.isin(sent.topic, list(asked)) & (sent.is_will == 0)
        for place in np.flatnonzero(replies).tolist():
            self._take([reply_note(self._message(sent, place))])

    # --- deliveries -------------------------------------------------------------------------

    def _deliver(self, sent: _Sent, delivered: _Delivered) -> pa.Table:
        """Find what became of every message; return what is known of it already as a table."""
        self._converse(sent)
        subs, kept, firsts, matching = self._subscriptions()
        ranks = self.moments.ranks()
        names = _Numbers[tuple[str, str, str]]()
        by_client = [names[c.source, c.server, c.name] for c in self.clients.all]
        client_names = np.array(by_client, np.int64)
        grid = _subscription_grid(subs, kept, ranks, names)
        # The last packet of a connection may be a message; its will comes behind that.
        by_start = np.argsort(ranks[sent.start] * 2 + sent.is_will, kind="stable")
        by_at = np.argsort(ranks[delivered.at], kind="stable")
        groups, message_order, delivered_order = _grouped(sent, delivered, by_start, by_at)
        messages = _message_grid(sent, message_order, groups, ranks, client_names)
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
            first_expected, shown, is_found, fates,
        )  # fmt: skip
        fates = fates[:rows]
        by_rank = np.empty(len(ranks), np.int64)
        by_rank[ranks] = np.arange(len(ranks))
        found = _Found(messages, expected, expected_subs, taken, assigned, message_order,
                       delivered_order, by_rank, subs, grid, names)  # fmt: skip
        is_missed = fates[:, Fate.VERDICT] < 0
        self._note_missed(sent, delivered, found, fates[is_missed], shown)
        return _delivery_table(self, sent, delivered, found, fates[~is_missed])

    def _subscriptions(self) -> tuple[list[Subscribed], list[list[int]], Ints, Ints]:
        """Return subscriptions, their moments, and which of them match each topic.

        The moments are the numbers of begin, end, whether that is an end, granted and leaving.
        """
        subs = self._tracked.subscriptions
        numbers = {one: number for number, one in enumerate(subs)}
        by_broker: defaultdict[tuple[str, str], list[Subscribed]] = defaultdict(list)
        for one in subs:
            by_broker[one.client[:2]].append(one)
        moments = [[] for _ in subs]
        for of_broker in by_broker.values():
            for one, turn in ends_of(of_broker).items():
                end = (NONE, 0) if turn is None else (self.moments.add(turn[0]), turn[1])
                others = [self.moments.add(at) for at in (one.asked, one.granted, one.leaving)]
                moments[numbers[one]] = [*others, *end]
        firsts, matching = [0], []
        for topic in self.topics.all:
            matching += [numbers[one] for one in self._matched.get(topic, ())]
            firsts.append(len(matching))
        return subs, moments, np.array(firsts, np.int64), np.array(matching, np.int64)

    def _note_missed(
        self, sent: _Sent, delivered: _Delivered, found: _Found, missed: Grid, shown: Ints
    ) -> None:
        """Note what was due to somebody for certain and not delivered, and what came instead."""
        if not len(missed):
            return
        subs, due = found.subs, set()
        topics = defaultdict(set)
        for message, _, _, _, entry in missed.tolist():
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
            due.add(name)
            topics[int(found.messages[message, Message.TOPIC])].add(name)
            taken = self.moments.at(int(found.by_rank[rank]))
            text = found.names.all[name][2]
            self._take([missing_note(record, text, subs[matching[0]], certain, taken)])
        self._note_passed(delivered, found, due, topics)
        texts = {found.names.all[name] for name in due}
        for link in self._tracked.links:
            if link.accepted is not None:
                for text in link.served_as:
                    if (*link.client[:2], text) in texts:
                        self._take([link_note(link, text)])

    def _note_passed(
        self, delivered: _Delivered, found: _Found, due: set[int], missed: Mapping[int, set[int]]
    ) -> None:
        """Note the message sent last of those that came on each connection, topic and QoS."""
        assigned = found.assigned
        places = np.flatnonzero(assigned != NONE)
        names = found.expected[assigned[places], Expected.NAME]
        wanted = np.isin(names, list(due))
        places, names = places[wanted], names[wanted]
        if not len(places):
            return
        message = found.expected[assigned[places], Expected.MESSAGE]
        start = found.messages[message, Message.START]
        topic = found.messages[message, Message.TOPIC]
        at, qos = found.taken[places, Delivered.AT], found.taken[places, Delivered.QOS]
        ends = _Numbers[str]()
        by_client = np.array([ends[c.endpoint] for c in self.clients.all], np.int64)
        endpoint = by_client[delivered.client[found.delivered_order[places]]]
        order = np.lexsort((-at, start, qos, endpoint, names, topic))
        columns = [column[order] for column in (topic, names, endpoint, qos)]
        last = np.ones(len(order), np.bool_)
        last[:-1] = np.any([np.diff(column) != 0 for column in columns], axis=0)
        for place in order[last].tolist():
            number = int(names[place])
            key = found.names.all[number]
            passed = Passed(
                self.topics.all[int(topic[place])][2],
                ends.all[int(endpoint[place])],
                int(qos[place]),
                self.moments.at(int(found.by_rank[start[place]])),
                self.moments.at(int(found.by_rank[at[place]])),
            )
            self._take([passed_note(key, passed._replace(topic=None))])
            if number in missed.get(int(topic[place]), ()):
                self._take([passed_note(key, passed)])


    def name_subscriptions(self, found: _Found, fates: Grid, delivered: _Delivered) -> None:
        """Find the subscription of what was delivered with several subscription identifiers."""
        if not self._several:
            return
        for fate in fates[(fates[:, Fate.DELIVERED] != NONE) & (fates[:, Fate.EXPECTED] != NONE)]:
            each = int(fate[Fate.DELIVERED])
            packet = int(delivered.at[found.delivered_order[each]])
            first, count = found.expected[
                fate[Fate.EXPECTED], [Expected.FIRST, Expected.SUBSCRIPTIONS]
            ]
            for one in found.expected_subs[first : first + count].tolist():
                mine = found.grid[one, Subscription.NAME] == found.taken[each, Delivered.NAME]
                by_it = found.subs[one].identifier in self._several.get(packet, ())
                if by_it and (mine or found.subs[one].group is None):
                    fate[Fate.SUBSCRIPTION] = one
                    break

    def message_keys(self, sent: _Sent, found: _Found, message: Ints) -> pa.Array:
        """Return how messages are called, of rows that are about them."""
        numbers = sent.sent[found.message_order]
        stream, offset = (self.moments.column(numbers, name)[0] for name in ("stream", "offset"))
        names = _pick(stream, _texts([name for _, name in self.packets.streams]))
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
        self.all: list[T] = []
        self._numbers: dict[T, int] = {}
        for one in first:
            self[one]

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
    for row, one, (asked, granted, leaving, end, ends) in zip(
        grid, subs, moments, strict=True
    ):
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
    is_open = (delivered.qos[order] > 0) & (delivered.acknowledged[order] == NONE)
    status = delivered.status[order]
    verdicts = {name: VERDICT_NAMES.index(name) for name in VERDICT_NAMES}
    closed = np.where(status & _LOST != 0, verdicts["lost_ack"], verdicts["delivered"])
    left = np.where(status & _ABANDONED != 0, verdicts["abandoned"], verdicts["in_flight"])
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


# --- rows -----------------------------------------------------------------------------------


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
    endpoints = _texts([client.endpoint for client in clients])
    client_ids = _texts([client.client_id for client in clients])
    consumer = np.where(
        none_delivered,
        np.where(none_sub, NONE, _at(sub_clients, sub)),
        _at(delivered.client, where[1]),
    )
    producer = np.where(none_sent, NONE, _at(sent.client, where[0]))
    sent_at = np.where(none_sent, NONE, _at(sent.sent, where[0]))
    at = np.where(none_delivered, NONE, _at(delivered.at, where[1]))
    proof = np.where(none_delivered, sent_at, at)
    accepted = np.where(none_sent, NONE, _at(sent.accepted, where[0]))
    done = np.where(none_delivered, NONE, _at(delivered.acknowledged, where[1]))
    topic = np.where(none_sent, _at(delivered.topic, where[1]), _at(sent.topic, where[0]))
    qos = _at(delivered.qos, where[1])
    status = _at(delivered.status, where[1])
    outcome = np.where(qos == 0, 0, np.where(done == NONE, 2, 1))
    origin = np.where(none_sent, 2, _at(sent.is_will, where[0]))
    identifiers = np.array(
        [NONE if one.identifier is None else one.identifier for one in found.subs] or [0], np.int64
    )
    granted = of.moments.numbers([one.granted for one in found.subs])
    stream, _ = moments.column(proof, "stream")
    offset, _ = moments.column(proof, "offset")
    names = of.packets.streams
    streams, sources = _texts([name for _, name in names]), _texts([source for source, _ in names])
    columns = {
        "message_key": of.message_keys(sent, found, message),
        "protocol": _pick(np.zeros(len(fates), np.int64), _texts(["mqtt"])),
        "origin": _pick(origin, _ORIGINS),
        "producer": _pick(producer, endpoints),
        "producer_client_id": _pick(producer, client_ids),
        "destination": _pick(topic, _texts([topic for _, _, topic in of.topics.all])),
        "consumer": _pick(consumer, endpoints),
        "client_id": _pick(consumer, client_ids),
        "consumer_id": _integers_of(_at(identifiers, sub), none_sub | (_at(identifiers, sub) < 0)),
        "subscription": _pick(sub, _texts([one.filter for one in found.subs])),
        "qos": _integers_of(qos, none_delivered),
        "retained": pa.array(_at(delivered.is_live, where[1]) == 0, mask=none_delivered),
        "sent_ns": _integers_of(*moments.column(sent_at, "ns")),
        "delivered_ns": _integers_of(*moments.column(at, "ns")),
        "acknowledged_ns": _integers_of(*moments.column(done, "ns")),
        "redelivered": pa.array(status & _AGAIN != 0, mask=none_delivered),
        "delivery_count": _integers_of(_at(delivered.copies, where[1]), none_delivered),
        "outcome": _pick(np.where(none_delivered, NONE, outcome), _OUTCOMES),
        "verdict": _pick(fates[:, Fate.VERDICT], _texts(VERDICT_NAMES)),
        "sent_frame": _integers_of(*moments.column(sent_at, "frame")),
        "accepted_frame": _integers_of(*moments.column(accepted, "frame")),
        "subscribed_frame": _integers_of(
            *moments.column(np.where(none_sub, NONE, _at(granted, sub)), "frame")
        ),
        "delivered_frame": _integers_of(*moments.column(at, "frame")),
        "acknowledged_frame": _integers_of(*moments.column(done, "frame")),
        "source": _pick(stream, sources),
        "stream": _pick(stream, streams),
        "offset": pa.array(offset),
    }
    return _as_table("deliveries", columns, len(fates))


def _at(values: Ints, index: Ints) -> Ints:
    """Return values by index; anything where the index is -1."""
    if not len(values):
        return np.full(len(index), NONE, np.int64)
    return values[np.maximum(index, 0)]


def _texts(texts: Sequence[str | None]) -> pa.Array:
    try:
        return pa.array(texts, pa.string())
    except UnicodeEncodeError:
        return pa.array([text and storable(text) for text in texts], pa.string())


def _pick(numbers: Ints, texts: pa.Array) -> pa.DictionaryArray:
    """Return texts by number; null where that is -1."""
    indices = pa.array(numbers.astype(np.int32), mask=numbers < 0)
    return pa.DictionaryArray.from_arrays(indices, texts)


def _integers_of(values: Ints, missing: Bools) -> pa.Array:
    return pa.array(values, mask=missing)


def _as_table(name: str, columns: Mapping[str, pa.Array], rows: int) -> pa.Table:
    """Return columns as a part of a table; those that are not there are null."""
    arrays, fields = [], []
    for column in TABLES[name]:
        kind = arrow_type(column.kind)
        array = columns.get(column.name)
        if array is None:
            array = pa.nulls(rows, kind)
        elif not pa.types.is_dictionary(array.type):
            array = array.cast(kind)
        arrays.append(array)
        fields.append(pa.field(column.name, array.type))
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields))


def _table(name: str, rows: Sequence[Row]) -> pa.Table:
    """Return rows as a part of a table."""
    columns = {}
    for column in TABLES[name]:
        values = [row.get(column.name) for row in rows]
        kind = arrow_type(column.kind)
        columns[column.name] = (
            _texts(values) if kind == pa.string() else pa.array(values, kind)
        )
    return _as_table(name, columns, len(rows))
