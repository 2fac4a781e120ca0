"""Reassembly of IP fragments (RFC 791, 3.2; RFC 8200, 4.5).

Fragments are rare, so this is plain Python. Overlapping bytes come from the fragment captured
first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np

from wireyard.arrays import Bytes, Grid, Ints
from wireyard.captures.files.places import Places
from wireyard.captures.layout import Header, Unit

_LIFETIME_NS: Final = 60 * 1_000_000_000
"""Time after which an incomplete datagram is dropped, as its identification may be used again."""
_MOST_BYTES: Final = 65535
_MAX_HELD_BYTES: Final = 16 << 20
"""Bytes of incomplete datagrams that a live capture keeps: 256 of the largest, the newest first."""
_UNIT_BYTES: Final = 8
"""Fragments begin at multiples of this."""


class Datagrams(NamedTuple):
    """Reassembled datagrams, each with an IP header without options and without a length.

    Shapes: starts, sizes, kinds, networks, records, times_ns (d); `kinds` are those of their
    headers, `records` and `times_ns` the packets that completed them. `members` has all packets of
    each.
    """

    data: Bytes
    starts: Ints
    sizes: Ints
    kinds: Ints
    networks: Ints
    records: Ints
    times_ns: Ints
    members: list[list[int]]


@dataclass(slots=True)
class _Datagram:
    """A datagram that is being reassembled; `covered` has a bit for each unit that has arrived."""

    begun_ns: int
    covered: int = 0
    units: int | None = None
    size: int = 0
    header: bytes = b""
    pieces: list[tuple[int, int, int]] = field(default_factory=list)
    records: list[int] = field(default_factory=list)

    def add(self, column: list[int]) -> None:
        """Add a fragment; ignore it if it is invalid, truncated, or brings nothing new."""
        self.records.append(column[Unit.RECORD])
        offset, length = column[Unit.FRAGMENT_OFFSET], column[Unit.LENGTH]
        more = column[Unit.MORE_FRAGMENTS] != 0
        units = -(-length // _UNIT_BYTES)
        stop = offset // _UNIT_BYTES + units
        if offset + length > _MOST_BYTES or (more and length % _UNIT_BYTES):
            return
        if column[Unit.CAPTURED] < length or (self.units is not None and stop > self.units):
            return
        if not more and self.units is None and self.covered < 1 << stop:
            self.units, self.size = stop, offset + length
        new = ((1 << units) - 1) << (offset // _UNIT_BYTES)
        if offset == 0 and not self.header:
            self.header = _header(column)
        if new & ~self.covered:
            self.covered |= new
            self.pieces.append((offset, column[Unit.START], length))

    @property
    def complete(self) -> bool:
        return self.units is not None and self.covered == (1 << self.units) - 1

    def write(self, places: Places) -> bytes:
        """Return header and payload; the fragment captured first is written last, so it wins."""
        payload = bytearray(self.size)
        for offset, start, length in reversed(self.pieces):
            payload[offset : offset + length] = places.view(start, length).data
        return self.header + payload


class Fragments:
    """Incremental reassembly of fragments; holds the incomplete datagrams."""

    def __init__(self) -> None:
        self._waiting: dict[tuple[int, ...], _Datagram] = {}

    def add(self, places: Places, fragments: Grid, times_ns: Ints) -> Datagrams:
        """Add fragments, a column of `Unit` each; return the datagrams that they complete.

        Shapes: fragments (f, r), times_ns (r).
        """
        waiting = self._waiting
        done: list[tuple[_Datagram, int, int, bytes]] = []
        done_ns: list[int] = []
        for column, time_ns in zip(fragments.T.tolist(), times_ns.tolist(), strict=True):
            version, network = column[Unit.VERSION], column[Unit.NETWORK]
            key = (network, *column[Unit.SRC_HIGH : Unit.DST_LOW + 1])
            # The fragments of an IPv6 datagram may differ in the protocol; the first one's counts.
            protocol = column[Unit.PROTOCOL] if version == 4 else 0
            key += (version, protocol, column[Unit.IDENTIFICATION])
            datagram = waiting.get(key)
            if datagram is None or time_ns - datagram.begun_ns > _LIFETIME_NS:
                datagram = waiting[key] = _Datagram(time_ns)
            datagram.add(column)
            if datagram.complete:
                done_ns.append(time_ns)
                done.append((waiting.pop(key), version, network, datagram.write(places)))
        sizes = np.array([len(written) for *_, written in done], np.int64)
        kinds = {4: Header.IPV4, 6: Header.IPV6}
        return Datagrams(
            np.frombuffer(b"".join(written for *_, written in done), np.uint8),
            np.cumsum(sizes) - sizes,
            sizes,
            np.array([kinds[version] for _, version, *_ in done], np.int64),
            np.array([network for _, _, network, _ in done], np.int64),
            np.array([datagram.records[-1] for datagram, *_ in done], np.int64),
            np.array(done_ns, np.int64),
            [datagram.records for datagram, *_ in done],
        )

    def state(self, places: Places) -> list[Any]:
        """Return the state from which another one continues: JSON values, and bytes as arrays."""
        return [
            {
                "key": list(key),
                "begun_ns": datagram.begun_ns,
                "covered": hex(datagram.covered),
                "units": datagram.units,
                "size": datagram.size,
                "header": datagram.header.hex(),
                "pieces": [
                    [offset, places.view(start, length).copy()]
                    for offset, start, length in datagram.pieces
                ],
                "records": datagram.records,
            }
            for key, datagram in self._waiting.items()
        ]

    def restore(self, state: Iterable[Mapping[str, Any]], places: Places) -> None:
        """Continue from the `state` of another one.

        `KeyError`, `TypeError` or `ValueError` is raised if `state` is not such a state.
        """
        for each in state:
            datagram = _Datagram(
                each["begun_ns"], int(each["covered"], 16), each["units"], each["size"]
            )
            datagram.header, datagram.records = bytes.fromhex(each["header"]), list(each["records"])
            for offset, data in each["pieces"]:
                octets = data.view(np.uint8)
                datagram.pieces.append((offset, places.append(octets), len(octets)))
            if not (0 <= datagram.size <= _MOST_BYTES) or any(
                offset + length > _MOST_BYTES for offset, _, length in datagram.pieces
            ):
                raise ValueError("no state of fragments")
            self._waiting[tuple(each["key"])] = datagram

    def move(self, places: Places, to: Places) -> set[int]:
        """Move the bytes of incomplete datagrams to another `Places`; return their packets.

        Keeps the newest, up to `_MAX_HELD_BYTES`; drops those older than `_LIFETIME_NS`.
        """
        if not self._waiting:
            return set()
        newest_ns = max(datagram.begun_ns for datagram in self._waiting.values())
        left = _MAX_HELD_BYTES
        kept = {}
        for key, datagram in sorted(self._waiting.items(), key=lambda each: -each[1].begun_ns):
            left -= sum(length for _, _, length in datagram.pieces)
            if left < 0 or newest_ns - datagram.begun_ns > _LIFETIME_NS:
                break
            datagram.pieces = [
                (offset, to.append(places.view(start, length).copy()), length)
                for offset, start, length in datagram.pieces
            ]
            kept[key] = datagram
        self._waiting = kept
        return {record for datagram in kept.values() for record in datagram.records}


def _header(column: list[int]) -> bytes:
    """Return an IP header with the addresses and the protocol of a datagram."""
    addresses = column[Unit.SRC_HIGH : Unit.DST_LOW + 1]
    protocol = column[Unit.PROTOCOL]
    if column[Unit.VERSION] == 4:
        source, target = addresses[1].to_bytes(4, "big"), addresses[3].to_bytes(4, "big")
        return bytes([0x45, *bytes(8), protocol, 0, 0]) + source + target
    wide = b"".join(part.to_bytes(8, "big", signed=True) for part in addresses)
    return bytes([0x60, *bytes(5), protocol, 0]) + wide
