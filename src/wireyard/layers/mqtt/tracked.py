"""The results of tracking: rows of the kernel's grids as tables, and as records of later stages."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from wireyard.arrays import Grid, Grid32, Ints
from wireyard.formats.mqtt.layout import SUBACK, UNSUBACK
from wireyard.layers.endpoints import stream_endpoints
from wireyard.layers.mqtt import grids
from wireyard.layers.mqtt.deliveries.subscriptions import Last
from wireyard.layers.mqtt.deliveries.topics import split_shared
from wireyard.layers.mqtt.directions import Stream as StreamName
from wireyard.layers.mqtt.grids import (
    ALWAYS,
    NO_TIME,
    NONE,
    UNKNOWN,
    Breach,
    Connection,
    Count,
    EndedBy,
    Flag,
    Key,
    Packet,
    Rare,
    Record,
    Stream,
    Subscription,
    TopicFilter,
    Tracking,
    WillFate,
)
from wireyard.layers.mqtt.kernels.connections import SMALLEST_BYTES
from wireyard.layers.mqtt.kernels.messages import RULE_NAMES, WITHOUT_DELETION
from wireyard.layers.mqtt.packets import Packets, hash_payloads
from wireyard.layers.mqtt.rare import NO_LENGTH, RarePackets
from wireyard.layers.mqtt.records import (
    END_OFFSET,
    PROTOCOL,
    Client,
    ConnectionRecord,
    Message,
    Properties,
    Span,
    Subscribed,
    TopicKey,
    Will,
    content_of,
    properties_of,
)
from wireyard.layers.mqtt.violations import cite, violation_of
from wireyard.layers.records import Position, violation_row
from wireyard.layers.tables import as_fact_table, fact_table

_ENDED_BY: Final = pa.array(
    [None if one == EndedBy.UNSEEN else one.name.lower() for one in EndedBy], pa.string()
)
_AT_ONCE: Final = 1 << 17
"""Messages whose topics are collected at once."""
_BEFORE: Final = -1
"""The offset of a time that is before all packets then."""


@dataclass(slots=True)
class Clients:
    """The results for clients, without their messages."""

    topics: set[tuple[TopicKey, bool]]
    """The topics of all messages, from and to them, each with whether the message had RETAIN."""
    asked: set[TopicKey]
    """The response topics of their requests."""
    clients: list[Client]
    """By number."""
    users: dict[Client, str]
    """User names of the clients that logged in with one."""
    connections: list[ConnectionRecord]
    """The accepted connections that messages were delivered to by a subscription."""
    subscriptions: list[Subscribed]
    wills: list[Will]
    """Published wills."""
    waiting: list[Will]
    """Wills whose delay ends after the last packet of their client."""
    last: dict[tuple[str, str], Last]
    """The last packet of each broker."""
    unseen: dict[StreamName, tuple[Span, ...]]
    """Spans in which streams to clients lack packets."""
    dropped: Counter[str]
    tables: dict[str, pa.Table]
    """The tables `sessions` and `violations`."""


class Tracked(NamedTuple):
    """The results of tracking; all are final."""

    packets: Packets
    records: Grid32
    """Columns of `Record`."""
    clients: Clients
    unsure_before: dict[int, int]
    """By client, the packet before which answers to its session may not have been captured."""


def results_of(packets: Packets, rare: RarePackets, arrays: Tracking, breaches: Grid) -> Tracked:
    """Return the results that are in the arrays of tracking."""
    results = _Results(packets, rare, arrays)
    counts = arrays.counts
    records = arrays.records[: counts[Count.RECORDS]]
    dropped = {"subscriptions": int(counts[Count.DROPPED])}
    clients = Clients(
        results.topics(records),
        results.asked(records),
        results.clients,
        results.users(),
        list(results.connections()),
        list(results.subscriptions()),
        list(results.wills(WillFate.PUBLISHED)),
        list(results.wills(WillFate.WAITING)),
        results.last(),
        results.unseen(),
        +Counter(dropped),
        {"sessions": results.sessions(), "violations": results.violations(breaches)},
    )
    return Tracked(packets, records, clients, results.unsure_before())


def extra_of(packets: Packets) -> dict[int, Properties]:
    """Return the properties of the packets with `is_extra`, by packet."""
    numbers = np.flatnonzero(packets.is_extra)
    taken = packets.kept["properties"].take(pa.array(packets.kept_row[numbers]))
    return dict(zip(numbers.tolist(), map(properties_of, taken.to_pylist()), strict=True))


class _Results:
    """The arrays of tracking, read as results."""

    def __init__(self, packets: Packets, rare: RarePackets, arrays: Tracking) -> None:
        self._packets, self._rare, self._arrays = packets, rare, arrays
        self._client_ids: list[str] = rare.client_ids.to_pylist()
        self._first: list[int] = arrays.connections[:, Connection.FIRST].tolist()
        """The first packet of each connection."""
        self._sources: list[str] = []
        self._servers: list[str] = []
        self._endpoints: list[str] = []
        """Of the client of each connection."""
        for number in packets.stream[self._first].tolist():
            stream = packets.streams[number]
            src, dst = stream_endpoints(stream.name, *stream.addresses)
            self._sources.append(stream.source)
            self._servers.append(dst if stream.from_client else src)
            self._endpoints.append(src if stream.from_client else dst)
        clients = arrays.clients[: arrays.counts[Count.CLIENTS]]
        self.clients = list(map(self._client, *clients.T.tolist()))

    # --- names and positions ----------------------------------------------------------------

    def _client(self, connection: int, name: int, client_id: int) -> Client:
        return Client(
            self._sources[connection],
            self._servers[connection],
            self._name(name),
            self._endpoints[connection],
            None if client_id == NONE else self._client_ids[client_id],
        )

    def _name(self, number: int) -> str:
        """Return a client id, or the substitute for that of a connection."""
        ids = self._client_ids
        if number < len(ids):
            return ids[number]
        return self._packets.key_of(self._first[number - len(ids)])

    def _client_of(self, connection: int) -> Client:
        """Return the client of a connection, as it is named at the end."""
        row = self._arrays.connections[connection]
        if row[Connection.CLIENT] != NONE:
            return self.clients[int(row[Connection.CLIENT])]
        return self._client(connection, int(row[Connection.NAME]), int(row[Connection.CLIENT_ID]))

    def _at(self, moment: int) -> Position | None:
        """Return the position of a moment."""
        packets, row = self._packets, moment - len(self._packets)
        if moment == NONE:
            return None
        if row < 0:
            return packets.position(moment)
        if row < len(packets.streams):
            stream = packets.streams[row]
            ns, frame = (
                int(self._arrays.streams[row, column])
                for column in (Stream.ENDED_NS, Stream.ENDED_FRAME)
            )
            return Position(ns, frame, stream.name, END_OFFSET, ns, frame, stream.source)
        ns, number = self._arrays.moments[row - len(packets.streams)].tolist()
        stream = packets.streams[number]
        return Position(ns, 0, stream.name, _BEFORE, ns, None, stream.source)

    # --- connections ------------------------------------------------------------------------

    def users(self) -> dict[Client, str]:
        """Return the user names of the clients that logged in with one."""
        names = self._of_connects("username")
        numbers = np.flatnonzero(names.is_valid().to_numpy(zero_copy_only=False))
        clients = map(self._client_of, numbers.tolist())
        return dict(zip(clients, names.drop_null().to_pylist(), strict=True))

    def _of_connects(self, name: str) -> pa.Array:
        """Return a column of the CONNECT of each connection; null if that was not captured."""
        connects = self._arrays.connections[:, Connection.CONNECT]
        is_missing = connects == NONE
        rows = self._packets.kept_row[np.where(is_missing, 0, connects)]
        return self._packets.kept[name].take(pa.array(rows, mask=is_missing)).combine_chunks()

    def sessions(self) -> pa.Table:
        """Return the table of connections."""
        packets = self._packets
        if not self._first:
            return fact_table("sessions", ())
        columns = self._arrays.connections.T
        opened, begun = columns[Connection.OPENED], columns[Connection.CONNECT] != NONE
        closed_ns, closed_frame = self._times(columns[Connection.CLOSED])
        is_timed = begun & (packets.ns[opened] != NO_TIME)
        shows = begun & (columns[Connection.SHOWS_IN_FLIGHT] == 1)
        version, resumed = columns[Connection.VERSION], columns[Connection.RESUMED]
        streams = [packets.streams[number].name for number in packets.stream[opened].tolist()]
        protocol = pa.DictionaryArray.from_arrays(np.zeros(len(opened), np.int32), [PROTOCOL])
        return as_fact_table(
            "sessions",
            {
                "protocol": protocol.cast(pa.string()),
                "client": pa.array(self._endpoints, pa.string()),
                "server": pa.array(self._servers, pa.string()),
                "client_id": self._rare.client_ids.take(_present(columns[Connection.CLIENT_ID])),
                "user": self._of_connects("username").cast(pa.string()),
                "opened_ns": pa.array(packets.ns[opened], mask=~is_timed),
                "closed_ns": pa.array(closed_ns, mask=closed_ns == NO_TIME),
                "status": _present(columns[Connection.STATUS]),
                "ended_by": _ENDED_BY.take(pa.array(columns[Connection.ENDED_BY])),
                "packets": columns[Connection.PACKETS],
                "bytes": columns[Connection.BYTES],
                "version": pa.array(version, mask=~begun | (version == 0)),
                "resumed": _present(resumed).cast(pa.bool_()),
                "keep_alive": self._keep_alives(),
                "in_flight_sent": pa.array(columns[Connection.SENT], mask=~shows),
                "in_flight_received": pa.array(columns[Connection.RECEIVED], mask=~shows),
                "opened_frame": pa.array(packets.frame[opened], mask=~is_timed),
                "closed_frame": pa.array(closed_frame, mask=closed_ns == NO_TIME),
                **self._ends(columns[Connection.ENDED_WITH]),
                "source": pa.array(self._sources, pa.string()),
                "stream": pa.array(streams, pa.string()),
                "offset": packets.offset[opened],
            },
        )

    def _keep_alives(self) -> pa.Array:
        """Return the keep-alive in force on each connection."""
        by_broker = self._arrays.connections[:, Connection.KEEP_ALIVE_S]
        own = self._of_connects("keep_alive").cast(pa.int64())
        own = pc.if_else(pa.array(by_broker == UNKNOWN), None, own)
        return pc.coalesce(pa.array(by_broker, mask=by_broker < 0), own)

    def _ends(self, packets: Ints) -> dict[str, pa.Array]:
        """Return reason code and reason string of the DISCONNECT of brokers."""
        is_missing = packets == NONE
        codes = self._packets.grid[np.where(is_missing, 0, packets), Packet.CODE]
        reasons: list[str | None] = [None] * len(packets)
        kept = self._packets.kept["properties"]
        for place in np.flatnonzero(~is_missing).tolist():
            row = kept[int(self._packets.kept_row[packets[place]])].as_py()
            reasons[place] = properties_of(row).get("reason_string")
        return {
            "end_code": pa.array(codes, pa.int64(), mask=is_missing),
            "end_reason": pa.array(reasons, pa.string()),
        }

    def _times(self, moments: Ints) -> tuple[Ints, Ints]:
        """Return time and frame of packets and ends of streams; `NO_TIME` if there is none."""
        packets, streams = self._packets, self._arrays.streams
        is_packet, is_end = (moments != NONE) & (moments < len(packets)), moments >= len(packets)
        at, ends = moments[is_packet], moments[is_end] - len(packets)
        ns, frame = np.full((2, len(moments)), NO_TIME)
        ns[is_packet], frame[is_packet] = packets.ns[at], packets.frame[at]
        ns[is_end] = streams[ends, Stream.ENDED_NS]
        frame[is_end] = streams[ends, Stream.ENDED_FRAME]
        return ns, frame

    def connections(self) -> Iterator[ConnectionRecord]:
        """Yield the accepted connections that messages were delivered to by a subscription."""
        rows = self._arrays.connections
        wanted = (rows[:, Connection.SERVED_AS] != NONE) & (rows[:, Connection.ACCEPTED] != NONE)
        for number in np.flatnonzero(wanted).tolist():
            row = self._arrays.connections[number].tolist()
            opened = self._at(row[Connection.OPENED])
            assert opened is not None
            size, resumed = row[Connection.MOST_BYTES_DOWN], row[Connection.RESUMED]
            closed = self._at(row[Connection.CLOSED])
            ends_ns = int(
                self._arrays.streams[
                    self._packets.stream[row[Connection.FIRST]], Stream.CAPTURE_ENDS_NS
                ]
            )
            yield ConnectionRecord(
                client=self._client_of(number),
                opened=opened,
                begun=row[Connection.CONNECT] != NONE,
                resumed=None if resumed == NONE else bool(resumed),
                clean_start=bool(row[Connection.IS_CLEAN]),
                maximum_packet_size=None if size == NONE else size,
                session_over_ns=_session_over_ns(row, closed),
                capture_ends_ns=None if ends_ns == NO_TIME else ends_ns,
                closed=closed,
                until=self._at(row[Connection.UNTIL]),
                accepted=self._at(row[Connection.ACCEPTED]),
                damaged=bool(row[Connection.IS_DAMAGED]),
                is_full=bool(row[Connection.IS_FULL]),
                filled=self._at(row[Connection.FILLED]),
                was_fuller=row[Connection.RECEIVED] < row[Connection.MOST_IN_FLIGHT],
                answered=self._at(row[Connection.ANSWERED]),
                answered_open=self._at(row[Connection.ANSWERED_OPEN]),
                is_asking=row[Connection.ASKING] > 0,
                served_as=tuple(self._names(row[Connection.SERVED_AS])),
            )

    def _names(self, place: int) -> Iterator[str]:
        """Yield the names of a linked list."""
        while place != NONE:
            name, filter, following = self._arrays.names[place].tolist()
            is_group = name == NONE
            yield self._rare.filter_texts[filter].as_py() if is_group else self._name(name)
            place = following

    # --- subscriptions and wills ------------------------------------------------------------

    def subscriptions(self) -> Iterator[Subscribed]:
        """Yield the subscriptions that have ended, and the active ones of named sessions."""
        rows = self._arrays.subscriptions[: self._arrays.counts[Count.SUBSCRIPTIONS]]
        final = (rows[:, Subscription.GONE] != NONE) | (rows[:, Subscription.IS_ACTIVE] == 1)
        for row in rows[final].tolist():
            asked, since = self._at(row[Subscription.ASKED]), self._at(row[Subscription.SINCE])
            granted = self._at(row[Subscription.GRANTED])
            assert asked is not None and granted is not None and since is not None
            filter = self._arrays.filters[row[Subscription.FILTER]].tolist()
            text = self._rare.filter_texts[row[Subscription.FILTER]].as_py()
            identifier, size = row[Subscription.IDENTIFIER], row[Subscription.PACKET_SIZE]
            connection = self._arrays.clients[row[Subscription.CLIENT], grids.Client.CONNECTION]
            is_bridge = bool(self._arrays.connections[connection, Connection.IS_BRIDGE])
            yield Subscribed(
                self.clients[row[Subscription.CLIENT]],
                text,
                split_shared(text)[0] if row[Subscription.IS_SHARED] else None,
                row[Subscription.QOS],
                bool(filter[TopicFilter.NO_LOCAL]) or is_bridge,
                bool(filter[TopicFilter.AS_PUBLISHED]) or is_bridge,
                None if identifier == NONE else identifier,
                asked,
                granted,
                since._replace(offset=since.offset + row[Subscription.SINCE_PLACE]),
                self._at(row[Subscription.LEAVING]),
                self._at(row[Subscription.GONE]),
                row[Subscription.VERSION],
                bool(row[Subscription.IS_KNOWN]),
                max(filter[TopicFilter.HANDLING], 0),
                bool(row[Subscription.GETS_VALUES]),
                None if size == NONE else size,
                self._at(row[Subscription.CONFIRMED]),
                self._is_answer(row[Subscription.GONE]),
            )

    def _is_answer(self, moment: int) -> bool:
        """Return whether a moment is a packet that answers a request on subscriptions."""
        if not NONE < moment < len(self._packets):
            return False
        return bool(self._packets.grid[moment, Packet.KIND] in (SUBACK, UNSUBACK))

    def wills(self, fate: WillFate) -> Iterator[Will]:
        """Yield the wills of a fate."""
        rows = self._arrays.wills[: self._arrays.counts[Count.WILLS]]
        rows = rows[rows[:, grids.Will.FATE] == fate]
        packets = self._packets
        connects = packets.kept.take(pa.array(packets.kept_row[rows[:, grids.Will.CONNECT]]))
        contents = hash_payloads(connects["will_payload"], packets.secret).tolist()
        for row, connect, content in zip(
            rows.tolist(), connects.to_pylist(), contents, strict=True
        ):
            number = row[grids.Will.CONNECT]
            properties = properties_of(connect["will_properties"])
            payload, retain = connect["will_payload"] or b"", bool(connect["will_retain"])
            message = Message(
                origin="will",
                sent=packets.position(number),
                client=self.clients[row[grids.Will.CLIENT]],
                topic=connect["will_topic"],
                content=content_of(payload),
                qos=connect["will_qos"] or 0,
                retain=retain,
                value=payload if retain else None,
                expires_s=properties.get("message_expiry_interval"),
                response_topic=properties.get("response_topic"),
                correlation_data=properties.get("correlation_data"),
                accepted=self._at(row[grids.Will.ACCEPTED]),
                released=self._at(row[grids.Will.RELEASED]),
                is_lasting=connect["version_in_force"] == WITHOUT_DELETION,
            )
            one, other = content
            yield Will(message, (one, other), int(packets.file[number]), int(packets.row[number]))

    # --- topics -----------------------------------------------------------------------------

    def topics(self, records: Grid32) -> set[tuple[TopicKey, bool]]:
        """Return the topics of all messages, each with whether a message had RETAIN."""
        brokers = list(dict.fromkeys(client[:2] for client in self.clients))
        numbers = {broker: number for number, broker in enumerate(brokers)}
        broker_of = np.array([numbers[client[:2]] for client in self.clients], np.int64)
        texts, codes = self._packets.topics, set[int]()
        for start in range(0, len(records), _AT_ONCE):
            part = records[start : start + _AT_ONCE]
            retain = self._packets.grid[part[:, Record.PACKET], Packet.FLAGS] & Flag.RETAIN != 0
            topics = broker_of[part[:, Record.CLIENT]] * len(texts) + part[:, Record.TOPIC]
            codes.update(np.unique(2 * topics + retain).tolist())
        topic_of = texts.to_pylist()
        pairs = ((*divmod(code // 2, len(topic_of)), code % 2) for code in codes)
        return {
            ((*brokers[broker], topic_of[topic]), retain == 1) for broker, topic, retain in pairs
        }

    def asked(self, records: Grid32) -> set[TopicKey]:
        """Return the response topics of the clients' requests."""
        topics = {
            packet: properties["response_topic"]
            for packet, properties in extra_of(self._packets).items()
            if properties.get("response_topic") is not None
        }
        asking = np.isin(records[:, Record.PACKET], list(topics))
        asking &= records[:, Record.TO_BROKER] == 1
        found = records[asking][:, [Record.PACKET, Record.CLIENT]].tolist()
        return {(*self.clients[client][:2], topics[packet]) for packet, client in found}

    def unsure_before(self) -> dict[int, int]:
        """Return until when answers to the session of each client may not have been captured."""
        rows = self._arrays.connections
        latest: dict[tuple[str, str, int], int] = {}
        unsure_before = rows[:, [Connection.LOST_UP, Connection.LOST_DOWN]].max(axis=1)
        for number in np.flatnonzero(unsure_before != NONE).tolist():
            key = self._sources[number], self._servers[number], int(rows[number, Connection.NAME])
            unsure = int(unsure_before[number])
            latest[key] = max(unsure, latest.get(key, unsure))
        clients = self._arrays.clients[: self._arrays.counts[Count.CLIENTS]].tolist()
        keys = ((self._sources[one], self._servers[one], name) for one, name, _ in clients)
        return {number: latest[key] for number, key in enumerate(keys) if key in latest}

    # --- violations, and what brokers have in common ----------------------------------------

    def violations(self, breaches: Grid) -> pa.Table:
        """Return the table of violations: those of rules that the version of a connection has."""
        packets, rows = self._packets, []
        for breach in breaches.tolist():
            packet, rule = breach[Breach.PACKET], breach[Breach.RULE]
            citation = (
                self._citation(packet)
                if rule == NONE
                else cite(RULE_NAMES[rule], breach[Breach.VERSION])
            )
            if citation is None:
                continue
            record, key = breach[Breach.RECORD], None
            if record != NONE:
                key = packets.key_of(int(self._arrays.records[record, Record.PACKET]))
            client, from_client = self._client_of(breach[Breach.CONNECTION]), breach[1] == 1
            at = packets.position(packet)
            rows.append(
                violation_row(PROTOCOL, violation_of(*citation, client, from_client, at, key))
            )
        return fact_table("violations", rows)

    def _citation(self, packet: int) -> tuple[str, str]:
        """Return the rule that a packet itself violates, and the error as a sentence."""
        kept, row = self._packets.kept, int(self._packets.kept_row[packet])
        error = kept["error"][row].as_py() or {}
        text = error.get("message") or "the packet violates a rule"
        return kept["verdict"][row].as_py() or NO_LENGTH, text

    def last(self) -> dict[tuple[str, str], Last]:
        """Return until when each broker is captured, and what may be missing of it."""
        packets, arrays = self._packets, self._arrays
        last = arrays.keys[:, Key.STOP] - 1
        columns = (packets.offset, packets.stream, packets.reached_frame, packets.reached_ns)
        connections = arrays.streams[packets.stream[last], Stream.CONNECTION].tolist()
        shared: dict[tuple[str, str], tuple[str, str]] = {}
        pairs = ((self._sources[number], self._servers[number]) for number in connections)
        brokers = [shared.setdefault(pair, pair) for pair in pairs]
        spans, large = (
            defaultdict[tuple[str, str], list[Span]](list),
            defaultdict[tuple[str, str], list[Span]](list),
        )
        for key, first_ns, last_ns, size in arrays.lost[: arrays.counts[Count.LOST]].tolist():
            spans[brokers[key]].append((first_ns, last_ns))
            if size >= SMALLEST_BYTES:
                large[brokers[key]].append((first_ns, last_ns))
        older = {brokers[key] for key in np.flatnonzero(arrays.keys[:, Key.HAS_OLDER]).tolist()}
        order = np.lexsort([column[last] for column in columns]).tolist()
        latest = {brokers[key]: int(last[key]) for key in order}
        ends_ns = arrays.streams[
            packets.stream[[*latest.values()]], Stream.CAPTURE_ENDS_NS
        ].tolist()
        found = {}
        for (broker, packet), end_ns in zip(latest.items(), ends_ns, strict=True):
            at = packets.position(packet)
            at = at._replace(reached_ns=max(at.reached_ns, end_ns))
            found[broker] = Last(
                broker, at, broker in older, tuple(spans[broker]), tuple(large[broker])
            )
        return found

    def unseen(self) -> dict[StreamName, tuple[Span, ...]]:
        """Return the spans in which streams to clients lack packets, in order.

        They are from the packet before bytes that are none to the one behind them, if these may
        have been a message.
        """
        packets, rare = self._packets, self._rare
        to_client = packets.grid[:, Packet.FLAGS] & Flag.FROM_CLIENT == 0
        others = np.flatnonzero(to_client & (packets.grid[:, Packet.KIND] == 0))
        others = others[rare.grid[rare.row[packets.kept_row[others]], Rare.IS_BYTES] == 1]
        is_lacking = np.zeros(len(packets.streams), np.bool_)
        is_lacking[packets.stream[others]] = True
        rows = np.flatnonzero(is_lacking[packets.stream])
        rows = rows[np.argsort(packets.stream[rows], kind="stable")]
        is_other = np.isin(rows, others)
        starts = np.flatnonzero(np.diff(packets.stream[rows], prepend=NONE, append=NONE))
        found = {}
        for start, stop in pairwise(starts.tolist()):
            stream = packets.streams[packets.stream[rows[start]]]
            ends = np.flatnonzero(np.diff(is_other[start:stop], prepend=False, append=False))
            reached_ns = [*packets.reached_ns[rows[start:stop]].tolist(), ALWAYS]
            found[stream.source, stream.name] = tuple(
                (reached_ns[first], reached_ns[last])
                for first, last in ends.reshape(-1, 2).tolist()
                if packets.length[rows[start + first : start + last]].sum() >= SMALLEST_BYTES
            )
        return found


def _session_over_ns(row: Sequence[int], closed: Position | None) -> int | None:
    """Return when the session of a connection ends if no other connection resumes it."""
    if closed is None or row[Connection.ENDED_BY] == EndedBy.REFUSED:
        return None
    if not row[Connection.IS_PERSISTENT]:
        return closed.ns
    expires_s = row[Connection.EXPIRES_S]
    due = None if expires_s == NONE else closed.after(expires_s)
    return due and due.ns


def _present(values: Ints) -> pa.Array:
    """Return integers; -1 is null."""
    return pa.array(values, mask=values == NONE)
