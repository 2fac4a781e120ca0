"""Conversations of a capture: their numbers, their endpoints, their names."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address
from typing import Final

import numpy as np

from wireyard.captures.flow_kernels import EMPTY, Key, fill_slots, number_flows

__all__ = ["Endpoint", "FlowTable"]

Ints = np.ndarray[tuple[int], np.dtype[np.int64]]
Flags = np.ndarray[tuple[int], np.dtype[np.bool_]]
Grid = np.ndarray[tuple[int, int], np.dtype[np.int64]]

_FIRST_SLOTS: Final = 1 << 12
_MOST_ADDRESSES: Final = 1 << 10
_MASK: Final = (1 << 64) - 1
_FACTOR: Final = np.uint64(0x9E3779B97F4A7C15)
_SHIFT: Final = np.uint64(32)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An address, as text, and a port."""

    address: str
    port: int

    def __str__(self) -> str:
        return (
            f"[{self.address}]:{self.port}"
            if ":" in self.address
            else f"{self.address}:{self.port}"
        )


class FlowTable:
    """Numbers conversations in the order they are met; a flow is one direction of one."""

    def __init__(self) -> None:
        self._count = 0
        self._keys: Grid = np.empty((0, len(Key)), np.int64)
        self._slots: Ints = np.full(_FIRST_SLOTS, EMPTY, np.int64)
        # Whoever knew the hash could make all flows of a capture fall into one slot.
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

    def keep(self, conversations: Ints) -> None:
        """Forget all conversations but some, which are numbered anew, in the order given."""
        self._keys = self._keys[conversations]
        self._count = len(conversations)
        self._slots = np.full(_FIRST_SLOTS, EMPTY, np.int64)
        self._make_room(self._count)
        fill_slots(self._keys, self._count, self._seed, self._slots)

    def pair(self, conversation: int) -> bytes:
        """Return a key that conversations of the same endpoints share, and no others."""
        key = self._keys[conversation].copy()
        key[Key.PROTOCOL] >>= 8  # the IP version stays
        return bytes(key)

    def _make_room(self, most: int) -> None:
        if most > len(self._keys):
            grown = np.empty((2 * most, len(Key)), np.int64)
            grown[: self._count] = self._keys[: self._count]
            self._keys = grown
        if 2 * most > len(self._slots):
            self._slots = np.full(1 << (4 * most - 1).bit_length(), EMPTY, np.int64)
            fill_slots(self._keys, self._count, self._seed, self._slots)

    def parts(self, first: int, of: int) -> Ints:
        """Return which of `of` parts each conversation from number `first` on falls to.

        That depends on its endpoints alone, and not on what else is in a capture.
        """
        hashes = np.zeros(self._count - first, np.uint64)
        for column in self._keys[first : self._count].T.astype(np.uint64):
            hashes = (hashes ^ column) * _FACTOR
            hashes ^= hashes >> _SHIFT
        return (hashes % np.uint64(of)).astype(np.int64)

    def has_port(self, first: int, port: int) -> Flags:
        """Tell of each conversation from number `first` on whether one endpoint has a port."""
        ports = self._keys[first : self._count, Key.PORTS]
        there: Flags = (ports >> 16 == port) | (ports & 0xFFFF == port)
        return there

    def protocols(self) -> Ints:
        """Return the IP protocol of each conversation."""
        return self._keys[: self._count, Key.PROTOCOL] & 0xFF

    def endpoint_pairs(self) -> Ints:
        """Return a number for each conversation that those of the same endpoints share."""
        keys = self._keys[: self._count].copy()
        keys[:, Key.PROTOCOL] >>= 8  # the IP version stays
        return np.unique(keys, axis=0, return_inverse=True)[1].reshape(-1)

    def endpoints(self, conversation: int) -> tuple[Endpoint, Endpoint]:
        """Return the endpoints of a conversation: the source of its flow 0, that of its flow 1."""
        key = self._keys[conversation].tolist()
        version, ports = key[Key.PROTOCOL] >> 8, key[Key.PORTS]
        return (
            _endpoint(version, key[Key.LESS_HIGH], key[Key.LESS_LOW], ports >> 16),
            _endpoint(version, key[Key.MORE_HIGH], key[Key.MORE_LOW], ports & 0xFFFF),
        )


def _endpoint(version: int, high: int, low: int, port: int) -> Endpoint:
    return Endpoint(_address(version, high, low), port)


@lru_cache(_MOST_ADDRESSES)
def _address(version: int, high: int, low: int) -> str:
    """Return an address as text; a capture is full of the same few servers."""
    return str(
        IPv4Address(low) if version == 4 else IPv6Address((high & _MASK) << 64 | low & _MASK)
    )
