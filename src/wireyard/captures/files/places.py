"""One address space over several files, so that a position in any of them is one number."""

from __future__ import annotations

from itertools import pairwise
from typing import Final

import numpy as np

from wireyard.arrays import Bytes, Ints
from wireyard.captures.connections.merge_kernels import copy_runs

_WHOLE_BYTES: Final = 1 << 20
"""Least size of a part that is moved whole, so that there are never many parts."""


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

    def move(self, starts: Ints, lengths: Ints, places: Places) -> Ints:
        """Move runs, each in one part, to other places; return their addresses there.

        A large part of which more than half is moved is not copied.
        """
        if not len(starts):
            return starts
        sizes = np.diff(self._bases, append=self.size)
        parts = np.searchsorted(self._bases, starts, "right") - 1
        used = np.bincount(parts, lengths, len(sizes))
        whole = (sizes >= _WHOLE_BYTES) & (2 * used > sizes)
        shifts = np.zeros(len(sizes), np.int64)
        for part in np.flatnonzero(whole).tolist():
            shifts[part] = places.append(self._parts[part]) - self._bases[part]
        moved: Ints = starts + shifts[parts]
        copied = np.flatnonzero(~whole[parts])
        sizes = lengths[copied]
        data = np.empty(int(sizes.sum()), np.uint8)
        self.copy(starts[copied], sizes, data)
        moved[copied] = places.append(data) + np.cumsum(sizes) - sizes
        return moved
