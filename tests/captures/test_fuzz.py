"""Damaged captures: streams or an error, never a crash, and every frame and byte accounted for."""

from __future__ import annotations

import re
from itertools import chain, pairwise
from random import Random

import numpy as np
import pytest

from tests.captures.links import LINKS
from tests.captures.make import enhanced, ethernet, interface, ipv4, packets, pcap, section
from tests.captures.test_fragments import fragment, fragment6
from tests.captures.torture import make_flow
from tests.fuzz import time_bound
from wireyard.captures import signatures
from wireyard.captures.files import pcap as classic
from wireyard.captures.files import pcapng
from wireyard.captures.layout import Protocol, Unit
from wireyard.captures.packets.headers import PacketReader
from wireyard.captures.packets.segments import scan_segments
from wireyard.captures.read import Capture, read_capture
from wireyard.errors import SourceError

CASES = 1500


def corpus() -> list[bytes]:
    """Return small captures that have everything in them that is read."""
    rng = Random(1)
    links = sorted({link for link, _ in LINKS.values()})
    many = [interface(link) for link in links]
    many += [enhanced(data, 10**15, links.index(link)) for link, data in LINKS.values()]
    flows = chain.from_iterable(make_flow(number, rng) for number in range(8))
    segments = [segment.packet(number) for number, segment in enumerate(flows)]
    pieces = [one(start, start + 40) for start in (0, 40, 80) for one in (fragment, fragment6)]
    tunnel = [ethernet(ipv4(fragment(start, start + 40), 4)) for start in (0, 40, 80)]
    return [
        section() + b"".join(many),
        section(">") + interface(order=">") + enhanced(LINKS["vlan"][1], 1, 0, order=">") * 3,
        pcap(segments),
        pcap(segments, order=">", magic=0xA1B23C4D, unit_ns=1),
        pcap(packets(pieces), 101),
        pcap(packets(tunnel), filler=bytes(8)),
    ]


def damage(data: bytes, rng: Random) -> bytes:
    """Return a capture with some bytes changed, cut out, repeated or cut off."""
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 5, 30))):
        at = rng.randrange(len(out) or 1)
        match rng.randrange(6):
            case 0 | 1 if out:
                out[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
            case 2:
                value = rng.choice((0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, rng.randrange(70000)))
                out[at : at + 4] = value.to_bytes(4, rng.choice(("big", "little")))
            case 3:
                del out[at : at + rng.choice((1, 4, 16, 200))]
            case 4:
                out[at:at] = out[at : at + rng.choice((1, 4, 60, 200))]
            case _ if rng.random() < 0.1:
                del out[at:]
    return bytes(out)


def check(data: bytes, overlap: str) -> Capture | None:
    """Assert that a capture is accounted for; return it if it is one."""
    try:
        capture = read_capture(data, overlap)
    except SourceError as error:
        assert "capture" in str(error)
        return None
    array = np.frombuffer(data, np.uint8)
    kind = pcapng if data[:4] == signatures.PCAPNG else classic
    reader = PacketReader()
    reader.begin(array)
    frames = captured = payload = 0
    for records in kind.read_records(array):
        units, _ = reader.read(records)
        assert set(units[Unit.PROTOCOL].tolist()) <= {Protocol.TCP, Protocol.UDP}
        payload += int(units[Unit.CAPTURED].sum())
        frames += len(records)
        captured += int(records.captured.sum())
    assert sum(capture.frames.values()) == frames
    account = capture.payload_bytes | capture.other_bytes
    assert sum(account.values()) == captured and min(account.values()) >= 0
    assert (capture.damage is None) == (capture.unread_bytes == 0)
    assert sum(capture.payload_bytes.values()) == segment_bytes(data) == payload
    assert len({stream.name for stream in capture.streams}) == len(capture.streams)
    for stream in capture.streams:
        runs = stream.runs
        inside = runs.starts + runs.lengths <= len(data)
        behind = (runs.starts >= len(data)) & (runs.starts + runs.lengths <= reader.places.size)
        assert (inside | behind).all() and (runs.starts >= 0).all() and (runs.lengths > 0).all()
        parts = sorted([*stream.pieces.tolist(), *stream.gaps.tolist()])
        assert parts[0][0] == 0 and parts[-1][1] == stream.size
        assert all(before[1] == after[0] for before, after in pairwise(parts))
        for start, stop in stream.pieces.tolist():
            assert len(stream.read(start, stop)) == stop - start
    return capture


def segment_bytes(data: bytes) -> int:
    """Return how many bytes of payload the table of segments has."""
    total = 0
    try:
        for batch in scan_segments(data, ["payload"]):
            total += sum(map(len, batch["payload"].to_pylist()))
    except SourceError as error:
        assert re.search(r"; (1 byte is|\d+ bytes are) not read$", str(error))
    return total


@pytest.mark.parametrize("seed", range(3))
def test_damaged_captures(seed: int) -> None:
    rng = Random(seed)
    whole = corpus()
    read = 0
    with time_bound():
        for _ in range(CASES // 3):
            capture = check(damage(rng.choice(whole), rng), rng.choice(("first", "last")))
            read += capture is not None
    assert read > CASES // 6


def test_the_corpus_itself_is_whole() -> None:
    for data in corpus():
        capture = check(data, "first")
        assert capture is not None
        assert capture.damage is None and capture.streams
        assert not capture.frames.keys() & {"malformed", "cut", "unknown_link", "fragment"}
