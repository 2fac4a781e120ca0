"""Where packets begin and end: the size at a start, and the first believable header after it."""

from __future__ import annotations

import struct
from random import Random

import pytest

from tests.make import MAGIC, packet, random_packet, variety
from wireyard.errors import DecodeError, LimitExceeded, Malformed
from wireyard.formats.jmq.framing import find_header, frame_size
from wireyard.formats.jmq.layout import MAX_PACKET_BYTES, PREFIX_BYTES

LIMIT = 1 << 20


@pytest.mark.parametrize("data", variety(), ids=range(len(variety())))
def test_a_packet_has_its_size_wherever_it_stands(data: bytes) -> None:
    assert frame_size(data, 0, len(data), LIMIT) == len(data)
    view = memoryview(b"..." + data + b"....")
    assert frame_size(view, 3, len(view), LIMIT) == len(data)


def test_more_bytes_are_needed_until_the_size_is_there() -> None:
    data = packet(body=b"x" * 20)
    for have in range(len(data) + 1):
        expected = None if have < 12 else len(data)
        assert frame_size(data[:have], 0, have, LIMIT) == expected
        # What stands behind `stop` must not be looked at.
        assert frame_size(data, 0, have, LIMIT) == expected


def test_wrong_bytes_are_refused_as_soon_as_they_are_there() -> None:
    for place in range(4):
        changed = bytearray(packet())
        changed[place] ^= 1
        data = bytes(changed)
        for have in range(place + 1, 14):
            with pytest.raises(Malformed) as caught:
                frame_size(data, 0, have, LIMIT)
            assert caught.value.code == "bad_magic"
        for have in range(place + 1):
            assert frame_size(data, 0, have, LIMIT) is None


@pytest.mark.parametrize("size", [0, 11, 12, 71, -1, -(2**31)])
def test_a_size_below_the_header_is_refused(size: int) -> None:
    with pytest.raises(Malformed) as caught:
        frame_size(packet(size=size), 0, 72, LIMIT)
    assert (caught.value.code, caught.value.field, caught.value.offset) == ("bad_size", "size", 8)


@pytest.mark.parametrize(("size", "limit"), [(73, 72), (2**31 - 1, MAX_PACKET_BYTES)])
def test_a_size_over_the_limit_is_refused(size: int, limit: int) -> None:
    with pytest.raises(LimitExceeded) as caught:
        frame_size(packet(size=size), 0, 72, limit)
    assert caught.value.field == "size"
    assert frame_size(packet(size=limit), 0, 72, limit) == limit


def test_an_unknown_version_still_has_a_size() -> None:
    assert frame_size(packet(version=400, size=100), 0, 72, LIMIT) == 100


# --- finding a header -----------------------------------------------------------------------


def believable(data: bytes, at: int, limit: int) -> bool:
    """Return whether a magic and a possible size are there, straight from the specification."""
    magic, version, _, size = struct.unpack_from(">4sHhi", data, at)
    least = 72 if version in (103, 200, 301) else 12
    return bool(magic == MAGIC and least <= size <= limit)


def first_believable(data: bytes, start: int, limit: int) -> int:
    for at in range(start, len(data) - 12 + 1):
        if believable(data, at, limit):
            return at
    return len(data)


@pytest.mark.parametrize("data", variety(), ids=range(len(variety())))
def test_every_well_formed_header_is_found_behind_anything(data: bytes) -> None:
    for before in (0, 1, 3, 71, 5000):
        noise = Random(before).randbytes(before)
        assert find_header(noise + data, 0, before + len(data), LIMIT) == (before, True)


FIELD = {"version": (4, 2), "size": (8, 4), "offset": (52, 4), "section": (56, 4),
         "priority": (60, 1), "encryption": (61, 1), "flags": (62, 2)}  # fmt: skip


@pytest.mark.parametrize(
    ("field", "value", "found"),
    [
        ("version", 102, True),
        ("version", 200, True),
        ("version", 65535, True),
        ("size", 71, False),
        ("size", 0x80000048, False),
        ("size", LIMIT, True),
        ("size", LIMIT + 1, False),
        ("offset", 71, True),
        ("section", 0xFFFFFFFF, True),
        ("priority", 10, True),
        ("priority", 255, True),
        ("encryption", 1, True),
        ("flags", 0xFFFF, True),
    ],
)
def test_only_what_no_version_changes_counts(field: str, value: int, found: bool) -> None:
    at, width = FIELD[field]
    data = bytearray(packet(body=b"x" * 12))
    data[at : at + width] = value.to_bytes(width, "big")
    stream = b"lead" + bytes(data)
    assert believable(stream, 4, LIMIT) is found
    assert (find_header(stream, 0, len(stream), LIMIT) == (4, True)) is found


@pytest.mark.parametrize(("size", "found"), [(11, False), (12, True), (71, True)])
def test_an_unknown_version_may_have_a_shorter_header(size: int, found: bool) -> None:
    """Of another version, only the first 12 bytes are known."""
    data = b"lead" + packet(version=400, size=size)
    assert (find_header(data, 0, len(data), LIMIT) == (4, True)) is found
    if found:
        assert frame_size(data, 4, len(data), LIMIT) == size
    else:
        with pytest.raises(Malformed):
            frame_size(data, 4, len(data), LIMIT)


def test_a_header_cut_off_is_not_certain() -> None:
    data = b"lead" + packet(body=b"body")
    for stop in range(5, 4 + PREFIX_BYTES):
        assert find_header(data, 0, stop, LIMIT) == (4, False), stop
        assert find_header(data[:stop], 0, stop, LIMIT) == (4, False)
    assert find_header(data, 0, 4 + PREFIX_BYTES, LIMIT) == (4, True)


def test_the_end_of_nothing_is_certain() -> None:
    assert find_header(b"", 0, 0, LIMIT) == (0, True)
    assert find_header(b"\0" * 500, 100, 400, LIMIT) == (400, True)


def test_a_search_is_that_of_trying_every_position() -> None:
    rng = Random(3)
    for _ in range(300):
        parts = [rng.randbytes(rng.randrange(60)) for _ in range(4)]
        parts += [MAGIC[: rng.randrange(5)] for _ in range(3)]
        parts += [random_packet(rng)[: rng.choice((12, 60, 72, 9999))] for _ in range(2)]
        wrong = bytearray(random_packet(rng))
        wrong[rng.randrange(4, 64)] ^= 1 << rng.randrange(8)
        parts.append(bytes(wrong))
        rng.shuffle(parts)
        data = b"".join(parts)
        start = rng.randrange(len(data))
        position, certain = find_header(data, start, len(data), LIMIT)
        expected = first_believable(data, start, LIMIT)
        if certain:
            assert position == expected
        else:
            # Held back: nothing before it is a header, and what is there could begin one.
            assert position <= expected and len(data) - position < PREFIX_BYTES
            assert MAGIC.startswith(data[position : position + 4])
        views = (memoryview(data), memoryview(b"?" * 7 + data)[7:])
        assert all(
            find_header(view, start, len(data), LIMIT) == (position, certain) for view in views
        )


def test_a_search_goes_across_any_inner_boundary() -> None:
    """The pieces that a view is searched in are no boundaries for a magic."""
    data = packet()
    for before in (*range(4090, 4100), 4096 * 5 - 2, 4096 * 21 - 1, (1 << 20) + 4093):
        stream = bytes(before) + data
        for view in (stream, memoryview(stream)):
            assert find_header(view, 0, len(stream), LIMIT) == (before, True)


def test_a_view_full_of_magic_is_searched_in_time_that_grows_with_it() -> None:
    data = memoryview(MAGIC * 100_000)
    position, _ = find_header(data, 1, len(data), LIMIT)
    assert position > len(data) - PREFIX_BYTES


def test_nothing_else_than_an_error_about_the_start_is_raised() -> None:
    rng = Random(8)
    for _ in range(2000):
        data = bytearray(random_packet(rng)[: rng.randrange(1, 200)])
        data[rng.randrange(min(len(data), 16))] = rng.randrange(256)
        try:
            size = frame_size(bytes(data), 0, len(data), LIMIT)
        except DecodeError as error:
            assert error.offset in (0, 8)
        else:
            assert size is None or 12 <= size <= LIMIT


def test_the_prefix_is_the_same_in_every_version() -> None:
    assert struct.unpack(">4sHhi", packet(version=103)[:12]) == (MAGIC, 103, 1, 72)
