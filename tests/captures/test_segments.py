"""The table of segments: rows as a slow reader makes them, as tshark says, however it is cut."""

from __future__ import annotations

import shutil
import struct
import subprocess
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest

import wireyard
from tests.captures.make import (
    BEGAN_NS,
    CLIENT,
    CLIENT6,
    SERVER,
    SERVER6,
    Packet,
    enhanced,
    ethernet,
    interface,
    ipv4,
    ipv6,
    packets,
    pcap,
    section,
    simple,
    tcp,
    udp,
)
from tests.captures.test_fragments import WHOLE, fragment
from tests.captures.test_torture import interleaved
from tests.captures.torture import make_flow
from wireyard.captures.files.extents import plan_extents
from wireyard.captures.packets import segments
from wireyard.captures.packets.segment_columns import segment_schema
from wireyard.captures.packets.segments import scan_extent
from wireyard.captures.read import read_capture
from wireyard.errors import SourceError, UsageError


def test_a_segment_in_full() -> None:
    data = tcp(1883, 50000, 2**32 - 1, b"payload", 0x19, 77, bytes(8))
    data = data[:14] + struct.pack(">H", 65000) + data[16:]
    frame = ethernet(ipv4(data))
    rows = wireyard.segments(pcap([Packet(b"x"), Packet(frame[:-3], BEGAN_NS, len(frame))]))
    assert rows.read_all().to_pylist() == [
        {
            "source": "<bytes>",
            "frame": 2,
            "captured_ns": BEGAN_NS,
            "transport": "tcp",
            "src_addr": CLIENT,
            "src_port": 1883,
            "dst_addr": SERVER,
            "dst_port": 50000,
            "flow": f"{CLIENT}:1883>{SERVER}:50000",
            "seq": 2**32 - 1,
            "ack": 77,
            "bit_flags": 0x19,
            "flags": "FPA",
            "window": 65000,
            "payload_length": 7,
            "cut_bytes": 3,
            "payload": b"payl",
        }
    ]


def test_what_is_not_there_is_null() -> None:
    datagram = ethernet(ipv6(udp(5, 6, b"hi"), 17), 0x86DD)
    cut = ethernet(ipv4(tcp(1, 2, 3, flags=2)))[: 14 + 20 + 14]
    data = section() + interface() + simple(datagram) + enhanced(cut, 5, 0, 54)
    first, second = wireyard.segments(data).read_all().to_pylist()
    names = ("captured_ns", "seq", "ack", "bit_flags", "flags", "window")
    assert [first[name] for name in names] == [None] * 6
    assert first["flow"] == f"[{CLIENT6}]:5>[{SERVER6}]:6" and first["payload"] == b"hi"
    assert [second[name] for name in names] == [5000, 3, None, 2, "S", None]


def traffic() -> list[Packet]:
    """Return bad connections, datagrams, and datagrams in fragments that lie far apart."""
    rng = Random(12)
    flows = interleaved([make_flow(number, rng) for number in range(60)], rng)
    frames = [segment.packet(0) for segment in flows]
    for number in range(20):
        parts = [ethernet(fragment(at, at + 40, WHOLE, number)) for at in (0, 40, 80)]
        parts += [ethernet(ipv4(udp(9, number, bytes(number)), 17))]
        for part in parts:
            frames.insert(rng.randrange(len(frames)), Packet(part))
    return [one._replace(time_ns=BEGAN_NS + 1000 * at) for at, one in enumerate(frames)]


def test_the_rows_are_the_payload_of_the_capture(tmp_path: Path) -> None:
    path = tmp_path / "capture"
    path.write_bytes(pcap(traffic()))
    rows, capture = wireyard.segments(path).read_all(), read_capture(path)
    assert rows["frame"].to_pylist() == sorted(rows["frame"].to_pylist())
    payloads = rows["payload"].to_pylist()
    assert sum(map(len, payloads)) == sum(capture.payload_bytes.values())
    cut = sum(rows["payload_length"].to_pylist()) - sum(map(len, payloads))
    assert cut == capture.cut.bytes == sum(rows["cut_bytes"].to_pylist()) > 0
    names = {stream.name.partition("#")[0] for stream in capture.streams}
    assert names <= set(rows["flow"].to_pylist())


@pytest.mark.parametrize("piece_bytes", [200, 3000, 1 << 20])
@pytest.mark.parametrize("fragments", [True, False])
def test_extents_make_the_rows_of_the_whole(
    tmp_path: Path, piece_bytes: int, fragments: bool
) -> None:
    records = traffic()
    if not fragments:
        records = [one for one in records if not one.data[20] & 0x3F and not one.data[21]]
    paths = [tmp_path / name for name in "ba"]
    for path, part in zip(paths, (records[:150], records[150:]), strict=True):
        path.write_bytes(pcap(part))
    whole = tmp_path / "whole"
    whole.write_bytes(pcap(records))
    schema = segment_schema()
    found: list[pa.RecordBatch] = []
    before = 0
    for number, path in enumerate(paths, 1):
        files = [str(one) for one in paths[:number]]
        for extent in plan_extents(str(path), piece_bytes) or ():
            found += scan_extent(files, extent, before, str(whole), schema)
            before += extent.packets
    assert before == len(records)
    table = pa.Table.from_batches(found, schema)
    assert table.equals(wireyard.segments(whole).read_all())


def test_columns_and_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "_BATCH_BYTES", 1000)
    monkeypatch.setattr(segments, "_MOST_FLOWS", 3)
    data = pcap(packets(ethernet(ipv4(tcp(n, 2, 1, bytes(100)))) for n in range(100)))
    batches = list(wireyard.segments(data, ["payload", "src_port", "flow"]))
    assert [batch.num_rows for batch in batches] == [9, *[10] * 9, 1]
    rows = pa.Table.from_batches(batches).to_pylist()
    assert [list(row) for row in rows] == [["payload", "src_port", "flow"]] * 100
    assert [row["flow"] for row in rows] == [f"{CLIENT}:{n}>{SERVER}:2" for n in range(100)]
    with pytest.raises(UsageError, match="tcp_segments has no column 'topic'; it has source, fr"):
        wireyard.segments(data, ["topic"])
    with pytest.raises(UsageError, match="twice"):
        wireyard.segments(data, ["seq", "seq"])


def test_damage_is_said_behind_the_rows() -> None:
    data = pcap(packets([ethernet(ipv4(tcp(1, 2, 3, b"x")))] * 3)) + bytes(5)
    rows = wireyard.segments(data)
    assert rows.read_next_batch().num_rows == 3
    with pytest.raises(SourceError, match="5 bytes are not read"):
        rows.read_next_batch()
    with pytest.raises(SourceError, match="begins like no capture"):
        wireyard.segments(b"no capture")


FIELDS = {
    "tcp.srcport": "src_port",
    "tcp.dstport": "dst_port",
    "tcp.seq_raw": "seq",
    "tcp.ack_raw": "ack",
    "tcp.flags": "bit_flags",
    "tcp.window_size_value": "window",
    "tcp.len": "payload_length",
}


def test_the_headers_are_those_that_tshark_reads(shared: Path) -> None:
    tshark = shutil.which("tshark")
    if tshark is None:
        pytest.skip("tshark is not installed")
    compared = 0
    for path in sorted((shared / "captures" / "tcp-misc" / "zeek").glob("*.pcap*")):
        names = ["frame.number", *FIELDS]
        words = [
            tshark,
            "-r",
            str(path),
            "-Y",
            "tcp && !icmp",
            "-T",
            "fields",
            "-E",
            "occurrence=l",
        ]
        words += [word for name in names for word in ("-e", name)]
        shown = subprocess.run(words, capture_output=True, text=True, check=True).stdout
        columns = ["frame", *FIELDS.values(), "transport", "cut_bytes"]
        rows = wireyard.segments(path, columns).read_all().to_pylist()
        ours = [row for row in rows if row["transport"] == "tcp"]
        for row, line in zip(ours, shown.splitlines(), strict=True):
            theirs = dict(zip(names, (int(value, 0) for value in line.split("\t")), strict=True))
            assert row["frame"] == theirs.pop("frame.number")
            theirs["tcp.flags"] &= 0xFF  # they have the reserved bits too
            if row["cut_bytes"]:
                # They believe the record, and we IP, of what the packet had on the wire.
                assert theirs.pop("tcp.len") in (row["payload_length"], _kept(row))
            if row["ack"] is None:
                assert theirs.pop("tcp.ack_raw") == 0 or not theirs["tcp.flags"] & 16
            for name, value in theirs.items():
                assert row[FIELDS[name]] == value, (path.name, row["frame"], name)
            compared += 1
    assert compared > 2000


def _kept(row: dict[str, int]) -> int:
    return row["payload_length"] - row["cut_bytes"]
