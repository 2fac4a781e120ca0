"""The retained values of a topic, one after the other, and which of them were handed over."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from wireyard.layers.mqtt.deliveries import content_note
from wireyard.layers.mqtt.records import Handed, Moment, Setting, content_of
from wireyard.layers.mqtt.retained import Retained, Value
from wireyard.layers.mqtt.rows import retained_row
from wireyard.layers.steps import Dropped, Fact, Found, Note, Order, fact_of, note_of

__all__ = ["VALUES", "handed_note", "keep_values", "setting_note"]

VALUES: Final = "values"
_SET, _HANDED = range(2)
"""The order of what is of the same time."""
_LOOK_BACK: Final = 16
"""Values of one topic that may replace each other while one is handed over."""
_NS_PER_S: Final = 1_000_000_000


def setting_note(setting: Setting) -> Note:
    """Note what a message did to the value of its topic."""
    key = (*setting.client[:2], setting.topic)
    return note_of((VALUES, key, _order(setting.at, _SET), setting))


def handed_note(each: Handed) -> Note:
    """Note a message that was handed over with RETAIN."""
    return Note(VALUES, (*each.client[:2], each.topic), _order(each.at, _HANDED), each)


def _order(at: Moment, rank: int) -> Order:
    return at.time, rank, *at[:4]


def keep_values(records: Iterator[Setting | Handed]) -> Iterator[Found]:
    """Yield the values of a topic; what was handed over of them learns which message set it.

    A value may be on its way while the next ones come, but not while many do.
    """
    retained = Retained()
    setters: dict[str, Setting] = {}
    recent: deque[tuple[bytes, Moment]] = deque(maxlen=_LOOK_BACK)
    for record in records:
        if isinstance(record, Handed):
            found = (sent for content, sent in reversed(recent) if content == record.content)
            yield content_note(replace(record, setter=next(found, None)))
            continue
        topic, payload, at, key = record.topic, record.payload, record.at, record.sent.key
        expires = None
        if record.expires_s is not None and at.ns is not None:
            expires = at.ns + record.expires_s * _NS_PER_S
        retained.set(Value(topic, payload, record.qos, key, at.time), expires)
        if payload:
            setters[key] = record
            recent.append((content_of(payload), record.sent))
        for value in retained.take_past(topic):
            yield fact_of(("retained", retained_row(value, setters.pop(value.key))))
    for value in retained.values():
        yield Fact("retained", retained_row(value, setters[value.key]))
    if retained.dropped:
        yield Dropped("retained", retained.dropped)
