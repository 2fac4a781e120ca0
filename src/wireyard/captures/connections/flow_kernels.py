"""Number flows: find the conversation and the direction of each packet.

Axes: f = `Unit`, r = packets, k = `Key`, c = conversations.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from wireyard.accelerate import inlined, kernel
from wireyard.arrays import Bytes, Grid, Int32s, Ints
from wireyard.captures.layout import Unit
from wireyard.memory import put_leading, store_word

EMPTY: Final = -1
LONGEST_NAME: Final = 2 * len("255.255.255.255:65535") + len(">#99999999")
"""Bytes of the name of a stream over IPv4."""
_MASK: Final = (1 << 63) - 1
_FACTOR: Final = 0x1E3779B97F4A7C15


class Key(IntEnum):
    """Columns of a conversation's key: protocol, and both endpoints, the lesser one first."""

    PROTOCOL = 0
    """Network, IP version and protocol: the version from bit 8 on, the network from bit 16 on."""
    PORTS = 1
    LESS_HIGH = 2
    LESS_LOW = 3
    MORE_HIGH = 4
    MORE_LOW = 5


@inlined
def mix(hash: int, value: int) -> int:
    """Mix a value into a hash of 63 bits."""
    hash = ((hash ^ value) * _FACTOR) & _MASK
    return hash ^ hash >> 32


@inlined
def find_slot(
    keys: Grid, slots: Ints, seed: int, k0: int, k1: int, k2: int, k3: int, k4: int, k5: int
) -> int:
    """Return the slot of a conversation, or the empty one where it belongs."""
    hash = mix(mix(mix(mix(mix(mix(seed, k0), k1), k2), k3), k4), k5)
    slot = hash & (len(slots) - 1)
    while slots[slot] != EMPTY:
        held = slots[slot]
        if (
            keys[held, 5] == k5
            and keys[held, 1] == k1
            and keys[held, 3] == k3
            and keys[held, 4] == k4
            and keys[held, 2] == k2
            and keys[held, 0] == k0
        ):
            break
        slot = (slot + 1) & (len(slots) - 1)
    return slot


@kernel
def number_flows(
    units: Grid, unit_count: int, seed: int, slots: Ints, keys: Grid, count: int, flows: Ints
) -> int:
    """Fill in the flow of each packet: twice its conversation, plus 1 if from the greater endpoint.

    New conversations are numbered from `count` on; returns their number afterwards. `slots`, whose
    length is a power of two, and `keys` have room for a new conversation for each packet.
    """
    for row in range(unit_count):
        src_high, src_low = int(units[Unit.SRC_HIGH, row]), int(units[Unit.SRC_LOW, row])
        dst_high, dst_low = int(units[Unit.DST_HIGH, row]), int(units[Unit.DST_LOW, row])
        src_port, dst_port = int(units[Unit.SRC_PORT, row]), int(units[Unit.DST_PORT, row])
        protocol = int(units[Unit.VERSION, row]) << 8 | int(units[Unit.PROTOCOL, row])
        protocol |= int(units[Unit.NETWORK, row]) << 16
        way = 0
        if src_high != dst_high:
            way = 1 if src_high > dst_high else 0
        elif src_low != dst_low:
            way = 1 if src_low > dst_low else 0
        else:
            way = 1 if src_port > dst_port else 0
        if way == 1:
            src_high, dst_high = dst_high, src_high
            src_low, dst_low = dst_low, src_low
            src_port, dst_port = dst_port, src_port
        ports = src_port << 16 | dst_port
        slot = find_slot(keys, slots, seed, protocol, ports, src_high, src_low, dst_high, dst_low)
        if slots[slot] == EMPTY:
            keys[count, Key.PROTOCOL] = protocol
            keys[count, Key.PORTS] = ports
            keys[count, Key.LESS_HIGH] = src_high
            keys[count, Key.LESS_LOW] = src_low
            keys[count, Key.MORE_HIGH] = dst_high
            keys[count, Key.MORE_LOW] = dst_low
            slots[slot] = count
            count += 1
        flows[row] = 2 * slots[slot] + way
    return count


@kernel
def fill_slots(keys: Grid, count: int, seed: int, slots: Ints) -> int:
    """Insert the first `count` conversations into empty slots; return `count`."""
    for held in range(count):
        slot = find_slot(
            keys,
            slots,
            seed,
            int(keys[held, 0]),
            int(keys[held, 1]),
            int(keys[held, 2]),
            int(keys[held, 3]),
            int(keys[held, 4]),
            int(keys[held, 5]),
        )
        slots[slot] = held
    return count


@inlined
def put_address(out: Bytes, at: int, address: int) -> int:
    """Write an IPv4 address and return the position after it."""
    for shift in range(24, -8, -8):
        at = put_leading(out, at, address >> shift & 0xFF)
        store_word(out, at, 0x2E)
        at += 1
    return at - 1


@inlined
def put_endpoint(out: Bytes, at: int, keys: Grid, conversation: int, more: int) -> int:
    """Write an endpoint of a conversation over IPv4: the greater one if `more`, else the lesser."""
    ports = keys[conversation, Key.PORTS]
    if more:
        at = put_address(out, at, keys[conversation, Key.MORE_LOW])
    else:
        at = put_address(out, at, keys[conversation, Key.LESS_LOW])
        ports >>= 16
    store_word(out, at, 0x3A)
    return put_leading(out, at + 1, ports & 0xFFFF)


@kernel
def write_names(
    keys: Grid, conversations: Ints, ways: Ints, ordinals: Ints, out: Bytes, ends: Int32s
) -> int:
    """Write the names of streams over IPv4 one after the other; return where the last one ends.

    Shapes: conversations, ways, ordinals (t), ordinals below 10^8; out has `LONGEST_NAME` bytes for
    each, and slack; ends (t + 1).
    """
    at = 0
    for stream in range(len(conversations)):
        ends[stream] = at
        conversation, way = conversations[stream], ways[stream]
        at = put_endpoint(out, at, keys, conversation, way)
        store_word(out, at, 0x3E)
        at = put_endpoint(out, at + 1, keys, conversation, 1 - way)
        if ordinals[stream] > 1:
            store_word(out, at, 0x23)
            at = put_leading(out, at + 1, ordinals[stream])
    ends[len(conversations)] = at
    return at


@kernel
def write_addresses(keys: Grid, conversations: Ints, ways: Ints, out: Bytes, ends: Int32s) -> int:
    """Write the source addresses of streams over IPv4; otherwise like `write_names`."""
    at = 0
    for stream in range(len(conversations)):
        ends[stream] = at
        conversation = conversations[stream]
        if ways[stream]:
            at = put_address(out, at, keys[conversation, Key.MORE_LOW])
        else:
            at = put_address(out, at, keys[conversation, Key.LESS_LOW])
    ends[len(conversations)] = at
    return at
