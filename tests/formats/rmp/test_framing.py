"""Where messages begin and end: a stream that is one packet, and framed ones."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from tests.formats.rmp.make import (
    DOMAIN,
    MORE,
    REPLY_TO,
    SEGMENT,
    framed,
    message,
    random_packet,
    take_apart,
)
from tests.formats.rmp.subject import FORMATS
from tests.readings import assert_one_reading, table_of
from wireyard.errors import LimitExceeded, UsageError
from wireyard.formats import get_format, sniff
from wireyard.formats.rmp.context import MessageContext
from wireyard.formats.rmp.framing import find_header, frame_size, last_context, next_context
from wireyard.formats.rmp.layout import COLUMNS, MAX_PACKET_BYTES

LIMIT = MAX_PACKET_BYTES
FRAMED = FORMATS["rmp/framed"].context
THREE = message(MORE | DOMAIN, b"a") + message(MORE) + message(0, b"ccc")
ONE_BROKEN = message(MORE, b"a") + message(SEGMENT, b"b", segment=(1, 2, 1)) + message()


def spans(data: bytes, label: str) -> list[tuple[int, int, str, int]]:
    table = table_of(data, compiled=False, format=label)
    names = ("offset", "length", "status", "message_in_packet")
    return list(zip(*(table[name].to_pylist() for name in names), strict=True))


def test_a_stream_is_one_packet() -> None:
    assert spans(THREE, "rmp") == [
        (0, 7, "ok", 0),
        (7, 4, "ok", 1),
        (11, 5, "ok", 2),
    ]


def test_a_framed_stream_has_packets_after_each_other() -> None:
    data = framed(THREE, message(0, b"x"), THREE)
    assert spans(data, "rmp/framed") == [
        (0, 9, "ok", 0),
        (9, 4, "ok", 1),
        (13, 5, "ok", 2),
        (18, 5, "ok", 0),
        (23, 9, "ok", 0),
        (32, 4, "ok", 1),
        (36, 5, "ok", 2),
    ]
    offsets = table_of(data, compiled=False, format="rmp/framed")["packet_offset"].to_pylist()
    assert offsets == [0, 0, 0, 18, 23, 23, 23]


@pytest.mark.parametrize("label", FORMATS)
def test_a_packet_that_breaks_a_rule_is_one_row(label: str) -> None:
    broken = [
        ONE_BROKEN,
        message(MORE, b"a") + message(MORE, b"b"),
        message(MORE, b"a", length=2),
        message(DOMAIN)[:3],
        message(MORE, b"a") + b"\0",
    ]
    for packet in broken:
        assert take_apart(packet) is None
        if FORMATS[label].context & FRAMED:
            data, size = framed(THREE, packet, THREE), len(packet) + 2
            found = spans(data, label)
            assert found[3] == (18, size, "malformed", found[3][3])
            assert [span[2] for span in found] == ["ok"] * 3 + ["malformed"] + ["ok"] * 3
        else:
            [(start, length, status, _)] = spans(packet, label)
            assert (start, length, status) == (0, len(packet), "malformed")


@pytest.mark.parametrize("label", ["rmp", "rmp/list-order"])
def test_one_message_that_others_should_follow_is_malformed(label: str) -> None:
    """Its bytes are those of a well-formed first message; the end of the stream tells."""
    data = message(MORE | REPLY_TO, b"a", list_order="list" in label)
    row = assert_one_reading(data, Random(1), format=label).to_pylist()[0]
    assert (row["offset"], row["length"], row["status"]) == (0, len(data), "malformed")
    assert (row["error"]["code"], row["error"]["offset"]) == ("nothing_follows", len(data))
    assert (row["data"], row["more_follows"]) == (b"a", True)


def test_the_end_of_a_stream_is_in_the_context_of_its_last_frame() -> None:
    for context in (0, next_context(THREE[:7], 0)):
        last = last_context(context)
        assert (
            MessageContext.of(last) == MessageContext.of(context)._replace(at_end=True)
            and last < 1 << 63
        )
        assert next_context(b"x", last) == next_context(b"x", context)
    assert last_context(FRAMED) == FRAMED


def test_nothing_is_said_before_the_packet_is_there() -> None:
    """Its last message may break a rule, and then nothing of it counts."""
    for size in range(len(THREE)):
        assert frame_size(THREE, 0, size, LIMIT) is None
    assert frame_size(THREE, 0, len(THREE), LIMIT) is None
    assert frame_size(THREE, 0, len(THREE), LIMIT, 0, True) == 7
    data = framed(THREE)
    for size in range(len(data)):
        assert frame_size(data, 0, size, LIMIT, FRAMED) is None
        assert frame_size(data[:size], 0, size, LIMIT, FRAMED, True) is None
    assert frame_size(data, 0, len(data), LIMIT, FRAMED) == 9


def test_positions_count_from_the_view() -> None:
    data = b"..." + framed(THREE) + b"...."
    assert frame_size(memoryview(data), 3, len(data), LIMIT, FRAMED) == 9
    assert frame_size(memoryview(b".." + THREE), 2, 2 + len(THREE), LIMIT, 0, True) == 7


def test_later_messages_need_their_heads_only() -> None:
    after = next_context(framed(THREE)[:9], FRAMED)
    assert MessageContext.of(after) == MessageContext(False, True, ordinal=1, before=9, left=9)
    rest = framed(THREE)[9:]
    assert [frame_size(rest[:size], 0, size, LIMIT, after) for size in range(6)] == [
        None, None, None, None, 4, 4,
    ]  # fmt: skip
    last = next_context(rest[:4], after)
    assert MessageContext.of(last) == MessageContext(False, True, ordinal=2, before=13, left=5)
    assert frame_size(rest[4:6], 0, 2, LIMIT, last) == 5
    assert next_context(rest[4:], last) == FRAMED


def test_the_last_message_of_a_stream_ends_with_it() -> None:
    last = next_context(THREE[7:11], next_context(THREE[:7], 0))
    assert frame_size(THREE, 11, len(THREE), LIMIT, last) is None
    assert frame_size(THREE, 11, len(THREE), LIMIT, last, True) == 5


@pytest.mark.parametrize("context", [0, FRAMED])
def test_a_packet_over_the_limit_is_refused(context: int) -> None:
    packet = message(0, bytes(98))
    data = framed(packet) if context else packet
    assert frame_size(data, 0, len(data), len(data), context, True) == len(data)
    with pytest.raises(LimitExceeded) as caught:
        frame_size(data, 0, len(data), len(data) - 1, context)
    assert (caught.value.field, caught.value.offset) == ("packet", 0)


def test_no_packet_is_longer_than_transports_take() -> None:
    data = bytes(MAX_PACKET_BYTES + 1)
    assert frame_size(data, 0, MAX_PACKET_BYTES, 1 << 40, 0, True) == MAX_PACKET_BYTES
    with pytest.raises(LimitExceeded):
        frame_size(data, 0, len(data), 1 << 40)
    [row] = table_of(data, compiled=False, format="rmp").to_pylist()
    assert (row["status"], row["length"]) == ("garbage", len(data))
    assert row["error"]["code"] == "limit_exceeded"


def test_the_largest_packet_has_its_places_in_the_context() -> None:
    count = MAX_PACKET_BYTES // 4
    data = message(MORE) * (count - 1) + message(0, b"xx")
    context = 0
    view = memoryview(data)
    for place in range(0, 8):
        assert MessageContext.of(context).ordinal == place
        assert frame_size(view, 4 * place, len(view), LIMIT, context, True) == 4
        context = next_context(view[4 * place : 4 * place + 4], context)
    last = MessageContext(False, False, ordinal=count - 1, before=4 * (count - 1))
    assert MessageContext.of(last.context) == last and last.context < 1 << 63
    framed_last = MessageContext(True, True, ordinal=16383, before=65533, left=65535)
    assert MessageContext.of(framed_last.context) == framed_last


def test_nothing_is_found_and_nothing_sniffed() -> None:
    data = framed(THREE) * 3
    assert find_header(data, 5, len(data), LIMIT) == (len(data), True)
    assert sniff(THREE) is None and sniff(data) is None


def test_dialects_are_named() -> None:
    with pytest.raises(UsageError, match="rmp/framed-list-order"):
        get_format("rmp/flag-order")


@pytest.mark.parametrize("label", FORMATS)
def test_every_reading_of_random_streams_agrees(label: str) -> None:
    rng = Random(label)
    context = FORMATS[label].context
    for _ in range(60):
        count = rng.choice((1, 1, 5, 20))
        packets = [random_packet(rng, list_order="list" in label) for _ in range(count)]
        for place, packet in enumerate(packets):
            if rng.random() < 0.3:
                damaged = bytearray(packet)
                for _ in range(rng.choice((1, 3))):
                    damaged[rng.randrange(len(damaged))] = rng.randrange(256)
                packets[place] = bytes(damaged[: rng.choice((None, rng.randrange(len(damaged))))])
        data = framed(*packets) if context & FRAMED else packets[0]
        if data and rng.random() < 0.2:
            data = data[: rng.randrange(1, len(data) + 1)]
        check_against_the_specification(data, label, rng)


def check_against_the_specification(data: bytes, label: str, rng: Random) -> None:
    """Assert that the rows are what taking the packets apart by hand says."""
    rows = assert_one_reading(data, rng, format=label).to_pylist()
    expected: list[tuple[int, int, str]] = []
    said: list[dict[str, Any]] = []
    at = 0
    is_framed = FORMATS[label].context & FRAMED != 0
    while at < len(data):
        head = 2 if is_framed else 0
        stop = len(data)
        if is_framed:
            stop = at + 2 + int.from_bytes(data[at : at + 2], "big")
            if len(data) - at < 2 or stop > len(data):
                expected.append((at, len(data) - at, "tail"))
                break
        messages = take_apart(data[at + head : stop], list_order="list" in label)
        if messages is None:
            expected.append((at, stop - at, "malformed"))
        for place, one in enumerate(messages or ()):
            start = at + (head + one["start"] if place else 0)
            expected.append((start, at + head + one["stop"] - start, "ok"))
            said.append({**one, "packet_offset": at, "message_in_packet": place})
        at = stop
    found = [(row["offset"], row["length"], row["status"]) for row in rows]
    assert found == expected
    for row, one in zip([row for row in rows if row["status"] == "ok"], said, strict=True):
        one = {name: value for name, value in one.items() if name not in ("start", "stop")}
        for name in {column.name for column in COLUMNS} - one.keys() - {"data_size", "layer_name"}:
            assert row[name] is None, name
        assert {name: row[name] for name in one} == one
        assert row["data_size"] == len(one["data"])


def test_a_framed_stream_that_lies_in_one_packet_stays_in_step() -> None:
    data = framed(b"", message(MORE, b"a"), THREE)
    assert [span[2] for span in spans(data, "rmp/framed")] == ["malformed"] * 2 + ["ok"] * 3
