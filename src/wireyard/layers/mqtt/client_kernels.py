"""The kernel that tracks MQTT clients: the events of each key, one after the other.

Rules of this file:

1. The ends of streams that come before a packet are events before it.
2. What opens a connection, and then the packets that waited for that, are the next events, before
   the packet that comes next.
3. The kernel returns if the buffer of violations may become full; the next call continues there.
"""

from __future__ import annotations

from typing import Any, Final

from wireyard.accelerate import BOOL, inlined, kernel
from wireyard.accelerate import record as record_type
from wireyard.layers.mqtt.connection import WILL_EVENTS
from wireyard.layers.mqtt.connection_kernels import (
    add_stream,
    keep_session,
    lose_until,
    observe,
    open_session,
    take_effect,
)
from wireyard.layers.mqtt.grids import (
    ALWAYS,
    NONE,
    Connection,
    Count,
    EndedBy,
    Flag,
    Key,
    Packet,
    Session,
    Stream,
    Tracking,
)
from wireyard.layers.mqtt.session_kernels import close, end_flows, finish_session
from wireyard.layers.mqtt.slots import Owner, clear, slot_of

__all__ = ["track"]

_MOST_BREACHES: Final = 8
"""Violations that one packet may add, at most."""
_DISCONNECTED, _DROPPED = map(WILL_EVENTS.index, ("disconnected", "dropped"))


@inlined
def _is_before(t: Any, stream: int, packet: int) -> bool:
    """Return whether a stream ended before a packet."""
    ns, frame = t.streams[stream, Stream.ENDED_NS], t.streams[stream, Stream.ENDED_FRAME]
    if ns != t.reached_ns[packet]:
        return bool(ns < t.reached_ns[packet])
    if frame != t.reached_frame[packet]:
        return bool(frame < t.reached_frame[packet])
    return bool(stream < t.stream[packet])


@inlined
def _end_stream(t: Any, stream: int) -> None:
    """End a stream by its FIN or RST; the first end of a stream ends the connection."""
    c = t.streams[stream, Stream.CONNECTION]
    row = t.connections[c]
    if row[Connection.SESSION] == NONE:
        keep_session(t, c)
    session = row[Connection.SESSION]
    if t.sessions[session, Session.CONNECTION] != c:
        return
    # If no packet of the client was captured, its DISCONNECT may have been before.
    is_shown = row[Connection.CONNECT] != NONE or row[Connection.HAS_CLIENT]
    at = len(t.packets) + stream
    if is_shown and not (row[Connection.LOST_LAST_UP] or row[Connection.LOST_LAST_DOWN]):
        close(t, session, at, EndedBy.DROPPED, _DROPPED, at)
    else:
        close(t, session, at, EndedBy.UNSEEN, _DISCONNECTED, at)


@inlined
def _end_streams(t: Any, key: Any, packet: int) -> None:
    """End the streams of a key that end before a packet; all of them before its last one."""
    counts = t.counts
    while counts[Count.END] < key[Key.STOP_END]:
        stream = t.ends[counts[Count.END]]
        if packet < key[Key.STOP] and not _is_before(t, stream, packet):
            return
        counts[Count.END] += 1
        first = t.streams[stream, Stream.FIRST]
        if first != NONE and first != packet:
            _end_stream(t, stream)


@inlined
def _finish(t: Any) -> None:
    """End everything that is open after the packets of a key."""
    c = t.counts[Count.CONNECTIONS]
    while c != NONE:
        row = t.connections[c]
        if row[Connection.SESSION] == NONE:
            keep_session(t, c)
        session = row[Connection.SESSION]
        has_session = t.sessions[session, Session.CONNECTION] == c
        if row[Connection.ENDED_BY] == EndedBy.OPEN and has_session:
            last = row[Connection.OPENED]
            if row[Connection.LAST] != NONE:
                last = row[Connection.LAST]
            begun = t.streams[t.stream[row[Connection.FIRST]], Stream.BEGUN]
            row[Connection.UNTIL] = last if begun == NONE else NONE
            end_flows(t, session, c)
        lose_until(t, c, _closed_ns(t, row[Connection.CLOSED]))
        kept = t.slot_values[slot_of(t, Owner.NAME, 0, row[Connection.NAME])]
        if kept != NONE:
            row[Connection.SERVED_AS] = t.sessions[kept, Session.NAMES]
        c = row[Connection.NEXT]
    for session in range(t.counts[Count.SESSIONS]):
        finish_session(t, session)


@inlined
def _closed_ns(t: Any, moment: int) -> int:
    """Return the time of the end of a connection."""
    if moment == NONE:
        return ALWAYS
    if moment < len(t.packets):
        return int(t.reached_ns[moment])
    return int(t.streams[moment - len(t.packets), Stream.ENDED_NS])


@inlined
def _begin_key(t: Any, key: Any) -> None:
    counts = t.counts
    counts[Count.PACKET], counts[Count.END] = key[Key.FIRST], key[Key.FIRST_END]
    counts[Count.OPENING] = counts[Count.REPLAY] = counts[Count.CONNECTIONS] = NONE
    counts[Count.HAS_OLDER] = counts[Count.FLOWS] = counts[Count.SESSIONS] = 0
    clear(t)


@kernel(BOOL(record_type(Tracking)))
def track(t: Tracking) -> bool:
    """Track packets, from where the last call has ended.

    Returns
    -------
    is_done
        Whether all packets are tracked. If not, `t.breaches` is full: the next call needs an empty
        one.
    """
    counts = t.counts
    while counts[Count.KEY] < len(t.keys):
        key = t.keys[counts[Count.KEY]]
        if counts[Count.PACKET] == NONE:
            _begin_key(t, key)
        while True:
            if counts[Count.BREACHES] + _MOST_BREACHES > len(t.breaches):
                return False
            packet = counts[Count.OPENING]
            if packet != NONE:
                counts[Count.OPENING] = NONE
                open_session(t, t.streams[t.stream[packet], Stream.CONNECTION], packet)
                continue
            is_replay = counts[Count.REPLAY] != NONE
            packet = counts[Count.REPLAY] if is_replay else counts[Count.PACKET]
            if not is_replay:
                if packet < key[Key.STOP] and t.streams[t.stream[packet], Stream.FIRST] == NONE:
                    from_client = t.packets[packet, Packet.FLAGS] & Flag.FROM_CLIENT != 0
                    add_stream(t, packet, from_client)
                    continue
                _end_streams(t, key, packet)
                if packet == key[Key.STOP]:
                    break
            c = t.streams[t.stream[packet], Stream.CONNECTION]
            from_client = t.packets[packet, Packet.FLAGS] & Flag.FROM_CLIENT != 0
            takes = is_replay
            if is_replay:
                counts[Count.REPLAY] = t.link[packet]
            else:
                counts[Count.PACKET] = packet + 1
                takes = observe(t, c, packet, from_client)
            if takes:
                take_effect(t, c, packet, from_client)
        _finish(t)
        key[Key.HAS_OLDER] = counts[Count.HAS_OLDER]
        counts[Count.KEY] += 1
        counts[Count.PACKET] = NONE
    return True
