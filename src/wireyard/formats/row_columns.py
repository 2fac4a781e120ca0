"""What rows of every format have, among the compiled columns of each: where they are, and more.

Only of packets that are as they should be; the scalar reader's rows bring their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from wireyard.arena import Arena, BatchLayout, Shape, Source
from wireyard.layout import Column
from wireyard.schema import schema_of

__all__ = ["fill_places", "lay_out"]

Ints = np.ndarray[tuple[int], np.dtype[np.int64]]

_PLACES: Final = ("offset", "length")


def lay_out(
    columns: Sequence[Column],
    shapes: Mapping[str, Shape],
    sources: Mapping[str, Sequence[Source]],
    repeated: Mapping[str, str],
) -> BatchLayout:
    """Return how batches of some columns are laid out; a format's own parts are those it says."""
    wanted = [column.name for column in columns if column.name in _PLACES]
    return BatchLayout(
        schema_of(columns),
        {**shapes, **{name: Shape(np.int64, 64) for name in wanted}},
        {**sources, **{name: [None, (name, 0)] for name in wanted}},
        repeated,
    )


def fill_places(arena: Arena, offsets: Ints, lengths: Ints) -> None:
    """Fill in where rows begin in the stream, and how many bytes each has."""
    for name, values in zip(_PLACES, (offsets, lengths), strict=True):
        if (array := arena.arrays.get(name)) is not None:
            array[0, : len(values)] = values
