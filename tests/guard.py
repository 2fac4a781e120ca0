"""Bytes that end, and begin, at pages nobody may touch: one byte too far ends the process.

Run as a program it reads a format's streams made from a seed there, by the compiled columns.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from collections.abc import Callable
from random import Random

from tests.mutations import damaged_streams, mutate_packet, subject_of
from tests.readings import table_of
from wireyard.formats.base import Format

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


def read_all(data: bytes, rng: Random, format: Format) -> None:
    """Read a stream at both ends of its memory, whole and cut to every kind of end."""
    limit = rng.choice((None, 1 << 12))
    expected = table_of(data, compiled=False, format=format, max_packet_bytes=limit)
    for at_end in (True, False):
        view, open_again = between_guards(data, at_end=at_end)
        table = table_of(view, compiled=True, format=format, max_packet_bytes=limit)
        assert table.equals(expected)
        open_again()


def main(name: str, first: int, count: int) -> None:
    """Read `count` cases of a format from seed `first` on."""
    subject = subject_of(name)
    corpus = subject.corpus(None)
    for seed in range(first, first + count):
        rng = Random(seed)
        subject = subject.read_as(rng.choice(subject.labels))
        packets = rng.randint(1, 200)
        if seed % 2:
            streams = damaged_streams(subject, corpus, rng, packets)
        else:
            streams = [b"".join(subject.packets(subject, corpus, rng, packets))]
        # Only the last packet of a stream can be read over its end: try many.
        some = subject.packets(subject, corpus, rng, 20)
        streams += [mutate_packet(one, rng, subject) if seed % 2 else one for one in some]
        for data in streams:
            read_all(data, rng, subject.format)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
