"""RMP messages as Arrow columns.

Compiled kernels decode the messages of well-formed packets; the scalar reader decodes those that
they reject, so that faults are described by it alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from wireyard.arena import Arena, Shape, Source
from wireyard.arrays import Bools, Bytes, Grid32, Ints
from wireyard.formats.rmp import kernels
from wireyard.formats.rmp.layout import FOREIGN, LAYERS, PREFIX_BYTES, SEGMENT, TYPING
from wireyard.formats.row_columns import batch_layout, fill_positions
from wireyard.layout import Column
from wireyard.memory import SLACK

_LEAST_BYTES = PREFIX_BYTES + TYPING.size
"""Smallest message: its own length, or that of the packet before the first, and a typing word."""
_VALID = {
    "reply_requested": "layer",
    "more_follows": "layer",
    "reply_source": "reply_message_number",
    **{name: "message_number" for name in SEGMENT.names},
}
"""The validity bitmap of columns that share that of another column."""
_NAMES = pa.array(LAYERS.values(), pa.string())
_TYPING, _LAYER = (kernels.I32_FIELDS.index(name) for name in ("typing", "layer"))
_SHAPES = {
    "i32": Shape(np.int32, 32, len(kernels.I32_FIELDS)),
    "packet_offset": Shape(np.int64, 64),
    "data_size": Shape(np.int64, 64),
    "bits": Shape(np.uint8, 1, len(kernels.BITS)),
    "source_offsets": Shape(np.int32, 32, more=4),
    "sources": Shape(np.uint8, 8 * kernels.SOURCE_BYTES, more=SLACK),
    "body_offsets": Shape(np.int32, 32, more=4),
    "rejected": Shape(np.uint8, 8),
}


def _sources() -> dict[str, list[Source]]:
    """Return the buffers of the columns, without `layer_name`, which is looked up."""
    bits = {name: ("bits", place) for place, name in enumerate(kernels.BITS)}
    values: dict[str, list[Source]] = {
        **{name: [("i32", place)] for place, name in enumerate(kernels.I32_FIELDS)},
        **{name: [bits[name]] for name in ("foreign", "reply_requested", "more_follows")},
        **{name: [(name, 0)] for name in ("packet_offset", "data_size")},
        "reply_source": [("source_offsets", 0), ("sources", 0)],
        "data": [("body_offsets", 0), ("bodies", 0)],
    }
    valid = {name: _VALID.get(name, name) for name in values if name != "foreign"}
    return {name: [bits.get(valid.get(name, "")), *buffers] for name, buffers in values.items()}


_SOURCES = _sources()
_NOTHING = np.empty(0, np.uint8)
"""Stands for the array of a column that is not wanted."""


def scan_frames(
    data: Bytes, start: int, stop: int, last_start: int, max_packet_bytes: int, context: int
) -> tuple[Ints, Ints, Ints]:
    """Return starts, sizes and contexts of the messages that follow each other from `start`.

    Stops before an incomplete packet, before one that breaks a rule, and before a message that
    begins at or after `last_start`. One context more than there are messages is returned: that of
    the bytes after the last.
    """
    most = max((min(stop, last_start) - start) // _LEAST_BYTES + 2, 1)
    starts, sizes = np.empty(most, np.int64), np.empty(most, np.int64)
    contexts = np.empty(most + 1, np.int64)
    count = kernels.scan_frames(
        data, start, stop, last_start, max_packet_bytes, context, starts, sizes, contexts
    )
    return starts[:count], sizes[:count], contexts[: count + 1]


class ColumnDecoder:
    """Decode messages into chosen columns.

    `columns` are the wanted ones in order, of the format and of every format. `validate` changes
    nothing: packets are always checked. `repeated` has the text of columns with the same text in
    every row.
    """

    def __init__(
        self, columns: Sequence[Column], validate: bool, repeated: Mapping[str, str]
    ) -> None:
        self._layout = batch_layout(columns, _SHAPES, _SOURCES, repeated)
        names = [column.name for column in columns]
        self._wants_sources, self._wants_data = "reply_source" in names, "data" in names
        self._name_place = names.index("layer_name") if "layer_name" in names else None

    def decode(
        self, data: Bytes, stop: int, starts: Ints, sizes: Ints, contexts: Ints, offsets: Ints
    ) -> tuple[pa.RecordBatch, Ints]:
        """Decode messages at `starts` of `data`, which are at `offsets` of the stream.

        Return a batch with a row per message, and the rows that the scalar reader has to decode:
        their values in the batch are undefined.
        """
        rows, taken = len(starts), int(sizes.sum())
        arena = Arena(self._layout, rows, taken, taken if self._wants_data else 0)
        a = arena.arrays
        a["bits"].fill(0)
        for name in ("source_offsets", "body_offsets"):
            a[name][:, 0] = 0
        rejected = a["rejected"][0, :rows]
        columns = kernels.Columns(
            a["i32"],
            a["packet_offset"][0],
            a["data_size"][0],
            a["bits"],
            a["source_offsets"][0],
            a["sources"][0] if self._wants_sources else _NOTHING,
            a["body_offsets"][0],
            arena.rest if self._wants_data else _NOTHING,
            rejected,
        )
        kernels.fill_rows(data, kernels.Frames(starts, sizes, contexts), columns)
        fill_positions(arena, offsets, sizes)
        a["packet_offset"][0, :rows] += offsets
        if self._wants_data:
            arena.claim("bodies", int(a["body_offsets"][0, rows]))
        batch = arena.batch()
        if self._name_place is not None:
            names = _layer_names(a["i32"][:, :rows], rejected != 0)
            field = self._layout.schema.field(self._name_place)
            batch = batch.set_column(self._name_place, field, names)
        return batch, np.flatnonzero(rejected)


def _layer_names(i32: Grid32, rejected: Bools) -> pa.Array:
    """Return the names of the layers, null for rejected rows."""
    unnamed = (i32[_TYPING] >= FOREIGN) | (i32[_LAYER] >= len(_NAMES)) | rejected
    return _NAMES.take(pa.array(np.where(unnamed, 0, i32[_LAYER]), mask=unnamed))
