"""Streams of a capture as rows: gaps, beginnings never seen, datagrams, who has which format."""

from __future__ import annotations

import io
from importlib import import_module
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import wireyard
from tests.captures.make import (
    BEGAN_NS,
    SERVER,
    SYN,
    both_ways,
    ethernet,
    ipv4,
    one_way,
    packets,
    pcap,
    tcp,
    udp,
)
from tests.formats.mqtt.make import publish
from tests.formats.rmp.make import MORE, message
from tests.make import packet
from wireyard.arrays import Ints
from wireyard.captures.connections.flows import Endpoint
from wireyard.captures.connections.stream import RUN_BYTES, Content
from wireyard.captures.detection.assignment import EndpointEvidence
from wireyard.captures.directed import CapturedStream
from wireyard.captures.files.places import Places
from wireyard.captures.inputs import open_input
from wireyard.formats import get_format
from wireyard.streams.blocks import UNKNOWN
from wireyard.streams.framer import Framer
from wireyard.streams.plan import make_plan
from wireyard.streams.scan import scan_stream, scan_streams

CONNECT = bytes.fromhex("100e 00044d515454 04 02 0000 0002 6364")
CONNECT_5 = bytes.fromhex("100f 00044d515454 05 02 0000 00 0002 6364")
CONNACK_5 = bytes.fromhex("2003000000")
PUBLISH = bytes.fromhex("3005 0001 74 6869")
PUBLISH_5 = bytes.fromhex("3006 0001 74 00 6869")
"""Topic t, payload hi."""


def shown(data: bytes, **options: Any) -> list[tuple[str, int, int]]:
    rows = wireyard.read(data, **options).to_pylist()
    for before, row in pairwise(rows):
        if before["stream"] == row["stream"]:
            assert before["offset"] + before["length"] == row["offset"]
    return [(row["status"], row["offset"], row["length"]) for row in rows]


def test_a_window_has_few_of_the_smallest_segments() -> None:
    """Their rows take many times their bytes; a packet of many segments is whole all the same."""
    publishing = publish(4, topic="a", payload=bytes(100))
    pieces = [(0, CONNECT)]
    for data in (*[PUBLISH] * 40, *(bytes([one]) for one in publishing), *[PUBLISH] * 5):
        pieces.append((pieces[-1][0] + len(pieces[-1][1]), data))
    capture = open_input(io.BytesIO(one_way(pieces)))
    (stream,) = capture.streams
    assert isinstance(stream.opened, CapturedStream)
    sizes = []
    found = stream.opened.captured
    for window in found.windows(0, found.size, 10 * RUN_BYTES):
        sizes.append(window.stop - window.start)
        window.start = window.stop
    assert max(sizes[:4]) == len(CONNECT) + 9 * len(PUBLISH) and sum(sizes) == found.size
    assert shown(one_way(pieces))[-6:-4] == [("ok", 296, 105), ("ok", 401, 7)]


@pytest.mark.parametrize("payload", [5, 200, 20_000, 2_100_000])
def test_segments_may_end_in_any_byte_of_a_remaining_length(payload: int) -> None:
    first = publish(4, topic="a", payload=bytes(payload))
    stream = CONNECT + first + PUBLISH
    at = len(CONNECT)
    whole = [("ok", 0, at), ("ok", at, len(first)), ("ok", at + len(first), len(PUBLISH))]
    for cut in range(at, at + 8):
        pieces = [(0, stream[:cut])]
        pieces += [(n, stream[n : n + 60_000]) for n in range(cut, len(stream), 60_000)]
        assert shown(one_way(pieces)) == whole


def test_a_gap_is_a_row_and_jmq_is_found_again_behind_it() -> None:
    first, second, third = packet(sequence=1), packet(sequence=2), packet(sequence=3)
    size = len(first)
    data = one_way([(0, first + second[:10]), (size + 40, second[40:] + third)])
    table = wireyard.read(data, "jmq")
    assert shown(data, format="jmq") == [
        ("ok", 0, size),
        ("tail", size, 10),
        ("gap", size + 10, 30),
        ("garbage", size + 40, size - 40),
        ("ok", 2 * size, size),
    ]
    assert table["sequence"].to_pylist() == [1, None, None, None, 3]
    assert table["frame"].to_pylist() == [2, 2, None, 3, 3]
    assert table["captured_ns"].to_pylist()[0] == BEGAN_NS + 1000
    errors = [row["error"] and row["error"]["code"] for row in table.to_pylist()]
    assert errors == [None, "truncated", "gap", "gap", None]


def test_behind_a_gap_between_packets_a_format_with_a_mark_is_in_step_at_once() -> None:
    size = len(packet())
    data = one_way([(0, packet()), (2 * size, packet())])
    assert shown(data, format="jmq") == [
        ("ok", 0, size),
        ("gap", size, size),
        ("ok", 2 * size, size),
    ]


def test_a_packet_that_a_gap_cut_tells_where_the_next_one_begins() -> None:
    stream = CONNECT + PUBLISH * 3
    lost = range(len(CONNECT) + 4, len(CONNECT) + 6)
    data = one_way([(0, stream[: lost.start]), (lost.stop, stream[lost.stop :])])
    at = len(CONNECT)
    assert shown(data) == [
        ("ok", 0, at),
        ("tail", at, 4),
        ("gap", at + 4, 2),
        ("garbage", at + 6, 1),
        ("ok", at + 7, 7),
        ("ok", at + 14, 7),
    ]
    assert wireyard.read(data)["version_in_force"].to_pylist()[-1] == 4


def test_a_cut_that_ends_with_the_gap_leaves_nothing_to_pass_over() -> None:
    stream = CONNECT + PUBLISH * 2
    at = len(CONNECT)
    data = one_way([(0, stream[: at + 4]), (at + 7, PUBLISH)])
    assert shown(data) == [("ok", 0, at), ("tail", at, 4), ("gap", at + 4, 3), ("ok", at + 7, 7)]


def test_a_packet_cut_by_several_gaps() -> None:
    body = bytes(range(200))
    publish = b"\x30\xcb\x01\x00\x01t" + body
    stream = CONNECT + publish + PUBLISH
    at = len(CONNECT)
    pieces = [
        (0, stream[: at + 50]),
        (at + 60, stream[at + 60 : at + 70]),
        (at + 80, stream[at + 80 :]),
    ]
    assert shown(one_way(pieces)) == [
        ("ok", 0, at),
        ("tail", at, 50),
        ("gap", at + 50, 10),
        ("garbage", at + 60, 10),
        ("gap", at + 70, 10),
        ("garbage", at + 80, len(publish) - 80),
        ("ok", at + len(publish), len(PUBLISH)),
    ]


def test_pieces_of_one_window_and_the_gaps_between_them_are_one_block() -> None:
    one = packet()
    at = range(0, 400 * len(one), 2 * len(one))  # every second packet is lost
    (readable,) = open_input(one_way([(start, one) for start in at])).readables
    opened = readable.opened
    assert isinstance(opened, CapturedStream) and len(opened.captured.pieces) == 200
    fast = import_module(readable.format.columnar.module)
    for scanner in (None, fast.scan_frames):
        (block,) = opened.blocks(Framer(readable.format), scanner)
        assert block.offsets.tolist() == [start * len(one) for start in range(399)]
        assert sorted(block.odd) == [*range(1, 399, 2)]
        assert block.view(398) == one
        frames = opened.columns(block)["frame"].tolist()
        assert [frame for frame in frames if frame != UNKNOWN] == [*range(2, 202)]  # behind a SYN
    before = [*opened.blocks(Framer(readable.format), None, 100 * len(one))]
    assert [offset for block in before for offset in block.offsets.tolist()][-1] < 100 * len(one)


def test_the_packets_of_a_few_runs_are_found_without_the_others() -> None:
    looked_at = []

    class Watched(Ints):
        def __getitem__(self, key: Any) -> Any:
            found = super().__getitem__(key)
            looked_at.append(np.size(found))
            return found

    records = np.arange(100_000).view(Watched)
    content = Content(Places(), records, records, {})
    first, last = np.array([50_000, 50_007, 7]), np.array([50_003, 50_009, 7])
    assert content.packets_of(records, first, last).tolist() == [50000, 50001, 50002, 50007, 50008]
    assert content.packets_of(records, last, first).tolist() == []
    assert sum(looked_at) < 20


def test_behind_a_gap_mqtt_is_found_again_where_a_segment_begins_with_a_packet() -> None:
    at = len(CONNECT)
    data = one_way([(0, CONNECT), (at + 7, PUBLISH)])
    assert shown(data) == [("ok", 0, at), ("gap", at, 7), ("ok", at + 7, 7)]
    data = one_way([(0, CONNECT), (at + 7, b"\xff" + PUBLISH)])
    assert shown(data) == [("ok", 0, at), ("gap", at, 7), ("garbage", at + 7, 8)]


def test_a_connect_cut_by_a_gap_still_declares_its_version() -> None:
    data = one_way([(0, CONNECT_5[:12]), (len(CONNECT_5), PUBLISH_5)])
    rows = wireyard.read(data).to_pylist()
    assert [row["status"] for row in rows] == ["tail", "gap", "ok"]
    assert (rows[2]["version_in_force"], rows[2]["payload"]) == (5, b"hi")


def test_the_first_byte_not_captured_is_a_gap_too() -> None:
    size = len(packet())
    data = one_way([(30, packet()[30:] + packet())], server=7676)
    assert shown(data, decode_as=["tcp.port==7676,jmq"]) == [
        ("gap", 0, 30),
        ("garbage", 30, size - 30),
        ("ok", size, size),
    ]


def test_conditions_on_the_columns_of_captures() -> None:
    data = one_way([(0, CONNECT + PUBLISH * 3)])
    columns = ["offset", "frame", "src_port", "dst_addr"]
    rows = wireyard.read(data, "mqtt", columns, where=[("frame", "==", 2), ("qos", "==", 0)])
    assert rows.to_pylist()[0] == {
        "offset": len(CONNECT), "frame": 2, "src_port": 40000, "dst_addr": SERVER,
    }  # fmt: skip
    assert rows.num_rows == 3
    assert wireyard.read(data, "mqtt", where=[("src_addr", "==", SERVER)]).num_rows == 0
    with pytest.raises(wireyard.UsageError, match="no column 'frame'"):
        wireyard.read(CONNECT, "mqtt", ["frame"])


def test_the_answering_direction_has_the_version_of_the_asking_one() -> None:
    for connect, answer, version in ((CONNECT, PUBLISH, 4), (CONNECT_5, PUBLISH_5, 5)):
        data = pcap(packets(both_ways(connect, answer)))
        rows = wireyard.read(data, "mqtt").to_pylist()
        assert [row["version_in_force"] for row in rows] == [version, version]
        assert rows[1]["payload"] == b"hi"


def test_a_client_seen_without_its_connect_has_the_version_of_the_answer() -> None:
    data = pcap(packets(both_ways(PUBLISH_5, CONNACK_5)))
    assert wireyard.read(data)["version_in_force"].to_pylist() == [5, 5]


def test_a_port_mapper_names_the_ports_of_services() -> None:
    answer = b"101 imqbroker 301\r\njms tcp NORMAL 40321\r\ncluster tcp CLUSTER 40322\r\n.\r\n"
    middle = packet()[10:] + packet(sequence=9)
    frames = both_ways(b"101\r\n", answer, (50000, 7676)) + both_ways(middle, b"", (50001, 40321))
    data = pcap(packets(frames))
    table = wireyard.read(data)
    assert table["status"].to_pylist() == ["garbage", "ok"]
    assert set(table["format"].to_pylist()) == {"jmq"}


def test_several_formats_have_to_be_named() -> None:
    frames = both_ways(CONNECT, PUBLISH) + both_ways(packet(), b"", (50001, 50002))
    data = pcap(packets(frames))
    with pytest.raises(wireyard.UsageError, match="holds jmq and mqtt; name one of them"):
        wireyard.read(data)
    assert wireyard.read(data, "jmq").num_rows == 1
    assert [one.packet_type for one in wireyard.packets(data, "mqtt")] == [1, 3]


def lone(port: int, data: bytes, server: int = 1999) -> bytes:
    """Return a segment of a connection whose beginning was not captured."""
    return ethernet(ipv4(tcp(port, server, 5000, data)))


def test_a_connect_names_the_format_of_its_endpoint_before_and_after() -> None:
    before, after = lone(40001, PUBLISH), lone(40002, PUBLISH * 2)
    frames = [before, *both_ways(CONNECT, PUBLISH), after]
    rows = wireyard.read(pcap(packets(frames)), columns=["src_port", "status"]).to_pylist()
    assert [row["src_port"] for row in rows] == [40001, 40000, 1999, 40002, 40002]
    assert {row["status"] for row in rows if row["src_port"] in (40000, 1999)} == {"ok"}
    # Not of another endpoint, nor of the client's.
    for other in (lone(40003, PUBLISH, 1998), lone(40003, PUBLISH, 40000)):
        found = open_input(pcap(packets([*frames, other])))
        assert [each.stream.src.port for each in found.unknown] == [40003]


def test_evidence_that_contradicts_itself_shows_nothing() -> None:
    answers = [
        both_ways(b"101\r\n", b"101 imqbroker 301\njms tcp %s 40321\n.\n" % kind, (port, 7676))
        for port, kind in ((50000, b"NORMAL"), (50001, b"CLUSTER"), (50002, b"RMI"))
    ]
    middle = both_ways(packet()[10:] + packet(sequence=9), b"", (50003, 40321))
    for first, second in ((0, 1), (1, 0), (0, 2), (2, 0)):
        found = open_input(pcap(packets([*answers[first], *answers[second], *middle])))
        assert [each.stream.dst.port for each in found.unknown] == [40321]
    found = open_input(pcap(packets([*answers[0], *answers[0], *middle])))
    assert [one.format.name for one in found.streams] == ["jmq"]
    end, other = Endpoint("10.0.0.1", 40321), Endpoint("10.0.0.1", 1883)
    evidence = EndpointEvidence()
    evidence.add_services({end: "gpacket", other: None})
    evidence.add_opened([(end, "mqtt"), (other, "mqtt")])
    assert evidence.formats() == {end: "mqtt", other: "mqtt"}
    evidence.add_opened([(end, "jmq")])
    assert evidence.formats() == {end: "gpacket", other: "mqtt"}


def test_what_a_connection_begins_with_counts_before_what_others_show() -> None:
    frames = [*both_ways(CONNECT, PUBLISH), *both_ways(packet(), b"", (40009, 1999))]
    found = open_input(pcap(packets(frames)))
    assert [one.format.name for one in found.streams] == ["mqtt", "mqtt", "jmq"]


@pytest.mark.parametrize(
    ("frames", "option"),
    [
        (both_ways(b"hello, server", b"hello", (1025, 8884)), "tcp.port==8884,mqtt"),
        # Of the answer alone the lower port is taken for the server's.
        ([ethernet(ipv4(tcp(8884, 50000, 7, b"hello")))], "tcp.port==8884,mqtt"),
        (
            [lone(40000, b"??", 8885), lone(40001, b"??", 8884), lone(40002, b"??", 8884)],
            "tcp.port==8884,mqtt",
        ),
    ],
)
def test_the_port_that_is_suggested_is_the_server_s(frames: list[bytes], option: str) -> None:
    unread = open_input(pcap(packets(frames))).unread
    assert unread is not None
    assert unread.endswith(f"): unknown format; to decode it as MQTT: --decode-as {option}")


def test_datagrams_are_suggested_as_rmp() -> None:
    frames = [ethernet(ipv4(udp(50000, 5405, b"??"), protocol=17))]
    assert open_input(pcap(packets(frames))).unread == (
        "1 stream, 2 bytes (10.0.0.1:50000>10.0.0.2:5405): unknown format;"
        " to decode it as RMP: --decode-as udp.port==5405,rmp"
    )


def test_what_nobody_knows_is_named_with_the_option_that_would_tell() -> None:
    data = pcap(packets(both_ways(b"HELO a.example\r\n", b"250 b.example\r\n")))
    option = r"tcp.port==1999,mqtt"
    with pytest.raises(wireyard.UsageError, match=f"no stream in it begins like .*{option}"):
        wireyard.read(data)
    forced = wireyard.read(data, decode_as=[option])
    assert set(forced["format"].to_pylist()) == {"mqtt"}
    for wrong in ("tcp.port=1999,mqtt", "tcp.port==99999,mqtt", "mqtt"):
        with pytest.raises(wireyard.UsageError, match="is no decode-as such as"):
            wireyard.read(data, decode_as=[wrong])


def test_datagrams_are_packets_of_rmp_where_somebody_says_so() -> None:
    samples = message(1, b"a"), message(MORE | 1, b"b") + message(1, b"c"), message(1, b"d")
    frames = [ethernet(ipv4(udp(5405, 5405, data), protocol=17)) for data in samples]
    data = pcap(packets(frames))
    with pytest.raises(wireyard.UsageError, match="no stream in it begins like"):
        wireyard.read(data)
    for options in ({"format": "rmp"}, {"decode_as": ["udp.port==5405,rmp"]}):
        table = wireyard.read(data, **options)
        assert table["frame"].to_pylist() == [1, 2, 2, 3]
        assert table["message_in_packet"].to_pylist() == [0, 0, 1, 0]


@pytest.mark.parametrize("opened", [bytes, io.BytesIO])
def test_captures_from_memory_and_from_file_objects(opened: Any) -> None:
    assert wireyard.read(opened(one_way([(0, CONNECT)])), "mqtt").num_rows == 1


def test_damage_is_told_and_what_is_before_it_read() -> None:
    with pytest.warns(UserWarning, match="7 bytes are not read"):
        assert wireyard.read(one_way([(0, CONNECT + PUBLISH)]) + bytes(7)).num_rows == 2


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("size", [1, 18_000])
def test_rows_of_small_streams_are_the_same_together_as_alone(size: int, threads: int) -> None:
    import_module(get_format("mqtt").columnar.module)  # else it is not loaded for so few bytes
    frames = []
    for port in range(40_000, 40_100):
        message = publish(5, payload=bytes(size))
        stream = CONNECT_5 + message * 2 + (b"\x31\x01\x00" if port % 7 == 0 else message)
        cut = len(CONNECT_5) + (len(message) + 9 if port % 5 == 0 else 7)
        behind = cut + (3 if port % 5 == 0 else 0)  # bytes between are missing
        frames += [tcp(port, 1883, 999, flags=SYN), tcp(port, 1883, 1000, stream[:cut])]
        frames.append(tcp(port, 1883, 1000 + behind, stream[behind:]))
    found = open_input(pcap(packets(ethernet(ipv4(frame)) for frame in frames)))
    for where in ([], [("length", ">", 5)]):
        plan = make_plan(get_format("mqtt"), where=where, captured=True)
        streams = [(one.opened, plan) for one in found.streams]
        alone = [batch for opened, _ in streams for batch in scan_stream(opened, plan)]
        together = list(scan_streams(streams, threads))
        assert len(streams) == 100 and len(together) < len(alone)
        whole = pa.Table.from_batches(together)
        assert whole.to_pylist() == pa.Table.from_batches(alone).to_pylist()
        assert where or set(whole["status"].to_pylist()) >= {"ok", "malformed", "gap"}
