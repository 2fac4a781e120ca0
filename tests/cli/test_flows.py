"""flows: the conversations of a capture, as a table and as JSON Lines."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.captures.make import (
    ACK,
    BEGAN_NS,
    CLIENT,
    FIN,
    SERVER,
    SYN,
    Packet,
    ethernet,
    ipv4,
    ipv6,
    pcap,
    tcp,
    udp,
)
from tests.cli.results import Run, one_line, rows_of
from tests.make import packet
from wireyard.cli import main

SECOND_NS = 1_000_000_000


@pytest.fixture
def capture(tmp_path: Path) -> Path:
    """Return a capture of a JMQ connection with a gap in it, and of two datagrams."""
    sent, lost, answer = packet(packet_type=10) * 2, packet() * 3, packet(packet_type=11)
    there = [
        tcp(1234, 7676, 99, flags=SYN),
        tcp(1234, 7676, 100, sent),
        tcp(1234, 7676, 100 + len(sent + lost), packet(), flags=ACK | FIN),
    ]
    back = [
        tcp(7676, 1234, 499, flags=SYN | ACK, acknowledgment=100),
        tcp(7676, 1234, 500, answer),
    ]
    datagrams = [udp(5000, 5000, b"\0\0hi"), udp(5000, 5000, b"\0\0ho")]
    frames = [
        *(ipv4(one) for one in there[:1]),
        *(ipv4(one, 6, SERVER, CLIENT) for one in back),
        *(ipv4(one) for one in there[1:]),
        *(ipv4(one, 17) for one in datagrams),
    ]
    path = tmp_path / "traffic.pcap"
    records = [
        Packet(ethernet(frame), BEGAN_NS + number * SECOND_NS)
        for number, frame in enumerate(frames)
    ]
    path.write_bytes(pcap(records))
    return path


def test_a_conversation_is_told_in_full(run: Run, capture: Path) -> None:
    connection, datagrams = rows_of(run("flows", capture, "--out", "jsonl"))
    assert connection == {
        "client": f"{CLIENT}:1234",
        "server": f"{SERVER}:7676",
        "transport": "tcp",
        "format": "jmq",
        "carriers": [],
        "packets_sent": 3,
        "packets_received": 1,
        "bytes_sent": 6 * 72,
        "bytes_received": 72,
        "gaps": 1,
        "gap_bytes": 3 * 72,
        # Of what brought bytes.
        "first_ns": BEGAN_NS + 2 * SECOND_NS,
        "last_ns": BEGAN_NS + 4 * SECOND_NS,
        "ended": "fin",
        "client_id": None,
    }
    assert (datagrams["transport"], datagrams["format"]) == ("udp", None)
    assert (datagrams["bytes_sent"], datagrams["packets_sent"]) == (8, None)


@pytest.mark.parametrize(
    ("port", "opens", "is_turned"),
    [(8883, False, True), (1883, False, True), (9999, False, False), (8883, True, False)],
)
def test_the_client_of_a_connection_captured_from_the_middle(
    port: int, opens: bool, is_turned: bool, run: Run, tmp_path: Path
) -> None:
    """The side with the port sends first; it is the server's, unless it opened the connection."""
    records = [bytes.fromhex("1703030010") + bytes(16), bytes.fromhex("1703030020") + bytes(32)]
    frames = [ipv4(tcp(port, 40000, 999, flags=SYN), 6, SERVER, CLIENT)] * opens
    frames.append(ipv4(tcp(port, 40000, 1000, records[0], acknowledgment=500), 6, SERVER, CLIENT))
    frames.append(ipv4(tcp(40000, port, 500, records[1], acknowledgment=1021)))
    path = tmp_path / "middle.pcap"
    path.write_bytes(pcap([Packet(ethernet(frame)) for frame in frames]))
    (row,) = rows_of(run("flows", path, "--out", "jsonl"))
    client, server = f"{CLIENT}:40000", f"{SERVER}:{port}"
    ends = (client, server) if is_turned else (server, client)
    assert (row["client"], row["server"], row["format"]) == (*ends, "tls")
    sizes = (37, 21) if is_turned else (21, 37)
    assert (row["bytes_sent"], row["bytes_received"]) == sizes


def test_a_table_for_people(run: Run, capture: Path) -> None:
    result = run("flows", capture, "--out", "table")
    assert (result.exit_code, result.stderr) == (0, "")
    head, connection, datagrams, _, ledger = result.stdout.splitlines()
    assert head.split() == [
        *("first", "client", "server", "format", "packets", "bytes", "gaps", "seconds"),
    ]
    assert connection.split() == [
        "2023-11-14T22:13:22.123Z",
        *(f"{CLIENT}:1234", f"{SERVER}:7676", "jmq", "3", "/", "1", "432", "/", "72", "1"),
        "2.000",
    ]
    assert datagrams.split()[3] == "udp"
    assert ledger.split()[1:3] == ["captured", "bytes"]


def test_compressed_captures_and_standard_input(run: Run, capture: Path, tmp_path: Path) -> None:
    packed = tmp_path / "packed"
    packed.write_bytes(gzip.compress(capture.read_bytes()))
    wanted = run("flows", capture, "--out", "jsonl").stdout
    assert run("flows", packed, "--out", "jsonl").stdout == wanted


def test_a_capture_that_is_cut_short_is_told(run: Run, capture: Path) -> None:
    whole = capture.read_bytes()
    capture.write_bytes(whole[:-10])
    result = run("flows", capture, "--out", "jsonl")
    assert result.exit_code == 1
    assert f"{capture}: " in one_line(result) and "bytes are not read" in one_line(result)
    assert len(result.stdout.splitlines()) == 2


def test_every_captured_byte_is_accounted_for(run: Run, capture: Path) -> None:
    last = run("flows", capture, "--out", "table").stdout.splitlines()[-1]
    total, _, parts = last.partition(" captured bytes = ")
    numbers = [int(part.split()[0].replace(",", "")) for part in parts.split(" + ")]
    assert int(total.replace(",", "")) == sum(numbers) > 0


def test_other_commands_lead_here(run: Run, capture: Path) -> None:
    for command in ("convert", "check-splits"):
        result = run(command, capture)
        assert result.exit_code == 2
        wanted = f"{capture}: is a capture, not one stream; 'wireyard decode' reads what is in it"
        assert one_line(result) == wanted


def test_what_is_no_capture_is_one_line(run: Run, stream: Path, tmp_path: Path) -> None:
    result = run("flows", stream)
    assert result.exit_code == 3 and "begins like no capture" in one_line(result)
    assert one_line(result).endswith("; it begins like jmq, which 'wireyard decode' reads")
    assert run("flows", tmp_path / "nothing").exit_code == 3


def test_recorded_captures_have_the_packets_of_their_brokers(run: Run, shared: Path) -> None:
    folder = shared / "captures" / "openmq"
    found = rows_of(run("flows", folder / "cluster.pcap", "--out", "jsonl"))
    index = json.loads((shared / "streams" / "real" / "index.json").read_text())
    wanted = {
        one["stream"]: (one["format"], one["packets"], one["bytes"])
        for one in index
        if one["capture"] == "cluster.pcap"
    }
    shown = {}
    for row in found:
        assert row["format"] == "portmapper" or row["packets_sent"] is not None
        if row["format"] != "portmapper":
            ways = (
                (row["client"], row["server"], "sent"),
                (row["server"], row["client"], "received"),
            )
            for src, dst, way in ways:
                counts = row[f"packets_{way}"], row[f"bytes_{way}"]
                shown[f"{src}>{dst}"] = (row["format"], *counts)
    assert shown == wanted


def test_segments_are_listed_as_captured(run: Run, capture: Path) -> None:
    rows = rows_of(run("flows", capture, "--segments"))
    assert [row["frame"] for row in rows] == list(range(1, 8))
    assert "payload" not in rows[0]
    assert (rows[0]["flow"], rows[0]["seq"], rows[0]["ack"]) == (
        f"{CLIENT}:1234>{SERVER}:7676",
        99,
        None,
    )
    assert [row["flags"] for row in rows] == ["S", "SA", "A", "A", "FA", None, None]
    shown = run("flows", capture, "--segments", "--out", "table").stdout.splitlines()
    assert len(shown) == 8 and shown[0].split()[:3] == ["frame", "captured_ns", "flow"]


def test_segments_of_a_damaged_capture(run: Run, capture: Path) -> None:
    capture.write_bytes(capture.read_bytes() + bytes(3))
    result = run("flows", capture, "--segments")
    assert result.exit_code == 1 and len(result.stdout.splitlines()) == 7
    assert "3 bytes are not read" in one_line(result)


# --- on a terminal --------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["traffic.pcap", "encrypted/mqtt.pcap", "ring.pcap"])
@pytest.mark.parametrize("width", ["80", "100", "160"])
def test_a_table_fits_with_ports_and_bytes_kept(name: str, width: str, run: Run) -> None:
    path = Path(__file__).parents[2] / "examples" / name
    rows = rows_of(run("flows", path, "--out", "jsonl"))
    env = {"COLUMNS": width}
    shown = CliRunner().invoke(main, ["flows", str(path), "--out", "table"], env=env)
    lines = shown.stdout.splitlines()
    table = lines[1 : 1 + len(rows)]
    assert all(len(line) <= int(width) for line in table)
    for line, row in zip(table, rows, strict=True):
        assert [row["client"], row["server"]] == [word for word in line.split() if ":" in word][
            line.startswith("20") :
        ][:2]
        assert f"{row['bytes_sent']} / {row['bytes_received']}" in line
    assert "first" in lines[0] or width != "160"


@pytest.mark.parametrize("width", ["60", "100", "200"])
def test_addresses_in_brackets_are_shown_whole(width: str, tmp_path: Path) -> None:
    path, ends = tmp_path / "six.pcap", ("fe80::1234:5678:9abc:def0", "abba::1")
    frames = [ethernet(ipv6(udp(5000, 5001, b"hi"), 17, *ends), kind=0x86DD)]
    path.write_bytes(pcap([Packet(frame, BEGAN_NS) for frame in frames]))
    arguments = ["flows", str(path), "--out", "table"]
    shown = CliRunner().invoke(main, arguments, env={"COLUMNS": width}).stdout
    lines = shown.splitlines()
    assert all(len(line) <= int(width) for line in lines[:-2])
    if width != "60":
        assert [word for word in lines[1].split() if "[" in word] == [
            f"[{ends[0]}]:5000",
            f"[{ends[1]}]:5001",
        ]
    else:  # too wide for a line
        assert len(lines) > 4 and lines[1].startswith("[fe80::1234:")


@pytest.mark.parametrize("by", ["bytes", "packets", "time"])
def test_conversations_are_sorted(by: str, run: Run) -> None:
    path = Path(__file__).parents[2] / "examples" / "traffic.pcap"
    rows = rows_of(run("flows", path, "--out", "jsonl", "--sort", by))
    plain = rows_of(run("flows", path, "--out", "jsonl"))
    keys = {
        "bytes": lambda row: row["bytes_sent"] + row["bytes_received"],
        "packets": lambda row: (row["packets_sent"] or 0) + (row["packets_received"] or 0),
        "time": lambda row: row["last_ns"] - row["first_ns"],
    }
    assert rows == sorted(plain, key=keys[by], reverse=True) != plain


def test_times_and_frames_come_first_in_tables_of_captures(run: Run) -> None:
    path = Path(__file__).parents[2] / "examples" / "traffic.pcap"
    lines = run("decode", path, "--out", "table", "--format", "mqtt").stdout.splitlines()
    row = rows_of(run("decode", path, "--format", "mqtt", "--limit", 1))[0]
    assert lines[0] == row["stream"]
    assert lines[1].split()[:4] == ["captured_ns", "frame", "length", "packet_type_name"]
    assert lines[1].split()[4] == "topic" or "topic" not in lines[1]
    time, frame = lines[2].split()[:2]
    assert frame == str(row["frame"]) and time == "2026-11-21T20:22:35.865Z"


def test_conversations_have_the_ids_of_their_clients_and_their_times() -> None:
    words = [
        "flows",
        str(Path(__file__).parents[2] / "examples" / "traffic.pcap"),
        "--out",
        "table",
    ]
    shown = CliRunner().invoke(main, words, env={"COLUMNS": "120"}).stdout.splitlines()
    assert shown[0].split()[:4] == ["first", "client", "client", "id"]
    assert shown[1].split()[:3] == ["2026-11-21T20:22:35.865Z", "127.0.0.1:59366", "monitor"]
    lines = CliRunner().invoke(main, words[:2], env={}).stdout.splitlines()
    ids = {row["client"]: row["client_id"] for row in map(json.loads, lines)}
    # A client without an id of its own has the one that the broker gave it.
    assert {"monitor", "office", "alerts-desk"} <= {*ids.values()}
    assert any(name and name.startswith("auto-") for name in ids.values())
