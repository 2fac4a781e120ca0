"""The type of the first stage's input rows: JMQ packets and GPackets.

A row is a plain dictionary from a reader. A field that is null is treated like a missing one, and
is read by ``get``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Required, TypedDict, cast

from wireyard.formats.base import Row

__all__ = ["PacketRow", "as_packet"]


class PacketRow(TypedDict, total=False):
    """A packet of either format, with the columns `NEEDED` of ``observer.py``."""

    source: Required[str]
    stream: Required[str]
    offset: Required[int]
    format: str
    status: str
    parent_offset: int
    """The offset of the outer packet, of a packet inside another."""
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
    """In the form of packets, or in that of columns."""
    body: bytes
    payload: bytes


def as_packet(row: Row) -> PacketRow:
    """Return a row as a `PacketRow`, unchecked."""
    return cast("PacketRow", row)
