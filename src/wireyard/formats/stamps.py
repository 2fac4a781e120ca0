"""Timestamps and sequences of one sender, which both specifications require to increase.

Rules of this file:

1. The timestamp is that of the clock, but never less than the one before.
2. The sequence counts up from 1, as in the shipped classes. After the largest one it begins again,
   with a later timestamp.
3. So pairs of timestamp and sequence increase, and no two of a sender are equal.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

from wireyard.formats.fields import milliseconds

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Packet = TypeVar("Packet", bound="DataclassInstance")


class Stamps:
    """The timestamp and the sequence of each packet of a sender.

    The largest sequence is `max_sequence`; `same` are the fields that are the same in all packets
    of the sender.
    """

    __slots__ = ("_max_sequence", "_same", "_sequence", "_timestamp")

    def __init__(self, max_sequence: int, **same: Any) -> None:
        self._max_sequence = max_sequence
        self._same = same
        self._sequence = 0
        self._timestamp: int | None = None

    def next(self, now: int | datetime) -> tuple[int, int]:
        """Return the next timestamp and sequence; `now` is the time of the sender's clock.

        An EncodeError is raised if it is neither ms since epoch nor a `datetime` with its time
        zone.
        """
        timestamp = milliseconds("timestamp", now)
        if self._timestamp is not None:
            timestamp = max(timestamp, self._timestamp + (self._sequence == self._max_sequence))
        self._timestamp = timestamp
        self._sequence = self._sequence % self._max_sequence + 1
        return timestamp, self._sequence

    def stamp(self, packet: Packet, now: int | datetime) -> Packet:
        """Return a packet of this sender, with the next timestamp and sequence; see `next`."""
        timestamp, sequence = self.next(now)
        return replace(packet, timestamp=timestamp, sequence=sequence, **self._same)
