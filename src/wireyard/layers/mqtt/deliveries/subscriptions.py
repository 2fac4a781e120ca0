"""Subscriptions: the tree of a broker, those that ever were, and when each ended."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, groupby
from operator import attrgetter
from typing import Final, NamedTuple

from wireyard.layers.mqtt.deliveries.topics import split_shared
from wireyard.layers.mqtt.records import Span, Subscribed
from wireyard.layers.records import Position

MAX_LEVELS: Final = 200
"""Levels of one filter, about the limit of brokers; a filter of 64 KB could have 65,535."""
MAX_ALL_LEVELS: Final = 1 << 20
"""Levels of all filters together: about 350 bytes for each that is not shared, so 350 MiB."""


class Subscription(NamedTuple):
    """A subscription of a client to one topic filter, as it was granted."""

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

    Their filters have at most `most_levels` levels together; `refused` counts the subscriptions
    above. A lookup visits only the levels of the tree that match the topic.
    """

    def __init__(self, most_levels: int = MAX_ALL_LEVELS) -> None:
        self.most_levels = most_levels
        self.refused = 0
        self._root = _Level()
        self._count = self._levels = 0

    def __len__(self) -> int:
        return self._count

    def subscribe(self, subscription: Subscription) -> bool:
        """Add a subscription; it replaces one of the same client with the same filter.

        Return whether it is new; False also if it is above a limit.
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
        """Remove a subscription; return whether there was one."""
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
        # Remove levels that have become empty, from the last one up.
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


MAX_SUBSCRIPTIONS: Final = 1 << 20
"""Subscriptions kept for a broker, including ended ones: at 600 bytes each 600 MiB."""


class Last(NamedTuple):
    """The end of the capture of a broker, and whether a session may be older than it."""

    broker: tuple[str, str]
    """Source and server."""
    at: Position
    """Its last packet, at the time of the last frame if that is later."""
    has_older: bool
    lost: tuple[Span, ...] = ()
    """Spans in which packets of clients were sent that were not captured."""
    lost_messages: tuple[Span, ...] = ()
    """Those of them in which a message may have been sent."""


class KeptSubscriptions:
    """The subscriptions of a broker that ever were, searched by topic.

    Subscriptions above a limit match nothing and are counted in `refused`.
    """

    def __init__(self) -> None:
        self.refused = 0
        self.has_older = False
        """Whether some of its subscriptions may be older than the capture."""
        self._tree = Subscriptions()
        self._by_filter: dict[str, list[Subscribed]] = {}
        self._count = 0

    def add(self, subscribed: Subscribed) -> None:
        """Add a subscription, within the limits."""
        filter = subscribed.filter
        if self._count == MAX_SUBSCRIPTIONS:
            self.refused += 1
        elif filter in self._by_filter or self._tree.subscribe(Subscription("", filter)):
            self._count += 1
            self._by_filter.setdefault(filter, []).append(subscribed)
        else:
            self.refused += 1

    def matching(self, topic: str) -> Iterator[Subscribed]:
        """Yield all that ever matched a topic, by filter without share name, then by age."""
        found = self._tree.matching(topic)
        for _, same in groupby(found, key=lambda one: split_shared(one.filter)[1]):
            kept = chain.from_iterable(self._by_filter.get(one.filter, ()) for one in same)
            yield from sorted(kept, key=attrgetter("since"))


# --- the end of each --------------------------------------------------------------------------

BEGINS, ENDS = range(2)
"""A subscription is active at both its beginning and its end."""

Boundary = tuple[Position, int]
"""A position, and `BEGINS` or `ENDS`."""


def ends_of(subscriptions: Iterable[Subscribed]) -> dict[Subscribed, Boundary | None]:
    """Return the end of each subscription, given all subscriptions to the same filters."""
    newer: dict[tuple[str, str], Boundary] = {}
    ends: dict[Subscribed, Boundary | None] = {}
    # Of several to one filter in one SUBSCRIBE the last one counts.
    for one in sorted(reversed([*subscriptions]), key=lambda one: one.asked, reverse=True):
        key = one.client.name, one.filter
        end = None if one.gone is None else (one.gone, ENDS)
        # A newer subscription to the same filter replaces it, which may be a little earlier.
        ends[one] = min(filter(None, (end, newer.get(key))), default=None)
        newer[key] = one.asked, BEGINS
    return ends
