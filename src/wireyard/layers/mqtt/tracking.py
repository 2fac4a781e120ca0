"""The first stage: tracks the packets of clients and their brokers, all of them in one call.

Here are its arrays, and its kernel, which follows each connection packet by packet over integer
columns: the events of each key, one after the other. `tracked` has its results.

Rules of this file:

1. The ends of streams that come before a packet are events before it.
2. What opens a connection, and then the packets that waited for that, are the next events, before
   the packet that comes next.
3. The kernel returns if the buffer of violations may become full; the next call continues there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from wireyard.accelerate import inlined, kernel
from wireyard.arena import room
from wireyard.arrays import Grid, Ints
from wireyard.formats.mqtt import layout
from wireyard.layers.mqtt.connection import WILL_EVENTS
from wireyard.layers.mqtt.grids import (
    ALWAYS,
    NO_TIME,
    NONE,
    Breach,
    Client,
    Connection,
    Count,
    Direction,
    EndedBy,
    Flag,
    Flow,
    Key,
    LostSpan,
    Moment,
    Name,
    Packet,
    Rare,
    Record,
    Session,
    Stream,
    Subscription,
    Tracking,
    Will,
)
from wireyard.layers.mqtt.kernels.connections import (
    add_stream,
    keep_session,
    lose_until,
    observe,
    open_session,
    take_effect,
)
from wireyard.layers.mqtt.kernels.messages import unsure_before
from wireyard.layers.mqtt.kernels.sessions import (
    close,
    end_flows,
    finish_session,
    may_have_changed,
    untrace,
)
from wireyard.layers.mqtt.kernels.slots import Owner, clear, slot_of
from wireyard.layers.mqtt.packets import LARGE_BYTES, TRACKED, KnownStream, Packets
from wireyard.layers.mqtt.rare import RarePackets
from wireyard.layers.mqtt.tracked import Tracked, results_of

_BREACHES: Final = 1 << 12
_MOST_BREACHES: Final = 8
"""Violations that one packet may add, at most."""
_DISCONNECTED, _DROPPED = map(WILL_EVENTS.index, ("disconnected", "dropped"))


def track_clients(packets: Packets) -> Tracked:
    """Track the packets of clients."""
    is_rare = ~np.isin(packets.kept["packet_type"].fill_null(NONE).to_numpy(), TRACKED)
    rare = RarePackets(packets.kept, np.flatnonzero(is_rare))
    arrays = _arrays(packets, rare)
    breaches = []
    is_done = False
    while not is_done:
        arrays.counts[Count.BREACHES] = 0
        is_done = _track(arrays)
        breaches.append(arrays.breaches[: arrays.counts[Count.BREACHES]].copy())
    return results_of(packets, rare, arrays, np.concatenate(breaches))


def _arrays(packets: Packets, rare: RarePackets) -> Tracking:
    """Return the arrays of tracking; those of state and results are undefined."""
    streams, first, connections = _streams(packets)
    grid = packets.grid
    opens = np.isin(grid[:, Packet.KIND], (layout.CONNECT, layout.CONNACK)).astype(np.int64)
    opens_of_stream = np.zeros(len(packets), np.int64)
    opens_of_stream[first] = 1
    keys, ends = _keys(packets, streams)
    starts = keys[:, Key.FIRST]

    def most(counts: Any) -> int:
        """Return the most things of a key, if packets have these."""
        return int(np.add.reduceat(counts, starts).max()) if len(starts) else 0

    flows = (grid[:, Packet.ID] > 0).astype(np.int64)
    needed = flows + (grid[:, Packet.ALIAS] != NONE) + opens_of_stream
    is_rare = packets.kept_row != NONE
    is_rare[is_rare] = rare.row[packets.kept_row[is_rare]] != NONE
    rows = rare.row[packets.kept_row[is_rare]]
    filters = np.where(rare.kind[rows] == layout.SUBACK, 0, rare.grid[rows, Rare.COUNT])
    needed[is_rare] += 2 + 2 * np.maximum(filters, 0)
    if len(starts):
        keys[:, Key.SLOTS] = 1 << np.frexp(2.0 * np.add.reduceat(needed, starts))[1].astype(int)
    slots = int(keys[:, Key.SLOTS].max(initial=1))
    sessions = most(2 * opens + opens_of_stream)
    records = int((grid[:, Packet.KIND] == layout.PUBLISH).sum())
    other_bytes = int((grid[:, Packet.KIND] == 0).sum())
    opened = int(opens.sum())
    counts = np.zeros(len(Count), np.int64)
    counts[Count.PACKET] = NONE
    counts[Count.CLIENT_IDS] = len(rare.client_ids)
    counts[Count.EMPTY_ID] = rare.client_ids.index("").as_py()
    # -1 is a missing client id, or topic.
    counts[Count.EMPTY_TOPIC] = packets.topics.index("").as_py()
    for column in (Count.EMPTY_ID, Count.EMPTY_TOPIC):
        if counts[column] < 0:
            counts[column] = NONE - 1
    of_connections = _rows(connections, Connection)
    of_connections[:, Connection.FIRST] = NONE
    return Tracking(
        packets=grid,
        contents=packets.contents,
        length=packets.length,
        version=packets.version,
        stream=packets.stream,
        ns=packets.ns,
        reached_ns=packets.reached_ns,
        reached_frame=packets.reached_frame,
        kept_row=packets.kept_row,
        rare_row=rare.row,
        rare=rare.grid,
        filters=rare.filters,
        codes=rare.codes,
        streams=streams,
        keys=keys,
        ends=ends,
        slot_keys=np.empty(slots, np.int64),
        slot_values=np.empty(slots, np.int64),
        link=np.empty(len(packets), np.int32),
        flows=_rows(most(flows), Flow),
        directions=_rows(2 * sessions, Direction),
        sessions=_rows(sessions, Session),
        connections=of_connections,
        clients=_rows(connections + opened, Client),
        subscriptions=_rows(len(rare.filters), Subscription),
        names=_rows(len(rare.filters), Name),
        wills=_rows(opened, Will),
        moments=_rows(2 * connections, Moment),
        lost=_rows(other_bytes + connections, LostSpan),
        records=room((records, len(Record)), np.int32, LARGE_BYTES),
        breaches=_rows(_BREACHES, Breach),
        counts=counts,
    )


def _rows(count: int, columns: type) -> Any:
    """Return an undefined grid; memory that is not used costs nothing."""
    return np.empty((count, len(columns)), np.int64)  # type: ignore[arg-type]


def _streams(packets: Packets) -> tuple[Grid, Ints, int]:
    """Return the columns of streams, the first packet of each, and the number of connections."""
    first, last = np.full((2, len(packets.streams)), NONE)
    rows = np.arange(len(packets))
    first[packets.stream[::-1]], last[packets.stream] = rows[::-1], rows
    used = np.flatnonzero(last != NONE)
    grid = np.empty((len(packets.streams), len(Stream)), np.int64)
    known = [packets.streams[number] for number in used.tolist()]
    connections, count = _connections(known)
    is_ended = np.array([one.ended is not None for one in known], np.bool_)
    for column, values in (
        (Stream.CONNECTION, connections),
        (Stream.FROM_CLIENT, [one.from_client for one in known]),
        (Stream.IS_ALONE, [one.alone for one in known]),
        (Stream.IS_OLDER, [one.older for one in known]),
        (Stream.IS_FOLLOWED, [one.followed for one in known]),
        (Stream.BEGUN, [NONE if one.begun is None else one.begun for one in known]),
    ):
        grid[used, column] = values
    ends_ns = [NO_TIME if one.until_ns is None else one.until_ns for one in known]
    grid[used, Stream.CAPTURE_ENDS_NS] = ends_ns
    grid[used, Stream.FIRST] = NONE
    grid[used, Stream.ENDED_NS] = NO_TIME
    for number in np.flatnonzero(is_ended).tolist():
        row, at = used[number], last[used[number]]
        arrived = int(packets.reached_ns[at]), int(packets.reached_frame[at])
        end = known[number].ended_ns or 0, known[number].ended_frame or 0
        grid[row, [Stream.ENDED_NS, Stream.ENDED_FRAME]] = max(end, arrived)
    return grid, first[used], count


def _connections(streams: Sequence[KnownStream]) -> tuple[list[int], int]:
    """Return the number of the connection of each stream, and the number of connections."""
    numbers: dict[str, int] = {}
    found = []
    for stream in streams:
        name = stream.name
        if not stream.from_client and ">" in name:
            ends, mark, ordinal = name.partition("#")
            src, _, dst = ends.partition(">")
            name = f"{dst}>{src}{mark}{ordinal}"
        found.append(numbers.setdefault(f"{stream.source}\0{name}", len(numbers)))
    return found, len(numbers)


def _keys(packets: Packets, streams: Grid) -> tuple[Grid, Ints]:
    """Return the columns of keys, and the streams that end, in the order of their ends by key."""
    key = packets.key
    starts = np.flatnonzero(np.diff(key, prepend=NONE))
    grid = np.zeros((len(starts), len(Key)), np.int64)
    grid[:, Key.FIRST], grid[:, Key.STOP] = starts, np.append(starts[1:], len(key))[: len(starts)]
    key_of = np.full(len(streams), NONE)
    key_of[packets.stream] = key
    used = np.flatnonzero(key_of != NONE)
    ends = used[streams[used, Stream.ENDED_NS] != NO_TIME]
    times = streams[ends, Stream.ENDED_FRAME], streams[ends, Stream.ENDED_NS]
    ends = ends[np.lexsort((ends, *times, key_of[ends]))]
    of_ends = key_of[ends]
    grid[:, Key.FIRST_END] = np.searchsorted(of_ends, key[starts], "left")
    grid[:, Key.STOP_END] = np.searchsorted(of_ends, key[starts], "right")
    return grid, ends


# --- the kernel ------------------------------------------------------------------------------


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
    if is_shown and unsure_before(t, c) != ALWAYS:
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
            if may_have_changed(t, session):
                untrace(t, session)
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


@kernel
def _track(t: Tracking) -> bool:
    """Track packets, from where the last call has ended; return whether all are tracked.

    If not, `t.breaches` is full: the next call needs an empty one.
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
