"""Rules, and the columns and rows of opened payloads."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result
from pyarrow import parquet

import wireyard
from tests.cli.results import LOGIN
from tests.make import item, items, packet, section
from wireyard import mqtt, payloads
from wireyard.cli import main
from wireyard.errors import UsageError
from wireyard.payloads import parse_rule

MESSAGES = [
    ("plant/1", b'{"celsius": 21.5}'),
    ("plant/2", b"empty"),
    ("plant/2", b"5000"),
    ("office/1", b"55.49"),
    ("plant/3/raw", b"\x00\xff"),
    ("$SYS/load", b"1"),
]


@pytest.fixture
def stream(tmp_path: Path) -> Path:
    path = tmp_path / "p.mqtt"
    packets = [mqtt.Publish(topic=topic, payload=data) for topic, data in MESSAGES]
    path.write_bytes(b"".join(map(wireyard.encode, [mqtt.Connect(client_id="c"), *packets])))
    return path


def run(*words: object) -> Result:
    wide = {"COLUMNS": "200"}  # a table leaves out what does not fit
    return CliRunner(env=wide).invoke(main, list(map(str, words)), catch_exceptions=False)


@pytest.mark.parametrize(
    ("filter", "matching"),
    [
        ("a/+/c", ["a/b/c", "a//c"]),
        ("a/#", ["a", "a/b", "a/b/c", "a//c"]),
        ("#", ["a", "a/b", "a/b/c", "a//c", "b"]),
        ("+", ["a", "b"]),
        ("$SYS/#", ["$SYS/x"]),
        ("a/b", ["a/b"]),
    ],
)
def test_filters_are_those_of_mqtt(filter: str, matching: list[str]) -> None:
    names = ["a", "a/b", "a/b/c", "a//c", "b", "$SYS/x"]
    rule = parse_rule(f"{filter}=json")
    assert [name for name in names if rule.matches(name, "/")] == matching


@pytest.mark.parametrize("text", ["plant", "=json", "plant=", ";a=b=json", "a;b=json"])
def test_what_is_no_rule(text: str) -> None:
    with pytest.raises(UsageError, match="payload rule"):
        parse_rule(text)


def test_payloads_are_opened_by_rule_and_never_by_guess(stream: Path, tmp_path: Path) -> None:
    target = tmp_path / "x.parquet"
    result = run("decode", stream, "--payload", "plant/+=json", "--payload", "#=text", "-w", target)
    assert result.exit_code == 0
    rows = parquet.read_table(target).to_pylist()[1:]
    assert [row["payload"] for row in rows] == [data for _, data in MESSAGES]
    assert [row["payload_json"] for row in rows] == [
        *('{"celsius":21.5}', None, "5000", '"55.49"', None, None)
    ]
    assert [row["payload_decoder"] for row in rows] == [
        *("json", "json", "json", "text", "text", None)
    ]
    assert rows[1]["payload_error"].startswith("is no json: Expecting value")
    assert rows[4]["payload_error"].startswith("is no text: ")
    assert run("decode", stream, "-w", target).exit_code == 0
    names = parquet.read_table(target).column_names
    assert [name for name in names if name.startswith("payload")] == ["payload_size", "payload"]


def test_jsonl_csv_and_tables_have_them_too(stream: Path) -> None:
    words = ("decode", stream, "--payload", "plant/+=json", "--columns", "topic,payload")
    rows = [json.loads(line) for line in run(*words, "--out", "jsonl").stdout.splitlines()]
    assert rows[1] == {
        "topic": "plant/1",
        "payload": MESSAGES[0][1].hex(),
        "payload_decoder": "json",
        "payload_error": None,
        "payload_value": {"celsius": 21.5},
    }
    whole = run("decode", stream, "--payload", "plant/+=json", "--out", "jsonl").stdout
    back = CliRunner().invoke(main, ["encode"], input=whole)
    assert back.exit_code == 0 and back.stdout_bytes == stream.read_bytes()
    assert rows[4]["payload_decoder"] is rows[4]["payload_value"] is None
    found = list(csv.DictReader(io.StringIO(run(*words, "--out", "csv").stdout, newline="")))
    assert found[1]["payload_json"] == '{"celsius":21.5}' and found[2]["payload"] == "empty"
    assert found[2]["payload_error"].startswith("is no json")
    as_text = run(*words, "--payload", "text", "--out", "jsonl").stdout.splitlines()
    assert json.loads(as_text[2])["payload"] == "empty"
    assert "celsius" in run(*words, "--out", "table").stdout


def test_python_takes_rules_and_functions(stream: Path) -> None:
    def size(data: bytes, topic: str) -> dict[str, Any]:
        return {"size": len(data), "topic": topic}

    payloads.register("sized", size, pa.struct([("size", pa.int64()), ("topic", pa.string())]))
    rules = {"plant/1": "json", "plant/#": "sized"}
    table = wireyard.read(str(stream), columns=["topic"], payload=rules, where="packet_type == 3")
    assert table.column_names == [
        *("topic", "payload_decoder", "payload_error", "payload_json", "payload_sized")
    ]
    assert table["payload_json"].to_pylist()[0] == '{"celsius":21.5}'
    assert table["payload_sized"].to_pylist() == [
        None,
        {"size": 5, "topic": "plant/2"},
        {"size": 4, "topic": "plant/2"},
        None,
        {"size": 2, "topic": "plant/3/raw"},
        None,
    ]
    table = wireyard.read(str(stream), payload={"plant/1": size})
    assert table["payload_json"].to_pylist()[1] == '{"size":17,"topic":"plant/1"}'


def test_a_value_that_its_type_does_not_hold_is_a_reason(stream: Path) -> None:
    payloads.register("small", lambda data, topic: {"n": 300}, pa.struct([("n", pa.int8())]))
    table = wireyard.read(str(stream), payload={"plant/1": "small"})
    assert table["payload_small"].to_pylist() == [None] * 7
    assert table["payload_error"].to_pylist()[1].startswith("does not fit its type")


def test_jms_by_destination_and_property() -> None:
    def message(name: str, kind: str, body: bytes) -> bytes:
        properties = section(("kind", 8, kind))
        return packet(packet_type=1, items=items(item(1, name)), properties=properties, body=body)

    messages = (("shop.orders", "json", b"[1]"), ("shop.orders", "other", b"[2]"))
    data = b"".join(message(*one) for one in (*messages, ("else", "json", b"[3]")))
    table = wireyard.read(data, payload=["shop.+;kind=json=json"])
    assert table["payload_json"].to_pylist() == ["[1]", None, None]
    assert table["body"].to_pylist() == [b"[1]", b"[2]", b"[3]"]


def test_mqtt_5_by_content_type_and_user_property(tmp_path: Path) -> None:
    path = tmp_path / "p.mqtt"
    login = wireyard.encode(mqtt.Connect(client_id="c", version_in_force=5))
    known = [{"content_type": "application/json"}, {"content_type": "x"}]
    user = bytes.fromhex("26 0004") + b"kind" + bytes.fromhex("0004") + b"json"
    packets = [
        _publish(b"\x03\x00" + len(v).to_bytes(1, "big") + v)
        for v in (one["content_type"].encode() for one in known)
    ]
    path.write_bytes(login + b"".join(packets) + _publish(user))
    for rule, wanted in (
        ("t;content_type=application/json=json", ["[1]", None, None]),
        ("t;kind=json=json", [None, None, "[1]"]),
    ):
        table = wireyard.read(str(path), payload=[rule])
        assert table["status"].to_pylist() == ["ok"] * 4
        assert table["payload_json"].to_pylist()[1:] == wanted
        lines = run("decode", path, "--payload", rule, "--out", "jsonl").stdout.splitlines()
        values = [json.loads(line)["payload_value"] for line in lines[1:]]
        assert values == [None if one is None else [1] for one in wanted]


def _publish(properties: bytes) -> bytes:
    """Return a PUBLISH of MQTT 5.0 to t with these properties."""
    body = b"\x00\x01t" + bytes([len(properties)]) + properties + b"[1]"
    return bytes([0x30, len(body)]) + body


def test_passwords_are_no_payload(tmp_path: Path) -> None:
    path = tmp_path / "login.jmq"
    path.write_bytes(LOGIN)
    for out in ("csv", "jsonl"):
        result = run("decode", path, "--payload", "#=text", "--out", out)
        assert result.exit_code == 0 and "c2VjcmV0" not in result.stdout
        assert b"c2VjcmV0".hex() not in result.stdout
        shown = run("decode", path, "--payload", "#=text", "--out", out, "--secrets").stdout
        assert "c2VjcmV0" in shown


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["text", "hex"], "--payload text and hex: payloads are shown in one way"),
        (["yaml"], "--payload yaml: is none of hex, base64, hash, text, value, none, nor a rule"),
        (["a=yaml"], "no payload decoder 'yaml'"),
    ],
)
def test_options_that_say_nothing(given: list[str], said: str, stream: Path) -> None:
    words = [word for one in given for word in ("--payload", one)]
    result = run("decode", stream, *words)
    assert (result.exit_code, result.stdout) == (2, "")
    assert said in result.stderr


def test_a_schema_takes_the_name_of_no_other_column(stream: Path) -> None:
    kind = pa.struct([("n", pa.int64())])
    payloads.register("size", lambda data, topic: {"n": 1}, kind)
    payloads.register("json", lambda data, topic: {"n": 2}, kind)
    try:
        table = wireyard.read(str(stream), payload={"plant/1": "size", "plant/2": "json"})
    finally:
        payloads.decoders._REGISTERED.pop("json")
    assert len(set(table.column_names)) == len(table.column_names)
    assert table["payload_size_"].to_pylist()[1] == {"n": 1}
    assert table["payload_json_"].to_pylist()[2] == {"n": 2}
    payloads.register("other", lambda data, topic: {}, pa.struct([("m", pa.int64())]))
    other = payloads.Decoder("other", lambda data, topic: {}, kind)
    with pytest.raises(UsageError, match="two schemas 'other'"):
        wireyard.read(str(stream), payload={"plant/1": "other", "plant/2": other})


def test_payloads_are_seen_at_80_columns(tmp_path: Path) -> None:
    path = tmp_path / "long.mqtt"
    topic = "plant/hall-3/line-12/machine-7/temperature"
    said = [mqtt.Publish(topic=topic, payload='{"celsius": 21.5}')]
    path.write_bytes(b"".join(map(wireyard.encode, [mqtt.Connect(client_id="c"), *said])))
    words = ["decode", str(path), "--out", "table", "--payload", "plant/#=json"]
    shown = CliRunner(env={"COLUMNS": "80"}).invoke(main, words).stdout.splitlines()
    assert "payload_value" in shown[0] and max(map(len, shown)) <= 80
    assert '{"celsius": 21.5}' in shown[-1] and "plant/hall" in shown[-1]
