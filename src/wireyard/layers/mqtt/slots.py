"""A hash table in two arrays: a value for each pair of an owner and a number, by kind of owner.

It holds the packets of one key: `clear` makes it empty and gives it its size, a power of two that
is at least twice the number of pairs.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

from wireyard.accelerate import inlined
from wireyard.layers.states import NONE

__all__ = ["Owner", "clear", "slot_of"]


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


_OWNERS = 16
_FIRST_FACTOR, _SECOND_FACTOR = 0x9E3779B1, 0x85EBCA6B


@inlined
def clear(t: Any, slots: int) -> None:
    """Make the table empty."""
    for slot in range(slots):
        t.slot_keys[slot] = NONE


@inlined
def slot_of(t: Any, slots: int, kind: int, owner: int, number: int) -> int:
    """Return the index of the value of a pair; a new pair has the value -1."""
    full = owner * _OWNERS + kind
    mixed = (full * _FIRST_FACTOR) ^ (number * _SECOND_FACTOR)
    slot = (mixed ^ (mixed >> 17)) & (slots - 1)
    key = full << 32 | number
    while t.slot_keys[slot] != key:
        if t.slot_keys[slot] == NONE:
            t.slot_keys[slot] = key
            t.slot_values[slot] = NONE
            break
        slot = (slot + 1) & (slots - 1)
    return int(slot)
