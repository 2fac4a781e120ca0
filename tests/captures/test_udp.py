"""Datagrams to streams, beside a model of them; among segments, which are in the same capture."""

from __future__ import annotations

from collections import defaultdict
from random import Random

import pytest

from tests.captures.make import SYN, Packet, ethernet, ipv4, pcap, tcp, udp
from wireyard import arena
from wireyard.captures.read import read_capture

_PORTS = (5405, 5406, 53)


@pytest.mark.parametrize("segments", [0, 2], ids=["alone", "among segments"])
@pytest.mark.parametrize("seed", range(20))
def test_datagrams_follow_each_other(
    seed: int, segments: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arena, "_PART_ROWS", 7)  # so that parts end anywhere
    rng = Random(seed)
    packets: list[Packet] = []
    runs: dict[str, list[tuple[int, int, int]]] = defaultdict(list)
    sizes: dict[str, int] = defaultdict(int)
    payloads: dict[str, bytes] = defaultdict(bytes)
    for _ in range(rng.randrange(1, 60)):
        for _ in range(rng.randrange(segments + 1)):
            data = tcp(40_000 + rng.randrange(3), 1883, len(packets), flags=SYN)
            packets.append(Packet(ethernet(ipv4(data)), 1000 * len(packets)))
        src, dst = rng.sample(("10.0.0.1", "10.0.0.2", "10.0.0.3"), 2)
        src_port, dst_port = rng.choice(_PORTS), rng.choice(_PORTS)
        payload = rng.randbytes(rng.choice((0, 1, 5, 40)))
        missing = rng.choice((0, 0, min(len(payload), rng.randrange(50))))
        frame = ethernet(ipv4(udp(src_port, dst_port, payload), 17, src, dst))
        name = f"{src}:{src_port}>{dst}:{dst_port}"
        captured = len(payload) - missing
        if captured:
            runs[name].append((sizes[name], captured, len(packets)))
            payloads[name] += payload[:captured]
        sizes[name] += len(payload)
        packets.append(Packet(frame[: len(frame) - missing], 1000 * len(packets), len(frame)))
    capture = read_capture(pcap(packets))
    found = [one for one in capture.streams if one.protocol == "udp"]
    assert {one.name: one.size for one in found} == {name: n for name, n in sizes.items() if n}
    for one in found:
        columns = one.runs.offsets, one.runs.lengths, one.runs.records
        assert list(zip(*(column.tolist() for column in columns), strict=True)) == runs[one.name]
        assert one.times_ns.tolist() == (1000 * one.runs.records).tolist()
        data = b"".join(one.read(*piece).tobytes() for piece in one.pieces.tolist())
        assert data == payloads[one.name]
    assert capture.payload_bytes.get("udp", 0) == sum(map(len, payloads.values()))
