"""The rows that the first stage takes, as a type: messages in RMP packets, and bytes that are none.

A row is a plain dictionary, as readers give it; here is which names it has.
"""

from __future__ import annotations

from typing import Any, Required, TypedDict, cast

from wireyard.formats.base import Row

__all__ = ["PacketRow", "as_packet"]


class PacketRow(TypedDict, total=False):
    """A message in a packet; the columns are `NEEDED` of ``observer.py``."""

    source: Required[str]
    stream: Required[str]
    offset: Required[int]
    length: Required[int]
    status: Required[str]
    error: Required[Any]
    """A code and a sentence by name; null of a message that keeps the rules."""
    captured_ns: Required[int | None]
    frame: Required[int | None]
    src_addr: Required[str | None]
    src_port: Required[int]
    dst_addr: Required[str]
    dst_port: Required[int]
    packet_offset: int
    message_in_packet: int
    typing: int
    more_follows: bool
    data: bytes


def as_packet(row: Row) -> PacketRow:
    """Return the row of a message as one."""
    return cast("PacketRow", row)
