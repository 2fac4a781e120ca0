"""Retained values: the successive values of each topic, and the new subscriptions that get them.

Rules of this file (errata M28 and M29):

1. No violation is concluded while the value is uncertain: from when a message that changes it is
   sent until the broker confirms that message.
2. A value is missing if it was not delivered before the `confirmed` position of the subscription.
   A broker may discard a value that was published at QoS 0 at any time.
3. Nothing is concluded about a session that is older than the capture: a value may have been sent
   for a subscription that was not captured.
4. If two values begin at the same time, the later one counts.
5. At QoS 2 a broker may take the value with PUBLISH or with PUBREL. Where the order of two changes
   depends on that, either may be the value.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from wireyard.layers.mqtt.records import (
    DELIVERED,
    PROTOCOL,
    SUBSCRIBED,
    VALUES,
    Attempt,
    Lost,
    PendingChange,
    Subscribed,
    ValueChange,
    content_of,
    may_exceed,
    value_order,
)
from wireyard.layers.mqtt.topics import matches
from wireyard.layers.mqtt.violations import cite, violation_of
from wireyard.layers.records import Position, violation_row
from wireyard.layers.stages import Dropped, Fact, Found, KeyedRecord, fact_of

__all__ = [
    "MAX_RETAINED_BYTES",
    "MAX_RETAINED_VALUES",
    "InitialValues",
    "Retained",
    "Value",
    "attempt_record",
    "broker_violations",
    "keep_values",
    "new_subscription_record",
]

MAX_RETAINED_VALUES: Final = 1 << 19
"""Values kept, past ones included: without payload about 400 bytes each, so 200 MiB."""
MAX_RETAINED_BYTES: Final = 1 << 30
"""Bytes of their topics and payloads; one payload may have 256 MiB."""


@dataclass(slots=True)
class Value:
    """The value of a topic from `since` on, before `until`."""

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
    """The retained values of all topics of a broker.

    Parameters
    ----------
    most, most_bytes
        The most values, and bytes, that are kept. A value above a limit is only counted in
        `dropped`. The value before it still ends, so an old value never counts as the current one.
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

    def set(self, value: Value, expires: int | None = None, deletes: bool = False) -> None:
        """Set the value of a message with RETAIN: a new one, or none if it deletes the last one.

        Parameters
        ----------
        expires
            When the value expires; None if it does not.
        """
        history = self._values.get(value.topic)
        if history:
            _end(history[-1], value.since, "deleted" if deletes else "replaced")
        if deletes:
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
        """Yield the values that a new subscription to a filter gets at a time."""
        for topic in self._values:
            if matches(filter, topic) and (value := self.at(topic, time)):
                yield value

    def take_past(self, topic: str) -> Iterator[Value]:
        """Remove the values of a topic that were replaced; yield them."""
        history = self._values.get(topic, [])
        if len(history) < 2:
            return
        past = history[:-1]
        del history[:-1]
        self._count -= len(past)
        self._bytes -= sum(len(value.topic) + len(value.payload) for value in past)
        yield from past

    def values(self) -> Iterator[Value]:
        """Yield all values that are kept, by topic in the order of time."""
        for history in self._values.values():
            yield from history


def _since(value: Value) -> int:
    return value.since


def _end(value: Value, time: int, how: str) -> None:
    if value.until is None or time < value.until:
        value.until, value.ended_by = time, how


_AS_PUBLISHED: Final = 2
"""The version of 1999, which sends a value with the QoS that it was published with."""
_WITH_DELETION: Final = 4
"""The first version in which a broker has to delete a value; in 3.1 it may."""
_NEVER: Final = 2
"""Retain Handling: retained values are not sent."""


class _ExpectedValue(NamedTuple):
    """A retained value that a new subscription should get."""

    subscribed: Subscribed
    confirmed: Position
    change: ValueChange
    content: bytes


@dataclass(slots=True)
class _Recent:
    """A value that a new subscription may get, and when the broker had certainly another one."""

    content: bytes
    change: ValueChange
    superseded: Position | None = None
    replaced: Position | None = None
    """The same if values are not deleted."""
    live: Counter[str] = field(default_factory=Counter)
    """By client, how often its message was delivered live."""

    def supersede(self, newer: ValueChange) -> None:
        """Observe a later change of the value."""
        if newer.accepted is not None and self.change.sent < newer.sent:
            self.superseded = min(self.superseded or newer.accepted, newer.accepted)
            if not newer.deletes:
                self.replaced = min(self.replaced or newer.accepted, newer.accepted)


class InitialValues:
    """The retained values that new subscriptions to one topic should get.

    Records come in the order of time.

    Limits
    ------
    The subscriptions that match the topic are held, at most `MAX_SUBSCRIPTIONS`.
    """

    def __init__(self) -> None:
        self._settled: Position | None = None
        """The position from which the value of the last change is certain."""
        self._is_unsettled = False
        """Whether a broker may still accept an unconfirmed message that changes the value."""
        self._sent: Position | None = None
        """The message sent last that has changed the value."""
        self._is_ambiguous = False
        """Whether the value of another message may be the last one."""
        self._by_client: dict[str, list[Subscribed]] = {}
        self._expected: dict[str, list[_ExpectedValue]] = {}
        self._unconfirmed: list[_ExpectedValue] = []
        """The values of `_expected` that a change of the value can still make uncertain."""
        self._delivered: Counter[tuple[str, bytes]] = Counter()
        """How often each client got a value."""

    def change(self, sent: Position, accepted: Position | None) -> None:
        """Observe a change of the value, at some time between two positions."""
        uncertain = [one for one in self._unconfirmed if sent < one.confirmed]
        self._unconfirmed.clear()
        for one in uncertain:
            if one in (expected := self._expected[one.subscribed.client.name]):
                expected.remove(one)
        if accepted is None:
            self._is_unsettled = True
        else:
            self._settled = max(self._settled or accepted, accepted)

    def set(self, change: ValueChange) -> None:
        """Observe that a message has changed the value."""
        self._is_ambiguous = self._sent is not None and change.sent < self._sent
        self._sent = max(self._sent or change.sent, change.sent)
        self.change(change.sent, change.accepted)

    def subscribe(
        self, subscribed: Subscribed, value: Value | None, change: ValueChange | None
    ) -> None:
        """Observe a new subscription, and the value of the topic as captured."""
        name = subscribed.client.name
        self._by_client.setdefault(name, []).append(subscribed)
        confirmed = subscribed.confirmed
        if confirmed is None or value is None or change is None:
            return
        if self._is_expected(subscribed, value, change, confirmed):
            expected = _ExpectedValue(subscribed, confirmed, change, content_of(value.payload))
            self._expected.setdefault(name, []).append(expected)
            self._unconfirmed.append(expected)

    def _is_expected(
        self, subscribed: Subscribed, value: Value, change: ValueChange, confirmed: Position
    ) -> bool:
        if self._is_unsettled or self._settled is None or subscribed.asked < self._settled:
            return False
        if self._is_ambiguous:
            return False
        own = subscribed.no_local and change.client.name == subscribed.client.name
        too_large = may_exceed(subscribed.maximum_packet_size, value.topic, change.length)
        lasts = value.until is None or confirmed.time < value.until
        can_be_compared = confirmed.ns is not None and subscribed.known
        sent = value.qos > 0 and subscribed.gets_values and not (own or too_large)
        return can_be_compared and sent and lasts

    def deliver(self, attempt: Attempt, changes: Sequence[ValueChange]) -> Iterator[Fact]:
        """Observe a delivery with RETAIN; `changes` are those that may have set its value."""
        name = attempt.client.name
        expected = self._expected.get(name, [])
        # Without `changes`, a value that was not captured has replaced the expected ones.
        expected[:] = [one for one in expected if changes and one.content != attempt.content]
        matching = self._by_client.get(name, [])
        if not matching or attempt.at.ns is None or not all(one.known for one in matching):
            return
        allowed = {
            change.qos if one.version == _AS_PUBLISHED else min(change.qos, one.qos)
            for change in changes
            for one in matching
        }
        if allowed and attempt.qos not in allowed:
            key = changes[0].sent.key
            yield from broker_violations("retained_qos", matching[-1], attempt.at, key)

    def judge(self, attempt: Attempt, setter: _Recent | None) -> Iterator[Fact]:
        """Yield the rules that the delivery of a value breaks; mark one that came too often.

        Parameters
        ----------
        setter
            The value, if its message was captured.
        """
        name, at = attempt.client.name, attempt.at
        own = self._by_client.get(name, [])
        if not own or at.ns is None or attempt.is_sparse or not all(one.known for one in own):
            return
        self._delivered[name, attempt.content] += 1
        most = max(1, sum(one.gets_values for one in own))
        attempt.is_extra = self._delivered[name, attempt.content] > most
        # A subscription from before the message may have been granted after it.
        newer = [one for one in own if setter is None or setter.change.sent < one.granted]
        if not newer or any(one.group for one in newer):
            return
        last, wanted = newer[-1], [one for one in newer if one.gets_values]
        key = None if setter is None else setter.change.sent.key
        if not wanted:
            rule = "retained_unwanted" if last.handling == _NEVER else "retained_existing"
            yield from broker_violations(rule, last, at, key)
        elif all(at < one.granted for one in wanted):
            yield from broker_violations("retained_early", wanted[-1], at, key)
        if setter is not None:
            keeps = last.version < _WITH_DELETION
            since = setter.replaced if keeps else setter.superseded
            if since is not None and since < min(one.asked for one in newer):
                yield from broker_violations("retained_stale", last, at, key)

    def is_live(self, attempt: Attempt, value: _Recent) -> bool:
        """Return whether a delivery with RETAIN is a forwarded message, by Retain As Published.

        The broker forwards one copy for each subscription with Retain As Published.
        """
        name, change = attempt.client.name, value.change
        until = change.accepted or attempt.at
        copies = sum(
            one.retain_as_published
            and one.asked < until
            and (one.gone is None or change.sent < one.gone)
            for one in self._by_client.get(name, ())
        )
        if copies <= value.live[name]:
            return False
        value.live[name] += 1
        return True

    def missing(self) -> Iterator[Fact]:
        """Yield a violation for each expected value that was not delivered."""
        for expected in self._expected.values():
            for one in expected:
                key = one.change.sent.key
                yield from broker_violations("retained_missing", one.subscribed, one.confirmed, key)


def broker_violations(
    rule: str, subscribed: Subscribed, at: Position, message_key: str | None
) -> Iterator[Fact]:
    """Yield a violation by the broker, if the version of its client has the rule."""
    if (citation := cite(rule, subscribed.version)) is not None:
        violation = violation_of(*citation, subscribed.client, False, at, message_key)
        yield fact_of(("violations", violation_row(PROTOCOL, violation)))


_LOOK_BACK: Final = 16
"""Changes of one topic that may come while an older value is being delivered."""
_NS_PER_S: Final = 1_000_000_000


def new_subscription_record(topic: str, subscribed: Subscribed) -> KeyedRecord:
    """Return the record of a subscription that matches a topic with retained values."""
    key = (*subscribed.client[:2], topic)
    return KeyedRecord(VALUES, key, value_order(subscribed.asked, SUBSCRIBED), subscribed)


def attempt_record(attempt: Attempt) -> KeyedRecord:
    """Return the record of a delivery attempt with RETAIN."""
    return KeyedRecord(
        VALUES, (*attempt.client[:2], attempt.topic), value_order(attempt.at, DELIVERED), attempt
    )


def keep_values(
    records: Iterator[Lost | ValueChange | PendingChange | Subscribed | Attempt],
) -> Iterator[Found | Attempt]:
    """Yield the values of a topic, and its delivery attempts with the message that set each value.

    A value may still be in flight when the next ones are set, but only the last `_LOOK_BACK` count.
    """
    retained = Retained()
    setters: dict[str, ValueChange] = {}
    recent: deque[_Recent] = deque(maxlen=_LOOK_BACK)
    initial = InitialValues()
    topic: str | None = None
    lost = Lost()
    for record in records:
        if isinstance(record, Lost):
            lost = record
        elif isinstance(record, ValueChange):
            topic = record.topic
            _set(record, retained)
            for one in recent:
                one.supersede(record)
            if not record.deletes:
                setters[record.sent.key] = record
                recent.append(_Recent(content_of(record.payload), record))
            initial.set(record)
            for value in retained.take_past(topic):
                row = _row(_as_shown(value, lost), setters.pop(value.key))
                yield fact_of(("retained", row))
        elif isinstance(record, Attempt):
            same = [one for one in reversed(recent) if one.content == record.content]
            live = next((one for one in same if initial.is_live(record, one)), None)
            is_live, setter = live is not None, live or (same[0] if same else None)
            record = replace(
                record,
                setter=None if setter is None else setter.change.sent,
                is_live=is_live,
                may_be_live=record.may_be_live and not is_live,
            )
            yield from initial.deliver(record, [one.change for one in same])
            if not (is_live or lost.overlaps(0, record.at.time)):
                yield from initial.judge(record, setter)
            yield record
        elif isinstance(record, Subscribed):
            current = retained.at(topic, record.asked.time) if topic is not None else None
            confirmed = record.confirmed or record.granted
            if current and lost.overlaps(current.since, confirmed.time):
                current = None
            change = setters.get(current.key) if current else None
            initial.subscribe(record, current, change)
        else:
            initial.change(record.sent, record.accepted)
    yield from initial.missing()
    for value in retained.values():
        yield Fact("retained", _row(_as_shown(value, lost), setters[value.key]))
    if retained.dropped:
        yield Dropped("retained", retained.dropped)


def _as_shown(value: Value, lost: Lost) -> Value:
    """Return a value without its end, if a message that was not captured may have ended it."""
    if value.until is None or not lost.overlaps(value.since, value.until):
        return value
    return replace(value, until=None, ended_by=None)


def _row(value: Value, setter: ValueChange) -> dict[str, Any]:
    """Return a row of the table `retained`."""
    timed = setter.sent.ns is not None
    return {
        "topic": value.topic,
        "from_ns": value.since if timed else None,
        "to_ns": value.until if timed else None,
        "payload": value.payload,
        "qos": value.qos,
        "message_key": value.key,
        "producer_client_id": setter.client.client_id,
        "ended_by": value.ended_by,
        "from_frame": setter.sent.frame,
        **setter.sent.lead,
    }


def _set(change: ValueChange, retained: Retained) -> None:
    at, expires = change.at, None
    if change.expires_s is not None and at.ns is not None:
        expires = at.ns + change.expires_s * _NS_PER_S
    value = Value(change.topic, change.payload, change.qos, change.sent.key, at.time)
    retained.set(value, expires, change.deletes)
