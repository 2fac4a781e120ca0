"""TLS and WebSocket on the command line: options, notes, and what flows shows of them."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest

import wireyard
from tests.captures import rfc8448
from tests.captures.make import both_ways, packets, pcap
from tests.captures.test_tls import JMS, MQTT, MQTT_KEYS
from tests.cli.results import Run
from wireyard.captures.carriers import tls_keys
from wireyard.errors import UsageError


def test_nobody_is_told_to_take_tls_for_mqtt(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "closed.pcap"
    frames = both_ways(rfc8448.CLIENT_STREAM, rfc8448.SERVER_STREAM, (40000, 8883))
    path.write_bytes(pcap(packets(frames)))
    for words in (("decode", path), ("decode", path, "-d", "tcp.port==8883,mqtt")):
        result = run(*words)
        assert result.stdout == ""
        assert "2 streams, 1452 bytes, are TLS 1.3 to server" in result.stderr
        assert "--keylog FILE" in result.stderr
        assert "mqtt" not in result.stderr
    with pytest.raises(UsageError, match=r"are TLS 1\.3 to server"):
        wireyard.read(path)


def test_no_key_log_is_asked_for_that_would_open_nothing(run: Run, tmp_path: Path) -> None:
    """Of a connection that was captured from its middle on no record can be opened."""
    path = tmp_path / "middle.pcap"
    records = (bytes.fromhex("1703030028") + bytes(40)) * 4
    path.write_bytes(pcap(packets(both_ways(records, records, (40000, 8883))[2:])))
    result = run("decode", path)
    assert "2 streams, 360 bytes, are TLS (" in result.stderr
    assert "its handshake was not captured whole" in result.stderr
    assert "--keylog" not in result.stderr


def test_without_the_ciphers_there_is_one_clear_line(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls_keys, "find_spec", lambda name: None)
    result = run("flows", MQTT, "--keylog", MQTT_KEYS)
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1
    assert "pip install 'wireyard[tls]'" in result.stderr
    rows = [json.loads(line) for line in run("flows", JMS, "--out", "jsonl").stdout.splitlines()]
    assert [row["format"] for row in rows] == ["jmq", "tls", "tls"]
    assert all("not installed" in row["carriers"][0]["problem"] for row in rows[1:])


def conversations(run: Run, *words: object) -> list[dict[str, Any]]:
    return [json.loads(line) for line in run("flows", *words, "--out", "jsonl").stdout.splitlines()]


def test_flows_names_what_is_inside_and_what_is_not_opened(run: Run) -> None:
    found = conversations(run, MQTT, "--keylog", MQTT_KEYS)
    carriers = Counter(
        (each["format"], *(one["version"] for one in each["carriers"])) for each in found
    )
    assert carriers == {
        ("mqtt",): 2,
        ("mqtt", "1.3"): 8,
        ("mqtt", "1.2"): 12,
        ("tls", "1.3"): 1,
        ("mqtt", None): 1,
        ("mqtt", "1.3", None): 1,
    }
    closed = next(each for each in found if each["format"] == "tls")
    [carrier] = closed["carriers"]
    assert (carrier["server_name"], carrier["protocol"]) == ("broker.example", "mqtt")
    assert closed["bytes_sent"] == 667
    again = conversations(run, MQTT, "-o", f"tls.keylog_file:{MQTT_KEYS}")
    assert again == found
    assert MQTT_KEYS.read_text().split()[-1] not in json.dumps(found)


def test_a_slice_has_all_frames_of_the_records_behind_a_row(run: Run, tmp_path: Path) -> None:
    # Two records, of which each has a header, a content type and what it is authenticated by.
    for port, least in ((1883, 17_600), (8883, 17_600 + 2 * (5 + 1 + 16))):
        path = tmp_path / f"{port}.pcap"
        conditions = ("topic == large/1", f"dst_port == {port}")
        words = [word for one in conditions for word in ("--where", one)]
        result = run("slice", MQTT, *words, "--keylog", MQTT_KEYS, "-w", path)
        assert result.exit_code == 0, result.stderr
        size = pc.sum(wireyard.segments(path).read_all()["payload_length"]).as_py()
        assert least < size < least + 2000
