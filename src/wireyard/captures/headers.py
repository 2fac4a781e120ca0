"""What packets are: their headers read, and with the fragments of datagrams put together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from wireyard.captures.fragments import Fragments
from wireyard.captures.header_kernels import read_headers
from wireyard.captures.layout import Fate, Header, Link, Unit
from wireyard.captures.places import Places
from wireyard.captures.records import Records

__all__ = ["Headers", "PacketReader", "Tally", "scan_headers"]

Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
Grid = np.ndarray[tuple[int, int], np.dtype[np.int64]]

_KINDS: Final = {
    Link.NO_PACKET: Fate.NO_PACKET,
    Link.BAD_RECORD: Fate.MALFORMED,
    Link.NO_INTERFACE: Fate.NO_INTERFACE,
    Link.NULL: Header.LOOPBACK,
    Link.LOOP: Header.LOOPBACK,
    Link.ETHERNET: Header.ETHERNET,
    Link.PPP: Header.PPP,
    Link.PPP_HDLC: Header.PPP,
    Link.PPP_PPPD: Header.PPP_DIRECTION,
    Link.PPP_WITH_DIR: Header.PPP_DIRECTION,
    Link.PPP_ETHER: Header.PPPOE_SESSION,
    Link.RAW: Header.RAW,
    Link.RAW_12: Header.RAW,
    Link.RAW_14: Header.RAW,
    Link.IPV4: Header.IPV4,
    Link.IPV6: Header.IPV6,
    Link.LINUX_SLL: Header.COOKED,
    Link.LINUX_SLL2: Header.COOKED_2,
    Link.NFLOG: Header.NFLOG,
}
"""The first header of a packet of each link; or its fate, if it has none."""
_FIRST_LINK: Final = min(_KINDS)
_HEADERS: Final = np.full(max(_KINDS) - _FIRST_LINK + 2, Fate.UNKNOWN_LINK, np.int64)
_HEADERS[[link - _FIRST_LINK for link in _KINDS]] = list(_KINDS.values())
_MOST_NESTED: Final = 8
"""Fragments in tunnels in fragments: deeper is no network."""


def _no_counts() -> Ints:
    return np.zeros(len(Fate), np.int64)


@dataclass(slots=True)
class Tally:
    """How many packets had each `Fate`, and how many bytes were captured of them, and were not."""

    fates: Ints = field(default_factory=_no_counts)
    frame_bytes: Ints = field(default_factory=_no_counts)
    cut_bytes: int = 0

    @property
    def packets(self) -> int:
        """How many packets there were."""
        return int(self.fates.sum())

    def add(self, other: Tally) -> None:
        """Count other packets too."""
        self.fates += other.fates
        self.frame_bytes += other.frame_bytes
        self.cut_bytes += other.cut_bytes

    def move(self, size: int, before: int, after: int) -> None:
        """Give a packet of so many captured bytes another fate."""
        for counts, step in ((self.fates, 1), (self.frame_bytes, size)):
            counts[before] -= step
            counts[after] += step


class Headers(NamedTuple):
    """What the headers of some packets say, in the order of the packets.

    Shapes: units (f, u), times_ns (u), fragments (f, v), fragment_times_ns, fragment_bytes (v).
    `fragment_bytes` are the captured bytes of the packets that are fragments.
    """

    units: Grid
    times_ns: Ints
    fragments: Grid
    fragment_times_ns: Ints
    fragment_bytes: Ints
    tally: Tally


def scan_headers(data: Bytes, records: Records, first: int, base: int = 0) -> Headers:
    """Return the headers of records of `data`, which lies at `base`; `first` numbers the first."""
    kinds = _HEADERS[np.minimum(records.links - _FIRST_LINK, len(_HEADERS) - 1)]
    numbers = np.arange(first, first + len(records))
    columns = records.starts, records.captured, records.originals, kinds, numbers
    units, fragments, _, tally = _read(data, base, *columns)
    rows = fragments[Unit.RECORD] - first
    return Headers(
        units,
        records.times_ns[units[Unit.RECORD] - first],
        fragments,
        records.times_ns[rows],
        records.captured[rows],
        tally,
    )


def _read(
    data: Bytes,
    base: int,
    starts: Ints,
    captured: Ints,
    originals: Ints,
    kinds: Ints,
    numbers: Ints,
) -> tuple[Grid, Grid, Bytes, Tally]:
    """Return the units, fragments, fates and tally of packets of `data`, which lies at `base`."""
    fates = np.empty(len(numbers), np.uint8)
    units, fragments = np.empty((2, len(Unit), len(numbers)), np.int64)
    tally, counts = np.zeros((2, len(Fate)), np.int64), np.empty(3, np.int64)
    read_headers(
        data, starts, captured, originals, kinds, numbers, fates, units, fragments, tally, counts
    )
    units, fragments = units[:, : counts[0]], fragments[:, : counts[1]]
    for grid in (units, fragments):
        grid[Unit.START] += base
    return units, fragments, fates, Tally(tally[0], tally[1], int(counts[2]))


class PacketReader:
    """Reads the headers of packets as they follow each other, and of what their fragments make.

    Parameters
    ----------
    count
        How many packets there are before the first that is read.
    """

    def __init__(self, count: int = 0) -> None:
        self.places = Places()
        self.tally = Tally()
        self.fragments: dict[int, list[int]] = {}
        """The packets that a datagram came in, by the one that completed it."""
        self.count = count
        """How many packets there were so far."""
        self._waiting = [Fragments() for _ in range(_MOST_NESTED)]
        self._fates: dict[int, int] = {}
        self._sizes: dict[int, int] = {}
        """What became so far of the packets that are fragments, and their captured bytes."""

    def begin(self, data: Bytes) -> None:
        """Go on with packets of another file."""
        self._data, self.base = data, self.places.append(data)

    def read(self, records: Records) -> tuple[Grid, Ints]:
        """Return the units of the records that follow those before, and their times.

        They are in the order of the packets that completed them.
        """
        return self.take(scan_headers(self._data, records, self.count, self.base))

    def take(self, headers: Headers) -> tuple[Grid, Ints]:
        """Return the units of packets that follow those before, and their times."""
        self.tally.add(headers.tally)
        self.count += headers.tally.packets
        if not headers.fragments.shape[1]:
            return headers.units, headers.times_ns
        found = [(headers.units, headers.times_ns), *self._assemble(headers)]
        units = np.concatenate([grid for grid, _ in found], axis=1)
        times_ns = np.concatenate([times for _, times in found])
        order = np.argsort(units[Unit.RECORD], kind="stable")
        return units[:, order], times_ns[order]

    def _assemble(self, headers: Headers) -> Iterator[tuple[Grid, Ints]]:
        """Yield the units of datagrams that fragments make, and that fragments in them make."""
        fragments, times_ns = headers.fragments, headers.fragment_times_ns
        records = fragments[Unit.RECORD].tolist()
        self._fates |= dict.fromkeys(records, int(Fate.FRAGMENT))
        self._sizes |= zip(records, headers.fragment_bytes.tolist(), strict=True)
        for waiting in self._waiting:
            made = waiting.add(self.places, fragments, times_ns)
            if not made.members:
                return
            base = self.places.append(made.data)
            sizes = made.sizes
            columns = made.starts, sizes, sizes, made.kinds, made.records
            units, fragments, fates, _ = _read(made.data, base, *columns)
            self._settle(made.members, fates)
            yield units, made.times_ns[np.searchsorted(made.records, units[Unit.RECORD])]
            times_ns = made.times_ns[np.searchsorted(made.records, fragments[Unit.RECORD])]

    def _settle(self, all_members: list[list[int]], fates: Bytes) -> None:
        """Give the packets that datagrams came in the fates of those."""
        for fate, members in zip(fates.tolist(), all_members, strict=True):
            # Each may have completed a datagram in a tunnel, of which this is a fragment.
            members = [first for one in members for first in self.fragments.get(one, [one])]
            self.fragments[members[-1]] = members
            for member in members:
                self.tally.move(self._sizes[member], self._fates[member], fate)
                self._fates[member] = fate
