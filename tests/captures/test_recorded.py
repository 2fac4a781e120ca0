"""Real captures: against tshark, the broker's own classes, and the clients that sent packets."""

from __future__ import annotations

import csv
import gzip
import hashlib
import json
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

import wireyard
from wireyard.captures.connections import times
from wireyard.captures.connections.stream import Stream
from wireyard.captures.read import Capture, read_capture

Rows = list[dict[str, Any]]
Places = list[tuple[int, int, int]]
"""Size, frame and time of packets."""

SURICATA = "tcp-misc/suricata-verify/"
RULINGS: Final = {
    # tshark follows the text of a reset as if it were data (RFC 9293, 3.5.3: it is not), and leaves
    # out what it could not put in order before the reset: bytes 11 to 17, behind a gap of four.
    (f"{SURICATA}tcp-rst-unacked-stream-03-gap__input.pcap", "1.1.1.1:12345"): 0,
    (f"{SURICATA}tcp-rst-unacked-stream-03-gap__input.pcap", "2.2.2.2:8080"): 7 + 6,
    # Again what is behind the last acknowledged gap; all before it is the same.
    (
        f"{SURICATA}tcp-rst-unacked-stream-09__TLPW1-tcp-110.37.219.134-10.12.14.101-tcp-990-"
        "49230.pcap",
        "110.37.219.134:990",
    ): 28800,
    # Overlapping segments with different bytes: 52 of them tshark takes from the segment that
    # filled the hole before, we from the one that was captured first.
    ("tcp-misc/zeek/tcp__reassembly.pcap", "63.193.213.194:2564"): 28832,
}
"""Bytes of the streams in which tshark is wrong, or decides differently; by capture and source."""
TSHARK_GAPS: Final = {
    # The server answers with two different numbers; the stream begins at the second.
    (f"{SURICATA}tcp-fastopen-10-syn-data-ignore__input.pcap", "17.253.144.10:443"): [],
    # It says nothing of a gap before a FIN, nor of what a snapshot cut off.
    ("mqtt/suricata-verify/mqtt-events-invalid-qos__input.pcap", "[::1]:1883"): [4],
    ("tcp-misc/zeek/tcp__retransmit-fast009.pcap", "10.0.88.85:50368"): [474],
    ("tcp-misc/zeek/tcp__retransmit-fast009.pcap", "192.168.0.27:80"): [23783],
    ("tcp-misc/zeek/tcp__timestamp.pcap", "192.168.2.20:12345"): [1418] * 690 + [850],
}


@pytest.fixture(scope="module")
def recorded(shared: Path) -> Path:
    folder = shared / "captures"
    if not folder.is_dir():
        pytest.skip("no captures in the shared folder")
    return folder


@cache
def capture_of(path: Path) -> Capture:
    return read_capture(path)


def captured(stream: Stream) -> bytes:
    return b"".join(stream.read(start, stop).tobytes() for start, stop in stream.pieces.tolist())


def tcp_of(capture: Capture) -> dict[str, Stream]:
    return {stream.name: stream for stream in capture.streams if stream.protocol == "tcp"}


def lines(path: Path) -> Rows:
    rows = gzip.decompress(path.read_bytes()).decode().removesuffix("\n").split("\n")
    if ".jsonl" in path.name:
        return [json.loads(row) for row in rows]
    names, *cells = (row.split("\t") for row in rows)  # fields that csv finds too large
    return [dict(zip(names, row, strict=True)) for row in cells]


def follow(recorded: Path) -> list[dict[str, str]]:
    with (recorded / "oracle" / "tcp_follow.tsv").open(newline="") as file:
        return list(csv.DictReader(file, delimiter="\t"))


def test_streams_are_those_that_tshark_follows(recorded: Path) -> None:
    followed = follow(recorded)
    compared = 0
    for row in followed:
        streams = tcp_of(capture_of(recorded / row["capture"]))
        for way in ("0to1", "1to0"):
            src, dst = row[f"node{way[0]}"], row[f"node{way[-1]}"]
            found = [one for name, one in streams.items() if name.split("#")[0] == f"{src}>{dst}"]
            content = b"".join(map(captured, found))
            where = row["capture"], src
            if where in RULINGS:
                assert len(content) == RULINGS[where], where
                continue
            assert len(content) == int(row[f"bytes_{way}"]), where
            if content:
                assert hashlib.sha256(content).hexdigest() == row[f"sha256_{way}"], where
            gaps = [stop - start for one in found for start, stop in one.gaps.tolist()]
            assert gaps == TSHARK_GAPS.get(where, gaps_said(row, way)), where
            compared += 1
    assert compared == 2 * len(followed) - len(RULINGS) == 230


def gaps_said(row: dict[str, str], way: str) -> list[int]:
    said = [note.strip() for note in row["missing_notes"].split(";")]
    ours = [note for note in said if note.startswith(way.replace("to", ">"))]
    return [int(note.split("[")[1].split()[0]) for note in ours]


def test_where_tshark_stops_the_beginning_is_the_same(recorded: Path) -> None:
    (path,) = (recorded / SURICATA).glob("tcp-rst-unacked-stream-09__*")
    content = captured(next(one for one in capture_of(path).streams if one.src.port == 990))
    row = next(row for row in follow(recorded) if row["capture"].endswith(path.name))
    head = content[: int(row["bytes_1to0"])]
    assert hashlib.sha256(head).hexdigest() == row["sha256_1to0"]


def test_every_frame_has_one_fate(recorded: Path) -> None:
    features = json.loads((recorded / "features.json").read_text())
    for feature in features:
        capture = capture_of(recorded / feature["file"])
        frames = feature["counts"].get("frames", 0)
        assert sum(capture.frames.values()) == frames, feature["file"]
        assert capture.damage is None and capture.unread_bytes == 0
    assert len(features) > 130


@pytest.mark.parametrize("folder", ["openmq", "mosquitto"])
def test_recorded_streams_are_whole(recorded: Path, folder: str) -> None:
    compared = 0
    for said in sorted((recorded / folder).glob("*.streams.json")):
        capture = capture_of(next(said.parent.glob(said.name.replace("streams.json", "pcap*"))))
        ours = sorted(
            (one.name.split("#")[0], one.size, hashlib.sha256(captured(one)).hexdigest())
            for one in capture.streams
        )
        rows = [row for row in json.loads(said.read_text()) if row["bytes"]]
        assert ours == sorted(
            (f"{row['src']}>{row['dst']}", row["bytes"], row["sha256"]) for row in rows
        ), said.name
        assert all(one.begun and not len(one.gaps) for one in capture.streams)
        assert capture.frames.keys() <= {"tcp", "other_network"}
        compared += len(ours)
    assert compared > 100


def assert_places(stream: Stream, format: str, said: Places, name: str) -> None:
    """Compare where the packets of a stream are, and when they came."""
    offsets, sizes = [], []
    for start, stop in stream.pieces.tolist():
        table = wireyard.read(
            stream.read(start, stop).tobytes(), format, ["offset", "length", "status"]
        )
        for row in table.to_pylist():
            if row["status"] in ("ok", "malformed"):
                offsets.append(start + row["offset"])
                sizes.append(row["length"])
    starts = np.array(offsets, np.int64)
    frames, times_ns = stream.completed(starts, starts + np.array(sizes, np.int64))
    ours = list(zip(sizes, frames.tolist(), times_ns.tolist(), strict=True))
    assert ours == said, name


def test_packets_of_open_mq_have_their_frames_and_times(recorded: Path) -> None:
    compared = 0
    for path in sorted((recorded / "openmq").glob("*.packets.jsonl.gz")):
        said: defaultdict[str, Rows] = defaultdict(list)
        for row in lines(path):
            said[row["stream"]].append(row)
        streams = tcp_of(capture_of(path.parent / path.name.replace("packets.jsonl.gz", "pcap")))
        assert said.keys() == streams.keys()
        for name, rows in said.items():
            facts = [(row["length"], row["frame"], row["captured_ns"]) for row in rows]
            formats = {row["format"] for row in rows}
            compared += len(rows)
            if formats == {"text"}:
                starts = np.array([row["offset"] for row in rows], np.int64)
                lengths = np.array([row["length"] for row in rows], np.int64)
                frames, times_ns = streams[name].completed(starts, starts + lengths)
                places = zip(lengths.tolist(), frames.tolist(), times_ns.tolist(), strict=True)
                assert list(places) == facts
                continue
            format = "jmq" if formats == {"jmq"} else "gpacket"
            assert_places(streams[name], format, facts, f"{path.name} {name}")
    assert compared > 5000


def test_packets_of_mosquitto_have_their_frames_and_times(
    recorded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(times, "JITTER_NS", -1)  # some are out of order, by up to 24 us
    compared = 0
    for path in sorted((recorded / "mosquitto").glob("*.packets.tsv.gz")):
        # Those that `capture_of` keeps may have been read with times that were moved.
        capture = read_capture(next(path.parent.glob(path.name.replace("packets.tsv.gz", "pcap*"))))
        compared += assert_tshark_packets(capture, lines(path), path.name)
    assert compared > 40_000


def test_packets_of_others_have_their_frames_and_times(recorded: Path) -> None:
    compared = 0
    for path in sorted((recorded / "mqtt").rglob("*.pcap*")):
        oracle = recorded / "oracle" / f"{path.parent.name}_{path.name}.tsv.gz"
        compared += assert_tshark_packets(capture_of(path), lines(oracle), path.name)
    assert compared > 150


def assert_tshark_packets(capture: Capture, rows: Rows, name: str) -> int:
    said: defaultdict[str, Places] = defaultdict(list)
    for row in rows:
        ends = [
            f"[{row[end]}]:{row[port]}" if ":" in row[end] else f"{row[end]}:{row[port]}"
            for end, port in (("src", "sport"), ("dst", "dport"))
        ]
        seconds, _, rest = row["time_epoch"].partition(".")
        time_ns = int(row.get("captured_ns") or f"{seconds}{rest:0<9}")
        said[">".join(ends)].append((int(row["raw_len"]), int(row["frame"]), time_ns))
    streams = tcp_of(capture)
    for stream, facts in said.items():
        assert_places(streams[stream], "mqtt", facts, f"{name} {stream}")
    return len(rows)
