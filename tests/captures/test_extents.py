"""One capture file cut for many readers: the same records, wherever it is cut."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from random import Random

import numpy as np
import pytest

from tests.captures.make import (
    BEGAN_NS,
    Packet,
    enhanced,
    ethernet,
    interface,
    ipv4,
    obsolete,
    option,
    packets,
    pcap,
    section,
    simple,
    tcp,
)
from tests.captures.test_fuzz import corpus, damage
from tests.fuzz import time_bound
from wireyard.arrays import Bytes
from wireyard.captures.files.extents import enter_extent, first_context, plan_extents
from wireyard.captures.files.file import CaptureFile, read_records
from wireyard.captures.records import Records
from wireyard.errors import SourceError

Row = tuple[int, int, int, int, int]


def rows_of(blocks: list[Records]) -> list[Row]:
    columns = [
        np.concatenate([getattr(block, name) for block in blocks]).tolist()
        for name in ("times_ns", "starts", "captured", "originals", "links")
    ]
    return list(zip(*columns, strict=True))


def whole(path: Path) -> tuple[list[Row], str | None]:
    file = CaptureFile.open(path)
    return rows_of(list(file.records())), str(file.damage) if file.damage else None


def in_pieces(path: Path, piece_bytes: int) -> tuple[list[Row], str | None]:
    """Return the rows of all extents, each read by itself."""
    found: list[Row] = []
    reason = None
    extents = plan_extents(str(path), piece_bytes)
    assert extents is not None
    for extent in extents:
        file = CaptureFile.map(str(path), extent)
        rows = rows_of(list(file.records()))
        assert len(rows) == extent.packets
        found += rows
        assert reason is None
        reason = str(file.damage) if file.damage else None
    assert all(one.stop <= other.start for one, other in pairwise(extents))
    return found, reason


def sections() -> bytes:
    """Return sections of both byte orders whose interfaces are not those of the first."""
    nanoseconds = option(9, b"\x09")
    return b"".join(
        [
            section(),
            interface(),
            interface(101, options=nanoseconds),
            *(enhanced(bytes([n]) * n, 10**15 + n, n % 2) for n in range(40)),
            interface(113),
            *(enhanced(b"late", 10**15 + n, n % 3) for n in range(20)),
            section(">"),
            interface(228, 8, option(9, b"\x86", ">"), order=">"),
            *(enhanced(bytes(n), 10**9 + n, 0, order=">") for n in range(30)),
            *(simple(bytes(20), order=">") for _ in range(5)),
            *(obsolete(bytes(7), 5, 0, order=">") for _ in range(5)),
            section(),
            *(enhanced(b"of no interface", 1, 0) for _ in range(5)),
        ]
    )


def captures() -> dict[str, bytes]:
    rng = Random(5)
    inner = pcap(packets([rng.randbytes(30) for _ in range(20)]))[24:]
    carriers = [ethernet(ipv4(tcp(1, 2, n, inner))) for n in range(6)]
    zeros = [bytes(rng.randrange(400)) for _ in range(50)]
    counters = [b"".join((n % 9).to_bytes(4, "little") for n in range(90)) for _ in range(9)]
    return {
        "plain": pcap(packets([rng.randbytes(rng.randrange(1, 200)) for _ in range(60)])),
        "big endian ns": pcap(packets(zeros), order=">", magic=0xA1B23C4D, unit_ns=1),
        "wide headers": pcap(packets(zeros), filler=bytes(8)),
        "counters": pcap(packets(counters)),
        "captures in packets": pcap(packets(carriers)),
        "a last record cut off": pcap(packets(carriers))[:-100],
        "no packets": pcap([]),
        "an early end": b"\xd4\xc3\xb2\xa1\0\0",
        "years between": pcap([Packet(b"x" * 50, BEGAN_NS * (n % 2)) for n in range(40)]),
        "sections": sections(),
        "sections cut off": sections()[:-9],
        "a section in a packet": section() + interface() + enhanced(sections()) + enhanced(b"x"),
        **{f"corpus {number}": data for number, data in enumerate(corpus())},
    }


@pytest.mark.parametrize("name", captures())
def test_extents_are_the_whole(tmp_path: Path, name: str) -> None:
    path = tmp_path / "capture"
    path.write_bytes(captures()[name])
    expected = whole(path)
    size = path.stat().st_size
    for piece_bytes in (1, 3, 16, 50, 77, 200, 1000, size // 2 or 1, size, size + 1):
        if size // piece_bytes < 4000:
            assert in_pieces(path, piece_bytes) == expected, piece_bytes


def test_damage_is_found_where_one_reader_finds_it(tmp_path: Path) -> None:
    rng = Random(9)
    path = tmp_path / "capture"
    kinds = list(captures().values())
    read = 0
    with time_bound():
        for _ in range(300):
            path.write_bytes(damage(rng.choice(kinds), rng) or b"x")
            try:
                expected = whole(path)
            except SourceError:
                continue
            assert in_pieces(path, rng.choice((64, 300, 2000))) == expected
            read += 1
    assert read > 200


def test_guesses_are_good_where_nothing_misleads() -> None:
    wrong = found = 0
    for name in ("plain", "big endian ns", "wide headers", "sections", "corpus 0", "corpus 2"):
        data = np.frombuffer(captures()[name], np.uint8)
        heads = set(_places(data, name))
        context = first_context(data, name)
        for start in range(24, len(data) - 2000, 7):
            entered = enter_extent(data, start, len(data), context)
            found += entered is not None
            wrong += entered is not None and entered not in heads
    assert found > 2000 and wrong == 0


def _places(data: Bytes, name: str) -> list[int]:
    """Return where everything in a capture begins that is a record or a block."""
    if name in ("sections", "corpus 0"):
        at, places, little = 0, [], True
        while at < len(data):
            if data[at : at + 4].tobytes() == b"\n\r\r\n":
                little = data[at + 8] == 0x4D
            places.append(at)
            at += int(data[at + 4 : at + 8].view("<u4" if little else ">u4")[0])
        return places
    header = 24 if name == "wide headers" else 16
    return [start - header for block in read_records(data, name) for start in block.starts.tolist()]
