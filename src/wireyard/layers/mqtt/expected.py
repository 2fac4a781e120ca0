"""Messages x subscriptions: who should have got what, and who was there to get it.

A message stands between two places of the capture, where it was sent and where the broker showed
that it had taken it; a subscription has two at its beginning and two at its end. What lies between
may have been either way round at the broker, so it is possible and not certain.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from wireyard.layers.mqtt.records import Handed, Link, Message, Subscribed
from wireyard.layers.mqtt.subscriptions import Subscription, Subscriptions

__all__ = ["Expected", "Presence", "expected_deliveries"]

_SUBSCRIBE, _PROBE, _LEAVE = range(3)


@dataclass(slots=True, eq=False)
class Expected:
    """A message and a client that has subscriptions which match it, or a group that shares one."""

    message: Message
    name: str
    """The client, or the filter with the group's name."""
    matching: list[Subscribed] = field(default_factory=list)
    handed: list[Handed] = field(default_factory=list)

    @property
    def start(self) -> int:
        """Place from which on the message can have been handed over."""
        return start_of(self.message)

    @property
    def capacity(self) -> int:
        """How many copies of it there may be: one for each subscription that matches."""
        subscriptions = 1 if self.matching[0].group else len(self.matching)
        return subscriptions * self.message.copies

    @property
    def retain(self) -> bool:
        """Whether it is handed over with RETAIN though it is no retained value."""
        return self.message.retain and any(one.retain_as_published for one in self.matching)

    @property
    def qos(self) -> frozenset[int]:
        """What it may be handed over with."""
        return frozenset(min(self.message.qos, one.qos) for one in self.matching)

    @property
    def certain(self) -> list[Subscribed]:
        """The subscriptions that began before the message, and did not end before it was taken."""
        taken = self.message.accepted.place if self.message.accepted else None
        return [
            one
            for one in self.matching
            if one.granted.place < self.start
            and (one.leaving is None or (taken is not None and taken < one.leaving))
        ]


def start_of(message: Message) -> int:
    """Return the place from which on a message can be handed over.

    For a will that is the last packet of its connection: brokers count a delay in whole seconds.
    """
    if message.origin == "will" and message.released is not None:
        return message.released.place
    return message.sent.place


def expected_deliveries(
    messages: Iterable[Message], subscriptions: Iterable[Subscribed], tree: Subscriptions
) -> Iterator[Expected]:
    """Yield, for every message of a broker, the clients and groups that should get it.

    Parameters
    ----------
    tree
        An empty one; what it refuses gets nothing.
    """
    events: list[tuple[int, int, Message | Subscribed]] = []
    for one in subscriptions:
        events.append((one.asked.place, _SUBSCRIBE, one))
        if one.gone is not None:
            events.append((one.gone, _LEAVE, one))
    matching: dict[Message, dict[tuple[str, str], Subscribed]] = {}
    for message in messages:
        matching[message] = {}
        events.append((start_of(message), _PROBE, message))
        if message.accepted is not None and message.accepted.place > start_of(message):
            events.append((message.accepted.place, _PROBE, message))
    events.sort(key=lambda event: event[:2])
    current: dict[tuple[str, str], Subscribed] = {}
    known: dict[str, list[Subscribed]] = {}
    for _, kind, what in events:
        if isinstance(what, Message):
            if what.topic not in known:
                found = tree.matching(what.topic)
                known[what.topic] = [current[one.client_id, one.filter] for one in found]
            for one in known[what.topic]:
                if not one.no_local or one.name != what.link.name:
                    matching[what].setdefault((one.name, one.filter), one)
            continue
        known.clear()
        if kind == _SUBSCRIBE:
            current[what.name, what.filter] = what
            tree.subscribe(Subscription(what.name, what.filter))
        elif current.get((what.name, what.filter)) is what:
            tree.unsubscribe(what.name, what.filter)
    for message, found_for in matching.items():
        yield from _by_client(message, found_for.values())


def _by_client(message: Message, matching: Iterable[Subscribed]) -> Iterator[Expected]:
    found: dict[str, Expected] = {}
    for one in matching:
        name = one.filter if one.group else one.name
        found.setdefault(name, Expected(message, name)).matching.append(one)
    yield from found.values()


class Presence:
    """When the clients of a broker were connected.

    Parameters
    ----------
    links
        In the order in which they were opened.
    """

    def __init__(self, links: Iterable[Link]) -> None:
        self._links: dict[str, list[Link]] = {}
        for link in links:
            if link.accepted is not None:
                self._links.setdefault(link.name, []).append(link)

    def at(self, name: str, start: int, stop: int) -> tuple[Link | None, bool]:
        """Return the connection a client had from `start` to `stop`.

        Returns
        -------
        link, certain
            Not certain is one that began or ended between them; None is none at all.
        """
        links = self._links.get(name, [])
        behind = bisect_right(links, stop, key=_accepted)
        link = links[behind - 1] if behind else None
        if link is None or (link.closed is not None and link.closed.place < start):
            return None, True
        return link, _accepted(link) < start and (link.until is None or stop <= link.until)

    def after(self, name: str, place: int) -> Link | None:
        """Return the first connection of a client after a place."""
        links = self._links.get(name, [])
        behind = bisect_right(links, place, key=_accepted)
        return links[behind] if behind < len(links) else None


def _accepted(link: Link) -> int:
    assert link.accepted is not None
    return link.accepted.place
