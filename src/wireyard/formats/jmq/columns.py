"""JMQ packets as Arrow columns.

Compiled kernels decode the common packets; the scalar reader decodes the packets that they reject,
so that rare rules are implemented once.
"""

from __future__ import annotations

import numpy as np

from wireyard.arena import Arena, Shape
from wireyard.arrays import Bytes, Ints
from wireyard.formats.jmq import kernel_columns as c
from wireyard.formats.jmq import kernels, stream_kernels
from wireyard.formats.jmq.layout import HEADER_BYTES, ITEMS, MAX_PACKET_BYTES
from wireyard.formats.jmq.reading import STAMPS
from wireyard.formats.property_columns import (
    PacketDecoder,
    row_shapes,
    row_sources,
    whole_frames,
)
from wireyard.formats.property_kernels import BatchBuffer, Columns, Frames, Texts

_ADDRESS_BYTES = 16
_SHAPES = {
    **row_shapes(c.I32_FIELDS, c.I64_FIELDS, c.ROW_TEXTS, c.BITS),
    "addresses": Shape(np.uint8, 8 * _ADDRESS_BYTES),
    "address_offsets": Shape(np.int32, 32, more=4),
    "seen": Shape(np.uint8, 0, 2, more=kernels.BLOCK_ROWS),
}
_SOURCES = row_sources(
    c.I32_FIELDS,
    c.I64_FIELDS,
    c.ROW_TEXTS,
    c.BITS,
    {
        "source_ip": [("address_offsets", 0), ("addresses", 0)],
        "body": [("body_offsets", 0), ("body", 0)],
    },
) | {
    "destination_hash": [
        ("bits", c.BITS.index("destination")),
        ("i64", c.I64_FIELDS.index("destination_hash")),
    ]
}
_PASSES = {
    "packet_type_name": ("names",),
    "flags": ("names",),
    "source_ip_text": ("ids",),
    "sys_message_id": ("ids",),
    "properties": ("properties",),
    "body": ("bodies",),
    "destination_hash": ("hashes", "items"),
    "unknown_items": ("items",),
    "raw_header": ("items",),
    "raw_properties": ("properties",),
    **{item.name: ("items",) for item in ITEMS.values()},
}

scan_frames = whole_frames(kernels.scan_frames, HEADER_BYTES)


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


class ColumnDecoder(PacketDecoder):
    """Decode JMQ packets into chosen columns."""

    shapes, sources = _SHAPES, _SOURCES
    texts, body = c.TEXTS, "body"
    wants, passes, checks = c.WANT, _PASSES, ("items", "properties")

    def fill(
        self,
        data: Bytes,
        frames: Frames,
        contexts: Ints,
        arena: Arena,
        columns: Columns,
        texts: Texts,
        buffer: BatchBuffer,
    ) -> int:
        """Fill the wanted columns; return how many rows are rejected."""
        a = arena.arrays
        rejected_count = kernels.fill_rows(
            data, frames, self._wanted, columns, a["addresses"][0], a["seen"], texts, buffer
        )
        if arena.has("addresses"):
            ends = a["address_offsets"][0]
            np.multiply(np.arange(len(ends), dtype=np.int32), _ADDRESS_BYTES, out=ends)
        if (stamped := contexts == STAMPS).any():  # the scalar reader finds the end of the body
            columns.rejected[stamped] = rejected_count = 1
        return rejected_count
