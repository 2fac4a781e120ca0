"""Retained values: the last known good value of every topic, now and at any time before.

The page of 1999 calls them Last Known Good. An empty payload deletes the value; 5.0 lets a value
expire. Times are any numbers that grow; of values that begin at the same time the later counts.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from wireyard.layers.mqtt.topics import matches

__all__ = ["MAX_RETAINED_BYTES", "MAX_RETAINED_VALUES", "Retained", "Value"]

MAX_RETAINED_VALUES: Final = 1 << 19
"""Values kept, those of the past too: without payload about 400 bytes each, so 200 MiB."""
MAX_RETAINED_BYTES: Final = 1 << 30
"""Bytes of their topics and payloads; one payload may have 256 MiB."""


@dataclass(slots=True)
class Value:
    """What a topic had from `since` on, before `until`."""

    topic: str
    payload: bytes
    qos: int
    key: str
    """The message that set it."""
    since: int
    until: int | None = None
    ended_by: str | None = None
    """``replaced``, ``deleted`` or ``expired``."""


class Retained:
    """The values of all topics of a broker.

    Parameters
    ----------
    most, most_bytes
        What is kept. A value that does not fit is not kept and counted in `dropped`; the one
        before it ends all the same, so an old value is never taken for the current one.
    """

    def __init__(
        self, most: int = MAX_RETAINED_VALUES, most_bytes: int = MAX_RETAINED_BYTES
    ) -> None:
        self.most = most
        self.most_bytes = most_bytes
        self.dropped = 0
        self._values: dict[str, list[Value]] = {}
        self._count = self._bytes = 0

    def __len__(self) -> int:
        return self._count

    def set(self, value: Value, expires: int | None = None) -> None:
        """Take a message with RETAIN: a new value, or none if its payload is empty.

        Parameters
        ----------
        expires
            When the value stops being one by itself.
        """
        history = self._values.get(value.topic)
        if history:
            _end(history[-1], value.since, "replaced" if value.payload else "deleted")
        if not value.payload:
            return
        size = len(value.topic) + len(value.payload)
        if self._count >= self.most or self._bytes + size > self.most_bytes:
            self.dropped += 1
            return
        if expires is not None:
            value.until, value.ended_by = expires, "expired"
        self._values.setdefault(value.topic, []).append(value)
        self._count += 1
        self._bytes += size

    def at(self, topic: str, time: int) -> Value | None:
        """Return the value that a topic had at a time."""
        history = self._values.get(topic, [])
        place = bisect_right(history, time, key=_since) - 1
        value = history[place] if place >= 0 else None
        return value if value and (value.until is None or time < value.until) else None

    def matching(self, filter: str, time: int) -> Iterator[Value]:
        """Yield the values that a subscriber to a filter gets at a time."""
        for topic in self._values:
            if matches(filter, topic) and (value := self.at(topic, time)):
                yield value

    def take_past(self, topic: str) -> Iterator[Value]:
        """Yield the values of a topic that have another one behind them, and forget them."""
        history = self._values.get(topic, [])
        if len(history) < 2:
            return
        past = history[:-1]
        del history[:-1]
        self._count -= len(past)
        self._bytes -= sum(len(value.topic) + len(value.payload) for value in past)
        yield from past

    def values(self) -> Iterator[Value]:
        """Yield every value there ever was, by topic in the order of time."""
        for history in self._values.values():
            yield from history


def _since(value: Value) -> int:
    return value.since


def _end(value: Value, time: int, how: str) -> None:
    if value.until is None or time < value.until:
        value.until, value.ended_by = time, how
