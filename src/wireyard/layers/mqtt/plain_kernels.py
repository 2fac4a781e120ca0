"""Plain connections, many clients in one call: what an `Observer` would find, and nothing more.

Rules of this file:

1. A plain connection begins with a CONNECT and the CONNACK that accepts it. Then there are packets
   of message delivery and pings alone, and at its end perhaps a DISCONNECT of the client. Its
   session begins and ends with it.
2. A client is plain if all of its connections are, each over before the next begins, and if no
   rule is broken on any. Of all other clients nothing is left here.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from wireyard.accelerate import I64, array, kernel, piece
from wireyard.accelerate import record as record_type
from wireyard.layers.grouping import Int8s, Int64s
from wireyard.layers.mqtt.qos_kernels import (
    FIRST_STATES,
    IN_FLIGHT_STATES,
    NONE,
    ConnectionField,
    ConnectionState,
    Direction,
    Grid,
    Hashes,
    Ints,
    Packet,
    Record,
    Status,
    Total,
    track_run,
)

__all__ = ["PlainConnection", "PlainPackets", "Step", "Streams", "track_plain"]


class Step(IntEnum):
    """What a packet is to a plain connection."""

    OTHER = 0
    """No plain connection has it."""
    CONNECT = 1
    CONNACK = 2
    FLOW = 3
    """A packet of message delivery, or a ping."""
    DISCONNECT = 4


class PlainConnection(IntEnum):
    """A plain connection: the columns of a grid, a row each."""

    FIRST = 0
    """Its CONNECT; CONNACK is the packet behind it."""
    STOP = 1
    """Behind its last packet."""
    IS_LEFT = 2
    """Whether that is a DISCONNECT."""
    ENDED = 3
    """The stream whose end was seen first; -1 if none was."""
    SENT = 4
    RECEIVED = 5
    """Messages of the client, and to it, that were on their way at the end."""


class PlainPackets(NamedTuple):
    """Packets client by client in the order of time."""

    grid: Annotated[Grid, array("int32", 2)]
    """Columns of `Packet`."""
    contents: Annotated[Hashes, array("int64", 2)]
    steps: Int8s
    """Values of `Step`."""
    key: Int64s
    stream: Int64s
    reached_ns: Int64s
    reached_frame: Int64s
    kept_row: Int64s
    """The index of a packet in `receive_maximum`; CONNECT and CONNACK have one."""
    receive_maximum: Int64s
    """The Receive Maximum that a packet sets."""


class Streams(NamedTuple):
    """What is known of streams, by number."""

    connection: Int64s
    """A number that the two streams of a connection share."""
    ended_ns: Int64s
    """-1 if no end was seen."""
    ended_frame: Int64s
    is_older: Int64s
    """Whether its server has connections that are older than the capture."""
    seen: Annotated[npt.NDArray[np.int64], "int64"]
    """By connection, whether packets of it were met; 0 at first."""


_FREE_SENDER, _FREE_RECEIVER = (int(states[0]) for states in FIRST_STATES[True])
_CONNECT, _CONNACK = int(Step.CONNECT), int(Step.CONNACK)
_FLOW, _DISCONNECT = int(Step.FLOW), int(Step.DISCONNECT)


@piece
def _end_of(packets: Any, streams: Any, at: int, stop: int) -> int:
    """Return where the plain connection ends that begins at a packet; -1 if it is none."""
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


@piece
def _is_behind(packets: Any, streams: Any, ended: int, packet: int) -> bool:
    """Return whether the end of a stream comes behind a packet."""
    ns, frame = streams.ended_ns[ended], streams.ended_frame[ended]
    if ns != packets.reached_ns[packet]:
        return bool(ns > packets.reached_ns[packet])
    if frame != packets.reached_frame[packet]:
        return bool(frame > packets.reached_frame[packet])
    return bool(ended >= packets.stream[packet])


@piece
def _first_end(streams: Any, one: int, other: int) -> int:
    """Return which of two streams ended first; -1 if neither did."""
    if streams.ended_ns[one] == NONE:
        return other if streams.ended_ns[other] != NONE else NONE
    if streams.ended_ns[other] == NONE:
        return one
    if streams.ended_ns[one] != streams.ended_ns[other]:
        return one if streams.ended_ns[one] < streams.ended_ns[other] else other
    return one if streams.ended_frame[one] <= streams.ended_frame[other] else other


@piece
def _may_end(packets: Any, streams: Any, ended: int, is_left: bool, end: int, stop: int) -> bool:
    """Return whether a connection was over behind its packets, and before the next began."""
    if ended != NONE and not _is_behind(packets, streams, ended, end - 1):
        return False
    if end == stop or is_left:
        return True
    return ended != NONE and not _is_behind(packets, streams, ended, end)


@piece
def _begin(
    packets: Any, at: int, to_broker: Any, to_client: Any, connection: Any, total: Ints
) -> None:
    maxima, kept_row = packets.receive_maximum, packets.kept_row
    for place in range(2):
        to_client.limits[place] = maxima[kept_row[at]]
        to_broker.limits[place] = maxima[kept_row[at + 1]]
    for place in range(len(connection.fields)):
        connection.fields[place] = 0
    connection.fields[ConnectionField.UNREAD_FIRST] = NONE
    connection.fields[ConnectionField.UNREAD_LAST] = NONE
    total[Total.TRACKED] = total[Total.MAY_BE_LIVE] = total[Total.BREACHES] = 0
    total[Total.ANSWERED] = total[Total.CONFIRMS_FROM] = NONE


@piece
def _leave(grid: Grid, first: int, stop: int, flow: Any) -> int:
    """Forget the messages of a direction; return how many were on their way."""
    in_flight = 0
    for packet in range(first, stop):
        identifier = grid[packet, Packet.ID]
        if IN_FLIGHT_STATES[0, flow.states[identifier]]:
            in_flight += 1
        flow.states[identifier] = _FREE_SENDER
        flow.states[len(flow.tracked) + identifier] = _FREE_RECEIVER
        flow.tracked[identifier] = NONE
    return in_flight


@piece
def _abandon(grid: Grid, first: int, stop: int, flow: Any, records: Grid) -> None:
    """Note that a new session takes the place of the one that messages were delivered in."""
    for packet in range(first, stop):
        record = flow.tracked[grid[packet, Packet.ID]]
        if record != NONE:
            records[record, Record.STATUS] |= Status.ABANDONED


@piece
def _dropped(total: Ints) -> int:
    return int(
        total[Total.DROPPED_FLOWS] + total[Total.DROPPED_UNREAD] + total[Total.DROPPED_REQUESTS]
    )


@piece
def _accept_all(connection: Any, records: Grid, answer: int) -> None:
    """Note that the broker has read all that was sent: it reads a stream in order."""
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
    records: Grid,
    total: Ints,
    breaches: Grid,
    found: Any,
    is_plain: Any,
) -> int:
    """Track the packets of plain clients; return how many connections those have.

    Parameters
    ----------
    to_broker, to_client, connection
        For the messages of one connection after the other: nothing is in them before or after.
    records, total, breaches
        As of `track_run`; there the number of a client is that of its connection.
    found
        Columns of `PlainConnection`, filled.
    is_plain
        By packet whether its client is plain; false at first.
    """
    grid, key = packets.grid, packets.key
    count = start = 0
    while start < len(key):
        stop = start + 1
        while stop < len(key) and key[stop] == key[start]:
            stop += 1
        first_record, first_found = total[Total.RECORDS], count
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
            if end < stop:
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
            total[Total.RECORDS], count = first_record, first_found
            total[Total.DROPPED_FLOWS] = total[Total.DROPPED_UNREAD] = 0
            total[Total.DROPPED_REQUESTS] = 0
        start = stop
    return count
