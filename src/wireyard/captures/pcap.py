"""Classic capture files: one header, then records (draft-ietf-opsawg-pcap)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from wireyard.captures import magic
from wireyard.captures.layout import MAX_RECORD_BYTES, USUAL_RECORD_BYTES, Record
from wireyard.captures.record_kernels import walk_records
from wireyard.captures.records import BLOCK_RECORDS, Records
from wireyard.errors import DecodeError, LimitExceeded, Truncated

__all__ = ["FILE_HEADER_BYTES", "MAGICS", "read_records"]

Grid = np.ndarray[tuple[int, int], np.dtype[np.int64]]

_SPEC: Final = "draft-ietf-opsawg-pcap"
FILE_HEADER_BYTES: Final = 24
_LINK_MASK: Final = 0xFFFF
"""Above the link type a header may say how long frame check sequences are."""
_JUDGED_RECORDS: Final = 64
"""Records that are walked to tell which size of record header a file has."""

_LONG_NS: Final = 366 * 24 * 3600 * 1_000_000_000
"""Packets that follow each other are not as far apart as numbers that are no times."""


class _Kind(NamedTuple):
    """What a magic number tells.

    `header_bytes` are the sizes a record header may have, the usual one first: patched versions
    of libpcap wrote more fields behind the four of the standard, some under the usual magic.
    """

    little: bool
    unit_ns: int
    header_bytes: tuple[int, ...]


_STANDARD: Final = (16, 24, 20)
"""The standard; Red Hat 6.1 and SuSE 6.3; Nokia firewalls."""
_PATCHED: Final = (24, 28)
"""Kuznetzov's patches ss990417 and ss990915."""

_NOTHING: Final = np.empty((len(Record), 0), np.int64)

MAGICS: Final = {
    number.to_bytes(4, "little" if little else "big"): _Kind(little, unit_ns, header_bytes)
    for number, unit_ns, header_bytes in (
        (magic.MICROSECONDS, 1000, _STANDARD),
        (magic.NANOSECONDS, 1, _STANDARD[:1]),
        (magic.PATCHED, 1000, _PATCHED),
    )
    for little in (False, True)
}


def read_records(data: npt.NDArray[np.uint8]) -> Iterator[Records]:
    """Yield the records of a classic capture file, which begins with one of the `MAGICS`."""
    kind = MAGICS[data[:4].tobytes()]
    if len(data) < FILE_HEADER_BYTES:
        missing = Truncated("pcap", "File Header", 0, FILE_HEADER_BYTES, len(data), _SPEC)
        yield _records(_NOTHING, 0, 0, missing)
        return
    order = "<u4" if kind.little else ">u4"
    snapshot_bytes, link = (int(value) for value in data[16:24].view(order))
    most_bytes = min(max(snapshot_bytes, USUAL_RECORD_BYTES), MAX_RECORD_BYTES)
    header_bytes = _likeliest_header(data, kind, most_bytes)
    at = FILE_HEADER_BYTES
    link &= _LINK_MASK
    while (block := _walk(data, at, kind, header_bytes, most_bytes)).shape[1]:
        at = int(block[Record.START, -1] + block[Record.CAPTURED, -1])
        yield _records(block, link, at)
    yield _records(_NOTHING, link, at, _damage(data, at, kind, header_bytes, most_bytes))


def _records(grid: Grid, link: int, stop: int, damage: DecodeError | None = None) -> Records:
    return Records(
        times_ns=grid[Record.TICKS],
        starts=grid[Record.START],
        captured=grid[Record.CAPTURED],
        originals=grid[Record.ORIGINAL],
        links=np.full(grid.shape[1], link, np.int64),
        stop=stop,
        damage=damage,
    )


def _walk(
    data: npt.NDArray[np.uint8],
    start: int,
    kind: _Kind,
    header_bytes: int,
    most_bytes: int,
    most_records: int = BLOCK_RECORDS,
) -> Grid:
    grid = np.empty((len(Record), most_records), np.int64)
    count = walk_records(
        data, start, len(data), kind.little, header_bytes, kind.unit_ns, most_bytes, grid
    )
    return grid[:, :count]


def _likeliest_header(data: npt.NDArray[np.uint8], kind: _Kind, most_bytes: int) -> int:
    """Return the size of record headers under which the first records make the most sense.

    That is one with which they end where the file ends, else one with which the last is cut off;
    of several the first. One record alone proves nothing.
    """

    def sense(header_bytes: int) -> tuple[int, int]:
        grid = _walk(data, FILE_HEADER_BYTES, kind, header_bytes, most_bytes, _JUDGED_RECORDS)
        good = grid[Record.CAPTURED] <= grid[Record.ORIGINAL]
        good[1:] &= np.abs(np.diff(grid[Record.TICKS])) < _LONG_NS
        if not good.all():
            return 0, int(good.argmin())
        at = FILE_HEADER_BYTES
        if len(good):
            at = int(grid[Record.START, -1] + grid[Record.CAPTURED, -1])
        if len(good) > 1 and (at == len(data) or len(good) == _JUDGED_RECORDS):
            return 2, 0
        damage = _damage(data, at, kind, header_bytes, most_bytes)
        return (0, len(good)) if isinstance(damage, LimitExceeded) else (1, 0)

    return max(kind.header_bytes, key=sense)


def _damage(
    data: npt.NDArray[np.uint8], at: int, kind: _Kind, header_bytes: int, most_bytes: int
) -> DecodeError | None:
    """Return why no record can be read at `at`; None at the end of the file."""
    left = len(data) - at
    if left == 0:
        return None
    if left < header_bytes:
        return Truncated("pcap", "Packet Record", at, header_bytes, left, _SPEC)
    captured = int(data[at + 8 : at + 12].view("<u4" if kind.little else ">u4")[0])
    if captured > most_bytes:
        problem = f"is {captured}, over {most_bytes}"
        return LimitExceeded("pcap", "Captured Packet Length", at + 8, problem, _SPEC)
    return Truncated("pcap", "Packet Data", at + header_bytes, captured, left - header_bytes, _SPEC)
