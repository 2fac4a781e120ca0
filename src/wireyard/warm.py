"""Compile every kernel ahead of time: ``python -m wireyard.warm``.

Kernels that are not shipped are compiled at the first call of one, and cached on disk. After this
command, no user waits for that.

``python -m wireyard.warm --ship FOLDER`` writes them to a folder instead, compiled for the baseline
of this architecture, to be part of a wheel (``make wheel``).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path


def main(words: Sequence[str]) -> int:
    """Compile missing kernels and print the progress; return an exit status."""
    from wireyard.accelerate import (
        COMPILED,
        Progress,
        compile_missing,
        core_count,
        find_kernels,
        load_kernels,
    )

    if not COMPILED:
        print("NUMBA_DISABLE_JIT is set: there is nothing to compile")
        return 0
    ship_to = Path(words[1]) if words[:1] == ["--ship"] and len(words) == 2 else None
    if words and ship_to is None:
        print("usage: python -m wireyard.warm [--ship FOLDER]", file=sys.stderr)
        return 2

    shown = set[int]()

    def show(progress: Progress) -> None:
        if progress.total in shown:
            return
        shown.add(progress.total)
        if progress.total == 0:
            print("waiting for another process that compiles the kernels", flush=True)
        else:
            about = f"about {progress.seconds_left:.0f} s on {core_count()} cores"
            print(f"compiling {progress.total} kernels, {about} ..", flush=True)

    start = time.perf_counter()
    if ship_to is not None:
        ship_to.mkdir(parents=True, exist_ok=True)
    try:
        well = compile_missing(show, ship_to)
    except LookupError as error:
        print(f"nothing can be shipped: {error}", file=sys.stderr)
        return 1
    if not well and ship_to is not None:
        print("not every kernel could be compiled", file=sys.stderr)
        return 1
    count = load_kernels() if ship_to is None else len(find_kernels())
    print(f"{count} kernels are ready after {time.perf_counter() - start:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
