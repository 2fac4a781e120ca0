"""``wireyard slice``: exactly the frames behind rows, byte for byte."""

from __future__ import annotations

import struct
from itertools import pairwise
from pathlib import Path

import pytest

import wireyard
from tests.captures.make import (
    ACK,
    BEGAN_NS,
    SYN,
    Packet,
    both_ways,
    enhanced,
    ethernet,
    interface,
    ipv4,
    one_way,
    pcap,
    section,
    tcp,
)
from tests.captures.test_directed import CONNECT, PUBLISH
from tests.cli.results import Run, notes_of, one_line, rows_of
from wireyard import mqtt
from wireyard.captures.signatures import PCAPNG, is_slice

TRAFFIC = Path(__file__).parents[2] / "examples" / "traffic.pcap"

OTHER = bytes.fromhex("300600026c6c686f")
"""Topic ll, payload ho."""


def frames_of() -> list[bytes]:
    """Return a client's frames: a CONNECT, four PUBLISH of which the third is in three pieces."""
    stream = CONNECT + PUBLISH + PUBLISH + OTHER + PUBLISH
    at = len(CONNECT) + 14
    cuts = [0, len(CONNECT), len(CONNECT) + 14, at + 3, at + 5, at + 10, len(stream)]
    return [
        ethernet(ipv4(tcp(40000, 1883, 1000 + start, stream[start:stop])))
        for start, stop in pairwise(cuts)
    ]


def marked(data: bytes) -> bytes:
    """Return a capture that says that it is a slice."""
    if data[:4] != PCAPNG:
        return data[:12] + b"WYSL" + data[16:]
    order = "<" if data[8] == 0x4D else ">"
    (size,) = struct.unpack_from(f"{order}I", data, 4)
    text = b"a slice, made by wireyard"
    comment = struct.pack(f"{order}HH", 1, len(text)) + text + bytes(-len(text) % 4)
    options = data[24 : size - 4] or bytes(4)
    word = struct.pack(f"{order}I", 28 + len(comment) + len(options))
    return PCAPNG + word + data[8:16] + b"\xff" * 8 + comment + options + word + data[size:]


def test_all_frames_of_a_row_and_no_other(run: Run, tmp_path: Path) -> None:
    frames = frames_of()
    packets = [Packet(data, BEGAN_NS + 1000 * number) for number, data in enumerate(frames)]
    path, out = tmp_path / "in.pcap", tmp_path / "out.pcap"
    path.write_bytes(pcap(packets))
    result = run("slice", path, "--where", "topic == ll", "-w", out)
    assert result.exit_code == 0 and f"wireyard: wrote {out}, 3 frames\n" in result.stderr
    assert out.read_bytes() == marked(pcap(packets[2:5]))
    run("slice", path, "--where", "topic == t", "--where", "frame == 2", "-w", out)
    assert out.read_bytes() == marked(pcap(packets[1:2]))
    run("slice", path, "-w", out)
    assert out.read_bytes() == path.read_bytes()
    run("slice", path, "--where", "topic == nowhere", "-w", out)
    assert out.read_bytes() == marked(pcap([]))


@pytest.mark.parametrize("order", ["<", ">"])
def test_pcapng_keeps_its_sections_and_interfaces(run: Run, tmp_path: Path, order: str) -> None:
    frames = frames_of()
    head = section(order) + interface(order=order)
    path, out = tmp_path / "in.pcapng", tmp_path / "out.pcapng"
    blocks = [enhanced(data, number, order=order) for number, data in enumerate(frames)]
    path.write_bytes(head + b"".join(blocks))
    assert run("slice", path, "--where", "payload_size == 2", "-w", out).exit_code == 0
    assert out.read_bytes() == marked(head + b"".join(blocks[1:]))
    run("slice", path, "--where", "topic == ll", "-w", out)
    assert out.read_bytes() == marked(head + b"".join(blocks[2:5]))


def test_a_frame_behind_a_gap_and_one_that_is_no_packet(run: Run, tmp_path: Path) -> None:
    path, out = tmp_path / "in.pcap", tmp_path / "out.pcap"
    data = one_way([(0, CONNECT), (len(CONNECT) + 7, b"\xff" + PUBLISH)])
    path.write_bytes(data)
    run("slice", path, "--where", "status == garbage", "-w", out)
    assert out.read_bytes() == marked(data[:24] + data[-(16 + 54 + 8) :])
    run("slice", path, "--where", "status == gap", "-w", out)
    assert out.read_bytes() == marked(data[:24])


def test_pieces_of_one_capture_in_any_order(run: Run, tmp_path: Path) -> None:
    frames = frames_of()
    packets = [Packet(data, BEGAN_NS + 1000 * number) for number, data in enumerate(frames)]
    first, second, out = tmp_path / "b", tmp_path / "a", tmp_path / "out"
    first.write_bytes(pcap(packets[:3]))
    second.write_bytes(pcap(packets[3:]))
    assert run("slice", second, first, "--where", "topic == ll", "-w", out).exit_code == 0
    assert out.read_bytes() == marked(pcap(packets[2:5]))
    second.write_bytes(pcap(packets[3:], magic=0xA1B23C4D, unit_ns=1))
    refused = run("slice", second, first, "-w", out)
    assert refused.exit_code == 2
    assert one_line(refused) == "captures of several formats or links; slice them one by one"


def test_bad_requests(run: Run, tmp_path: Path) -> None:
    path, out = tmp_path / "in.pcap", tmp_path / "out.pcap"
    path.write_bytes(pcap([Packet(data) for data in both_ways(b"GET /", b"200 OK")]))
    nothing = run("slice", path, "-w", out)
    *notes, error = notes_of(nothing.stderr).splitlines()
    assert nothing.exit_code == 2 and error.endswith("in.pcap: no stream of it is known")
    assert [note.partition("in.pcap: ")[2] for note in notes] == [
        "2 streams, 11 bytes (10.0.0.1:40000>10.0.0.2:1999, 10.0.0.2:1999>10.0.0.1:40000): unknown"
        " format; to decode it as MQTT: --decode-as tcp.port==1999,mqtt"
    ]
    assert not out.exists()
    wrong = run("slice", path, "-d", "tcp.port==1999,mqtt", "--where", "colour == red", "-w", out)
    assert wrong.exit_code == 2 and "a column 'colour'" in one_line(wrong)
    path.write_bytes(CONNECT)
    assert run("slice", path, "-w", out).exit_code == 3


# --- whole connections, and conditions of several formats -----------------------------------


def test_a_client_is_all_frames_of_its_connections(run: Run, tmp_path: Path) -> None:
    connect, other = (wireyard.encode(mqtt.Connect(client_id=one)) for one in ("me", "you"))
    publish = wireyard.encode(mqtt.Publish(topic="t", payload="x"))
    ports = (40000, 1883)
    first = both_ways(connect, b"\x20\x02\x00\x00", ports)
    ack = ethernet(ipv4(tcp(40000, 1883, 1000 + len(connect), b"", ACK, 504)))
    again = [*first[:1], *first]  # the SYN sent twice
    stranger = both_ways(other, b"\x20\x02\x00\x00", (40001, 1883))
    # The same ports once more: another connection, of somebody else.
    reused = [
        ethernet(ipv4(tcp(40000, 1883, 9_000_000, flags=SYN))),
        ethernet(ipv4(tcp(40000, 1883, 9_000_001, other + publish))),
    ]
    frames = [*again, *stranger, ack, *reused]
    packets = [Packet(data, BEGAN_NS + 1000 * number) for number, data in enumerate(frames)]
    path, out = tmp_path / "in.pcap", tmp_path / "out.pcap"
    path.write_bytes(pcap(packets))
    result = run("slice", path, "--client", "me", "-w", out)
    assert result.exit_code == 0
    assert out.read_bytes() == marked(pcap([*packets[:5], packets[9]]))
    run("slice", path, "--client", "you", "-w", out)
    assert out.read_bytes() == marked(pcap([*packets[5:9], *packets[10:]]))
    run("slice", path, "--client", "you", "--where", "topic == t", "-w", out)
    assert out.read_bytes() == marked(pcap(packets[11:]))
    run("slice", path, "--client", "10.0.0.1:40001", "-w", out)
    assert out.read_bytes() == marked(pcap(packets[5:9]))
    run("slice", path, "--client", "me", "--client", "you", "-w", out)
    assert out.read_bytes() == path.read_bytes()
    nobody = run("slice", path, "--client", "nobody", "-w", out)
    assert nobody.exit_code == 2 and "shows no client of this id" in one_line(nobody)


def test_the_slice_of_a_client_holds_its_rows_whole(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "out.pcap"
    whole = rows_of(run("decode", TRAFFIC, "--format", "mqtt"))
    ports = {row["src_port"] for row in whole if row["client_id"] == "stock-1"}
    assert run("slice", TRAFFIC, "--client", "stock-1", "-w", out).exit_code == 0
    kept = ("stream", "offset", "length", "status", "topic", "payload", "captured_ns")
    wanted = [row for row in whole if {row["src_port"], row["dst_port"]} & ports]
    found = rows_of(run("decode", out))
    assert [[row[name] for name in kept] for row in found] == [
        [row[name] for name in kept] for row in wanted
    ]
    assert len(found) > 10
    flags = [row["flags"] for row in rows_of(run("flows", out, "--segments"))]
    assert "S" in flags and "SA" in flags and any("F" in one or "R" in one for one in flags)


def test_a_condition_applies_to_formats_with_the_column(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "out.pcap"
    for where, formats in (
        ("qos == 1", {"mqtt"}),
        ("destination == shop.orders", {"jmq"}),
        ("destination == shop.orders OR (topic == shop/notes AND NOT qos == 0)", {"jmq"}),
        ("topic in shop.orders, shop/answers/office", {"jmq", "mqtt"}),
    ):
        rows = rows_of(run("decode", TRAFFIC, "--where", where))
        assert {row["format"] for row in rows} == formats
        frames = {row["frame"] for row in rows}
        result = run("slice", TRAFFIC, "--where", where, "-w", out)
        assert result.exit_code == 0
        assert int(result.stderr.split()[-2].replace(",", "")) >= len(frames)
    target = tmp_path / "x.csv"
    result = run("decode", TRAFFIC, "--where", "qos == 1", "-w", target)
    assert (result.exit_code, notes_of(result.stderr), target.exists()) == (0, "", True)
    for command in (["decode"], ["slice", "-w", out]):
        wrong = run(*command, TRAFFIC, "--where", "domain == 1")
        assert wrong.exit_code == 2
        assert "--where domain == 1: " in one_line(wrong)
        assert one_line(wrong).endswith("rows have no such column")


def test_nothing_is_concluded_from_what_a_slice_leaves_out(run: Run, tmp_path: Path) -> None:
    """The messages of a client were delivered to another one, which is not in the slice."""
    path = TRAFFIC.parent / "symptoms" / "mqtt-healthy.pcap"
    out, again, query = (
        tmp_path / "out.pcap",
        tmp_path / "again.pcap",
        "SELECT verdict FROM deliveries",
    )
    run("slice", path, "--client", "sends", "-w", out)
    verdicts = {row["verdict"] for row in rows_of(run("sql", out, query))}
    assert verdicts == {"undecided"}
    result = run("why", out)
    assert "a slice of a capture" in result.output + result.stderr
    run("slice", out, "--client", "sends", "-w", again)
    assert again.read_bytes() == out.read_bytes()


def test_a_slice_of_pcapng_says_so_in_a_comment(run: Run, tmp_path: Path) -> None:
    path, out, again = (tmp_path / name for name in ("in.pcapng", "out.pcapng", "again.pcapng"))
    blocks = [section(), interface(), *(enhanced(frame) for frame in frames_of())]
    path.write_bytes(b"".join(blocks))
    run("slice", path, "--where", "topic == ll", "-w", out)
    assert is_slice(out.read_bytes()) and not is_slice(path.read_bytes())
    assert rows_of(run("decode", out, "--format", "mqtt", "--columns", "topic"))
    run("slice", out, "--where", "topic == ll", "-w", again)
    assert again.read_bytes() == out.read_bytes()
