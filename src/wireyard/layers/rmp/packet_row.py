"""The type of the first stage's input rows: messages in RMP packets, malformed packets, gaps.

A row is a plain dictionary from a reader.
"""

from __future__ import annotations

from typing import Any, Required, TypedDict, cast

from wireyard.formats.base import Row

__all__ = ["PacketRow", "as_packet"]


class PacketRow(TypedDict, total=False):
    """A message in a packet, with the columns `NEEDED` of ``observer.py``."""

    source: Required[str]
    stream: Required[str]
    offset: Required[int]
    length: Required[int]
    status: Required[str]
    error: Required[Any]
    """The code and the message of an error; None for a well-formed message."""
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
    """Return a row as a `PacketRow`, unchecked."""
    return cast("PacketRow", row)
