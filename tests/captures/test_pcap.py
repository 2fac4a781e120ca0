from __future__ import annotations

import gzip
import io
import os
import tracemalloc
from pathlib import Path

import pyarrow as pa
import pytest

from tests.captures.make import Packet, ethernet, ipv4, packets, pcap, tcp
from wireyard.captures.files import file as files
from wireyard.captures.files.pcap import MAGICS
from wireyard.captures.read import read_capture, read_captures
from wireyard.captures.signatures import is_capture
from wireyard.errors import LimitExceeded, SourceError, Truncated, UsageError
from wireyard.streams.source import Damaged

RECORDS = packets(ethernet(ipv4(tcp(1, 2, 10 * n, b"0123456789"))) for n in range(5))
CONTENT = b"0123456789" * 5


def content_of(capture_file: object) -> bytes:
    (stream,) = read_capture(capture_file).streams  # type: ignore[arg-type]
    return stream.read(0, stream.size).tobytes()


@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize(
    ("magic", "unit_ns", "filler"),
    [
        (0xA1B2C3D4, 1000, 0),
        (0xA1B23C4D, 1, 0),
        (0xA1B2C3D4, 1000, 8),
        (0xA1B2C3D4, 1000, 4),
        (0xA1B2CD34, 1000, 8),
        (0xA1B2CD34, 1000, 12),
    ],
    ids=["standard", "nanoseconds", "Red Hat 6.1", "Nokia", "ss990417", "ss990915"],
)
def test_every_variant_is_read(order: str, magic: int, unit_ns: int, filler: int) -> None:
    odd_ns = 789 if unit_ns == 1 else 0
    records = [record._replace(time_ns=record.time_ns + odd_ns) for record in RECORDS]
    data = pcap(records, order=order, magic=magic, unit_ns=unit_ns, filler=bytes(filler))
    capture = read_capture(data)
    (stream,) = capture.streams
    assert stream.read(0, stream.size).tobytes() == CONTENT
    assert stream.name == "10.0.0.1:1>10.0.0.2:2"
    assert stream.content.times_ns.tolist() == [record.time_ns for record in records]
    assert capture.damage is None and capture.unread_bytes == 0
    assert is_capture(data)


YEAR_NS = 366 * 24 * 3600 * 1_000_000_000


@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize("count", [1, 2, 5, 200])
@pytest.mark.parametrize("odd", ["clock", "lengths", "both", "nothing"])
def test_records_that_lead_to_the_end_are_those_of_the_standard(
    odd: str, count: int, order: str
) -> None:
    """A clock that NTP set in the second frame, and lengths below what was captured."""
    records = [RECORDS[0]._replace(time_ns=number * 1000) for number in range(count)]
    if odd in ("clock", "both"):
        records[1:] = [one._replace(time_ns=one.time_ns + 50 * YEAR_NS) for one in records[1:]]
    if odd in ("lengths", "both"):
        records = [one._replace(original=3) for one in records]
    capture = read_capture(pcap(records, order=order))
    assert capture.damage is None and sum(capture.frames.values()) == count
    (stream,) = capture.streams
    assert stream.read(0, 10).tobytes() == b"0123456789"


def test_zeros_do_not_look_like_records_of_the_standard() -> None:
    # 16 bytes lead from the time of the second record into the zeros of the third, by chance.
    frames = [ethernet(ipv4(tcp(1, 2, 0, bytes(n)))) for n in (10, 10, 60_000, 10)]
    at_ns = 1_700_000_000_000_000_000
    records = [Packet(frame, at_ns + 30_000_000) for frame in frames]
    data = pcap(records, filler=bytes(4))
    capture = read_capture(data)
    assert capture.damage is None and capture.frames == {"tcp": 4}


def test_the_magics_are_those_of_both_orders() -> None:
    assert len(MAGICS) == 6
    assert not is_capture(b"\x1b\xff\xe3\xc2")


def test_times_after_2038_are_not_negative() -> None:
    late = 4_000_000_000_000_000_000
    (stream,) = read_capture(pcap([RECORDS[0]._replace(time_ns=late)])).streams
    assert stream.content.times_ns.tolist() == [late]


def test_a_link_type_may_have_the_length_of_check_sequences_above_it() -> None:
    assert content_of(pcap(RECORDS, link=0x4800_0001)) == CONTENT


def test_every_shorter_file_gives_its_whole_records() -> None:
    data = pcap(RECORDS)
    whole = len(RECORDS[0].data) + 16
    for size in range(1, len(data)):
        if size < 4:
            with pytest.raises(SourceError, match="begins like no capture"):
                read_capture(data[:size])
            continue
        capture = read_capture(data[:size])
        records, rest = divmod(max(size - 24, 0), whole)
        assert sum(capture.frames.values()) == records
        if rest or size < 24:
            assert isinstance(capture.damage, Truncated)
            assert capture.unread_bytes == (rest if size >= 24 else size)
        else:
            assert capture.damage is None


def test_a_length_nothing_can_have_ends_reading() -> None:
    data = bytearray(pcap(RECORDS) + bytes(1 << 19))
    whole = len(RECORDS[0].data) + 16
    at = 24 + 2 * whole + 8
    data[at : at + 4] = (1 << 18 | 1).to_bytes(4, "little")
    capture = read_capture(bytes(data))
    assert isinstance(capture.damage, LimitExceeded)
    assert capture.damage.offset == at
    assert capture.damage.field == "Captured Packet Length"
    assert capture.frames == {"tcp": 2}
    assert capture.unread_bytes == len(data) - (at - 8)


def test_a_large_snapshot_length_is_believed() -> None:
    body = bytes(300_000)
    frame = ethernet(ipv4(tcp(1, 2, 0, body), total=0))
    assert content_of(pcap([Packet(frame)], snapshot=1 << 20)) == body


def test_sources_are_those_of_streams(tmp_path: Path) -> None:
    data = pcap(RECORDS)
    path = tmp_path / "capture"
    for written in (data, gzip.compress(data), pa.compress(data, "zstd", asbytes=True)):
        path.write_bytes(written)
        for source in (path, str(path), written, bytearray(written), io.BytesIO(written)):
            assert content_of(source) == CONTENT


def test_a_compressed_file_that_is_cut_off_gives_what_it_has() -> None:
    packed = gzip.compress(pcap(RECORDS * 50_000))
    capture = read_capture(packed[: len(packed) // 2])
    assert isinstance(capture.damage, Damaged)
    assert 0 < capture.frames["tcp"] < len(RECORDS) * 50_000


def test_a_capture_too_large_for_memory_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "MAX_CAPTURE_BYTES", 3 << 20)
    data = pcap(packets([bytes(1 << 10)] * 6000))
    path = tmp_path / "capture"
    for written in (data, gzip.compress(data)):
        path.write_bytes(written)
        with pytest.raises(SourceError, match=r"capture: has over 0 GiB; cut it in pieces"):
            read_capture(path)
    path.write_bytes(gzip.compress(data[: 2 << 20]))
    assert read_capture(path).frames.keys() == {"other_network"}


@pytest.mark.parametrize("data", [b"", b"GIF89a", b"\xa1\xb2\xc3"])
def test_what_is_no_capture_is_said_so(data: bytes) -> None:
    with pytest.raises(SourceError, match=r"^<bytes>: (is empty|begins like no capture)"):
        read_capture(data)


def test_an_empty_capture_has_nothing() -> None:
    capture = read_capture(pcap([]))
    assert (capture.streams, capture.frames, capture.damage) == ([], {}, None)


def test_an_unknown_overlap_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="overlap 'both' is unknown; known: first, last"):
        read_capture(pcap([]), "both")


def test_files_of_a_capture_take_hardly_more_than_their_packets(tmp_path: Path) -> None:
    count = 200
    records = packets(ethernet(ipv4(tcp(1, 2, 10 * n, b"0123456789"))) for n in range(count))
    whole = tmp_path / "whole.pcap"
    whole.write_bytes(pcap(records))
    pieces = []
    for number, record in enumerate(records):
        pieces.append(tmp_path / f"{number:03}.pcap")
        pieces[-1].write_bytes(pcap([record]))

    def held_bytes(paths: list[Path]) -> int:
        tracemalloc.start()
        try:
            opened = len(os.listdir("/proc/self/fd"))
            capture = read_captures(paths)
            assert len(os.listdir("/proc/self/fd")) == opened
            (stream,) = capture.streams
            assert stream.read(0, stream.size).tobytes() == b"0123456789" * count
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    read_captures([whole])  # what is loaded for the first one
    assert held_bytes(pieces) - held_bytes([whole]) < 6_000 * count
