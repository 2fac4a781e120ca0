"""RMP messages as Arrow columns."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pyarrow as pa

from wireyard.arena import Arena, Shape, Source
from wireyard.arrays import Bools, Bytes, Grid32, Ints
from wireyard.formats import columns
from wireyard.formats.rmp import kernels
from wireyard.formats.rmp.layout import FOREIGN, LAYERS, PREFIX_BYTES, SEGMENT, TYPING
from wireyard.memory import SLACK

_LEAST_BYTES = PREFIX_BYTES + TYPING.size
"""Smallest message: its own length, or that of the packet before the first, and a typing word."""
_VALID = {
    **{name: name for name in ("layer", "domain", "client", "reply_message_number")},
    **dict.fromkeys(("reply_requested", "more_follows"), "layer"),
    **dict.fromkeys(SEGMENT.names, "message_number"),
    "reply_source": "reply_message_number",
}
"""The validity bitmap of each column that may be null."""
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


_BITS: dict[str, Source] = {name: ("bits", place) for place, name in enumerate(kernels.BITS)}
_SOURCES = columns.column_sources(
    {"i32": kernels.I32_FIELDS},
    {
        **{name: [_BITS[name]] for name in ("foreign", "reply_requested", "more_follows")},
        **{name: [(name, 0)] for name in ("packet_offset", "data_size")},
        "reply_source": [("source_offsets", 0), ("sources", 0)],
        "data": [("body_offsets", 0), ("bodies", 0)],
    },
    {name: _BITS[valid] for name, valid in _VALID.items()},
)
"""The buffers of the columns, without `layer_name`, which is looked up."""
_NOTHING = np.empty(0, np.uint8)
"""Stands for the array of a column that is not wanted."""


def scan_frames(
    data: Bytes, start: int, stop: int, last_start: int, max_packet_bytes: int, context: int
) -> columns.FoundFrames:
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


class ColumnDecoder(columns.ColumnDecoder):
    """Decodes messages into chosen columns; packets are always checked."""

    shapes, sources = _SHAPES, _SOURCES
    wants: ClassVar = {"sources": 1, "bodies": 2, "names": 4}
    passes: ClassVar = {"reply_source": ("sources",), "data": ("bodies",), "layer_name": ("names",)}

    def decode(
        self, data: Bytes, stop: int, starts: Ints, sizes: Ints, contexts: Ints, offsets: Ints
    ) -> tuple[pa.RecordBatch, Ints]:
        """Decode whole messages; see the base class."""
        rows, taken = len(starts), int(sizes.sum())
        wants_data = "bodies" in self._passes
        arena = Arena(self._layout, rows, taken, taken if wants_data else 0)
        a = arena.arrays
        a["bits"].fill(0)
        for name in ("source_offsets", "body_offsets"):
            a[name][:, 0] = 0
        rejected = a["rejected"][0, :rows]
        filled = kernels.Columns(
            a["i32"], a["packet_offset"][0], a["data_size"][0], a["bits"], a["source_offsets"][0],
            a["sources"][0] if "sources" in self._passes else _NOTHING, a["body_offsets"][0],
            arena.rest if wants_data else _NOTHING, rejected,
        )  # fmt: skip
        kernels.fill_rows(data, columns.Frames(stop, starts, sizes, contexts), filled)
        self._fill_positions(arena, offsets, sizes)
        a["packet_offset"][0, :rows] += offsets
        if wants_data:
            arena.claim("bodies", int(a["body_offsets"][0, rows]))
        batch = arena.batch()
        if "names" in self._passes:
            place = batch.schema.get_field_index("layer_name")
            names = _layer_names(a["i32"][:, :rows], rejected != 0)
            batch = batch.set_column(place, batch.schema.field(place), names)
        return batch, np.flatnonzero(rejected)


def _layer_names(i32: Grid32, rejected: Bools) -> pa.Array:
    """Return the names of the layers, null for rejected rows."""
    unnamed = (i32[_TYPING] >= FOREIGN) | (i32[_LAYER] >= len(_NAMES)) | rejected
    return _NAMES.take(pa.array(np.where(unnamed, 0, i32[_LAYER]), mask=unnamed))
