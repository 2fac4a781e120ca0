"""Tracks plain connections, many clients in one call, with the results of an `Observer`.

Definitions:

1. A plain connection begins with a CONNECT and the CONNACK that accepts it. All other packets are
   pings or deliver messages, except that the last one may be a DISCONNECT of the client. The
   session begins and ends with the connection.
2. A client is plain if all of its connections are plain, each is over before the next begins, and
   none has a protocol violation. Other clients have no results here.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple

from wireyard.accelerate import I64, array, inlined, kernel
from wireyard.accelerate import record as record_type
from wireyard.arrays import Grid, Grid32, Int8s, Ints
from wireyard.layers.mqtt.qos_kernels import (
    FIRST_STATES,
    IN_FLIGHT_STATES,
    NONE,
    ConnectionField,
    ConnectionState,
    Direction,
    Packet,
    Record,
    Status,
    Total,
    track_run,
)

__all__ = ["PlainConnection", "PlainPackets", "Step", "Streams", "track_plain"]


class Step(IntEnum):
    """The role of a packet in a plain connection."""

    OTHER = 0
    """Not in a plain connection."""
    CONNECT = 1
    CONNACK = 2
    FLOW = 3
    """A packet of message delivery, or a ping."""
    DISCONNECT = 4


class PlainConnection(IntEnum):
    """Columns of a grid that has a row for each plain connection."""

    FIRST = 0
    """Index of its CONNECT; the next packet is the CONNACK."""
    STOP = 1
    """Index after its last packet."""
    IS_LEFT = 2
    """Whether its last packet is a DISCONNECT."""
    ENDED = 3
    """The stream that ended first; -1 if no end was captured."""
    SENT = 4
    """Messages from the client that were in flight at the end."""
    RECEIVED = 5
    """Messages to the client that were in flight at the end."""


class PlainPackets(NamedTuple):
    """Packets, client by client, each client's in the order of time."""

    grid: Grid32
    """Columns of `Packet`."""
    contents: Grid
    steps: Int8s
    """Values of `Step`."""
    key: Ints
    """Number of the client."""
    stream: Ints
    reached_ns: Ints
    reached_frame: Ints
    kept_row: Ints
    """The index of a packet in `receive_maximum`; CONNECT and CONNACK have one."""
    receive_maximum: Ints
    """The Receive Maximum that a packet sets."""


class Streams(NamedTuple):
    """The columns of streams that are known before tracking, by number of the stream."""

    connection: Ints
    """Number of the connection, the same for both of its streams."""
    ended_ns: Ints
    """-1 if no end was captured."""
    ended_frame: Ints
    is_older: Ints
    """Whether connections to its server are older than the capture."""
    seen: Ints
    """By connection: whether it was begun; 0 before the call."""


_FREE_SENDER, _FREE_RECEIVER = (int(states[0]) for states in FIRST_STATES[True])
_CONNECT, _CONNACK = int(Step.CONNECT), int(Step.CONNACK)
_FLOW, _DISCONNECT = int(Step.FLOW), int(Step.DISCONNECT)


@inlined
def _end_of(packets: Any, streams: Any, at: int, stop: int) -> int:
    """Return the index after the connection that begins at a packet; -1 if it is not plain."""
    steps, stream = packets.steps, packets.stream
    if stop - at < 2 or steps[at] != _CONNECT or steps[at + 1] != _CONNACK:
        return NONE
    client, broker = stream[at], stream[at + 1]
    connection = streams.connection[client]
    if streams.connection[broker] != connection or streams.seen[connection]:
        return NONE
    streams.seen[connection] = 1
    end = at + 2
    while end < stop and steps[end] == _FLOW:
        if stream[end] != client and stream[end] != broker:
            return NONE
        end += 1
    if end < stop and steps[end] == _DISCONNECT and stream[end] == client:
        end += 1
    return end


@inlined
def _ended_after(packets: Any, streams: Any, ended: int, packet: int) -> bool:
    """Return whether a stream ended after a packet."""
    ns, frame = streams.ended_ns[ended], streams.ended_frame[ended]
    if ns != packets.reached_ns[packet]:
        return bool(ns > packets.reached_ns[packet])
    if frame != packets.reached_frame[packet]:
        return bool(frame > packets.reached_frame[packet])
    return bool(ended >= packets.stream[packet])


@inlined
def _first_end(streams: Any, one: int, other: int) -> int:
    """Return the stream that ended first; -1 if no end was captured."""
    if streams.ended_ns[one] == NONE:
        return other if streams.ended_ns[other] != NONE else NONE
    if streams.ended_ns[other] == NONE:
        return one
    if streams.ended_ns[one] != streams.ended_ns[other]:
        return one if streams.ended_ns[one] < streams.ended_ns[other] else other
    return one if streams.ended_frame[one] <= streams.ended_frame[other] else other


@inlined
def _may_end(packets: Any, streams: Any, ended: int, is_left: bool, end: int, stop: int) -> bool:
    """Return whether a connection ended after its packets, if at all, and before the next began."""
    if ended != NONE and not _ended_after(packets, streams, ended, end - 1):
        return False
    if end == stop or is_left:
        return True
    return ended != NONE and not _ended_after(packets, streams, ended, end)


@inlined
def _begin(
    packets: Any, at: int, to_broker: Any, to_client: Any, connection: Any, total: Ints
) -> None:
    """Reset the state for the connection of a CONNECT and the CONNACK behind it."""
    maxima, kept_row = packets.receive_maximum, packets.kept_row
    for index in range(2):
        to_client.limits[index] = maxima[kept_row[at]]
        to_broker.limits[index] = maxima[kept_row[at + 1]]
    for field in range(len(connection.fields)):
        connection.fields[field] = 0
    connection.fields[ConnectionField.UNREAD_FIRST] = NONE
    connection.fields[ConnectionField.UNREAD_LAST] = NONE
    total[Total.TRACKED] = total[Total.MAY_BE_LIVE] = total[Total.BREACHES] = 0
    total[Total.ANSWERED] = total[Total.CONFIRMS_FROM] = NONE


@inlined
def _leave(grid: Grid32, first: int, stop: int, flow: Any) -> int:
    """Clear the messages of a direction; return the number of messages in flight."""
    in_flight = 0
    for packet in range(first, stop):
        identifier = grid[packet, Packet.ID]
        if IN_FLIGHT_STATES[0, flow.states[identifier]]:
            in_flight += 1
        flow.states[identifier] = _FREE_SENDER
        flow.states[len(flow.tracked) + identifier] = _FREE_RECEIVER
        flow.tracked[identifier] = NONE
    return in_flight


@inlined
def _abandon(grid: Grid32, first: int, stop: int, flow: Any, records: Grid32) -> None:
    """Mark the tracked messages: the session ends before they are acknowledged."""
    for packet in range(first, stop):
        record = flow.tracked[grid[packet, Packet.ID]]
        if record != NONE:
            records[record, Record.STATUS] |= Status.ABANDONED


@inlined
def _dropped(total: Ints) -> int:
    """Return the number of records that exceeded a limit."""
    return int(
        total[Total.DROPPED_FLOWS] + total[Total.DROPPED_UNREAD] + total[Total.DROPPED_REQUESTS]
    )


@inlined
def _accept_all(connection: Any, records: Grid32, answer: int) -> None:
    """Mark all messages of the client as read by the broker, which reads a stream in order."""
    record = connection.fields[ConnectionField.UNREAD_FIRST]
    while record != NONE:
        records[record, Record.ACCEPTED] = answer
        record = records[record, Record.NEXT]


@kernel(
    I64(
        record_type(PlainPackets), record_type(Streams), record_type(Direction),
        record_type(Direction), record_type(ConnectionState), array("int32", 2), array("int64"),
        array("int32", 2), array("int64", 2), array("bool_"),
    )
)  # fmt: skip
def track_plain(
    packets: PlainPackets,
    streams: Streams,
    to_broker: Direction,
    to_client: Direction,
    connection: ConnectionState,
    records: Grid32,
    total: Ints,
    breaches: Grid32,
    found: Any,
    is_plain: Any,
) -> int:
    """Track the packets of plain clients; return the number of their connections.

    Parameters
    ----------
    to_broker, to_client, connection
        State for the messages of one connection after the other; empty before and after the call.
    records, total, breaches
        As for `track_run`, with the number of the connection as that of the client.
    found
        Output: columns of `PlainConnection`.
    is_plain
        Output: whether the client of each packet is plain; false before the call.
    """
    grid, key = packets.grid, packets.key
    count = start = 0
    while start < len(key):
        stop = start + 1
        while stop < len(key) and key[stop] == key[start]:
            stop += 1
        first_record, first_connection = total[Total.RECORDS], count
        at = start
        while at < stop:
            end = _end_of(packets, streams, at, stop)
            if end == NONE:
                break
            ended = _first_end(streams, packets.stream[at], packets.stream[at + 1])
            is_left = packets.steps[end - 1] == _DISCONNECT
            if not _may_end(packets, streams, ended, is_left, end, stop):
                break
            _begin(packets, at, to_broker, to_client, connection, total)
            total[Total.CLIENT] = count
            total[Total.IS_OLDER] = streams.is_older[packets.stream[at]]
            until = end - 1 if is_left else end
            reached = track_run(
                grid, packets.contents, at + 2, until, records, to_broker, to_client, connection,
                total, breaches,
            )  # fmt: skip
            if end < stop or is_left or ended != NONE:
                _abandon(grid, at + 2, until, to_client, records)
            found[count, PlainConnection.SENT] = _leave(grid, at + 2, until, to_broker)
            found[count, PlainConnection.RECEIVED] = _leave(grid, at + 2, until, to_client)
            if reached < until or total[Total.BREACHES] or _dropped(total):
                break
            if is_left:
                _accept_all(connection, records, end - 1)
            found[count, PlainConnection.FIRST] = at
            found[count, PlainConnection.STOP] = end
            found[count, PlainConnection.IS_LEFT] = is_left
            found[count, PlainConnection.ENDED] = ended
            count += 1
            at = end
        for packet in range(start, stop):
            is_plain[packet] = at == stop
        if at < stop:
            total[Total.RECORDS], count = first_record, first_connection
            total[Total.DROPPED_FLOWS] = total[Total.DROPPED_UNREAD] = 0
            total[Total.DROPPED_REQUESTS] = 0
        start = stop
    return count
