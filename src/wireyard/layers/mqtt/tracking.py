"""The first stage: tracks the packets of clients and their brokers, all of them in one call.

The kernel (`client_kernels`) follows each connection packet by packet over integer columns.
Here its arrays are made; `tracked` has its results.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from wireyard.arena import room
from wireyard.arrays import Grid, Ints
from wireyard.formats.mqtt import layout
from wireyard.layers.mqtt.client_kernels import track
from wireyard.layers.mqtt.grids import (
    NO_TIME,
    NONE,
    Breach,
    Client,
    Connection,
    Count,
    Direction,
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
from wireyard.layers.mqtt.packets import LARGE_BYTES, TRACKED, KnownStream, Packets
from wireyard.layers.mqtt.rare import RarePackets
from wireyard.layers.mqtt.tracked import Tracked, results_of

__all__ = ["track_clients"]

_BREACHES: Final = 1 << 12


def track_clients(packets: Packets) -> Tracked:
    """Track the packets of clients."""
    is_rare = ~np.isin(packets.kept["packet_type"].fill_null(NONE).to_numpy(), TRACKED)
    rare = RarePackets(packets.kept, np.flatnonzero(is_rare))
    arrays = _arrays(packets, rare)
    breaches = []
    is_done = False
    while not is_done:
        arrays.counts[Count.BREACHES] = 0
        is_done = track(arrays)
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
    used, first = np.unique(packets.stream, return_index=True)
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
    ended = [known[number] for number in np.flatnonzero(is_ended).tolist()]
    grid[used[is_ended], Stream.ENDED_NS] = [one.ended_ns for one in ended]
    grid[used[is_ended], Stream.ENDED_FRAME] = [one.ended_frame for one in ended]
    return grid, first, count


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
    used = np.unique(packets.stream)
    key_of = np.zeros(len(streams), np.int64)
    key_of[packets.stream] = key
    ends = used[streams[used, Stream.ENDED_NS] != NO_TIME]
    times = streams[ends, Stream.ENDED_FRAME], streams[ends, Stream.ENDED_NS]
    ends = ends[np.lexsort((ends, *times, key_of[ends]))]
    of_ends = key_of[ends]
    grid[:, Key.FIRST_END] = np.searchsorted(of_ends, key[starts], "left")
    grid[:, Key.STOP_END] = np.searchsorted(of_ends, key[starts], "right")
    return grid, ends
