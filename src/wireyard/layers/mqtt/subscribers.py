"""Which subscriptions match which topics of a broker, and what else its clients show of it.

The one step that takes something of all clients of a broker: subscriptions, each topic, and how far
each of them was seen. Messages go past it.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, groupby
from operator import attrgetter
from typing import Final, NamedTuple

from wireyard.layers.mqtt.deliveries import older_note, subscribed_note
from wireyard.layers.mqtt.records import Message, Subscribed
from wireyard.layers.mqtt.sent import message_notes
from wireyard.layers.mqtt.subscriptions import Subscription, Subscriptions
from wireyard.layers.mqtt.topics import split_shared, topic_hash
from wireyard.layers.mqtt.values import new_subscription_note
from wireyard.layers.records import Position
from wireyard.layers.steps import Dropped, Found, Key, Note

__all__ = [
    "MAX_SUBSCRIPTIONS",
    "SUBSCRIBERS",
    "last_note",
    "match_topics",
    "subscription_note",
    "topic_note",
    "will_note",
]

SUBSCRIBERS: Final = "subscribers"
MAX_SUBSCRIPTIONS: Final = 1 << 20
"""Subscriptions of a broker that are kept, those of the past too: at 600 bytes each 600 MiB."""
_SUBSCRIBED, _LAST, _WILL, _TOPIC = range(4)
"""The order of the notes."""


class Topic(NamedTuple):
    """A topic that there are messages on."""

    name: str
    is_retained: bool


class Last(NamedTuple):
    """How far the packets of a client go, and whether some of its sessions are older."""

    broker: Key
    at: Position
    has_older: bool


def subscription_note(subscribed: Subscribed) -> Note:
    """Note a subscription."""
    order = _SUBSCRIBED, 0, *subscribed.since.order
    return Note(SUBSCRIBERS, subscribed.client[:2], order, subscribed)


def last_note(broker: Key, last: Position, has_older: bool) -> Note:
    """Note the last packet of a client, or to it, and whether its session may be older."""
    return Note(SUBSCRIBERS, broker, (_LAST, 0, *last.order), Last(broker, last, has_older))


def will_note(will: Message) -> Note:
    """Note a will that is published at the end of its delay, if the capture has that."""
    return Note(SUBSCRIBERS, will.client[:2], (_WILL, 0, *will.sent.order), will)


def topic_note(message: Message) -> Note:
    """Note that there are messages on a topic, and whether they set its value."""
    order = _TOPIC, topic_hash(message.topic), *message.sent.order
    return Note(SUBSCRIBERS, message.client[:2], order, Topic(message.topic, message.retain))


def match_topics(records: Iterator[Subscribed | Last | Message | Topic]) -> Iterator[Found]:
    """Yield, for every topic of a broker, the subscriptions that ever matched it.

    Limits
    ------
    Subscriptions that are too many match nothing, and are counted.
    """
    kept = _Kept()
    last: Position | None = None
    matched: set[Topic] = set()
    of_hash: int | None = None
    for record in records:
        if isinstance(record, Subscribed):
            kept.add(record)
        elif isinstance(record, Last):
            last = max(last or record.at, record.at)
            if record.has_older:
                kept.older_of = record.broker
        elif isinstance(record, Message):
            if last is not None and record.accepted is not None and record.accepted < last:
                yield from message_notes(record)
        else:
            # Topics come by their hash, so those before are done with.
            if topic_hash(record.name) != of_hash:
                of_hash, matched = topic_hash(record.name), set()
            yield from _matched(record, kept, matched)
    if kept.refused:
        yield Dropped("filters", kept.refused)


def _matched(topic: Topic, kept: _Kept, matched: set[Topic]) -> Iterator[Found]:
    """Yield the subscriptions that match a topic to the steps that have not had them yet."""
    name, is_retained = topic
    is_new = not matched & {Topic(name, False), Topic(name, True)}
    has_new_values = is_retained and topic not in matched
    matched.add(topic)
    if not is_new and not has_new_values:
        return
    if is_new and kept.older_of is not None:
        yield older_note(kept.older_of, name)
    for place, subscribed in enumerate(kept.matching(name)):
        if is_new:
            yield subscribed_note(name, place, subscribed)
        if has_new_values:
            yield new_subscription_note(name, subscribed)


class _Kept:
    """The subscriptions of a broker by what they match."""

    def __init__(self) -> None:
        self.refused = 0
        self.older_of: Key | None = None
        """The broker, if some of its subscriptions may be older than the capture."""
        self._tree = Subscriptions()
        self._by_filter: dict[str, list[Subscribed]] = {}
        self._count = 0

    def add(self, subscribed: Subscribed) -> None:
        """Keep a subscription, unless there are too many."""
        filter = subscribed.filter
        if self._count == MAX_SUBSCRIPTIONS:
            self.refused += 1
        elif filter in self._by_filter or self._tree.subscribe(Subscription("", filter)):
            self._count += 1
            self._by_filter.setdefault(filter, []).append(subscribed)
        else:
            self.refused += 1

    def matching(self, topic: str) -> Iterator[Subscribed]:
        """Yield those that ever matched a topic, by what their filters match, then by age."""
        found = self._tree.matching(topic)
        for _, same in groupby(found, key=lambda one: split_shared(one.filter)[1]):
            kept = chain.from_iterable(self._by_filter.get(one.filter, ()) for one in same)
            yield from sorted(kept, key=attrgetter("since"))
