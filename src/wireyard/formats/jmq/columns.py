"""JMQ packets as Arrow columns, and the framing of many small streams in one call."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from wireyard.arrays import Bytes, Ints
from wireyard.formats.columns import FoundFrames, whole_frames
from wireyard.formats.jmq import kernel_columns as c
from wireyard.formats.jmq import kernels, stream_kernels
from wireyard.formats.jmq.layout import HEADER_BYTES, ITEMS, MAX_PACKET_BYTES
from wireyard.formats.property_columns import PacketDecoder, row_shapes, row_sources

_FIELDS = c.I32_FIELDS, c.I64_FIELDS, c.ROW_TEXTS, c.BITS

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
) -> tuple[FoundFrames, Ints]:
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
    """Decodes JMQ packets into chosen columns."""

    shapes = row_shapes(*_FIELDS, address_bytes=16)
    sources: ClassVar = {
        **row_sources(*_FIELDS, "body"),
        "source_ip": [None, ("address_offsets", 0), ("addresses", 0)],
        "destination_hash": [("bits", c.BITS.index("destination")), ("i64", c.DESTINATION_HASH)],
    }
    texts, body = c.TEXTS, "body"
    kernel = kernels.fill_rows
    wants, checks = c.WANT, ("items", "properties")
    passes: ClassVar = {
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
