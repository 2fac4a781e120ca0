"""TCP segments and UDP datagrams of a capture as columns, fragments put together."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from wireyard.captures.flows import FlowTable
from wireyard.captures.fragments import assemble
from wireyard.captures.header_kernels import read_headers
from wireyard.captures.layout import Fate, Header, Link, Unit
from wireyard.captures.records import Records

__all__ = ["ReadUnits", "Units", "read_units"]

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

    Shapes: all columns (r). A payload begins at `starts` in the capture's bytes, with those of
    reassembled datagrams behind them, and had `lengths` bytes on the wire.
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


@dataclass(frozen=True, slots=True)
class ReadUnits:
    """What `read_units` gives: units, the `Fate` of each record, and whose units they are.

    `extra` has the bytes of reassembled datagrams.
    """

    units: Units
    fates: Bytes
    flows: FlowTable
    extra: Bytes


def read_units(data: Bytes, records: Records) -> ReadUnits:
    """Read the headers of all packets, and those of the datagrams that fragments make."""
    reader = _Reader()
    kinds = _HEADERS[np.minimum(records.links - _FIRST_LINK, len(_HEADERS) - 1)]
    packets = records.starts, records.captured, records.originals, kinds
    fates, fragments = reader.read(data, 0, *packets, np.arange(len(records)))
    source, extra = data, np.empty(0, np.uint8)
    members_of: dict[int, list[int]] = {}
    for _ in range(_MOST_NESTED):
        if not fragments.shape[1]:
            break
        made = assemble(source, fragments, records.times_ns)
        base, extra = len(data) + len(extra), np.concatenate([extra, made.data])
        packets = made.starts, made.sizes, made.sizes, made.kinds
        found, fragments = reader.read(made.data, base, *packets, made.records)
        for fate, members in zip(found.tolist(), made.members, strict=True):
            # Each may have completed a datagram in a tunnel, of which this is a fragment.
            members = [first for member in members for first in members_of.get(member, [member])]
            members_of[members[-1]] = members
            fates[members] = fate
        source = made.data
    return ReadUnits(reader.units(), fates, reader.flows, extra)


class _Reader:
    """Collects the units of several sources."""

    def __init__(self) -> None:
        self.flows = FlowTable()
        self._blocks = [Units.of(np.empty((len(Unit), 0), np.int64), np.empty(0, np.int64), 0)]
        self._passes = 0

    def read(
        self,
        data: Bytes,
        base: int,
        starts: Ints,
        captured: Ints,
        originals: Ints,
        kinds: Ints,
        records: Ints,
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
            self._blocks.append(Units.of(units[:, :found], self.flows.number(units, found), base))
            parts.append(fragments[:, :fragmented].copy())
        self._passes += 1
        return fates, np.concatenate(parts, axis=1)

    def units(self) -> Units:
        """Return all units in the order of capture."""
        columns = zip(*(block.columns() for block in self._blocks), strict=True)
        units = Units(*map(np.concatenate, columns))
        if self._passes == 1:
            return units
        return units.take(np.argsort(units.records, kind="stable"))
