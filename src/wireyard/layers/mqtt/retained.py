"""Retained values: of a broker, of a topic one after the other, and who should get them.

Rules of this file (errata M28 and M29):

1. Nothing is held against a broker while a value may be another one: from when a message that sets
   the value is sent until the broker has shown that it took it.
2. A value is missing where the subscription's `confirmed` shows that the broker was done with it,
   and the value never came. One that was published at QoS 0 may be discarded at any time.
3. A subscription whose session is older than the capture is judged by nothing: another one that
   was not seen may be what a value was sent for.
4. Of values that begin at the same time the later counts.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from wireyard.layers.mqtt.deliveries import content_record
from wireyard.layers.mqtt.records import (
    DELIVERED,
    SUBSCRIBED,
    VALUES,
    Attempt,
    Change,
    Subscribed,
    ValueChange,
    content_of,
    may_exceed,
    value_order,
)
from wireyard.layers.mqtt.rows import PROTOCOL, retained_row
from wireyard.layers.mqtt.topics import matches
from wireyard.layers.mqtt.violations import broken, violation_of
from wireyard.layers.records import Position, violation_row
from wireyard.layers.stages import Dropped, Fact, Found, KeyedRecord, fact_of

__all__ = [
    "MAX_RETAINED_BYTES",
    "MAX_RETAINED_VALUES",
    "InitialValues",
    "Retained",
    "Value",
    "attempt_record",
    "keep_values",
    "new_subscription_record",
]

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
        """Set the value of a message with RETAIN: a new one, or none if its payload is empty.

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


_AS_PUBLISHED: Final = 2
"""The version of 1999: a value is sent with the QoS that it was published with."""


class _Due(NamedTuple):
    """A value that a subscription should get."""

    subscribed: Subscribed
    confirmed: Position
    change: ValueChange
    content: bytes


class InitialValues:
    """What new subscriptions to one topic should get; records come in the order of time.

    Limits
    ------
    What is held is the subscriptions that match the topic, which are `MAX_SUBSCRIPTIONS` at most.
    """

    def __init__(self) -> None:
        self._settled: Position | None = None
        """From when on the value is what was set last."""
        self._is_unsettled = False
        """Whether a broker may take a message still that sets the value."""
        self._by_client: dict[str, list[Subscribed]] = {}
        self._due: dict[str, list[_Due]] = {}
        self._live: dict[str, tuple[Position, int]] = {}
        """The message that set the value which a client had last, and how often it had it."""
        self._unconfirmed: list[_Due] = []
        """Those of `_due` that a change of the value still concerns."""

    def change(self, sent: Position, accepted: Position | None) -> None:
        """Record that the value changes, at some time between two packets."""
        concerned = [one for one in self._unconfirmed if sent < one.confirmed]
        self._unconfirmed.clear()
        for one in concerned:
            if one in (due := self._due[one.subscribed.client.name]):
                due.remove(one)
        if accepted is None:
            self._is_unsettled = True
        else:
            self._settled = max(self._settled or accepted, accepted)

    def subscribe(
        self, subscribed: Subscribed, value: Value | None, change: ValueChange | None
    ) -> None:
        """Observe a new subscription, and the value that the topic has as far as anybody saw."""
        name = subscribed.client.name
        self._by_client.setdefault(name, []).append(subscribed)
        confirmed = subscribed.confirmed
        if confirmed is None or value is None or change is None:
            return
        if self._is_due(subscribed, value, change, confirmed):
            due = _Due(subscribed, confirmed, change, content_of(value.payload))
            self._due.setdefault(name, []).append(due)
            self._unconfirmed.append(due)

    def _is_due(
        self, subscribed: Subscribed, value: Value, change: ValueChange, confirmed: Position
    ) -> bool:
        if self._is_unsettled or self._settled is None or subscribed.asked < self._settled:
            return False
        own = subscribed.no_local and change.client.name == subscribed.client.name
        too_large = may_exceed(subscribed.maximum_packet_size, value.topic, change.length)
        lasts = value.until is None or confirmed.time < value.until
        can_be_compared = confirmed.ns is not None and subscribed.known
        sent = value.qos > 0 and subscribed.gets_values and not (own or too_large)
        return can_be_compared and sent and lasts

    def deliver(self, each: Attempt, changes: Sequence[ValueChange]) -> Iterator[Fact]:
        """Observe what was delivered with RETAIN; `changes` may have set its value."""
        name = each.client.name
        due = self._due.get(name, [])
        # What nobody was seen to set has taken the place of the value.
        due[:] = [one for one in due if changes and one.content != each.content]
        matching = self._by_client.get(name, [])
        if not matching or each.at.ns is None or not all(one.known for one in matching):
            return
        allowed = {
            change.qos if one.version == _AS_PUBLISHED else min(change.qos, one.qos)
            for change in changes
            for one in matching
        }
        if allowed and each.qos not in allowed:
            yield from _violations("retained_qos", matching[-1], each.at, changes[0])

    def is_live(self, each: Attempt, change: ValueChange) -> bool:
        """Return whether what was delivered with RETAIN was so because it was sent.

        The broker sent as many copies of it as there were subscriptions with Retain As Published.
        """
        until = change.accepted or each.at
        copies = sum(
            one.retain_as_published
            and one.asked < until
            and (one.gone is None or change.sent < one.gone)
            for one in self._by_client.get(each.client.name, ())
        )
        if not copies:
            return False
        sent, count = self._live.get(each.client.name, (None, 0))
        count = count + 1 if sent == change.sent else 1
        self._live[each.client.name] = change.sent, count
        return count <= copies

    def missing(self) -> Iterator[Fact]:
        """Yield what never came."""
        for due in self._due.values():
            for one in due:
                yield from _violations(
                    "retained_missing", one.subscribed, one.confirmed, one.change
                )


def _violations(
    rule: str, subscribed: Subscribed, at: Position, change: ValueChange
) -> Iterator[Fact]:
    """Yield that the broker broke a rule, if the version of its client has it."""
    if (found := broken(rule, subscribed.version)) is not None:
        violation = violation_of(*found, subscribed.client, False, at, change.sent.key)
        yield fact_of(("violations", violation_row(PROTOCOL, violation)))


_LOOK_BACK: Final = 16
"""Values of one topic that may replace each other while one is delivered."""
_NS_PER_S: Final = 1_000_000_000


def new_subscription_record(topic: str, subscribed: Subscribed) -> KeyedRecord:
    """Pass on a subscription that matches a topic which has retained values."""
    key = (*subscribed.client[:2], topic)
    return KeyedRecord(VALUES, key, value_order(subscribed.asked, SUBSCRIBED), subscribed)


def attempt_record(each: Attempt) -> KeyedRecord:
    """Pass on a message that was delivered with RETAIN."""
    return KeyedRecord(
        VALUES, (*each.client[:2], each.topic), value_order(each.at, DELIVERED), each
    )


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
            yield content_record(
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
