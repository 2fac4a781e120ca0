"""Captures as tables: each packet with its fields, frame and time, and no port given by hand."""

from __future__ import annotations

import csv
import gzip
import hashlib
import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import wireyard
from tests.formats.jmq.test_real_streams import assert_row
from tests.formats.mqtt.test_recorded import explained, fields_of
from wireyard.captures.connections import times
from wireyard.formats import get_format

Row = dict[str, Any]
MQTT = get_format("mqtt")


@pytest.fixture(scope="module")
def recorded(shared: Path) -> Path:
    folder = shared / "captures"
    if not folder.is_dir():
        pytest.skip("no captures in the shared folder")
    return folder


def by_stream(table: Any) -> dict[str, list[Row]]:
    """Return the rows of a table by stream, having checked that each stream is whole."""
    streams: defaultdict[str, list[Row]] = defaultdict(list)
    for row in table.to_pylist():
        before = streams[row["stream"]]
        assert row["offset"] == (before[-1]["offset"] + before[-1]["length"] if before else 0)
        before.append(row)
    return streams


def assert_place(row: Row, expected: Row) -> None:
    src, _, dst = expected["stream"].partition(">")
    assert f"{row['src_addr']}:{row['src_port']}" == src
    assert f"{row['dst_addr']}:{row['dst_port']}" == dst
    for name in ("offset", "length", "frame", "captured_ns"):
        assert row[name] == expected[name], name


def test_packets_of_open_mq(recorded: Path) -> None:
    compared = {"jmq": 0, "gpacket": 0, "gpacket_link": 0}
    for path in sorted((recorded / "openmq").glob("*.packets.jsonl.gz")):
        pcap = path.parent / path.name.replace("packets.jsonl.gz", "pcap")
        wanted: defaultdict[str, list[Row]] = defaultdict(list)
        for line in gzip.decompress(path.read_bytes()).decode().splitlines():
            row = json.loads(line)
            if row["format"] != "text":
                wanted[row["stream"]].append(row)
        formats = ("jmq", "gpacket") if path.name.startswith("cluster") else ("jmq",)
        found: dict[str, list[Row]] = {}
        for format in formats:
            found |= by_stream(wireyard.read(pcap, format))
        assert found.keys() == wanted.keys()
        for stream, rows in found.items():
            for row, expected in zip(rows, wanted[stream], strict=True):
                assert row["status"] == "ok"
                assert_place(row, expected)
                compared[row["format"]] += 1
                if row["format"] == "jmq":
                    row["properties"] = row["properties"] and {
                        name: (value["type"], value["value"]) for name, value in row["properties"]
                    }
                    assert_row(row, expected, as_text=True)
                elif row["format"] == "gpacket":
                    assert row["packet_type"] == expected["type"]
                    assert row["sequence"] == int(expected["sequence"])
                    for name in ("version", "timestamp", "bit_flags", "payload_size"):
                        assert row[name] == expected[name], name
                    payload = hashlib.sha256(row["payload"] or b"").hexdigest()
                    assert payload == expected["payload_sha256"]
                    assert dict(row["properties"] or ()) == expected["properties"]
    assert compared["jmq"] == 8105
    assert compared["gpacket"] > 100 and compared["gpacket_link"] > 4


def tshark_rows(path: Path) -> Iterator[tuple[str, Row]]:
    csv.field_size_limit(1 << 30)
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE):
            ends = [
                f"[{row[end]}]:{row[port]}" if ":" in row[end] else f"{row[end]}:{row[port]}"
                for end, port in (("src", "sport"), ("dst", "dport"))
            ]
            yield ">".join(ends), row


@pytest.mark.parametrize(
    ("tables", "captures", "packets"),
    [
        ("mosquitto/*.packets.tsv.gz", "mosquitto", 48_826),
        ("oracle/suricata-verify_*.tsv.gz", "mqtt/suricata-verify", 144),
        ("oracle/verimqtt_*.tsv.gz", "mqtt/verimqtt", 9),
    ],
)
def test_packets_of_mqtt(
    recorded: Path, tables: str, captures: str, packets: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(times, "JITTER_NS", -1)  # some are out of order, by up to 24 us
    compared = 0
    for path in sorted(recorded.glob(tables)):
        name = path.name.removesuffix(".tsv.gz").removesuffix(".packets")
        name = name.removeprefix(f"{Path(captures).name}_").removesuffix(".pcapng")
        [pcap] = (recorded / captures).glob(f"{name.removesuffix('.pcap')}.pcap*")
        wanted: defaultdict[str, list[Row]] = defaultdict(list)
        for stream, row in tshark_rows(path):
            wanted[stream].append(row)
        found = by_stream(wireyard.read(pcap, "mqtt"))
        assert wanted.keys() <= found.keys(), pcap.name
        for stream, expected in wanted.items():
            rows = [row for row in found[stream] if row["status"] in ("ok", "malformed")]
            assert len(rows) == len(expected), (pcap.name, stream)
            for row, theirs in zip(rows, expected, strict=True):
                assert_packet(row, theirs, f"{pcap.name} {stream}")
            compared += len(rows)
    assert compared == packets


def assert_packet(row: Row, theirs: Row, where: str) -> None:
    seconds, _, rest = theirs["time_epoch"].partition(".")
    time_ns = int(theirs.get("captured_ns") or f"{seconds}{rest:0<9}")
    assert (row["captured_ns"], row["frame"]) == (time_ns, int(theirs["frame"])), where
    assert row["length"] == int(theirs["raw_len"]), where
    for field, value in fields_of(row).items():
        wanted = theirs[field]
        if field == "sub_topics" and wanted:
            wanted = json.dumps(json.loads(wanted))
        assert value == wanted or explained(field, row, value, wanted), (where, field)
    if row["status"] == "ok":
        data = bytes.fromhex(theirs["raw_hex"])
        row["context"] = row["version_in_force"]
        assert MQTT.encode(MQTT.packet_of(row, 0)) == data, where
