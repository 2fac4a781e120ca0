"""The bounds of the layer, each with its reason: peers cannot make it hold more."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["MAX_PACKETS", "MESSAGE_OVERHEAD_BYTES", "NUMBERS", "PACKET_OVERHEAD_BYTES", "Limits"]

MAX_PACKETS = 0xFFFF
"""The most packets of one message: their count has 16 bits."""
NUMBERS = 1 << 16
"""The number of message numbers, which have 16 bits."""
MESSAGE_OVERHEAD_BYTES = 640
"""The measured memory of a held message besides its data. It counts towards bounds, so that
messages without data fill them as well."""
PACKET_OVERHEAD_BYTES = 128
"""The measured memory of each further packet of a message besides its data."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds and delays of one process, the same at all members of a ring.

    With totally ordered messages, bounds determine which messages are delivered. They depend on the
    ordered packets alone, so members with the same bounds deliver the same messages.
    """

    max_delay_s: float = 0.001
    """Time that a small message waits for others to share its packet; 0 disables packing."""
    max_message_bytes: int = 16 << 20
    """Longest message, with the headers of its packets: the limit of comparable systems, and small
    enough that 64 sources at once fit in a gigabyte."""
    max_outgoing_bytes: int = 64 << 20
    """Bytes that wait for the ring or for their own delivery: four of the longest messages."""
    max_held_bytes: int = 64 << 20
    """Bytes of unfinished messages and of the messages that wait for them: of a ring, or of each
    source if messages wait for those of their source only. Four of the longest messages."""
    max_unfinished_of_source: int = 64
    """Unfinished messages of one source: a sender finishes one before it begins the next, so more
    than one is a process of many threads, and more than this an attack."""
    max_unfinished: int = 4096
    """Unfinished messages of all sources: 64 sources at their own bound."""
    reassembly_timeout_s: float = 5.0
    """Time that a message without order may stay unfinished: a hundred round trips."""
    stall_after_s: float = 5.0
    """Time after which an unfinished message that holds back others is reported."""
    max_replies: int = 4096
    """Replies to one request: the clients that replied are held."""
    max_counted_sources: int = 1024
    """Sources with their own count of malformed packets; the others share one."""
    report_every_s: float = 1.0
    """Shortest time between two reports of the same unregistered layer."""
