"""Message numbers of one process: a number is not reused while it may still name another message.

Numbers have 16 bits. At 15 000 messages a second all have been used after 4.4 seconds.
"""

from __future__ import annotations

import heapq
from typing import Final

from wireyard.layers.rmp.limits import NUMBERS, NumbersExhausted


class Hold:
    """The reasons why a number is not free, as bits, because there may be several."""

    ON_THE_WAY: Final = 1
    """Packets of its message have not come back, or may still arrive at a receiver."""
    PENDING: Final = 2
    """A request waits for replies that name it."""
    RESTING: Final = 4
    """Late replies may still name it."""


class Numbers:
    """The message numbers, used in turn from `first` on.

    The first one is random if a process may be restarted, so that it does not reuse recent numbers
    of its former self.
    """

    def __init__(self, first: int) -> None:
        self._next = first % NUMBERS
        self._holds: dict[int, int] = {}
        self._resting_until: dict[int, float] = {}
        self._resting: list[tuple[float, int]] = []

    def __len__(self) -> int:
        """Return the number of message numbers that are not free."""
        return len(self._holds)

    def allocate(self, hold: int, now: float) -> int:
        """Return a free number, and hold it; raise `NumbersExhausted` if none is free."""
        self._end_rests(now)
        if len(self._holds) == NUMBERS:
            raise NumbersExhausted(f"all {NUMBERS} message numbers are in use")
        number = self._next
        while number in self._holds:
            number = (number + 1) % NUMBERS
        self._holds[number] = hold
        self._next = (number + 1) % NUMBERS
        return number

    def release(self, number: int, hold: int) -> None:
        """End one hold of a number."""
        left = self._holds[number] & ~hold
        if left:
            self._holds[number] = left
        else:
            del self._holds[number]

    def rest(self, number: int, hold: int, until: float) -> None:
        """End one hold of a number, but do not reuse the number before `until`."""
        until = max(until, self._resting_until.get(number, until))
        self._holds[number] |= Hold.RESTING
        self._resting_until[number] = until
        heapq.heappush(self._resting, (until, number))
        self.release(number, hold)

    def _end_rests(self, now: float) -> None:
        while self._resting and self._resting[0][0] <= now:
            until, number = heapq.heappop(self._resting)
            if self._resting_until.get(number) == until:
                del self._resting_until[number]
                self.release(number, Hold.RESTING)
