"""TCP segments and UDP datagrams of a capture as columns, fragments put together."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from wireyard.captures.flows import FlowTable
from wireyard.captures.fragments import assemble
from wireyard.captures.header_kernels import read_headers
from wireyard.captures.layout import Fate, Header, Link, Unit
from wireyard.captures.places import Places
from wireyard.captures.records import Records

__all__ = ["Share", "UnitReader", "Units"]

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
_BLOCK_PACKETS: Final = 1 << 13
"""Read at once: what is found out about them should stay in the cache."""
_MOST_NESTED: Final = 8
"""Fragments in tunnels in fragments: deeper is no network."""


@dataclass(frozen=True, slots=True)
class Units:
    """TCP segments and UDP datagrams in the order of capture.

    Shapes: all columns (r). A payload begins at `starts` in the capture's `Places`, and had
    `lengths` bytes on the wire.
    """

    records: npt.NDArray[np.int32]
    flows: npt.NDArray[np.int32]
    sequences: npt.NDArray[np.uint32]
    acknowledgments: npt.NDArray[np.uint32]
    flags: npt.NDArray[np.uint8]
    starts: Ints
    captured: npt.NDArray[np.int32]
    lengths: npt.NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.records)

    @classmethod
    def of(cls, units: Grid, flows: Ints, base: int) -> Units:
        """Return the columns of a grid of `Unit` whose payloads lie from `base` on."""
        return cls(
            units[Unit.RECORD].astype(np.int32),
            flows.astype(np.int32),
            units[Unit.SEQUENCE].astype(np.uint32),
            units[Unit.ACKNOWLEDGMENT].astype(np.uint32),
            units[Unit.FLAGS].astype(np.uint8),
            units[Unit.START] + base,
            units[Unit.CAPTURED].astype(np.int32),
            units[Unit.LENGTH].astype(np.int32),
        )

    def columns(self) -> list[npt.NDArray[Any]]:
        """Return all columns."""
        return [getattr(self, field.name) for field in fields(self)]

    def take(self, rows: npt.NDArray[Any]) -> Units:
        """Return some rows, by number or by mask."""
        return Units(*(column[rows] for column in self.columns()))


class Share(NamedTuple):
    """The conversations that fall to one of several who read the same capture."""

    part: int
    of: int
    port: int
    """Conversations of this port fall to all, for what is in them tells of others."""


class UnitReader:
    """Reads the headers of packets as they follow each other, and of what their fragments make.

    Parameters
    ----------
    share
        Which conversations are kept; all if None.
    """

    def __init__(self, share: Share | None = None) -> None:
        self.places = Places()
        self.flows = FlowTable()
        self.fates = np.zeros(len(Fate), np.int64)
        """How many packets had each fate."""
        self.frame_bytes = np.zeros(len(Fate), np.int64)
        """How many bytes were captured of them."""
        self.cut_bytes = 0
        """How many bytes of packets were not captured."""
        self.fragments: dict[int, list[int]] = {}
        """The packets that a datagram came in, by the one that completed it."""
        self._share = share
        self._wanted = np.empty(0, np.bool_)
        self._count = 0
        nothing = np.empty((len(Unit), 0), np.int64)
        self._kept = [(Units.of(nothing, nothing[0], 0), nothing[0])]
        self._fragments = [(nothing, nothing[0])]
        self._sizes: dict[int, int] = {}
        """Captured bytes of the packets that are fragments."""
        self._passes = 1

    def begin(self, data: Bytes) -> None:
        """Go on with packets of another file."""
        self._data, self._base = data, self.places.append(data)

    def read(self, records: Records) -> None:
        """Read the packets that follow those before."""
        kinds = _HEADERS[np.minimum(records.links - _FIRST_LINK, len(_HEADERS) - 1)]
        numbers = np.arange(self._count, self._count + len(records))
        self._count += len(records)
        packets = records.starts, records.captured, records.originals, kinds, numbers
        fates, fragments = self._read(self._data, self._base, *packets, records.times_ns)
        self.fates += np.bincount(fates, minlength=len(Fate))
        weighed = np.bincount(fates, records.captured, len(Fate))
        self.frame_bytes += weighed.astype(np.int64)
        self.cut_bytes += int(np.maximum(records.originals - records.captured, 0).sum())
        if fragments.shape[1]:
            times_ns = records.times_ns[fragments[Unit.RECORD] - numbers[0]]
            self._fragments.append((fragments, times_ns))
            rows = fragments[Unit.RECORD] - numbers[0]
            sizes = records.captured[rows].tolist()
            self._sizes |= zip(fragments[Unit.RECORD].tolist(), sizes, strict=True)

    def units(self) -> tuple[Units, Ints]:
        """Return all units in the order of capture, and the times of their packets."""
        self._assemble()
        columns = zip(*(units.columns() for units, _ in self._kept), strict=True)
        units = Units(*map(np.concatenate, columns))
        times_ns = np.concatenate([times for _, times in self._kept])
        if self._passes == 1:
            return units, times_ns
        order = np.argsort(units.records, kind="stable")
        return units.take(order), times_ns[order]

    def _assemble(self) -> None:
        """Read the datagrams that fragments make, and those that fragments in them make."""
        fragments = np.concatenate([grid for grid, _ in self._fragments], axis=1)
        times_ns = np.concatenate([times for _, times in self._fragments])
        fate_of = dict.fromkeys(fragments[Unit.RECORD].tolist(), int(Fate.FRAGMENT))
        for _ in range(_MOST_NESTED):
            if not fragments.shape[1]:
                break
            made = assemble(self.places, fragments, times_ns)
            base = self.places.append(made.data)
            packets = made.starts, made.sizes, made.sizes, made.kinds, made.records
            found, fragments = self._read(made.data, base, *packets, made.times_ns)
            for fate, members in zip(found.tolist(), made.members, strict=True):
                # Each may have completed a datagram in a tunnel, of which this is a fragment.
                members = [first for one in members for first in self.fragments.get(one, [one])]
                self.fragments[members[-1]] = members
                for member in members:
                    for count, step in ((self.fates, 1), (self.frame_bytes, self._sizes[member])):
                        count[fate_of[member]] -= step
                        count[fate] += step
                    fate_of[member] = fate
            places = np.searchsorted(made.records, fragments[Unit.RECORD])
            times_ns = made.times_ns[places]
            self._passes += 1

    def _read(
        self,
        data: Bytes,
        base: int,
        starts: Ints,
        captured: Ints,
        originals: Ints,
        kinds: Ints,
        records: Ints,
        times_ns: Ints,
    ) -> tuple[Bytes, Grid]:
        """Read packets of `data`, which lies at `base`; return their fates and the fragments."""
        fates = np.empty(len(starts), np.uint8)
        units, fragments = np.empty((2, len(Unit), _BLOCK_PACKETS), np.int64)
        parts = [fragments[:, :0]]
        counts = np.zeros(2, np.int64)
        for first in range(0, len(starts), _BLOCK_PACKETS):
            part = slice(first, first + _BLOCK_PACKETS)
            read_headers(
                data,
                starts[part],
                captured[part],
                originals[part],
                kinds[part],
                records[part],
                fates[part],
                units,
                fragments,
                counts,
            )
            found, fragmented = counts.tolist()
            numbered = Units.of(units[:, :found], self.flows.number(units, found), base)
            self._keep(numbered, times_ns[part][np.searchsorted(records[part], numbered.records)])
            parts.append(fragments[:, :fragmented].copy())
        joined = np.concatenate(parts, axis=1)
        joined[Unit.START] += base
        return fates, joined

    def _keep(self, units: Units, times_ns: Ints) -> None:
        share = self._share
        if share is not None:
            first = len(self._wanted)
            new = self.flows.parts(first, share.of) == share.part
            new |= self.flows.has_port(first, share.port)
            self._wanted = np.concatenate([self._wanted, new])
            rows = self._wanted[units.flows >> 1]
            units, times_ns = units.take(rows), times_ns[rows]
        self._kept.append((units, times_ns))
