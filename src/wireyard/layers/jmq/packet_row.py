"""The rows that the first stage takes, as a type: JMQ packets and GPackets.

A row is a plain dictionary, as readers give it; here is which names it has. A field that is null
counts as one that is not there, and is read by ``get``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Required, TypedDict, cast

from wireyard.formats.base import Row

__all__ = ["PacketRow", "as_packet"]


class PacketRow(TypedDict, total=False):
    """A packet of either format; `NEEDED` of ``walk.py`` are the columns."""

    source: Required[str]
    stream: Required[str]
    offset: Required[int]
    format: str
    status: str
    parent_offset: int
    """Of a packet inside another."""
    captured_ns: int
    frame: int
    src_addr: str
    src_port: int
    dst_addr: str
    dst_port: int
    version: Required[int]
    packet_type: Required[int]
    packet_type_name: str
    size: Required[int]
    timestamp: int
    source_ip: bytes
    source_ip_text: str
    source_port: int
    sequence: int
    property_offset: int
    property_size: int
    bit_flags: Required[int]
    consumer_id: int
    transaction_id: int
    producer_id: int
    delivery_count: int
    destination: str
    message_id: str
    sys_message_id: str
    correlation_id: str
    reply_to: str
    properties: Mapping[str, Any]
    """As packets have them, or as columns do."""
    body: bytes
    payload: bytes


def as_packet(row: Row) -> PacketRow:
    """Return the row of a packet as one."""
    return cast("PacketRow", row)
