"""GPackets as Arrow columns.

Compiled kernels decode the common packets; the scalar reader decodes the packets that they reject,
so that rare rules are implemented once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from wireyard.arena import Arena, Shape
from wireyard.arrays import Bytes, Ints
from wireyard.formats.gpacket import kernels
from wireyard.formats.gpacket.layout import HEADER_BYTES, SHIPPED
from wireyard.formats.property_columns import (
    PROPERTY_ENDS,
    Scratch,
    add_texts,
    buffer_of,
    columns_of,
    row_sources,
)
from wireyard.formats.property_kernels import ENTRIES, STOP, Frames
from wireyard.formats.row_columns import batch_layout, fill_positions
from wireyard.layout import Column

__all__ = ["ColumnDecoder", "scan_frames"]

_NONE: Ints = np.empty(0, np.int64)
_SHAPES = {
    "i32": Shape(np.int32, 32, len(kernels.I32_FIELDS)),
    "i64": Shape(np.int64, 64, len(kernels.I64_FIELDS)),
    "text_offsets": Shape(np.int32, 32, len(kernels.ROW_TEXTS), more=4),
    "map_offsets": Shape(np.int32, 32, more=4),
    "body_offsets": Shape(np.int32, 32, more=4),
    "bits": Shape(np.uint8, 1, len(kernels.BITS)),
    "rejected": Shape(np.uint8, 8),
    "used": Shape(np.int64, 0, more=8 * kernels.COUNTS),
}
_SOURCES = row_sources(
    kernels.I32_FIELDS,
    kernels.I64_FIELDS,
    kernels.ROW_TEXTS,
    kernels.BITS,
    {"payload": [("body_offsets", 0), ("payload", 0)]},
)
"""The buffers of the columns that kernels fill; the other columns are null here."""
_GROUPS = {
    "packet_type_name": "names",
    "flags": "names",
    "properties": "properties",
    "raw_properties": "properties",
    "payload": "payloads",
}


def scan_frames(
    data: Bytes, start: int, stop: int, last_start: int, max_packet_bytes: int, context: int
) -> tuple[Ints, Ints, Ints]:
    """Return starts, sizes and contexts of the whole packets that follow each other from `start`.

    Stops before bytes that are no whole packet, and before a packet that begins at or after
    `last_start`. One context more than there are packets is returned: that of the bytes after the
    last.
    """
    most = max((min(stop, last_start) - start) // HEADER_BYTES + 1, 0)
    starts, sizes = np.empty(most, np.int64), np.empty(most, np.int64)
    count = kernels.scan_frames(data, start, stop, last_start, max_packet_bytes, starts, sizes)
    return starts[:count], sizes[:count], np.full(count + 1, context, np.int64)


class ColumnDecoder:
    """Decode frames into chosen columns.

    Parameters
    ----------
    columns
        The wanted columns in order, of the format and of every format.
    validate
        Whether packets are checked even if no column needs it, because the caller uses the verdict.
    repeated
        Text by column, of columns with the same text in every row.
    """

    def __init__(
        self, columns: Sequence[Column], validate: bool, repeated: Mapping[str, str]
    ) -> None:
        self._layout = batch_layout(
            columns, _SHAPES, _SOURCES, {**repeated, "header_order": SHIPPED}
        )
        self._texts = self._layout.numbers_of((*kernels.TEXTS, *PROPERTY_ENDS, "payload"))
        groups = {_GROUPS[column.name] for column in columns if column.name in _GROUPS}
        groups |= {"properties"} if validate else set()
        self._wanted = sum(kernels.WANT[group] for group in groups)
        self._payloads = "payloads" in groups

    def decode(
        self, data: Bytes, stop: int, starts: Ints, sizes: Ints, _contexts: Ints, offsets: Ints
    ) -> tuple[pa.RecordBatch, Ints]:
        """Decode whole packets at `starts` of `data`, which are at `offsets` of the stream.

        Returns
        -------
        batch, rejected
            A row per packet, and the rows that the scalar reader has to decode: their values here
            are undefined.
        """
        rows, taken = len(starts), int(sizes.sum())
        scratch = Scratch.for_bytes(taken, len(kernels.TEXTS))
        arena = Arena(self._layout, rows, taken, taken if self._payloads else 0)
        texts = scratch.texts(arena.arrays["used"][0, : kernels.COUNTS])
        columns, buffer = columns_of(arena, rows), buffer_of(arena, self._texts)
        frames = Frames(stop, starts, sizes)
        rejected_count = kernels.fill_rows(data, frames, self._wanted, columns, texts, buffer)
        fill_positions(arena, offsets, sizes)
        rejected = np.flatnonzero(columns.rejected) if rejected_count else _NONE
        add_texts(arena, texts, buffer, int(texts.used[STOP]))
        return arena.batch(int(texts.used[ENTRIES])), rejected
