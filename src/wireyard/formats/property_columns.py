"""Text that kernels write where its size is not known before, and the properties made of it."""

from __future__ import annotations

from threading import local

import numpy as np
import pyarrow as pa

from wireyard.arena import copied
from wireyard.formats import property_kernels as kernels
from wireyard.memory import SLACK

__all__ = ["Scratch", "Texts"]

Ints = np.ndarray[tuple[int], np.dtype[np.int64]]
Bytes = np.ndarray[tuple[int], np.dtype[np.uint8]]

_MIN_PROPERTY_BYTES = 6
_SCRATCH_STEP = 8 << 20
_MOST_KEPT = 16 << 20
_ALIGNMENT = 64


class Scratch:
    """Where a thread's kernels put text whose size is not known before.

    It stays with the thread: touching that much memory anew for every read would cost as much as
    the reading. Regions keep their places, so what is touched once stays what is touched.
    """

    _kept = local()

    def __init__(self, taken: int, regions: int) -> None:
        self.taken = taken
        self.capacity = kernels.TEXT_BYTES_PER_BYTE * taken + SLACK
        self.text: Bytes = np.empty(self.capacity * regions, np.uint8)
        self.entry_offsets = np.empty((3, taken // _MIN_PROPERTY_BYTES + 1), np.int32)
        self.entry_offsets[:, 0] = 0
        self.hashes = np.empty(kernels.MAX_UNIQUE_NAMES, np.int64)

    @classmethod
    def for_bytes(cls, taken: int, regions: int) -> Scratch:
        """Return the thread's scratch for `taken` bytes of packets; one for a huge packet goes."""
        name = f"of_{regions}"
        kept: Scratch | None = getattr(cls._kept, name, None)
        if kept is None or kept.taken < taken:
            kept = cls(taken + -taken % _SCRATCH_STEP, regions)
            if kept.taken <= _MOST_KEPT:
                setattr(cls._kept, name, kept)
        return kept


class Texts:
    """The text of one batch, copied out of scratch into one buffer of exact size.

    Parameters
    ----------
    scratch
        Where it is.
    used
        Bytes of each region.
    """

    def __init__(self, scratch: Scratch, used: Ints) -> None:
        self._scratch = scratch
        self._used = used
        ends = np.cumsum(used + -used % _ALIGNMENT)
        self._places = ends - (used + -used % _ALIGNMENT)
        self._buffer = pa.allocate_buffer(int(ends[-1]))
        out = np.frombuffer(self._buffer, np.uint8)
        kernels.gather_texts(scratch.text, scratch.capacity, used, self._places, out)

    def buffer(self, region: int) -> pa.Buffer:
        """Return the bytes of a region."""
        return self._buffer.slice(int(self._places[region]), int(self._used[region]))

    def properties(
        self,
        kind: pa.MapType,
        region: int,
        validity: pa.Buffer,
        map_offsets: pa.Buffer,
        rows: int,
        entries: int,
    ) -> pa.Array:
        """Return the property column whose names, types and values are in regions from `region`."""
        names, types, values = (
            pa.StringArray.from_buffers(
                entries,
                copied(self._scratch.entry_offsets[place, : entries + 1]),
                self.buffer(region + place),
            )
            for place in range(3)
        )
        pairs = pa.StructArray.from_arrays([types, values], fields=list(kind.item_type))
        keyed = pa.StructArray.from_arrays([names, pairs], fields=[kind.key_field, kind.item_field])
        return pa.Array.from_buffers(kind, rows, [validity, map_offsets], children=[keyed])
