"""Whatever a payload has, its row has a value or a reason: in columns and in single rows."""

from __future__ import annotations

import enum
import io
import json
import math
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, Final

import cbor2
import fastavro
import msgpack
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.payloads.test_decoders import SCHEMA, avro, write_descriptor_set
from wireyard.formats import get_format
from wireyard.payloads import Decoder, Rule, get_decoder
from wireyard.payloads.columns import PayloadColumns, PayloadTable, json_text

MQTT: Final = get_format("mqtt")
SPECS: Final = (
    *("json", "text", "cbor", "msgpack", "sparkplug"),
    *("protobuf", "avro", "avro-confluent"),
)
TEXTS: Final = st.text(st.characters(codec=None, exclude_categories=()), max_size=20)
NUMBERS: Final = st.one_of(
    st.integers(), st.sampled_from([2**63, 2**64, -(2**63) - 1, 10**2000, 10**4000]), st.floats()
)
VALUES: Final = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, TEXTS),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=10,
)
EDITS: Final = st.lists(
    st.tuples(st.integers(0, 200), st.integers(0, 3), st.binary(max_size=3)), max_size=4
)
"""Where bytes are removed, how many, and what is put there."""


def row_of(decoder: Decoder, data: bytes) -> dict[str, Any]:
    """Return the additional columns of a message, which are the same in all forms of rows."""
    columns = PayloadColumns(MQTT, [Rule("#", (), decoder)])
    batch = pa.record_batch({"topic": ["t"], MQTT.body.column: pa.array([data], pa.binary())})
    opened = columns.extend(batch)
    opened.validate(full=True)
    found: dict[str, Any] = opened.select(opened.schema.names[2:]).to_pylist()[0]
    row = columns.open({"topic": "t", MQTT.body.column: data})
    text = json_text(row["payload_value"])
    text.encode()
    table = PayloadTable(MQTT, [Rule("#", (), decoder)])._columns.extend(batch)
    table.validate(full=True)
    assert table["payload_json"][0].as_py() == (None if row["payload_error"] else text)
    if decoder.type is None:
        assert found["payload_error"] == row["payload_error"]
    if (reason := found["payload_error"]) is not None:
        assert 0 < len(reason) < 1000 and reason.splitlines() == [reason]
        assert [name for name, value in found.items() if value is not None] == [
            "payload_decoder",
            "payload_error",
        ]
    return found


@pytest.fixture(scope="module")
def decoders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Decoder, list[bytes]]]:
    """Return decoders with valid payloads of each."""
    folder = tmp_path_factory.mktemp("schemas")
    path, kind = write_descriptor_set(folder)
    message = kind(celsius=math.inf, total=2**64 - 1, raw=b"\xff", state=7, more=[{"name": "a"}])
    file = io.BytesIO()
    row = {"celsius": 1.5, "tags": {"a": 2**63 - 1}, "at": 0, "list": ["x"], "state": "ON"}
    fastavro.schemaless_writer(file, fastavro.parse_schema(SCHEMA), row)
    value = {"a": [1, 2.5, None, "x" * 30], "b": {"c": -(2**40)}}
    sparkplug = "0801 1803 1207 0a0174 2001 5001 1210 0a0175 200a 69 000000000000e03f"
    valid = {
        "json": [json.dumps(value).encode(), b'"\\ud800"', b'{"\\udc00":1e999}', b"[NaN]"],
        "text": ["gr\u00fcn\0".encode()],
        "cbor": [cbor2.dumps(value), cbor2.dumps([2**80, b"x", math.nan])],
        "msgpack": [msgpack.packb(value), msgpack.packb({1: b"x"})],
        "sparkplug": [bytes.fromhex(sparkplug), b"\x08" + b"\xff" * 9 + b"\x01"],
        f"protobuf:{path}#plant.Reading": [message.SerializeToString()],
        f"avro:{avro(folder)}": [file.getvalue()],
        f"avro-confluent:{avro(folder)}": [b"\0\0\0\0\7" + file.getvalue()],
    }
    return {spec.partition(":")[0]: (get_decoder(spec), each) for spec, each in valid.items()}


@pytest.mark.parametrize("spec", SPECS)
def test_payloads_of_any_bytes_have_a_value_or_a_reason(
    spec: str, decoders: Mapping[str, tuple[Decoder, list[bytes]]]
) -> None:
    decoder, valid = decoders[spec]
    for data in valid:
        row_of(decoder, data)

    @given(st.binary(max_size=64) | st.sampled_from(valid), EDITS)
    def check(data: bytes, edits: list[tuple[int, int, bytes]]) -> None:
        changed = bytearray(data)
        for at, removed, new in edits:
            changed[at : at + removed] = new
        row_of(decoder, bytes(changed))

    check()


_WRITERS: Final[dict[str, Callable[[Any], bytes]]] = {
    "json": lambda value: json.dumps(value).encode(),
    "cbor": cbor2.dumps,
    "msgpack": lambda value: msgpack.packb(value, unicode_errors="surrogatepass"),
}


@pytest.mark.parametrize("spec", _WRITERS)
@given(value=VALUES)
def test_any_value_that_is_written_has_a_value_or_a_reason(spec: str, value: Any) -> None:
    try:
        data = _WRITERS[spec](value)
    except (ValueError, OverflowError):
        return  # it has no such form
    row_of(get_decoder(spec), data)


class _Odd(str):
    """Text of an own type."""

    def encode(self, *_: Any) -> bytes:
        raise KeyError("odd")


class _Number(enum.IntEnum):
    ONE = 1


class _Silent(Exception):
    def __str__(self) -> str:
        raise ValueError


class _Panic(BaseException):
    """As extension modules in Rust raise it."""


TYPES: Final = (
    None,
    pa.int8(),
    pa.string(),
    pa.timestamp("ns"),
    pa.list_(pa.int64()),
    pa.map_(pa.string(), pa.float32()),
    pa.struct([("a", pa.struct([("b", pa.decimal128(5, 2))]))]),
)


@pytest.mark.parametrize("kind", TYPES, ids=str)
@given(
    value=VALUES
    | st.sampled_from(
        [
            object(),
            _Odd("x"),
            _Number.ONE,
            {(1,): 2},
            {_Number.ONE: _Odd("x")},
            {1, "a"},
            b"\0" * 99,
        ]
    )
    | st.sampled_from(
        [bytearray(3), memoryview(b"abc"), Decimal("1e99"), {"a": [1]}, {"a": {"b": 1}}]
    )
)
def test_whatever_a_function_returns(kind: pa.DataType | None, value: Any) -> None:
    row_of(Decoder("own", lambda data, topic: value, kind), b"x")


@pytest.mark.parametrize(
    "error",
    [ValueError("\ud800\nb" * 999), _Silent(), _Panic("panic"), SystemExit(2), GeneratorExit()],
    ids=lambda error: type(error).__name__,
)
def test_whatever_a_function_raises_is_a_reason(error: BaseException) -> None:
    def fail(data: bytes, topic: str) -> None:
        raise error

    reason = row_of(Decoder("own", fail), b"x")["payload_error"]
    assert reason.startswith("is no own: ")


def test_ctrl_c_ends_a_decoder() -> None:
    def stop(data: bytes, topic: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        row_of(Decoder("own", stop), b"x")


def test_values_that_take_much_more_than_their_payload_are_refused() -> None:
    for value, reason in (
        (["x" * (1 << 20)] * 60, "has over 1048576 values"),
        (10**5000, "has an integer of 2076 bytes"),
    ):
        decoder = Decoder("own", lambda data, topic, value=value: value)  # type: ignore[misc]
        assert row_of(decoder, b"x")["payload_error"] == reason
