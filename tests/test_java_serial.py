"""The reader of serialization streams against streams that Java never wrote, and against limits."""

from __future__ import annotations

import random
import struct
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

from tests.test_java_golden import GOLDEN, first_object
from tests.test_java_opaque import NODES, OPAQUE, TABLE
from tests.test_java_views import VIEWS
from wireyard import java
from wireyard.java import cursor, values

MAGIC = b"\xac\xed\x00\x05"
NULL = b"\x70"
END = b"\x78"

# writeObject of true, (byte) 1, "s", byte[] {1}, null, "s" again, true again: OpenJDK 17.0.15.
ELEMENTS = bytes.fromhex(
    "aced0005737200116a6176612e6c616e672e426f6f6c65616ecd207280d59cfaee0200015a000576616c7565"
    "7870017372000e6a6176612e6c616e672e427974659c4e6084ee50f51c02000142000576616c756578720010"
    "6a6176612e6c616e672e4e756d62657286ac951d0b94e08b02000078700174000173757200025b42acf317f8"
    "060854e0020000787000000001017071007e000571007e0001"
)

# writeObject("a"), reset(), writeObject("a"), writeObject(1), reset(), writeObject(1).
RESETS = bytes.fromhex(
    "aced0005740001617974000161737200116a6176612e6c616e672e496e746567657212e2a0a4f78187380200"
    "0149000576616c7565787200106a6176612e6c616e672e4e756d62657286ac951d0b94e08b02000078700000"
    "000179737200116a6176612e6c616e672e496e746567657212e2a0a4f781873802000149000576616c756578"
    "7200106a6176612e6c616e672e4e756d62657286ac951d0b94e08b020000787000000001"
)

# An ArrayList, and a HashMap under the key "me", that contain themselves.
SELF_LIST = bytes.fromhex(
    "aced0005737200136a6176612e7574696c2e41727261794c6973747881d21d99c7619d03000149000473697a"
    "6578700000000177040000000171007e000178"
)

SELF_MAP = bytes.fromhex(
    "aced0005737200116a6176612e7574696c2e486173684d61700507dac1c31660d103000246000a6c6f616446"
    "6163746f724900097468726573686f6c6478703f4000000000000c770800000010000000017400026d657100"
    "7e000178"
)

# LinkedHashSet [1, 1L] and LinkedHashMap {1: "a", 1L: "b"}.
MIXED_SET = bytes.fromhex(
    "aced0005737200176a6176612e7574696c2e4c696e6b656448617368536574d86cd75a95dd2a1e0200007872"
    "00116a6176612e7574696c2e48617368536574ba44859596b8b7340300007870770c000000103f4000000000"
    "0002737200116a6176612e6c616e672e496e746567657212e2a0a4f781873802000149000576616c75657872"
    "00106a6176612e6c616e672e4e756d62657286ac951d0b94e08b0200007870000000017372000e6a6176612e"
    "6c616e672e4c6f6e673b8be490cc8f23df0200014a000576616c75657871007e0004000000000000000178"
)

MIXED_MAP = bytes.fromhex(
    "aced0005737200176a6176612e7574696c2e4c696e6b6564486173684d617034c04e5c106cc0fb0200015a00"
    "0b6163636573734f72646572787200116a6176612e7574696c2e486173684d61700507dac1c31660d1030002"
    "46000a6c6f6164466163746f724900097468726573686f6c6478703f4000000000000c770800000010000000"
    "02737200116a6176612e6c616e672e496e746567657212e2a0a4f781873802000149000576616c7565787200"
    "106a6176612e6c616e672e4e756d62657286ac951d0b94e08b020000787000000001740001617372000e6a61"
    "76612e6c616e672e4c6f6e673b8be490cc8f23df0200014a000576616c75657871007e000400000000000000"
    "01740001627800"
)

ALL = [
    *(bytes.fromhex(text) for table in (GOLDEN, VIEWS, OPAQUE) for text, _ in table.values()),
    *(ELEMENTS, RESETS, SELF_LIST, SELF_MAP, MIXED_SET, MIXED_MAP, NODES, TABLE),
]


def text(value: str) -> bytes:
    return struct.pack(">H", len(value)) + value.encode()


def string(value: str) -> bytes:
    return b"\x74" + text(value)


def handle(number: int) -> bytes:
    return struct.pack(">BI", 0x71, 0x7E0000 + number)


def class_desc(
    name: str, flags: int = 2, fields: bytes = b"", count: int = 0, parent: bytes = NULL
) -> bytes:
    head = b"\x72" + text(name) + bytes(8) + struct.pack(">BH", flags, count)
    return head + fields + END + parent


def array(size: int, desc: bytes | None = None) -> bytes:
    return b"\x75" + (desc or class_desc("[Ljava.lang.Object;")) + struct.pack(">i", size)


def error(data: bytes) -> java.JavaError:
    with pytest.raises(java.JavaError) as caught:
        java.read_objects(MAGIC + data)
    return caught.value


def plain_error(data: bytes) -> java.JavaError:
    found = java.read_objects(data)
    with pytest.raises(java.JavaError) as caught:
        java.plain(found[-1])
    return caught.value


def test_elements_of_a_stream_share_their_handles() -> None:
    found = java.read_objects(ELEMENTS)
    assert [java.plain(value) for value in found] == [True, 1, "s", b"\x01", None, "s", True]
    assert found[2] is found[5]
    assert java.read_objects(MAGIC) == []


def test_reset_starts_handles_again() -> None:
    assert [java.plain(value) for value in java.read_objects(RESETS)] == ["a", "a", 1, 1]
    assert java.read_objects(RESETS + b"\x79") == java.read_objects(RESETS)
    assert first_object(MAGIC + b"\x79" + string("a")) == (("string", "a"), 9)
    assert error(string("a") + b"\x79" + handle(0)).code == "bad_java"


def test_a_long_string() -> None:
    data = b"\x7c" + struct.pack(">Q", 70_000) + b"x" * 70_000
    assert java.read_objects(MAGIC + data) == [("string", "x" * 70_000)]
    assert error(b"\x7c" + b"\xff" * 8).code == "truncated"


def test_an_error_says_where_and_what() -> None:
    caught = error(string("a") + b"\x00")
    assert (caught.code, caught.field, caught.offset) == ("bad_java", "object", 8)
    assert str(caught) == "'object' is 0x00, not the start of an object at byte 8"
    with pytest.raises(java.JavaError, match="needs 4 bytes, 0 left at byte 0"):
        first_object(b"")
    with pytest.raises(java.JavaError, match="is 00000001, not aced0005"):
        java.read_objects(b"\0\0\0\1\0\0\0\0")


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"\x7b", id="exception"),
        pytest.param(b"\x77\x01a", id="primitive data where an object should be"),
        pytest.param(string("\x80")[:2] + b"\x01\xff", id="no UTF-8"),
        pytest.param(handle(0), id="reference to nothing"),
        pytest.param(string("a") + handle(1), id="reference to the next"),
        pytest.param(b"\x71" + struct.pack(">I", 0), id="reference before all"),
        pytest.param(b"\x73" + NULL, id="object without class"),
        pytest.param(string("a") + b"\x73" + handle(0), id="object of class string"),
        pytest.param(b"\x73" + class_desc("A", flags=0), id="class not serializable"),
        pytest.param(b"\x73" + class_desc("A", flags=6), id="class of two kinds"),
        pytest.param(b"\x7e" + class_desc("A") + string("B"), id="enum of no enum class"),
        pytest.param(b"\x7e" + class_desc("A", flags=18) + NULL, id="enum without name"),
        pytest.param(array(-1), id="negative array length"),
        pytest.param(array(0, class_desc("A")), id="array of no array class"),
        pytest.param(
            b"\x73" + class_desc("A", 2, b"L" + text("o") + string("LA;") + b"I" + text("i"), 2),
            id="primitive field behind an object field",
        ),
        pytest.param(b"\x73" + class_desc("A", 2, b"Q" + text("q"), 1), id="unknown field type"),
        pytest.param(
            b"\x73" + class_desc("A", 2, b"L" + text("o") + NULL, 1), id="field without class"
        ),
        pytest.param(b"\x73" + class_desc("A", parent=handle(0)), id="class below itself"),
        pytest.param(b"\x76" + class_desc("A") + handle(0), id="class where a value should be"),
        pytest.param(b"\x7e" + class_desc("A", flags=18) + handle(1), id="enum named by itself"),
        pytest.param(
            array(1) + b"\x73" + class_desc("A")[:-2] + handle(1) + END + NULL,
            id="object in the annotation of a class",
        ),
    ],
)
def test_streams_that_break_the_grammar(data: bytes) -> None:
    caught = error(data)
    assert caught.code == "bad_java"
    assert 4 <= caught.offset <= 4 + len(data)


def box(name: str, code: str, data: bytes) -> bytes:
    fields = code.encode() + text("value")
    return b"\x73" + class_desc(name, 2, fields, 1) + data


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"\x73" + class_desc("java.util.HashMap"), "has no data of class java.util.HashMap"),
        (b"\x73" + class_desc("java.util.HashMap", 3) + END, "wrote no 8 bytes"),
        (
            b"\x73"
            + class_desc("java.util.HashMap", 3)
            + b"\x77\x08"
            + b"\x7f\xff\xff\xff" * 2
            + END,
            "says it has 2147483647 elements, 0 follow",
        ),
        (
            b"\x73" + class_desc("java.util.LinkedList", 3) + b"\x77\x04\xff\xff\xff\xff" + END,
            "says it has -1 elements, 0 follow",
        ),
        (
            b"\x73" + class_desc("java.util.LinkedList", 3) + b"\x77\x04\0\0\0\1\x77\0" + END,
            "wrote primitive data among its elements",
        ),
        (
            b"\x73" + class_desc("java.util.ArrayList", 3) + b"\x77\x04\0\0\0\0" + END,
            "no field size",
        ),
        (
            b"\x73" + class_desc("java.util.Arrays$ArrayList", 2, b"I" + text("b"), 1) + bytes(4),
            "has no field a",
        ),
        (box("java.math.BigInteger", "I", bytes(4)), "has no field signum"),
    ],
)
def test_known_classes_without_their_form(data: bytes, problem: str) -> None:
    caught = error(data)
    assert caught.code == "bad_java"
    assert problem in caught.problem


def test_a_box_of_another_form_is_an_unknown_class() -> None:
    (value,) = java.read_objects(MAGIC + box("java.lang.Integer", "J", bytes(8)))
    assert isinstance(value, java.Opaque)


def nested(levels: int) -> bytes:
    return array(1) + (b"\x75" + handle(0) + struct.pack(">i", 1)) * (levels - 1) + NULL


def test_depth_of_objects() -> None:
    (value,) = java.read_objects(MAGIC + nested(values.MAX_DEPTH - 1))
    depth, inner = 0, java.plain(value)
    while inner is not None:
        depth, inner = depth + 1, inner[0]
    assert depth == values.MAX_DEPTH - 1
    for levels in (values.MAX_DEPTH + 1, 100_000):
        assert error(nested(levels)).code == "limit_exceeded"


def line_of_classes(levels: int) -> bytes:
    return class_desc("A")[:-1] * levels + NULL


def fields_of_fields(levels: int) -> bytes:
    first = class_desc("A", 2, b"L" + text("o") + string("LA;"), 1)
    return b"\x73" + first + (b"\x73" + handle(0)) * levels + NULL


def class_annotations(levels: int) -> bytes:
    return (b"\x73" + class_desc("A")[:-2]) * levels


@pytest.mark.parametrize("build", [line_of_classes, fields_of_fields, class_annotations])
def test_depth_of_everything_else(build: Callable[[int], bytes]) -> None:
    lead = b"\x73" if build is line_of_classes else b""
    assert error(lead + build(50_000)).code == "limit_exceeded"


def test_classes_below_classes_by_reference() -> None:
    # Each class of its own is two levels deep, but its ancestors are all those before it.
    field = b"I" + text("i")
    line = b"\x73" + class_desc("A", 2, field, 1) + bytes(4)
    for number in range(1, 100):
        above = handle(2 * number - 2)
        line += b"\x73" + class_desc("A", 2, field, 1, above) + bytes(4 * number + 4)
    assert error(line).code == "limit_exceeded"
    assert "ancestors" in error(line).problem


def test_lengths_are_not_believed() -> None:
    cases = [
        array(2**31 - 1, class_desc("[B")),
        array(2**20, class_desc("[J")),
        array(2**20),
        b"\x7c" + struct.pack(">Q", 2**40) + b"a",
        b"\x73" + class_desc("A", 3) + b"\x7a\x7f\xff\xff\xff",
        b"\x73" + class_desc("A", 2, b"", 0xFFFF),
    ]
    tracemalloc.start()
    try:
        for data in cases:
            assert error(data + bytes(100)).code in ("truncated", "bad_java")
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_caps_on_handles_and_elements(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cursor, "MAX_ELEMENTS", 9)
    table = b"\x73" + class_desc("A", 3) + NULL * 10 + END
    numbers = array(10, class_desc("[I")) + bytes(40)
    for data in (NULL * 10, numbers, string("a") + handle(0) * 9, table):
        assert error(data).code == "limit_exceeded"
    monkeypatch.setattr(cursor, "MAX_HANDLES", 8)
    assert len(java.read_objects(MAGIC + string("a") * 8)) == 8
    assert error(string("a") * 9).code == "limit_exceeded"


def test_a_collection_that_contains_itself() -> None:
    (value,) = java.read_objects(SELF_LIST)
    assert value.items[0] is value
    assert "contains itself" in str(plain_error(SELF_LIST))
    assert "contains itself" in str(plain_error(SELF_MAP))


def laughs(levels: int) -> bytes:
    """Return one stream of `levels` arrays, each twice the one before it."""
    data = MAGIC + array(2) + string("ha") + handle(2)
    for level in range(1, levels):
        # Handle 1 is the first array, 2 the string; each later array has the next.
        last = handle(1 if level == 1 else level + 1)
        data += b"\x75" + handle(0) + struct.pack(">i", 2) + last * 2
    return data


def test_repetition_is_shared_and_capped() -> None:
    value = java.plain(java.read_objects(laughs(10))[-1])
    assert value[0] is value[1]
    assert str(value).count("ha") == 2**10
    assert plain_error(laughs(60)).code == "limit_exceeded"
    assert plain_error(laughs(80)).problem == "is nested more than 64 deep"


def test_repetition_of_a_long_string() -> None:
    data = array(10_000) + string("x" * 60_000) + handle(2) * 9_999
    assert plain_error(MAGIC + data).code == "limit_exceeded"


def test_keys_that_python_cannot_tell_apart() -> None:
    assert java.plain(java.read_objects(MIXED_SET)[0]) == [1, 1]
    assert plain_error(MIXED_MAP).problem == "has more than one key 1"


def mutated(source: random.Random, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(source.choice((1, 1, 2, 5))):
        at = source.randrange(4, len(changed))
        match source.randrange(5):
            case 0:
                changed[at] ^= 1 << source.randrange(8)
            case 1:
                changed[at] = source.choice(b"\x00\x01\x02\x7f\xff" + bytes(range(0x70, 0x7F)))
            case 2:
                del changed[at : at + source.randrange(1, 9)]
            case 3:
                changed[at:at] = handle(source.randrange(6))
            case 4:
                other = source.choice(ALL)
                changed[at:at] = other[4 : source.randrange(5, len(other) + 1)]
        if len(changed) < 6:
            break
    return bytes(changed)


def everything(data: bytes) -> Any:
    """Use all that can be done with a stream."""
    return [java.plain(value) for value in java.read_objects(data)], java.read_hashtable(data)


def test_mutations_are_read_or_refused() -> None:
    source = random.Random(20050117)
    read = 0
    for _ in range(20_000):
        data = mutated(source, source.choice(ALL))
        for use in (everything, first_object, java.read_hashtable):
            try:
                use(data)
                read += 1
            except java.JavaError as caught:
                assert caught.code in ("truncated", "bad_java", "limit_exceeded")
                assert 0 <= caught.offset <= len(data)
    assert read > 1_000
