"""Packet headers: reading those of records, and reassembling IP fragments."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np

from wireyard.arrays import Bytes, Grid, Int32s, Ints
from wireyard.captures.files.places import Places
from wireyard.captures.layout import Fate, Header, Unit
from wireyard.captures.packets.fragments import Fragments
from wireyard.captures.packets.header_kernels import CODE_BITS, NETWORK_FACTOR, read_headers
from wireyard.captures.packets.link_kernels import FIRST_LINK, HEADERS
from wireyard.captures.records import Records

_MOST_NESTED: Final = 8
"""Levels of fragments in tunnels in fragments; no network has more."""


def _no_counts() -> Ints:
    return np.zeros(len(Fate), np.int64)


class Cut(NamedTuple):
    """Packets of which only the first bytes were captured."""

    packets: int = 0
    bytes: int = 0
    """Their bytes that were not captured."""
    longest: int = 0
    """The most bytes that were captured of one: the snapshot length."""

    def and_of(self, other: Cut) -> Cut:
        """Return the counts of these and of other packets."""
        longest = max(self.longest, other.longest)
        return Cut(self.packets + other.packets, self.bytes + other.bytes, longest)

    def __str__(self) -> str:
        cut = "packet was" if self.packets == 1 else "packets were"
        missing = f"{self.bytes:,} bytes are missing"
        return f"{self.packets:,} {cut} cut off after {self.longest:,} bytes (snaplen), {missing}"


NONE_CUT: Final = Cut()


@dataclass(slots=True)
class Tally:
    """Numbers of packets and of their captured bytes by `Fate`, and of packets that were cut off.

    `endings` counts packets that are neither TCP nor UDP by their fate and the kind of the header
    at which reading ended: one number, which `parts_of` splits.
    """

    fates: Ints = field(default_factory=_no_counts)
    frame_bytes: Ints = field(default_factory=_no_counts)
    cut: Cut = NONE_CUT
    endings: Counter[int] = field(default_factory=Counter)

    @property
    def packets(self) -> int:
        """Number of packets."""
        return int(self.fates.sum())

    def add(self, other: Tally) -> None:
        """Add the counts of other packets."""
        self.fates += other.fates
        self.frame_bytes += other.frame_bytes
        self.cut = self.cut.and_of(other.cut)
        self.endings += other.endings

    def move(self, size: int, before: int, after: int) -> None:
        """Change the ending of a packet of `size` captured bytes from `before` to `after`."""
        for ending, sign in ((before, -1), (after, 1)):
            fate = ending >> CODE_BITS
            self.fates[fate] += sign
            self.frame_bytes[fate] += sign * size
            if fate > Fate.UDP:
                self.endings[ending] += sign


class Headers(NamedTuple):
    """The transport units and fragments of some packets, in the order of the packets.

    Shapes: units (f, u), times_ns (u), fragments (f, v), fragment_times_ns, fragment_bytes (v).
    `fragment_bytes` are the captured bytes of the packets that are fragments.
    """

    units: Grid
    times_ns: Ints
    fragments: Grid
    fragment_times_ns: Ints
    fragment_bytes: Ints
    tally: Tally


def parts_of(ending: int) -> tuple[Fate, int]:
    """Split an ending into the fate of a packet and the kind of its last header that was read."""
    return Fate(ending >> CODE_BITS), ending & ((1 << CODE_BITS) - 1)


def scan_headers(data: Bytes, records: Records, first: int, base: int = 0) -> Headers:
    """Read the headers of records of `data`.

    `first` is the number of the first record, and `base` the address of `data` in the capture's
    `Places`.
    """
    kinds = HEADERS[np.minimum(records.links - FIRST_LINK, len(HEADERS) - 1)]
    numbers = np.arange(first, first + len(records))
    networks = np.zeros(len(records), np.int64)
    if records.interfaces is not None:
        networks = (records.interfaces & 0xFF) * NETWORK_FACTOR
    columns = records.starts, records.captured, records.originals, kinds, networks, numbers
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
    networks: Ints,
    numbers: Ints,
) -> tuple[Grid, Grid, Int32s, Tally]:
    """Return the units, fragments, endings and tally of packets of `data`, which is at `base`."""
    endings = np.empty(len(numbers), np.int32)
    units, fragments = (np.empty((len(Unit), len(numbers)), np.int64) for _ in range(2))
    tally, counts = np.zeros((2, len(Fate)), np.int64), np.empty(5, np.int64)
    packets = starts, captured, originals, kinds, networks, numbers
    read_headers(data, *packets, endings, units, fragments, tally, counts)
    # Few packets are fragments; a copy of these releases the room for all.
    units, fragments = units[:, : counts[0]], fragments[:, : counts[1]].copy()
    for grid in (units, fragments):
        grid[Unit.START] += base
    counted: Counter[int] = Counter()
    if counts[0] < len(numbers):
        others = endings[endings >> CODE_BITS > Fate.UDP]
        unique, packet_counts = np.unique(others, return_counts=True)
        counted.update(dict(zip(unique.tolist(), packet_counts.tolist(), strict=True)))
    return units, fragments, endings, Tally(tally[0], tally[1], Cut(*counts[2:].tolist()), counted)


class PacketReader:
    """Incremental reader of packet headers that reassembles IP fragments.

    `count` is the number of packets before the first that is read. Packets are counted in `tally`;
    in a new one if None.
    """

    def __init__(self, count: int = 0, tally: Tally | None = None) -> None:
        self.places = Places()
        self.tally = Tally() if tally is None else tally
        self.fragments: dict[int, list[int]] = {}
        """The packets of each reassembled datagram, by the packet that completed it."""
        self.count = count
        """Number of packets so far."""
        self._waiting = [Fragments() for _ in range(_MOST_NESTED)]
        self._endings: dict[int, int] = {}
        self._sizes: dict[int, int] = {}
        """The endings so far and the captured bytes of packets that are fragments."""

    def begin(self, data: Bytes) -> None:
        """Continue with packets of another file."""
        self._data, self.base = data, self.places.append(data)

    def read(self, records: Records) -> tuple[Grid, Ints]:
        """Return the units of the next records, and their times.

        They are in the order of the packets that completed them.
        """
        return self.take(scan_headers(self._data, records, self.count, self.base))

    def take(self, headers: Headers) -> tuple[Grid, Ints]:
        """Return the units of the next packets, whose headers were read already; see `read`."""
        self.tally.add(headers.tally)
        self.count += headers.tally.packets
        if not headers.fragments.shape[1]:
            return headers.units, headers.times_ns
        grids = [(headers.units, headers.times_ns), *self._assemble(headers)]
        units = np.concatenate([grid for grid, _ in grids], axis=1)
        times_ns = np.concatenate([times for _, times in grids])
        order = np.argsort(units[Unit.RECORD], kind="stable")
        return units[:, order], times_ns[order]

    def state(self) -> dict[str, Any]:
        """Return the state from which another reader continues; call `release` before."""
        tally = self.tally
        return {
            "count": self.count,
            "fates": tally.fates,
            "frame_bytes": tally.frame_bytes,
            "cut": [*tally.cut],
            "endings": sorted(tally.endings.items()),
            "fragments": [[record, *members] for record, members in self.fragments.items()],
            "waiting": [each.state(self.places) for each in self._waiting],
            "ended": list(self._endings.items()),
            "sizes": list(self._sizes.items()),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from the `state` of another reader.

        `KeyError`, `TypeError` or `ValueError` is raised if `state` is not such a state.
        """
        self.count = int(state["count"])
        endings = Counter({ending: count for ending, count in state["endings"]})
        fates, frame_bytes = (state[name].astype(np.int64) for name in ("fates", "frame_bytes"))
        if not fates.shape == frame_bytes.shape == (len(Fate),):
            raise ValueError("no state of packets")
        self.tally = Tally(fates, frame_bytes, Cut(*map(int, state["cut"])), endings)
        self.fragments = {record: members for record, *members in state["fragments"]}
        for each, waiting in zip(self._waiting, state["waiting"], strict=True):
            each.restore(waiting, self.places)
        self._endings = {record: ending for record, ending in state["ended"]}
        self._sizes = {record: size for record, size in state["sizes"]}

    def release(self) -> None:
        """Release the bytes of all packets so far, except fragments of incomplete datagrams.

        `places` is a new one afterwards, in which addresses begin at 0 again.
        """
        places = Places()
        waiting: set[int] = set()
        for each in self._waiting:
            waiting |= each.move(self.places, places)
        nested = {record: self.fragments[record] for record in waiting if record in self.fragments}
        waiting.update(*nested.values())
        self.places, self.fragments = places, nested
        for table in (self._endings, self._sizes):
            for record in table.keys() - waiting:
                del table[record]

    def _assemble(self, headers: Headers) -> Iterator[tuple[Grid, Ints]]:
        """Yield the units of reassembled datagrams, and of those in tunnels in them."""
        fragments, times_ns = headers.fragments, headers.fragment_times_ns
        records = fragments[Unit.RECORD].tolist()
        kinds = np.where(fragments[Unit.VERSION] == 4, int(Header.IPV4), int(Header.IPV6))
        endings = int(Fate.FRAGMENT) << CODE_BITS | kinds
        self._endings |= zip(records, endings.tolist(), strict=True)
        self._sizes |= zip(records, headers.fragment_bytes.tolist(), strict=True)
        for waiting in self._waiting:
            made = waiting.add(self.places, fragments, times_ns)
            if not made.members:
                return
            base = self.places.append(made.data)
            sizes = made.sizes
            columns = made.starts, sizes, sizes, made.kinds, made.networks, made.records
            units, fragments, endings, _ = _read(made.data, base, *columns)
            self._settle(made.members, endings)
            yield units, made.times_ns[np.searchsorted(made.records, units[Unit.RECORD])]
            times_ns = made.times_ns[np.searchsorted(made.records, fragments[Unit.RECORD])]

    def _settle(self, all_members: list[list[int]], endings: Int32s) -> None:
        """Give the packets of each reassembled datagram its ending."""
        for ending, members in zip(endings.tolist(), all_members, strict=True):
            # A member may be a datagram in a tunnel that came in several packets itself.
            members = [packet for each in members for packet in self.fragments.get(each, [each])]
            self.fragments[members[-1]] = members
            for member in members:
                self.tally.move(self._sizes[member], self._endings[member], ending)
                self._endings[member] = ending
