"""Recorded traffic: every field of every packet as tshark and the clients' own logs have it."""

from __future__ import annotations

import csv
import gzip
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from tests.formats.mqtt.examples import logged
from wireyard.errors import DecodeError
from wireyard.formats import get_format
from wireyard.formats.mqtt.layout import PROPERTIES
from wireyard.formats.mqtt.packet import read_row
from wireyard.formats.rows import rows_to_batch
from wireyard.schema import COMMON
from wireyard.streams.decoder import Decoder

MQTT = get_format("mqtt")
PACKETS = 48_979
Stream = tuple[str, ...]


def tables(shared: Path) -> list[Path]:
    captures = shared / "captures"
    found = [*captures.glob("oracle/*.tsv.gz"), *captures.glob("mosquitto/*.packets.tsv.gz")]
    assert found
    return sorted(found)


def recorded(path: Path) -> Iterator[tuple[Stream, bytes, int, dict[str, str]]]:
    """Yield stream, packet, context and tshark's fields of every packet, in order.

    A stream whose CONNECT is on the other side of the connection takes the version from there.
    """
    csv.field_size_limit(1 << 30)
    contexts: dict[Stream, int] = {}
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE):
            ends = (row["src"], row["sport"]), (row["dst"], row["dport"])
            stream = (row["tcp_stream"], *ends[0], *ends[1])
            other = (row["tcp_stream"], *ends[1], *ends[0])
            data = bytes.fromhex(row["raw_hex"])
            context = contexts.get(stream, contexts.get(other, 0))
            contexts[stream] = MQTT.contexts.next(data, context)
            yield stream, data, context, row


def fields_of(row: dict[str, Any]) -> dict[str, str]:
    """Return a row in the words of the recording."""

    def plain(name: str) -> str:
        value = row.get(name)
        return "" if value is None else str(int(value) if isinstance(value, bool) else value)

    codes = row.get("return_codes")
    filters = row.get("filters")
    return {
        "type": plain("packet_type"),
        "flags": plain("flags"),
        "remaining_length": plain("remaining_length"),
        "rl_nbytes": plain("remaining_length_bytes"),
        "topic": plain("topic"),
        "msgid": plain("packet_id"),
        "payload_hex": (row.get("payload") or b"").hex(),
        "proto_name": plain("protocol_name"),
        "proto_ver": plain("protocol_version"),
        "client_id": plain("client_id"),
        "return_or_reason": ",".join(map(str, codes))
        if codes is not None
        else plain("return_code"),
        "sub_topics": json.dumps([one["filter"] for one in filters]) if filters is not None else "",
    }


def explained(field: str, row: dict[str, Any], ours: str, theirs: str) -> bool:
    """Return why tshark shows something else; where there is no reason, that is a failure.

    It never looks at rules, so it reads on where we say that nobody knows what follows.
    """
    verdict = row["verdict"]
    match field:
        case "topic":
            # What is not text, or has control characters, is escaped in its output.
            escaped = any(not char.isprintable() for char in ours) and "\\" in theirs
            unreadable = ("MQTT-1.5.3-1", "MQTT-1.5.4-1", "truncated")
            return escaped or (verdict in unreadable and not ours)
        case "client_id":
            return verdict in ("MQTT-3.1.2-1", "MQTT-3.1.2-2") and not ours
        case "msgid" | "payload_hex":
            # QoS 3 has no layout; and where the topic or the properties do not end, it shows 0.
            # Without a CONNECT it knows no 5.0, and takes the empty properties for payload.
            if row["version_in_force"] == 5 and theirs == f"00{ours}":
                return True
            unknown = ("MQTT-3.3.1-4", "truncated", "property_length")
            return verdict in unknown and not ours
        case "sub_topics":
            # It leaves empty filters out.
            return ours == '[""]' and theirs == "[]"
    return False


def test_every_field_of_every_packet(shared: Path) -> None:
    packets = 0
    malformed: Counter[str] = Counter()
    for path in tables(shared):
        for _, data, context, wanted in recorded(path):
            packets += 1
            assert MQTT.framing.frame_size(data, 0, len(data), len(data), context, True) == len(
                data
            )
            row, error = read_row(data, context)
            found = fields_of(row)
            if row["packet_type"] == 3:  # tshark has these for every packet type
                found |= {name: str(int(row[name])) for name in ("dup", "qos", "retain")}
            for field, value in found.items():
                theirs = wanted[field]
                if field == "sub_topics" and theirs:
                    theirs = json.dumps(json.loads(theirs))
                assert value == theirs or explained(field, row, value, theirs), (
                    path.name, field, value, theirs, data.hex()[:200],
                )  # fmt: skip
            if error is None:
                assert MQTT.encode(MQTT.decode(data, context)) == data
                assert MQTT.encode(MQTT.packet_of(row, context)) == data
            else:
                malformed[path.name.split(".")[0]] += 1
    assert packets == PACKETS
    # The recordings made to be refused, and what public test suites made to be wrong: QoS 3, a
    # Property Length of 4351, Payload Format Indicator 88 on its way in and out, topic alias 0.
    assert malformed == {
        "refusals-v4": 45,
        "refusals-v5": 54,
        "suricata-verify_mqtt-events-invalid-qos__input": 1,
        "suricata-verify_mqtt5-excessiveproplen__input": 1,
        "suricata-verify_mqtt5-pub-mosquittoprops__input": 2,
        "suricata-verify_mqtt5-sub-mosquittoprops__input": 1,
    }


def test_subscription_options(shared: Path) -> None:
    compared = 0
    for path in tables(shared):
        for _, data, context, wanted in recorded(path):
            if data[0] >> 4 != 8 or not wanted["sub_opts"]:
                continue
            packet_filters = read_row(data, context)[0]["filters"]
            if any(one["filter"] == "" for one in packet_filters):
                continue  # tshark gives no options beside an empty filter
            options = [
                one["qos"]
                | bool(one["no_local"]) << 2
                | bool(one["retain_as_published"]) << 3
                | (one["retain_handling"] or 0) << 4
                for one in packet_filters
            ]
            theirs = [int(value, 16) for value in json.loads(wanted["sub_opts"])]
            if context & 7 != 5:
                theirs = [value & 3 for value in theirs]
            if read_row(data, context)[1] is None:
                assert options == theirs, (path.name, data.hex())
                compared += 1
    assert compared == 120


def tshark_properties(fields: list[list[str]]) -> list[tuple[int, list[str]]]:
    """Return the properties of one packet, the will's among them, as tshark lists them."""
    found: list[tuple[int, list[str]]] = []
    values = (
        *("prop_number", "prop_string", "prop_key", "prop_value"),
        *("property.content_type", "property.topic_alias"),
    )
    for name, value in fields:
        if name == "mqtt.property_id":
            found.append((int(value, 16), []))
        elif name.removeprefix("mqtt.") in values:
            found[-1][1].append(value)
    return found


def test_properties_as_tshark_has_them(shared: Path) -> None:
    compared = 0
    codes = {one.name: code for code, one in PROPERTIES.items()}
    for path in sorted((shared / "captures" / "oracle").glob("*.jsonl.gz")):
        for line in gzip.decompress(path.read_bytes()).decode().splitlines():
            packet = json.loads(line)
            wanted = tshark_properties(packet["fields"])
            if not wanted:
                continue
            row, error = read_row(bytes.fromhex(packet["raw"]), 5)
            if error is not None and error.code == "property_length":
                continue  # tshark reads the rest of the packet as properties
            ours = [*(row.get("properties") or []), *(row.get("will_properties") or [])]
            for one, (code, values) in zip(ours, wanted, strict=True):
                value = one["value"]
                value = value.decode() if isinstance(value, bytes) else value
                logged_values = value if isinstance(value, list) else [str(value)]
                assert (codes[one["name"]], logged_values) == (code, values)
                compared += 1
    assert compared == 62


def test_what_the_client_logged_it_sent(shared: Path) -> None:
    folder = shared / "captures" / "mosquitto"
    log = gzip.decompress((folder / "properties-v5.client.jsonl.gz").read_bytes()).decode()
    wanted: Counter[str] = Counter()
    for event in map(json.loads, log.splitlines()):
        if event["event"] == "sent":
            logged_values = [one for item in event["properties"].items() for one in logged(*item)]
            names = sorted(map(repr, logged_values))
            wanted[repr((event["payload_hex"], event["qos"], event["retain"], names))] += 1
    found: Counter[str] = Counter()
    for stream, data, context, _ in recorded(folder / "properties-v5.packets.tsv.gz"):
        row, _ = read_row(data, context)
        if row["packet_type"] == 3 and stream[-1] == "1883" and not row["dup"]:
            names = sorted(map(repr, row["properties"]))
            found[repr((row["payload"].hex(), row["qos"], row["retain"], names))] += 1
    assert found == wanted
    assert sum(found.values()) == 53


def test_any_chunking_of_recorded_streams(shared: Path) -> None:
    """A stream in pieces of any size gives the packets that tshark and a reassembler found."""
    rng = Random(7)
    folder = shared / "captures" / "mosquitto"
    for name in ("splits-v4", "splits-v5", "wills-v5", "sessions-v4"):
        streams: dict[Stream, list[bytes]] = {}
        for stream, data, _, _ in recorded(folder / f"{name}.packets.tsv.gz"):
            streams.setdefault(stream, []).append(data)
        for packets in streams.values():
            whole = b"".join(packets)
            decoder = Decoder(MQTT)
            lengths, at = [], 0
            while at < len(whole):
                size = rng.choice((1, 2, 3, 5, 40, 5000))
                decoder.receive_data(whole[at : at + size])
                lengths += [event.length for event in decoder.events()]
                at += size
            decoder.receive_end()
            lengths += [event.length for event in decoder.events()]
            assert lengths == [len(data) for data in packets]


def raw_files(shared: Path) -> list[Path]:
    found = sorted((shared / "captures" / "raw-mqtt5").glob("*/*"))
    assert len(found) > 200
    return found


def test_raw_packets_are_decoded_or_reported(shared: Path) -> None:
    """Fuzzers' inputs: a value or an error, the same by both ways, and every byte explained."""
    columns = MQTT.columns
    outcomes: Counter[str] = Counter()
    for path in raw_files(shared):
        data = path.read_bytes()
        for context in (0, 4, 5, 2):
            row, error = read_row(data, context)
            try:
                packet = MQTT.decode(data, context)
            except DecodeError as raised:
                assert error is not None and raised.row() == error.row()
                outcomes["malformed"] += 1
            else:
                assert error is None
                assert MQTT.encode(packet) == data
                assert MQTT.encode(MQTT.packet_of(row, context)) == data
                outcomes["ok"] += 1
            stored = rows_to_batch(columns, [row])
            assert pa.Table.from_batches([stored]).num_columns == len(columns)
            marks = MQTT.annotate(data, context)
            assert [mark.start for mark in marks[1:]] == [mark.stop for mark in marks[:-1]]
            assert not data or (marks[0].start, marks[-1].stop) == (0, len(data))
    assert outcomes["ok"] > 20 and outcomes["malformed"] > 200, outcomes
    assert len(COMMON) == 7


@pytest.mark.parametrize("context", [0, 5])
def test_raw_packets_as_streams(shared: Path, context: int) -> None:
    for path in raw_files(shared):
        data = path.read_bytes()
        decoder = Decoder(get_format("mqtt/5.0") if context else MQTT)
        decoder.receive_data(data)
        decoder.receive_end()
        assert sum(event.length for event in decoder.events()) == len(data)
