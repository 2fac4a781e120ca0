"""The bounds of the layer, each with its reason: peers cannot make it hold more.

With them the errors of sending, and the counts of dropped packets and messages by reason: nothing
is dropped in silence.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import StrEnum

from wireyard.errors import WireError

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


# --- errors of sending: no part of a refused message is sent or kept -------------------------


class SendRefused(WireError):
    """A message that cannot be sent now, or never."""


class MessageTooBig(SendRefused):
    """A message of more packets than can be numbered, or over the bound of its receivers."""


class NotWritable(SendRefused):
    """The queue of the ring is full; there is room again once the ring has accepted packets."""


class NumbersExhausted(SendRefused):
    """Every message number is in use; some become free with time."""


# --- counts ---------------------------------------------------------------------------------


class Drop(StrEnum):
    """The reasons for dropping something; each value says what is counted."""

    MALFORMED = "malformed packets"
    ORPHAN = "packets without the first of their message"
    REPEAT = "repeated packets"
    ABORTED = "packets of aborted messages"
    TOO_BIG = "messages over their bound"
    TOO_MANY = "messages over the bound of their source"
    UNKNOWN_LAYER = "messages for layers that are not registered"
    NO_DESTINATION = "messages for domains without clients here"
    LATE_REPLY = "replies to requests that were done or unknown"
    REPEATED_REPLY = "further replies of a client that had replied"


class Drops:
    """The counts of one process.

    Replies counted as `LATE_REPLY` or `REPEATED_REPLY` were delivered as messages, but counted for
    no request.
    """

    def __init__(self, max_counted_sources: int) -> None:
        self.counts: Counter[Drop] = Counter()
        self.malformed_of: Counter[str | None] = Counter()
        """Malformed packets by their source; None for the sources over the bound together."""
        self._max_counted_sources = max_counted_sources

    def malformed(self, source: str) -> None:
        """Count a malformed packet."""
        self.counts[Drop.MALFORMED] += 1
        known = source in self.malformed_of
        room = len(self.malformed_of) < self._max_counted_sources
        self.malformed_of[source if known or room else None] += 1
