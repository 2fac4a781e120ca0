"""Why a message was not handed over: where its subscriber was, and what became of its session."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import Final, NamedTuple

from wireyard.layers.mqtt.expected import Expected
from wireyard.layers.mqtt.records import (
    BEHIND,
    SMALLEST_WINDOW,
    Link,
    Message,
    Moment,
    Subscribed,
    may_exceed,
)
from wireyard.layers.mqtt.rows import delivery_row
from wireyard.layers.steps import Fact, Found, Key, Note

__all__ = ["MISSING", "explain", "link_note", "missing_note", "seen_note"]

MISSING: Final = "missing"
_SEEN, _LINK, _MISSED = range(3)
"""The order of the notes."""
_NS_PER_S: Final = 1_000_000_000
_STOPS_WITHIN_NS: Final = _NS_PER_S
"""How long a broker takes to end its connections, about."""


class Missed(NamedTuple):
    """A message that was due to a client, or to one of a group, and was not handed over."""

    message: Message
    subscribed: Subscribed
    granted: tuple[tuple[str, int], ...]
    """Who was subscribed for certain, and at which QoS."""


def seen_note(broker: Key, name: str, at: Moment) -> Note:
    """Note, for who is served under a name, the last packet that the broker sent to anybody."""
    return Note(MISSING, (*broker, name), at.order(_SEEN), at)


def link_note(link: Link, name: str) -> Note:
    """Note a connection of a client that is served under a name."""
    return Note(MISSING, (*link.client[:2], name), link.opened.order(_LINK), link)


def missing_note(one: Expected, certain: list[Subscribed]) -> Note:
    """Note a message that was not handed over to anybody of those who were due to get it."""
    granted: dict[str, int] = {}
    for sub in certain:
        granted[sub.client.name] = max(sub.qos, granted.get(sub.client.name, 0))
    missed = Missed(one.message, one.matching[0], tuple(granted.items()))
    key = (*one.message.client[:2], one.name)
    return Note(MISSING, key, one.message.sent.order(_MISSED), missed)


def explain(records: Iterator[Moment | Link | Missed]) -> Iterator[Found]:
    """Yield deliveries that were missed by one client, or by those that share a subscription."""
    last_seen: Moment | None = None
    presence = Presence()
    for record in records:
        if isinstance(record, Moment):
            last_seen = record
        elif isinstance(record, Link):
            presence.add(record)
        else:
            link, verdict = _missed(record, presence, last_seen)
            row = delivery_row(record.message, None, record.subscribed, verdict, link)
            yield Fact("deliveries", row)


class Presence:
    """When clients were connected."""

    def __init__(self) -> None:
        self._links: dict[str, list[Link]] = {}

    def add(self, link: Link) -> None:
        """Add a connection that was accepted; those of a client in the order of their opening."""
        self._links.setdefault(link.client.name, []).append(link)

    def at(self, name: str, start: Moment, stop: Moment) -> tuple[Link | None, bool]:
        """Return the connection a client had from `start` to `stop`.

        Returns
        -------
        link, certain
            Not certain is one that began or ended between them; None is none at all.
        """
        links = self._links.get(name, [])
        behind = bisect_right(links, stop, key=_accepted)
        link = links[behind - 1] if behind else None
        if link is None or (link.closed is not None and link.closed < start):
            return None, True
        return link, _accepted(link) < start and (link.until is None or stop <= link.until)

    def after(self, name: str, moment: Moment) -> Link | None:
        """Return the first connection of a client after a moment."""
        links = self._links.get(name, [])
        behind = bisect_right(links, moment, key=_accepted)
        return links[behind] if behind < len(links) else None


def _accepted(link: Link) -> Moment:
    assert link.accepted is not None
    return link.accepted


def _missed(one: Missed, presence: Presence, last_seen: Moment | None) -> tuple[Link | None, str]:
    """Return the connection that a message was missed on, and why."""
    found: tuple[Link | None, str] = (None, "undecided")
    for name, qos in one.granted:
        found = _missed_by(name, min(qos, one.message.qos), one.message, presence, last_seen)
        if found[1] != "not_forwarded":
            break  # A group is served by any member the broker likes, also one that is away.
    return found


def _missed_by(
    name: str, qos: int, message: Message, presence: Presence, last_seen: Moment | None
) -> tuple[Link | None, str]:
    """Return why a client that was subscribed did not get a message that the broker took."""
    assert message.accepted is not None
    link, certain = presence.at(name, message.start, message.accepted)
    if not certain or (link and message.origin == "will" and _ends_with(link, message.accepted)):
        return link, "undecided"
    if link is None:
        if qos == 0:
            return None, "offline"
        link = presence.after(name, message.accepted)
        if link is None:
            return None, "queued"
        if not link.resumed:
            return link, "discarded"
        if _expired(message, link):
            return link, "expired"
    silent = last_seen is None or last_seen <= max(message.accepted, link.opened)
    if link.damaged or silent:
        return link, "undecided"
    if may_exceed(link.maximum_packet_size, message.topic, message.length):
        return link, "too_large"
    if qos and link.in_flight[1] >= SMALLEST_WINDOW:
        return link, "queued"
    return link, "not_forwarded"


def _ends_with(link: Link, moment: Moment) -> bool:
    """Tell whether a FIN was all that came on a connection, soon after the FIN of another one.

    A broker that stops ends all connections, one behind the other, and need publish no will.
    """
    closed, last = link.closed, link.last
    if closed is None or last is None or {closed.offset, moment.offset} != {BEHIND}:
        return False
    return last < moment and closed.time - moment.time < _STOPS_WITHIN_NS


def _expired(message: Message, link: Link) -> bool:
    opened, sent = link.opened.ns, message.sent.ns
    if message.expires_s is None or opened is None or sent is None:
        return False
    return opened >= sent + message.expires_s * _NS_PER_S
