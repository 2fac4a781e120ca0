"""What the packets of one client id do: sessions, broken rules, and notes for the steps behind."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Final, TypeVar

from wireyard.formats.base import Row
from wireyard.layers.mqtt.deliveries import content_note
from wireyard.layers.mqtt.missing import link_note
from wireyard.layers.mqtt.observer import Observer
from wireyard.layers.mqtt.rows import session_row, violation_row
from wireyard.layers.mqtt.sent import message_notes
from wireyard.layers.mqtt.subscribers import last_note, subscription_note, topic_note, will_note
from wireyard.layers.mqtt.values import attempt_note, value_notes
from wireyard.layers.steps import Dropped, Fact, Found

__all__ = ["CLIENTS", "follow_clients"]

CLIENTS: Final = "clients"
_TAKEN_AWAY: Final = 1024
"""Packets after which what is final is taken away from the observer."""
_MAX_TOPICS: Final = 1 << 14
"""Topics that are remembered as noted; those that are forgotten are noted once more."""

Record = TypeVar("Record")


def follow_clients(rows: Iterator[Row]) -> Iterator[Found]:
    """Follow the packets of a client id of a broker, which come behind the rows of its streams."""
    streams: list[Row] = []
    for row in rows:
        if row.get("offset") is not None:
            yield from _follow(Observer(streams), chain((row,), rows))
        else:
            streams.append(row)


def _follow(observer: Observer, packets: Iterator[Row]) -> Iterator[Found]:
    topics: set[tuple[str, bool]] = set()
    for place, packet in enumerate(packets, 1):
        observer.take(packet)
        if place % _TAKEN_AWAY == 0:
            yield from _take_away(observer, topics)
    observer.finish()
    yield from _take_away(observer, topics)
    for key, broker in observer.brokers.items():
        if observer.last is not None:
            yield last_note(key, observer.last, broker.has_older)
    for cap, things in observer.notes.dropped.items():
        yield Dropped(cap, things)


def _take_away(observer: Observer, topics: set[tuple[str, bool]]) -> Iterator[Found]:
    notes = observer.notes
    for link in _taken(notes.links):
        yield Fact("sessions", session_row(link))
        if link.accepted is not None:
            for name in link.served_as:
                yield link_note(link, name)
    for breach in _taken(notes.violations):
        yield Fact("violations", violation_row(breach))
    for subscribed in _taken(notes.subscriptions):
        yield subscription_note(subscribed)
    for change in _taken(notes.changes):
        yield from value_notes(change)
    for message in _taken(notes.messages):
        if _is_new((message.topic, message.retain), topics):
            yield topic_note(message)
        yield from message_notes(message)
    for will in _taken(notes.waiting):
        if _is_new((will.topic, will.retain), topics):
            yield topic_note(will)
        yield will_note(will)
    for each in _taken(notes.attempts):
        yield attempt_note(each) if each.retain else content_note(each)


def _is_new(topic: tuple[str, bool], topics: set[tuple[str, bool]]) -> bool:
    if topic in topics:
        return False
    if len(topics) == _MAX_TOPICS:
        topics.clear()
    topics.add(topic)
    return True


def _taken(records: list[Record]) -> list[Record]:
    taken = records[:]
    records.clear()
    return taken
