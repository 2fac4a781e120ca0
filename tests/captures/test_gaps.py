"""MQTT behind frames that were not captured: what is whole is found again, nothing is made up."""

from __future__ import annotations

import gzip
import struct
from functools import cache
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Literal, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

import wireyard
from tests.captures.assigned import assign_formats
from tests.captures.make import both_ways, one_way, packets, pcap
from tests.formats.mqtt.make import packet, publish, subscribe
from wireyard.captures.connections.stream import Stream
from wireyard.captures.directed import CapturedStream
from wireyard.captures.read import read_capture
from wireyard.formats.base import REFUTED, UNPROVEN
from wireyard.formats.mqtt.cursor import MAX_FAULTS
from wireyard.formats.mqtt.layout import MAX_ENTRIES
from wireyard.formats.mqtt.packet import read_packet
from wireyard.formats.mqtt.resync import PROOF_BITS, confirm_start
from wireyard.streams.framer import OK, Framer

CONNECT = {
    4: bytes.fromhex("100e 00044d515454 04 02 0000 0002 6364"),
    5: bytes.fromhex("100f 00044d515454 05 02 0000 00 0002 6364"),
}
PINGREQ = packet(0xC0)
ORDERS: tuple[Literal["little", "big"], ...] = ("little", "big")
CLASSIC = {magic.to_bytes(4, order) for magic in (0xA1B2C3D4, 0xA1B23C4D) for order in ORDERS}
ROUNDS = 2
"""Random losses of each shared recording."""
LARGE_BYTES = 1 << 20


# --- recordings with frames taken away ------------------------------------------------------


class Framed(NamedTuple):
    """A stream, and its packets: size and context, by offset."""

    stream: Stream
    packets: dict[int, tuple[int, int]]
    malformed: frozenset[int]


def framed(data: bytes) -> dict[str, Framed]:
    """Return the MQTT streams of a capture by their names."""
    found = {}
    for assigned in assign_formats(read_capture(data).streams):
        stream, format = assigned.stream, assigned.format
        if format is None or format.name != "mqtt":
            continue
        opened = CapturedStream("", stream, assigned.context, 0)
        packets, malformed = {}, set()
        for block in opened.blocks(Framer(format, context=assigned.context), None):
            for row, offset in enumerate(block.offsets.tolist()):
                if row not in block.odd:
                    context = int(block.contexts[row])
                    packets[offset] = int(block.lengths[row]), context
                    if format.read_row(block.view(row), context)[1] is not None:
                        malformed.add(offset)
        found[stream.name] = Framed(stream, packets, frozenset(malformed))
    return found


@cache
def recording(path: Path) -> tuple[bytes, list[bytes], dict[str, Framed]]:
    """Return the header and the records of a classic capture, and its streams."""
    data = path.read_bytes()
    data = gzip.decompress(data) if path.suffix == ".gz" else data
    order = "<" if data[:4] in (b"\xd4\xc3\xb2\xa1", b"\x4d\x3c\xb2\xa1") else ">"
    records, at = [], 24
    while at < len(data):
        stop = at + 16 + struct.unpack_from(f"{order}I", data, at + 8)[0]
        records.append(data[at:stop])
        at = stop
    return data[:24], records, framed(data)


def check_without(path: Path, lost: set[int]) -> int:
    """Take frames from a recording, and compare; return how many packets had to be found."""
    header, records, whole = recording(path)
    left = [number for number in range(len(records)) if number not in lost]
    expected = 0
    for part in framed(header + b"".join(records[number] for number in left)).values():
        brought = [left[number] for number in part.stream.runs.records.tolist()]
        if not brought:
            continue
        true = next(each for each in whole.values() if brought[0] in each.stream.runs.records)
        # Where the SYN is lost too, offsets count from the first byte that was captured.
        places = dict(zip(true.stream.runs.records.tolist(), true.stream.runs.offsets, strict=True))
        offsets = zip(brought, part.stream.runs.offsets.tolist(), strict=True)
        shift = next(int(places[one]) - offset for one, offset in offsets if one in places)
        expected += check_stream(true, part, shift)
    return expected


def check_stream(true: Framed, part: Framed, shift: int) -> int:
    """Compare the packets of a stream with those found behind gaps, `shift` bytes further on."""
    found = {offset + shift: size for offset, (size, _) in part.packets.items()}
    for offset, size in found.items():
        assert true.packets.get(offset, (None,))[0] == size, "a packet is made up"
    segments = {offset + shift for offset in part.stream.runs.offsets.tolist()}
    expected = 0
    for start, stop in (part.stream.pieces + shift).tolist():
        in_step = False
        for offset, (size, _) in true.packets.items():
            if start <= offset and offset + size <= stop:
                in_step = in_step or (offset in segments and offset not in true.malformed)
                if in_step:
                    expected += 1
                    assert offset in found, f"{true.stream.name} lost what begins at {offset}"
    return expected


def small_recordings(shared: Path) -> list[Path]:
    folder = shared / "captures"
    paths = sorted([*folder.glob("mosquitto/*.pcap*"), *folder.glob("mqtt/*/*.pcap")])
    return [path for path in paths if path.stat().st_size < LARGE_BYTES and head(path) in CLASSIC]


def head(path: Path) -> bytes:
    with (gzip.open if path.suffix == ".gz" else open)(path, "rb") as file:
        found: bytes = file.read(4)
    return found


EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "traffic.pcap"


@given(st.sets(st.integers(0, len(recording(EXAMPLE)[1]) - 1), min_size=1, max_size=20))
def test_the_example_without_some_frames(lost: set[int]) -> None:
    check_without(EXAMPLE, lost)


def test_recordings_without_some_frames(shared: Path) -> None:
    rng = Random(20261122)
    paths, expected = small_recordings(shared), 0
    for path in paths:
        frames = range(len(recording(path)[1]))
        for _ in range(ROUNDS):
            count = min(rng.randint(1, 20), len(frames) - 1)
            expected += check_without(path, set(rng.sample(frames, count)))
        recording.cache_clear()
    assert len(paths) > 20
    assert expected > 100 * len(paths)


# --- losses made by hand --------------------------------------------------------------------


def rows(pieces: list[tuple[int, bytes]]) -> list[tuple[str, int, int]]:
    found = wireyard.read(one_way(pieces), "mqtt").to_pylist()
    for before, row in pairwise(found):
        assert before["offset"] + before["length"] == row["offset"]
    return [(row["status"], row["offset"], row["length"]) for row in found]


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("behind", [PINGREQ, packet(0x40, b"\0\1"), packet(0xE0)])
def test_a_packet_that_is_a_segment_is_found_between_gaps(version: int, behind: bytes) -> None:
    first, at = CONNECT[version], len(CONNECT[version])
    assert rows([(0, first), (at + 9, behind), (at + 30, behind)]) == [
        (OK, 0, at),
        ("gap", at, 9),
        (OK, at + 9, len(behind)),
        ("gap", at + 9 + len(behind), 21 - len(behind)),
        (OK, at + 30, len(behind)),
    ]


def test_without_connect_the_version_is_the_one_that_parses() -> None:
    stream = subscribe(5, ("a/b", 1)) + publish(5, topic="a/b", payload=b"x")
    table = wireyard.read(one_way([(30, stream)]), "mqtt", ["status", "version_in_force"])
    assert table["status"].to_pylist() == ["gap", OK, OK]
    assert table["version_in_force"].to_pylist() == [None, 5, 5]


def test_the_version_is_told_by_both_directions() -> None:
    """PUBLISH of 5.0 is one of 3.1.1 too, with a payload that begins with its properties."""
    for version in (4, 5):
        client = publish(version, topic="a/b", payload=b"21.5") * 2
        server = b"\x40\x03\x00\x01\x10" if version == 5 else b"\x90\x03\x00\x01\x00"
        frames = both_ways(client, server, (40000, 1883))[2:]
        found = wireyard.read(pcap(packets(frames)), "mqtt", ["payload", "version_in_force"])
        assert found["payload"].to_pylist() == [b"21.5", b"21.5", None]
        assert set(found["version_in_force"].to_pylist()) == {5 if version == 5 else None}


def test_a_stream_captured_from_the_middle_of_a_packet_on() -> None:
    inside, behind = b"x" * 100, publish(4, topic="a", payload=b"1") * 3
    first = one_way([(5, inside), (5 + len(inside), behind)])[:24]
    records = one_way([(5, inside), (5 + len(inside), behind)])
    syn_bytes = 16 + 54
    found = wireyard.read(first + records[24 + syn_bytes :], "mqtt", ["status", "offset"])
    assert found.to_pylist()[:2] == [
        {"status": "garbage", "offset": 0},
        {"status": OK, "offset": len(inside)},
    ]
    assert found.num_rows == 4


@pytest.mark.parametrize("kind", ["random", "text", "digits", "zeros", "packets out of step"])
def test_inside_a_payload_no_packet_is_found(kind: str) -> None:
    rng = Random(7)
    size, step = 200_000, 1448
    payload = {
        "random": rng.randbytes(size),
        "text": b'{"temperature": 21.5, "unit": "C"}, ' * (size // 36),
        "digits": bytes(rng.choice(b"0123456789") for _ in range(size)),
        "zeros": bytes(size),
        # Seven bytes of a header and three: every segment begins in the middle of one of these.
        "packets out of step": b"   " + packet(0x40, b"\0\1") * (size // 4),
    }[kind]
    stream = CONNECT[4] + publish(4, topic="t", payload=payload)
    at, stop = len(CONNECT[4]), len(stream)
    pieces = [(n, stream[n : n + step]) for n in range(at + step, stop, step)]
    assert rows([(0, CONNECT[4]), *pieces, (stop, PINGREQ)]) == [
        (OK, 0, at),
        ("gap", at, step),
        ("garbage", at + step, stop - at - step),
        (OK, stop, 2),
    ]


# --- the evidence ---------------------------------------------------------------------------


def confirm(data: bytes, context: int = 4, *, at_end: bool = True) -> int | None:
    return confirm_start(data, 0, len(data), 1 << 28, context, at_end)


def test_every_beginning_of_what_is_confirmed_is_not_refuted() -> None:
    data = publish(4, topic="a/b", payload=b"x" * 300) + PINGREQ + packet(0x40, b"\0\1") * 3
    assert confirm(data) == 4
    for stop in range(1, len(data)):
        assert confirm(data[:stop], at_end=False) in (None, 4)
        assert confirm(data[:stop]) in (UNPROVEN, 4)


def test_few_bytes_prove_nothing_and_a_broken_rule_refutes() -> None:
    assert confirm(b"\x30") == UNPROVEN
    assert confirm(b"\x30", at_end=False) is None
    long = publish(4, topic="a", payload=bytes(70_000))
    assert confirm(long) == 4  # 5 bits, and the 17 of a length that ends where the bytes do
    assert confirm(long + b"\x30") == UNPROVEN
    assert confirm(long + PINGREQ) == 4
    for broken in (b"\x36", b"\x38", b"\x00\x00", b"\xf0\x00", b"\x41\x02\0\1", b"\x30\x05\0\4ab"):
        assert confirm(broken) == REFUTED
    assert confirm(PINGREQ + b"\x41") == REFUTED
    assert confirm(b"\x30\xff\xff\xff\xff\x01") == REFUTED


def test_proof_needs_no_more_bytes_than_it_says() -> None:
    enough = -(-PROOF_BITS // 16)
    assert confirm(PINGREQ * enough, at_end=False) == 4
    assert confirm(PINGREQ * (enough - 1), at_end=False) is None
    assert confirm(PINGREQ * enough + b"\0", at_end=False) == 4


def test_a_packet_with_a_fault_in_each_byte_keeps_few_of_them() -> None:
    values, cursor = read_packet(packet(0x90, b"\0\1" + b"\x77" * 100_000), 4)
    assert len(values["return_codes"]) == MAX_ENTRIES
    assert len(cursor.faults) == MAX_FAULTS + 1  # the last says that there are more
