"""The columns of a capture's packets lie in files without a name once they are large."""

from __future__ import annotations

import gzip
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.captures.make import ACK, SYN, Packet, ethernet, ipv4, pcap, tcp, udp
from wireyard import arena
from wireyard.captures.inputs import open_captures

_CONNECTIONS = 80
_SEGMENTS = 2_500
"""Of each connection; a publication of two bytes of topic and none of payload in each."""
_MOST_BYTES = 4_000_000
_PUBLISH = bytes.fromhex("30 04 0002 6162")
_CONNECT = bytes.fromhex("10 0c 0004 4d515454 04 02 003c 0000")


def _segments() -> Iterator[bytes]:
    address = [f"10.1.0.{one}" for one in range(_CONNECTIONS)]
    for one in range(_CONNECTIONS):
        yield ethernet(ipv4(tcp(40_000, 1883, 0, flags=SYN), src=address[one]))
        yield ethernet(ipv4(tcp(40_000, 1883, 1, _CONNECT), src=address[one]))
    for number in range(_SEGMENTS):
        begin = 1 + len(_CONNECT) + number * len(_PUBLISH)
        for one in range(_CONNECTIONS):
            yield ethernet(ipv4(tcp(40_000, 1883, begin, _PUBLISH), src=address[one]))


def _acknowledged() -> Iterator[bytes]:
    answers = [
        ethernet(ipv4(tcp(1883, 40_000, 1, flags=ACK), dst=f"10.1.0.{one}"))
        for one in range(_CONNECTIONS)
    ]
    for number, frame in enumerate(_segments()):
        yield frame
        if number % 2:
            yield answers[number // 2 % _CONNECTIONS]


def _with_others() -> Iterator[bytes]:
    """Yield frames of which one is no IP, so that packets are not where their numbers are."""
    yield ethernet(bytes(28), 0x0806)
    yield from _segments()


def _with_datagrams() -> Iterator[bytes]:
    yield ethernet(ipv4(udp(53, 53, b"?"), 17))
    yield from _segments()


def _datagrams() -> Iterator[bytes]:
    frames = [
        ethernet(ipv4(udp(5405, 5405, b"x"), 17, f"10.1.0.{one}")) for one in range(_CONNECTIONS)
    ]
    for _ in range(_SEGMENTS):
        yield from frames


@pytest.mark.parametrize(
    "frames", [_segments, _acknowledged, _with_others, _with_datagrams, _datagrams]
)
def test_a_capture_takes_few_bytes_of_memory_for_each_packet(
    frames: Callable[[], Iterator[bytes]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Arrays of parts are smaller than this, those of all packets larger.
    monkeypatch.setattr(arena, "_PART_ROWS", 1 << 12)
    packets = [Packet(frame) for frame in frames()]
    path = tmp_path / "x.pcap"
    path.write_bytes(pcap(packets))
    open_captures([path])  # what is imported and compiled is no packet's
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        opened = open_captures([path])
        most = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    assert opened.readables or opened.unknown
    # The batches that are read take 3 MB, however many packets there are.
    assert most < _MOST_BYTES


def test_a_compressed_capture_is_inflated_into_a_file(tmp_path: Path) -> None:
    """164 MB that are compressed to less than 2 MB; more than 16 MiB are put into a file."""
    frame = pcap([Packet(ethernet(bytes(1 << 16), 0x0806))])
    path = tmp_path / "small.pcap.gz"
    with gzip.open(path, "wb", 1) as file:
        file.write(frame[:24])
        for _ in range(2500):
            file.write(frame[24:])
    open_captures([path])  # compiles, imports
    tracemalloc.start()
    try:
        opened = open_captures([path])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert opened.frames_unread == "frames not read: 2,500 ARP"
    assert path.stat().st_size < 2_000_000
    assert peak < 32_000_000, peak


def test_pages_of_an_inflated_capture_do_not_add_up(tmp_path: Path) -> None:
    """256 MB of zeros, each 16 of which are a record of nothing, in 256 kB."""
    path = tmp_path / "zeros.pcap.gz"
    with gzip.open(path, "wb", 1) as file:
        file.write(pcap([]))
        for _ in range(256):
            file.write(bytes(1 << 20))
    code = (
        "import resource, sys\n"
        "from wireyard.captures.files.file import CaptureFile\n"
        "begun = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "records = sum(map(len, CaptureFile.open(sys.argv[1]).records()))\n"
        "print(records, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - begun)\n"
    )
    words = [sys.executable, "-c", code, str(path)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    records, kilobytes = map(int, done.stdout.split())
    assert records == 256 << 16
    assert kilobytes < 128 << 10
