"""Subscriptions by topic filter, as a tree of levels."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from wireyard.layers.mqtt.topics import split_shared

__all__ = ["MAX_ALL_LEVELS", "MAX_LEVELS", "Subscription", "Subscriptions"]

MAX_LEVELS: Final = 200
"""Levels of one filter, about where brokers stop; 64 KB of it could have 65,535."""
MAX_ALL_LEVELS: Final = 1 << 20
"""Levels of all filters together: one that is nobody else's takes about 350 bytes, so 350 MiB."""


class Subscription(NamedTuple):
    """What a client asked for with one topic filter, and was granted."""

    client_id: str
    filter: str
    qos: int = 0
    no_local: bool = False
    retain_as_published: bool = False
    retain_handling: int = 0
    identifier: int | None = None

    @property
    def group(self) -> str | None:
        """Share name, None if the subscription is not shared."""
        return split_shared(self.filter)[0]


class _Level:
    __slots__ = ("below", "here")

    def __init__(self) -> None:
        self.below: dict[str, _Level] = {}
        self.here: dict[tuple[str, str], Subscription] = {}


class Subscriptions:
    """All subscriptions of a broker.

    Parameters
    ----------
    most_levels
        How many levels their filters may have together; `refused` counts those that came above.

    Limits
    ------
    Finding what matches a topic takes at most one step for each level of the tree that matches.
    """

    def __init__(self, most_levels: int = MAX_ALL_LEVELS) -> None:
        self.most_levels = most_levels
        self.refused = 0
        self._root = _Level()
        self._count = self._levels = 0

    def __len__(self) -> int:
        return self._count

    def subscribe(self, subscription: Subscription) -> bool:
        """Add a subscription, or put it in the place of the client's older one with its filter.

        Returns
        -------
        bool
            Whether it was not there before; False too for one that is above a limit.
        """
        levels = split_shared(subscription.filter)[1].split("/")
        key = subscription.client_id, subscription.filter
        found = self._find(levels)
        is_new = found is None or key not in found.here
        too_many = self._levels + len(levels) > self.most_levels or len(levels) > MAX_LEVELS
        if is_new and too_many:
            self.refused += 1
            return False
        at = self._root
        for level in levels:
            at = at.below.setdefault(level, _Level())
        at.here[key] = subscription
        if is_new:
            self._count += 1
            self._levels += len(levels)
        return is_new

    def unsubscribe(self, client_id: str, filter: str) -> bool:
        """Take a subscription away; tell whether it was there."""
        levels = split_shared(filter)[1].split("/")
        path = [self._root]
        for level in levels:
            below = path[-1].below.get(level)
            if below is None:
                return False
            path.append(below)
        if path[-1].here.pop((client_id, filter), None) is None:
            return False
        self._count -= 1
        self._levels -= len(levels)
        # Levels that hold nothing any more go, from the last one up.
        for above, level, at in zip(path[-2::-1], levels[::-1], path[:0:-1], strict=True):
            if at.below or at.here:
                break
            del above.below[level]
        return True

    def matching(self, topic: str) -> Iterator[Subscription]:
        """Yield the subscriptions that match a topic name."""
        levels = topic.split("/")
        open_to_wildcards = not topic.startswith("$")
        waiting = [(self._root, 0)]
        while waiting:
            at, depth = waiting.pop()
            wild = open_to_wildcards or depth > 0
            if wild and (rest := at.below.get("#")):
                yield from rest.here.values()
            if depth == len(levels):
                yield from at.here.values()
                continue
            if wild and (any_level := at.below.get("+")):
                waiting.append((any_level, depth + 1))
            if exact := at.below.get(levels[depth]):
                waiting.append((exact, depth + 1))

    def _find(self, levels: list[str]) -> _Level | None:
        at: _Level | None = self._root
        for level in levels:
            if at is None:
                return None
            at = at.below.get(level)
        return at
