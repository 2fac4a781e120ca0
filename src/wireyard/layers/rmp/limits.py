"""How much of everything, each with its reason: nothing that a peer sends can grow beyond these."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["MAX_PACKETS", "MESSAGE_OVERHEAD_BYTES", "NUMBERS", "PACKET_OVERHEAD_BYTES", "Limits"]

MAX_PACKETS = 0xFFFF
"""Packets of one message: their count has 16 bits."""
NUMBERS = 1 << 16
"""Message numbers there are."""
MESSAGE_OVERHEAD_BYTES = 640
"""What a message that is kept costs beside its data, as measured; counted with it, so that messages
of no data fill a bound as well."""
PACKET_OVERHEAD_BYTES = 128
"""What each further packet of it costs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds and delays of one process; members of a ring have the same.

    With totally ordered messages a bound decides what is delivered. It is a function of the
    ordered packets alone, so members with the same bounds decide the same.
    """

    max_delay_s: float = 0.001
    """How long a small message waits for others to share its packet; 0 packs nothing."""
    max_message_bytes: int = 16 << 20
    """Longest message, with the headers of its packets: what comparable systems take, and little
    enough that 64 sources at once fit in a gigabyte."""
    max_outgoing_bytes: int = 64 << 20
    """Bytes that wait for the ring or for their own delivery: four of the longest messages."""
    max_held_bytes: int = 64 << 20
    """Bytes of unfinished messages, and of those behind them, that wait for each other: of a ring,
    or of each source where only its own do. Four of the longest messages."""
    max_unfinished_of_source: int = 64
    """Unfinished messages of one source: a sender finishes one before it begins the next, so more
    than one is a process of many threads, and more than this an attack."""
    max_unfinished: int = 4096
    """Unfinished messages of all sources: 64 sources at their own bound."""
    reassembly_timeout_s: float = 5.0
    """How long a message without order may stay unfinished: a hundred round trips."""
    stall_after_s: float = 5.0
    """After which time an unfinished message that holds back others is reported."""
    max_replies: int = 4096
    """Replies to one request: who answered is remembered."""
    max_counted_sources: int = 1024
    """Sources with a count of their own of malformed packets; the rest share one."""
    report_every_s: float = 1.0
    """Shortest time between two reports of the same layer that is not there."""
