"""Where packets begin and end: the size at a start, and the first believable header after it."""

from __future__ import annotations

import struct
from random import Random

import pytest

from tests.formats.gpacket.make import (
    LINK,
    MAGIC,
    gpacket,
    link,
    message,
    random_packet,
    variety,
)
from tests.formats.gpacket.subject import SUBJECT
from tests.make import packet as jmq_packet
from tests.mutations import mutate_packet
from tests.readings import table_of
from wireyard.errors import DecodeError, LimitExceeded, Malformed
from wireyard.formats import get_format, sniff
from wireyard.formats.gpacket.framing import EXAMINED_BYTES, begins, find_header, frame_size
from wireyard.formats.gpacket.layout import MAX_PACKET_BYTES

LIMIT = 1 << 20


@pytest.mark.parametrize("data", variety(), ids=range(len(variety())))
def test_a_packet_has_its_size_wherever_it_stands(data: bytes) -> None:
    assert frame_size(data, 0, len(data), LIMIT) == len(data)
    view = memoryview(b"..." + data + b"....")
    assert frame_size(view, 3, len(view), LIMIT) == len(data)


@pytest.mark.parametrize("data", variety(), ids=range(len(variety())))
def test_more_bytes_are_needed_until_the_size_and_the_magic_are_there(data: bytes) -> None:
    for have in range(min(len(data), 40) + 1):
        expected = None if have < 12 else len(data)
        assert frame_size(data[:have], 0, have, LIMIT) == expected
        # What stands behind `stop` must not be looked at.
        assert frame_size(data, 0, have, LIMIT) == expected


@pytest.mark.parametrize("size", [0, 35, -1, -(2**31)])
@pytest.mark.parametrize("documented", [False, True])
def test_a_size_below_the_header_is_refused(size: int, documented: bool) -> None:
    with pytest.raises(Malformed) as caught:
        frame_size(gpacket(size=size, documented=documented), 0, 36, LIMIT)
    assert (caught.value.code, caught.value.offset) == ("bad_size", 8 if documented else 4)


@pytest.mark.parametrize(
    ("data", "limit", "fits"),
    [
        (gpacket(size=101), 100, False),
        (gpacket(size=100), 100, True),
        (gpacket(size=2**31 - 1), MAX_PACKET_BYTES, False),
        (link(size=65536), LIMIT, True),
        (link(size=65537), LIMIT, False),
        (link(size=101), 100, False),
    ],
)
def test_a_size_over_the_limit_is_refused(data: bytes, limit: int, fits: bool) -> None:
    if fits:
        assert frame_size(data, 0, len(data), limit) is not None
        return
    with pytest.raises(LimitExceeded):
        frame_size(data, 0, len(data), limit)


def test_a_link_packet_has_at_least_its_header() -> None:
    assert frame_size(link(size=16), 0, 16, LIMIT) == 16
    with pytest.raises(Malformed, match="16"):
        frame_size(link(size=15), 0, 16, LIMIT)


def test_an_unknown_version_still_has_a_size() -> None:
    for documented in (False, True):
        for version in (0, 100, 351, 65535):
            data = gpacket(version=version, size=100, documented=documented)
            assert frame_size(data, 0, 36, LIMIT) == 100


def test_after_an_unknown_version_the_next_packet_is_read() -> None:
    odd = gpacket(version=351, payload=b"x" * 9, property_size=5000)
    data = gpacket() + odd + gpacket(documented=True) + link() + gpacket()
    table = table_of(data, format=SUBJECT.format, compiled=False)
    assert table["status"].to_pylist() == ["ok", "malformed", "ok", "ok", "ok"]
    assert table["error"][1].as_py()["code"] == "unsupported_version"
    assert table["header_order"].to_pylist() == ["shipped"] * 2 + ["documented", None, "shipped"]


def test_neither_magic_nor_link_version_begins_no_packet() -> None:
    with pytest.raises(Malformed) as caught:
        frame_size(bytes(36), 0, 36, LIMIT)
    assert caught.value.code == "bad_magic"


# --- finding a header -----------------------------------------------------------------------


def believable(data: bytes, at: int, limit: int) -> bool:
    """Return whether a whole header that agrees with itself is there, straight from the facts."""
    if len(data) - at >= 16:
        version, kind, size, destination, flags = LINK.unpack_from(data, at)
        known = version == 100 and kind in (1, 2, 3, 4, 5, 6, 7, 9)
        if known and 16 <= size <= min(65536, limit) and destination == 0 and flags in (0, 1):
            return True
    if len(data) - at < 12:
        return False
    magic, *documented = struct.unpack_from(">4sHhi", data, at)
    if magic == MAGIC:
        version, _, size = documented
        # A magic is first that of the header that begins before it.
        return version > 0 and fits(version, size, limit)
    version, _, size, magic = struct.unpack_from(">Hhi4s", data, at)
    if magic != MAGIC or not fits(version, size, limit):
        return False
    if version == 350 or len(data) - at < 20:
        return True
    version, _, size = struct.unpack_from(">Hhi", data, at + 12)
    return version == 0 or not fits(version, size, limit)


def fits(version: int, size: int, limit: int) -> bool:
    return (36 if version == 350 else 12) <= size <= limit


def first_believable(data: bytes, start: int, limit: int) -> int:
    found = (at for at in range(start, len(data)) if believable(data, at, limit))
    return next(found, len(data))


@pytest.mark.parametrize("data", [d for d in variety() if d[2:4] != b"\0\x0c"])
def test_every_well_formed_header_is_found_behind_anything(data: bytes) -> None:
    for before in (0, 1, 3, 35, 5000):
        noise = Random(before).randbytes(before)
        assert find_header(noise + data, 0, before + len(data), LIMIT) == (before, True)


SHIPPED_FIELDS = {"version": (0, 2), "size": (4, 4), "magic": (8, 4), "section": (12, 4)}
LINK_FIELDS = {"version": (0, 2), "type": (2, 2), "size": (4, 4), "id": (8, 4), "flags": (12, 4)}


@pytest.mark.parametrize(
    ("field", "value", "found"),
    [
        ("version", 351, True),
        ("version", 65535, True),
        ("size", 35, False),
        ("size", LIMIT, True),
        ("size", LIMIT + 1, False),
        ("size", 2**32 - 1, False),
        ("magic", 0x7FFFE3C3, False),
        ("section", 2**32 - 1, True),
    ],
)
@pytest.mark.parametrize("documented", [False, True])
def test_only_what_no_version_changes_counts(
    field: str, value: int, found: bool, documented: bool
) -> None:
    data = bytearray(gpacket(payload=b"x" * 12, documented=documented))
    at, width = SHIPPED_FIELDS[field]
    if documented and field != "section":
        at = (at + 4) % 12
    data[at : at + width] = value.to_bytes(width, "big")
    stream = b"lead" + bytes(data)
    assert believable(stream, 4, LIMIT) is found
    assert (find_header(stream, 0, len(stream), LIMIT) == (4, True)) is found


@pytest.mark.parametrize(
    ("field", "value", "found"),
    [
        ("version", 101, False),
        ("type", 8, False),
        ("type", 9, True),
        ("type", 10, False),
        ("type", 0x0104, False),
        ("size", 15, False),
        ("size", 65536, True),
        ("size", 65537, False),
        ("id", 1, False),
        ("flags", 1, True),
        ("flags", 2, False),
    ],
)
def test_every_check_on_a_link_header_counts(field: str, value: int, found: bool) -> None:
    data = bytearray(link(4, b"x" * 40))
    at, width = LINK_FIELDS[field]
    data[at : at + width] = value.to_bytes(width, "big")
    stream = b"lead" + bytes(data)
    assert believable(stream, 4, LIMIT) is found
    assert (find_header(stream, 0, len(stream), LIMIT) == (4, True)) is found


@pytest.mark.parametrize(
    ("data", "whole"),
    [
        (gpacket(payload=b"p"), 12),
        (gpacket(documented=True), 12),
        (gpacket(version=351), 20),
        (gpacket(version=351, documented=True), 12),
        (link(4, b"body"), 16),
    ],
)
def test_a_header_cut_off_is_not_certain(data: bytes, whole: int) -> None:
    """A header may also begin in the last bytes before it, because any version may."""
    stream = b"lead" + data
    for stop in range(5, 4 + whole):
        position, certain = find_header(stream, 0, stop, LIMIT)
        assert position <= 4 and not certain, stop
        assert find_header(stream[:stop], 0, stop, LIMIT) == (position, certain)
    assert find_header(stream, 0, 4 + whole, LIMIT) == (4, True)


def test_the_end_of_nothing_is_certain() -> None:
    assert find_header(b"", 0, 0, LIMIT) == (0, True)
    assert find_header(b"\2" * 500, 100, 400, LIMIT) == (393, False)


@pytest.mark.parametrize("end", [b"\2" * 7, b"\2" * 40, gpacket(version=351)[:8]])
def test_bytes_at_the_end_that_show_no_packet_are_garbage(end: bytes) -> None:
    """Any bytes could be the first of a packet of any version, but nothing shows it."""
    table = table_of(gpacket() + end, format=SUBJECT.format, compiled=False)
    assert table["status"].to_pylist() == ["ok", "garbage"]


@pytest.mark.parametrize("documented", [False, True])
@pytest.mark.parametrize("version", [1, 100, 351, 65535])
def test_packets_of_an_unknown_version_are_found_behind_lost_bytes(
    version: int, documented: bool
) -> None:
    odd = gpacket(version=version, payload=b"x" * 9, documented=documented)
    data = b"\2" * 50 + odd + odd + gpacket()
    table = table_of(data, format=SUBJECT.format, compiled=False)
    assert table["offset"].to_pylist() == [0, 50, 50 + len(odd), 50 + 2 * len(odd)]
    assert table["status"].to_pylist() == ["garbage", "malformed", "malformed", "ok"]


def test_a_search_is_that_of_trying_every_position() -> None:
    rng = Random(3)
    for _ in range(400):
        parts = [rng.randbytes(rng.randrange(60)) for _ in range(3)]
        parts += [MAGIC[: rng.randrange(5)] for _ in range(3)]
        parts += [b"\0\x64\0\4\0\0"[: rng.randrange(7)] + bytes(rng.randrange(9)) for _ in range(2)]
        parts += [random_packet(rng)[: rng.choice((12, 30, 36, 9999))] for _ in range(2)]
        parts.append(mutate_packet(random_packet(rng), rng, SUBJECT))
        parts.append(link(rng.randrange(12), bytes(rng.randrange(20)), flags=rng.randrange(3)))
        rng.shuffle(parts)
        data = b"".join(parts)
        start = rng.randrange(len(data))
        position, certain = find_header(data, start, len(data), LIMIT)
        expected = first_believable(data, start, LIMIT)
        if certain:
            assert position == expected
        else:
            # Held back: nothing before it is a header, and what is there could begin one.
            assert position <= expected and len(data) - position < EXAMINED_BYTES
        views = (memoryview(data), memoryview(b"?" * 7 + data)[7:])
        assert all(
            find_header(view, start, len(data), LIMIT) == (position, certain) for view in views
        )


def test_a_search_goes_across_any_inner_boundary() -> None:
    """The pieces that a view is searched in are no boundaries for a header."""
    for data in (gpacket(), gpacket(documented=True), link()):
        for before in (*range(4080, 4100), 4096 * 5 - 2, (1 << 20) + 4093):
            stream = b"\2" * before + data
            for view in (stream, memoryview(stream)):
                assert find_header(view, 0, len(stream), LIMIT) == (before, True)


@pytest.mark.parametrize("sign", [MAGIC, b"\0\x64\0\4", bytes(4), b"\1\x5e"])
def test_a_view_full_of_signs_is_searched_in_time_that_grows_with_it(sign: bytes) -> None:
    data = memoryview(sign * 50_000)
    position, _ = find_header(data, 1, len(data), LIMIT)
    assert position > len(data) - EXAMINED_BYTES


def test_a_packet_inside_a_payload_does_not_begin_a_frame() -> None:
    data = message(gpacket() + link() + jmq_packet()) + gpacket()
    table = table_of(data, format=SUBJECT.format, compiled=False)
    assert table["status"].to_pylist() == ["ok", "ok"]


# --- telling formats apart ------------------------------------------------------------------


@pytest.mark.parametrize("data", [d for d in variety() if d[2:4] != b"\0\x0c"])
def test_a_stream_shows_what_it_is(data: bytes) -> None:
    assert begins(data)
    assert begins(memoryview(data)[:12])
    assert not begins(data[:11])
    found = sniff(data)
    assert found is not None and found.name == "gpacket"


def test_other_streams_are_not_taken_for_it() -> None:
    assert not begins(b"")
    assert not begins(b"noise" + gpacket())
    assert not begins(jmq_packet())
    assert not begins(bytes(100))
    assert begins(gpacket(version=351)) and begins(gpacket(version=351, documented=True))
    assert not get_format("jmq").evidence.begins(gpacket())


def test_nothing_else_than_an_error_about_the_start_is_raised() -> None:
    rng = Random(8)
    for _ in range(3000):
        data = mutate_packet(random_packet(rng)[: rng.randrange(1, 200)], rng, SUBJECT)
        try:
            size = frame_size(data, 0, len(data), LIMIT)
        except DecodeError as error:
            assert error.offset in (4, 8)
        else:
            assert size is None or 12 <= size <= LIMIT
