"""The marshalled property section by itself, and values as text and back."""

from __future__ import annotations

import base64
import math
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.make import ALL_TYPES, section, text
from wireyard.errors import DecodeError, EncodeError
from wireyard.formats.jmq import packet as jmq
from wireyard.formats.jmq.packet import decode, encode, packet_of, read_row
from wireyard.formats.properties import (
    TYPES,
    Properties,
    Property,
    decode_properties,
    encode_properties,
)
from wireyard.formats.property_rows import property_text, property_value


def decoded(data: bytes, base: int = 0) -> Properties:
    return decode_properties(data, "jmq", base, "a document")


def test_the_nine_types_have_the_codes_of_the_specification() -> None:
    assert TYPES == {
        1: "boolean",
        2: "byte",
        3: "short",
        4: "integer",
        5: "long",
        6: "float",
        7: "double",
        8: "string",
        9: "object",
    }


def test_every_type_is_read_and_written() -> None:
    data = section(*ALL_TYPES)
    found = decoded(data)
    assert [(name, entry.value) for name, entry in found.items()] == [
        (name, value) for name, _, value in ALL_TYPES
    ]
    assert encode_properties(found) == data
    assert found.section == data


def test_a_float_is_the_float_that_was_sent() -> None:
    for bits in (0x3FC00000, 0x00000001, 0x7F7FFFFF, 0x80000000, 0xFF800000, 0x3DCCCCCD):
        [value] = struct.unpack(">f", struct.pack(">I", bits))
        found = decoded(section(("f", 6, value)))["f"].value
        assert struct.pack(">f", found).hex() == f"{bits:08x}"


def test_one_nan_is_written_whatever_was_read() -> None:
    raw = section(("d", 7, 0.0))[:-8]
    quiet, loud = bytes.fromhex("7ff8000000000000"), bytes.fromhex("fff0000000000001")
    found = decoded(raw + loud)
    assert math.isnan(float(found["d"].value))
    assert encode_properties({**found}) == raw + quiet
    assert encode_properties({"f": Property("float", -math.nan)})[-4:] == bytes.fromhex("7fc00000")


def test_order_is_that_of_the_wire_and_the_later_of_two_counts() -> None:
    found = decoded(section(("b", 4, 1), ("a", 4, 2), ("b", 4, 3), ("c", 4, 4)))
    shown = [("a", ("integer", 2)), ("b", ("integer", 3)), ("c", ("integer", 4))]
    assert list(found.items()) == shown


def test_properties_compare_as_mappings() -> None:
    found = decoded(section(("a", 4, 1), ("n", 7, math.nan)))
    assert found == {"n": ("double", math.nan), "a": ("integer", 1)}
    assert found == Properties({"n": Property("double", math.nan), "a": Property("integer", 1)})
    assert found != {"a": ("integer", 1)}
    assert found != {"n": ("double", math.nan), "a": ("long", 1)}
    assert found != 5
    assert hash(found) == hash(Properties(dict(found)))
    assert "integer" in repr(found)
    with pytest.raises(TypeError):
        found["a"] = Property("integer", 2)  # type: ignore[index]


def test_slack_behind_an_object_is_part_of_it_and_exact_ones_are_read() -> None:
    stream = b"\xac\xed\x00\x05t\x00\x01x"
    for value in (stream, stream + bytes(248), b""):
        assert decoded(section(("o", 9, value)))["o"] == ("object", value)


def test_every_shorter_section_is_an_error_with_its_place() -> None:
    data = section(*ALL_TYPES)
    for size in range(len(data)):
        with pytest.raises(DecodeError) as caught:
            decoded(data[:size], base=1000)
        assert 1000 <= caught.value.offset <= 1000 + size
        assert caught.value.spec.startswith("a document")


def test_a_count_is_checked_before_anything_is_read() -> None:
    for count in (3, 1000, 2**31 - 1):
        with pytest.raises(DecodeError) as caught:
            decoded(section(("a", 1, True), ("b", 1, True), count=count))
        assert (caught.value.code, caught.value.offset) == ("limit_exceeded", 4)
    assert len(decoded(section(("a", 1, True), ("b", 1, True), count=1))) == 1


def test_the_smallest_properties_fit_their_count() -> None:
    found = decoded(section(*((chr(97 + n), 1, True) for n in range(20))))
    assert len(found) == 20


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("byte", 128),
        ("byte", 1.0),
        ("short", -32769),
        ("integer", 2**31),
        ("long", 2**63),
        ("float", 1e39),
        ("float", "1.0"),
        ("double", None),
        ("double", 10**400),
        ("boolean", "false"),
        ("boolean", 1),
        ("string", b"bytes"),
        ("string", 5),
        ("object", "text"),
        ("whole", 1),
        ("", 1),
        ("string", "x" * 65536),
        ("string", "\0" * 32768),
    ],
)
def test_a_value_its_type_cannot_hold_is_refused(kind: str, value: object) -> None:
    with pytest.raises(EncodeError) as caught:
        encode_properties({"name": Property(kind, value)})  # type: ignore[arg-type]
    assert "name" in str(caught.value)


def test_a_name_has_one_to_65535_bytes() -> None:
    for name in ("n" * 65536, "\0" * 32768):
        with pytest.raises(EncodeError):
            encode_properties({name: Property("integer", 1)})
    for name in ("n", "n" * 65535, "\0" * 32767, "😀" * 10922):
        assert list(decoded(encode_properties({name: Property("integer", 1)}))) == [name]


def test_texts_are_written_in_the_form_java_reads() -> None:
    data = encode_properties({"\0": Property("string", "a😀\ud800")})
    assert data[8:] == text(b"\xc0\x80") + b"\0\x08" + text(
        b"a\xed\xa0\xbd\xed\xb8\x80\xed\xa0\x80"
    )


# --- values as text -------------------------------------------------------------------------

SHOWN = [
    ("boolean", True, "true"),
    ("boolean", False, "false"),
    ("byte", -128, "-128"),
    ("long", 2**63 - 1, "9223372036854775807"),
    ("float", 0.10000000149011612, "0.1"),
    ("float", 1e10, "1.0E10"),
    ("double", 0.1, "0.1"),
    ("double", 1e7, "1.0E7"),
    ("double", 123456.0, "123456.0"),
    ("double", -0.0, "-0.0"),
    ("double", math.inf, "Infinity"),
    ("double", -math.inf, "-Infinity"),
    ("double", math.nan, "NaN"),
    ("double", 5e-324, "4.9E-324"),
    ("string", " as it is\0", " as it is\0"),
    ("object", b"\xac\xed\0\5", base64.b64encode(b"\xac\xed\0\5").decode()),
]


@pytest.mark.parametrize(("kind", "value", "shown"), SHOWN, ids=[shown for _, _, shown in SHOWN])
def test_values_are_shown_as_jms_converts_them_and_read_back(
    kind: str, value: object, shown: str
) -> None:
    assert property_text(kind, value) == shown
    assert Properties({"a": property_value("a", kind, shown)}) == {"a": (kind, value)}
    assert Properties({"a": property_value("a", kind, value)}) == {"a": (kind, value)}


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("boolean", "yes"),
        ("boolean", "True"),
        ("boolean", 2),
        ("boolean", None),
        ("integer", "1.5"),
        ("integer", ""),
        ("integer", None),
        ("integer", b"1"),
        ("double", "much"),
        ("double", None),
        ("float", b"1.5"),
        ("double", 10**400),
        ("object", "no base64!"),
        ("object", 5),
        ("string", 5),
        ("whole", "1"),
        (None, "1"),
    ],
)
def test_what_is_no_value_of_its_type_is_refused(kind: object, value: object) -> None:
    with pytest.raises(EncodeError):
        # Some are refused when the value is made, all when it is written.
        encode_properties({"name": property_value("name", kind, value)})  # type: ignore[arg-type]


_ENTRIES = st.one_of(
    st.tuples(st.just("boolean"), st.booleans()),
    st.tuples(st.just("byte"), st.integers(-128, 127)),
    st.tuples(st.just("short"), st.integers(-(2**15), 2**15 - 1)),
    st.tuples(st.just("integer"), st.integers(-(2**31), 2**31 - 1)),
    st.tuples(st.just("long"), st.integers(-(2**63), 2**63 - 1)),
    st.tuples(st.just("float"), st.floats(width=32)),
    st.tuples(st.just("double"), st.floats()),
    st.tuples(st.just("string"), st.text(st.characters())),
    st.tuples(st.just("object"), st.binary()),
)


@given(st.dictionaries(st.text(st.characters(), min_size=1), _ENTRIES))
def test_any_properties_come_back(
    entries: dict[str, tuple[str, bool | int | float | str | bytes]],
) -> None:
    given = {name: Property(*entry) for name, entry in entries.items()}
    found = decoded(encode_properties(given))
    assert found == given and list(found) == list(given)
    through_text = {
        name: property_value(name, kind, property_text(kind, value))
        for name, (kind, value) in given.items()
    }
    assert Properties(through_text) == Properties(given)


@given(st.binary(max_size=200))
def test_any_bytes_are_properties_or_a_reported_error(tail: bytes) -> None:
    for data in (tail, b"\0\0\0\1" + tail, b"\0\0\0\1\0\0\0\2" + tail):
        try:
            found = decoded(data)
        except DecodeError as error:
            assert 0 <= error.offset <= len(data)
        else:
            assert decoded(encode_properties(found)) == found


def test_an_empty_name_is_a_name() -> None:
    """As of any other, two of them are one property (errata 31)."""
    data = section(("", 4, 1), ("m", 8, ""), ("", 1, 1))
    found = decoded(data)
    assert dict(found) == {"m": ("string", ""), "": ("boolean", True)}
    assert encode_properties(decoded(section(("", 1, 1)))) == section(("", 1, 1))


@pytest.mark.parametrize("version", [103, 200, 301])
def test_an_empty_name_is_a_name_in_every_version(version: int) -> None:
    packet = jmq.Packet(version=version, packet_type=1, properties={"": 1, "m": "text"})
    data = encode(packet)
    assert decode(data) == packet
    row, error = read_row(data)
    assert error is None and encode(packet_of(row)) == data


# --- lengths of objects (errata 41) ---------------------------------------------------------


JAVA_STRING = bytes.fromhex("aced0005740001 61")


def one_object(length: bytes, value: bytes) -> bytes:
    return struct.pack(">ii", 1, 2) + b"".join(
        (text("o"), struct.pack(">h", 9), length, value, text("n"), struct.pack(">hi", 4, 7))
    )


@pytest.mark.parametrize("short_objects", [False, True])
@pytest.mark.parametrize("code", [">H", ">i"])
def test_a_serialized_object_shows_the_width_of_its_length(code: str, short_objects: bool) -> None:
    data = one_object(struct.pack(code, len(JAVA_STRING)), JAVA_STRING)
    found = decode_properties(data, "jmq", 0, "a document", short_objects)
    assert found == {"o": ("object", JAVA_STRING), "n": ("integer", 7)}
    assert found.section == data


@pytest.mark.parametrize("value", [b"", b"\1\2", b"\xac\xed", 0xACED * b"."])
def test_the_length_of_other_bytes_is_that_of_the_dialect(value: bytes) -> None:
    """A length of 0000ACED is none of 16 bits with an object behind it."""
    for short_objects, code in ((False, ">i"), (True, ">H")):
        data = one_object(struct.pack(code, len(value)), value)
        found = decode_properties(data, "jmq", 0, "a document", short_objects)
        assert found["o"].value == value
        assert encode_properties(found, short_objects) == data
