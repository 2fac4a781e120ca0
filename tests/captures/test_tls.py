"""TLS in captures: the vectors of RFC 8448, recordings of real peers against tshark, damage."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

import wireyard
from tests.captures import rfc8448
from tests.captures.assigned import assign_formats
from tests.captures.make import (
    ACK,
    CLIENT,
    SERVER,
    block,
    both_ways,
    enhanced,
    ethernet,
    interface,
    ipv4,
    packets,
    pcap,
    section,
    tcp,
)
from tests.captures.test_fuzz import damage
from tests.fuzz import time_bound
from wireyard.captures.carriers import opening, tls_ciphers
from wireyard.captures.carriers.tls_keys import KeyLog, embedded_secrets, read_key_logs
from wireyard.captures.detection.assignment import Assigned, parse_decode_as
from wireyard.captures.directed import CapturedStream
from wireyard.captures.files.slicing import slice_captures
from wireyard.captures.inputs import open_captures
from wireyard.captures.read import read_capture
from wireyard.errors import SourceError, UsageError
from wireyard.formats import get_format
from wireyard.streams.plan import make_plan
from wireyard.streams.scan import scan_stream

EXAMPLES: Final = Path(__file__).parents[2] / "examples" / "encrypted"
MQTT, MQTT_KEYS = EXAMPLES / "mqtt.pcap", EXAMPLES / "mqtt.keys"
JMS: Final = EXAMPLES / "jms.pcapng"
OF_CAPTURE: Final = ("stream", "src_port", "dst_port", "frame", "captured_ns")
"""What a row has of its packets, where connections with the same bytes differ."""
PLAIN_PORTS: Final = {1883, 8886, 9001}
"""Where the brokers spoke without TLS."""
CASES: Final = int(os.environ.get("WIREYARD_DAMAGED", "150"))
"""Damaged connections that one run of the tests reads."""

ALL_SECRETS: Final = rfc8448.KEY_LOG.encode()


def keys_of(*texts: bytes) -> KeyLog:
    keys = KeyLog()
    for text in texts:
        keys.add(text)
    return keys


def opened(client: bytes, server: bytes, keys: KeyLog | None = None) -> list[Assigned]:
    """Return the directions of a connection on a port that nobody knows."""
    frames = both_ways(client, server)
    return assign_formats(read_capture(pcap(packets(frames))).streams, keys=keys)


def content(one: Assigned) -> bytes:
    """Return the bytes inside a stream, without the gaps."""
    return b"".join(one.stream.read(*piece).tobytes() for piece in one.stream.pieces.tolist())


def problem(found: Sequence[Assigned]) -> str:
    text = found[0].carriers[0].problem
    assert text is not None
    return text


# --- RFC 8448 -------------------------------------------------------------------------------


def test_the_handshake_of_rfc_8448_gives_the_data_of_both_sides() -> None:
    found = opened(rfc8448.CLIENT_STREAM, rfc8448.SERVER_STREAM, keys_of(ALL_SECRETS))
    assert [content(one) for one in found] == [rfc8448.DATA] * 2
    carrier = found[0].carriers[0]
    assert (carrier.name, carrier.version, carrier.server_name) == ("tls", "1.3", "server")
    assert carrier.problem is None


def test_traffic_keys_are_those_of_rfc_8448() -> None:
    secret = bytes.fromhex(rfc8448.SECRETS["SERVER_HANDSHAKE_TRAFFIC_SECRET"])
    key = tls_ciphers.expand_label("sha256", secret, "key", 16)
    nonce = tls_ciphers.expand_label("sha256", secret, "iv", 12)
    assert key.hex() == "3fce516009c21727d0f2e4e86ee403bc"
    assert nonce.hex() == "5d313eb2671276ee13000b30"


def with_early_data(*records: bytes) -> bytes:
    """Return the client's stream with the extension early_data, and these records as such data."""
    stream = rfc8448.CLIENT_STREAM
    stop = 5 + int.from_bytes(stream[3:5], "big")
    hello = bytearray(stream[:stop]) + bytes.fromhex("002a0000")
    at = 5 + 4 + 2 + 32
    for size in (1, 2, 1):  # of the session id, the cipher suites and the compressions
        at += size + int.from_bytes(hello[at : at + size], "big")
    for start, size in ((3, 2), (6, 3), (at, 2)):
        length = int.from_bytes(hello[start : start + size], "big") + 4
        hello[start : start + size] = length.to_bytes(size, "big")
    early = [b"\x17\x03\x03" + len(one).to_bytes(2, "big") + one for one in records]
    return bytes(hello) + b"".join(early) + stream[stop:]


def test_early_data_that_the_server_rejected_is_counted() -> None:
    keys = keys_of(ALL_SECRETS)
    found = opened(with_early_data(bytes(40), bytes(30)), rfc8448.SERVER_STREAM, keys)
    assert [content(one) for one in found] == [rfc8448.DATA] * 2
    carrier = found[0].carriers[0]
    assert carrier.problem is None
    assert str(carrier) == "TLS 1.3 to server, without 80 bytes of early data that it rejected"
    (*_, carrier) = opened(with_early_data(), rfc8448.SERVER_STREAM, keys)[0].carriers
    assert "early data" not in str(carrier)


def test_a_direction_of_which_no_record_is_decrypted_has_a_problem() -> None:
    label = "CLIENT_HANDSHAKE_TRAFFIC_SECRET"
    secrets = ALL_SECRETS.replace(rfc8448.SECRETS[label].encode(), bytes(64).replace(b"\0", b"0"))
    found = opened(with_early_data(bytes(40)), rfc8448.SERVER_STREAM, keys_of(secrets))
    assert "no record of it is decrypted by CLIENT_HANDSHAKE_TRAFFIC_SECRET" in problem(found)


@pytest.mark.parametrize("label", rfc8448.SECRETS)
def test_a_secret_that_is_missing_is_named(label: str) -> None:
    lines = [line for line in ALL_SECRETS.splitlines() if label.encode() not in line]
    found = opened(rfc8448.CLIENT_STREAM, rfc8448.SERVER_STREAM, keys_of(b"\n".join(lines)))
    assert f"needs {label}, which is in no key log" in problem(found)
    other = 1 if label.startswith("CLIENT") else 0
    assert content(found[other]) == rfc8448.DATA
    stream = found[1 - other].stream
    assert stream.gaps.tolist() == [[0, stream.size]]


def test_every_prefix_gives_a_prefix_of_the_data_and_a_reason() -> None:
    keys = keys_of(ALL_SECRETS)
    for size in range(3, len(rfc8448.CLIENT_STREAM)):
        found = opened(rfc8448.CLIENT_STREAM[:size], rfc8448.SERVER_STREAM, keys)
        assert found[0].carriers[0].name == "tls"
        assert all(one.format is None for one in found)
        if found[0].closed:
            assert "captured" in problem(found) or "complete" in problem(found)
        else:
            assert rfc8448.DATA.startswith(content(found[0]))
            whole = len(rfc8448.CLIENT_STREAM) - len(rfc8448.CLIENT_ALERT)
            assert (content(found[0]) == rfc8448.DATA) == (size >= whole)
    for size in range(0, len(rfc8448.SERVER_STREAM), 7):
        found = opened(rfc8448.CLIENT_STREAM, rfc8448.SERVER_STREAM[:size], keys)
        assert all(one.closed or rfc8448.DATA.startswith(content(one)) for one in found)


def test_one_direction_alone_is_named_and_stays_closed() -> None:
    found = opened(rfc8448.CLIENT_STREAM, b"", keys_of(ALL_SECRETS))
    assert [one.closed for one in found] == [True]
    assert "its ServerHello was not captured whole" in problem(found)


def test_the_server_is_known_by_its_hello_where_the_other_is_missing() -> None:
    for client in (b"", rfc8448.CLIENT_DATA * 3):
        found = opened(client, rfc8448.SERVER_STREAM, keys_of(ALL_SECRETS))
        assert [one.carriers[0].version for one in found] == ["1.3"] * len(found)
        assert problem(found).count("its ClientHello was not captured whole") == len(found)
        assert all(one.closed for one in found)


@pytest.mark.parametrize(
    ("at", "value", "reason"),
    [
        (44, "1304", "has the cipher suite 0x1304, which is not supported"),
        (44, "c02f", "has the cipher suite 0xc02f, which is not supported"),
        (46, "01", "has compressed records"),
        (93, "0303", "has the cipher suite 0x1301"),
        (93, "0302", "is of TLS 1.1, which is not supported"),
        (93, "7f1c", "is of TLS 0x7f1c, which is not supported"),
    ],
)
def test_what_is_not_supported_is_named(at: int, value: str, reason: str) -> None:
    changed = bytearray(rfc8448.SERVER_STREAM)
    changed[at : at + len(value) // 2] = bytes.fromhex(value)
    # A connection that is no TLS 1.3 changes its keys by a message.
    change = bytes.fromhex("140303000101")
    head = len(rfc8448.SERVER_HELLO)
    found = opened(
        rfc8448.CLIENT_HELLO + change + rfc8448.CLIENT_STREAM[len(rfc8448.CLIENT_HELLO) :],
        bytes(changed[:head]) + change + bytes(changed[head:]),
        keys_of(ALL_SECRETS, f"CLIENT_RANDOM {rfc8448.RANDOM} {'00' * 48}".encode()),
    )
    assert all(one.closed for one in found)
    assert reason in problem(found)


def test_other_secrets_open_nothing() -> None:
    other = ALL_SECRETS.replace(b"b3eddb12", b"b3eddb13").replace(b"b67b7d69", b"b67b7d68")
    found = opened(rfc8448.CLIENT_STREAM, rfc8448.SERVER_STREAM, keys_of(other))
    assert all(one.closed for one in found)
    assert "is not authentic" in problem(found)


def sealed(secret: str, number: int, text: bytes) -> bytes:
    """Return a record of RFC 8448's connection with some data."""
    suite, traffic = tls_ciphers.SUITES[0x1301], bytes.fromhex(rfc8448.SECRETS[secret])
    key, nonce = (
        tls_ciphers.expand_label("sha256", traffic, label, size)
        for label, size in (("key", suite.key_bytes), ("iv", 12))
    )
    header = b"\x17\x03\x03" + (len(text) + 17).to_bytes(2, "big")
    numbered = (int.from_bytes(nonce, "big") ^ number).to_bytes(12, "big")
    return header + AESGCM(key).encrypt(numbered, text + b"\x17", header)


@pytest.mark.parametrize("lost", [{1}, {2}, {1, 2}, {2, 3, 4}, {3, 5}, {0}, {0, 1}, {0, 2, 4}])
@pytest.mark.parametrize("cut", [0, 1, 7, -3])
def test_a_gap_of_tls_is_a_gap_of_the_stream_inside(lost: set[int], cut: int) -> None:
    """Whole records are lost, or the ends of records, or all but their first or last bytes."""
    texts = [b"data %d" % number * (1 + number) for number in range(7)]
    records = [sealed("CLIENT_TRAFFIC_SECRET_0", at, text) for at, text in enumerate(texts)]
    # Finished is part of the first: if it is lost, the keys change where nobody sees it.
    records[0] = rfc8448.CLIENT_FINISHED + records[0]
    frames = both_ways(rfc8448.CLIENT_HELLO, rfc8448.SERVER_STREAM)
    at = 1000 + len(rfc8448.CLIENT_HELLO)
    for number, record in enumerate(records):
        begin, stop = (cut, len(record)) if cut < 0 or number not in lost else (0, cut)
        if number not in lost:
            begin, stop = 0, len(record)
        elif cut < 0:
            begin = len(record) + cut
        frames.append(ethernet(ipv4(tcp(40000, 1999, at + begin, record[begin:stop], ACK, 500))))
        at += len(record)
    found = assign_formats(read_capture(pcap(packets(frames))).streams, keys=keys_of(ALL_SECRETS))
    stream = found[0].stream
    assert content(found[0]) == b"".join(text for at, text in enumerate(texts) if at not in lost)
    begins = [number for number in lost if number - 1 not in lost]
    assert len(stream.gaps) == len(begins)
    assert content(found[1]) == rfc8448.DATA
    assert found[0].carriers[0].problem is None


def test_bytes_that_look_like_records_are_tried_a_limited_number_of_times(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(opening, "_MOST_TRIES", 50)
    false = b"\x17\x03\x03\0\x20" * 200
    client = rfc8448.CLIENT_STREAM
    frames = both_ways(client, rfc8448.SERVER_STREAM)
    at = 1000 + len(client) + 27
    frames.append(ethernet(ipv4(tcp(40000, 1999, at, false, ACK, 500))))
    found = assign_formats(read_capture(pcap(packets(frames))).streams, keys=keys_of(ALL_SECRETS))
    assert content(found[0]) == rfc8448.DATA
    assert "is not authentic" in problem(found)


def test_what_is_behind_a_key_update_in_a_gap_is_read() -> None:
    update = tls_ciphers.next_secret(
        tls_ciphers.SUITES[0x1301], bytes.fromhex(rfc8448.SECRETS["CLIENT_TRAFFIC_SECRET_0"])
    )
    rfc8448.SECRETS["updated"] = update.hex()
    try:
        behind = sealed("updated", 0, b"behind") + sealed("updated", 1, b"more")
    finally:
        del rfc8448.SECRETS["updated"]
    client = rfc8448.CLIENT_STREAM
    frames = both_ways(client, rfc8448.SERVER_STREAM)
    at = 1000 + len(client) + 27
    frames.append(ethernet(ipv4(tcp(40000, 1999, at, behind, ACK, 500))))
    found = assign_formats(read_capture(pcap(packets(frames))).streams, keys=keys_of(ALL_SECRETS))
    assert content(found[0]) == rfc8448.DATA + b"behindmore"


def test_a_direction_whose_rest_was_not_captured_ends_in_a_gap_with_a_reason() -> None:
    client, at = rfc8448.CLIENT_STREAM, len(rfc8448.CLIENT_STREAM) - 60
    frames = both_ways(client[:at], rfc8448.SERVER_STREAM)
    frames.append(ethernet(ipv4(tcp(40000, 1999, 1000 + len(client), b"", ACK, 500))))
    frames.append(
        ethernet(ipv4(tcp(1999, 40000, 500, b"", ACK, 1000 + len(client)), src=SERVER, dst=CLIENT))
    )
    found = assign_formats(read_capture(pcap(packets(frames))).streams, keys=keys_of(ALL_SECRETS))
    assert [content(one) for one in found] == [b"", rfc8448.DATA]
    assert found[0].stream.gaps.tolist() == [[0, 96]]
    assert "record at byte 259 was not captured whole" in problem(found)


def test_a_record_is_complete_with_the_last_frame_that_brought_some_of_it() -> None:
    client = rfc8448.CLIENT_STREAM
    start = len(client) - len(rfc8448.CLIENT_ALERT) - len(rfc8448.CLIENT_DATA)
    cuts = [0, start, start + 5, start + 30, len(client)]
    pieces = [(cuts[at], client[cuts[at] : cuts[at + 1]]) for at in (0, 3, 1, 2)]
    frames = both_ways(b"", rfc8448.SERVER_STREAM)
    frames += [ethernet(ipv4(tcp(40000, 1999, 1000 + at, data, ACK, 500))) for at, data in pieces]
    capture = read_capture(pcap(packets(frames)))
    stream = assign_formats(capture.streams, keys=keys_of(ALL_SECRETS))[0].stream
    assert stream.runs.records.tolist() == [len(frames) - 1]
    assert stream.times_ns.tolist() == [capture.streams[0].times_ns.max()]
    begin = len(frames) - 3
    assert sorted(stream.packets_of(np.array([0]), np.array([1]))) == [begin, begin + 1, begin + 2]


def test_a_connection_that_is_long_is_read_to_its_end() -> None:
    """Where a direction is over what is read at first, and where it is not opened at all."""
    texts = [bytes([number]) * (1 << 14) for number in range(40)]
    records = [sealed("CLIENT_TRAFFIC_SECRET_0", at, text) for at, text in enumerate(texts)]
    client = rfc8448.CLIENT_HELLO + rfc8448.CLIENT_FINISHED + b"".join(records)
    frames = both_ways(rfc8448.CLIENT_HELLO, rfc8448.SERVER_STREAM)
    for at in range(len(rfc8448.CLIENT_HELLO), len(client), 50_000):
        frames.append(ethernet(ipv4(tcp(40000, 1999, 1000 + at, client[at:][:50_000], ACK, 500))))
    streams = read_capture(pcap(packets(frames))).streams
    found = assign_formats(streams, keys=keys_of(ALL_SECRETS))
    assert content(found[0]) == b"".join(texts)
    assert found[0].carriers[0].problem is None
    assert "needs CLIENT_HANDSHAKE" in problem(assign_formats(streams, keys=KeyLog()))


def test_a_reader_is_warned_of_what_was_not_opened(tmp_path: Path) -> None:
    path, keys = tmp_path / "cut.pcap", tmp_path / "keys"
    frames = both_ways(rfc8448.CLIENT_STREAM[:-30], rfc8448.SERVER_STREAM, (40000, 1883))
    path.write_bytes(pcap(packets(frames)))
    keys.write_bytes(ALL_SECRETS)
    with pytest.warns(UserWarning, match="record at byte 259 is not complete"):
        rows = wireyard.read(path, "mqtt", keylog=[keys])
    assert pc.sum(rows["length"]).as_py() == len(rfc8448.DATA) + 66
    assert rows["status"].to_pylist().count("gap") == 1


# --- naming ---------------------------------------------------------------------------------


@pytest.mark.parametrize("port", [1883, 7676, 8883, 40001])
def test_tls_is_of_no_format_on_any_port(port: int) -> None:
    frames = both_ways(rfc8448.CLIENT_STREAM, rfc8448.SERVER_STREAM, (40000, port))
    streams = read_capture(pcap(packets(frames))).streams
    for named in (None, get_format("mqtt")):
        rules = [parse_decode_as(f"tcp.port=={port},{name}") for name in ("mqtt", "jmq")]
        for found in (assign_formats(streams, [], named), assign_formats(streams, rules, named)):
            assert [one.format for one in found] == [None, None]
            assert [str(one.carriers[0]) for one in found] == ["TLS 1.3 to server"] * 2


def test_the_rest_of_a_connection_of_tls_is_told_by_its_records() -> None:
    records = rfc8448.CLIENT_DATA * 4
    for data in (records, records[20:]):
        found = opened(data, b"", keys_of(ALL_SECRETS))
        assert [one.carriers[0].name for one in found] == ["tls"]
        assert "handshake was not captured" in problem(found) or "record at" in problem(found)
    assert opened(rfc8448.CLIENT_DATA[20:] + bytes(80), b"")[0].carriers == ()


def test_what_is_inside_tls_may_be_of_a_format_that_is_named(tmp_path: Path) -> None:
    path, log = tmp_path / "one.pcap", tmp_path / "keys"
    path.write_bytes(
        pcap(packets(both_ways(rfc8448.CLIENT_STREAM, rfc8448.SERVER_STREAM, (40000, 8883))))
    )
    log.write_bytes(ALL_SECRETS)
    rows = wireyard.read(path, "mqtt", decode_as=["tcp.port==8883,mqtt"], keylog=log)
    assert pc.sum(rows["length"]).as_py() == 2 * len(rfc8448.DATA)


# --- key logs -------------------------------------------------------------------------------


def test_a_key_log_shows_none_of_its_secrets() -> None:
    assert repr(keys_of(ALL_SECRETS)) == "<KeyLog of 4 secrets>"


def test_lines_that_are_no_secrets_are_passed_over() -> None:
    keys = KeyLog()
    assert keys.add(b"# made by hand\r\n\r\nCLIENT_RANDOM 00 11\n" + ALL_SECRETS) == 4
    assert keys.add(ALL_SECRETS.replace(b"\n", b"\r\n").upper()) == 4


def test_a_file_without_a_secret_is_no_key_log(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_bytes(b"\x00 no secrets here\n")
    with pytest.raises(UsageError, match="is no key log"):
        read_key_logs([path])
    with pytest.raises(SourceError, match="there is no such file"):
        read_key_logs([tmp_path / "absent"])


@pytest.mark.parametrize("order", ["<", ">"])
def test_secrets_in_a_capture_are_found(order: str) -> None:
    frames = both_ways(rfc8448.CLIENT_STREAM, rfc8448.SERVER_STREAM)
    log = len(ALL_SECRETS).to_bytes(4, "little" if order == "<" else "big")
    kind = (0x544C534B).to_bytes(4, "little" if order == "<" else "big")
    padded = ALL_SECRETS + bytes(-len(ALL_SECRETS) % 4)
    data = b"".join(
        [
            section(order) + interface(order=order),
            block(10, bytes(8), order),
            block(10, kind + log + padded, order),
            *(enhanced(frame, 10**15, order=order) for frame in frames),
        ]
    )
    found = open_captures([data], decode_as=["tcp.port==1999,mqtt"])
    assert [one.opened.size for one in found.streams] == [50, 50]
    capture = read_capture(data[:-3])  # a file that ends in the middle of a block
    assert [len(text) for text in embedded_secrets(capture.files)] == [len(ALL_SECRETS)]
    lying = data.replace(kind + log, kind + b"\x7f\xff\xff\x7f")
    assert list(embedded_secrets(read_capture(lying).files)) == []


# --- recordings -----------------------------------------------------------------------------


def test_mosquitto_over_tls_gives_the_rows_of_the_plain_connections() -> None:
    rows = wireyard.read(MQTT, "mqtt", keylog=MQTT_KEYS)
    ports = pc.if_else(pc.less(rows["src_port"], 9000), rows["src_port"], rows["dst_port"])
    plain = rows.filter(pc.equal(ports, 1883))
    wanted: list[list[pa.Table]] = []
    streams = plain["stream"].unique().to_pylist()
    for client, broker in zip(streams[::2], streams[1::2], strict=True):
        wanted.append([_rows_of(rows, client), _rows_of(rows, broker)])
    small, large = wanted
    assert (small[0].num_rows, large[0].num_rows) == (10, 11)
    others = [name for name in rows["stream"].unique().to_pylist() if name not in streams]
    compared = Counter[str]()
    for client, broker in zip(others[::2], others[1::2], strict=True):
        found = [_rows_of(rows, client), _rows_of(rows, broker)]
        if found[0].num_rows < 9:
            continue  # those that openssl spoke
        assert found in (small, large), client
        compared[client.rpartition(":")[2]] += 1
    assert compared == {"8883": 13, "8884": 1, "8885": 1, "8886": 1, "8887": 1, "8888": 1}


def _rows_of(rows: pa.Table, stream: str) -> pa.Table:
    return rows.filter(pc.equal(rows["stream"], stream)).drop_columns(list(OF_CAPTURE))


def test_what_openssl_does_by_itself_is_followed() -> None:
    """Key updates, a renegotiation, a session that is resumed with early data."""
    rows = wireyard.read(
        MQTT, "mqtt", ["dst_port", "stream", "packet_type_name"], keylog=MQTT_KEYS
    ).to_pylist()
    found: dict[str, list[str]] = {}
    for row in rows:
        if row["dst_port"] in (8883, 8889):
            found.setdefault(row["stream"], []).append(row["packet_type_name"])
    short = [names for names in found.values() if len(names) < 9]
    twice = ["CONNECT", "PUBLISH", "PUBLISH", "DISCONNECT"]
    assert short == [twice] + [["CONNECT", "PUBLISH", "DISCONNECT"]] * 3


def test_open_mq_over_tls_gives_whole_packets_with_the_keys_in_the_capture() -> None:
    rows = wireyard.read(JMS, "jmq", ["stream", "packet_type_name", "status", "length"])
    assert set(rows["status"].to_pylist()) == {"ok"}
    names: dict[str, list[str]] = {}
    for row in rows.to_pylist():
        names.setdefault(row["stream"].partition(">")[2], []).append(row["packet_type_name"])
    clients = [value for key, value in names.items() if key.endswith((":7677", ":7678"))]
    assert len(clients) == 2
    plain, both = sorted(clients, key=len)
    assert len(both) == 2 * len(plain)  # over TLS 1.2 and 1.3
    assert Counter(both) == Counter(plain * 2)
    assert Counter(plain)["TEXT_MESSAGE"] == 3


def tshark(*words: object) -> str:
    if shutil.which("tshark") is None:
        pytest.skip("no tshark")
    command = ["tshark", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_mqtt_packets_are_in_the_frames_that_tshark_has_them_in() -> None:
    ports = [f"tls.port=={port},mqtt" for port in (8883, 8884, 8885, 8888, 8889)]
    rules = [word for port in ports for word in ("-d", port)]
    keys = f"tls.keylog_file:{MQTT_KEYS}"
    fields = ("-T", "fields", "-e", "frame.number", "-e", "mqtt.msgtype", "-Y", "mqtt")
    wanted = Counter[tuple[int, int]]()
    for line in tshark("-r", MQTT, "-o", keys, *rules, *fields).splitlines():
        frame, types = line.split("\t")
        wanted.update((int(frame), int(one)) for one in types.split(","))
    rows = wireyard.read(
        MQTT, "mqtt", ["frame", "packet_type", "src_port", "dst_port"], keylog=MQTT_KEYS
    ).to_pylist()
    websocket = {8886, 8887}  # whose packets this tshark does not look into
    found = Counter(
        (row["frame"], row["packet_type"])
        for row in rows
        if websocket.isdisjoint((row["src_port"], row["dst_port"]))
    )
    assert sum(wanted.values()) == 363
    assert found == wanted


def test_jms_streams_are_those_that_tshark_decrypts() -> None:
    capture = read_capture(JMS)
    keys = KeyLog(lambda: embedded_secrets(capture.files))
    found = assign_formats(capture.streams, keys=keys)
    for number in (1, 2):
        text = tshark("-r", JMS, "-q", "-z", f"follow,tls,raw,{number}")
        lines = [line for line in text.splitlines() if not line.strip("\t0123456789abcdef")]
        nodes = {
            f"Node {node}: {found[2 * number + side].stream.src}": side
            for node in (0, 1)
            for side in (0, 1)
        }
        first = next(side for node, side in nodes.items() if node in text and "Node 0" in node)
        sides = [b"", b""]
        for line in lines:
            sides[first ^ line.startswith("\t")] += bytes.fromhex(line)
        assert [content(one) for one in found[2 * number :][:2]] == sides


# --- damage ---------------------------------------------------------------------------------


def connections(source: Path) -> list[bytes]:
    """Return the connections of a recording, each as a capture of its own."""
    capture = read_capture(source)
    frames: dict[object, set[int]] = {}
    for stream in capture.streams:
        frames.setdefault(stream.connection, set()).update(stream.runs.records.tolist())
    return [
        b"".join(part.tobytes() for part in slice_captures(capture.files, wanted))
        for wanted in frames.values()
    ]


def inside(data: bytes, keys: Path) -> dict[str, list[bytes]]:
    """Return the pieces of the streams of MQTT; assert that rows account for all of them."""
    try:
        found = open_captures([data], get_format("mqtt"), keylog=[keys])
    except SourceError:
        return {}
    streams = {}
    for format, one in found.streams:
        plan = make_plan(format, ["offset", "length"])
        rows = pa.Table.from_batches(scan_stream(one, plan), plan.schema)
        assert (pc.sum(rows["length"]).as_py() or 0) == one.size
        assert isinstance(one, CapturedStream)
        pieces = one.captured.pieces.tolist()
        streams[one.stream] = [one.captured.read(*piece).tobytes() for piece in pieces]
    return streams


def read_damaged(source: Path, keys: Path, cases: int, seed: int) -> tuple[int, int]:
    """Read damaged connections; return how many streams were inside, and how many of them whole.

    Nothing may be inside TLS that was not sent, whatever is damaged.
    """
    rng, found = Random(seed), connections(source)
    whole = [inside(data, keys) for data in found]
    count = intact = 0
    for _ in range(cases):
        number = rng.randrange(len(found))
        data = found[number]
        with time_bound():
            streams = inside(damage(data, rng), keys)
        for name, pieces in streams.items():
            wanted = whole[number].get(name)
            if wanted is None:  # its addresses or ports are damaged
                continue
            count += 1
            intact += pieces == wanted
            authentic = PLAIN_PORTS.isdisjoint(map(int, re.findall(r":(\d+)", name)))
            assert are_parts(pieces, b"".join(wanted)) or not authentic
    return count, intact


def are_parts(pieces: Sequence[bytes], whole: bytes) -> bool:
    """Return whether `whole` has these parts, one behind the other."""
    at = 0
    for piece in pieces:
        if (found := whole.find(piece, at)) < 0:
            return False
        at = found + len(piece)
    return True


def read_with_losses(source: Path, keys: Path, every: int, most: int) -> int:
    """Lose a frame of some streams each; return how many of them lack bytes, `most` at most."""
    capture = read_capture(source)
    streams = [one for one in capture.streams if len(one.runs.records) > 6]
    whole = inside(source.read_bytes(), keys)
    everything = {*range(capture.spans[0].frames)}
    count = 0
    for stream in streams[::every]:
        lost = int(stream.runs.records[2 * len(stream.runs.records) // 3])
        kept = slice_captures(capture.files, everything - {lost})
        found = inside(b"".join(part.tobytes() for part in kept), keys)
        pieces, wanted = (each.get(stream.name, []) for each in (found, whole))
        assert are_parts(pieces, b"".join(wanted))
        missing = sum(map(len, wanted)) - sum(map(len, pieces))
        assert missing <= most
        count += missing > 0
    return count


def test_a_frame_that_is_lost_takes_no_more_than_its_records() -> None:
    """On TLS 1.2 and 1.3 with the ciphers of mosquitto and OpenSSL."""
    assert read_with_losses(MQTT, MQTT_KEYS, 4, 60) > 5


def test_damaged_connections_give_what_was_sent_or_a_reason() -> None:
    count, intact = read_damaged(MQTT, MQTT_KEYS, CASES, 1)
    assert count > intact > 0
