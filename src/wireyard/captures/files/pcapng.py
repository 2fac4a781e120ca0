"""pcapng files: sections of blocks (draft-ietf-opsawg-pcapng).

A kernel reads the packets, and stops at blocks that describe sections and interfaces, which are
read here. Every section has its own byte order, every interface its own link type and clock.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

import numpy as np

from wireyard.arrays import Bytes, Ints
from wireyard.captures.files.record_kernels import (
    INTERFACE,
    SECTION,
    SIMPLE,
    find_block,
    walk_blocks,
)
from wireyard.captures.layout import Record
from wireyard.captures.records import BLOCK_RECORDS, NO_TIME, Context, Interface, Records
from wireyard.errors import DecodeError, Malformed, Truncated, UnsupportedVersion

_SPEC: Final = "draft-ietf-opsawg-pcapng"
_ORDERS: Final = {0x1A2B3C4D.to_bytes(4, order): order == "little" for order in ("little", "big")}
_SECTION_BYTES: Final = 28
_INTERFACE_BYTES: Final = 20
_END_OF_OPTIONS, _IF_TSRESOL, _IF_TSOFFSET = 0, 9, 14
_SECOND_NS: Final = 1_000_000_000
_TIMES: Final = np.iinfo(np.int64)


_NOTHING: Final = Context(True, ())


def read_records(
    data: Bytes,
    start: int = 0,
    stop: int | None = None,
    context: Context | None = None,
    most_records: int = BLOCK_RECORDS,
) -> Iterator[Records]:
    """Yield the packets of a pcapng file whose blocks begin in ``[start, stop)``.

    `context` is that of the block at `start`. It is None at the start of the file, which begins
    with `signatures.PCAPNG`. At most `most_records` are yielded together.
    """
    limit = len(data) if stop is None else stop
    return _Reader(data, context or _NOTHING, most_records).read(start, limit)


def find_record(data: Bytes, start: int, stop: int, context: Context) -> int | None:
    """Return where the first block in ``[start, stop)`` begins, a guess; None if there is none."""
    offset = find_block(data, start, stop, len(data), context.little)
    return None if offset < 0 else offset


class _Reader:
    def __init__(self, data: Bytes, context: Context, most_records: int) -> None:
        self._data, self._view = data, data.data
        self._little = context.little
        self._interfaces = [*context.interfaces]
        self._numbers = [*range(len(context.interfaces))]
        """The number of each interface in its section."""
        self._section_from = 0
        """Number, over all sections, of the first interface of the current section."""
        self._grid = np.empty((len(Record), most_records), np.int64)
        self._row = 0

    def read(self, at: int, limit: int) -> Iterator[Records]:
        """Yield the packets of blocks that begin before `limit`; the last have the context."""
        damage = None
        reached = np.zeros(1, np.int64)
        while at < limit and damage is None:
            self._row = walk_blocks(
                self._data,
                at,
                limit,
                len(self._data),
                self._little,
                self._section_from,
                len(self._interfaces) - self._section_from,
                self._row,
                self._grid,
                reached,
            )
            at = int(reached[0])
            if self._row == self._grid.shape[1]:
                yield self._records(at)
                self._row = 0
            elif at < limit:
                try:
                    at = self._describe(at)
                except DecodeError as error:
                    damage = error
        section = tuple(self._interfaces[self._section_from :])
        yield self._records(at, damage, Context(self._little, section))

    @property
    def _order(self) -> str:
        return "<" if self._little else ">"

    def _u32(self, at: int) -> int:
        return int(struct.unpack_from(f"{self._order}I", self._view, at)[0])

    def _describe(self, at: int) -> int:
        """Read the section or interface block at `at`; return where the next block begins."""
        left = len(self._data) - at
        if left < 12:
            raise Truncated("pcapng", "Block", at, 12, left, _SPEC)
        kind = self._u32(at)
        if kind == SECTION:
            self._enter_section(at)
        size = self._u32(at + 4)
        least = {SECTION: _SECTION_BYTES, INTERFACE: _INTERFACE_BYTES}.get(kind, 12)
        if size < least or size % 4:
            problem = f"is {size}, a multiple of 4 from {least} on is needed"
            raise Malformed("pcapng", "Block Total Length", at + 4, problem, _SPEC)
        if size > left:
            raise Truncated("pcapng", "Block", at, size, left, _SPEC)
        if (again := self._u32(at + size - 4)) != size:
            problem = f"is {size} before the block and {again} after it"
            raise Malformed("pcapng", "Block Total Length", at + size - 4, problem, _SPEC)
        if kind == SECTION:
            major = struct.unpack_from(f"{self._order}H", self._view, at + 12)[0]
            if major != 1:
                problem = f"is {major}, 1 is known"
                raise UnsupportedVersion("pcapng", "Major Version", at + 12, problem, _SPEC)
        else:
            self._numbers.append(len(self._interfaces) - self._section_from)
            self._interfaces.append(self._interface(at, at + size - 4))
        return at + size

    def _enter_section(self, at: int) -> None:
        magic = self._data[at + 8 : at + 12].tobytes()
        if magic not in _ORDERS:
            problem = f"is {magic.hex()}, 1a2b3c4d is needed in one order or the other"
            raise Malformed("pcapng", "Byte-Order Magic", at + 8, problem, _SPEC)
        self._little = _ORDERS[magic]
        self._section_from = len(self._interfaces)

    def _interface(self, at: int, stop: int) -> Interface:
        link, _, snapshot_bytes = struct.unpack_from(f"{self._order}HHI", self._view, at + 8)
        clock = {}
        at += 16
        while at + 4 <= stop:
            code, size = struct.unpack_from(f"{self._order}HH", self._view, at)
            value = self._data[at + 4 : at + 4 + size].tobytes()
            if code == _END_OF_OPTIONS:
                break
            if at + 4 + size > stop:
                raise Truncated("pcapng", "Options", at, size, stop - at - 4, _SPEC)
            if code == _IF_TSRESOL and size == 1:
                power = value[0] & 0x7F
                clock["units"] = 1 << power if value[0] & 0x80 else 10**power
            elif code == _IF_TSOFFSET and size == 8:
                (clock["offset_s"],) = struct.unpack(f"{self._order}q", value)
            at += 4 + size + -size % 4
        return Interface(link, snapshot_bytes, **clock)

    def _records(
        self, stop: int, damage: DecodeError | None = None, context: Context | None = None
    ) -> Records:
        grid = self._grid[:, : self._row].copy()
        simple = grid[Record.BLOCK] == SIMPLE
        interfaces = grid[Record.INTERFACE]
        times_ns = np.full(grid.shape[1], NO_TIME, np.int64)
        links = interfaces.copy()  # numbers below zero are a `Link` already
        order = np.argsort(interfaces, kind="stable")
        used, starts = np.unique(interfaces[order], return_index=True)
        for number, rows in zip(used.tolist(), np.split(order, starts[1:]), strict=False):
            if number < 0:
                continue
            interface = self._interfaces[number]
            links[rows] = interface.link
            timed = rows[~simple[rows]]
            times_ns[timed] = _nanoseconds(grid[Record.TICKS, timed], interface)
            if interface.snapshot_bytes:
                # A simple block has no captured length that would exclude its padding.
                cut = rows[simple[rows]]
                captured = grid[Record.CAPTURED, cut]
                grid[Record.CAPTURED, cut] = np.minimum(captured, interface.snapshot_bytes)
        return Records(
            times_ns,
            grid[Record.START],
            grid[Record.CAPTURED],
            grid[Record.ORIGINAL],
            links,
            stop,
            damage,
            context,
            np.array(self._numbers)[np.maximum(interfaces, 0)] if len(self._numbers) > 1 else None,
        )


def _nanoseconds(ticks: Ints, interface: Interface) -> Ints:
    """Return times since the epoch, clamped to 64 bits."""
    units, offset_ns = interface.units, interface.offset_s * _SECOND_NS
    factor, rest = divmod(_SECOND_NS, units)
    unsigned = ticks.view(np.uint64)
    most = int(unsigned.max(initial=0)) * factor + abs(offset_ns)
    if rest == 0 and most <= _TIMES.max:
        return ticks * factor + offset_ns
    exact = (tick * _SECOND_NS // units + offset_ns for tick in unsigned.tolist())
    bounded = (min(max(time, _TIMES.min + 1), _TIMES.max) for time in exact)
    return np.fromiter(bounded, np.int64, len(ticks))
