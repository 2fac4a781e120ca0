"""Compiled columns against the scalar reader, on what is common, rare, at edges and at the end."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from random import Random

import pyarrow.compute as pc
import pytest

from tests.formats.gpacket.make import gpacket, link, random_packet, variety
from tests.formats.jmq.test_columns import EDGES, TEXTS
from tests.guard import between_guards
from tests.make import section
from tests.mutations import damaged_stream
from tests.readings import assert_one_reading, assert_same, table_of
from wireyard.formats import get_format
from wireyard.formats.gpacket.layout import FLAGS, PACKET_TYPES
from wireyard.schema import COMMON

GPACKET = get_format("gpacket")
NAMES = [column.name for column in (*COMMON, *GPACKET.columns)]


def assert_columns(data: bytes) -> None:
    found, wanted = (table_of(data, format=GPACKET, compiled=way) for way in (True, False))
    assert_same(found, wanted)


@pytest.mark.parametrize("seed", range(6))
def test_random_well_formed_packets(seed: int) -> None:
    rng = Random(seed)
    packets = variety()
    data = b"".join(
        rng.choice(packets) if rng.random() < 0.1 else random_packet(rng) for _ in range(1500)
    )
    table = assert_one_reading(data, rng, format=GPACKET)
    assert set(table["status"].to_pylist()) == {"ok"}
    assert set(table["format"].to_pylist()) == {"gpacket", "gpacket_link"}
    assert set(table["header_order"].to_pylist()) == {"shipped", "documented", None}


@pytest.mark.parametrize("seed", range(12))
def test_damaged_streams_read_the_same_every_way(seed: int) -> None:
    rng = Random(seed)
    limit = rng.choice((None, None, 4096, 400))
    assert_one_reading(damaged_stream("gpacket", rng, 300), rng, limit, GPACKET)


@pytest.mark.parametrize("raw", TEXTS, ids=lambda raw: raw.hex()[:20] or "none")
def test_any_text_anywhere(raw: bytes) -> None:
    packets = [
        gpacket(properties=section((raw or b"n", 8, raw))),
        gpacket(properties=section(("a", 8, raw), (b"b" + raw, 4, 1), ("c", 8, "after"))),
        # What stands behind a text could go on where it breaks off.
        gpacket(properties=section(("a", 8, raw)), payload=b"\xa9\x80\xbf" * 9),
    ]
    for data in packets:
        assert_columns(data)
    assert_columns(b"".join(packets))


def test_numbers_at_their_edges() -> None:
    entries = [(code, value) for code, values in EDGES for value in values]
    assert_columns(b"".join(gpacket(properties=section(("v", *entry))) for entry in entries))


def test_every_packet_type() -> None:
    data = b"".join(gpacket(packet_type=kind) for kind in (-32768, *range(-2, 90), 32767))
    assert_columns(data)
    names = table_of(data, format=GPACKET, compiled=True, columns=["packet_type_name"])
    assert set(names["packet_type_name"].to_pylist()) == {*PACKET_TYPES.values(), None}


def test_every_flag() -> None:
    bits = [1 << bit for bit in range(32)]
    data = b"".join(gpacket(bit_flags=bit) for bit in (*bits, 0, 0xFFFFFFFF, 0xA5A5A5A5))
    assert_columns(data)
    found = table_of(data, format=GPACKET, compiled=True, columns=["flags"])["flags"].to_pylist()
    assert found[:34] == [*FLAGS, "", "".join(FLAGS)]


@pytest.mark.parametrize("count", [0, 1, 63, 64, 65, 200])
def test_any_number_of_properties(count: int) -> None:
    entries = [(f"name-{n}", 1 + n % 7, 1) for n in range(count)]
    assert_columns(gpacket(properties=section(*entries)) * 3)


def test_rows_in_any_number() -> None:
    full = gpacket(properties=section(("a", 8, "b")), payload=b"b")
    for count in (*range(1, 20), 511, 512, 513, 1025):
        assert_columns(gpacket() * (count % 9) + full * count + link(7) * (count % 3))


def test_a_link_packet_may_end_the_stream() -> None:
    for data in (link(7), gpacket() + link(7), link(4, b"x" * 19)):
        for at_end in (True, False):
            view, open_again = between_guards(data, at_end=at_end)
            table = table_of(view, format=GPACKET, compiled=True)
            assert_same(table, table_of(data, format=GPACKET, compiled=False))
            open_again()


@pytest.mark.parametrize("compiled", [False, True])
def test_each_column_alone_is_that_of_the_full_read(compiled: bool) -> None:
    data = damaged_stream("gpacket", Random(3), 200)
    whole = table_of(data, format=GPACKET, compiled=False)
    for name in NAMES:
        alone = table_of(data, format=GPACKET, compiled=compiled, columns=[name])
        assert alone[name].equals(whole[name]), name


def test_dropping_what_is_malformed_does_not_depend_on_the_columns() -> None:
    read = partial(
        table_of, damaged_stream("gpacket", Random(4), 200), format=GPACKET, max_packet_bytes=4096
    )
    whole = read(compiled=False)
    good = whole.filter(pc.equal(whole["status"], "ok")).combine_chunks()
    assert 20 < good.num_rows < whole.num_rows
    for names in (["version"], ["payload"], ["offset"]):
        kept = read(compiled=True, columns=names, mode="dropmalformed")
        assert kept.equals(good.select(names)), names


def test_without_a_compiler_the_same_functions_give_the_same_values() -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "from random import Random\n"
            "from tests.mutations import damaged_stream\n"
            "from tests.formats.gpacket.test_columns import assert_columns\n"
            "assert_columns(damaged_stream('gpacket', Random(7), 80))\n",
        ],
        cwd=Path(__file__).resolve().parents[3],
        env={**os.environ, "NUMBA_DISABLE_JIT": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
