"""The pieces of kernels against obvious Python, at every alignment and at the end of memory."""

from __future__ import annotations

import ctypes
import itertools
import mmap
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wireyard import memory
from wireyard.accelerate import COMPILED, kernel
from wireyard.arrays import Bytes, Ints, ReadOnly
from wireyard.memory import BLOCK, SLACK

# Each load with its width and whether its result is signed.
LOADS = [
    ("load_u8", 1, False),
    ("load_i8", 1, True),
    ("load_u16", 2, False),
    ("load_i16", 2, True),
    ("load_u32", 4, False),
    ("load_i32", 4, True),
    ("load_i64", 8, True),
]


@kernel
def load_all(data: ReadOnly[Bytes], at: int, found: Ints) -> int:
    found[0] = memory.load_u8(data, at)
    found[1] = memory.load_i8(data, at)
    if at + 2 <= data.size:
        found[2] = memory.load_u16(data, at)
        found[3] = memory.load_i16(data, at)
    if at + 4 <= data.size:
        found[4] = memory.load_u32(data, at)
        found[5] = memory.load_i32(data, at)
    if at + 8 <= data.size:
        found[6] = memory.load_i64(data, at)
        found[7] = memory.load_word(data, at)
    return 0


@kernel
def store_word(out: Bytes, at: int, word: int) -> int:
    memory.store_word(out, at, word)
    return 0


@kernel
def copy_bytes(out: Bytes, out_at: int, data: ReadOnly[Bytes], at: int, size: int) -> int:
    memory.copy_bytes(out, out_at, data, at, size)
    return 0


@kernel
def copy_text(out: Bytes, out_at: int, data: ReadOnly[Bytes], at: int, size: int, stop: int) -> int:
    return memory.copy_text(out, out_at, data, at, size, stop)


@kernel
def copy_long(out: Bytes, out_at: int, data: ReadOnly[Bytes], at: int, size: int, stop: int) -> int:
    memory.copy_long(out, out_at, data, at, size, stop)
    return 0


@kernel
def judge(data: ReadOnly[Bytes], stops: Ints, verdicts: Ints) -> int:
    at = 0
    for item in range(stops.size):
        verdicts[item] = memory.valid_utf8(data, at, stops[item] - at)
        at = stops[item]
    return 0


@kernel
def write_longs(values: Ints, out: Bytes, stops: Ints) -> int:
    at = 0
    for item in range(values.size):
        at = memory.put_i64(out, at, values[item])
        stops[item] = at
    return at


@kernel
def take_apart(values: Ints, widths: Ints, zeros: Ints) -> int:
    for item in range(values.size):
        widths[item] = memory.bit_length(values[item])
        zeros[item] = memory.count_zero_bytes(values[item])
    return 0


@kernel
def turn_bits(data: ReadOnly[Bytes], out: Bytes, places: Ints) -> int:
    for place in range(8):
        out[place] = memory.bit_column(memory.load_word(data, 0), place)
        places[place] = memory.place_of(places[place])
    return 0


def of(data: bytes) -> Bytes:
    return np.frombuffer(data, np.uint8)


def noise(size: int, seed: int = 1) -> bytes:
    return random.Random(seed).randbytes(size)


# --- loads, stores, moves -------------------------------------------------------------------


@pytest.mark.parametrize("data", [noise(40), b"\xff" * 40, b"\x80" + bytes(39), b"\x7f\xff" * 20])
def test_loads_at_every_alignment(data: bytes) -> None:
    for at in range(len(data)):
        found = np.zeros(8, np.int64)
        load_all(of(data), at, found)
        for (name, width, signed), value in zip(LOADS, found.tolist(), strict=False):
            if at + width <= len(data):
                expected = int.from_bytes(data[at : at + width], "big", signed=signed)
                assert value == expected, (name, at)
        if at + 8 <= len(data):
            assert found[7] == int.from_bytes(data[at : at + 8], "little", signed=True)


def test_store_word_changes_eight_bytes() -> None:
    for at in range(9):
        out = np.full(24, 0xEE, np.uint8)
        store_word(out, at, -0x0102030405060708)
        expected = bytearray(b"\xee" * 24)
        expected[at : at + 8] = (-0x0102030405060708).to_bytes(8, "little", signed=True)
        assert out.tobytes() == bytes(expected)


def test_copy_bytes_moves_exactly_what_is_asked() -> None:
    data = noise(60)
    for at, out_at, size in itertools.product(range(9), range(9), range(41)):
        out = np.full(64, 0xEE, np.uint8)
        copy_bytes(out, out_at, of(data), at, size)
        expected = bytearray(b"\xee" * 64)
        expected[out_at : out_at + size] = data[at : at + size]
        assert out.tobytes() == bytes(expected)


@pytest.mark.parametrize("more", [0, 1, 7, 8, 64])
def test_copy_text_moves_the_text_and_no_more_than_a_block_after_it(more: int) -> None:
    for at, size in itertools.product(range(9), range(3 * BLOCK)):
        # Nothing outside the text is ASCII, so a flag taken from there would show.
        data = b"\x80" * at + b"a" * size + b"\xff" * more
        out = np.full(3 + size + SLACK, 0xEE, np.uint8)
        assert copy_text(out, 3, of(data), at, size, len(data)) == 0
        assert out[:3].tobytes() == b"\xee" * 3
        assert out[3 : 3 + size].tobytes() == b"a" * size
        assert set(out[3 + size + BLOCK :].tolist()) == {0xEE}


@pytest.mark.parametrize("more", [0, 1, BLOCK, 2 * BLOCK, SLACK + 1])
def test_copy_long_moves_the_bytes_and_not_beyond_the_slack(more: int) -> None:
    for at, size in itertools.product(range(3), range(5 * BLOCK)):
        data = bytes(place % 251 for place in range(at + size + more))
        out = np.full(3 + size + SLACK + 8, 0xEE, np.uint8)
        copy_long(out, 3, of(data), at, size, len(data))
        assert out[:3].tobytes() == b"\xee" * 3
        assert out[3 : 3 + size].tobytes() == data[at : at + size]
        assert set(out[3 + size + SLACK :].tolist()) == {0xEE}


def test_copy_text_sees_every_byte_that_is_not_ascii() -> None:
    for size, more in itertools.product(range(1, 2 * BLOCK), (0, BLOCK)):
        for place in range(size):
            data = bytearray(b"\x7f" * size + b"z" * more)
            data[place] = 0x80
            out = np.zeros(size + SLACK, np.uint8)
            assert copy_text(out, 0, of(bytes(data)), 0, size, len(data)) != 0, (size, place)
            assert out[:size].tobytes() == data[:size]


# --- UTF-8 ----------------------------------------------------------------------------------


def test_bits_of_eight_bytes_become_bytes() -> None:
    for seed in range(200):
        data = noise(8, seed)
        out, places = np.zeros(8, np.uint8), np.arange(8) << 60 & (1 << 63) - 1
        expected = places.tolist()
        turn_bits(of(data), out, places)
        square = np.unpackbits(of(data).reshape(8, 1), axis=1, bitorder="little")
        assert out.tolist() == np.packbits(square.T, axis=1, bitorder="little").ravel().tolist()
        assert places.tolist() == expected


def verdicts_on(texts: list[bytes]) -> list[bool]:
    stops = np.cumsum([len(text) for text in texts], dtype=np.int64)
    verdicts = np.full(len(texts), -1, np.int64)
    judge(of(b"".join(texts)), stops, verdicts)
    return [bool(verdict) for verdict in verdicts]


def python_accepts(text: bytes) -> bool:
    try:
        text.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def check_verdicts(texts: list[bytes]) -> None:
    wrong = [
        text
        for text, verdict in zip(texts, verdicts_on(texts), strict=True)
        if verdict is not python_accepts(text)
    ]
    assert not wrong, wrong[:5]


def test_every_one_and_two_bytes() -> None:
    check_verdicts([b"", *(bytes([one]) for one in range(256))])
    check_verdicts([bytes(pair) for pair in itertools.product(range(256), repeat=2)])


FIRST = bytes.fromhex("41 7f 80 bf c0 c1 c2 df e0 e1 ec ed ee ef f0 f1 f3 f4 f5 f7 f8 ff")
NEXT = bytes.fromhex("00 41 7f 80 8f 90 9f a0 bf c0 c2 e0 ff")


@pytest.mark.parametrize("width", [3, 4])
def test_three_and_four_bytes_around_every_boundary(width: int) -> None:
    check_verdicts([bytes(text) for text in itertools.product(FIRST, *[NEXT] * (width - 1))])


def test_every_code_point() -> None:
    points = range(0, 0x110000, 1 if COMPILED else 97)
    texts = [chr(point).encode("utf-8", "surrogatepass") for point in points]
    surrogates = [0xD800 <= point <= 0xDFFF for point in points]
    assert verdicts_on(texts) == [not surrogate for surrogate in surrogates]


def test_a_fault_at_any_place_in_a_text_of_any_length() -> None:
    faults = [b"\x80", b"\xc3", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xc0\x80"]
    whole = [b"", "é".encode(), "€".encode(), "😀".encode()]
    texts = [
        b"a" * before + middle + b"b" * after
        for middle in faults + whole
        for before, after in itertools.product(range(20), range(20))
    ]
    check_verdicts(texts)


@given(st.lists(st.text(max_size=30), min_size=1), st.randoms(use_true_random=False))
def test_texts_with_one_byte_changed(texts: list[str], rng: random.Random) -> None:
    changed = []
    for text in texts:
        data = bytearray(text.encode())
        if data:
            data[rng.randrange(len(data))] = rng.randrange(256)
        changed.append(bytes(data))
    check_verdicts([text.encode() for text in texts])
    check_verdicts(changed)


# --- numbers --------------------------------------------------------------------------------


def written(values: list[int]) -> list[str]:
    out = np.zeros(20 * len(values) + SLACK, np.uint8)
    stops = np.zeros(len(values), np.int64)
    write_longs(np.array(values, np.int64), out, stops)
    text = out.tobytes().decode()
    return [text[a:b] for a, b in itertools.pairwise([0, *stops.tolist()])]


def in_range(values: set[int]) -> list[int]:
    return sorted(value for value in values if -(2**63) <= value < 2**63)


def test_integers_at_every_boundary() -> None:
    powers = [base**power for base in (2, 10) for power in range(64)]
    near = {sign * power + by for sign in (-1, 1) for power in powers for by in (-1, 0, 1)}
    values = in_range(near | set(range(-1000, 1001)))
    assert {-(2**63), 2**63 - 1} <= set(values)
    assert written(values) == [str(value) for value in values]


def test_random_integers_of_every_length() -> None:
    rng = random.Random(2)
    values = [
        sign * rng.getrandbits(bits)
        for bits in range(1, 64)
        for sign in (-1, 1)
        for _ in range(1000 if COMPILED else 10)
    ]
    assert written(values) == [str(value) for value in values]


def test_lengths_of_words() -> None:
    values = [1 << bit for bit in range(63)] + [(1 << bit) - 1 for bit in range(64)]
    widths, zeros = np.zeros((2, len(values)), np.int64)
    take_apart(np.array(values, np.int64), widths, zeros)
    assert widths.tolist() == [value.bit_length() for value in values]
    texts = [value.to_bytes(8, "little") for value in values]
    assert zeros.tolist() == [8 - len(text.lstrip(b"\0")) for text in texts]


# --- the very end of memory -----------------------------------------------------------------


def before_a_wall() -> Bytes:
    """Return a page behind which no byte can be read: trying to ends the process."""
    pages = mmap.mmap(-1, 2 * mmap.PAGESIZE)
    whole = np.frombuffer(pages, np.uint8)
    wall = ctypes.c_void_p(whole.ctypes.data + mmap.PAGESIZE)
    libc = ctypes.CDLL(None, use_errno=True)
    no_access = 0
    assert libc.mprotect(wall, ctypes.c_size_t(mmap.PAGESIZE), no_access) == 0, ctypes.get_errno()
    return whole[: mmap.PAGESIZE]


def read_up_to_the_wall() -> None:
    page = before_a_wall()
    size = page.size
    found = np.zeros(8, np.int64)
    out = np.zeros(200, np.uint8)
    texts = ["a", "é", "€", "😀"]
    for room in range(2 * BLOCK + 1):
        if room:
            load_all(page, size - room, found)
        copy_bytes(out, 0, page, size - room, room)
        for text in texts:
            data = (text * (2 * BLOCK + 1)).encode()
            for filling in (data[:room], data[len(data) - room :]):
                page[size - room :] = of(filling)
                copy_text(out, 0, page, size - room, room, size)
                assert out[:room].tobytes() == filling
                copy_long(out, 0, page, size - room, room, size)
                assert out[:room].tobytes() == filling
                stops = np.array([size - room, size], np.int64)
                verdicts = np.zeros(2, np.int64)
                page[: size - room] = 0x41
                judge(page, stops, verdicts)
                assert verdicts.tolist() == [1, python_accepts(filling)]


def read_over_the_wall() -> None:
    # Where `stop` is not the end, the last block of the text is read whole.
    page = before_a_wall()
    copy_text(np.zeros(200, np.uint8), 0, page, page.size - 9, 9, page.size + BLOCK)


def run_apart(action: Callable[[], None]) -> int:
    """Run one of this file's functions in its own process, which it may kill."""
    code = f"from tests.test_memory import {action.__name__} as action; action()"
    root = Path(__file__).resolve().parent.parent
    return subprocess.run([sys.executable, "-c", code], cwd=root, check=False).returncode


@pytest.mark.skipif(sys.platform == "win32", reason="needs mprotect")
def test_nothing_is_read_behind_the_end() -> None:
    assert run_apart(read_up_to_the_wall) == 0


@pytest.mark.skipif(sys.platform == "win32", reason="needs mprotect")
@pytest.mark.skipif(not COMPILED, reason="plain Python reads no memory it does not own")
def test_reading_behind_the_end_would_be_noticed() -> None:
    assert -run_apart(read_over_the_wall) in (signal.SIGSEGV, signal.SIGBUS)
