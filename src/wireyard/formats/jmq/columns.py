"""JMQ packets as Arrow columns.

Compiled kernels decode the common packets; the scalar reader decodes the packets that they reject,
so that rare rules are implemented once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from wireyard.arena import Arena, Shape
from wireyard.arrays import Bytes, Ints
from wireyard.formats.jmq import kernel_columns, kernels, stream_kernels
from wireyard.formats.jmq.layout import HEADER_BYTES, ITEMS, MAX_PACKET_BYTES
from wireyard.formats.jmq.packet import STAMPS
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

__all__ = ["ColumnDecoder", "scan_frames", "sniff_heads", "walk_streams"]

_ADDRESS_BYTES = 16
_NONE: Ints = np.empty(0, np.int64)
_SHAPES = {
    "i32": Shape(np.int32, 32, len(kernel_columns.I32_FIELDS)),
    "i64": Shape(np.int64, 64, len(kernel_columns.I64_FIELDS)),
    "addresses": Shape(np.uint8, 8 * _ADDRESS_BYTES),
    "address_offsets": Shape(np.int32, 32, more=4),
    "text_offsets": Shape(np.int32, 32, len(kernel_columns.ROW_TEXTS), more=4),
    "map_offsets": Shape(np.int32, 32, more=4),
    "body_offsets": Shape(np.int32, 32, more=4),
    "seen": Shape(np.uint8, 0, 2, more=kernels.BLOCK_ROWS),
    "bits": Shape(np.uint8, 1, len(kernel_columns.BITS)),
    "rejected": Shape(np.uint8, 8),
    "used": Shape(np.int64, 0, more=8 * kernel_columns.COUNTS),
}
_SOURCES = row_sources(
    kernel_columns.I32_FIELDS,
    kernel_columns.I64_FIELDS,
    kernel_columns.ROW_TEXTS,
    kernel_columns.BITS,
    {
        "source_ip": [("address_offsets", 0), ("addresses", 0)],
        "body": [("body_offsets", 0), ("body", 0)],
    },
) | {
    "destination_hash": [
        ("bits", kernel_columns.BITS.index("destination")),
        ("i64", kernel_columns.I64_FIELDS.index("destination_hash")),
    ]
}
"""The buffers of the columns that kernels fill; the other columns are null here."""
_GROUPS = {
    "packet_type_name": "names",
    "flags": "names",
    "source_ip_text": "ids",
    "sys_message_id": "ids",
    "properties": "properties",
    "body": "bodies",
    "destination_hash": "hashes",
    "unknown_items": "items",
    "raw_header": "items",
    "raw_properties": "properties",
    **{item.name: "items" for item in ITEMS.values()},
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


def sniff_heads(heads: Bytes, starts: Ints, stops: Ints, _contexts: Ints) -> Bytes:
    """Return what streams have `Shown` by their first bytes; the parameters are the kernel's."""
    shown = np.empty(len(starts), np.uint8)
    stream_kernels.sniff_heads(heads, starts, stops, MAX_PACKET_BYTES, shown)
    return shown


def walk_streams(
    data: Bytes,
    bounds: Ints,
    pieces: Ints,
    behind_gap: Bytes,
    contexts: Ints,
    _followings: Ints,
    _begun: Bytes,
    max_packet_bytes: int,
) -> tuple[tuple[Ints, Ints, Ints], Ints]:
    """Return the packets of streams whose pieces lie one after the other, and their first rows.

    A stream that is not whole packets alone has no rows. For the parameters, see the kernel;
    `contexts` are those of all packets of each stream.
    """
    most = int(bounds[-1] - bounds[0]) // HEADER_BYTES
    starts, sizes = np.empty(most, np.int64), np.empty(most, np.int64)
    rows = np.empty(len(bounds), np.int64)
    count = stream_kernels.walk_streams(
        data, bounds, pieces, behind_gap, max_packet_bytes, starts, sizes, rows
    )
    of_packets = np.repeat(contexts, np.diff(rows[pieces]))
    return (starts[:count], sizes[:count], of_packets), rows


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
        self._layout = batch_layout(columns, _SHAPES, _SOURCES, repeated)
        self._texts = self._layout.numbers_of((*kernel_columns.TEXTS, *PROPERTY_ENDS, "body"))
        groups = {_GROUPS[column.name] for column in columns if column.name in _GROUPS}
        groups |= {"items", "properties"} if validate else set()
        groups |= {"items"} if "hashes" in groups else set()
        self._wanted = sum(kernel_columns.WANT[group] for group in groups)
        self._bodies = "bodies" in groups

    def decode(
        self, data: Bytes, stop: int, starts: Ints, sizes: Ints, contexts: Ints, offsets: Ints
    ) -> tuple[pa.RecordBatch, Ints]:
        """Decode whole packets at `starts` of `data`, which are at `offsets` of the stream.

        Returns
        -------
        batch, rejected
            A row per packet, and the rows that the scalar reader has to decode: their values here
            are undefined.
        """
        rows, taken = len(starts), int(sizes.sum())
        scratch = Scratch.for_bytes(taken, len(kernel_columns.TEXTS))
        arena = Arena(self._layout, rows, taken, taken if self._bodies else 0)
        a = arena.arrays
        texts = scratch.texts(a["used"][0, : kernel_columns.COUNTS])
        columns, buffer = columns_of(arena, rows), buffer_of(arena, self._texts)
        rejected_count = kernels.fill_rows(
            data, Frames(stop, starts, sizes), self._wanted, columns, a["addresses"][0], a["seen"],
            texts, buffer,
        )  # fmt: skip
        fill_positions(arena, offsets, sizes)
        if arena.has("addresses"):
            ends = a["address_offsets"][0]
            np.multiply(np.arange(len(ends), dtype=np.int32), _ADDRESS_BYTES, out=ends)
        if (stamped := contexts == STAMPS).any():  # the scalar reader finds the end of the body
            columns.rejected[stamped] = rejected_count = 1
        rejected = np.flatnonzero(columns.rejected) if rejected_count else _NONE
        add_texts(arena, texts, buffer, int(texts.used[STOP]))
        return arena.batch(int(texts.used[ENTRIES])), rejected
