"""Where packets begin and end: every length, every cut, and what passes for a CONNECT."""

from __future__ import annotations

from random import Random

import pytest

from tests.formats.mqtt.make import (
    VERSIONS,
    binary,
    connack,
    connect,
    packet,
    publish,
    random_stream,
    text,
    variety,
)
from wireyard.errors import LimitExceeded, Malformed
from wireyard.formats import get_format, sniff
from wireyard.formats.mqtt.framing import HEADER_BYTES, begins, find_header, frame_size, opens
from wireyard.formats.mqtt.layout import MAX_PACKET_BYTES
from wireyard.streams.decoder import Decoder

MQTT = get_format("mqtt")

LENGTHS = (
    ("00", 0), ("7f", 127), ("8001", 128), ("c102", 321), ("ff7f", 16_383), ("808001", 16_384),
    ("ffff7f", 2_097_151), ("80808001", 2_097_152), ("ffffff7f", 268_435_455),
    # Longer than they have to be: framed all the same.
    ("8000", 0), ("8a00", 10), ("80808000", 0),
)  # fmt: skip


@pytest.mark.parametrize(("digits", "length"), LENGTHS)
def test_every_length(digits: str, length: int) -> None:
    head = b"\x30" + bytes.fromhex(digits)
    assert frame_size(head, 0, len(head), MAX_PACKET_BYTES) == len(head) + length
    behind = b"before" + head + b"after"
    assert frame_size(behind, 6, len(behind), MAX_PACKET_BYTES) == len(head) + length
    for cut in range(len(head)):
        assert frame_size(head, 0, cut, MAX_PACKET_BYTES) is None


def test_the_example_of_1999_is_the_wrong_way_round() -> None:
    """Errata M1: its 130, 65 is 8322 to its own decoder; 321 is 193, 2."""
    assert frame_size(b"\x30\x82\x41", 0, 3, MAX_PACKET_BYTES) == 3 + 8322


@pytest.mark.parametrize("digits", ["8080808001", "ffffffff7f", "80808080", "ffffffffff7f00"])
def test_a_length_of_five_bytes_begins_no_packet(digits: str) -> None:
    head = b"\x30" + bytes.fromhex(digits)
    for context in (0, *VERSIONS):
        with pytest.raises(Malformed) as raised:
            frame_size(head, 0, len(head), MAX_PACKET_BYTES, context)
        assert (raised.value.code, raised.value.offset) == ("remaining_length", 1)
    assert frame_size(head, 0, 4, MAX_PACKET_BYTES) is None


def test_sizes_over_the_limit_begin_no_packet() -> None:
    head = b"\x30\x64"
    assert frame_size(head, 0, 2, 102) == 102
    with pytest.raises(LimitExceeded):
        frame_size(head, 0, 2, 101)


@pytest.mark.parametrize("first", range(256))
def test_any_type_and_flags_are_framed(first: int) -> None:
    """What breaks rules of the fixed header keeps the stream in step."""
    assert frame_size(bytes([first, 2, 0, 0]), 0, 4, MAX_PACKET_BYTES) == 4


# --- CONNECT, strictly ----------------------------------------------------------------------


def connects() -> list[bytes]:
    made = [connect(version, client="c" * size) for version in VERSIONS for size in (0, 1, 23, 300)]
    made += [one for version in VERSIONS for one in variety(version)[:3]]
    made += [connect(5, properties=b"\x26" + text("k" * 200) + text("v"), client="c" * 30_000)]
    return [*made, connect(4, level=132)]


@pytest.mark.parametrize("data", connects())
def test_a_connect_is_found_wherever_it_stands(data: bytes) -> None:
    if data[0] != 0x10 or data[8:10] == b"\x02\x39":
        return
    for before in (b"", b"\x10", b"\x10\x10", b"\0\x04MQTT", b"\xff" * 9000, b"\x10\x80\x80"):
        stream = before + data + b"\x30\0"
        assert find_header(stream, 0, len(stream), MAX_PACKET_BYTES) == (len(before), True)
        assert find_header(stream, len(before), len(stream), MAX_PACKET_BYTES)[0] == len(before)
        after, certain = find_header(stream, len(before) + 1, len(stream), MAX_PACKET_BYTES)
        assert (after, certain) == (len(stream), True)


@pytest.mark.parametrize("data", connects())
def test_a_cut_connect_is_not_certain(data: bytes) -> None:
    whole = find_header(data, 0, len(data), MAX_PACKET_BYTES)
    for cut in range(1, min(len(data), HEADER_BYTES)):
        found, certain = find_header(data, 0, cut, MAX_PACKET_BYTES)
        # What is certain from a beginning stays so.
        assert found == whole[0] or found >= whole[0]
        assert not certain or cut >= 12
        if certain:
            assert (found, certain) == (0, True)


@pytest.mark.parametrize(
    "data",
    [
        connect(4, name="MQTX"),
        connect(4, level=6),
        connect(3, level=4),
        connect(4, 3),
        connect(4, 0x1E, text("w") + binary(b"")),
        connect(4, 0x0A),
        connect(4, 0x22),
        connect(4, 0x42, binary(b"p")),
        b"\x12" + connect(4)[1:],
        b"\x10\x0d" + connect(4)[2:-3] + b"\0\x02c",  # the identifier ends behind the packet
        b"\x10\x80\x80\x80\x80" + connect(4)[2:],
        packet(0x10, b"\0\x04MQTT\x05\x02\0\x3c\x05\0\0"),  # the properties do
        packet(0x10, b"\0\x04MQTT\x04\x02\0\x3c"),
        packet(0x10, b"\0\x04MQTT\x04"),
        publish(4, topic="MQTT"),
        b"GET / HTTP/1.1\r\n\r\n" * 20,
    ],
)
def test_what_is_no_connect(data: bytes) -> None:
    data += b"\xff" * 20
    assert find_header(data, 0, len(data), MAX_PACKET_BYTES) == (len(data), True)
    assert not begins(data)


def test_random_bytes_hold_no_connect() -> None:
    data = Random(1).randbytes(300_000)
    assert find_header(data, 0, len(data) - HEADER_BYTES, MAX_PACKET_BYTES)[1]
    found, _ = find_header(data, 0, len(data), MAX_PACKET_BYTES)
    assert found > len(data) - HEADER_BYTES


# --- sniffing -------------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
def test_streams_of_both_directions_are_known(version: int) -> None:
    for head in (connect(version), connack(version), connack(version, 1 if version > 3 else 0)):
        assert begins(head) and begins(head + b"\xd0\0")
        assert sniff(head + b"\xd0\0") is MQTT
        assert not any(begins(head[:cut]) for cut in range(min(len(head), 4)))


@pytest.mark.parametrize(
    "head",
    [
        b"", b"\x10", b"\x20", b"\x20\x02", b"\x20\x02\x02\0", b"\x20\x02\0\x06",
        b"\x20\x03\0\0\x01", b"\x20\x02\x01\x05",
        bytes.fromhex("1bffe3c2012d0001") + bytes(64),
        bytes.fromhex("015e0000") + bytes(60), bytes.fromhex("00640001") + bytes(12),
        b"  text, as in a log file", b" \x02text", b"{}", b"\x1f\x8b\x08", b"PAR1", bytes(64),
        publish(4), packet(0xC0), b"\x20\xff\xff\xff\xff",
    ],
)  # fmt: skip
def test_other_streams_are_not_taken_for_mqtt(head: bytes) -> None:
    assert not begins(head)


# --- streams --------------------------------------------------------------------------------


def packets_of(data: bytes, sizes: list[int]) -> list[tuple[int, int, str]]:
    decoder = Decoder(MQTT)
    found = []
    at = 0
    for size in [*sizes, len(data)]:
        decoder.receive_data(data[at : at + size])
        found += [(one.offset, one.length, one.status) for one in decoder.events()]
        at += size
    decoder.receive_end()
    return found + [(one.offset, one.length, one.status) for one in decoder.events()]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_stream_is_read_the_same_however_it_is_cut(version: int) -> None:
    rng = Random(version)
    data = random_stream(version, rng, 60)
    whole = packets_of(data, [])
    assert {status for _, _, status in whole} == {"ok"} and len(whole) == 61
    assert packets_of(data, [1] * len(data)) == whole
    for _ in range(20):
        assert packets_of(data, [rng.randint(0, 90) for _ in range(200)]) == whole


def test_out_of_step_until_the_next_connect() -> None:
    lost = b"\x30\xff\xff\xff\xff\x7f" + publish(4) * 3
    data = connect(4) + publish(4) + lost + connect(5) + publish(5)
    found = packets_of(data, [])
    assert [status for _, _, status in found] == ["ok", "ok", "garbage", "ok", "ok"]
    assert found[2][1] == len(lost)
    assert packets_of(data, [1] * len(data)) == found


def test_the_version_follows_the_stream() -> None:
    data = connect(4) + publish(4) + connect(5) + publish(5) + connect(3, client="") + publish(3)
    decoder = Decoder(MQTT)
    decoder.receive_data(data)
    decoder.receive_end()
    events = list(decoder.events())
    versions = [one.packet.version_in_force for one in events if one.packet]
    assert versions == [4, 4, 5, 5, 3]
    assert events[4].error is not None and events[4].error.code == "client_id_length"


def test_an_unfinished_packet_is_a_tail() -> None:
    data = connect(4) + publish(4, payload=b"x" * 300)
    for cut in range(len(connect(4)) + 1, len(data)):
        found = packets_of(data[:cut], [])
        assert [status for _, _, status in found] == ["ok", "tail"]
        assert sum(length for _, length, _ in found) == cut


def test_bytes_that_are_not_there_open_nothing() -> None:
    assert not opens(b"")
