"""Tracks clients whose connections are all plain, by columns: one call for many short connections.

`plain_kernels` defines plain connections. The results are those of an `Observer`: a row of the
table `sessions` for each connection, and the messages.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from wireyard.arrays import Bools, Grid32, Ints
from wireyard.formats.mqtt import layout
from wireyard.layers.endpoints import stream_endpoints
from wireyard.layers.mqtt.packets import DELIVERY_TYPES, NO_TIME, Packets
from wireyard.layers.mqtt.plain_kernels import (
    PlainConnection,
    PlainPackets,
    Step,
    Streams,
    track_plain,
)
from wireyard.layers.mqtt.qos import MAX_IN_FLIGHT
from wireyard.layers.mqtt.qos_kernels import (
    FIRST_STATES,
    NONE,
    Breach,
    ConnectionField,
    ConnectionState,
    Direction,
    Flag,
    Packet,
    Total,
)
from wireyard.layers.mqtt.records import Client
from wireyard.layers.mqtt.rows import PROTOCOL
from wireyard.layers.mqtt.session import MAX_TRACKED
from wireyard.layers.mqtt.subscriptions import MAX_ASKED, Last
from wireyard.layers.tables import as_fact_table, fact_table

__all__ = ["Plain", "find_plain"]

_BREACHES: Final = 8
_EXCLUDING: Final = pa.array(
    [
        "assigned_client_identifier",
        "maximum_packet_size",
        "server_keep_alive",
        "session_expiry_interval",
    ]
)
"""Properties of CONNECT, CONNACK and DISCONNECT that no plain connection has."""
_WITH_SESSION_PRESENT: Final = 4
"""The first version whose CONNACK has Session Present."""


@dataclass(slots=True, eq=False)
class Plain:
    """The results for plain clients, without their messages."""

    is_plain: Bools
    """By packet: whether its client is plain."""
    clients: list[Client]
    """By number of the connection: its client."""
    users: dict[Client, str]
    """User names of the clients that logged in with one."""
    sessions: pa.Table
    last: list[Last]
    """The last packet of each broker."""


def find_plain(packets: Packets, connections: Ints, records: Grid32, total: Ints) -> Plain:
    """Find the plain clients, and track their packets.

    Parameters
    ----------
    connections
        The number of the connection of each stream.
    records, total
        As for `qos_kernels.track_run`: the messages are added to them.
    """
    steps = _steps(packets)
    grid = np.empty((int((steps == Step.CONNECT).sum()), len(PlainConnection)), np.int64)
    is_plain = np.zeros(len(packets), np.bool_)
    identifiers = int(packets.grid[:, Packet.ID].max(initial=0)) + 1
    total[Total.MOST_TRACKED] = MAX_TRACKED
    streams = _streams(packets, connections)
    count = track_plain(
        PlainPackets(
            packets.grid,
            packets.contents,
            steps,
            packets.key,
            packets.stream,
            packets.reached_ns,
            packets.reached_frame,
            packets.kept_row,
            _receive_maxima(packets.kept["properties"]),
        ),
        streams,
        _direction(identifiers),
        _direction(identifiers),
        ConnectionState(
            np.zeros(len(ConnectionField), np.int64),
            np.empty(0, np.int32),
            np.empty(MAX_ASKED, np.int32),
        ),
        records,
        total,
        np.empty((_BREACHES, len(Breach)), np.int32),
        grid,
        is_plain,
    )
    return _results(packets, streams, grid[:count], is_plain)


def _direction(identifiers: int) -> Direction:
    states = np.repeat(FIRST_STATES[True], identifiers, axis=1).reshape(-1)
    return Direction(states, np.full(identifiers, NONE, np.int32), np.empty(2, np.int64))


def _streams(packets: Packets, connections: Ints) -> Streams:
    streams = packets.streams
    return Streams(
        connections,
        np.array([NONE if each.ended is None else each.ended_ns for each in streams], np.int64),
        np.array([NONE if each.ended is None else each.ended_frame for each in streams], np.int64),
        np.array([each.older for each in streams], np.int64),
        np.zeros(len(streams), np.int64),
    )


def _steps(packets: Packets) -> Any:
    """Return the `Step` of each packet."""
    grid, kept = packets.grid, packets.kept
    kind, flags = grid[:, Packet.KIND], grid[:, Packet.FLAGS]
    from_client = flags & Flag.FROM_CLIENT != 0
    flows = np.isin(kind, DELIVERY_TYPES) & (grid[:, Packet.ALIAS] == NONE)
    flows |= packets.pings
    steps = np.where(flows, Step.FLOW, Step.OTHER).astype(np.int8)
    plain = np.ones(kept.num_rows, np.bool_)
    if kept["properties"].null_count < kept.num_rows:
        properties = kept["properties"].combine_chunks()
        names = pc.struct_field(pc.list_flatten(properties), 0)
        excluding = pc.is_in(names, _EXCLUDING).to_numpy(zero_copy_only=False)
        plain[pc.list_parent_indices(properties).to_numpy()[excluding]] = False
    begins = plain & _is_true(kept["clean_start"]) & ~kept["will_topic"].is_valid().to_numpy()
    begins &= _is_true(pc.greater(pc.binary_length(kept["client_id"].cast(pa.string())), 0))
    accepts = plain & ~_is_true(kept["session_present"])
    for step, code, may_be, is_side in (
        (Step.CONNECT, layout.CONNECT, begins, from_client & (packets.version != 0)),
        (Step.CONNACK, layout.CONNACK, accepts, ~from_client & (grid[:, Packet.CODE] == 0)),
        (Step.DISCONNECT, layout.DISCONNECT, plain, from_client),
    ):
        numbers = np.flatnonzero((kind == code) & is_side)
        steps[numbers[may_be[packets.kept_row[numbers]]]] = step
    steps[flags & Flag.MALFORMED != 0] = Step.OTHER
    return steps


def _receive_maxima(properties: pa.ChunkedArray) -> Ints:
    """Return the Receive Maximum in each row of properties; `MAX_IN_FLIGHT` if it has none."""
    maxima = np.full(len(properties), MAX_IN_FLIGHT, np.int64)
    if properties.null_count < len(properties):
        whole = properties.combine_chunks()
        names, values = (pc.struct_field(pc.list_flatten(whole), index) for index in (0, 1))
        is_maximum = pc.equal(names, "receive_maximum")
        rows = pc.list_parent_indices(whole).filter(is_maximum).to_numpy()
        maxima[rows] = values.filter(is_maximum).cast(pa.int64()).to_numpy()
    return maxima


def _is_true(column: pa.ChunkedArray) -> Bools:
    values: Bools = column.fill_null(False).to_numpy()
    return values


# --- results --------------------------------------------------------------------------------


def _results(packets: Packets, streams: Streams, grid: Any, is_plain: Bools) -> Plain:
    """Return the results, given the columns of `PlainConnection`."""
    if not len(grid):
        return Plain(is_plain, [], {}, fact_table("sessions", ()), [])
    first = grid[:, PlainConnection.FIRST]
    connects = packets.kept.take(pa.array(packets.kept_row[first]))
    names, usernames = connects["client_id"].to_pylist(), connects["username"].to_pylist()
    clients = []
    for number, name in zip(packets.stream[first].tolist(), names, strict=True):
        stream = packets.streams[number]
        endpoint, server = stream_endpoints(stream.name, *stream.addresses)
        clients.append(Client(stream.source, server, name, endpoint, name))
    pairs = zip(clients, usernames, strict=True)
    users = {client: user for client, user in pairs if user is not None}
    return Plain(
        is_plain,
        clients,
        users,
        _sessions(packets, streams, grid, connects, clients),
        _last(packets, streams, grid, clients),
    )


def _sessions(
    packets: Packets, streams: Streams, grid: Any, connects: pa.Table, clients: list[Client]
) -> pa.Table:
    """Return plain connections as rows of the table `sessions`, as `session_row` does."""
    first, stop = grid[:, PlainConnection.FIRST], grid[:, PlainConnection.STOP]
    answers = packets.kept.take(pa.array(packets.kept_row[first + 1]))
    version = packets.version[first]
    present = answers["session_present"].to_numpy(zero_copy_only=False)
    ended, is_left = grid[:, PlainConnection.ENDED], grid[:, PlainConnection.IS_LEFT] == 1
    is_over = is_left | (ended != NONE)
    bytes_before = np.concatenate(([0], np.cumsum(packets.length)))
    closed = {
        name: np.where(is_left, of_packets[stop - 1], of_streams[ended])
        for name, of_packets, of_streams in (
            ("ns", packets.ns, streams.ended_ns),
            ("frame", packets.frame, streams.ended_frame),
        )
    }
    has_closed = is_over & (closed["ns"] != NO_TIME)
    has_opened = packets.ns[first] != NO_TIME
    of_protocol = pa.array(np.zeros(len(grid), np.int32))
    ended_by = np.where(is_left, 0, np.where(ended != NONE, 1, 2))
    return as_fact_table(
        "sessions",
        {
            "protocol": pa.DictionaryArray.from_arrays(of_protocol, [PROTOCOL]).cast(pa.string()),
            "client": pa.array([client.endpoint for client in clients], pa.string()),
            "server": pa.array([client.server for client in clients], pa.string()),
            "client_id": connects["client_id"].cast(pa.string()),
            "user": connects["username"].cast(pa.string()),
            "opened_ns": pa.array(packets.ns[first], mask=~has_opened),
            "closed_ns": pa.array(closed["ns"], mask=~has_closed),
            "status": np.zeros(len(grid), np.int64),
            "ended_by": pa.array(np.array(["client", "dropped", "open"])[ended_by]),
            "packets": stop - first,
            "bytes": bytes_before[stop] - bytes_before[first],
            "version": version,
            "resumed": pa.array(present, pa.bool_(), mask=version < _WITH_SESSION_PRESENT),
            "keep_alive": connects["keep_alive"],
            "in_flight_sent": grid[:, PlainConnection.SENT],
            "in_flight_received": grid[:, PlainConnection.RECEIVED],
            "opened_frame": pa.array(packets.frame[first], mask=~has_opened),
            "closed_frame": pa.array(closed["frame"], mask=~has_closed),
            "source": connects["source"].cast(pa.string()),
            "stream": connects["stream"].cast(pa.string()),
            "offset": packets.offset[first],
        },
    )


def _last(packets: Packets, streams: Streams, grid: Any, clients: list[Client]) -> list[Last]:
    """Return the last packets on the connections of each broker."""
    last, first = grid[:, PlainConnection.STOP] - 1, grid[:, PlainConnection.FIRST]
    columns = (packets.offset, packets.stream, packets.reached_frame, packets.reached_ns)
    order = np.lexsort([column[last] for column in columns]).tolist()
    by_broker = {clients[number][:2]: number for number in order}
    older = {
        clients[number][:2] for number in order if streams.is_older[packets.stream[first[number]]]
    }
    return [
        Last(broker, packets.position(int(last[number])), broker in older)
        for broker, number in by_broker.items()
    ]
