"""Bytes that end, and begin, at pages nobody may touch: one byte too far ends the process.

Run as a program it reads the streams made from a seed there, by the compiled columns.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from collections.abc import Callable
from random import Random
from typing import Any

from tests.make import random_packet
from tests.mutations import damaged_stream, mutate_packet, subject_of
from tests.readings import table_of

__all__ = ["between_guards"]

_PROT_NONE, _PROT_WRITE = 0, mmap.PROT_READ | mmap.PROT_WRITE
_PAGE = mmap.PAGESIZE


def between_guards(data: bytes, *, at_end: bool) -> tuple[memoryview, Callable[[], None]]:
    """Return a copy of `data` that touches a forbidden page, and what gives the memory back."""
    libc = ctypes.CDLL(None, use_errno=True)
    inner = -(-len(data) // _PAGE) * _PAGE
    area = mmap.mmap(-1, inner + 2 * _PAGE)
    first = ctypes.addressof(ctypes.c_char.from_buffer(area))
    for page in (first, first + _PAGE + inner):
        if libc.mprotect(ctypes.c_void_p(page), _PAGE, _PROT_NONE):
            raise OSError(ctypes.get_errno(), "mprotect")
    start = _PAGE + (inner - len(data) if at_end else 0)
    area[start : start + len(data)] = data

    def open_again() -> None:
        libc.mprotect(ctypes.c_void_p(first), inner + 2 * _PAGE, _PROT_WRITE)

    return memoryview(area)[start : start + len(data)], open_again


def read_all(data: bytes, rng: Random) -> None:
    """Read a stream at both ends of its memory, whole and cut to every kind of end."""
    limit = rng.choice((None, 1 << 12))
    expected = table_of(data, compiled=False, max_packet_bytes=limit)
    for at_end in (True, False):
        view, open_again = between_guards(data, at_end=at_end)
        table: Any = table_of(view, compiled=True, max_packet_bytes=limit)
        assert table.equals(expected)
        open_again()


def main(first: int, count: int) -> None:
    """Read `count` streams from seed `first` on."""
    jmq = subject_of("jmq")
    for seed in range(first, first + count):
        rng = Random(seed)
        if seed % 2:
            data = damaged_stream("jmq", rng, rng.randint(1, 200))
        else:
            data = b"".join(random_packet(rng) for _ in range(rng.randint(1, 200)))
        read_all(data, rng)
        # Only the last packet of a stream can be read over its end: try many.
        for _ in range(20):
            packet = random_packet(rng)
            read_all(mutate_packet(packet, rng, jmq) if seed % 2 else packet, rng)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
