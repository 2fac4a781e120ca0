"""What was not delivered, counted by reason: nothing is dropped in silence."""

from __future__ import annotations

from collections import Counter
from enum import StrEnum

__all__ = ["Drop", "Drops"]


class Drop(StrEnum):
    """Why something was dropped, and what is counted."""

    MALFORMED = "malformed packets"
    ORPHAN = "packets without the first of their message"
    REPEAT = "packets that were there already"
    ABORTED = "packets of aborted messages"
    TOO_BIG = "messages over their bound"
    TOO_MANY = "messages over the bound of their source"
    UNKNOWN_LAYER = "messages for layers that are not registered"
    NO_DESTINATION = "messages for domains that no client here is in"
    LATE_REPLY = "replies to requests that were done or unknown"
    REPEATED_REPLY = "replies of who had replied"


class Drops:
    """The counts of one process.

    `LATE_REPLY` and `REPEATED_REPLY` were delivered as messages, but counted for no request.
    """

    def __init__(self, max_counted_sources: int) -> None:
        self.counts: Counter[Drop] = Counter()
        self.malformed_of: Counter[str | None] = Counter()
        """Malformed packets by their source; None has those of sources over the bound."""
        self._max_counted_sources = max_counted_sources

    def malformed(self, source: str) -> None:
        """Count a malformed packet."""
        self.counts[Drop.MALFORMED] += 1
        known = source in self.malformed_of
        room = len(self.malformed_of) < self._max_counted_sources
        self.malformed_of[source if known or room else None] += 1
