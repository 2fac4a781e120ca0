"""Lookups and queues in the grids of tracking, and a hash table for what has no row of its own.

The table has a value for each pair of an owner and a number, by kind of owner. It is that of the
packets of one key, whose `Key.SLOTS` is its size: a power of two, at least twice the pairs.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, Final

from wireyard.accelerate import inlined
from wireyard.layers.mqtt.grids import NONE, Client, Connection, Count, Key


class Owner(IntEnum):
    """The kinds of owners, and what a pair has as its value."""

    FLOW = 0
    """A direction, and a packet identifier: its flow."""
    SUBSCRIBE = 1
    UNSUBSCRIBE = 2
    """A connection, and the packet identifier of an unanswered request: its packet."""
    ALIASES_UP = 3
    ALIASES_DOWN = 4
    """A connection, and a topic alias: its topic."""
    NAME = 5
    """No owner, and a name: the session of the name."""
    FILTER = 6
    """A session, and a topic filter: its subscription."""
    CLIENT_NAME = 7
    GROUP_NAME = 8
    """A session, and a name or the topic filter of a group: its row of `Name`."""


_OWNERS: Final = 16
_FIRST_FACTOR: Final = 0x9E3779B1
_SECOND_FACTOR: Final = 0x85EBCA6B


@inlined
def clear(t: Any) -> None:
    """Make the table empty, for the current key."""
    for slot in range(t.keys[t.counts[Count.KEY], Key.SLOTS]):
        t.slot_keys[slot] = NONE


@inlined
def slot_of(t: Any, kind: int, owner: int, number: int) -> int:
    """Return the index of the value of a pair; a new pair has the value -1."""
    last = t.keys[t.counts[Count.KEY], Key.SLOTS] - 1
    full = owner * _OWNERS + kind
    mixed = (full * _FIRST_FACTOR) ^ (number * _SECOND_FACTOR)
    slot = (mixed ^ (mixed >> 17)) & last
    key = full << 32 | number
    while t.slot_keys[slot] != key:
        if t.slot_keys[slot] == NONE:
            t.slot_keys[slot] = key
            t.slot_values[slot] = NONE
            break
        slot = (slot + 1) & last
    return int(slot)


@inlined
def rare_of(t: Any, packet: int) -> int:
    """Return the row of `Rare` of a packet."""
    return int(t.rare_row[t.kept_row[packet]])


@inlined
def client_of(t: Any, c: int) -> int:
    """Return the number of the client of a connection, as it is named now."""
    connections = t.connections
    client = connections[c, Connection.CLIENT]
    if client == NONE:
        client = t.counts[Count.CLIENTS]
        t.counts[Count.CLIENTS] = client + 1
        t.clients[client, Client.CONNECTION] = c
        t.clients[client, Client.NAME] = connections[c, Connection.NAME]
        t.clients[client, Client.CLIENT_ID] = connections[c, Connection.CLIENT_ID]
        connections[c, Connection.CLIENT] = client
    return int(client)


@inlined
def queue(t: Any, c: int, first: int, last: int, packet: int) -> None:
    """Add a packet to those of a connection that wait, given the columns of both ends."""
    row = t.connections[c]
    t.link[packet] = NONE
    if row[first] == NONE:
        row[first] = packet
    else:
        t.link[row[last]] = packet
    row[last] = packet
