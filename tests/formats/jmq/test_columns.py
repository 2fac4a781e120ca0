"""Compiled columns against the scalar reader, on what is common, rare, at edges and at the end."""

from __future__ import annotations

import operator
import subprocess
import sys
import zlib
from collections.abc import Callable
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from tests.golden import GOLDEN
from tests.make import (
    ALL_ITEMS,
    ALL_TYPES,
    Value,
    item,
    items,
    packet,
    random_packet,
    section,
    variety,
)
from tests.readings import JMQ, assert_one_reading, assert_same, table_of
from wireyard.errors import DecodeError
from wireyard.schema import COMMON
from wireyard.streams.plan import Condition

NAMES = [column.name for column in (*COMMON, *JMQ.columns)]

TEXTS = (
    b"", b"a", b"1234567", b"12345678", b"123456789", b"x" * 100, "é".encode(), "日本語".encode(),
    "😀".encode(), b"abcdefg\xc3\xa9", b"\xc3\xa9abcdefgh", b"\0", b"\x7f", "\ud7ff\ue000".encode(),
    b"\xf4\x8f\xbf\xbf", b"\xc2\x80", b"\xe0\xa0\x80", b"\xf0\x90\x80\x80",
    # Not UTF-8 as Arrow has it; Java's writers send the first three.
    b"\xc0\x80", b"\xed\xa0\xbd\xed\xb8\x80", b"\xed\xa0\x80", b"\xed\xb0\x80x",
    # Not UTF-8 at all.
    b"\x80", b"\xff", b"\xc3", b"\xc3(", b"\xe2\x82", b"\xf0\x9f\x98", b"\xc1\xbf", b"\xe0\x9f\xbf",
    b"\xf0\x8f\xbf\xbf", b"\xf4\x90\x80\x80", b"\xf5\x80\x80\x80", b"abcdefgh\xc3",
)  # fmt: skip


def assert_columns(data: bytes) -> None:
    assert_same(table_of(data, compiled=True), table_of(data, compiled=False))


def mixed(seed: int, count: int = 300) -> bytes:
    rng = Random(seed)
    packets = [*variety(), *(golden.data for golden in GOLDEN.values())]
    return b"".join(
        rng.choice(packets) if rng.random() < 0.2 else random_packet(rng) for _ in range(count)
    )


@pytest.mark.parametrize("seed", range(10))
def test_random_well_formed_packets(seed: int) -> None:
    table = assert_one_reading(mixed(seed), Random(seed))
    assert set(table["status"].to_pylist()) == {"ok"}


@pytest.mark.parametrize("name", GOLDEN)
def test_handmade_packets_have_their_values_in_columns(name: str) -> None:
    golden = GOLDEN[name]
    [row] = table_of(golden.data, compiled=True).to_pylist(maps_as_pydicts="strict")
    expected = {**golden.fields, **golden.texts}
    expected.pop("unknown_items", None)
    properties = expected.pop("properties")
    assert {field: row[field] for field in expected} == expected
    shown = {name: entry["type"] for name, entry in (row["properties"] or {}).items()}
    assert shown == {name: kind for name, (kind, _) in (properties or {}).items()}


@pytest.mark.parametrize("raw", TEXTS, ids=lambda raw: raw.hex()[:20] or "none")
def test_any_text_anywhere(raw: bytes) -> None:
    """As item, property name and property value; alone, in the middle, last in memory."""
    alone = [packet(items=items(item(code, raw))) for code in range(1, 8)]
    alone += [
        packet(items=item(1, raw) + b"\0\0"),
        packet(items=items(item(1, b"q"), item(5, raw))),
    ]
    name: str | bytes = raw or b"n"
    alone += [
        packet(properties=section((name, 8, raw))),
        packet(properties=section(("a", 8, raw), (b"b" + raw, 4, 1), ("c", 8, "after"))),
        packet(items=items(item(1, raw)), properties=section(("a", 8, "last"), ("b", 8, raw))),
        # What stands behind a text could go on where it breaks off.
        packet(properties=section(("a", 8, raw)), body=b"\xa9\x80\xbf" * 9),
        packet(items=items(item(5, raw)), properties=section(("a", 8, raw)), body=b"\x98\x80" * 20),
    ]
    for data in alone:
        assert_columns(data)
        assert_columns(packet(body=b"before") + data + packet(body=b"after"))
    assert_columns(b"".join(alone))


def test_two_names_never_become_one_key() -> None:
    data = packet(properties=section((b"\xed\xa0\x80", 4, 1), (b"\xed\xa0\x81", 4, 2)))
    for compiled in (True, False):
        [entries] = table_of(data, compiled=compiled)["properties"].to_pylist()
        assert len({name for name, _ in entries}) == len(entries) == 2


def test_what_texts_look_like_in_arrow() -> None:
    raw = b"a\xc0\x80\xed\xa0\xbd\xed\xb8\x80\xed\xa0\x80z"
    data = packet(items=items(item(1, raw)), properties=section((raw, 8, raw)))
    for compiled in (True, False):
        [row] = table_of(data, compiled=compiled).to_pylist()
        # NUL and the pair are characters; a lone surrogate has no UTF-8, so it is spelled out.
        shown = "a\0😀\\ud800z"
        assert row["destination"] == shown
        assert row["properties"] == [(shown, {"type": "string", "value": shown})]


EDGES: tuple[tuple[int, tuple[Value, ...]], ...] = (
    (1, (True, False)),
    (2, (-128, -1, 0, 9, 10, 127)),
    (3, (-32768, -100, 32767)),
    (4, (-(2**31), -1, 99_999_999, 100_000_000, 2**31 - 1)),
    (5, (-(2**63), 2**63 - 1, 10**16 - 1, 10**16, -(10**8), 0)),
    (6, (0.0, -0.0, 1e-45, 3.4028234663852886e38, 1.17549435e-38, 0.1, 1e7, 9999999.0, 1e-3)),
    (7, (0.0, -0.0, 5e-324, 1.7976931348623157e308, 2.2250738585072014e-308, 0.1, 1e7, 1e-3, 2e23)),
    (6, (float("inf"), float("-inf"), float("nan"))),
    (7, (float("inf"), float("-inf"), float("nan"))),
)


def test_numbers_at_their_edges() -> None:
    entries = [(code, value) for code, values in EDGES for value in values]
    data = b"".join(packet(properties=section(("v", *entry))) for entry in entries)
    table = table_of(data, compiled=True)
    assert_same(table, table_of(data, compiled=False))
    shown = [row[0][1]["value"] for row in table["properties"].to_pylist()]
    integers = [(str(int(v)) if code > 1 else str(v).lower()) for code, v in entries if code < 6]
    assert shown[: len(integers)] == integers
    assert shown[-6:] == ["Infinity", "-Infinity", "NaN"] * 2


def test_numbers_of_the_header_at_their_edges() -> None:
    wide, narrow = (-(2**63), -1, 0, 2**63 - 1), (-(2**31), -1, 0, 2**31 - 1)
    data = b"".join(
        packet(version=version, timestamp=t, expiration=t, sequence=s, source_port=s, consumer_id=s,
               packet_type=kind, priority=s % 256 - 128, encryption=s % 256, bit_flags=s % 65536)
        for version, t, s, kind in product((103, 200, 301), wide, narrow, (-(2**15), 0, 2**15 - 1))
    )  # fmt: skip
    assert_columns(data)


def test_every_packet_type_and_every_flag() -> None:
    assert_columns(b"".join(packet(packet_type=kind) for kind in range(-2, 260)))
    assert_columns(b"".join(packet(bit_flags=flags) for flags in range(0, 65536, 7)))


@pytest.mark.parametrize("count", [0, 1, 63, 64, 65, 200])
def test_any_number_of_properties(count: int) -> None:
    entries = [(f"name-{n}", 1 + n % 7, 1) for n in range(count)]
    assert_columns(packet(properties=section(*entries)) * 3)


@pytest.mark.parametrize("size", range(1, 20))
def test_names_that_nearly_repeat(size: int) -> None:
    same = "n" * size
    near = [same[:place] + "m" + same[place + 1 :] for place in range(size)]
    assert_columns(packet(properties=section(*((name, 4, 1) for name in [same, *near]))))
    assert_columns(packet(properties=section((same, 4, 1), ("x", 4, 2), (same, 4, 3))))
    assert_columns(
        packet(properties=section((same, 4, 1), (same + "\0", 4, 2), ("\0" + same, 4, 3)))
    )


def test_bodies_of_every_small_size() -> None:
    assert_columns(b"".join(packet(body=bytes(range(size))) for size in range(130)))


def test_numbers_of_destinations_whatever_came_before() -> None:
    """The same name again, one that begins or ends like it, another kind, none, odd text."""
    names = (
        b"", b"orders", b"orders12", b"orders13", b"orders123456789012", b"0rders123456789012",
        b"orders1234567890123456789", b"orders1234567890123456780", "Zoë".encode(), b"\xc0\x80",
        b"\xed\xa0\xbd\xed\xb8\x80", b"\xff", None,
    )  # fmt: skip
    rng = Random(36)
    data, expected = [], []
    for _ in range(3000):
        name, queue = rng.choice(names), rng.randrange(2)
        version = rng.choice((103, 200, 301, 301, 301))
        listed = items() if name is None else items(item(1, name))
        data.append(packet(version=version, packet_type=1, bit_flags=queue | 4, items=listed))
        text = JMQ.read_row(data[-1], 0)[0].get("destination")
        written = None if text is None else ("TQ"[queue] + ":" + text).encode()
        expected.append(None if written is None else zlib.crc32(written))
    stream = b"".join(data)
    assert_columns(stream)
    assert table_of(stream, compiled=True)["destination_hash"].to_pylist() == expected
    alone = table_of(stream, compiled=True, columns=["destination_hash"])
    assert alone["destination_hash"].to_pylist() == expected


def test_rows_in_any_number() -> None:
    """The bits of validity are eight to a byte."""
    full = packet(items=ALL_ITEMS, properties=section(*ALL_TYPES[:8]), body=b"b")
    for count in range(1, 40):
        assert_columns(packet() * (count % 9) + full * count + packet() * (count % 7))


def test_more_rows_than_go_through_together() -> None:
    for count in (1023, 1024, 1025, 3000):
        assert_columns(mixed(count, count))


def test_the_sources_same_as_before_and_others() -> None:
    rng = Random(2)
    addresses = [rng.randbytes(16), bytes(16), b"\xff\0\0\0" + rng.randbytes(12)]
    data = b"".join(packet(source_ip=rng.choice(addresses)) for _ in range(200))
    assert_columns(data)


# --- less than everything -------------------------------------------------------------------


def damaged(seed: int) -> bytes:
    parts = [
        mixed(seed, 40),
        b"noise",
        packet(version=9),
        packet(property_offset=1),
        mixed(seed, 40),
    ]
    parts += [packet(items=b"\0\1"), packet(properties=section(("a", 99, b"xy"))), packet()[:50]]
    return b"".join(parts)


@pytest.mark.parametrize("compiled", [False, True])
def test_each_column_alone_is_that_of_the_full_read(compiled: bool) -> None:
    data = damaged(1)
    whole = table_of(data, compiled=False)
    for name in NAMES:
        alone = table_of(data, compiled=compiled, columns=[name])
        assert alone.schema.names == [name]
        assert alone[name].equals(whole[name]), name


@pytest.mark.parametrize("seed", range(8))
def test_any_columns_in_any_order_are_those_of_the_full_read(seed: int) -> None:
    rng = Random(seed)
    data = damaged(seed)
    whole = table_of(data, compiled=False)
    for _ in range(12):
        names = rng.sample(NAMES, rng.randint(1, len(NAMES)))
        for compiled in (False, True):
            some = table_of(data, compiled=compiled, columns=names)
            assert some.equals(whole.select(names)), names


CONDITIONS: tuple[tuple[Condition, ...], ...] = (
    (("packet_type", "==", 1),),
    (("packet_type", "in", [1, 2]), ("priority", ">", 4)),
    (("timestamp", ">=", 0), ("timestamp", "<", 2**40)),
    (("destination", "!=", "queue"),),
    (("destination", "==", "t"),),
    (("flags", "==", "Q"),),
    (("status", "==", "malformed"),),
    (("status", "in", ["garbage", "tail"]),),
    (("offset", "<", 5000), ("length", ">", 100)),
    (("version", "<=", 200),),
    (("packet_type_name", "==", "nothing"),),
    (("source", "==", "<bytes>"), ("body_size", "!=", 0)),
)


SIGNS: dict[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "in": lambda found, values: found in values,
}


def rows_where(table: Any, conditions: tuple[Condition, ...]) -> list[int]:
    """Return the rows for which every condition holds, in plain Python: null is never true."""
    kept = []
    for row in range(table.num_rows):
        values = [(table[name][row].as_py(), sign, value) for name, sign, value in conditions]
        if all(found is not None and SIGNS[sign](found, value) for found, sign, value in values):
            kept.append(row)
    return kept


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("conditions", CONDITIONS, ids=str)
def test_where_is_a_filter_afterwards(conditions: tuple[Condition, ...], compiled: bool) -> None:
    data = damaged(4)
    whole = table_of(data, compiled=False)
    expected = whole.take(pa.array(rows_where(whole, conditions), pa.int64()))
    assert_same(table_of(data, compiled=compiled, where=conditions), expected)
    names = ["body", "destination"]
    some = table_of(data, compiled=compiled, where=conditions, columns=names)
    assert some.equals(expected.select(names))


@pytest.mark.parametrize("compiled", [False, True])
def test_modes(compiled: bool) -> None:
    data = damaged(5)
    whole = table_of(data, compiled=False)
    good = whole.take([n for n, status in enumerate(whole["status"].to_pylist()) if status == "ok"])
    kept = table_of(data, compiled=compiled, mode="dropmalformed")
    assert_same(kept, good)
    # No verdict depends on the columns: what is dropped is dropped whatever is asked for.
    for names in (["version"], ["body"], ["offset"], ["destination"]):
        some = table_of(data, compiled=compiled, mode="dropmalformed", columns=names)
        assert some.equals(good.select(names)), names
        with pytest.raises(DecodeError) as caught:
            table_of(data, compiled=compiled, mode="failfast", columns=names)
        first = next(row for row in whole.to_pylist() if row["status"] != "ok")
        assert caught.value.row() == first["error"]
        assert any(str(first["offset"]) in note for note in caught.value.__notes__)
    assert_same(table_of(mixed(5), compiled=compiled, mode="failfast"),
                table_of(mixed(5), compiled=False))  # fmt: skip


# --- without a compiler ----------------------------------------------------------------------

ROOT = Path(__file__).resolve().parents[3]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def test_without_a_compiler_the_same_functions_give_the_same_values() -> None:
    done = run(
        "-c",
        "import os; os.environ['NUMBA_DISABLE_JIT'] = '1'\n"
        "from tests.formats.jmq.test_columns import assert_columns, damaged, mixed\n"
        "assert_columns(mixed(7, 60)); assert_columns(damaged(7))\n",
    )
    assert done.returncode == 0, done.stderr[-2000:]
