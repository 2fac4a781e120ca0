"""Compile every kernel ahead of time: ``python -m wireyard.warm``.

Kernels compile when they are first called and are kept on disk. An installation that does this
once never lets a user wait for a compiler.
"""

from __future__ import annotations

import struct
import time
from importlib import import_module

import numpy as np

from wireyard.floor import Floor
from wireyard.formats import get_format, names
from wireyard.formats.base import Format

__all__ = ["warm"]


def warm(format: Format) -> float:
    """Call every kernel of a format once; return the seconds that took.

    The stream is one header of zeros: nothing a format would take for a packet, but enough for
    each kernel to run. Without any packet there is no room for text, and what makes some runs too.
    """
    start = time.perf_counter()
    fast = import_module(format.fast_path)
    size = format.header_bytes
    data = np.zeros(size, np.uint8)
    fast.scan_frames(data, 0, size, size, format.max_packet_bytes, format.context)
    starts, sizes = np.zeros(1, np.int64), np.full(1, size, np.int64)
    decoder = fast.ColumnDecoder(format.columns, True, {})
    with Floor().held():
        for rows in (1, 0):
            some, zeros = sizes[:rows], starts[:rows]
            decoder.decode(data, size, zeros, some, zeros, zeros)
    return time.perf_counter() - start


def warm_captures() -> float:
    """Call the kernels of captures once, on one TCP segment; return the seconds that took."""
    from wireyard.captures.read import read_capture

    start = time.perf_counter()
    segment = struct.pack(">HHIIHHHH", 1, 2, 0, 0, 0x5010, 0, 0, 0) + b"x"
    packet = struct.pack(">BBHHHBBH8x", 0x45, 0, 20 + len(segment), 0, 0, 64, 6, 0) + segment
    frame = bytes(12) + b"\x08\x00" + packet
    head = struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1)
    record = struct.pack("<IIII", 0, 0, len(frame), len(frame)) + frame
    capture = read_capture(head + record)
    assert [stream.size for stream in capture.streams] == [1]
    return time.perf_counter() - start


def main() -> None:
    """Warm every format, and captures, and say so."""
    from wireyard.accelerate import COMPILED, set_notice

    if not COMPILED:
        print("NUMBA_DISABLE_JIT is set: there is nothing to compile")
        return
    set_notice(lambda text: None)
    for name in names():
        print(f"{name}: compiling the kernels ..", end=" ", flush=True)
        print(f"ready after {warm(get_format(name)):.1f} s")
    print("captures: compiling the kernels ..", end=" ", flush=True)
    print(f"ready after {warm_captures():.1f} s")


if __name__ == "__main__":
    main()
