"""One address space over several files, so that a position in any of them is one number."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from wireyard.arrays import Bytes, Ints
from wireyard.captures.connections.merge_kernels import copy_runs


class Places:
    """The bytes of files and of reassembled datagrams, at consecutive addresses."""

    def __init__(self) -> None:
        self._parts: list[Bytes] = []
        self._bases: Ints = np.empty(0, np.int64)
        self.size = 0

    def append(self, data: Bytes) -> int:
        """Add bytes; return their address."""
        base = self.size
        self._parts.append(data)
        self._bases = np.append(self._bases, base)
        self.size += len(data)
        return base

    def view(self, start: int, length: int) -> Bytes:
        """Return the bytes of a range that is in one part."""
        part = int(np.searchsorted(self._bases, start, "right")) - 1
        begin = start - int(self._bases[part])
        return self._parts[part][begin : begin + length]

    def copy(self, starts: Ints, lengths: Ints, out: Bytes, skip: int = 0) -> None:
        """Copy runs, each in one part, one after the other until `out` is full.

        Skips the first `skip` bytes of the first run.
        """
        if not len(out):
            return
        if len(starts) == 1:  # a kernel would take longer for one run
            run = self.view(int(starts[0]) + skip, min(int(lengths[0]) - skip, len(out)))
            out[: len(run)] = run
            return
        if len(self._parts) == 1:
            copy_runs(self._parts[0], 0, starts, lengths, skip, out)
            return
        parts = np.searchsorted(self._bases, starts, "right") - 1
        bounds = [0, *(np.flatnonzero(np.diff(parts)) + 1).tolist(), len(parts)]
        at = 0
        for first, stop in pairwise(bounds):
            if first < stop:
                part, runs = int(parts[first]), slice(first, stop)
                base = int(self._bases[part])
                at += copy_runs(
                    self._parts[part], base, starts[runs], lengths[runs], skip, out[at:]
                )
                skip = 0
