"""Streams that are read together give the rows that each gives by itself."""

from __future__ import annotations

import json
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner

import wireyard
from tests.captures.connections import ACK, SYN, make_capture
from tests.captures.make import ethernet, ipv4, packets, pcap, tcp
from tests.fuzz import time_bound
from wireyard.captures import bundled
from wireyard.captures.accounts import account_streams
from wireyard.captures.bundled import BundledStreams
from wireyard.captures.connections.stream import Stream
from wireyard.captures.connections.table import StreamTable
from wireyard.captures.detection import plain
from wireyard.captures.inputs import open_captures
from wireyard.cli import main
from wireyard.errors import WireError
from wireyard.formats import get_format
from wireyard.formats.jmq.packet import Packet, encode
from wireyard.streams import scan
from wireyard.streams.blocks import StreamBundle
from wireyard.streams.plan import make_plan

NARROW = ["stream", "frame", "captured_ns", "src_addr", "dst_port", "packet_type", "qos", "dup",
          "topic", "packet_id", "status", "error", "version_in_force", "remaining_length",
          "remaining_length_bytes", "verdict", "offset", "payload"]  # fmt: skip
"""Columns that no packet has for itself alone."""
JMQ_NARROW = ["stream", "frame", "captured_ns", "dst_addr", "src_port", "packet_type", "status",
              "error", "destination", "sys_message_id", "properties", "offset", "length",
              "body_size"]  # fmt: skip
REQUESTS: list[dict[str, Any]] = [
    {},
    {"columns": NARROW},
    {"columns": ["dst_addr", "src_port", "client_id", "filters", "return_code"]},
    {"columns": NARROW, "where": [("packet_type", "in", [1, 3, 9])]},
    {"columns": ["source", "packet_type_name"], "mode": "dropmalformed"},
    {"columns": ["topic"], "mode": "failfast"},
    {"columns": NARROW, "max_packet_bytes": 100},
    {"format": "jmq"},
    {"format": "jmq", "columns": JMQ_NARROW},
    {"format": "jmq/short-object", "columns": JMQ_NARROW, "where": [("priority", ">", 3)]},
    {"format": "jmq", "columns": ["destination"], "mode": "failfast"},
    {"decode_as": ["tcp.port==1883,mqtt"]},
    {"columns": NARROW, "decode_as": ["tcp.port==11883,mqtt/5.0", "udp.port==1883,rmp"]},
    {"columns": NARROW, "decode_as": ["tcp.port==1883,jmq", "tcp.port==1883,mqtt"]},
    {"format": "mqtt/5.0", "columns": NARROW, "decode_as": ["tcp.port==1883,mqtt/3.1"]},
    {"format": "mqtt/3.1"},
    {"format": "mqtt/mqipdp-msb"},
    {"columns": NARROW, "threads": 2},
]


@contextmanager
def reading(*, together: bool) -> Iterator[None]:
    """Have streams read together by the compiled columns, or each by the scalar reader."""
    kept = plain.LEAST_STREAMS, bundled.LEAST_TOGETHER, scan._COLD_BYTES, scan._WARM_BYTES
    least, enough = (1, 0) if together else (1 << 60, 1 << 60)
    plain.LEAST_STREAMS = bundled.LEAST_TOGETHER = least
    scan._COLD_BYTES = scan._WARM_BYTES = enough
    try:
        yield
    finally:
        plain.LEAST_STREAMS, bundled.LEAST_TOGETHER, scan._COLD_BYTES, scan._WARM_BYTES = kept


def read(source: Any, request: dict[str, Any], *, together: bool) -> pa.Table | str:
    """Return the rows of a capture, or why there are none."""
    try:
        with reading(together=together), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            wanted = {"format": "mqtt", "threads": 1, **request}
            return wireyard.read(source, **wanted).combine_chunks()
    except WireError as error:
        return f"{error} {getattr(error, '__notes__', ())}"


def check(source: Any, request: dict[str, Any]) -> int:
    """Assert that both ways to read a capture give the same; return how many rows."""
    alone, together = (read(source, request, together=one) for one in (False, True))
    if isinstance(alone, str) or isinstance(together, str):
        assert alone == together
        return 0
    assert alone.schema == together.schema
    if not alone.equals(together):
        rows = zip(alone.to_pylist(), together.to_pylist(), strict=True)
        assert not [pair for pair in rows if pair[0] != pair[1]][:3]
    return int(alone.num_rows)


@pytest.mark.parametrize("seed", range(4))
def test_random_connections(seed: int) -> None:
    rows = 0
    with time_bound():
        for number in range(60):
            rng = Random(seed << 32 | number)
            data = make_capture(rng, rng.choice((1, 3, 8, 30)), lossy=seed % 2 == 1)
            rows += check(data, REQUESTS[number % len(REQUESTS)])
    assert rows > 1000


def test_blocks_of_many_rows_are_read_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "_ROWS_TOGETHER", 2)
    assert sum(check(make_capture(Random(seed), 30), {}) for seed in range(3)) > 100


def test_connections_without_damage_are_read_together() -> None:
    with reading(together=True):
        found = open_captures([make_capture(Random(1), 600)])
    bundles = [one for _, one in found.readables if isinstance(one, StreamBundle)]
    assert sum(len(one.streams()) for one in bundles) > len(found.streams) / 4
    names = [one.stream for _, one in found.streams]
    assert len(set(names)) == len(names)


def test_accounts_of_streams_read_together_are_those_of_each() -> None:
    data = make_capture(Random(11), 300)
    with reading(together=True):
        found = open_captures([data])
        assert any(isinstance(one, StreamBundle) for _, one in found.readables)
        together = list(account_streams(found))
    with reading(together=False):
        alone = list(account_streams(open_captures([data])))
    assert together == alone
    assert all(one.balances for one in together)
    assert sum(one.undecoded_bytes for one in together) > 0


def test_streams_taken_out_of_a_bundle_know_who_opened_them() -> None:
    frames = []
    for port in range(30000, 30000 + plain.LEAST_STREAMS):
        connect, connack = b"\x10\x0d\0\4MQTT\4\2\0\x3c\0\1c", b"\x20\2\0\0"
        ways = ("10.0.0.1", "10.0.0.2"), ("10.0.0.2", "10.0.0.1")
        shown = [(0, SYN, b"", 9), (1, SYN | ACK, b"", 49), (0, ACK, connect, 10)]
        if port % 2:  # only the answer to the SYN was captured
            del shown[0]
        for way, flags, data, sequence in [*shown, (1, ACK, connack, 50)]:
            ports = (1883, port) if way else (port, 1883)
            acknowledgment = 10 if way else 50
            segment = tcp(*ports, sequence, data, flags, acknowledgment)
            frames.append(ethernet(ipv4(segment, 6, *ways[way])))
    (only,) = open_captures([pcap(packets(frames))]).readables
    assert isinstance(only.opened, BundledStreams)
    alone = [one.captured for one in only.opened.streams()]
    assert len(alone) == 2 * plain.LEAST_STREAMS
    assert [one.opened for one in alone] == [one.dst.port == 1883 for one in alone]
    assert all(one.begun for one in alone)


def test_a_few_streams_between_others_are_read_by_themselves() -> None:
    frames = []
    for port in range(30000, 30000 + 2 * plain.LEAST_STREAMS):
        connect = b"\x10\x0d\0\4MQTT\4\2\0\x3c\0\1c"
        odd = port % bundled.LEAST_TOGETHER == 0
        data = b"\0" + connect if odd and port < 30000 + plain.LEAST_STREAMS else connect
        frames.append(ethernet(ipv4(tcp(port, 1883, 10, data, ACK, 50), 6)))
    together = open_captures([pcap(packets(frames))], decode_as=["tcp.port==1883,mqtt"])
    kinds = [isinstance(each.opened, BundledStreams) for each in together.readables]
    alone = plain.LEAST_STREAMS - bundled.LEAST_TOGETHER + 1  # up to the last odd one
    assert kinds == [*([False] * alone), True]
    assert len(together.streams) == 2 * plain.LEAST_STREAMS


def test_connections_without_a_handshake_are_read_together() -> None:
    frames, connack = [], {4: b"\x20\2\0\0", 5: b"\x20\3\0\0\0"}
    suback = {4: b"\x90\3\0\1\0", 5: b"\x90\4\0\1\0\0"}
    publish = {4: b"\x30\4\0\1tx", 5: b"\x30\5\0\1t\0x"}
    for port in range(30000, 30000 + plain.LEAST_STREAMS):
        version = 4 + port % 2
        rest = b"\0" * (version == 5) + b"\0\1c"
        connect = bytes([0x10, 10 + len(rest)]) + b"\0\4MQTT" + bytes([version, 2, 0, 60]) + rest
        server = connack[version] + suback[version] + publish[version]
        frames.append(ethernet(ipv4(tcp(port, 1883, 10, connect, ACK, 50), 6)))
        answer = tcp(1883, port, 50, server, ACK, 10 + len(connect))
        frames.append(ethernet(ipv4(answer, 6, "10.0.0.2", "10.0.0.1")))
    data = pcap(packets(frames))
    (only,) = open_captures([data]).readables
    assert isinstance(only.opened, BundledStreams)
    assert not any(one.captured.begun for one in only.opened.streams())
    rows = read(data, {"columns": ["src_port", "dst_port", "version_in_force"]}, together=True)
    assert isinstance(rows, pa.Table) and rows.num_rows == 4 * plain.LEAST_STREAMS
    for row in rows.to_pylist():
        assert row["version_in_force"] == 4 + max(row["src_port"], row["dst_port"]) % 2
    check(data, {})


@pytest.mark.parametrize("chosen", [["--where", "packet_type == 3"], ["--client", "sensor-17"]])
def test_slices_of_connections_read_together(tmp_path: Path, chosen: list[str]) -> None:
    path, written = tmp_path / "many.pcap", tmp_path / "some.pcap"
    for seed in range(8):
        path.write_bytes(make_capture(Random(seed), 80))
        slices = []
        for together in (False, True):
            with reading(together=together):
                result = CliRunner().invoke(main, ["slice", str(path), *chosen, "-w", str(written)])
            assert result.exit_code in (0, 1), result.output
            slices.append(written.read_bytes())
        assert slices[0] == slices[1]
        assert len(slices[0]) > 1000


EXAMPLES = Path(__file__).parents[2] / "examples"
KEYS = [f"--keylog={path}" for path in sorted((EXAMPLES / "encrypted").glob("*.keys"))]
LISTS = [
    ["--out", "jsonl"],
    ["--out", "jsonl", "--sort", "packets"],
    ["--out", "table", "--sort", "time"],
    ["--out", "jsonl", "--decode-as", "tcp.port==1883,mqtt/5.0"],
    ["--out", "jsonl", *KEYS],
]


def check_flows(path: Path, options: list[str]) -> bytes:
    """Assert that both ways give the same conversations, notes and status; return the output."""
    results = []
    for together in (False, True):
        with reading(together=together):
            done = CliRunner().invoke(main, ["flows", str(path), *options], prog_name="wireyard")
        results.append((done.stdout_bytes, done.stderr, done.exit_code))
    assert results[0] == results[1]
    return results[0][0]


@pytest.mark.parametrize("options", LISTS)
def test_flows_of_connections_read_together(tmp_path: Path, options: list[str]) -> None:
    path = tmp_path / "many.pcap"
    for seed in range(6):
        data = make_capture(Random(seed), 80)
        path.write_bytes(data if seed % 3 else data[:-9])
        assert len(check_flows(path, options)) > 5000


def test_flows_of_recordings() -> None:
    paths = sorted(EXAMPLES.rglob("*.pcap*"))
    sizes = [len(check_flows(path, options)) for path, options in zip(paths, cycle(LISTS))]
    assert len(sizes) > 20 and min(sizes) > 100


def test_flows_of_recorded_captures(shared: Path) -> None:
    paths = sorted((shared / "captures").rglob("*.pcap*"))
    sizes = [len(check_flows(path, options)) for path, options in zip(paths, cycle(LISTS[:3]))]
    assert sum(sizes) > 130_000


def test_flows_count_the_packets_that_are_rows(tmp_path: Path) -> None:
    path = tmp_path / "many.pcap"
    for seed in range(6):
        path.write_bytes(make_capture(Random(seed), 80))
        found: Counter[str] = Counter()
        for row in map(json.loads, check_flows(path, LISTS[0]).splitlines()):
            if row["format"] == "mqtt":
                found[f"{row['client']}>{row['server']}"] += row["packets_sent"]
                found[f"{row['server']}>{row['client']}"] += row["packets_received"]
        rows = read(path, {"columns": ["stream", "status"]}, together=False)
        assert isinstance(rows, pa.Table)
        packets = [row for row in rows.to_pylist() if row["status"] in ("ok", "malformed")]
        assert +found == Counter(row["stream"].partition("#")[0] for row in packets)
        assert found.total() > 200


def counting_streams(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the places of the streams that are made, as they are made."""
    make, made = StreamTable.stream, list[int]()

    def counted(table: StreamTable, place: int) -> Stream:
        made.append(place)
        return make(table, place)

    monkeypatch.setattr(StreamTable, "stream", counted)
    return made


@pytest.mark.parametrize("options", [[], ["--decode-as", "tcp.port==1883,mqtt/5.0"]])
@pytest.mark.parametrize("frames", ["mqtt", "jmq", "both"])
def test_flows_of_plain_connections_make_no_streams(
    frames: str, options: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, made = tmp_path / "many.pcap", counting_streams(monkeypatch)
    kinds = [plain_frames] * (frames != "jmq") + [jmq_frames] * (frames != "mqtt")
    for repeats in (1, 4):
        path.write_bytes(pcap(packets(frame for kind in kinds for frame in kind(0, 200 * repeats))))
        made.clear()
        with reading(together=True):
            done = CliRunner().invoke(main, ["flows", str(path), "--out", "jsonl", *options])
        assert len(done.stdout_bytes.splitlines()) == 200 * repeats * len(kinds)
        assert not made


@pytest.mark.parametrize(
    ("format", "decode_as"),
    [("mqtt", ["tcp.port==1883,mqtt"]), ("mqtt/3.1.1", []), ("jmq", []), ("jmq/short-object", [])],
)
def test_rows_of_plain_connections_need_no_streams(
    format: str, decode_as: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    frames = [*plain_frames(0, 100), *jmq_frames(0, 100)]
    request = {"format": format, "decode_as": decode_as}
    check(pcap(packets(frames)), request)
    made = counting_streams(monkeypatch)
    rows = read(pcap(packets(frames)), request, together=True)
    assert isinstance(rows, pa.Table)
    assert rows.num_rows == 300
    assert rows["format"].unique().to_pylist() == [
        decode_as[0].split(",")[1] if decode_as else format
    ]
    assert not made


def test_streams_of_a_byte_are_read_a_limited_number_at_a_time() -> None:
    """Their rows are in memory together, and each is larger than the byte."""
    opened: Any = SimpleNamespace(size=1)
    plan = make_plan(get_format("mqtt"))
    turns = [len(together) for together, _ in scan.bundles([(opened, plan)] * 200_000)]
    assert sum(turns) == 200_000 and max(turns) < 1 << 16


def test_of_connections_of_the_same_byte_one_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    frames = [*plain_frames(0, 40)]
    for number in range(200):
        segment = tcp(50000 + number, 1883, 1000, b"\x10" if number % 3 else b"\x30")
        frames.append(ethernet(ipv4(segment)))
    data = pcap(packets(frames))
    check(data, {})
    made = counting_streams(monkeypatch)
    rows = read(data, {}, together=True)
    assert isinstance(rows, pa.Table)
    assert Counter(rows["status"].to_pylist()) == {"ok": 120, "tail": 200}
    assert len(made) == 2
    made.clear()
    with reading(together=True):
        open_captures([data], part=(0, 1))
    assert not made


@pytest.mark.parametrize(
    ("words", "most"),
    [
        (["inspect", "--frame", "8"], 1),
        (["inspect", "--stream", "10.0.0.1:20003>10.0.0.2:1883"], 1),
        (["slice", "--client", "10.0.0.1:20003"], 2),
    ],
)
def test_of_many_streams_only_those_wanted_are_made(
    words: list[str], most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, written = tmp_path / "many.pcap", tmp_path / "some.pcap"
    path.write_bytes(pcap(packets(plain_frames(0, 200))))
    made, results = counting_streams(monkeypatch), []
    arguments = [words[0], str(path), *words[1:]]
    arguments += ["-w", str(written)] if words[0] == "slice" else []
    for together in (False, True):
        made.clear()
        with reading(together=together):
            done = CliRunner().invoke(main, arguments, prog_name="wireyard")
        assert done.exit_code == 0, done.output
        results.append((done.output, written.read_bytes() if written.exists() else b""))
    assert results[0] == results[1]
    assert 0 < len(made) <= most


def plain_frames(first: int, connections: int) -> Iterator[bytes]:
    """Yield the frames of connections of three packets each."""
    connect = b"\x10\x0d\0\4MQTT\4\2\0\x3c\0\1c"
    for number in range(first, first + connections):
        ports, ways = (20000 + number, 1883), ("10.0.0.1", "10.0.0.2")
        there = tcp(*ports, 10, connect, ACK, 50)
        back = tcp(*ports[::-1], 50, b"\x20\2\0\0", ACK, 10 + len(connect))
        yield ethernet(ipv4(there, 6, *ways))
        yield ethernet(ipv4(back, 6, *ways[::-1]))
        yield ethernet(ipv4(tcp(*ports, 10 + len(connect), b"\xe0\0", ACK, 54), 6, *ways))


@pytest.mark.parametrize("opened", [True, False])
def test_connections_whose_last_bytes_are_missing_are_read_apart(opened: bool) -> None:
    """Of every second connection the server acknowledged 8 bytes more than were captured."""
    frames = [*(plain_frames(0, 200) if opened else earlier_frames(1883, 200))]
    client, sent = ("10.0.0.1", 17) if opened else ("10.0.0.3", 18)
    for port in range(20000, 20200, 2):
        answer = tcp(1883, port, 54, b"", ACK, 10 + sent + 8)
        frames.append(ethernet(ipv4(answer, 6, "10.0.0.2", client)))
    data = pcap(packets(frames))
    check(data, {})
    rows = read(data, {"columns": ["src_port", "status"]}, together=True)
    assert isinstance(rows, pa.Table)
    gaps = [row["src_port"] for row in rows.to_pylist() if row["status"] == "gap"]
    assert sorted(gaps) == [*range(20000, 20200, 2)]


def earlier_frames(port: int, connections: int) -> Iterator[bytes]:
    """Yield the frames of connections without a CONNECT, of three packets each; 3.1.1 and 5.0."""
    for number in range(connections):
        newest = b"\0" * (number % 2)
        publish = bytes([0x32, 7 + len(newest)]) + b"\0\1t\0\1" + newest + b"on"
        ports, ways = (20000 + number, port), ("10.0.0.3", "10.0.0.2")
        there = tcp(*ports, 10, publish * 2, ACK, 50)
        back = tcp(*ports[::-1], 50, b"\x40\2\0\1", ACK, 10 + 2 * len(publish))
        yield ethernet(ipv4(there, 6, *ways))
        yield ethernet(ipv4(back, 6, *ways[::-1]))


@pytest.mark.parametrize(
    ("port", "format", "decode_as"),
    [
        (1883, "mqtt", []),
        (1883, "mqtt/5.0", []),
        (9999, "mqtt", ["tcp.port==9999,mqtt"]),
        (9999, "mqtt", ["tcp.port==9999,mqtt/3.1.1"]),
        (9999, "mqtt", []),
        (1883, "mqtt", ["tcp.port==1883,jmq"]),
        (1883, "jmq", ["tcp.port==1883,jmq"]),
    ],
)
@pytest.mark.parametrize("opened", [False, True])
def test_connections_that_began_earlier(
    port: int, format: str, decode_as: list[str], opened: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    frames = [*earlier_frames(port, 100)]
    if opened:  # by which the format of the port is known
        connect = b"\x10\x0d\0\4MQTT\4\2\0\x3c\0\1c"
        frames.append(ethernet(ipv4(tcp(40000, port, 10, connect, ACK, 50), 6, "10.0.0.3")))
    data, request = pcap(packets(frames)), {"format": format, "decode_as": decode_as}
    made = counting_streams(monkeypatch)
    rows = read(data, request, together=True)
    made = made[:]
    check(data, request)
    if "jmq" in str(decode_as) or not (port == 1883 or decode_as or opened):
        assert len(made) >= 200 + opened
        return
    # What 3.1.1 sends breaks rules of 5.0.
    assert len(made) == (50 if format == "mqtt/5.0" else 0)
    assert isinstance(rows, pa.Table)
    assert rows.num_rows == (300 if format == "mqtt" else 250) + opened
    versions = {*rows["version_in_force"].to_pylist()[:250]}
    if format == "mqtt":
        assert versions == ({4} if "/" in str(decode_as) else {None, 5})


def jmq_frames(first: int, connections: int) -> Iterator[bytes]:
    """Yield the frames of connections of three packets of JMQ each."""
    hello, answer, goodbye = (encode(Packet(packet_type=kind)) for kind in (10, 11, 28))
    for number in range(first, first + connections):
        ports, ways = (30000 + number, 7677), ("10.0.0.1", "10.0.0.2")
        there = tcp(*ports, 10, hello, ACK, 50)
        back = tcp(*ports[::-1], 50, answer, ACK, 10 + len(hello))
        yield ethernet(ipv4(there, 6, *ways))
        yield ethernet(ipv4(back, 6, *ways[::-1]))
        yield ethernet(ipv4(tcp(*ports, 10 + len(hello), goodbye, ACK, 54), 6, *ways))


def test_recorded_captures(shared: Path) -> None:
    paths = sorted((shared / "captures").rglob("*.pcap*"))
    if not paths:
        pytest.skip("no recorded captures here")
    rows = sum(check(path, request) for path in paths for request in REQUESTS[1:3])
    assert rows > 10_000


def test_streams_keep_their_order_and_their_names() -> None:
    data = make_capture(Random(7), 300)
    want, got = (
        read(data, {"columns": ["stream", "offset"]}, together=one) for one in (False, True)
    )
    assert isinstance(want, pa.Table) and isinstance(got, pa.Table)
    assert want.to_pylist() == got.to_pylist()
    assert any("#" in name for name in got["stream"].unique().to_pylist())
    assert any("[" in name for name in got["stream"].unique().to_pylist())


@pytest.mark.parametrize(
    "options",
    [
        [],
        ["--columns", "frame,captured_ns,src_addr,topic,packet_type,status,error,payload"],
        ["--where", "packet_type in 1,3,8"],
        ["--limit", "9"],
        ["--body", "none", "--secrets"],
    ],
)
def test_lines_written_from_columns(tmp_path: Path, options: list[str]) -> None:
    path = tmp_path / "many.pcap"
    for seed in range(6):
        path.write_bytes(make_capture(Random(seed), 40))
        arguments = ["decode", str(path), "--format", "mqtt", *options]
        results = []
        for together in (False, True):
            with reading(together=together):
                done = CliRunner().invoke(main, arguments, prog_name="wireyard")
                results.append((done.stdout_bytes, done.stderr, done.exit_code))
        assert results[0] == results[1]
        assert len(results[0][0]) > 1000
