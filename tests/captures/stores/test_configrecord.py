"""The configuration record of a cluster."""

from __future__ import annotations

import struct

import pytest

from tests.captures.stores.judge import judged, rows_of, store_file
from wireyard import encode
from wireyard.captures.stores.kinds import Kind
from wireyard.formats.gpacket.packet import Packet

MAGIC = bytes.fromhex("12345678")


def entry(number: int) -> bytes:
    """Return a change and when it was made."""
    data = encode(Packet(packet_type=27, sequence=number, payload=b"p" * number))
    return struct.pack(">qi", 1000 + number, len(data)) + data


def test_entries_are_gpackets() -> None:
    data = MAGIC + entry(1) + entry(2)
    found = judged(Kind.CONFIG, data)
    assert [one.state.value for one in found] == ["header", "allocated", "allocated"]
    assert [one.contents.timestamp_ms for one in found] == [None, 1001, 1002]
    rows = rows_of(store_file(Kind.CONFIG, data))
    assert [(row["format"], row["sequence"]) for row in rows if row["status"] == "ok"] == [
        ("gpacket", 1),
        ("gpacket", 2),
    ]


def test_there_may_be_none() -> None:
    assert [one.state.value for one in judged(Kind.CONFIG, MAGIC)] == ["header"]


@pytest.mark.parametrize("size", [-1, 0, 7, 36, 38, 1 << 30])
def test_damage_goes_on_to_the_end_and_loses_nothing(size: int) -> None:
    first = bytearray(entry(1))
    first[8:12] = struct.pack(">i", size)
    data = MAGIC + first + entry(2)
    found = judged(Kind.CONFIG, data)
    assert [one.stop for one in found] == [4, len(data)]
    assert found[1].status in ("garbage", "tail")
    rows = rows_of(store_file(Kind.CONFIG, data))
    assert [row["sequence"] for row in rows if row["status"] == "ok"] == [1, 2]


def test_another_magic_is_garbage() -> None:
    (found,) = judged(Kind.CONFIG, b"\0" + MAGIC[1:] + entry(1))
    assert (found.status, found.error and found.error.code) == ("garbage", "bad_magic")


def test_every_prefix_is_accounted_for() -> None:
    data = MAGIC + entry(1) + entry(2)
    whole = {0, 4, 4 + len(entry(1))}
    for stop in range(len(data)):
        statuses = {one.status for one in judged(Kind.CONFIG, data[:stop])}
        assert (statuses <= {"ok"}) == (stop in whole), stop
