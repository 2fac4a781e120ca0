"""The example capture: what taps passed on and clients logged in the same run is what is read."""

from __future__ import annotations

import hashlib
import json
import struct
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from click.testing import CliRunner

import wireyard
from tests.captures.assigned import assign_formats
from tests.captures.test_recorded import captured
from tests.captures.test_tables import by_stream
from tests.cli.results import rows_of
from tests.formats.mqtt.test_examples import messages_in
from wireyard.captures.connections.stream import Stream
from wireyard.captures.read import Capture, read_capture
from wireyard.cli import main
from wireyard.formats.jmq.layout import MESSAGE_TYPES

Row = dict[str, Any]
MAPPER_PORT = 7676
SAME = ["offset", "length", "status", "packet_type", "packet_type_name"]
"""What a packet is, whether or not the version is known that the other direction tells."""


class Frame(NamedTuple):
    time_ns: int
    payload_bytes: int


def lines(path: Path) -> list[Row]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def frames_in(pcap: bytes) -> Iterator[Frame]:
    """Walk a capture of TCP over IPv4 on Ethernet in the plainest way there is."""
    assert struct.unpack_from("<I16xI", pcap) == (0xA1B2C3D4, 1)
    at = 24
    while at < len(pcap):
        seconds, micros, kept, length = struct.unpack_from("<4I", pcap, at)
        assert kept == length
        ip = at + 16 + 14
        ip_bytes = struct.unpack_from(">H", pcap, ip + 2)[0]
        ip_header = (pcap[ip] & 15) * 4
        tcp_header = (pcap[ip + ip_header + 12] >> 4) * 4
        yield Frame((seconds * 10**6 + micros) * 1000, ip_bytes - ip_header - tcp_header)
        at += 16 + kept


@pytest.fixture(scope="module")
def pcap(examples: Path) -> Path:
    return examples / "traffic.pcap"


@pytest.fixture(scope="module")
def capture(pcap: Path) -> Capture:
    return read_capture(pcap)


@pytest.fixture(scope="module")
def clients(examples: Path) -> list[Row]:
    return lines(examples / "traffic_clients.jsonl")


@pytest.fixture(scope="module")
def taps(examples: Path) -> dict[str, str]:
    """Return the names of what taps passed on, by its digest."""
    logged = lines(examples / "traffic_taps.jsonl")
    return {
        one["sha256"]: f"{one['connection']}-{one['direction']}.{one['format']}" for one in logged
    }


@pytest.fixture(scope="module")
def streams(capture: Capture, taps: dict[str, str]) -> dict[str, Stream]:
    """Return the streams by what the taps call them, and the four that no tap has seen."""
    answer = next(one.port_mapper for one in assign_formats(capture.streams) if one.port_mapper)
    [jms] = [one.port for one in answer.services if one.name == "jms"]
    untapped = {MAPPER_PORT: "mapper", jms: "warehouse"}
    found = {}
    for one in capture.streams:
        to, back = untapped.get(one.dst.port), untapped.get(one.src.port)
        name = f"{to}-c2b.jmq" if to else f"{back}-b2c.jmq"
        found[taps.get(hashlib.sha256(captured(one)).hexdigest(), name)] = one
    assert len(found) == len(capture.streams)
    return found


def test_streams_are_what_the_taps_passed_on(
    streams: dict[str, Stream], taps: dict[str, str]
) -> None:
    untapped = {f"{name}-{way}.jmq" for name in ("mapper", "warehouse") for way in ("c2b", "b2c")}
    assert len(taps) == 26
    assert streams.keys() == {*taps.values(), *untapped}
    assert all(one.begun and one.ended and not len(one.gaps) for one in streams.values())


def test_every_byte_and_every_frame_has_a_fate(pcap: Path, capture: Capture) -> None:
    frames = list(frames_in(pcap.read_bytes()))
    assert (capture.damage, capture.unread_bytes) == (None, 0)
    assert capture.frames == {"tcp": len(frames)}
    assert sum(capture.payload_bytes.values()) == sum(one.payload_bytes for one in frames)
    assert sum(one.size for one in capture.streams) == capture.payload_bytes["tcp"]


@pytest.mark.parametrize("format", ["jmq", "mqtt"])
def test_packets_are_those_of_the_bare_streams(
    pcap: Path, streams: dict[str, Stream], format: str
) -> None:
    frames = list(frames_in(pcap.read_bytes()))
    found = by_stream(wireyard.read(pcap, format))
    wanted = {
        name: one
        for name, one in streams.items()
        if name.endswith(f".{format}") and not name.startswith("mapper")
    }
    assert found.keys() == {one.name for one in wanted.values()}
    for name, stream in wanted.items():
        rows = found[stream.name]
        bare = wireyard.read(captured(stream), format, SAME).to_pylist()
        assert [{key: row[key] for key in SAME} for row in rows] == bare, name
        assert {row["status"] for row in rows} == {"ok"}
        assert sum(row["length"] for row in rows) == stream.size
        places = [row["frame"] for row in rows]
        assert places == sorted(places)
        assert [frames[place - 1].time_ns for place in places] == [
            row["captured_ns"] for row in rows
        ]


def test_what_the_jms_clients_told(
    pcap: Path, streams: dict[str, Stream], clients: list[Row]
) -> None:
    columns = ["stream", "offset", "length", "packet_type", "destination", "sys_message_id"]
    found = by_stream(wireyard.read(pcap, "jmq", columns))
    logged: defaultdict[tuple[str, str], list[tuple[str, str]]] = defaultdict(list)
    for one in clients:
        if "id" in one:
            said = one["destination"], one["id"].removeprefix("ID:")
            logged[one["connection"], one["event"]].append(said)
    compared = 0
    for name in ("shop", "billing", "warehouse", "alerts", "audit", "stranger"):
        sent, delivered = (
            [
                (row["destination"], row["sys_message_id"])
                for row in found[streams[f"{name}-{way}.jmq"].name]
                if row["packet_type"] in MESSAGE_TYPES
            ]
            for way in ("c2b", "b2c")
        )
        assert sent == logged[name, "sent"], name
        # A client is sent messages ahead of its asking, the last of which it may never ask for.
        assert Counter(logged[name, "received"]) <= Counter(delivered), name
        compared += len(sent) + len(logged[name, "received"])
    assert compared == sum("id" in one for one in clients) > 200


def test_what_the_mqtt_clients_told(
    pcap: Path, streams: dict[str, Stream], clients: list[Row]
) -> None:
    found = by_stream(wireyard.read(pcap, "mqtt"))
    logged: defaultdict[str, list[tuple[Any, ...]]] = defaultdict(list)
    for one in clients:
        if "topic" in one:
            way = {"published": "c2b", "received": "b2c"}[one["event"]]
            payload = bytes.fromhex(one["payload_hex"])
            said = one["topic"], one["qos"], one["retain"], payload
            logged[f"{one['connection']}-{way}.mqtt"].append(said)
    for name, stream in streams.items():
        if name.endswith(".mqtt"):
            assert [one[:4] for one in messages_in(found[stream.name])] == logged.pop(name, [])
    assert not logged


def test_conversations(pcap: Path, streams: dict[str, Stream]) -> None:
    rows = rows_of(CliRunner().invoke(main, ["flows", str(pcap), "--out", "jsonl"]))
    assert Counter(row["format"] for row in rows) == {"mqtt": 8, "jmq": 6, "portmapper": 1}
    sizes = {one.name: one.size for one in streams.values()}
    assert sizes == {
        f"{row[src]}>{row[dst]}": row[size]
        for row in rows
        for src, dst, size in (
            ("client", "server", "bytes_sent"),
            ("server", "client", "bytes_received"),
        )
    }
    packets = sum((row["packets_sent"] or 0) + (row["packets_received"] or 0) for row in rows)
    assert packets == sum(wireyard.read(pcap, format).num_rows for format in ("jmq", "mqtt"))
    assert {(row["gaps"], row["ended"]) for row in rows} == {(0, "fin")}
