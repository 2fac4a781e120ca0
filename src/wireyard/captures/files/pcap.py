"""Classic capture files: one header, then records (draft-ietf-opsawg-pcap)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final, NamedTuple

import numpy as np

from wireyard.arrays import Bytes, Grid
from wireyard.captures import signatures
from wireyard.captures.files import record_kernels
from wireyard.captures.layout import MAX_RECORD_BYTES, USUAL_RECORD_BYTES, Record
from wireyard.captures.records import BLOCK_RECORDS, Context, Interface, Records
from wireyard.errors import DecodeError, LimitExceeded, Truncated
from wireyard.streams.mapped import release

_SPEC: Final = "draft-ietf-opsawg-pcap"
FILE_HEADER_BYTES: Final = 24
_LINK_MASK: Final = 0xFFFF
"""The bits of the link type; those above may have the length of frame check sequences."""
_TRIED_RECORDS: Final = 64
"""Records that are read to detect the size of a file's record headers."""

_SECOND_NS: Final = 1_000_000_000
_LONG_NS: Final = 366 * 24 * 3600 * _SECOND_NS
"""Largest believable time between consecutive packets; larger differences show that bytes are no
times."""


class _Kind(NamedTuple):
    """The meaning of a magic number.

    Times are in units of ``1 / units`` seconds. `header_bytes` are the sizes that a record header
    may have, the usual one first: patched versions of libpcap wrote more fields after the four of
    the standard, some of them with the usual magic number.
    """

    little: bool
    units: int
    header_bytes: tuple[int, ...]


_STANDARD: Final = (16, 24, 20)
"""The standard; Red Hat 6.1 and SuSE 6.3; Nokia firewalls."""
_PATCHED: Final = (24, 28)
"""Kuznetzov's patches ss990417 and ss990915."""
HEADER_BYTES: Final = frozenset({*_STANDARD, *_PATCHED})
"""The sizes that the header of a record can have."""

_NOTHING: Final = np.empty((len(Record), 0), np.int64)

MAGICS: Final = {
    number.to_bytes(4, "little" if little else "big"): _Kind(little, units, header_bytes)
    for number, units, header_bytes in (
        (signatures.MICROSECONDS, 1_000_000, _STANDARD),
        (signatures.NANOSECONDS, _SECOND_NS, _STANDARD[:1]),
        (signatures.PATCHED, 1_000_000, _PATCHED),
    )
    for little in (False, True)
}


def read_records(
    data: Bytes,
    start: int = 0,
    stop: int | None = None,
    context: Context | None = None,
    most_records: int = BLOCK_RECORDS,
) -> Iterator[Records]:
    """Yield the records of a classic capture file that begin in ``[start, stop)``.

    `context` is that of the record at `start`. It is None at the start of the file, which begins
    with one of the `MAGICS`. At most `most_records` are yielded together.
    """
    limit = len(data) if stop is None else stop
    if context is None:
        if len(data) < FILE_HEADER_BYTES:
            missing = Truncated("pcap", "File Header", 0, FILE_HEADER_BYTES, len(data), _SPEC)
            yield _records(_NOTHING, 0, 0, missing)
            return
        start, context = FILE_HEADER_BYTES, read_header(data)
    at, [interface] = start, context.interfaces
    while (block := _walk(data, at, limit, context, most_records)).shape[1]:
        at = int(block[Record.START, -1] + block[Record.CAPTURED, -1])
        yield _records(block, interface.link, at)
    damage = _damage(data, at, context) if at < limit else None
    yield _records(_NOTHING, interface.link, at, damage, context)


def find_record(data: Bytes, start: int, stop: int, context: Context) -> int | None:
    """Return where the first record in ``[start, stop)`` begins, a guess; None if there is none."""
    [interface] = context.interfaces
    offset = record_kernels.find_record(
        data,
        start,
        stop,
        len(data),
        context.little,
        context.header_bytes,
        interface.units,
        _most_bytes(interface),
    )
    return None if offset < 0 else offset


def read_header(data: Bytes) -> Context:
    """Read a file header, and detect the size of record headers from the first records."""
    kind = MAGICS[data[:4].tobytes()]
    order = "<u4" if kind.little else ">u4"
    snapshot_bytes, link = (int(value) for value in data[16:24].view(order))
    interface = Interface(link & _LINK_MASK, snapshot_bytes, kind.units)
    usual, *patched = (Context(kind.little, (interface,), size) for size in kind.header_bytes)
    if not patched or _chains(data, usual):
        return usual
    return max((usual, *patched), key=partial(_plausibility, data))


def _most_bytes(interface: Interface) -> int:
    return min(max(interface.snapshot_bytes, USUAL_RECORD_BYTES), MAX_RECORD_BYTES)


def _records(
    grid: Grid,
    link: int,
    stop: int,
    damage: DecodeError | None = None,
    context: Context | None = None,
) -> Records:
    return Records(
        times_ns=grid[Record.TICKS],
        starts=grid[Record.START],
        captured=grid[Record.CAPTURED],
        originals=grid[Record.ORIGINAL],
        links=np.full(grid.shape[1], link, np.int64),
        stop=stop,
        damage=damage,
        context=context,
    )


def _walk(
    data: Bytes, start: int, limit: int, context: Context, most_records: int = BLOCK_RECORDS
) -> Grid:
    [interface] = context.interfaces
    grid = np.empty((len(Record), most_records), np.int64)
    count = record_kernels.walk_records(
        data,
        start,
        limit,
        len(data),
        context.little,
        context.header_bytes,
        _SECOND_NS // interface.units,
        _most_bytes(interface),
        grid,
    )
    return grid[:, :count]


def _chains(data: Bytes, context: Context) -> bool:
    """Return whether complete records, read with this context, lead to the end of the file.

    Many in a row are enough if none of them is empty. Their times and original lengths are not
    checked: a clock may be set during a capture, and some programs write lengths that no packet
    had. Wrong contexts do not pass by chance, except over zero bytes: records without bytes are
    evidence only if they lead to the end of the file.
    """
    at, most_records = FILE_HEADER_BYTES, _TRIED_RECORDS
    while (grid := _walk(data, at, len(data), context, most_records)).shape[1]:
        if grid.shape[1] == most_records and grid[Record.CAPTURED].all():
            return True
        release(data, at, _end_of(grid))
        at, most_records = _end_of(grid), BLOCK_RECORDS
    return at == len(data)


def _end_of(grid: Grid) -> int:
    """Return where the last of a file's first records ends."""
    if not grid.shape[1]:
        return FILE_HEADER_BYTES
    return int(grid[Record.START, -1] + grid[Record.CAPTURED, -1])


def _plausibility(data: Bytes, context: Context) -> tuple[int, int]:
    """Return how plausible the first records are with this context, as a number to compare.

    Greatest if they end at the end of the file, less if the last is truncated. A single record is
    no evidence.
    """
    grid = _walk(data, FILE_HEADER_BYTES, len(data), context, _TRIED_RECORDS)
    good = grid[Record.CAPTURED] <= grid[Record.ORIGINAL]
    good[1:] &= np.abs(np.diff(grid[Record.TICKS])) < _LONG_NS
    if not good.all():
        return 0, int(good.argmin())
    at = _end_of(grid)
    if len(good) > 1 and (at == len(data) or len(good) == _TRIED_RECORDS):
        return 2, 0
    return (0, len(good)) if isinstance(_damage(data, at, context), LimitExceeded) else (1, 0)


def _damage(data: Bytes, at: int, context: Context) -> DecodeError | None:
    """Return the error of the record at `at`; None at the end of the file."""
    left, header_bytes = len(data) - at, context.header_bytes
    if left == 0:
        return None
    if left < header_bytes:
        return Truncated("pcap", "Packet Record", at, header_bytes, left, _SPEC)
    captured = int(data[at + 8 : at + 12].view("<u4" if context.little else ">u4")[0])
    if captured > (most_bytes := _most_bytes(*context.interfaces)):
        problem = f"is {captured}, over {most_bytes}"
        return LimitExceeded("pcap", "Captured Packet Length", at + 8, problem, _SPEC)
    return Truncated("pcap", "Packet Data", at + header_bytes, captured, left - header_bytes, _SPEC)
