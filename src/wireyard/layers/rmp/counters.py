"""Counts of dropped packets and messages by reason: nothing is dropped in silence."""

from __future__ import annotations

from collections import Counter
from enum import StrEnum

__all__ = ["Drop", "Drops"]


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
