"""Compiled columns of framed streams against the scalar reader."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from random import Random

import numpy as np
import pytest

from tests.formats.rmp.make import ALL_FLAGS, MORE, framed, message, random_packet
from tests.formats.rmp.subject import FORMATS
from tests.readings import assert_one_reading, table_of
from wireyard.arrays import Bytes
from wireyard.formats.rmp import columns
from wireyard.formats.rmp.layout import COLUMNS, MAX_PACKET_BYTES
from wireyard.formats.rmp.packet import read_row

ROOT = Path(__file__).resolve().parents[3]
FRAMED_LABELS = ("rmp/framed", "rmp/framed-list-order")


def stream(seed: int, count: int, label: str, damage: float = 0.0) -> bytes:
    """Return framed packets; a part of them with bytes changed or cut off."""
    rng = Random(seed)
    packets = []
    for _ in range(count):
        packet = bytearray(random_packet(rng, list_order="list" in label))
        if rng.random() < damage:
            for _ in range(rng.choice((1, 1, 4))):
                packet[rng.randrange(min(len(packet), 24))] = rng.choice((0, 1, 8, 16, 255))
            if rng.random() < 0.3:
                del packet[rng.randrange(len(packet)) :]
        packets.append(bytes(packet))
    data = framed(*packets)
    return data[: rng.randrange(len(data))] if damage and rng.random() < 0.3 else data


@pytest.mark.parametrize("label", FRAMED_LABELS)
@pytest.mark.parametrize("seed", range(5))
def test_well_formed_streams(seed: int, label: str) -> None:
    table = assert_one_reading(stream(seed, 300, label), Random(seed), format=label)
    assert set(table["status"].to_pylist()) == {"ok"}


@pytest.mark.parametrize("label", FRAMED_LABELS)
@pytest.mark.parametrize("seed", range(20))
def test_damaged_streams(seed: int, label: str) -> None:
    table = assert_one_reading(stream(seed, 120, label, 0.5), Random(seed), format=label)
    assert "malformed" in table["status"].to_pylist()


@pytest.mark.parametrize("label", FRAMED_LABELS)
def test_every_combination_of_flags(label: str) -> None:
    packets = []
    for flags in ALL_FLAGS:
        first = message(flags | 3, b"data", list_order="list" in label)
        packets.append(first + (message(1, b"last") if flags & MORE else b""))
    data = framed(*packets)
    table = assert_one_reading(data, Random(64), format=label)
    assert set(table["status"].to_pylist()) == {"ok"}


def arrays_of(data: bytes) -> Bytes:
    return np.frombuffer(data, np.uint8)


def test_the_compiled_reader_answers_what_is_well_formed() -> None:
    """Not one row of such a stream is left to the scalar reader."""
    data = arrays_of(stream(1, 500, "rmp/framed"))
    context = FORMATS["rmp/framed"].context
    starts, sizes, contexts = columns.scan_frames(
        data, 0, len(data), len(data), MAX_PACKET_BYTES, context
    )
    assert int(starts[-1] + sizes[-1]) == len(data) and contexts[-1] == context
    _, rejected = columns.ColumnDecoder(COLUMNS, True, {}).decode(
        data, len(data), starts, sizes, contexts[:-1], starts
    )
    assert len(starts) > 500 and not len(rejected)


@pytest.mark.parametrize("label", FRAMED_LABELS)
def test_any_window_gives_the_same_frames(label: str) -> None:
    """A scan that is cut anywhere goes on with the context it ended with."""
    rng = Random(2)
    whole = stream(3, 40, label)
    data = arrays_of(whole)
    context = FORMATS[label].context
    every = columns.scan_frames(data, 0, len(data), len(data), MAX_PACKET_BYTES, context)
    for _ in range(200):
        at, before = 0, context
        starts: list[int] = []
        stop = last = 0
        while at < len(data):
            stop = min(len(data), stop + rng.randrange(700))
            last = min(stop, last + rng.randrange(300))
            found, sizes, contexts = columns.scan_frames(
                data, at, stop, last, MAX_PACKET_BYTES, before
            )
            starts += found.tolist()
            if len(found):
                at, before = int(found[-1] + sizes[-1]), int(contexts[-1])
        assert starts == every[0].tolist()


def test_a_packet_over_the_limit_ends_a_scan() -> None:
    data = arrays_of(framed(message(0, b"x"), message(0, b"x" * 90)))
    context = FORMATS["rmp/framed"].context
    for limit, count in ((4, 0), (5, 1), (93, 1), (94, 2)):
        assert len(columns.scan_frames(data, 0, len(data), len(data), limit, context)[0]) == count


def test_frames_that_lie_are_left_to_the_scalar_reader() -> None:
    """Any bytes with any context: what is not rejected is what the scalar reader says."""
    rng = Random(4)
    answered = 0
    for _ in range(2000):
        packet = random_packet(rng)
        data = framed(packet) if rng.random() < 0.5 else packet
        data = data[: rng.choice((len(data), rng.randrange(1, len(data) + 1)))]
        context = FORMATS[rng.choice(list(FORMATS))].context | rng.choice(
            (0, 0, rng.getrandbits(58) & ~3, len(data) << 2 | 1 << 39, len(packet) << 2 | 1 << 39)
        )
        arrays, rejected = columns.ColumnDecoder(COLUMNS, True, {}).decode(
            arrays_of(data),
            len(data),
            np.zeros(1, np.int64),
            np.array([len(data)], np.int64),
            np.array([context], np.int64),
            np.zeros(1, np.int64),
        )
        if not len(rejected):
            row, error = read_row(data, context)
            assert error is None
            answered += 1
            for column, array in zip(COLUMNS, arrays, strict=True):
                assert array[0].as_py() == row.get(column.name), column.name
    assert answered > 200


@pytest.mark.parametrize("compiled", [False, True])
def test_any_columns_are_those_of_the_whole(compiled: bool) -> None:
    data = stream(6, 80, "rmp/framed", 0.3)
    whole = table_of(data, compiled=False, format="rmp/framed")
    for names in (["data"], ["reply_source"], ["packet_offset", "layer"], ["status"], ["foreign"]):
        some = table_of(data, compiled=compiled, format="rmp/framed", columns=names)
        assert some.equals(whole.select(names)), names


def test_without_a_compiler_the_same_functions_give_the_same_values() -> None:
    code = (
        "import os; os.environ['NUMBA_DISABLE_JIT'] = '1'\n"
        "from random import Random\n"
        "from tests.readings import assert_one_reading\n"
        "from tests.formats.rmp.test_columns import stream\n"
        "for label in ('rmp/framed', 'rmp/framed-list-order'):\n"
        "    assert_one_reading(stream(8, 40, label, 0.3), Random(8), format=label)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
