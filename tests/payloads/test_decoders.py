"""Decoders: what they read, and what they refuse, within bounds."""

from __future__ import annotations

import io
import json
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import cbor2
import fastavro
import msgpack
import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from wireyard import payloads
from wireyard.errors import UsageError
from wireyard.payloads import PayloadError, get_decoder
from wireyard.payloads.decoders import MAX_PAYLOAD_BYTES

VALUES = [
    None,
    True,
    -7,
    2**40,
    1.5,
    "grün",
    [1, [2, []]],
    {"a": {"b": [None, "x"]}, "c": -1},
]


@pytest.mark.parametrize("value", VALUES, ids=str)
def test_values_come_back(value: Any) -> None:
    assert get_decoder("json").decode(json.dumps(value).encode(), "t") == value
    assert get_decoder("cbor").decode(cbor2.dumps(value), "t") == value
    assert get_decoder("msgpack").decode(msgpack.packb(value), "t") == value


def test_what_other_kinds_become() -> None:
    moment = datetime(2026, 11, 22, 7, tzinfo=UTC)
    value = {1: b"\0\xff", "at": moment, "big": 2**70}
    wanted = {"1": b"\0\xff", "at": "2026-11-22T07:00:00Z", "big": 2**70}
    assert get_decoder("cbor").decode(cbor2.dumps(value), "t") == wanted
    packed = msgpack.packb({1: b"\0\xff", "at": moment}, datetime=True)
    assert get_decoder("msgpack").decode(packed, "t") == {"1": b"\0\xff", "at": wanted["at"]}
    assert get_decoder("text").decode("grün".encode(), "t") == "grün"


BOMB_REFERENCES = bytes.fromhex("d81c") + bytes.fromhex("81d81d00")
HOSTILE = {
    "json deep": ("json", b"[" * 100_000),
    "json deep closed": ("json", b"[" * 5_000 + b"]" * 5_000),
    "json deeper than allowed": ("json", b"[" * 70 + b"]" * 70),
    "json digits": ("json", b"1" * 100_000),
    "json exponent": ("json", b"1e999999999"),
    "json constant": ("json", b"[NaN]"),
    "json rest": ("json", b"1 2"),
    "json empty": ("json", b""),
    "json text": ("json", b"empty"),
    "json not utf-8": ("json", b'"\xff"'),
    "json many": ("json", b"[" + b"0," * 1_100_000 + b"0]"),
    "text": ("text", b"\xff"),
    "cbor deep": ("cbor", b"\x81" * 100_000 + b"\x00"),
    "cbor deep tags": ("cbor", b"\xc1" * 100_000 + b"\x00"),
    "cbor array of 2^60": ("cbor", b"\x9b\x10" + bytes(7)),
    "cbor map of 2^60": ("cbor", b"\xbb\x10" + bytes(7)),
    "cbor bytes of 2^60": ("cbor", b"\x5b\x10" + bytes(7)),
    "cbor shared reference": ("cbor", BOMB_REFERENCES),
    "cbor decimal": ("cbor", bytes.fromhex("c4821b7fffffffffffffff01")),
    "cbor bigfloat": ("cbor", bytes.fromhex("c5821b7fffffffffffffff01")),
    "cbor regular expression": ("cbor", bytes.fromhex("d82361") + b"("),
    "cbor big integer": ("cbor", b"\xc2\x59\xff\xff" + b"\xff" * 65535),
    "cbor rest": ("cbor", b"\x00\x00"),
    "cbor cut": ("cbor", b"\x82\x00"),
    "cbor endless": ("cbor", b"\x9f\x00"),
    "cbor break": ("cbor", b"\xff"),
    "cbor reserved": ("cbor", b"\x1c"),
    "msgpack deep": ("msgpack", b"\x91" * 100_000 + b"\x00"),
    "msgpack array": ("msgpack", b"\xdd\xff\xff\xff\xff"),
    "msgpack map": ("msgpack", b"\xdf\xff\xff\xff\xff"),
    "msgpack text": ("msgpack", b"\xdb\xff\xff\xff\xff"),
    "msgpack extension": ("msgpack", b"\xc7\x01\x05x"),
    "msgpack rest": ("msgpack", b"\x00\x00"),
    "msgpack empty": ("msgpack", b""),
    "too large": ("text", bytes(MAX_PAYLOAD_BYTES + 1)),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_payloads_are_refused_at_once(name: str) -> None:
    spec, data = HOSTILE[name]
    decoder = get_decoder(spec)
    began = time.process_time()
    with pytest.raises(PayloadError) as found:
        decoder.decode(data, "t")
    assert time.process_time() - began < 5
    assert 0 < len(str(found.value)) < 300 and "\n" not in str(found.value)


# --- with a schema --------------------------------------------------------------------------


def write_descriptor_set(folder: Path) -> tuple[Path, Any]:
    """Write a descriptor set; return its path, and the class of its message."""
    file = descriptor_pb2.FileDescriptorProto(name="r.proto", package="plant", syntax="proto3")
    kinds = descriptor_pb2.FieldDescriptorProto
    part = file.message_type.add(name="Part")
    part.field.add(name="name", number=1, type=kinds.TYPE_STRING, label=1)
    reading = file.message_type.add(name="Reading")
    reading.field.add(name="celsius", number=1, type=kinds.TYPE_DOUBLE, label=1)
    reading.field.add(name="total", number=2, type=kinds.TYPE_UINT64, label=1)
    reading.field.add(name="raw", number=3, type=kinds.TYPE_BYTES, label=1)
    reading.field.add(
        name="part", number=4, type=kinds.TYPE_MESSAGE, label=1, type_name=".plant.Part"
    )
    reading.field.add(
        name="more", number=5, type=kinds.TYPE_MESSAGE, label=3, type_name=".plant.Part"
    )
    reading.field.add(
        name="state", number=6, type=kinds.TYPE_ENUM, label=1, type_name=".plant.State"
    )
    state = file.enum_type.add(name="State")
    state.value.add(name="OFF", number=0)
    state.value.add(name="ON", number=1)
    node = file.message_type.add(name="Node")
    node.field.add(name="next", number=1, type=kinds.TYPE_MESSAGE, label=1, type_name=".plant.Node")
    path = folder / "plant.desc"
    path.write_bytes(descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString())
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    kind = message_factory.GetMessageClass(pool.FindMessageTypeByName("plant.Reading"))
    return path, kind


@pytest.fixture
def descriptor_set(tmp_path: Path) -> tuple[Path, Any]:
    return write_descriptor_set(tmp_path)


def test_protobuf_is_typed(descriptor_set: tuple[Path, Any]) -> None:
    path, kind = descriptor_set
    decoder = get_decoder(f"protobuf:{path}#plant.Reading")
    message = kind(celsius=1.5, total=2**64 - 1, raw=b"\xff", state=1, more=[{"name": "a"}])
    value = decoder.decode(message.SerializeToString(), "t")
    assert value == {
        "celsius": 1.5,
        "total": 2**64 - 1,
        "raw": b"\xff",
        "state": "ON",
        "more": [{"name": "a"}],
    }
    assert decoder.type is not None
    assert pa.scalar(value, decoder.type).as_py()["part"] is None
    assert decoder.decode(b"", "t")["celsius"] == 0
    for data in (b"\xff", b"\x0a\xff\xff\xff\xff\x0f", b"\x09\x00"):
        with pytest.raises(PayloadError, match="Reading"):
            decoder.decode(data, "t")


@pytest.mark.parametrize(
    ("rest", "said"),
    [
        ("#plant.Nothing", "has no message plant.Nothing; it has plant.Part, plant.Reading"),
        ("", "name a message, as in FILE#MESSAGE"),
        ("#plant.Node", "holds itself"),
    ],
)
def test_protobuf_schemas_that_cannot_be_used(
    rest: str, said: str, descriptor_set: tuple[Path, Any]
) -> None:
    with pytest.raises(UsageError, match=said):
        get_decoder(f"protobuf:{descriptor_set[0]}{rest}")


SCHEMA = {
    "type": "record",
    "name": "plant.Reading",
    "fields": [
        {"name": "celsius", "type": ["null", "double"]},
        {"name": "tags", "type": {"type": "map", "values": "long"}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "list", "type": {"type": "array", "items": "string"}},
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["OFF", "ON"]}},
    ],
}


def avro(folder: Path, schema: Any = SCHEMA) -> Path:
    path = folder / "schema.avsc"
    path.write_text(json.dumps(schema))
    return path


def test_avro_is_typed_with_and_without_confluents_head(tmp_path: Path) -> None:
    path = avro(tmp_path)
    moment = datetime(2026, 11, 22, 7, tzinfo=UTC)
    row = {"celsius": 1.5, "tags": {"a": 1}, "at": moment, "list": ["x"], "state": "ON"}
    file = io.BytesIO()
    fastavro.schemaless_writer(file, fastavro.parse_schema(SCHEMA), row)
    data = file.getvalue()
    decoder, framed = get_decoder(f"avro:{path}"), get_decoder(f"avro-confluent:{path}")
    wanted = {**row, "at": "2026-11-22T07:00:00Z"}
    assert decoder.decode(data, "t") == framed.decode(b"\0\0\0\0\7" + data, "t") == wanted
    assert decoder.type is not None and pa.types.is_struct(decoder.type)
    for one, bad in ((decoder, data + b"x"), (framed, data), (framed, b"\0\0"), (decoder, b"")):
        with pytest.raises(PayloadError):
            one.decode(bad, "t")
    for at in range(len(data)):
        with pytest.raises(PayloadError):
            decoder.decode(data[:at], "t")


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"type": "array", "items": "null"}, "takes no bytes"),
        (
            {
                "type": "record",
                "name": "N",
                "fields": [{"name": "n", "type": ["null", "N"]}],
            },
            "N holds itself",
        ),
        (["int", "string"], "union of several kinds"),
        ({"type": "nothing"}, "no Avro schema"),
    ],
)
def test_avro_schemas_that_cannot_be_used(schema: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=said):
        get_decoder(f"avro:{avro(tmp_path, schema)}")


@pytest.mark.parametrize("count", [2**40, 2**62])
def test_avro_counts_that_lie_are_refused_at_once(count: int, tmp_path: Path) -> None:
    decoder = get_decoder(f"avro:{avro(tmp_path, {'type': 'array', 'items': 'string'})}")
    file = io.BytesIO()
    fastavro.schemaless_writer(file, "long", count)
    began = time.process_time()
    for data in (file.getvalue(), b"\x02" + file.getvalue()):
        with pytest.raises(PayloadError):
            decoder.decode(data, "t")
    assert time.process_time() - began < 5


def test_sparkplug_payloads_are_typed() -> None:
    decoder = get_decoder("sparkplug")
    # timestamp 1, seq 3; a metric: name "t", datatype Int8 (1), int_value 255; another: Double 0.5
    metric = bytes.fromhex("0a0174 2001 50ff01")
    other = bytes.fromhex("0a0175 200a 69") + bytes.fromhex("000000000000e03f")
    data = bytes.fromhex("0801 1803")
    for one in (metric, other):
        data += bytes([0x12, len(one)]) + one
    value = decoder.decode(data, "spBv1.0/g/DDATA/n/d")
    assert (value["timestamp_ms"], value["seq"]) == (1, 3)
    assert value["metrics"] == [
        {"name": "t", "datatype": "Int8", "value": "-1", "number": -1.0},
        {"name": "u", "datatype": "Double", "value": "0.5", "number": 0.5},
    ]
    assert decoder.type is not None and pa.scalar(value, decoder.type).is_valid
    with pytest.raises(PayloadError, match="no Sparkplug B payload"):
        decoder.decode(b'{"online":true}', "spBv1.0/STATE/h")


# --- a decoder of one's own -----------------------------------------------------------------


def halves(data: bytes, topic: str) -> dict[str, Any]:
    """Return what a sensor of ours sends."""
    return {"celsius": data[0] / 2, "topic": topic}


def test_a_function_is_a_decoder() -> None:
    payloads.register("halves", halves, pa.struct([("celsius", pa.float64())]))
    for spec in ("halves", f"{__name__}:halves", halves):
        assert get_decoder(spec).decode(b"\x03", "a") == {"celsius": 1.5, "topic": "a"}
    with pytest.raises(PayloadError, match="is no halves: index out of range"):
        get_decoder("halves").decode(b"", "a")
    payloads.register("odd", lambda data, topic: object())
    with pytest.raises(PayloadError, match="has a value of the kind object"):
        get_decoder("odd").decode(b"", "a")
    payloads.register("loop", lambda data, topic: looped())
    with pytest.raises(PayloadError, match="over 64 levels deep"):
        get_decoder("loop").decode(b"", "a")


def looped() -> list[Any]:
    found: list[Any] = []
    found.append(found)
    return found


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("yaml", "no payload decoder 'yaml'; there are json, text, cbor"),
        ("nowhere.to:find", "cannot be loaded"),
        ("math:pi", "is no function"),
        ("avro", "needs a schema: avro:FILE"),
    ],
)
def test_decoders_that_there_are_not(spec: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        get_decoder(spec)


@pytest.mark.parametrize(
    ("spec", "module"),
    [
        ("cbor", "cbor2"),
        ("msgpack", "msgpack"),
        ("sparkplug", "google.protobuf"),
        ("avro:x", "fastavro"),
    ],
)
def test_a_missing_library_names_the_extra(
    spec: str, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, module, None)
    with pytest.raises(UsageError, match=r"pip install 'wireyard\[payloads\]'"):
        get_decoder(spec)
