"""GPackets as Arrow columns.

Compiled kernels decode the common packets; the scalar reader decodes the packets that they reject,
so that rare rules are implemented once.
"""

from __future__ import annotations

from wireyard.arena import Arena
from wireyard.arrays import Bytes, Ints
from wireyard.formats.gpacket import kernels as k
from wireyard.formats.gpacket.layout import HEADER_BYTES, SHIPPED
from wireyard.formats.property_columns import (
    PacketDecoder,
    row_shapes,
    row_sources,
    whole_frames,
)
from wireyard.formats.property_kernels import BatchBuffer, Columns, Frames, Texts

_PASSES = {
    "packet_type_name": ("names",),
    "flags": ("names",),
    "properties": ("properties",),
    "raw_properties": ("properties",),
    "payload": ("bodies",),
}
_REPEATED = {"header_order": SHIPPED}

scan_frames = whole_frames(k.scan_frames, HEADER_BYTES)


class ColumnDecoder(PacketDecoder):
    """Decode GPackets into chosen columns."""

    shapes = row_shapes(k.I32_FIELDS, k.I64_FIELDS, k.ROW_TEXTS, k.BITS)
    sources = row_sources(
        k.I32_FIELDS,
        k.I64_FIELDS,
        k.ROW_TEXTS,
        k.BITS,
        {"payload": [("body_offsets", 0), ("payload", 0)]},
    )
    texts, body = k.TEXTS, "payload"
    wants, passes, checks = k.WANT, _PASSES, ("properties",)
    repeated = _REPEATED

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
        return k.fill_rows(data, frames, self._wanted, columns, texts, buffer)
