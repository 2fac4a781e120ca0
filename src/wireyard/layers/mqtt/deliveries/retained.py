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

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from wireyard.formats.base import Row
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
from wireyard.layers.mqtt.violations import cite, violation_of
from wireyard.layers.records import Position, violation_row
from wireyard.layers.stages import Fact, Found, KeyedRecord

_AS_PUBLISHED: Final = 2
"""The version of 1999, which sends a value with the QoS that it was published with."""
_WITH_DELETION: Final = 4
"""The first version in which a broker has to delete a value; in 3.1 it may."""
_NEVER: Final = 2
"""Retain Handling: retained values are not sent."""


@dataclass(slots=True, eq=False)
class _Value:
    """The value that a message set, and when the broker had certainly another one."""

    change: ValueChange
    content: bytes
    until: int | None = None
    """When it expires, or ended by another change."""
    ended_by: str | None = None
    """``replaced``, ``deleted`` or ``expired``."""
    superseded: Position | None = None
    replaced: Position | None = None
    """The same if values are not deleted."""
    live: Counter[str] = field(default_factory=Counter)
    """By client, how often its message was delivered live."""

    @classmethod
    def of(cls, change: ValueChange) -> _Value:
        """Return the value of a change that does not delete one."""
        value = cls(change, content_of(change.payload))
        if change.expires_s is not None and change.at.ns is not None:
            value.until = change.at.ns + change.expires_s * _NS_PER_S
            value.ended_by = "expired"
        return value

    def lasts(self, time: int) -> bool:
        """Return whether it is the value at a time, if no other was set until then."""
        return self.until is None or time < self.until

    def has_waited(self, at: Position, left_s: int) -> bool:
        """Return whether less of its expiry interval is certainly left at a position."""
        expires_s, since_ns = self.change.expires_s, self.change.at.ns
        if expires_s is None or since_ns is None or at.ns is None:
            return False
        return at.ns - since_ns > (expires_s - left_s + 1) * _NS_PER_S

    def end(self, newer: ValueChange) -> None:
        """End it by the next change of the value."""
        if self.lasts(newer.at.time):
            self.until = newer.at.time
            self.ended_by = "deleted" if newer.deletes else "replaced"

    def supersede(self, newer: ValueChange) -> None:
        """Observe a later change of the value."""
        if newer.accepted is not None and self.change.sent < newer.sent:
            self.superseded = min(self.superseded or newer.accepted, newer.accepted)
            if not newer.deletes:
                self.replaced = min(self.replaced or newer.accepted, newer.accepted)

    def row(self, lost: Lost) -> Row:
        """Return its row; a message that was not captured may have ended it."""
        change, ends = self.change, self.until is not None
        is_timed = change.sent.ns is not None
        if ends and lost.overlaps(change.at.time, self.until or 0):
            ends = False
        return {
            "topic": change.topic,
            "from_ns": change.at.time if is_timed else None,
            "to_ns": self.until if is_timed and ends else None,
            "payload": change.payload,
            "qos": change.qos,
            "message_key": change.sent.key,
            "producer_client_id": change.client.client_id,
            "ended_by": self.ended_by if ends else None,
            "from_frame": change.sent.frame,
            **change.sent.lead,
        }


class _ExpectedValue(NamedTuple):
    """A retained value that a new subscription should get."""

    subscribed: Subscribed
    confirmed: Position
    value: _Value


class MissingValue(NamedTuple):
    """An expected value that was not delivered with RETAIN."""

    subscribed: Subscribed
    confirmed: Position
    message_key: str


class InitialValues:
    """The retained values that new subscriptions to one topic should get.

    Records come in the order of time. The subscriptions that match the topic are held, at most
    `MAX_SUBSCRIPTIONS`.
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

    def subscribe(self, subscribed: Subscribed, value: _Value | None) -> None:
        """Observe a new subscription, and the value of the topic if it is certain."""
        name, confirmed = subscribed.client.name, subscribed.confirmed
        self._by_client.setdefault(name, []).append(subscribed)
        if confirmed is None or value is None:
            return
        if self._is_expected(subscribed, value, confirmed):
            expected = _ExpectedValue(subscribed, confirmed, value)
            self._expected.setdefault(name, []).append(expected)
            self._unconfirmed.append(expected)

    def _is_expected(self, subscribed: Subscribed, value: _Value, confirmed: Position) -> bool:
        if self._is_unsettled or self._settled is None or subscribed.asked < self._settled:
            return False
        if self._is_ambiguous:
            return False
        change = value.change
        own = subscribed.no_local and change.client.name == subscribed.client.name
        too_large = may_exceed(subscribed.maximum_packet_size, change.topic, change.length)
        can_be_compared = confirmed.ns is not None and subscribed.known
        # Only 1999 has values without payload; later versions forbid to keep them.
        sent = change.qos > 0 and subscribed.gets_values and not (own or too_large)
        return bool(change.payload) and can_be_compared and sent and value.lasts(confirmed.time)

    def deliver(self, attempt: Attempt, same: Sequence[_Value]) -> Iterator[Fact]:
        """Observe a delivery with RETAIN; it may be of any of the values in `same`."""
        name = attempt.client.name
        expected = self._expected.get(name, [])
        # Without any, a value that was not captured has replaced the expected ones.
        expected[:] = [one for one in expected if same and one.value.content != attempt.content]
        matching = self._by_client.get(name, [])
        if not matching or attempt.at.ns is None or not all(one.known for one in matching):
            return
        allowed = {
            value.change.qos if one.version == _AS_PUBLISHED else min(value.change.qos, one.qos)
            for value in same
            for one in matching
        }
        if allowed and attempt.qos not in allowed:
            key = same[0].change.sent.key
            yield from broker_violations("retained_qos", matching[-1], attempt.at, key)

    def judge(self, attempt: Attempt, setter: _Value | None) -> Iterator[Fact]:
        """Yield the rules that the delivery of a value breaks; mark one that came too often.

        `setter` is the value, if its message was captured.
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
        may_be_live = setter is None and any(one.retain_as_published for one in newer)
        if not newer or may_be_live or any(one.group for one in newer):
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
            asked = min(one.asked for one in newer)
            if since is not None and since < asked:
                self._expected.get(name, []).clear()
                yield from broker_violations("retained_stale", last, at, key)
            if setter.has_waited(asked, 0):
                yield from broker_violations("delivered_expired", last, at, key)
            elif attempt.left_s is not None and setter.has_waited(at, attempt.left_s):
                yield from broker_violations("expiry_kept", last, at, key)

    def is_live(self, attempt: Attempt, value: _Value) -> bool:
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

    def missing(self) -> Iterator[MissingValue]:
        """Yield each expected value that was not delivered with RETAIN."""
        for expected in self._expected.values():
            for one in expected:
                yield MissingValue(one.subscribed, one.confirmed, one.value.change.sent.key)


def broker_violations(
    rule: str, subscribed: Subscribed, at: Position, message_key: str | None
) -> Iterator[Fact]:
    """Yield a violation by the broker, if the version of its client has the rule."""
    if (citation := cite(rule, subscribed.version)) is not None:
        violation = violation_of(*citation, subscribed.client, False, at, message_key)
        yield Fact("violations", violation_row(PROTOCOL, violation))


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
) -> Iterator[Found | Attempt | MissingValue]:
    """Yield the values of a topic, and its delivery attempts with the message that set each value.

    A value may still be in flight when the next ones are set, but only the last `_LOOK_BACK` count.
    """
    recent: deque[_Value] = deque(maxlen=_LOOK_BACK)
    current: _Value | None = None
    initial, lost = InitialValues(), Lost()
    for record in records:
        if isinstance(record, Lost):
            lost = record
        elif isinstance(record, ValueChange):
            if current is not None:
                current.end(record)
                yield Fact("retained", current.row(lost))
            for one in recent:
                one.supersede(record)
            current = None if record.deletes else _Value.of(record)
            if current is not None:
                recent.append(current)
            initial.set(record)
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
            yield from initial.deliver(record, same)
            if not (is_live or lost.overlaps(0, record.at.time)):
                yield from initial.judge(record, setter)
            yield record
        elif isinstance(record, Subscribed):
            confirmed = record.confirmed or record.granted
            is_sure = current is not None and current.lasts(record.asked.time)
            if current and lost.overlaps(current.change.at.time, confirmed.time):
                is_sure = False
            initial.subscribe(record, current if is_sure else None)
        else:
            initial.change(record.sent, record.accepted)
    yield from initial.missing()
    if current is not None:
        yield Fact("retained", current.row(lost))
