"""Large values of bytes, whose text is written in pieces: as a whole it would be twice as large."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

PIECE_BYTES: Final = 1 << 20


def large_value(values: pa.Array) -> memoryview | None:
    """Return the only value of a column of bytes without copying it; None if it is not large."""
    _, offsets, data = values.buffers()
    start, stop = np.frombuffer(offsets, np.int32)[values.offset : values.offset + 2].tolist()
    return memoryview(data)[start:stop] if stop - start > PIECE_BYTES else None


def large_rows(batch: pa.RecordBatch, names: Sequence[str]) -> list[int]:
    """Return the rows that have a large value in one of some columns of bytes."""
    large = np.zeros(batch.num_rows, np.bool_)
    for name in names if batch.nbytes > PIECE_BYTES else ():
        sizes = pc.fill_null(pc.binary_length(batch[name]), 0)
        large |= sizes.to_numpy(zero_copy_only=False) > PIECE_BYTES
    return np.flatnonzero(large).tolist()


def pieces_of(data: memoryview) -> Iterator[memoryview]:
    """Yield bytes in pieces."""
    for start in range(0, len(data), PIECE_BYTES):
        yield data[start : start + PIECE_BYTES]


def hex_pieces(data: memoryview) -> Iterator[bytes]:
    """Yield bytes as hexadecimal, in pieces."""
    return (piece.hex().encode() for piece in pieces_of(data))
