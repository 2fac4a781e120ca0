"""GPackets as Arrow columns."""

from __future__ import annotations

from typing import ClassVar

from wireyard.formats.columns import whole_frames
from wireyard.formats.gpacket import kernels as k
from wireyard.formats.gpacket.layout import HEADER_BYTES, SHIPPED
from wireyard.formats.property_columns import PacketDecoder, row_shapes, row_sources
from wireyard.formats.property_kernels import WANT

_FIELDS = k.I32_FIELDS, k.I64_FIELDS, k.ROW_TEXTS, k.BITS

scan_frames = whole_frames(k.scan_frames, HEADER_BYTES)


class ColumnDecoder(PacketDecoder):
    """Decodes GPackets into chosen columns."""

    shapes = row_shapes(*_FIELDS)
    sources = row_sources(*_FIELDS, "payload")
    texts, body = k.TEXTS, "payload"
    kernel = k.fill_rows
    wants, checks = WANT, ("properties",)
    passes: ClassVar = {
        "packet_type_name": ("names",),
        "flags": ("names",),
        "properties": ("properties",),
        "raw_properties": ("properties",),
        "payload": ("bodies",),
    }
    repeated: ClassVar = {"header_order": SHIPPED}
