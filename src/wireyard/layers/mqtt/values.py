"""The retained values of a topic, one after the other, and who got them, or should have."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from typing import Final, NamedTuple

from wireyard.layers.mqtt.deliveries import content_note
from wireyard.layers.mqtt.initial_values import InitialValues
from wireyard.layers.mqtt.records import Attempt, Subscribed, ValueChange, content_of
from wireyard.layers.mqtt.retained import Retained, Value
from wireyard.layers.mqtt.rows import retained_row
from wireyard.layers.records import Position
from wireyard.layers.steps import Dropped, Fact, Found, Note, Order, fact_of, note_of

__all__ = ["VALUES", "attempt_note", "keep_values", "new_subscription_note", "value_notes"]

VALUES: Final = "values"
_SET, _CHANGES, _SUBSCRIBED, _HANDED = range(4)
"""The order of what is of the same time."""
_LOOK_BACK: Final = 16
"""Values of one topic that may replace each other while one is delivered."""
_NS_PER_S: Final = 1_000_000_000


class Change(NamedTuple):
    """That a message was sent which sets the value later, with its PUBREL."""

    sent: Position
    accepted: Position | None


def value_notes(change: ValueChange) -> Iterator[Note]:
    """Note what a message did to the value of its topic, and from when on it may have."""
    key = (*change.client[:2], change.topic)
    yield note_of((VALUES, key, _order(change.at, _SET), change))
    if change.sent < change.at:
        span = Change(change.sent, change.accepted)
        yield Note(VALUES, key, _order(span.sent, _CHANGES), span)


def new_subscription_note(topic: str, subscribed: Subscribed) -> Note:
    """Note a subscription that matches a topic which has retained values."""
    key = (*subscribed.client[:2], topic)
    return Note(VALUES, key, _order(subscribed.asked, _SUBSCRIBED), subscribed)


def attempt_note(each: Attempt) -> Note:
    """Note a message that was delivered with RETAIN."""
    return Note(VALUES, (*each.client[:2], each.topic), _order(each.at, _HANDED), each)


def _order(at: Position, rank: int) -> Order:
    return at.time, rank, *at.order


def keep_values(records: Iterator[ValueChange | Change | Subscribed | Attempt]) -> Iterator[Found]:
    """Yield the values of a topic; what was delivered of them learns which message set it.

    A value may be on its way while the next ones come, but not while many do.
    """
    retained = Retained()
    setters: dict[str, ValueChange] = {}
    recent: deque[tuple[bytes, ValueChange]] = deque(maxlen=_LOOK_BACK)
    initial = InitialValues()
    topic: str | None = None
    for record in records:
        if isinstance(record, ValueChange):
            topic = record.topic
            _set(record, retained)
            if record.payload:
                setters[record.sent.key] = record
                recent.append((content_of(record.payload), record))
            initial.change(record.sent, record.accepted)
            for value in retained.take_past(topic):
                yield fact_of(("retained", retained_row(value, setters.pop(value.key))))
        elif isinstance(record, Attempt):
            found = [one for content, one in reversed(recent) if content == record.content]
            setter = found[0].sent if found else None
            is_live = bool(found) and initial.is_live(record, found[0])
            may_be_live = record.may_be_live and not is_live
            yield content_note(
                replace(record, setter=setter, is_live=is_live, may_be_live=may_be_live)
            )
            yield from initial.deliver(record, found)
        elif isinstance(record, Subscribed):
            current = retained.at(topic, record.asked.time) if topic is not None else None
            change = setters.get(current.key) if current else None
            initial.subscribe(record, current, change)
        else:
            initial.change(record.sent, record.accepted)
    yield from initial.missing()
    for value in retained.values():
        yield Fact("retained", retained_row(value, setters[value.key]))
    if retained.dropped:
        yield Dropped("retained", retained.dropped)


def _set(change: ValueChange, retained: Retained) -> None:
    at, expires = change.at, None
    if change.expires_s is not None and at.ns is not None:
        expires = at.ns + change.expires_s * _NS_PER_S
    value = Value(change.topic, change.payload, change.qos, change.sent.key, at.time)
    retained.set(value, expires)
