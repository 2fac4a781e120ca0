"""Properties as JMQ 1.0.3 and 2.0.0 send them: byte for byte what a JDK writes, and back."""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.test_java_golden import GOLDEN
from wireyard import java
from wireyard.errors import EncodeError

# new Hashtable(), put("k0", 0 < 5), put("k1", 100L), put("k2", 2 < 5) .. put("k8", 8 < 5),
# put("five", 5), put("cinq", 5), then writeObject: OpenJDK 17.0.15.
TABLE = bytes.fromhex(
    "aced0005737200136a6176612e7574696c2e486173687461626c6513bb0f25214ae4b803000246000a6c6f61"
    "64466163746f724900097468726573686f6c6478703f400000000000117708000000170000000b7400026b38"
    "737200116a6176612e6c616e672e426f6f6c65616ecd207280d59cfaee0200015a000576616c756578700074"
    "00026b377372000e6a6176612e6c616e672e4c6f6e673b8be490cc8f23df0200014a000576616c7565787200"
    "106a6176612e6c616e672e4e756d62657286ac951d0b94e08b020000787000000000000002bc7400026b3671"
    "007e00047400026b357371007e000600000000000001f47400026b347371007e0003017400026b337371007e"
    "0006000000000000012c7400026b3271007e000d7400026b317371007e000600000000000000647400026b30"
    "71007e000d74000466697665737200116a6176612e6c616e672e496e746567657212e2a0a4f7818738020001"
    "49000576616c75657871007e00070000000574000463696e7171007e001678"
)

ENTRIES = {
    **{f"k{i}": ("boolean", i < 5) if i % 2 == 0 else ("long", 100 * i) for i in range(9)},
    "five": ("integer", 5),
    "cinq": ("integer", 5),
}

TEXT = st.text(st.characters(exclude_categories=[]), max_size=20)
NUMBERS = {"byte": 8, "short": 16, "integer": 32, "long": 64}
OBJECTS = [
    bytes.fromhex(GOLDEN[name][0])
    for name in ("HashMap {a: 1L, n: null, y: byte[]}", "'€'", "new int[] {-1, 2}")
]
PROPERTIES = st.one_of(
    st.tuples(st.just("boolean"), st.booleans()),
    st.tuples(st.just("string"), TEXT),
    *(
        st.tuples(st.just(word), st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1))
        for word, bits in NUMBERS.items()
    ),
    st.tuples(st.just("float"), st.floats(width=32, allow_nan=False)),
    st.tuples(st.just("double"), st.floats(allow_nan=False)),
    st.tuples(st.just("object"), st.sampled_from(OBJECTS)),
)


def section(shared: Path, name: str) -> bytes:
    """Return the property section of a JMQ 2.0.0 packet."""
    (file,) = (shared / "vectors" / "openmq").glob(f"jmq_*_{name}.bin")
    data = file.read_bytes()
    offset, size = struct.unpack_from(">ii", data, 52)
    return data[offset : offset + size]


def halves_joined(text: str) -> str:
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")


def test_what_a_jdk_wrote() -> None:
    entries = java.read_hashtable(TABLE)
    assert entries == ENTRIES
    assert java.write_hashtable(entries) == TABLE


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("v200_basic", {"colour": ("string", "blue"), "n": ("integer", 7)}),
        (
            "v200_all_types",
            {
                "b": ("boolean", True),
                "l": ("long", 4),
                "i": ("integer", 3),
                "s": ("short", 2),
                "f": ("float", 5.0),
                "d": ("double", 6.0),
                "str": ("string", "x\0\U0001f600"),
                "y": ("byte", 1),
            },
        ),
    ],
)
def test_what_the_shipped_classes_wrote(
    shared: Path, name: str, expected: dict[str, tuple[str, Any]]
) -> None:
    data = section(shared, name)
    entries = java.read_hashtable(data)
    assert entries == expected
    assert list(entries) == list(expected)
    assert java.write_hashtable(entries) == data


@given(st.dictionaries(TEXT.map(halves_joined), PROPERTIES, max_size=30))
def test_round_trip(entries: dict[str, tuple[str, Any]]) -> None:
    expected = {
        name: (word, halves_joined(value) if word == "string" else value)
        for name, (word, value) in entries.items()
    }
    read = java.read_hashtable(java.write_hashtable(entries))
    assert read == expected
    assert list(read) == list(entries)


def test_values_at_the_edges() -> None:
    entries: dict[str, tuple[str, Any]] = {
        "": ("string", ""),
        "long": ("string", "x" * 70_000),
        "negative zero": ("double", -0.0),
        "float": ("float", -math.inf),
    }
    read = java.read_hashtable(java.write_hashtable(entries))
    assert read == entries
    assert math.copysign(1, read["negative zero"][1]) == -1
    odd_nan = struct.unpack(">d", bytes.fromhex("fff8000000000001"))[0]
    assert java.write_hashtable({"n": ("double", odd_nan)})[-9:-1].hex() == "7ff8000000000000"


@pytest.mark.parametrize(("count", "capacity"), [(0, 11), (8, 11), (9, 23), (17, 23), (18, 47)])
def test_capacity_is_that_of_a_table_grown_by_put(count: int, capacity: int) -> None:
    data = java.write_hashtable({f"k{i}": ("byte", 0) for i in range(count)})
    at = data.index(b"\x77\x08")
    threshold = int(capacity * 0.75)
    assert struct.unpack(">fi2xii", data[at - 8 : at + 10]) == (0.75, threshold, capacity, count)


def test_every_shorter_prefix_is_truncated() -> None:
    for size in range(len(TABLE)):
        with pytest.raises(java.JavaError) as caught:
            java.read_hashtable(TABLE[:size])
        assert caught.value.code == "truncated"


def with_entries(*objects: bytes) -> bytes:
    head = java.write_hashtable({})[:-5]
    return head + struct.pack(">i", len(objects) // 2) + b"".join(objects) + b"\x78"


@pytest.mark.parametrize(
    ("data", "field"),
    [
        (bytes.fromhex(GOLDEN["HashMap {a: 1L, n: null, y: byte[]}"][0]), "property table"),
        (bytes.fromhex(GOLDEN["null"][0]), "property table"),
        (with_entries(b"\x74\0\1a", b"\x70"), "property value"),
        (with_entries(b"\x70", b"\x74\0\1a"), "property name"),
        (with_entries(*[b"\x74\0\1a"] * 4), "property name"),
        (bytes(8), "stream header"),
    ],
)
def test_what_is_no_property_table(data: bytes, field: str) -> None:
    with pytest.raises(java.JavaError) as caught:
        java.read_hashtable(data)
    assert (caught.value.code, caught.value.field) == ("bad_java", field)


def test_a_properties_table_is_one_too() -> None:
    data = bytes.fromhex(GOLDEN['Properties {k: "v"}'][0])
    assert java.read_hashtable(data) == {"k": ("string", "v")}


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("byte", 128),
        ("short", -32769),
        ("integer", 2**31),
        ("long", 2**63),
        ("integer", 1.5),
        ("integer", True),
        ("boolean", 1),
        ("float", 1e39),
        ("double", "1"),
        ("string", b"a"),
        ("string", None),
        ("object", "aced"),
        ("object", b""),
        ("object", bytes.fromhex("aced000570")),
        ("object", bytes.fromhex("aced00057400")),
        ("character", "a"),
        ("int", 1),
    ],
)
def test_what_has_no_form(word: str, value: object) -> None:
    with pytest.raises(EncodeError, match="property p"):
        java.write_hashtable({"p": (word, value)})


def test_slack_behind_an_object_is_dropped() -> None:
    stream = bytes.fromhex(GOLDEN["new int[] {-1, 2}"][0])
    data = java.write_hashtable({"p": ("object", stream.ljust(256, b"\0"))})
    assert java.read_hashtable(data) == {"p": ("object", stream)}


def test_an_object_that_is_text_or_a_number_becomes_one() -> None:
    # In a Hashtable it is the same thing; only the marshalled form can tell them apart.
    stream = bytes.fromhex(GOLDEN["-70000"][0])
    data = java.write_hashtable({"p": ("object", stream)})
    assert java.read_hashtable(data) == {"p": ("integer", -70000)}


# --- bodies ---------------------------------------------------------------------------------


def test_a_map_as_a_jdk_wrote_it() -> None:
    entries = {"a": ("long", 1), "y": ("bytes", b"\1"), "n": None}
    golden = bytes.fromhex(GOLDEN["HashMap {a: 1L, n: null, y: byte[]}"][0])
    assert java.write_hashmap(entries, "body") == golden


def test_a_stream_and_a_map_as_the_client_wrote_them(shared: Path) -> None:
    (file,) = (shared / "vectors" / "openmq").glob("jmq_*_body_stream_message.bin")
    values = [
        ("boolean", True), ("byte", 1), ("short", 2), ("character", "c"), ("integer", 3),
        ("long", 4), ("float", 5.0), ("double", 6.0), ("string", "s"), ("bytes", b"\1\2"), None,
    ]  # fmt: skip
    # Behind these it refers to a text by its identity, which no plain value has.
    assert java.write_objects(values, "body") in file.read_bytes()
    (file,) = (shared / "vectors" / "openmq").glob("jmq_*_body_map_empty.bin")
    assert file.read_bytes().endswith(java.write_hashmap({}, "body"))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("type of body element 0", ("object", b"\xac\xed\0\5p")),
        ("body element 0", ("character", "")),
        ("body element 0", ("character", "\U0001f600")),
        ("body element 0", ("bytes", "text")),
        ("body element 0", ("byte", 128)),
    ],
)
def test_what_has_no_form_in_a_body(field: str, value: tuple[str, Any]) -> None:
    with pytest.raises(EncodeError) as caught:
        java.write_objects([value], "body")
    assert caught.value.field == field
