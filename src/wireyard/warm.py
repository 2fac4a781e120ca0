"""Compile every kernel ahead of time: ``python -m wireyard.warm``.

Kernels compile when they are first called and are kept on disk. An installation that does this
once never lets a user wait for a compiler.
"""

from __future__ import annotations

import time
from importlib import import_module

import numpy as np

from wireyard.formats import get_format, names
from wireyard.formats.base import Format

__all__ = ["warm"]


def warm(format: Format) -> float:
    """Call every kernel of a format once; return the seconds that took.

    The stream is one header of zeros: nothing a format would take for a packet, but enough for
    each kernel to run.
    """
    start = time.perf_counter()
    fast = import_module(format.fast_path)
    size = format.header_bytes
    data = np.zeros(size, np.uint8)
    fast.scan_frames(data, 0, size, size, format.max_packet_bytes, format.context)
    starts, sizes = np.zeros(1, np.int64), np.full(1, size, np.int64)
    fast.ColumnDecoder(format.columns, True).decode(data, size, starts, sizes, starts)
    return time.perf_counter() - start


def main() -> None:
    """Warm every format, and say so."""
    from wireyard.accelerate import COMPILED, set_notice

    if not COMPILED:
        print("NUMBA_DISABLE_JIT is set: there is nothing to compile")
        return
    set_notice(lambda text: None)
    for name in names():
        print(f"{name}: compiling the kernels ..", end=" ", flush=True)
        print(f"ready after {warm(get_format(name)):.1f} s")


if __name__ == "__main__":
    main()
