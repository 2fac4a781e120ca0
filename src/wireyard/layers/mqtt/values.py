"""The retained values of a topic, one after the other, and who got them, or should have."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from typing import Final, NamedTuple

from wireyard.layers.mqtt.deliveries import content_note
from wireyard.layers.mqtt.initial_values import InitialValues
from wireyard.layers.mqtt.records import Handed, Moment, Setting, Subscribed, content_of
from wireyard.layers.mqtt.retained import Retained, Value
from wireyard.layers.mqtt.rows import retained_row
from wireyard.layers.steps import Dropped, Fact, Found, Note, Order, fact_of, note_of

__all__ = ["VALUES", "handed_note", "keep_values", "new_subscription_note", "setting_notes"]

VALUES: Final = "values"
_SET, _CHANGES, _SUBSCRIBED, _HANDED = range(4)
"""The order of what is of the same time."""
_LOOK_BACK: Final = 16
"""Values of one topic that may replace each other while one is handed over."""
_NS_PER_S: Final = 1_000_000_000


class Change(NamedTuple):
    """That a message was sent which sets the value later, with its PUBREL."""

    sent: Moment
    accepted: Moment | None


def setting_notes(setting: Setting) -> Iterator[Note]:
    """Note what a message did to the value of its topic, and from when on it may have."""
    key = (*setting.client[:2], setting.topic)
    yield note_of((VALUES, key, _order(setting.at, _SET), setting))
    if setting.sent < setting.at:
        change = Change(setting.sent, setting.accepted)
        yield Note(VALUES, key, _order(setting.sent, _CHANGES), change)


def new_subscription_note(topic: str, subscribed: Subscribed) -> Note:
    """Note a subscription that matches a topic which has retained values."""
    key = (*subscribed.client[:2], topic)
    return Note(VALUES, key, _order(subscribed.asked, _SUBSCRIBED), subscribed)


def handed_note(each: Handed) -> Note:
    """Note a message that was handed over with RETAIN."""
    return Note(VALUES, (*each.client[:2], each.topic), _order(each.at, _HANDED), each)


def _order(at: Moment, rank: int) -> Order:
    return at.time, rank, *at[:4]


def keep_values(records: Iterator[Setting | Change | Subscribed | Handed]) -> Iterator[Found]:
    """Yield the values of a topic; what was handed over of them learns which message set it.

    A value may be on its way while the next ones come, but not while many do.
    """
    retained = Retained()
    setters: dict[str, Setting] = {}
    recent: deque[tuple[bytes, Setting]] = deque(maxlen=_LOOK_BACK)
    initial = InitialValues()
    topic: str | None = None
    for record in records:
        if isinstance(record, Setting):
            topic = record.topic
            _set(record, retained)
            if record.payload:
                setters[record.sent.key] = record
                recent.append((content_of(record.payload), record))
            initial.change(record.sent, record.accepted)
            for value in retained.take_past(topic):
                yield fact_of(("retained", retained_row(value, setters.pop(value.key))))
        elif isinstance(record, Handed):
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
            setting = setters.get(current.key) if current else None
            initial.subscribe(record, current, setting)
        else:
            initial.change(record.sent, record.accepted)
    yield from initial.missing()
    for value in retained.values():
        yield Fact("retained", retained_row(value, setters[value.key]))
    if retained.dropped:
        yield Dropped("retained", retained.dropped)


def _set(setting: Setting, retained: Retained) -> None:
    at, expires = setting.at, None
    if setting.expires_s is not None and at.ns is not None:
        expires = at.ns + setting.expires_s * _NS_PER_S
    value = Value(setting.topic, setting.payload, setting.qos, setting.sent.key, at.time)
    retained.set(value, expires)
