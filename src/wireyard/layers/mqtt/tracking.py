"""The first stage by columns: tracks the packets of clients and their brokers, many at a time.

Clients whose connections are all plain are tracked in one call (`plain`). For the other clients, a
kernel tracks the packets that deliver messages, a run of packets of one connection in one call. All
their other packets go to an `Observer`, one by one, which has the connections, sessions and
subscriptions. `_Tracker` runs the kernel, and is the tracker of messages of the observer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from wireyard.arena import room
from wireyard.arrays import Bools, Grid32, Ints
from wireyard.formats.base import Row
from wireyard.formats.mqtt import layout
from wireyard.layers.mqtt.connection import FLOWING, Connection
from wireyard.layers.mqtt.observer import Observer
from wireyard.layers.mqtt.packet_row import PacketRow, as_packet
from wireyard.layers.mqtt.packets import DELIVERY_TYPES, LARGE_BYTES, Packets
from wireyard.layers.mqtt.plain import find_plain
from wireyard.layers.mqtt.qos import EVENTS, MAX_IN_FLIGHT
from wireyard.layers.mqtt.qos_kernels import (
    FIRST_STATES,
    IN_FLIGHT_STATES,
    NONE,
    RULE_NAMES,
    TABLES,
    Breach,
    ConnectionField,
    ConnectionState,
    Direction,
    Flag,
    Packet,
    Record,
    Status,
    Total,
    track,
)
from wireyard.layers.mqtt.records import (
    ALWAYS,
    Client,
    ConnectionRecord,
    Message,
    Output,
    Subscribed,
)
from wireyard.layers.mqtt.subscriptions import MAX_ASKED, Last
from wireyard.layers.mqtt.topics import Aliases
from wireyard.layers.mqtt.violations import Breach as BrokenRule
from wireyard.layers.records import Position

__all__ = ["Tracked", "track_clients"]

_BREACHES: Final = 256
_NEW_CONNECTION: Final = {True: EVENTS.index("resumed"), False: EVENTS.index("discarded")}
_DROPPED: Final = {
    "flows": Total.DROPPED_FLOWS,
    "unread": Total.DROPPED_UNREAD,
    "requests": Total.DROPPED_REQUESTS,
}
_AT_ONCE: Final = 1 << 13
"""Packets that are converted to rows together."""


@dataclass(slots=True, eq=False)
class Tracked:
    """The results of tracking clients; all are final."""

    packets: Packets
    records: Grid32
    """Columns of `Record`."""
    clients: list[Client]
    users: dict[Client, str]
    """User names of the clients that logged in with one."""
    sessions: pa.Table
    """The connections of plain clients."""
    connections: list[ConnectionRecord]
    """The connections of all other clients."""
    subscriptions: list[Subscribed]
    wills: list[Message]
    """Published wills."""
    waiting: list[Message]
    """Wills whose delay ends after the last packet of their client."""
    violations: list[BrokenRule]
    last: dict[tuple[str, str], Last]
    """The last packet of each broker."""
    dropped: Counter[str]

    def add_last(self, last: Last) -> None:
        """Update the last packet of a broker."""
        before = self.last.get(last.broker)
        if before is not None:
            has_older = before.has_older or last.has_older
            at, lost = max(before.at, last.at), before.lost + last.lost
            last = Last(last.broker, at, has_older, lost)
        self.last[last.broker] = last


def track_clients(packets: Packets) -> Tracked:
    """Track the packets of clients."""
    is_publish = packets.grid[:, Packet.KIND] == layout.PUBLISH
    records = room((int(is_publish.sum()), len(Record)), np.int32, LARGE_BYTES)
    total = np.zeros(len(Total), np.int64)
    total[Total.EMPTY_TOPIC] = _number_of_empty(packets)
    connections = _connections(packets)
    plain = find_plain(packets, connections, records, total)
    results = Tracked(
        packets, records, plain.clients, plain.users, plain.sessions, [], [], [], [], [], {},
        Counter(),
    )  # fmt: skip
    for last in plain.last:
        results.add_last(last)
    runs = _Runs(packets, connections, plain.is_plain)
    others = np.flatnonzero(~plain.is_plain)
    starts = others[np.diff(packets.key[others], prepend=NONE) != 0]
    stops = np.searchsorted(packets.key, packets.key[starts], "right")
    for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
        streams = [packets.streams[one].known for one in np.unique(packets.stream[start:stop])]
        _Client(results, runs, total, streams, start, stop).track()
    results.users |= {one.client: one.user for one in results.connections if one.user is not None}
    results.records = records[: total[Total.RECORDS]]
    return results


def _number_of_empty(packets: Packets) -> int:
    """Return the number of the empty topic; -2 if there is none (-1 is a missing topic)."""
    number = packets.topics.index("").as_py()
    return number if number >= 0 else -2


class _Runs:
    """The runs of consecutive packets of one connection that the kernel can track."""

    def __init__(self, packets: Packets, connections: Ints, is_done: Bools) -> None:
        kind, flags = packets.grid[:, Packet.KIND], packets.grid[:, Packet.FLAGS]
        is_tracked = np.isin(kind, DELIVERY_TYPES) | packets.pings
        is_tracked &= flags & Flag.MALFORMED == 0
        first = np.unique(packets.stream, return_index=True)[1]
        is_tracked[first] = False
        self.is_tracked: Bools = is_tracked
        """By packet: whether the kernel tracks it."""
        changes = np.diff(connections[packets.stream]) != 0
        changes |= np.diff(is_tracked)
        changes |= np.diff(packets.key) != 0
        self.bounds: Ints = np.flatnonzero(changes) + 1
        self._rare = np.flatnonzero(~(is_tracked | is_done))
        self._packets = packets
        self._rows: dict[int, Row] = {}
        self._read_to = 0

    def row(self, packet: int) -> Row:
        """Return a packet that the kernel does not track; calls come in the order of packets."""
        row = self._rows.pop(packet, None)
        if row is None:
            numbers = self._rare[self._read_to : self._read_to + _AT_ONCE]
            self._read_to += len(numbers)
            rows = self._packets.rows(numbers)
            self._rows = dict(zip(numbers.tolist(), rows, strict=True))
            row = self._rows.pop(packet)
        return row


def _connections(packets: Packets) -> Ints:
    """Return the number of the connection of each stream."""
    numbers: dict[tuple[str, ...], int] = {}
    connections = np.empty(len(packets.streams), np.int64)
    for number, stream in enumerate(packets.streams):
        ends, _, ordinal = stream.name.partition("#")
        key = stream.source, *sorted(ends.split(">")), ordinal
        connections[number] = numbers.setdefault(key, len(numbers))
    return connections


class _Client:
    """The packets of one client id of a broker, ``start <= packet < stop``."""

    def __init__(
        self,
        results: Tracked,
        runs: _Runs,
        total: Ints,
        streams: Sequence[Row],
        start: int,
        stop: int,
    ) -> None:
        self._results, self._runs, self._packets = results, runs, results.packets
        self._start, self._stop = start, stop
        self._tracker = _Tracker(results, total, start, stop)
        self._observer = Observer(streams, self._tracker.begin)

    def track(self) -> None:
        """Track all packets, and add the results to those of other clients."""
        runs, at = self._runs, self._start
        first = np.searchsorted(runs.bounds, self._start, "right")
        last = np.searchsorted(runs.bounds, self._stop)
        for stop in (*runs.bounds[first:last].tolist(), self._stop):
            if not runs.is_tracked[at]:
                for packet in range(at, stop):
                    self._observe(packet, runs.row(packet))
            else:
                while at < stop:
                    at = self._run(at, stop)
            at = stop
        observer, results = self._observer, self._results
        observer.finish()
        output = observer.output
        results.connections += output.connections
        results.subscriptions += output.subscriptions
        results.wills += output.messages
        results.waiting += output.waiting
        results.violations += output.violations
        results.dropped += output.dropped
        if observer.last is not None:
            for key, broker in observer.brokers.items():
                context = broker.has_older, tuple(broker.lost)
                results.add_last(Last(key, observer.last, *context))

    def _observe(self, packet: int, row: Row) -> None:
        """Pass a packet to the observer."""
        stream = self._observer.stream((row["source"], row["stream"]))
        if stream is None:
            self._observer.observe(row)
        else:
            self._observer.advance(as_packet(row), stream, self._packets.position(packet))

    def _run(self, start: int, stop: int) -> int:
        """Track a run of packets of one connection; return the index at which it ended."""
        packets, observer = self._packets, self._observer
        at = packets.position(start)
        observer.end_before(at)
        if observer.next_end is not None:
            stop = self._before(observer.next_end, start, stop)
        stream = observer.stream((at.source, at.stream))
        if stream is None or stream.connection.state not in FLOWING:
            numbers = np.arange(start, min(stop, start + _AT_ONCE))
            for packet, row in zip(numbers.tolist(), packets.rows(numbers), strict=True):
                self._observe(packet, row)
            return int(numbers[-1]) + 1
        connection = stream.connection
        record = connection.record
        if not record.version:
            versions = packets.version[start:stop]
            record.version = int(versions[np.argmax(versions != 0)])
        record.packets += stop - start
        record.bytes += int(packets.length[start:stop].sum())
        record.last = observer.last = packets.position(stop - 1)
        if record.damaged:
            is_by_client = packets.grid[start:stop, Packet.FLAGS] & Flag.FROM_CLIENT != 0
            first = {side: np.flatnonzero(is_by_client == side) for side in (True, False)}
            for side, numbers in sorted(first.items(), key=lambda one: one[1][:1].tolist()):
                if len(numbers):
                    at = packets.position(start + int(numbers[0]))
                    connection.observe_behind_gap(at, side)
        self._check_sizes(connection, start, stop)
        connection.keep_session()
        self._tracker.track(connection, start, stop)
        return stop

    def _before(self, end: Position, start: int, stop: int) -> int:
        """Return the index after the last packet before the end of a stream."""
        packets = self._packets
        ns = packets.reached_ns[start:stop]
        behind = int(np.searchsorted(ns, end.reached_ns, "right")) + start
        while behind > start and packets.position(behind - 1) > end:
            behind -= 1
        return behind

    def _check_sizes(self, connection: Connection, start: int, stop: int) -> None:
        for from_client, most in connection.most_bytes.items():
            if most is None:
                continue
            rule = "packet_size_client" if from_client else "packet_size_broker"
            is_by_client = self._packets.grid[start:stop, Packet.FLAGS] & Flag.FROM_CLIENT != 0
            above = (self._packets.length[start:stop] > most) & (is_by_client == from_client)
            for packet in (np.flatnonzero(above) + start).tolist():
                connection.breaks(rule, from_client, self._packets.position(packet))


class _Direction:
    """The messages of a session in one direction, in the arrays of the kernel."""

    def __init__(
        self,
        known: bool,
        records: Grid32,
        most_identifiers: int,
        number: Callable[[Position], int],
    ) -> None:
        self._first = FIRST_STATES[known]
        self._records = records
        self._number = number
        self._identifiers = most_identifiers
        self._states: Any = None
        self._tracked: Any = None
        self.limits: Ints = np.full(2, MAX_IN_FLIGHT, np.int64)

    @property
    def arrays(self) -> Direction:
        """The arrays, as a parameter of the kernel."""
        if self._states is None:
            self._states = np.repeat(self._first, self._identifiers, axis=1)
            self._tracked = np.full(self._identifiers, NONE, np.int32)
        return Direction(self._states.reshape(-1), self._tracked, self.limits)

    def connect(self, kept: bool, receive_maximum: int) -> list[int]:
        """Begin a new connection; return the messages that this ends."""
        self.limits[:] = receive_maximum
        if not kept:
            self._first = FIRST_STATES[True]
        if self._states is None:
            return []
        for role, states in enumerate(self._states):
            states[:] = TABLES[role, states, _NEW_CONNECTION[kept], 0]
        over = (self._tracked != NONE) & (self._states[0] == self._first[0])
        records: list[int] = self._tracked[over].tolist()
        self._tracked[over] = NONE
        return records

    def abandon(self) -> None:
        """Mark the tracked messages: the session ends before they are acknowledged."""
        if self._tracked is not None:
            self._records[self._tracked[self._tracked != NONE], Record.STATUS] |= Status.ABANDONED

    def untrace(self, before: Position) -> None:
        """Mark tracked messages sent before a position, unless they are acknowledged."""
        if self._tracked is None:
            return
        records = self._tracked[self._tracked != NONE]
        is_open = self._records[records, Record.ACCEPTED] == NONE
        if before is not ALWAYS:
            is_open &= self._records[records, Record.PACKET] < self._number(before)
        self._records[records, Record.STATUS] |= (Status.UNTRACED * is_open).astype(np.int32)

    def leave(self) -> list[int]:
        """Remove the tracked messages; return them."""
        if self._tracked is None:
            return []
        records: list[int] = self._tracked[self._tracked != NONE].tolist()
        self._tracked[:] = NONE
        return records

    def in_flight(self) -> list[int]:
        """Return the packet identifiers of the messages in flight."""
        if self._states is None:
            return []
        identifiers: list[int] = np.flatnonzero(IN_FLIGHT_STATES[0][self._states[0]]).tolist()
        return identifiers


class _ConnectionArrays:
    """The state of a connection: values of `ConnectionField`, topic aliases and pings."""

    def __init__(self) -> None:
        self.fields = np.zeros(len(ConnectionField), np.int64)
        self.fields[[ConnectionField.UNREAD_FIRST, ConnectionField.UNREAD_LAST]] = NONE
        self._owners: list[Aliases | None] = [None, None]
        self._aliases: Any = None
        self._pings: Any = None

    def arrays(self, connection: Connection, has_aliases: bool) -> ConnectionState:
        """Return the state as a parameter of the kernel."""
        aliases = self._topics_of(connection) if has_aliases else _NO_ALIASES
        if self._pings is None:
            self._pings = np.empty(MAX_ASKED, np.int32)
        return ConnectionState(self.fields, aliases.reshape(-1), self._pings)

    def _topics_of(self, connection: Connection) -> Any:
        """Return the topic of each alias, by side; the client's come first."""
        if self._aliases is None:
            self._aliases = np.full((2, 1 << 16), NONE, np.int32)
        for place, to_broker in enumerate((True, False)):
            owner = connection.aliases[to_broker]
            if self._owners[place] is not owner:
                self._owners[place] = owner
                self._aliases[place] = NONE
                most = NONE if owner.maximum is None else owner.maximum
                self.fields[ConnectionField.ALIAS_MAXIMUM_UP + place] = most
        return self._aliases


_NO_ALIASES: Final = np.empty((2, 0), np.int32)


class _Tracker:
    """Tracker of the messages of a client, with a kernel."""

    def __init__(self, results: Tracked, total: Ints, start: int, stop: int) -> None:
        self._results, self._packets, self._total = results, results.packets, total
        self._start, self._stop = start, stop
        grid = self._packets.grid[start:stop]
        self._identifiers = int(grid[:, Packet.ID].max(initial=0)) + 1
        self._has_aliases = bool((grid[:, Packet.ALIAS] != NONE).any())
        self._numbers: dict[Client, int] = {}
        self._breaches = np.empty((_BREACHES, len(Breach)), np.int32)
        self._output: Output

    def begin(self, output: Output) -> _Tracker:
        """Become the tracker of an observer."""
        self._output = output
        output.tracker = self
        return self

    # --- the interface of the observer ------------------------------------------------------

    def new_direction(self, known: bool) -> _Direction:
        """Return one direction of a new session."""
        return _Direction(known, self._results.records, self._identifiers, self._number)

    def observe(
        self, connection: Connection, row: PacketRow, at: Position, from_client: bool
    ) -> None:
        """Observe a packet of message delivery, or a ping."""
        self.track(connection, row["packet"], row["packet"] + 1)

    def accept_before(self, connection: Connection, request: Position, answer: Position) -> None:
        """Mark all messages before an answered request as accepted by the broker."""
        state, records = connection.unread, self._results.records
        if state is None:
            return
        fields, before, accepted = state.fields, self._number(request), self._number(answer)
        first = int(fields[ConnectionField.UNREAD_FIRST])
        while first != NONE and records[first, Record.PACKET] < before:
            records[first, Record.ACCEPTED] = accepted
            first = int(records[first, Record.NEXT])
            fields[ConnectionField.UNREAD] -= 1
        fields[ConnectionField.UNREAD_FIRST] = first

    def accept_all(self, connection: Connection, at: Position) -> None:
        """Mark all messages of a connection as accepted by the broker."""
        if connection.unread is None:
            return
        records, accepted = self._results.records, self._number(at)
        first = int(connection.unread.fields[ConnectionField.UNREAD_FIRST])
        while first != NONE:
            records[first, Record.ACCEPTED] = accepted
            first = int(records[first, Record.NEXT])

    def leave(self, connection: Connection) -> None:
        """Do nothing: all records are final at the end."""

    def over(self, records: Iterable[int]) -> None:
        """Do nothing: all records are final at the end."""

    def _number(self, at: Position) -> int:
        """Return the index of the packet at a position."""
        packets, start, stop = self._packets, self._start, self._stop
        place = start + int(np.searchsorted(packets.reached_ns[start:stop], at.reached_ns))
        while packets.position(place) != at:
            place += 1
        return place

    # --- runs -------------------------------------------------------------------------------

    def track(self, connection: Connection, start: int, stop: int) -> None:
        """Track a run of packets of a connection."""
        state: _ConnectionArrays = connection.unread
        if state is None:
            state = connection.unread = _ConnectionArrays()
        session, record, total = connection.session, connection.record, self._total
        client = self._numbers.get(record.client)
        if client is None:
            client = self._numbers[record.client] = len(self._results.clients)
            self._results.clients.append(record.client)
        total[Total.CLIENT] = client
        total[Total.IS_OLDER] = connection.broker.has_older
        total[Total.MAY_BE_LIVE] = connection.may_publish_as_retained
        total[Total.MOST_TRACKED] = connection.broker.most_tracked
        total[Total.HAS_GAP] = record.has_gap
        arrays = (
            self._results.records,
            session.to_broker.arrays,  # type: ignore[attr-defined]
            session.to_client.arrays,  # type: ignore[attr-defined]
            state.arrays(connection, self._has_aliases),
            total,
            self._breaches,
        )
        packets, waiting = self._packets, connection.unconfirmed
        at = start
        alone = False
        while at < stop:
            total[Total.TRACKED] = connection.broker.tracked
            total[[Total.BREACHES, Total.ANSWERED, Total.CONFIRMS_FROM]] = 0, NONE, NONE
            if waiting and not record.damaged and not alone:
                total[Total.CONFIRMS_FROM] = self._number(waiting[0].granted)
            until = at + 1 if alone else stop
            reached = track(packets.grid, packets.contents, at, until, *arrays)
            connection.broker.tracked = int(total[Total.TRACKED])
            self._add_violations(connection)
            if total[Total.ANSWERED] != NONE:
                request = packets.position(int(total[Total.ANSWERED]))
                record.answered = max(record.answered or request, request)
                if alone:
                    connection.confirm(request, packets.position(at))
            # The run ended before an answer, or because the buffer of violations is full.
            alone = reached < until and total[Total.BREACHES] <= _BREACHES // 2
            at = reached
        self._count_dropped()

    def _add_violations(self, connection: Connection) -> None:
        packets = self._packets
        for rule, from_client, packet, record in self._breaches[
            : self._total[Total.BREACHES]
        ].tolist():
            key = None
            if record != NONE:
                key = packets.key_of(int(self._results.records[record, Record.PACKET]))
            connection.breaks(RULE_NAMES[rule], bool(from_client), packets.position(packet), key)

    def _count_dropped(self) -> None:
        for limit, column in _DROPPED.items():
            if self._total[column]:
                self._output.dropped[limit] += int(self._total[column])
                self._total[column] = 0
