"""The columns that rows of every format share, in the batches of compiled decoders.

They cover the rows of well-formed packets; rows of the scalar reader have these values themselves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from wireyard.arena import Arena, BatchLayout, Shape, Source
from wireyard.arrays import Ints
from wireyard.layout import Column
from wireyard.schema import schema_of

_POSITIONS: Final = ("offset", "length")


def batch_layout(
    columns: Sequence[Column],
    shapes: Mapping[str, Shape],
    sources: Mapping[str, Sequence[Source]],
    repeated: Mapping[str, str],
) -> BatchLayout:
    """Return the layout of batches of these columns.

    `shapes`, `sources` and `repeated` are those of the format's own columns, as `BatchLayout` takes
    them; offset and length of the rows are added here.
    """
    wanted = [column.name for column in columns if column.name in _POSITIONS]
    return BatchLayout(
        schema_of(columns),
        {**shapes, **{name: Shape(np.int64, 64) for name in wanted}},
        {**sources, **{name: [None, (name, 0)] for name in wanted}},
        repeated,
    )


def fill_positions(arena: Arena, offsets: Ints, lengths: Ints) -> None:
    """Fill the columns offset and length: each row's position in the stream, and its bytes."""
    for name, values in zip(_POSITIONS, (offsets, lengths), strict=True):
        if (array := arena.arrays.get(name)) is not None:
            array[0, : len(values)] = values
