"""The conversations of a capture: their numbers, endpoints and names."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address
from typing import Final

import numpy as np
import pyarrow as pa

from wireyard.arena import with_room
from wireyard.arrays import Bools, Bytes, Grid, Int32s, Ints
from wireyard.captures.connections.flow_kernels import (
    EMPTY,
    LONGEST_NAME,
    Key,
    fill_slots,
    number_flows,
    write_addresses,
    write_names,
)
from wireyard.memory import SLACK
from wireyard.schema import repeat_texts

_FIRST_SLOTS: Final = 1 << 12
_IPV4: Final = 4
"""The IP version of the addresses that kernels can write."""
_MOST_ADDRESSES: Final = 1 << 10
_MOST_NUMBER: Final = (1 << 32) - 1
"""Largest IPv4 address, and largest pair of ports."""
_MASK: Final = (1 << 64) - 1
_FACTOR: Final = np.uint64(0x9E3779B97F4A7C15)
_SHIFT: Final = np.uint64(32)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An IP address, as text, and a port."""

    address: str
    port: int

    def __str__(self) -> str:
        return (
            f"[{self.address}]:{self.port}"
            if ":" in self.address
            else f"{self.address}:{self.port}"
        )


class FlowTable:
    """Conversations, numbered in the order of their first packets.

    Conversation c has the flows 2 c and 2 c + 1, one for each direction.
    """

    def __init__(self) -> None:
        self._count = 0
        self._keys: Grid = np.empty((0, len(Key)), np.int64)
        self._slots: Ints = np.full(_FIRST_SLOTS, EMPTY, np.int64)
        # With a known seed, a capture could be made whose flows all fall into one slot.
        self._seed = secrets.randbits(62)

    def __len__(self) -> int:
        return self._count

    def number(self, units: Grid, count: int) -> Ints:
        """Return the flow of each of the first `count` columns of a grid of `Unit`."""
        self._make_room(self._count + count)
        flows = np.empty(count, np.int64)
        self._count = number_flows(
            units, count, self._seed, self._slots, self._keys, self._count, flows
        )
        return flows

    def state(self) -> Grid:
        """Return the state from which another table continues. Shapes: (e, k)."""
        return self._keys[: self._count].copy()

    def restore(self, keys: Grid) -> None:
        """Continue from the `state` of another table.

        `ValueError` is raised if `keys` is not such a state.
        """
        if keys.ndim != 2 or keys.shape[1] != len(Key):
            raise ValueError("no keys of conversations")
        ipv4 = keys[:, Key.PROTOCOL] >> 8 & 0xFF == _IPV4
        numbers = keys[:, Key.PORTS], keys[ipv4, Key.LESS_LOW], keys[ipv4, Key.MORE_LOW]
        if any(((each < 0) | (each > _MOST_NUMBER)).any() for each in numbers):
            raise ValueError("no keys of conversations")
        self._keys = keys.astype(np.int64)
        self.keep(np.arange(len(keys)))

    def keep(self, conversations: Ints) -> None:
        """Evict all conversations except these, and renumber them in this order."""
        self._keys = self._keys[conversations]
        self._count = len(conversations)
        self._slots = np.full(_FIRST_SLOTS, EMPTY, np.int64)
        self._make_room(self._count)
        fill_slots(self._keys, self._count, self._seed, self._slots)

    def pair(self, conversation: int) -> bytes:
        """Return a key of the two endpoints, the same for TCP and UDP, and in all networks."""
        return bytes(_endpoints_only(self._keys[conversation : conversation + 1]))

    def _make_room(self, most: int) -> None:
        self._keys = with_room(self._keys, self._count, most)
        if 2 * most > len(self._slots):
            self._slots = np.full(1 << (4 * most - 1).bit_length(), EMPTY, np.int64)
            fill_slots(self._keys, self._count, self._seed, self._slots)

    def parts(self, first: int, of: int) -> Ints:
        """Return the part, of `of` parts, of each conversation from number `first` on.

        The part depends only on the endpoints, not on the rest of the capture. TCP and UDP between
        the same endpoints are in the same part, in all networks, because their streams are
        numbered together.
        """
        hashes = np.zeros(self._count - first, np.uint64)
        for column in _endpoints_only(self._keys[first : self._count]).T.astype(np.uint64):
            hashes = (hashes ^ column) * _FACTOR
            hashes ^= hashes >> _SHIFT
        return (hashes % np.uint64(of)).astype(np.int64)

    def has_port(self, first: int, port: int) -> Bools:
        """Return a mask of the conversations, from number `first` on, with this port."""
        ports = self._keys[first : self._count, Key.PORTS]
        mask: Bools = (ports >> 16 == port) | (ports & 0xFFFF == port)
        return mask

    def has_networks(self) -> bool:
        """Return whether any conversation is in a network that its packets name."""
        return bool((self._keys[: self._count, Key.PROTOCOL] >> 16).any())

    def protocols(self) -> Ints:
        """Return the IP protocol of each conversation."""
        return self._keys[: self._count, Key.PROTOCOL] & 0xFF

    def endpoint_pairs(self) -> Ints:
        """Return a number for the endpoints of each conversation.

        It is the same for TCP and UDP, and in all networks.
        """
        keys = _endpoints_only(self._keys[: self._count])
        return np.unique(keys, axis=0, return_inverse=True)[1].reshape(-1)

    def endpoints(self, conversation: int) -> tuple[Endpoint, Endpoint]:
        """Return the endpoints of a conversation: the sources of its first and its second flow."""
        key = self._keys[conversation].tolist()
        version, ports = key[Key.PROTOCOL] >> 8 & 0xFF, key[Key.PORTS]
        return (
            _endpoint(version, key[Key.LESS_HIGH], key[Key.LESS_LOW], ports >> 16),
            _endpoint(version, key[Key.MORE_HIGH], key[Key.MORE_LOW], ports & 0xFFFF),
        )

    def unlike(self, conversations: Ints, ways: Ints) -> set[Endpoint]:
        """Return the set of the endpoints at one side of each conversation."""
        keys = self._keys[conversations]
        lesser = ways == 0
        high = np.where(lesser, keys[:, Key.LESS_HIGH], keys[:, Key.MORE_HIGH])
        low = np.where(lesser, keys[:, Key.LESS_LOW], keys[:, Key.MORE_LOW])
        version, port = keys[:, Key.PROTOCOL] >> 8, self.ports(conversations, ways)
        ipv4 = version == _IPV4
        packed = np.unique(low[ipv4] << 16 | port[ipv4]).tolist()
        endpoints = {_endpoint(_IPV4, 0, each >> 16, each & 0xFFFF) for each in packed}
        others = np.stack([version, high, low, port], axis=1)[~ipv4].tolist()
        return endpoints | {_endpoint(*each) for each in set(map(tuple, others))}

    def name(self, conversation: int, way: int) -> str:
        """Return the name of the first stream of a conversation in one direction."""
        ends = self.endpoints(conversation)
        return stream_name(ends[way], ends[1 - way], 1)

    def names(self, conversations: Ints, ways: Ints, ordinals: Ints) -> pa.StringArray:
        """Return the names of streams.

        Shapes: all (t). `ways` are the directions in the conversation, `ordinals` the numbers,
        from 1 on, of the connection among those of the same endpoints.
        """
        if self._all_ipv4(conversations):
            out, ends = self._room(len(conversations))
            write_names(self._keys, conversations, ways, ordinals, out, ends)
            return _texts(out, ends)
        streams = zip(conversations.tolist(), ways.tolist(), ordinals.tolist(), strict=True)
        names = []
        for conversation, way, ordinal in streams:
            both = self.endpoints(conversation)
            names.append(stream_name(both[way], both[1 - way], ordinal))
        return repeat_texts(names, [1] * len(names))

    def addresses(self, conversations: Ints, ways: Ints) -> pa.StringArray:
        """Return the address of one side of each conversation."""
        if self._all_ipv4(conversations):
            out, ends = self._room(len(conversations))
            write_addresses(self._keys, conversations, ways, out, ends)
            return _texts(out, ends)
        streams = zip(conversations.tolist(), ways.tolist(), strict=True)
        addresses = [self.endpoints(conversation)[way].address for conversation, way in streams]
        return repeat_texts(addresses, [1] * len(addresses))

    def ports(self, conversations: Ints, ways: Ints) -> Ints:
        """Return the port of one side of each conversation."""
        ports: Ints = self._keys[conversations, Key.PORTS] >> np.where(ways, 0, 16) & 0xFFFF
        return ports

    def _all_ipv4(self, conversations: Ints) -> bool:
        """Return whether all conversations are over IPv4."""
        return bool((self._keys[conversations, Key.PROTOCOL] >> 8 & 0xFF == _IPV4).all())

    @staticmethod
    def _room(count: int) -> tuple[Bytes, Int32s]:
        return np.empty(count * LONGEST_NAME + SLACK, np.uint8), np.empty(count + 1, np.int32)


def stream_name(src: Endpoint, dst: Endpoint, ordinal: int) -> str:
    """Return the name of a stream; ``#2`` marks the second connection of its endpoints."""
    return f"{src}>{dst}" if ordinal == 1 else f"{src}>{dst}#{ordinal}"


def _texts(out: Bytes, ends: Int32s) -> pa.StringArray:
    text = out[: int(ends[-1])].copy()
    return pa.StringArray.from_buffers(len(ends) - 1, pa.py_buffer(ends), pa.py_buffer(text))


def _endpoints_only(keys: Grid) -> Grid:
    """Return a copy of keys in which TCP and UDP are the same, and all networks."""
    keys = keys.copy()
    keys[:, Key.PROTOCOL] = keys[:, Key.PROTOCOL] >> 8 & 0xFF  # the IP version stays
    return keys


def _endpoint(version: int, high: int, low: int, port: int) -> Endpoint:
    return Endpoint(_address(version, high, low), port)


@lru_cache(_MOST_ADDRESSES)
def _address(version: int, high: int, low: int) -> str:
    """Return an address as text; cached, as most packets of a capture have the same few servers."""
    return str(
        IPv4Address(low) if version == 4 else IPv6Address((high & _MASK) << 64 | low & _MASK)
    )
